"""The sanitizer against the promise: random interleavings, judged by the definitions, run by the kernels."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from stallproof.kernels.interleave import Rules, World, play

WORLDS = 300
ACTIONS = 150

BROKEN = {
    "InFlightSafe": Rules(gate=False),
    "XferSafe": Rules(quarantine=False),
    "StoreSafe": Rules(keep=False),
}


def worlds(rules: Rules, count: int = WORLDS) -> list[World]:
    return [play(seed, rules, actions=ACTIONS) for seed in range(count)]


def test_with_all_rules_nothing_is_violated_and_nothing_reported() -> None:
    played = worlds(Rules())
    assert not any(w.breaches or w.reports for w in played)
    assert sum(w.sanitizer.checks for w in played) > 5_000, "the interleavings must exercise the checks"
    assert sum(w.step for w in played) > 3_000


@pytest.mark.parametrize("name", BROKEN)
def test_without_a_rule_exactly_its_property_is_violated_and_reported(name: str) -> None:
    played = worlds(BROKEN[name])
    violated = {v.property for w in played for v in w.accesses}
    assert violated == {name}, "the rule's absence must be visible, and under its own name only"
    for w in played:
        assert not w.missed()
        assert not w.unexplained(), [r.line() for r in w.unexplained()]


def test_without_any_rule_every_access_is_reported_and_every_report_explained() -> None:
    played = worlds(Rules(gate=False, quarantine=False, keep=False))
    assert {v.property for w in played for v in w.accesses} == set(BROKEN)
    for w in played:
        assert not w.missed()
        assert not w.unexplained(), [r.line() for r in w.unexplained()]


@pytest.mark.parametrize(
    "rules",
    [Rules(gate=False, bracket=False), Rules(gate=False, late=False)],
    ids=["begin only", "end check ahead of the drafter"],
)
def test_control_a_weaker_bracket_misses_accesses(rules: Rules) -> None:
    assert any(w.missed() for w in worlds(rules))


def test_a_report_names_request_block_step_and_epochs() -> None:
    report = next(r for w in worlds(BROKEN["InFlightSafe"]) for r in w.reports if r.step)
    for part in (report.request, f"block {report.block}", f"step {report.step}", "epoch", "expected", "load"):
        assert part in report.line()


def test_the_triton_kernels_see_the_same() -> None:
    pytest.importorskip("triton")
    for seed in range(4):
        rules = BROKEN[list(BROKEN)[seed % 3]]
        with_torch, with_triton = (play(seed, rules, actions=60, backend=b) for b in ("torch", "triton"))
        assert with_torch.reports == with_triton.reports
        assert not with_triton.missed()
