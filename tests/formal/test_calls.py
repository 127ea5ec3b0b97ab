"""Calls.tla says what five statements of Properties.tla say: refuted where each is, and only there."""

import pytest

from stallproof.check import config, tlc

GAPS = {
    "NoZeroPre": "zero-progress-cascade",
    "EvictCoupled": "eviction-without-run",
    "NoInversion": "n1-inversion",
    "BoundedWait": "promotion-by-budget",
    "NoWedge": "head-of-line-wedge",
}
BY_NAME = {c.name: c for c in config.load()}


def calls(constants):
    return tlc.run("Calls", constants, invariants=["Calls"]).result


@pytest.mark.slow
@pytest.mark.parametrize("statement", GAPS)
def test_each_statement_about_calls_is_refuted_in_calls_too(statement):
    cfg = BY_NAME[GAPS[statement]]
    assert cfg.refutes == statement
    assert calls(cfg.tla) == "Calls"


@pytest.mark.slow
def test_calls_holds_where_the_gap_is_closed():
    assert calls(BY_NAME[GAPS["NoWedge"]].tla_fixed) == tlc.OK


def test_a_large_run_leaves_no_statement_out():
    """Calls stands for these five; the other invariants are checked as they are."""
    small = {*config.INVARIANTS, *config.STEPS}
    assert small - set(config.LARGE) == set(GAPS)
    assert set(config.LARGE) - small == {"Calls"}
    assert not [c.name for c in BY_NAME.values() if c.tier == "nightly" and c.without]
