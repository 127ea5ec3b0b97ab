"""Run obligations one by one; ``unknown`` is a failure, and so is an obligation that nothing can break."""

from __future__ import annotations

import fnmatch
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import groupby
from typing import Any

import z3

from stallproof import spread
from stallproof.errors import BadInput
from stallproof_proofs.asking import Asker
from stallproof_proofs.hints import Hint, hints
from stallproof_proofs.registry import theories
from stallproof_proofs.result import Result, Status
from stallproof_proofs.theory import Condition, Obligation

#: Milliseconds for one query. The slowest needs well under a tenth of it.
TIMEOUT_MS = 20_000

_asker = Asker()


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
    return _asker.ask(*condition, timeout_ms, _read)


def query_on_base(condition: Condition) -> tuple[Status, str, frozenset[str]]:
    """As :func:`query`, for one of many that have most hypotheses in common; names none of them."""
    return _asker.ask_on_base(*condition, TIMEOUT_MS, _read)


def _read(solver: z3.Solver, answer: Any) -> tuple[Status, str, frozenset[str]]:
    if answer == z3.unsat:
        return "proved", "", frozenset(str(c) for c in solver.unsat_core())
    if answer == z3.sat:
        return "refuted", describe(solver.model()), frozenset()
    return "unknown", solver.reason_unknown(), frozenset()


#: Nothing found among few elements; there may be a counterexample with more.
SMALL = "no counterexample in a small universe"


def refute(
    condition: Condition,
    small: Callable[[Condition], Condition] | None,
    alike: bool = False,
) -> tuple[Status, str]:
    """Look for a counterexample, in a small universe first: one that is found there is one.

    ``alike``: the next condition will have most of its hypotheses in common with this one.
    """
    ask = query_on_base if alike else query
    if small is not None:
        status, detail, _ = ask(small(condition))
        if status == "refuted":
            return status, detail
        if status == "proved":
            return "unknown", SMALL
    return ask(condition)[:2]


def describe(model: z3.ModelRef) -> str:
    """Size of a counterexample, and its integer constants."""
    sorts = [f"{len(model.get_universe(s) or [])} {s}" for s in model.sorts()]
    consts = [
        f"{d.name()}={model[d]}"
        for d in sorted((d for d in model.decls() if d.arity() == 0), key=z3.FuncDeclRef.name)
        if not set("! ") & set(d.name())
        and d.name() != "True"
        and d.range().kind() in (z3.Z3_INT_SORT, z3.Z3_BOOL_SORT)
    ]
    return ", ".join([*sorts, *consts[:8]])


def prove(o: Obligation) -> tuple[Status, str, frozenset[str]]:
    """Query ``o``, with the hypotheses of its hint first."""
    hyps, goal = o.condition()
    hint = hints().get(o.name)
    if hint and hint.fails_if is not None:
        uses = set(hint.uses)
        # facts of the system are only numbered, so a new one shifts them
        system = {n for n in hyps if n.startswith("system ")}
        for names in (uses, uses | system) if uses else (uses,):
            if names <= set(hyps):
                answer = query(({n: h for n, h in hyps.items() if n in names}, goal), TIMEOUT_MS // 4)
                if answer[0] == "proved":
                    return answer
    return query((hyps, goal))


def breaks(o: Obligation, used: Collection[str], recorded: str = "") -> str | None:
    """Label of something whose removal makes ``o`` fail; empty if there is nothing.

    None if the solver gave up on one. A hypothesis that the proof does not use need not be
    tried: the proof stands without it.
    """
    tried = [v for v in o.variants if not v.hypothesis or v.hypothesis in used]
    tried.sort(key=lambda v: v.label != recorded)
    gave_up = False
    hyps, goal = o.condition()
    for v in tried:
        condition = v.condition()
        if len(condition[0]) == len(hyps) and condition[1].eq(goal):
            continue  # the conjunct does not speak of what was taken away
        status, detail = refute(condition, o.small)
        if status == "refuted":
            return v.label
        gave_up |= status == "unknown" and detail != SMALL
    return None if gave_up else ""


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
            found = hint.fails_if if recorded else breaks(o, used, hint.fails_if or "")
            fails_if = found or ""
            if not fails_if and o.small is None:
                status, detail = "unknown", "nothing makes it fail: the obligation says nothing"
            elif found == "" and (not recorded or o.name in hints()):
                kind = "frame"
    else:
        status, detail = refute(o.condition(), o.small, alike=True)
    seconds = time.process_time() - began
    return Result(
        o.name, o.theory, kind, status, o.expected, seconds, detail, (fails_if,) if fails_if else ()
    )


#: by theory and name, what this process has built
_built: dict[str, dict[str, Obligation]] = {}


def _of_theory(name: str) -> dict[str, Obligation]:
    if name not in _built:
        _built[name] = _by_name(select([name]))
    return _built[name]


def _by_name(some: Iterable[Obligation]) -> dict[str, Obligation]:
    out: dict[str, Obligation] = {}
    for o in some:
        if o.name in out:
            raise AssertionError(f"names of obligations are not unique: {o.name}")
        out[o.name] = o
    return out


def _batch(case: dict[str, Any], tick: Callable[..., None]) -> None:
    """A case of :mod:`stallproof.spread`: names and results go back as ticks, so that progress is seen."""
    mine = _of_theory(case["theory"])
    names = list(mine) if case["names"] is None else case["names"]
    tick(case["part"], names)
    _asker.forget()  # answers do not depend on which theories this process had before
    for name in names:
        tick(case["part"], vars(check(mine[name], case["thorough"])))


def run(
    progress: Callable[[int, int, Result], None] | None = None,
    only: Sequence[str] = (),
    thorough: bool = False,
    jobs: int = 1,
) -> list[Result]:
    """See :func:`stallproof_proofs.run`."""
    _built.clear()
    parts: list[tuple[str, list[str] | None]]
    known = [t.name for t in theories()]
    if jobs > 1 and set(only) <= set(known):  # what whole theories have to show, only those who do it build
        parts = [(t, None) for t in dict.fromkeys(only or known)]
    else:
        todo = select(only)
        for theory, group in groupby(todo, key=lambda o: o.theory):
            _built.setdefault(theory, {}).update(_by_name(group))
        parts = [(t, [o.name for o in group]) for t, group in groupby(todo, key=lambda o: o.theory)]
    # about as many as there are hints, until it is known: for the order of work and for progress
    about = Counter(n.split("/")[0] for n in hints())
    sizes = [about[t] if names is None else len(names) for t, names in parts]
    cases: list[dict[str, Any]] = [
        {"part": k, "theory": t, "names": names, "thorough": thorough} for k, (t, names) in enumerate(parts)
    ]
    if jobs > 1:
        cases.sort(key=lambda c: -about[c["theory"]])
    named: dict[int, list[str]] = {}
    found: list[list[Result]] = [[] for _ in parts]

    def done(_: int, part: int, what: Any) -> None:
        if isinstance(what, list):
            named[part], sizes[part] = what, len(what)
            return
        found[part].append(Result(**what))
        if progress:
            progress(sum(map(len, found)), sum(sizes), found[part][-1])

    spread.run(
        _batch, cases, spread.Where(jobs=min(jobs, len(cases))), on_tick=done, label=lambda c: c["theory"]
    )
    for k in range(len(parts)):  # a proof that did not run must not look like one
        if not named.get(k) or [r.name for r in found[k]] != named[k]:
            raise BadInput(f"obligations of {parts[k][0]} gave no result", remedy="report this")
    return [r for some in found for r in some]
