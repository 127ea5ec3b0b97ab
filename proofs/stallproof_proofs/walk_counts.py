"""Reachable runs for twins of the theories in counts: a small system, from the initial state, by script.

As :mod:`stallproof_proofs.walk`, but for relations that speak about calls: what may break is a statement
about states, one about steps (Decreases, NoWedge, EvictCoupled), or a consequence. Constants are given per
run; sums are computed from the state they are sums of.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from stallproof_proofs.systems import order as m
from stallproof_proofs.theory import Inductive, Twin
from stallproof_proofs.walk import Run, Walker

#: constants of a run, unless it says otherwise
CONSTANTS: dict[str, Any] = {
    "B": 3, "Look": 0, "ChunkCap": 99, "P": 0, "D": 1, "MaxSeqs": 99, "Budget": 99,
    "RunEvict": True, "CountParked": False, "DeferralDeadline": False, "KeptBack": 0,
    "Dropped": False, "SpareInFlight": False,
    # per request: tokens at first, at the end, that can be loaded, failures of loads, end of the first turn
    "prompt": (1,), "Total": (2,), "Ext": (0,), "fails": (), "lim": (),
}  # fmt: skip


class CountsWalker(Walker):
    """The system of a theory in counts with one thing taken away, executable."""

    def __init__(self, theory: Inductive, twin: Twin | None, given: Mapping[str, Any]) -> None:
        self.constants = {**CONSTANTS, **given}
        self.requests = range(1, len(self.constants["prompt"]) + 1)
        super().__init__(theory, twin, {"Request": self.requests})
        s = theory.system.vocabulary.state()
        self.sums = [
            (t.name, bool(t.index), t.term(s, m.q, *([m.u] if t.index else []))) for t in theory.sums
        ]
        claims = theory.action_statements
        self.claims = {a.name: dict(claims(s, a.post(s), a)) if claims else {} for a in self.actions}
        self.follows = dict(theory.consequences(s)) if theory.consequences else {}

    def initial(self) -> dict[str, Any]:
        """Nothing has arrived; everything is in the pool."""
        c = dict(self.constants)
        c["fails"] = c["fails"] or (0,) * len(self.requests)
        c["lim"] = c["lim"] or c["Total"]
        per = {
            n: dict(zip(self.requests, c[n], strict=True)) for n in ("prompt", "Total", "Ext", "fails", "lim")
        }
        env = {**super().initial(), **{n: x for n, x in c.items() if n not in per}}
        env |= {
            "Total": per["Total"],
            "Ext": per["Ext"],
            "Grammar": dict.fromkeys(self.requests, False),
            "ord": {r: r for r in self.requests},
            "st": dict.fromkeys(self.requests, m.NEW),
            "tok": per["prompt"],
            "lim": per["lim"],
            "fl": per["fails"],
            "free": c["B"],
            "tgt": 1, "dw": 1, "cw": 1, "cutw": 1,
        }  # fmt: skip
        for name, indexed, term in self.sums:
            code = self.ev.compile(term)
            value = {u: sum(code({**env, "q": q, "u": u}, ()) for q in self.requests) for u in self.requests}
            env[name] = value if indexed else value[1]
        return env

    def parameters(self, rng: random.Random) -> dict[str, Any]:
        return {
            "r0": rng.choice(self.requests),
            "v0": rng.choice(self.requests),
            "n0": rng.randrange(4),
            "n1": rng.randrange(8),
            "flag": False,
        }

    def wrong(self, name: str, env: dict[str, Any]) -> tuple[str, ...]:
        """Statements about the step ``name`` that are false when it is taken in ``env``."""
        return tuple(n for n, g in self.claims[name].items() if not self.ev(g, env))

    def broken(self, env: dict[str, Any]) -> tuple[str, ...]:
        return (*super().broken(env), *(n for n, g in self.follows.items() if not self.ev(g, env)))

    def take(self, env: dict[str, Any], word: str, rng: random.Random) -> tuple[dict[str, Any] | None, Any]:
        """One step: ``Admit`` or ``Admit:2`` (of request 2; ``AdmEvict:1``: for 1); what it breaks."""
        name, _, who = word.partition(":")
        a = next(a for a in self.actions if a.name == name)
        for _ in range(200):
            here = {**env, **self.parameters(rng)}
            if who:
                here["r0"] = int(who)
            if all(self.ev(g, here) for g in a.guards.values()):
                bad = self.wrong(name, here)
                after = {**env, **{n: x for n, x in self.apply(a, here).items() if n in self.vars}}
                return after, (*bad, *self.broken(after))
        return None, ()


def script_of(theory: Inductive, twin: Twin) -> tuple[str, dict[str, Any]] | None:
    return SCRIPTS.get(theory.name, {}).get(f"{twin.action}-{twin.guard}")


def play(
    theory: Inductive, twin: Twin | None, script: str, given: Mapping[str, Any], seed: int = 0
) -> Run | None:
    """The script from the initial state; None if a step cannot be taken or nothing breaks."""
    walker, rng = CountsWalker(theory, twin, given), random.Random(seed)
    env: dict[str, Any] | None = walker.initial()
    words = script.split()
    for i, word in enumerate(words):
        assert env is not None
        env, bad = walker.take(env, word, rng)
        if env is None:
            return None
        if bad:
            return Run(tuple(words[: i + 1]), tuple(bad))
    return None


def find(theory: Inductive, twin: Twin, seed: int = 0) -> Run | None:
    """A run from the initial state in which the twin breaks a promise at its last step."""
    known = script_of(theory, twin)
    return play(theory, twin, *known, seed=seed) if known else None


_CALL = "Begin HeadEnd"
_TWO = "Arrive:1 Arrive:2 Begin HeadEnd LoopEnd Admit:1 Admit:2"
_TURN = "Arrive:1 Begin HeadEnd LoopEnd Admit:1 Dispatch DeliverTurn:1 Pop"  # session 1 idles
_PAIR = {"prompt": (1, 1), "Total": (3, 3), "Ext": (0, 0)}
_LOST = {"Dropped": True, "SpareInFlight": False, "Ext": (0, 0)}
_SHORT = {**_PAIR, **_LOST, "Total": (2, 3)}
_LATE = f"{_TWO} Dispatch {_CALL} Skip:1 SelfPreempt:2"  # preempted with its token in flight
_DROPPED = {"Dropped": True, "SpareInFlight": True}

#: theory -> twin -> steps, constants of the run
SCRIPTS: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "commit": {
        "AdmEvict-sure": (
            "Arrive:2 Arrive:3 Begin HeadEnd LoopEnd StartLoad:2 Admit:3 Dispatch XferDone:2 Arrive:1 "
            "Begin Promote:2 HeadEnd Skip:3 LoopEnd AdmEvict:1",
            {"prompt": (3, 2, 1), "Total": (4, 3, 2), "Ext": (0, 1, 0)},
        ),
        "Admit-whole": (
            f"Arrive:1 {_CALL} LoopEnd Admit:1 Dispatch",
            {"prompt": (2,), "Total": (3,), "ChunkCap": 1},
        ),
        "Admit-full_fit": (_TWO, {"prompt": (2, 2), "Total": (3, 3), "Ext": (0, 0)}),
        "Wait-in_flight": (
            f"{_TWO} Dispatch Deliver:1 Deliver:2 Pop {_CALL} Wait:1 Dispatch",
            {"B": 2, "P": 1, "prompt": (1, 1), "Total": (3, 3), "Ext": (0, 0)},
        ),
        "HeadEnd-rejected": (
            f"Arrive:1 {_CALL} LoopEnd Refuse:1 Dispatch",
            {"B": 1, "prompt": (2,), "Total": (3,)},
        ),
        "Dispatch-over": (f"Arrive:1 {_CALL} Dispatch", {}),
        "XferFail-fails_left": (
            f"Arrive:1 {_CALL} LoopEnd StartLoad:1 Dispatch XferFail:1 {_CALL} LoopEnd StartLoad:1 Dispatch "
            "XferFail:1",
            {"prompt": (2,), "Total": (3,), "Ext": (1,)},
        ),
    },
    "order": {
        "Admit-seat": (_TWO, {"MaxSeqs": 1, **_PAIR}),
        "StartLoad-seat": (
            f"Arrive:1 Arrive:2 {_CALL} LoopEnd StartLoad:1 StartLoad:2",
            {"B": 4, "MaxSeqs": 1, "CountParked": True, "prompt": (2, 2), "Total": (3, 3), "Ext": (1, 1)},
        ),
        "Preempt-spared": (f"{_TWO} Dispatch {_CALL} Preempt:1", {"B": 2, **_PAIR, **_DROPPED}),
        "SelfPreempt-spared": (
            f"{_TWO} Dispatch {_CALL} Skip:1 SelfPreempt:2",
            {"B": 2, **_PAIR, "Total": (2, 3), **_DROPPED},
        ),
        "Spare-in_flight": (
            f"{_TWO} Dispatch Deliver:1 Deliver:2 Pop {_CALL} Spare:1 Dispatch",
            {"B": 2, **_PAIR, **_DROPPED},
        ),
        "LoadEvict-sure": (
            f"Arrive:1 Arrive:3 {_CALL} LoopEnd Admit:1 StartLoad:3 Dispatch DeliverTurn:1 Pop Arrive:2 "
            f"{_CALL} LoopEnd Pass:3 LoadEvict:2",
            {"prompt": (1, 3, 2), "Total": (3, 4, 3), "Ext": (0, 3, 1), "lim": (2, 4, 3)},
        ),
        "Refuse-idle": (
            f"{_TURN} Arrive:2 {_CALL} LoopEnd Refuse:2 Dispatch",
            {"B": 1, **_PAIR, "lim": (2, 3)},
        ),
        "Refuse-not_alone": (
            f"Arrive:1 {_CALL} LoopEnd Refuse:1 Dispatch",
            {"prompt": (3,), "Total": (4,), "Ext": (3,), "KeptBack": 1},
        ),
        "Refuse-wholly_free": (
            f"{_TURN} Arrive:2 {_CALL} LoopEnd Refuse:2 Dispatch",
            {"prompt": (1, 3), "Total": (3, 4), "Ext": (0, 3), "lim": (2, 4), "KeptBack": 1},
        ),
        "Refuse-anew": (
            f"Arrive:1 Arrive:2 {_CALL} LoopEnd Admit:1 NotYet:2 Dispatch DeferralOver:2 Deliver:1 Pop "
            f"{_CALL} Serve:1 LoopEnd Refuse:2",
            {**_PAIR, "prompt": (2, 1), "Total": (4, 3), "Ext": (0, 1), "B": 3, "DeferralDeadline": True},
        ),
        "NotYet-not_late": (
            f"Arrive:1 {_CALL} LoopEnd NotYet:1 Dispatch DeferralOver:1 {_CALL} LoopEnd NotYet:1",
            {"Ext": (1,), "DeferralDeadline": True},
        ),
        "GiveUp-decides": (
            f"Arrive:1 {_CALL} LoopEnd NotYet:1 Dispatch DeferralOver:1 {_CALL} LoopEnd GiveUp:1",
            {"Ext": (1,), "DeferralDeadline": True, "KeptBack": 3},
        ),
        "DeliverTurn-seats": (
            f"{_TURN} Arrive:2 {_CALL} LoopEnd StartLoad:2 Dispatch Input:1",
            {"MaxSeqs": 1, "CountParked": True, **_PAIR, "prompt": (1, 2), "Ext": (0, 1), "lim": (2, 3)},
        ),
        "DeliverTurn-rule_E": (
            f"{_TWO} Dispatch DeliverTurn:2",
            {
                "RunEvict": False,
                "ChunkCap": 1,
                "prompt": (3, 1),
                "Total": (4, 3),
                "Ext": (0, 0),
                "lim": (4, 2),
            },
        ),
    },
    "dropped": {
        "Begin-patience": (_LATE, {"B": 2, **_SHORT, "D": 2}),
        "Begin-deep": (_LATE, {"B": 2, **_SHORT}),
        "SelfPreempt-waited": (_LATE, {"B": 2, **_SHORT, "D": 2, "P": 1}),
        "Preempt-waited": (f"{_TWO} Dispatch {_CALL} Preempt:1", {"B": 2, **_PAIR, **_LOST, "D": 2, "P": 1}),
        "DeliverTurn-rule_E": (
            f"{_TWO} Dispatch DeliverTurn:2",
            {"RunEvict": False, "ChunkCap": 1, **_LOST, "prompt": (3, 1), "Total": (4, 3), "lim": (4, 2)},
        ),
    },
}
