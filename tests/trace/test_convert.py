"""Walks of the model conform as traces; TLC's counterexamples, as traces, are found by the same name."""

from __future__ import annotations

import random

import pytest

from stallproof.check import config
from stallproof.check.convert import from_gap, from_walk
from stallproof.trace.progress import Thresholds
from stallproof_model.sched import Init, Next

from .hand import judge

TWINS = [x for x in config.load() if x.has_twin]


@pytest.mark.parametrize("cfg", TWINS, ids=lambda x: x.name)
def test_walks_conform(cfg):
    """Block safety holds on random walks of every configuration whose gap is not block safety itself."""
    for seed in range(3):
        rng, state = random.Random(seed), Init(cfg.c)
        walk = [("", state)]
        for _ in range(60):
            steps = list(Next(cfg.c, state))
            if not steps:
                break
            action, _, state = rng.choice(steps)
            walk.append((action, state))
        verdict = judge(from_walk(cfg.c, walk), layers=("ledger",))
        bad = [v for v in verdict.violations if cfg.refutes != v.rule]
        assert not bad, bad[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gap", "rule"),
    [
        ("zero-progress-cascade", "NoZeroPre"),
        ("reuse-before-fence", "InFlightSafe"),
        ("eviction-without-run", "EvictCoupled"),
        ("head-of-line-wedge", "NoWedge"),
        ("n1-inversion", "NoInversion"),
    ],
)
def test_counterexamples_are_found_by_the_same_name(gap, rule):
    verdict = judge(from_gap(gap), thresholds=Thresholds(wedge_calls=1))
    assert verdict.violations, gap
    assert verdict.violations[0].rule == rule


def test_a_walk_that_is_none_is_refused():
    cfg = next(x for x in TWINS if x.name == "one-order")
    a = Init(cfg.c)
    b = a._replace(free=a.free - 1)
    with pytest.raises(ValueError, match="does not know"):
        from_walk(cfg.c, [("", a), ("Schedule", b)])
