"""Dropped late tokens with patience, on the model: which measure falls, and which does not."""

from __future__ import annotations

import itertools
import random

import pytest

from stallproof_model.state import constants
from stallproof_proofs import windows
from stallproof_proofs.windows import LOSES, RAISES, RAISES_RUN, check, follow_run


def test_patience_for_all_steps_in_flight_does_not_spare_every_token() -> None:
    result = check(constants(**LOSES))
    assert result.first is not None
    depth, victims, *_ = result.first
    assert (depth, victims) == (7, (2,))
    assert result.wrong == []
    assert result.states < 1_000


def test_the_measure_of_theory_order_rises_in_a_call_that_loses_a_token() -> None:
    result = follow_run(constants(**RAISES), RAISES_RUN)
    assert (result.losses, result.raised) == (1, 1)
    assert result.wrong == [], "measured from the beginning of the window it falls"


def explored(patience: int | None, configurations: int, limit: int) -> windows.Check:
    rng, out = random.Random(3), windows.Check()
    for _ in range(configurations):
        c = windows.random_constants(rng, patience)
        if patience is not None and patience >= c.D - 1:
            continue
        r = check(c, limit)
        out.transitions += r.transitions
        out.losses += r.losses
        out.wrong += r.wrong
    return out


def test_every_window_lowers_the_measure() -> None:
    result = explored(None, 15, 800)
    assert result.wrong == []
    assert result.transitions > 10_000


@pytest.mark.slow
def test_every_window_lowers_the_measure_on_many_configurations() -> None:
    result = explored(None, 80, 2_500)
    assert result.wrong == []
    assert result.transitions > 100_000


def test_every_loss_is_paid_for() -> None:
    losses = 0
    for totals in itertools.product((5, 6), repeat=3):
        for eos in (False, True):
            result = check(constants(**{**LOSES, "Total": totals, "Eos": eos}), 1_500)
            losses += result.losses
            assert result.wrong == []
    assert losses > 5


def test_less_patience_is_seen_to_break_it() -> None:
    claims = {claim for claim, *_ in explored(0, 10, 800).wrong}
    assert {"Decreases.window", "LostPaid"} <= claims
