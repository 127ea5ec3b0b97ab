"""Windows of patience on reachable states of the model, where late tokens are dropped and nobody is spared.

Theory ``dropped`` once more in plain Python, apart from the relations: a *window* is a call and the calls
that waited just before it. A call that loses a token must leave the measure of :mod:`stallproof_proofs.reach`
below what it was when its window began, and every other transition must lower it as ever.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stallproof_model import sched
from stallproof_model.state import Constants, State, at, constants
from stallproof_proofs.reach import Ghost, follow, vector


class Window(NamedTuple):
    """``start``: the measure when it began; ``held``: who held blocks then; ``old``: steps in flight from
    before; ``served``: since then.
    """

    start: tuple[Any, ...]
    held: frozenset[int]
    old: int
    served: frozenset[int]


NONE = Window((), frozenset(), 0, frozenset())


@dataclass
class Check:
    """What was seen. ``wrong``: (claim, depth, state before, state after)."""

    states: int = 0
    transitions: int = 0
    losses: int = 0
    raised: int = 0  # calls that lose a token and leave the measure above what it was before the call
    first: tuple[int, tuple[int, ...], State, State] | None = None
    wrong: list[tuple[str, int, State, State]] = field(default_factory=list)


def lost(S: State, T: State) -> tuple[int, ...]:
    """Who is preempted with a token in flight."""
    gone = (r for r in S.run if at(T.st, r) == "preempted")
    return tuple(r for r in gone if sched.Placeholders(S, r) > 0)


def _scheduled(S: State, T: State, w: Window, before: tuple[Any, ...]) -> tuple[Window, Window]:
    """The window that the call belongs to, and the one that it leaves open."""
    held = frozenset(r for r in S.ord if at(S.own, r) > 0)
    mine = w if S.pw else Window(before, held, len(S.infl), frozenset())
    new = T.infl[-1].all if len(T.infl) > len(S.infl) else frozenset()
    return mine, mine._replace(served=mine.served | new) if T.pw else NONE


def check(c: Constants, limit: int = 5_000) -> Check:
    """Breadth-first over the states of ``c`` and their windows."""
    out = Check()
    start = (sched.Init(c), (False,) * c.N, NONE)
    depth = {start: 0}
    todo = deque([start])
    while todo:
        S, pf, w = todo.popleft()
        here = depth[S, pf, w] + 1
        for name, _, T in sched.Next(c, S):
            node = _step(c, S, name, T, pf, w, here, out)
            if node not in depth and len(depth) < limit:
                depth[node] = here
                todo.append(node)
    out.states = len(depth)
    return out


def _step(
    c: Constants, S: State, name: str, T: State, pf: Ghost, w: Window, depth: int, out: Check
) -> tuple[State, Ghost, Window]:
    """What follows ``(S, pf, w)``, judged."""
    gf, before = follow(S, name, T, pf), vector(c, S, pf)
    mine, after = w, w
    victims: tuple[int, ...] = ()
    if name == "Schedule":
        mine, after = _scheduled(S, T, w, before)
        victims = lost(S, T)
    elif name == "Process" and S.pw:
        after = w._replace(old=max(w.old - 1, 0))
    wrong = _judge(S, T, before, vector(c, T, gf), mine, after, victims, out)
    out.wrong += [(claim, depth, S, T) for claim in wrong]
    if victims and out.first is None:
        out.first = (depth, victims, S, T)
    return T, gf, after


def _judge(
    S: State,
    T: State,
    before: tuple[Any, ...],
    now: tuple[Any, ...],
    mine: Window,
    after: Window,
    victims: Sequence[int],
    out: Check,
) -> list[str]:
    if T._replace(pat=S.pat, pw=S.pw) == S or T.ord != S.ord:
        return []
    out.transitions += 1
    wrong = []
    if victims:
        out.losses += 1
        out.raised += not now < before
        if not now < mine.start or T.pw:
            wrong.append("Decreases.window")
        for v in victims:
            i = T.ord.index(v)
            ahead = [j for j in range(i) if T.ord[j] in mine.held]
            if not [now[j] for j in ahead] < [mine.start[j] for j in ahead]:
                wrong.append("LostPaid")
    elif not now < before:
        wrong.append("Decreases")
    if T.pw and any(sched.Placeholders(T, r) > after.old for r in T.run if r not in after.served):
        wrong.append("served")
    return wrong


def random_constants(rng: random.Random, patience: int | None = None) -> Constants:
    """A configuration in which waits are likely; ``patience`` D - 1 unless given otherwise."""
    n, d = 3, rng.choice([2, 3, 3, 4])
    prompt = [rng.randint(1, 2) for _ in range(n)]
    b = rng.randint(5, 8)
    values: dict[str, Any] = {
        "N": n,
        "B": b,
        "D": d,
        "P": d - 1 if patience is None else patience,
        "Budget": rng.choice([2, 3, 99]),
        "ChunkCap": rng.choice([1, 99]),
        "Prompt": prompt,
        "Total": [min(p + rng.randint(2, 4), b + 1) for p in prompt],
        "Ext": [rng.choice([0, 0, 1]) for _ in range(n)],
        "StaleOutput": "dropped",
        "RunEvict": rng.random() < 0.7,
        "Reload": rng.random() < 0.5,
        "Eos": rng.random() < 0.4,
        "Fcfs": False,
        "Late": [[], [3], [3], [2, 3]][rng.randrange(4)],
    }
    if rng.random() < 0.3:
        values |= {"Sessions": [rng.randint(1, n)], "RunEvict": True}
    return constants(**values)


#: Three that decode: the last is refused with two steps in flight, and the first takes what it leaves.
LOSES = {
    "N": 3, "B": 7, "D": 3, "P": 2, "Prompt": [1, 1, 1], "Total": [6, 6, 6], "Ext": [0, 0, 0],
    "StaleOutput": "dropped", "Late": [3],
}  # fmt: skip

#: The first one prefills beside two that decode, finishes its prompt with what the third leaves, and has
#: nothing to schedule when the second one, refused, preempts itself: nothing goes down in that call.
RAISES = {
    "N": 3, "B": 16, "D": 3, "P": 2, "ChunkCap": 3, "Prompt": [12, 1, 1], "Total": [13, 9, 9],
    "Ext": [0, 0, 0], "StaleOutput": "dropped", "Late": [1], "Fcfs": False, "Aborts": True,
}  # fmt: skip
RAISES_RUN = "Schedule Arrive:1 Schedule Schedule Process Schedule Process Abort:3 Schedule Process Schedule"


def follow_run(c: Constants, script: str) -> Check:
    """Judge the transitions of one run: names of actions, with the request where there is a choice."""
    out = Check()
    S, pf, w = sched.Init(c), (False,) * c.N, NONE
    for i, word in enumerate(script.split(), 1):
        name, _, who = word.partition(":")
        T = next(t for n, r, t in sched.Next(c, S) if n == name and (not who or r == int(who)))
        S, pf, w = _step(c, S, name, T, pf, w, i, out)
    return out
