"""Theory ``loops`` and the model: every iteration is one that the theory knows, and within the bound."""

from __future__ import annotations

import pytest
import z3

from stallproof_proofs import iterations
from stallproof_proofs.proofs import loops


def test_every_iteration_of_the_model_is_one_of_the_theory() -> None:
    report = iterations.run(seed=1, iterations=600)
    assert report.differences == []
    assert report.beyond == 0
    assert {"RunLoop go_on", "RunLoop fcfs", "AdmLoop skip", "AdmLoop load"} <= set(report.seen)


@pytest.mark.slow
def test_every_kind_of_iteration_is_seen() -> None:
    report = iterations.run(seed=2, iterations=6000)
    assert report.differences == []
    assert report.beyond == 0
    assert {
        "RunLoop go_on", "RunLoop fcfs", "RunLoop evict", "AdmLoop skip", "AdmLoop load",
        "AdmLoop admit_holder", "AdmLoop evict admit_holder", "AdmLoop least",
    } <= set(report.seen)  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        {"run_loop": {**iterations.RUN, "go_on": z3.And(loops.go_on, loops.h2 == loops.h + 1)}},
        {"run_loop": {"go_on": loops.go_on}},
        {"adm_loop": {n: r for n, r in iterations.ADM.items() if n != "load"}},
        {"adm_loop": {n: r for n, r in iterations.ADM.items() if n != "skip"}},
    ],
    ids=["served adds a holder", "no preemption", "no load start", "nobody is passed"],
)
def test_a_wrong_iteration_shows_a_difference(wrong: dict) -> None:
    assert iterations.run(seed=1, iterations=600, **wrong).found
