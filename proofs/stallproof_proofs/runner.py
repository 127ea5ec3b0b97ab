"""Run obligations one by one; ``unknown`` is a failure, and so is an obligation that nothing can break."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Collection, Sequence
from itertools import groupby
from typing import Any

import z3

from stallproof import spread
from stallproof.errors import BadInput
from stallproof_proofs.hints import Hint, hints
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
    solver.set("ctrl_c", False)  # else Z3 takes the signal for itself and says unknown
    for name, h in hyps.items():
        solver.assert_and_track(h, name)
    solver.add(z3.Not(goal))
    answer = solver.check()
    if answer == z3.unsat:
        return "proved", "", frozenset(str(c) for c in solver.unsat_core())
    if answer == z3.sat:
        return "refuted", describe(solver.model()), frozenset()
    return "unknown", solver.reason_unknown(), frozenset()


#: Nothing found among few elements; there may be a counterexample with more.
SMALL = "no counterexample in a small universe"


def refute(condition: Condition, small: Callable[[Condition], Condition] | None) -> tuple[Status, str]:
    """Look for a counterexample, in a small universe first: one that is found there is one."""
    if small is not None:
        status, detail, _ = query(small(condition))
        if status == "refuted":
            return status, detail
        if status == "proved":
            return "unknown", SMALL
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
        status, detail = refute(o.condition(), o.small)
    seconds = time.process_time() - began
    return Result(
        o.name, o.theory, kind, status, o.expected, seconds, detail, (fails_if,) if fails_if else ()
    )


#: by theory and name, what this process has built
_built: dict[str, dict[str, Obligation]] = {}


def _of_theory(name: str) -> dict[str, Obligation]:
    if name not in _built:
        _built[name] = {o.name: o for o in select([name])}
    return _built[name]


def _batch(case: dict[str, Any], tick: Callable[..., None]) -> None:
    """A case of :mod:`stallproof.spread`: results go back as ticks, so that progress is seen."""
    mine = _of_theory(case["theory"])
    for i, name in case["items"]:
        tick(i, vars(check(mine[name], case["thorough"])))


def run(
    progress: Callable[[int, int, Result], None] | None = None,
    only: Sequence[str] = (),
    thorough: bool = False,
    jobs: int = 1,
) -> list[Result]:
    """See :func:`stallproof_proofs.run`."""
    todo = select(only)
    names = [o.name for o in todo]
    if len(set(names)) != len(names):
        twice = sorted({n for n in names if names.count(n) > 1})
        raise AssertionError(f"names of obligations are not unique: {twice}")
    cases: list[dict[str, Any]] = []
    _built.clear()
    for theory, group in groupby(enumerate(todo), key=lambda item: item[1].theory):
        some = list(group)
        _built.setdefault(theory, {}).update({o.name: o for _, o in some})
        cases.append({"theory": theory, "items": [(i, o.name) for i, o in some], "thorough": thorough})
    found: dict[int, Result] = {}

    def done(_: int, i: int, fields: dict[str, Any]) -> None:
        found[i] = Result(**fields)
        if progress:
            progress(len(found), len(todo), found[i])

    spread.run(
        _batch, cases, spread.Where(jobs=min(jobs, len(cases))), on_tick=done, label=lambda c: c["theory"]
    )
    missing = [o.name for i, o in enumerate(todo) if i not in found]
    if missing:  # a proof that did not run must not look like one
        raise BadInput(f"{len(missing)} obligations gave no result, {missing[0]} first", remedy="report this")
    return [found[i] for i in range(len(todo))]
