"""Run obligations one by one; ``unknown`` is a failure, and so is an obligation that nothing can break."""

from __future__ import annotations

import fnmatch
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec
import z3

from stallproof.errors import BadInput
from stallproof_proofs.registry import theories
from stallproof_proofs.result import Result, Status
from stallproof_proofs.theory import Condition, Obligation

#: Milliseconds for one query. The slowest needs well under a tenth of it.
TIMEOUT_MS = 20_000


def select(only: Sequence[str] = ()) -> list[Obligation]:
    """Obligations whose name or theory equals or matches one of ``only`` (all, if it is empty)."""
    # the theory is what stands before the slash; `*Bypass` may be in any of them
    heads = [p.split("/")[0] if "/" in p or "*" not in p else "*" for p in only] or ["*"]
    wanted = [t for t in theories() if any(fnmatch.fnmatchcase(t.name, h) for h in heads)]
    every = [o for t in wanted for o in t.obligations()]
    if not only:
        return every
    out = []
    for pattern in only:
        hits = [o for o in every if pattern in (o.name, o.theory) or fnmatch.fnmatchcase(o.name, pattern)]
        if not hits:
            raise BadInput(
                f"no obligation is called {pattern!r}", remedy="`stallproof prove --list` names them all"
            )
        out += hits
    return list({o.name: o for o in out}.values())


def query(condition: Condition, timeout_ms: int = TIMEOUT_MS) -> tuple[Status, str, frozenset[str]]:
    """Is ``hypotheses => goal`` valid?

    Returns the status, a counterexample in words (or the reason of an ``unknown``), and the names of the
    hypotheses that a proof used.
    """
    hyps, goal = condition
    solver = z3.Solver()
    solver.set("timeout", timeout_ms)
    for name, h in hyps.items():
        solver.assert_and_track(h, name)
    solver.add(z3.Not(goal))
    answer = solver.check()
    if answer == z3.unsat:
        return "proved", "", frozenset(str(c) for c in solver.unsat_core())
    if answer == z3.sat:
        return "refuted", describe(solver.model()), frozenset()
    return "unknown", solver.reason_unknown(), frozenset()


def refute(condition: Condition, small: Callable[[Condition], Condition] | None) -> tuple[Status, str]:
    """Look for a counterexample, in a small universe first: one that is found there is one."""
    if small is not None:
        status, detail, _ = query(small(condition))
        if status == "refuted":
            return status, detail
        if status == "proved":
            return "unknown", "no counterexample in a small universe"
    return query(condition)[:2]


def describe(model: z3.ModelRef) -> str:
    """Size of a counterexample, and its integer constants."""
    sorts = [f"{len(model.get_universe(s) or [])} {s}" for s in model.sorts()]
    consts = [
        f"{d.name()}={model[d]}"
        for d in sorted(model.decls(), key=str)
        if d.arity() == 0
        and d.range().kind() in (z3.Z3_INT_SORT, z3.Z3_BOOL_SORT)
        and not set("! ") & set(d.name())
        and d.name() != "True"
    ]
    return ", ".join([*sorts, *consts[:8]])


class Hint(msgspec.Struct, omit_defaults=True):
    """What an earlier thorough run found: hypotheses that suffice, and what makes the obligation fail.

    A hint is never trusted: fewer hypotheses prove more, and a proof that fails with them is tried with all.
    ``fails_if``: empty if nothing makes it fail, None if nobody has looked yet.
    """

    uses: list[str] = []
    fails_if: str | None = ""


HINTS = Path(__file__).with_name("hints.json")


@lru_cache
def hints() -> dict[str, Hint]:
    return msgspec.json.decode(HINTS.read_bytes(), type=dict[str, Hint]) if HINTS.exists() else {}


def write_hints(found: Mapping[str, Hint]) -> None:
    """Replace the hints of the given obligations; drop those of obligations that no longer exist."""
    known = {o.name for o in select()}
    merged = {n: h for n, h in sorted({**hints(), **found}.items()) if n in known}
    lines = ",\n".join(f"{json.dumps(n)}:{msgspec.json.encode(h).decode()}" for n, h in merged.items())
    HINTS.write_text("{\n" + lines + "\n}\n", encoding="utf-8")
    hints.cache_clear()


def prove(o: Obligation) -> tuple[Status, str, frozenset[str]]:
    """Query ``o``, with the hypotheses of its hint first."""
    hyps, goal = o.condition()
    hint = hints().get(o.name)
    if hint and hint.uses and set(hint.uses) <= set(hyps):
        answer = query(({n: hyps[n] for n in hint.uses}, goal), TIMEOUT_MS // 4)
        if answer[0] == "proved":
            return answer
    return query((hyps, goal))


def breaks(o: Obligation, used: Collection[str], recorded: str = "") -> str:
    """Label of something whose removal makes ``o`` fail; empty if there is nothing.

    A hypothesis that the proof does not use need not be tried: the proof stands without it.
    """
    tried = [v for v in o.variants if not v.hypothesis or v.hypothesis in used]
    tried.sort(key=lambda v: v.label != recorded)
    return next((v.label for v in tried if refute(v.condition(), o.small)[0] == "refuted"), "")


def check(o: Obligation, thorough: bool = False) -> Result:
    """Prove or refute one obligation; for a proved one also name what would make it fail.

    A quick run takes that name from the last thorough run where looking for it again is slow.
    """
    began = time.process_time()
    fails_if, kind = "", o.kind
    if o.kind == "obligation":
        status, detail, used = prove(o)
        hint = hints().get(o.name, Hint())
        if status == "proved":
            recorded = o.small is not None and not thorough
            fails_if = (hint.fails_if if recorded else breaks(o, used, hint.fails_if or "")) or ""
            if not fails_if and o.small is None:
                status, detail = "unknown", "nothing makes it fail: the obligation says nothing"
            elif not fails_if and (not recorded or (o.name in hints() and hint.fails_if is not None)):
                kind = "frame"
    else:
        status, detail = refute(o.condition(), o.small)
    seconds = time.process_time() - began
    return Result(
        o.name, o.theory, kind, status, o.expected, seconds, detail, (fails_if,) if fails_if else ()
    )


def run(
    progress: Callable[[int, int, Result], None] | None = None,
    only: Sequence[str] = (),
    thorough: bool = False,
) -> list[Result]:
    """See :func:`stallproof_proofs.run`."""
    todo = select(only)
    names = [o.name for o in todo]
    if len(set(names)) != len(names):
        twice = sorted({n for n in names if names.count(n) > 1})
        raise AssertionError(f"names of obligations are not unique: {twice}")
    results = []
    for i, o in enumerate(todo, 1):
        results.append(check(o, thorough))
        if progress:
            progress(i, len(todo), results[-1])
    return results


def renew_hints(progress: Callable[[int, int, str], None] | None = None, only: Sequence[str] = ()) -> int:
    """Find, for each obligation, a small set of hypotheses and a removal that breaks it; write both down."""
    todo = [o for o in select(only) if o.kind == "obligation"]
    found = {}
    for i, o in enumerate(todo, 1):
        status, _, used = prove(o)
        if status == "proved":
            recorded = hints().get(o.name, Hint()).fails_if or ""
            found[o.name] = Hint(sorted(used), breaks(o, used, recorded))
        if progress:
            progress(i, len(todo), o.name)
    write_hints(found)
    return len(found)
