"""Solvers that are kept from one query to the next: what a query asserts is popped again.

To make a solver takes longer than most queries. What is asserted is the same either way, and where a kept one
says unknown, a new one is asked; so no answer depends on the queries before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import z3

from stallproof_proofs.logic import Bool

#: called with the solver and its answer while the assertions still stand
Reader: TypeAlias = Callable[[z3.Solver, Any], Any]


def new(timeout_ms: int) -> z3.Solver:
    solver = z3.SimpleSolver()
    solver.set("timeout", timeout_ms)
    solver.set("ctrl_c", False)  # else Z3 takes the signal for itself and says unknown
    return solver


class Asker:
    """``ask`` tracks hypotheses by name, for the core of a proof; ``ask_on_base`` tracks none and leaves
    asserted what one query and the next have in common (the invariant, say)."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin with new solvers."""
        self._kept: dict[int, z3.Solver] = {}
        self._names: dict[str, Bool] = {}
        self._base: dict[str, Bool] = {}
        self._on_base: z3.Solver | None = None
        self._last: Mapping[str, Bool] = {}

    def ask(self, hyps: Mapping[str, Bool], goal: Bool, timeout_ms: int, read: Reader) -> Any:
        if timeout_ms not in self._kept:
            self._kept[timeout_ms] = new(timeout_ms)
        return self._ask(self._kept[timeout_ms], hyps, {}, goal, timeout_ms, read, self._track)

    def ask_on_base(self, hyps: Mapping[str, Bool], goal: Bool, timeout_ms: int, read: Reader) -> Any:
        common = {n: h for n, h in hyps.items() if self._last.get(n) is h}
        fits = all(hyps.get(n) is h for n, h in self._base.items())
        if self._on_base is None or not fits or 2 * len(self._base) < len(common):
            self._base = common
            self._on_base = new(timeout_ms)
            self._on_base.add(*self._base.values())
        self._last = hyps
        return self._ask(self._on_base, hyps, self._base, goal, timeout_ms, read, _add)

    def _ask(
        self,
        solver: z3.Solver,
        hyps: Mapping[str, Bool],
        there: Mapping[str, Bool],
        goal: Bool,
        timeout_ms: int,
        read: Reader,
        put: Callable[[z3.Solver, str, Bool], None],
    ) -> Any:
        solver.push()
        try:
            for name, h in hyps.items():
                if name not in there:
                    put(solver, name, h)
            solver.add(z3.Not(goal))
            answer = solver.check()
            if answer != z3.unknown:
                return read(solver, answer)
        finally:
            solver.pop()
        alone = new(timeout_ms)
        for name, h in hyps.items():
            self._track(alone, name, h)
        alone.add(z3.Not(goal))
        return read(alone, alone.check())

    def _track(self, solver: z3.Solver, name: str, h: Bool) -> None:
        label = self._names.get(name)
        if label is None:
            label = self._names[name] = z3.Bool(name)
        solver.assert_and_track(h, label)


def _add(solver: z3.Solver, _: str, h: Bool) -> None:
    solver.add(h)
