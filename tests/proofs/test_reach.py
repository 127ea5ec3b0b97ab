"""The measure on reachable states of the model: it falls under the rules, and not without one of them."""

from __future__ import annotations

import random

import pytest

from stallproof_model.explore import graph
from stallproof_model.state import constants
from stallproof_proofs import reach


def test_every_transition_lowers_the_measure() -> None:
    rng = random.Random(11)
    transitions = preemptions = 0
    for _ in range(12):
        result = reach.check(reach.random_constants(rng), limit=400)
        assert result.raised is None
        assert result.unpaid == []
        transitions += result.transitions
        preemptions += result.preemptions
    assert transitions > 2_000
    assert preemptions > 20


@pytest.mark.slow
def test_every_transition_lowers_the_measure_on_many_configurations() -> None:
    rng = random.Random(12)
    results = [reach.check(reach.random_constants(rng), limit=1_500) for _ in range(60)]
    assert [r.raised for r in results if r.raised] == []
    assert [r.unpaid for r in results if r.unpaid] == []
    assert sum(r.transitions for r in results) > 30_000


SLOW = "running list in scheduling order"


@pytest.mark.parametrize(
    "rule", [pytest.param(r, marks=[pytest.mark.slow] if r == SLOW else []) for r in reach.REMOVED]
)
def test_a_removed_rule_raises_it_on_a_reachable_transition(rule: str) -> None:
    found = reach.search(rule, limit=800)
    assert found, f"no reachable transition raises the measure without {rule}"
    name, depth, _, _ = found[1].raised or ("", 0, None, None)
    assert name
    assert depth > 0


def test_the_bound_on_preemptions_holds_on_every_path() -> None:
    """Most preemptions of each request on any path of a closed system, against the published bound."""
    c = constants(N=2, B=3, D=1, Budget=2, ChunkCap=1, Prompt=[2, 1], Total=[4, 4], Ext=[1, 0], P=1)
    g = graph(c)
    most = [[0] * len(g.nodes) for _ in range(c.N)]
    changed = True
    rounds = 0
    while changed:  # longest paths; self loops and patience cycles preempt nobody
        changed, rounds = False, rounds + 1
        assert rounds <= len(g.nodes) + 1, "a cycle preempts: the system does not terminate"
        for i, edges in enumerate(g.edges):
            for _, _, j in edges:
                for r in range(c.N):
                    now = most[r][i] + (g.nodes[i].st[r] == "running" and g.nodes[j].st[r] == "preempted")
                    if i != j and now > most[r][j]:
                        most[r][j] = now
                        changed = True
    bounds = reach.preemption_bounds([(2, 4, 1), (1, 4, 1)])
    peak = [max(m) for m in most]
    assert any(peak), "nobody is ever preempted: the configuration shows nothing"
    assert all(p <= b for p, b in zip(peak, bounds, strict=True))


def test_bounds_are_in_scheduling_order_and_grow() -> None:
    bounds = reach.preemption_bounds([(10, 20, 1)] * 3)
    assert bounds[0] == 10
    assert bounds[0] < bounds[1] < bounds[2]
