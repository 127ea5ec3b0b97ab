"""Theory ``shared`` on concrete block tables: what it says of joint gains is so, and a wrong count shows."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from typing import Any

import pytest

from stallproof_proofs.evaluate import Evaluator
from stallproof_proofs.systems import order as m
from stallproof_proofs.systems import shared

BLOCKS, REQUESTS = range(6), range(1, 5)
HOLDERS = (m.RUNNING, m.HELD, m.RECEIVED, m.LOADING, m.ZOMBIE, m.IDLING)
S = shared.vocabulary.state()
EV = Evaluator({"Request": REQUESTS})
ACTIONS = {a.name: a for a in shared.actions(S)}
JOINT = shared.joint(S)

Tables = dict[int, set[int]]
Count = Callable[[Tables, Collection[int]], int]


def joint(tables: Tables, some: Collection[int]) -> int:
    """Blocks that somebody holds and nobody outside ``some``."""
    outside = {b for r, t in tables.items() if r not in some for b in t}
    return len({b for r in some for b in tables[r]} - outside)


def lengths(tables: Tables, some: Collection[int]) -> int:
    """Wrong: every table counted for itself."""
    return sum(len(tables[r]) for r in some)


def numbers(st: dict[int, int], tables: Tables, quarantined: set[int], count: Count) -> dict[str, Any]:
    """The state variables of the theory; requests are in scheduling order."""
    victims, room, every = {}, {}, {}
    for u in REQUESTS:
        has = [w for w in REQUESTS if tables[w]]
        victims[u] = [w for w in has if st[w] == m.IDLING or (st[w] in (m.HELD, m.RECEIVED) and w > u)]
        room[u] = victims[u] + [w for w in has if st[w] == m.RUNNING and w > u]
        every[u] = [w for w in has if (w != u or st[w] == m.IDLING) and st[w] not in (m.LOADING, m.ZOMBIE)]
    gain = {u: count(tables, victims[u]) for u in REQUESTS}
    held = set().union(*tables.values())
    return {
        "st": st,
        "own": {r: len(t) for r, t in tables.items()},
        "quar": {r: len(quarantined) * (r == 1) for r in REQUESTS},
        "Squar": len(quarantined),
        "free": len(set(BLOCKS) - held - quarantined),
        "Sgain": gain,
        "Srun": {u: count(tables, room[u]) - gain[u] for u in REQUESTS},
        "Sall": {u: count(tables, every[u]) for u in REQUESTS},
        "Sidle": count(tables, [w for w in REQUESTS if st[w] == m.IDLING]),
        "Sold": {u: sum(len(tables[w]) for w in REQUESTS if w < u and st[w] != m.IDLING) for u in REQUESTS},
    }


def step(rng: random.Random, st: dict[int, int], tables: Tables, r: int) -> tuple[str, dict[str, Any]] | None:
    """A random change of ``r``; the action of the theory that it stands for, and its choices."""
    had, now = set(tables[r]), st[r]
    others = {b for w, t in tables.items() if w != r for b in t}
    sole = len(had - others)
    match now:
        case m.WAITING | m.HELD | m.RUNNING:
            some = set(rng.sample(BLOCKS, rng.randint(1, 3)))
            kind = rng.choice(["Admit", "StartLoad"]) if now == m.WAITING else "Admit"
            kind = "Serve" if now == m.RUNNING else kind
            if kind == "Serve":
                some -= others
            if now != m.WAITING and rng.random() < 0.5:
                tables[r] = set()
                st[r] = m.WAITING
                return "Abort", {"moves": sole}
            if now == m.RUNNING and rng.random() < 0.5:
                st[r] = m.IDLING
                return "DeliverTurn", {}
            return kind, {"take": some, "others": others}
        case m.LOADING:
            if rng.random() < 0.5:
                st[r] = m.RECEIVED
                return "XferDone", {}
            tables[r], st[r] = set(), m.WAITING
            return "XferFail", {"moves": sole}
        case m.IDLING:
            if rng.random() < 0.5:
                st[r] = m.HELD if had else m.WAITING
                return "Input", {}
            tables[r] = set()
            return "LoadEvict", {"moves": sole}
        case m.RECEIVED | m.ZOMBIE:
            tables[r], st[r] = set(), m.FINISHED
            return "Abort" if now == m.RECEIVED else "XferFreed", {"moves": sole}
    return None


def broken(seed: int, count: Count, rounds: int = 400) -> set[str]:
    """Names of what is false on random tables, with gains counted by ``count``."""
    rng, bad, seen = random.Random(seed), set(), set()
    for _ in range(rounds):
        st = {r: rng.choice((*HOLDERS, m.WAITING, m.RUNNING)) for r in REQUESTS}
        quarantined = {b for b in BLOCKS if rng.random() < 0.1}
        usable = [b for b in BLOCKS if b not in quarantined]
        nothing = {r for r in REQUESTS if st[r] == m.WAITING or (st[r] == m.IDLING and rng.random() < 0.3)}
        tables = {
            r: set() if r in nothing else set(rng.sample(usable, min(len(usable), rng.randint(1, 3))))
            for r in REQUESTS
        }
        before = numbers(dict(st), {r: set(t) for r, t in tables.items()}, quarantined, count)
        r = rng.choice(REQUESTS)
        made = step(rng, st, tables, r)
        if made is None:
            continue
        name, given = made
        choices: dict[str, Any] = {"moves": 0, "hits": 0, "lost": 0, "n0": 0, **given}
        if "take" in given:
            fresh = (given["take"] - quarantined) - tables[r]
            tables[r] |= fresh
            st[r] = m.LOADING if name == "StartLoad" else m.RUNNING
            choices |= {
                "moves": len(fresh - given["others"]),
                "hits": len(fresh & given["others"]),
                "n0": len(fresh),
            }
        after = numbers(st, tables, quarantined, count)
        env = {
            **before, **choices, "B": len(BLOCKS), "Look": 0, "r0": r, "v0": r,
            "ord": {q: q for q in REQUESTS}, "comp": before["own"], "Ext": after["own"],
            **{f"{n}'": after[n] for n in ("Sgain", "Srun", "Sall", "Sidle")},
        }  # fmt: skip
        seen.add(name)
        guards = ACTIONS[name].guards
        for g in {"let_go", "takes", "grows", "moves", "gains"} & set(guards):
            if not EV(guards[g], env):
                bad.add(f"{name}.{g}")
        for v in REQUESTS:
            for w in REQUESTS:
                for state in (before, after):
                    here = {**env, **state, "r0": v, "v0": w, "tgt": w}
                    bad |= {f"joint.{n}" for n, x in JOINT.items() if not EV(x, here)}
    assert seen >= {"Serve", "Admit", "StartLoad", "Abort", "LoadEvict", "Input", "DeliverTurn", "XferDone"}
    return bad


@pytest.mark.parametrize("seed", [1, 2])
def test_joint_gains_move_as_the_theory_says(seed: int) -> None:
    assert broken(seed, joint) == set()


def test_tables_counted_each_for_itself_do_not() -> None:
    bad = broken(1, lengths)
    assert {"Abort.let_go", "Admit.takes", "joint.place"} <= bad
