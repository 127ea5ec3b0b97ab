"""The relations of theory ``adapters`` and the model: no difference, and a wrong relation shows one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import z3

from stallproof_model import sched
from stallproof_proofs.differential_adapters import WATCHED, noted, run
from stallproof_proofs.logic import Action

Mutate = Callable[[Action], Action]


def drop(action: str, guard: str) -> Mutate:
    def change(a: Action) -> Action:
        guards = {n: g for n, g in a.guards.items() if n != guard}
        return replace(a, guards=guards) if a.name == action else a

    return change


def skip(action: str, var: str) -> Mutate:
    def change(a: Action) -> Action:
        updates = {n: u for n, u in a.updates.items() if n != var}
        return replace(a, updates=updates) if a.name == action else a

    return change


def forgets(a: Action) -> Action:
    """As the theory was at first: with adapters free, who waits is forgotten."""
    return replace(a, updates={**a.updates, "ot": lambda: z3.IntVal(0)}) if a.name == "Nobody" else a


def test_relations_and_model_agree() -> None:
    report = run(seed=1, calls=500)
    assert report.differences == []
    assert report.calls >= 500
    assert min(report.asked[True], report.asked[False]) > 50, "both polarities"
    assert set(report.by_action) == {"Admit", "StartLoad", "Leave", "Another", "Again", "Nobody"}


@pytest.mark.parametrize(
    "mutate",
    [
        drop("Admit", "slot"),
        drop("Admit", "lets_go_first"),
        drop("StartLoad", "slot"),
        drop("StartLoad", "lets_go_first"),
        drop("Another", "new"),
        drop("Another", "lacks"),
        drop("Again", "same"),
        skip("Admit", "run"),
        skip("Admit", "ot"),
        skip("Admit", "Nrun"),
        skip("Admit", "Nada"),
        skip("StartLoad", "ot"),
        skip("Leave", "Nada"),
        skip("Another", "ot"),
        skip("Another", "hd"),
        skip("Again", "hashd"),
        skip("Nobody", "hashd"),
        forgets,
    ],
    ids=lambda f: "",
)
def test_a_wrong_relation_shows_a_difference(mutate: Mutate) -> None:
    assert run(seed=3, calls=3_000, mutate=mutate, stop_at=1).found


def test_the_operators_are_given_back() -> None:
    before = [getattr(sched, name) for name in WATCHED]
    with noted():
        assert sched.Admit is not before[-1]
    assert [getattr(sched, name) for name in WATCHED] == before
