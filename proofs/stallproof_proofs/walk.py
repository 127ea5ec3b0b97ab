"""Reachable runs for the twins of the block theories, from the initial state of a small system.

A counterexample to induction may start in a state that no run reaches. Here the same actions, with the same
guard taken away, are executed from the initial state until a *stated* property breaks. The names of the
actions are written down per twin (:data:`SCRIPTS`): they tell the story. Which request, blocks and transfer
is searched for.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import z3

from stallproof_proofs.evaluate import Evaluator
from stallproof_proofs.logic import Action
from stallproof_proofs.theory import Inductive, Twin

SIZES = {"Blk": 2, "Req": 2, "Xfer": 2, "Job": 1, "Ent": 1}


@dataclass(frozen=True)
class Run:
    """``steps``: names of the actions from the initial state; ``broken``: conjuncts false after them."""

    steps: tuple[str, ...]
    broken: tuple[str, ...]


class Walker:
    """The system of a theory with one thing taken away, executable."""

    def __init__(
        self,
        theory: Inductive,
        twin: Twin | None = None,
        universe: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self.universe = dict(universe or {n: range(size) for n, size in SIZES.items()})
        self.ev = Evaluator(self.universe)
        self.vars = theory.system.vocabulary.vars
        s = theory.system.vocabulary.state()
        self.stated = dict(theory.statements(s))
        self.hypotheses = theory.system.hypotheses(s)
        self.actions: list[Action] = []
        for a in theory.system.actions(s):
            if twin and a.name == twin.action:
                gone = {n: g for n, g in a.guards.items() if n != twin.guard}
                a = twin.mutate(s, a) if twin.mutate else Action(a.name, gone, a.updates, a.params)
            self.actions.append(a)
        index = {d: [z3.Const(f"i{k}!", x) for k, x in enumerate(v.dom)] for d, v in self.vars.items()}
        self.index = {d: [str(i) for i in xs] for d, xs in index.items()}
        self.updates = {a.name: {n: u(*index[n]) for n, u in a.updates.items()} for a in self.actions}

    def initial(self) -> dict[str, Any]:
        """Everything in the pool, everything else zero or false."""
        env: dict[str, Any] = {}
        for name, v in self.vars.items():
            zero: Any = False if v.rng == z3.BoolSort() else 0
            if not v.dom:
                env[name] = zero
            else:
                env[name] = dict.fromkeys(self.points(name), 1 if name == "pool" else zero)
        return env

    def points(self, name: str) -> list[Any]:
        """All indices of a variable."""
        domains = [self.universe[str(d)] for d in self.vars[name].dom]
        out: list[tuple[int, ...]] = [()]
        for d in domains:
            out = [(*p, x) for p in out for x in d]
        return [p[0] for p in out] if len(domains) == 1 else list(out)

    def parameters(self, rng: random.Random) -> dict[str, Any]:
        blocks = self.universe["Blk"]
        some = set(blocks) if rng.random() < 0.25 else {rng.choice(blocks)}
        zeroed = some if rng.random() < 0.5 else set()
        return {
            "r0": rng.choice(self.universe["Req"]),
            "x0": rng.choice(self.universe["Xfer"]),
            "j0": 0,
            "e0": 0,
            "W": {b: b in some for b in blocks},
            "Z": {b: b in zeroed for b in blocks},
            "flag": rng.random() < 0.5,
            "g0": rng.randrange(3),
        }

    def apply(self, a: Action, env: dict[str, Any]) -> dict[str, Any]:
        out = dict(env)
        for name, term in self.updates[a.name].items():
            code = self.ev.compile(term)
            if not self.vars[name].dom:
                out[name] = code(env, ())
            elif len(self.index[name]) == 1:
                out[name] = {k: code({**env, self.index[name][0]: k}, ()) for k in self.points(name)}
            else:
                out[name] = {
                    k: code({**env, **dict(zip(self.index[name], k, strict=True))}, ())
                    for k in self.points(name)
                }
        return out

    def broken(self, env: dict[str, Any]) -> tuple[str, ...]:
        return tuple(n for n, g in self.stated.items() if not self.ev(g, env))

    def step(
        self, env: dict[str, Any], name: str, rng: random.Random, tries: int = 80
    ) -> dict[str, Any] | None:
        """``name`` with parameters for which it is enabled and changes something; None if none is found."""
        a = next(a for a in self.actions if a.name == name)
        for _ in range(tries):
            here = {**env, **self.parameters(rng)}
            if all(self.ev(g, here) for g in a.guards.values()):
                after = {n: x for n, x in self.apply(a, here).items() if n in self.vars}
                if after != env:
                    return after
        return None


def find(theory: Inductive, twin: Twin, tries: int = 400, seed: int = 0) -> Run | None:
    """A run from the initial state in which the twin breaks a stated property at its last step."""
    walker, rng = Walker(theory, twin), random.Random(seed)
    script = SCRIPTS[theory.name][f"{twin.action}-{twin.guard}"].split()
    for _ in range(tries):
        env: dict[str, Any] | None = walker.initial()
        for i, name in enumerate(script):
            env = walker.step(env, name, rng) if env is not None else None
            if env is None:
                break
            bad = walker.broken(env)
            if bad:
                return Run(tuple(script[: i + 1]), bad)
    return None


def control(theory: Inductive, walks: int = 100, length: int = 16, seed: int = 0) -> int:
    """Steps taken by random walks of the unmodified system; raises AssertionError if a property breaks."""
    walker, rng, steps = Walker(theory), random.Random(seed), 0
    for _ in range(walks):
        env = walker.initial()
        for _ in range(length):
            order = rng.sample(walker.actions, len(walker.actions))
            after = next(filter(None, (walker.step(env, a.name, rng, 4) for a in order)), None)
            if after is not None:
                env, steps = after, steps + 1
                bad = walker.broken(env)
                if bad:
                    raise AssertionError(f"{bad} broken in {theory.name}")
    return steps


_LOAD = "Begin AdmitLoad End DeviceDone Start"  # GateLoads: a load that writes
_QUIET = "End DeviceDone Process"

#: theory -> twin -> the actions of a run that breaks a stated property
SCRIPTS: dict[str, dict[str, str]] = {
    "blocks.gate": {
        "Alloc-in_pool": "Begin Alloc Alloc",
        "Alloc-no_reader": "Begin Alloc ReaderStart Free Alloc",
        "AdmitLoad-no_reader": "Begin Alloc ReaderStart Free AdmitLoad",
        "AdmitLoad-in_pool": "Begin Alloc AdmitLoad",
        "AdmitLoad-one_load": "Begin AdmitLoad AdmitLoad End DeviceDone Start Start XferDone LoadDone",
        "Share-valid": "Begin AdmitLoad Share End DeviceDone Start Begin Run",
        "Run-not_loading": f"{_LOAD} Begin Run",
        "Run-owned": "Begin Run LoadSync",
        "Cache-not_loading": "Begin AdmitLoad Cache Share End DeviceDone Start Begin Run",
        "ReaderStart-not_target": "Begin AdmitLoad ReaderStart End DeviceDone Start Begin Copy",
        "ReaderStart-new": "Begin Alloc Alloc ReaderStart Free ReaderStart",
        "LoadDone-reported": f"{_LOAD} LoadDone",
        "LoadDone-not_expired": f"{_LOAD} XferDone Expire LoadDone",
        "LateReport-reported": f"{_LOAD} Expire LateReport",
        "Expire-freed": f"{_LOAD} Expire",
        "LateReport-pool": f"{_LOAD} XferDone Expire LateReport",
        "ReaderEnd-pool": "Begin Alloc ReaderStart Free ReaderEnd",
        "Start-device_done": "Begin Alloc Run Free AdmitLoad Start",
        "Start-admitted": "Begin AdmitLoad Free End DeviceDone Start",
        "AdmitLoad-gate_fence": "Begin Alloc Run Free AdmitLoad Start",
        "AdmitLoad-gate_built": "Begin AdmitLoad Start",
        "AdmitLoad-zeroes": "Begin AdmitLoad Free LoadSync",
        "AdmitLoad-gate_device": "Begin Alloc Run Free AdmitLoad Start",
        "LoadSync-quiescent": "Begin Alloc Run Free LoadSync",
        "LoadSync-fence_processed": "Begin Alloc Run End Process Free Begin LoadSync",
        "Free-fence_names": "Begin Alloc Run Free LoadSync",
        "Free-fence_moved": "Begin AdmitLoad Free LoadSync",
        "Free-fence_max": "Begin Alloc Cache Share Run Free Free LoadSync",
        "Free-not_started": f"{_LOAD} Free",
        "Free-owned": "Free",
        "Free-refcount": "Begin Alloc Cache Share Free",
        "Free-own": "Begin Alloc Free",
        "Free-cancel": "Begin AdmitLoad Free End DeviceDone Start",
    },
    "blocks.defer": {
        "Alloc-in_pool": "Begin Alloc Alloc",
        "Alloc-no_reader": f"Begin Alloc ReaderStart {_QUIET} FreeNow Begin Alloc",
        "AdmitLoad-no_reader": f"Begin Alloc ReaderStart {_QUIET} FreeNow Begin AdmitLoad",
        "AdmitLoad-in_pool": "Begin Alloc AdmitLoad",
        "AdmitLoad-one_load": "Begin AdmitLoad AdmitLoad XferDone LoadDone",
        "Share-valid": "Begin AdmitLoad Share Run",
        "Run-not_loading": "Begin AdmitLoad Run",
        "Run-owned": "Begin Run AdmitLoad",
        "Cache-not_loading": "Begin AdmitLoad Cache Share Run",
        "ReaderStart-not_target": "Begin AdmitLoad ReaderStart Copy",
        "ReaderStart-new": f"Begin Alloc Alloc ReaderStart {_QUIET} FreeNow ReaderStart",
        "LoadDone-reported": "Begin AdmitLoad LoadDone",
        "LoadDone-not_expired": "Begin AdmitLoad XferDone Expire LoadDone",
        "LateReport-reported": "Begin AdmitLoad Expire LateReport",
        "Expire-freed": "Begin AdmitLoad Expire",
        "LateReport-pool": "Begin AdmitLoad XferDone Expire LateReport",
        "ReaderEnd-pool": f"Begin Alloc ReaderStart {_QUIET} FreeNow ReaderEnd",
        "Process-device_done": "Begin Alloc Run End Process FreeNow Begin AdmitLoad",
        "FreeNow-fence_passed": "Begin Alloc Run FreeNow AdmitLoad",
        "FreeNow-refcount": "Begin Alloc Cache Share FreeNow",
        "FreeNow-owned": "FreeNow",
        "FreeNow-not_started": "Begin AdmitLoad FreeNow",
        "Defer-fence_built": "Begin Alloc Run Defer Drain AdmitLoad",
        "Defer-fence_processed": "Begin Alloc Run Defer Drain AdmitLoad",
        "Defer-new": "Begin Alloc Alloc Defer Defer",
        "Drain-fence_passed": "Begin Alloc Run Defer Drain AdmitLoad",
        "Drain-live": f"Begin Alloc Defer {_QUIET} Drain Drain",
        "Drain-pool": f"Begin Alloc Defer {_QUIET} Drain",
        "ReaderEnd-pin_fence": f"Begin Alloc {_QUIET} ReaderStart FreeNow Begin Copy ReaderEnd AdmitLoad",
    },
}
