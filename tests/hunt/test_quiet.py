"""What hunts once found on our class, and false alarms of our judges: ours is quiet, stock is as measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallproof import scenario
from stallproof.hunt.causes import causes

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(300)]

QUIET = scenario.load_all(Path(__file__).parent / "quiet")


def test_there_are_enough_of_them() -> None:
    assert len(QUIET) >= 40


@pytest.mark.parametrize("version", ["0.23.0", "0.28.0", "0.32.0"])
def test_ours_is_quiet_and_stock_is_as_measured(version: str) -> None:
    ours = causes(version, "stallproof", QUIET)
    assert {s.id: a.causes for s, a in zip(QUIET, ours, strict=True) if a.causes} == {}
    stock, odd = causes(version, "stock", QUIET), {}
    for s, a in zip(QUIET, stock, strict=True):
        want = scenario.expected(s.expect.stock, version)
        if not a.refused and ((want not in a.causes) if want != "ok" else a.causes):
            odd[s.id] = (want, a.causes)
    assert odd == {}
    assert sum(bool(a.causes) for a in stock) >= 15, "the control: stock breaks many of them"
