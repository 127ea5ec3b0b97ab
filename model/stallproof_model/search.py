"""Random instances: sweeps of a rule set, and the search for a gap's smallest counterexample.

A sweep is evidence on samples, not a proof; instances whose graph exceeds the limit have no verdict.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from stallproof_model.explore import Graph, TooBig, first_violation, graph, lasso
from stallproof_model.state import Constants, constants


def instances(
    seed: int,
    *,
    n: tuple[int, int] = (2, 3),
    b: tuple[int, int] = (3, 5),
    d: tuple[int, ...] = (1, 2),
    chunks: tuple[int, ...] = (1, 2, 99),
    budgets: tuple[int, ...] = (1, 2, 3, 99),
    loads: float = 0.6,
    open_system: bool = False,
    feasible: bool = True,
) -> Iterator[dict[str, Any]]:
    """Endless random workload constants (no rule switches); same seed, same sequence."""
    rng = random.Random(seed)
    while True:
        N, B = rng.randint(*n), rng.randint(*b)
        prompt, total, ext = [], [], []
        for _ in range(N):
            top = B if feasible else B + 1
            p = rng.randint(1, top)
            t = rng.randint(p + 1, max(top + 1, p + 1))
            prompt.append(p)
            total.append(min(t, p + 3))
            ext.append(rng.randint(1, p) if rng.random() < loads else 0)
        yield {
            "N": N,
            "B": B,
            "D": rng.choice(d),
            "ChunkCap": rng.choice(chunks),
            "Budget": rng.choice(budgets),
            "Prompt": tuple(prompt),
            "Total": tuple(total),
            "Ext": tuple(ext),
            "Recycle": frozenset(range(rng.randint(2, N), N + 1)) if open_system else frozenset(),
        }


class Verdict(NamedTuple):
    """``prop`` is empty if every statement holds; ``length`` counts the states of the counterexample."""

    prop: str
    kind: str
    length: int
    states: int


def judge(c: Constants, limit: int = 8000, g: Graph | None = None) -> Verdict | None:
    """All statements and the fair-cycle search on ``c``; None if its graph is too big."""
    try:
        g = g or graph(c, limit)
    except TooBig:
        return None
    found = first_violation(g)
    if found:
        return Verdict(found.prop, "violation", len(found.trace), len(g.nodes))
    cycle = lasso(g, want_cycle=False)
    if cycle:
        return Verdict(cycle.prop, cycle.kind, len(cycle.prefix), len(g.nodes))
    return Verdict("", "ok", 0, len(g.nodes))


def sweep(rules: Mapping[str, Any], count: int, seed: int, limit: int = 8000, **kinds: Any) -> Counter:
    """How often each verdict occurs on ``count`` random instances under ``rules``."""
    out: Counter = Counter()
    gen = instances(seed, **kinds)
    for _ in range(count):
        v = judge(constants(**{**next(gen), **rules}), limit)
        out["limit" if v is None else v.prop or "ok"] += 1
    return out


#: What OneOrder is extended with, one variant each; ``open_system`` workloads have endless arrivals behind.
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "closed": ({}, {}),
    "open": ({}, {"open_system": True}),
    "open, plain scan, one 'not yet'": ({"Scan": "queue", "K": 1}, {"open_system": True}),
    "open, P = 0": ({"P": 0}, {"open_system": True}),
    "open, P = 2, one 'not yet'": ({"P": 2, "K": 1}, {"open_system": True}),
    "open, 'not yet' closes": ({"K": 1, "NotYetCloses": True}, {"open_system": True}),
    "open, PRIORITY, an older one late": (
        {"Fcfs": False, "Late": frozenset({1}), "K": 1},
        {"open_system": True},
    ),
    "open, least progressed victim first": ({"VictimPick": "least", "K": 1}, {"open_system": True}),
    "closed, early stop and aborts": ({"Eos": True, "Aborts": True}, {}),
    "open, failed loads": ({"Fails": 1}, {"open_system": True}),
    "open, lost loads, deadlines, quarantine": (
        {"Deadlines": True, "Lost": frozenset({1, 2})},
        {"open_system": True},
    ),
    "open, 'not yet' for ever, its deadline": (
        {"K": 1, "NotYetForever": True, "DeferralDeadline": "kept"},
        {"open_system": True},
    ),
    "open, one block kept back beside a load": ({"KeptBack": 1}, {"open_system": True}),
    "open, the same, idle session ahead": (
        {"KeptBack": 2, "Sessions": frozenset({1})},
        {"open_system": True},
    ),
    "open, 'not yet' for ever, deadline ended by refusals (gap)": (
        {"K": 1, "NotYetForever": True, "DeferralDeadline": "anew"},
        {"open_system": True},
    ),
    "open, idle session ahead": ({"Sessions": frozenset({1})}, {"open_system": True}),
    "closed, idle session behind": ({"Sessions": frozenset({2})}, {}),
    "open, grammar that may fail": (
        {"Grammar": frozenset({1}), "GrammarFails": "wakes"},
        {"open_system": True},
    ),
    "open, one pause": ({"Pauses": 1}, {"open_system": True}),
    "open, one seat": ({"MaxSeqs": 1}, {"open_system": True}),
    "open, two seats, parked loads count": ({"MaxSeqs": 2, "CountParked": True}, {"open_system": True}),
    "open, two adapters, one at a time": ({"Adapter": (1, 2, 1)}, {"n": (3, 3), "open_system": True}),
    "open, look-ahead": ({"Look": 1}, {"open_system": True}),
    "open, late token dropped, spared": (
        {"StaleOutput": "dropped", "SpareInFlight": True, "P": 0},
        {"open_system": True},
    ),
    "closed, late token dropped, P = 0 (gap)": ({"StaleOutput": "dropped", "P": 0}, {}),
    "open, rule R removed (gap)": ({"RuleR": False}, {"open_system": True}),
}


def main() -> None:
    """Print how OneOrder fares with each extension on random instances (evidence, not proof)."""
    import argparse

    p = argparse.ArgumentParser(prog="python -m stallproof_model.search", description=main.__doc__)
    p.add_argument("--count", type=int, default=150, help="instances per variant (default 150)")
    p.add_argument("--seed", type=int, default=7)
    p.add_argument("--limit", type=int, default=2500, help="states per instance; beyond: no verdict")
    a = p.parse_args()
    for name, (rules, kinds) in VARIANTS.items():
        got = sweep(rules, a.count, a.seed, a.limit, **kinds)
        print(
            f"{name:58}",
            ", ".join(f"{n} {v}" for v, n in sorted(got.items(), key=lambda kv: -kv[1])),
            flush=True,
        )


if __name__ == "__main__":
    main()
