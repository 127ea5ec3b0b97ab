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
