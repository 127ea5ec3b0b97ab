"""The measure of theory ``order`` on reachable states of the model, and what a removed rule does there.

A counterexample to induction may be unreachable. Here the same measure is computed on every transition of the
model's graph: under the rules it must go down on each, and with a rule switched off a *reachable* transition
must raise it. Written in plain Python, apart from the relations, so it checks the measure once more.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stallproof_model import sched
from stallproof_model.state import Constants, State, at, constants

Ghost = tuple[bool, ...]
Component = tuple[int, int, int, int]

PHASE = {
    "finished": 0,
    "zombie": 1,
    "idle": 2,
    "held": 4,
    "received": 5,
    "loading": 6,
    "waiting": 7,
    "preempted": 7,
    "blocked": 9,
    "new": 10,
}

#: rule -> switches without it, and more switches that the failure needs
REMOVED: dict[str, dict[str, Any]] = {
    "rule R": {"RuleR": False},
    "full fit": {"FullFit": False},
    "victims behind their target": {"LatYounger": False},
    "running list in scheduling order": {"RunOrder": "append"},
    "late tokens delivered, or victims in flight spared": {"StaleOutput": "dropped", "SpareInFlight": False},
}


def component(c: Constants, S: State, pf: Ghost, r: int) -> Component:
    """The measure of request ``r``; see :func:`stallproof_proofs.systems.order.component`."""
    st = at(S.st, r)
    over = st in ("finished", "zombie")
    left = 0 if over else at(c.Total, r) - at(S.tok, r) - sched.Placeholders(S, r)
    later = at(c.Total, r) - sched.Limit(c, S, r)
    tries = 0 if over else at(S.ny, r) + at(S.fl, r) + (not at(S.noload, r)) + later
    if st != "running":
        return left, tries, PHASE[st], 0
    if not pf[r - 1]:
        return left, tries, 8, 0
    upto = [q for q in S.run if not sched.Before(S, r, q)]
    behind = [q for q in S.run if sched.Before(S, r, q)]
    wanted = sum(sched.Remaining(c, S, q) for q in upto if pf[q - 1])
    room = S.free + sum(at(S.own, q) for q in behind)
    if c.RunEvict:
        room += sum(at(S.own, q) for q in sched.Victims(c, S, r))
    return left, tries, 3 if wanted <= room else 7, at(S.tok, r) - at(S.comp, r)


def vector(c: Constants, S: State, pf: Ghost) -> tuple[Any, ...]:
    """The whole measure: components in scheduling order; steps in flight, loads in quarantine, pauses."""
    return (
        *(component(c, S, pf, r) for r in S.ord),
        (len(S.infl),),
        (sum(n > 0 for n in S.quar),),
        (S.pz,),
        (S.paused,),
    )


def follow(S: State, name: str, T: State, pf: Ghost) -> Ghost:
    """The ghost after ``name``: running, and no token committed since the admission."""
    new = T.infl[-1].out if name == "Schedule" and len(T.infl) > len(S.infl) else frozenset()
    return tuple(
        at(T.st, r) == "running" and r not in new and (at(S.st, r) != "running" or pf[r - 1])
        for r in range(1, len(pf) + 1)
    )


@dataclass
class Check:
    """Transitions looked at, and the first that does not lower the measure, with its depth."""

    states: int = 0
    transitions: int = 0
    raised: tuple[str, int, State, State] | None = None
    complete: bool = True
    preemptions: int = 0
    unpaid: list[State] = field(default_factory=list)


def check(c: Constants, limit: int = 5_000) -> Check:
    """Breadth-first over the states of ``c``; what changes only patience or a deadline is not looked at."""
    out = Check()
    start = (sched.Init(c), (False,) * c.N)
    depth = {start: 0}
    todo = deque([start])
    while todo:
        S, pf = todo.popleft()
        before = vector(c, S, pf)
        for name, _, T in sched.Next(c, S):
            gf = follow(S, name, T, pf)
            plain = T._replace(pat=S.pat, pw=S.pw, due=S.due)
            if plain != S:
                out.transitions += 1
                if out.raised is None and not vector(c, T, gf) < before and T.ord == S.ord:
                    out.raised = (name, depth[S, pf] + 1, S, T)
            if name == "Schedule":
                _preemptions(S, pf, T, out)
            if (T, gf) not in depth:
                if len(depth) >= limit:
                    out.complete = False
                    continue
                depth[T, gf] = depth[S, pf] + 1
                todo.append((T, gf))
    out.states = len(depth)
    return out


def _preemptions(S: State, pf: Ghost, T: State, out: Check) -> None:
    """PreemptPaid for the oldest unfinished request: it is preempted only after a token of this residence."""
    oldest = next((r for r in S.ord if at(S.st, r) not in ("finished", "zombie", "new")), 0)
    for r in S.ord:
        if at(S.st, r) == "running" and at(T.st, r) == "preempted":
            out.preemptions += 1
            if r == oldest and pf[r - 1] and not any(S.quar):
                out.unpaid.append(S)


def preemption_bounds(requests: Sequence[tuple[int, int, int]]) -> list[int]:
    """Preemptions at most, for requests ``(prompt, total, tries)`` in scheduling order.

    ``tries``: not-yet answers and failed loads that it may see, plus one for a deadline. From theory
    ``order``: the oldest is preempted only after it has committed a token since its admission (PreemptPaid).
    A preemption of any other changes its component, so its own goes down or, in the same call, one ahead
    does (Decreases). Between two descents ahead of it a component is a falling tuple of naturals whose
    phase is at most 10 and whose prefill is at most ``total``; tokens and tries are never raised.
    """
    bounds: list[int] = []
    ahead = 0  # descents of all components ahead
    for prompt, total, tries in requests:
        spent = (total - prompt) + tries
        own = spent + (spent + ahead + 1) * 11 * (total + 1)
        bounds.append(total - prompt if not bounds else own + ahead)
        ahead += own
    return bounds


def random_constants(rng: random.Random, **given: Any) -> Constants:
    """A configuration in the scope of theory ``order``; with late requests or sessions, PRIORITY."""
    n = rng.randint(2, 3)
    b = rng.randint(3, 6)
    prompt = [rng.randint(1, min(3, b - 1)) for _ in range(n)]
    values: dict[str, Any] = {
        "N": n,
        "B": b,
        "D": rng.randint(1, 2),
        "Budget": rng.choice([1, 2, 3, 99]),
        "ChunkCap": rng.choice([1, 1, 2, 99]),
        "Prompt": prompt,
        "Total": [min(p + rng.randint(1, 3), b + 1) for p in prompt],
        "Ext": [rng.randint(0, p) for p in prompt],
        "Look": rng.choice([0, 0, 1]),
        "P": rng.choice([0, 1, 2]),
        "K": rng.randint(0, 1),
        "RunEvict": rng.random() < 0.5,
        "Reload": rng.random() < 0.5,
        "Eos": rng.random() < 0.3,
        "Aborts": rng.random() < 0.2,
        "Deadlines": rng.random() < 0.3,
        "Fails": rng.randint(0, 1),
        "Fcfs": False,
        "Late": [1] if rng.random() < 0.3 else [],
        "Grammar": [n] if rng.random() < 0.3 else [],
        "GrammarFails": rng.choice(["no", "wakes"]),
        "Pauses": 1 if rng.random() < 0.2 else 0,
        "MaxSeqs": rng.choice([1, 2, 99]),
        "CountParked": rng.random() < 0.3,
    }
    if rng.random() < 0.3:
        values |= {"StaleOutput": "dropped", "SpareInFlight": True}
    if rng.random() < 0.4 and not given.get("Fcfs"):
        sessions = [r for r in range(1, n + 1) if rng.random() < 0.6]
        values |= {"Sessions": sessions, "RunEvict": True, "CountParked": False}
    return constants(**{**values, **given})


def search(rule: str, seed: int = 0, tries: int = 300, limit: int = 3_000) -> tuple[Constants, Check] | None:
    """A configuration without ``rule`` in which a reachable transition raises the measure."""
    rng = random.Random(seed)
    for _ in range(tries):
        c = random_constants(rng, **REMOVED[rule])
        result = check(c, limit)
        if result.raised:
            return c, result
    return None
