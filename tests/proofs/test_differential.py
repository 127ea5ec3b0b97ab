"""The relations of theory ``order`` and the model: no difference, and a wrong relation shows one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import z3

from stallproof_proofs import guards
from stallproof_proofs.differential import Relations, run
from stallproof_proofs.evaluate import Evaluator
from stallproof_proofs.logic import Action
from stallproof_proofs.systems import order as m

s = m.vocabulary.state()
Mutate = Callable[[Action], Action]


def drop(action: str, guard: str) -> Mutate:
    def change(a: Action) -> Action:
        assert a.name != action or guard in a.guards
        if a.name != action:
            return a
        return replace(a, guards={n: g for n, g in a.guards.items() if n != guard})

    return change


def skip(action: str, var: str) -> Mutate:
    def change(a: Action) -> Action:
        assert a.name != action or var in a.updates
        if a.name != action:
            return a
        return replace(a, updates={n: u for n, u in a.updates.items() if n != var})

    return change


def test_relations_and_model_agree() -> None:
    report = run(seed=1, transitions=300)
    assert report.differences == []
    assert report.transitions >= 300
    assert report.enabled > 300 < report.disabled


@pytest.mark.slow
def test_relations_and_model_agree_on_thousands() -> None:
    report = run(seed=5, transitions=4200)
    assert report.differences == []
    every = {f"{a}.{g}" for a, x in Relations(2).actions.items() for g in x.guards}
    missed = every - report.decisive
    assert missed <= {*guards.IMPLIED, *guards.RARE}, "a guard that nothing notices has no reason"
    assert not report.decisive & set(guards.IMPLIED)
    expected = {
        "Promote", "Reject", "HeadEnd", "Serve", "Skip", "RunEvict", "Preempt", "SelfPreempt", "Wait",
        "LoopEnd", "NotYet", "StartLoad", "Admit", "AdmEvict", "Refuse", "Pass", "Dispatch", "Deliver",
        "DeliverLast", "DeliverLate", "Pop", "XferDone", "XferFail", "Expire", "ExpireZombie", "LateDone",
        "Abort", "AbortLoading", "XferFreed", "Arrive", "GrammarReady", "GrammarFails", "Paused", "Pause",
        "Resume", "Spare", "LoadEvict", "LoneLoad", "GiveUp", "DeferralOver", "DeliverTurn", "Input",
        "InputAway", "InputHere",
    }  # fmt: skip
    assert set(report.by_action) == expected, "every action of the relations is compared"


FAST = ("Admit.budget", "Wait.mine", "Pop.in_flight")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FAST else [pytest.mark.slow]) for n in guards.IMPLIED]
)
def test_a_guard_said_to_be_implied_is(name: str) -> None:
    assert guards.implied(name)


def test_a_guard_that_matters_is_not_implied() -> None:
    assert not guards.implied("Begin.budget")


@pytest.mark.parametrize(
    "mutate",
    [
        drop("Serve", "enough"),
        drop("LoopEnd", "all_visited"),
        drop("Admit", "full_fit"),
        drop("Pass", "cannot"),
        drop("Dispatch", "over"),
        drop("Spare", "in_flight"),
        drop("Deliver", "goes_on"),
        skip("Input", "lim"),
        skip("InputHere", "own"),
        drop("NotYet", "not_late"),
        drop("Refuse", "not_alone"),
        pytest.param(drop("LoadEvict", "idles"), marks=pytest.mark.slow),
        pytest.param(drop("AdmEvict", "behind"), marks=pytest.mark.slow),
        pytest.param(drop("Preempt", "spared"), marks=pytest.mark.slow),
        skip("GiveUp", "noload"),
        pytest.param(skip("StartLoad", "late"), marks=pytest.mark.slow),
        skip("Admit", "own"),
        skip("Serve", "ph"),
        skip("DeliverLast", "free"),
        skip("XferDone", "st"),
        pytest.param(skip("Preempt", "Srun"), marks=pytest.mark.slow),
        pytest.param(skip("Refuse", "seen"), marks=pytest.mark.slow),
    ],
    ids=lambda f: "",
)
def test_a_wrong_relation_shows_a_difference(mutate: Mutate) -> None:
    assert run(seed=5, transitions=2500, mutate=mutate, stop_at=1).found


@pytest.mark.parametrize("value", [-2, 0, 3])
def test_the_evaluator_agrees_with_the_solver(value: int) -> None:
    """The same terms, once simplified by Z3 after substitution and once evaluated here."""
    x, y = z3.Ints("x y")
    terms = [
        z3.If(x > 1, x + 2 * y, -x), z3.And(x >= y, z3.Not(x == y)), z3.Or(x < y, x == 3, y - x > 1),
        z3.Implies(x > 0, y > 0), z3.Distinct(x, y, x + y),
    ]  # fmt: skip
    for t in terms:
        solved = z3.simplify(z3.substitute(t, (x, z3.IntVal(value)), (y, z3.IntVal(1))))
        ours = Evaluator({})(t, {"x": value, "y": 1})
        assert ours == (solved.as_long() if z3.is_int_value(solved) else z3.is_true(solved))


def test_quantifiers_run_over_the_universe() -> None:
    env = {"own": {1: 0, 2: 3}, "ord": {1: 0, 2: 1}}
    ev = Evaluator({"Request": [1, 2]})
    q, u = m.q, m.u
    assert ev(z3.Exists([q], s.own(q) > 2), env)
    assert not ev(z3.ForAll([q], s.own(q) > 2), env)
    assert ev(z3.ForAll([q, u], z3.Implies(m.order(q) < m.order(u), s.own(q) < s.own(u))), env)
    assert ev(z3.ForAll([q], z3.Exists([u], s.own(u) >= s.own(q))), env)
