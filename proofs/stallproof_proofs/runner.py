"""Run obligations one by one; ``unknown`` is a failure, and so is an obligation that nothing can break."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Sequence

import z3

from stallproof.errors import BadInput
from stallproof_proofs.registry import theories
from stallproof_proofs.result import Result, Status
from stallproof_proofs.theory import Condition, Obligation

#: Milliseconds for one query. The slowest needs well under a tenth of it.
TIMEOUT_MS = 20_000


def select(only: Sequence[str] = ()) -> list[Obligation]:
    """Obligations whose name or theory equals or matches one of ``only`` (all, if it is empty)."""
    every = [o for t in theories() for o in t.obligations()]
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


def check(o: Obligation) -> Result:
    """Prove or refute one obligation; for a proved one also find what would make it fail."""
    began = time.perf_counter()
    status, detail, used = query(o.condition())
    fails_if: tuple[str, ...] = ()
    if o.kind == "obligation" and status == "proved":
        for v in o.variants:
            if v.hypothesis and v.hypothesis not in used:
                continue  # the proof stands without it
            if query(v.condition())[0] == "refuted":
                fails_if = (v.label,)
                break
        else:
            status, detail = "unknown", "nothing makes it fail: the obligation says nothing"
    return Result(o.name, o.theory, o.kind, status, o.expected, time.perf_counter() - began, detail, fails_if)


def run(progress: Callable[[int, int, Result], None] | None = None, only: Sequence[str] = ()) -> list[Result]:
    """See :func:`stallproof_proofs.run`."""
    todo = select(only)
    names = [o.name for o in todo]
    if len(set(names)) != len(names):
        twice = sorted({n for n in names if names.count(n) > 1})
        raise AssertionError(f"names of obligations are not unique: {twice}")
    results = []
    for i, o in enumerate(todo, 1):
        results.append(check(o))
        if progress:
            progress(i, len(todo), results[-1])
    return results
