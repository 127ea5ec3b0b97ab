"""Planted faults: each fits its function, changes it, and leaves it as it was; none is there by accident."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stallproof import engines, scenario
from stallproof.core.rules import RULES
from stallproof.hunt import planted

SCENARIOS = Path(__file__).parents[1] / "scenarios"


def test_there_are_enough_of_them_and_each_names_a_rule() -> None:
    assert len(planted.MUTANTS) >= 24
    assert {m.rule for m in planted.MUTANTS} <= set(RULES)
    known = {s.id for s in scenario.load_all(SCENARIOS)}
    assert {m.scenario for m in planted.MUTANTS} - {""} <= known


@pytest.mark.parametrize("mutant", planted.MUTANTS, ids=lambda m: m.name)
def test_each_changes_one_function_and_gives_it_back(mutant: planted.Mutant) -> None:
    """Fails by name when the guard's source moves on: then the mutant is renewed, not dropped."""
    function = mutant.function()
    before = function.__code__
    with mutant.planted():
        assert function.__code__ is not before
        changed = (function.__code__.co_code, function.__code__.co_consts, function.__code__.co_names)
        assert changed != (before.co_code, before.co_consts, before.co_names)
    assert function.__code__ is before


def test_a_stale_mutant_is_an_error() -> None:
    m = planted.BY_NAME["gate_open"]
    with pytest.raises(planted.Stale, match=r"0 times in core\.gate:Gate\.must_hold"):
        replace(m, old="no such text").code()
    with pytest.raises(planted.Stale, match="2 times"):
        replace(m, where="core.steps:Steps.process", old="self.processed").code()


def test_the_fault_acts() -> None:
    from stallproof.core.gate import Gate
    from stallproof.core.steps import Steps

    steps = Steps(dispatched=3, processed=1)
    assert Gate(steps).must_hold(3)
    with planted.BY_NAME["gate_open"].planted():
        assert not Gate(steps).must_hold(3)
    assert Gate(steps).must_hold(3)


def test_no_fault_is_there_unasked() -> None:
    assert planted._planted == []
    with pytest.raises(AttributeError, match="no attribute 'gate_shut'"):
        planted.gate_shut  # noqa: B018


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_those_with_a_scenario_break_it() -> None:
    """The scenario passes with our class as it is (``tests/scenarios``), and not with the fault."""
    script = Path(__file__).with_name("live_mutants.py")
    done = engines.get("0.32.0").run([str(script), str(SCENARIOS)], capture_output=True, text=True)
    got = {x.split()[1]: x.split()[2:] for x in done.stdout.splitlines() if x.startswith("LIVE ")}
    wanted = {m.name for m in planted.MUTANTS if m.scenario and m.version == "0.32.0"}
    assert set(got) == wanted, done.stderr[-2000:]
    assert len(wanted) >= 16
    assert not [name for name, broken in got.items() if not broken]
