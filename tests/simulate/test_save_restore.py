"""The what-if of saving evicted blocks: bounded, paid for, and nothing else changes."""

from __future__ import annotations

import pytest

from stallproof import engines
from stallproof.simulate.plan import Plan, Work
from stallproof.simulate.spawn import Worker

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def plan(**more: float) -> Plan:
    return Plan(
        work=Work(synthetic=60, rate=30), scheduler="stallproof", blocks=150, max_model_len=1024,
        prefix_caching=False, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def test_bounded_paid_for_and_off_by_default() -> None:
    if not engines.is_up("0.32.0"):
        pytest.skip("vLLM 0.32.0 is not installed; make engines")
    plans = plan(), plan(save_restore=500), plan(save_restore=10), plan(save_restore=500, move_cost=0.01)
    with Worker("0.32.0") as worker:
        off, on, small, dear = (worker.run(p)["summary"] for p in plans)
    assert off["recomputed_tokens"] > 100
    assert "saved_blocks" not in off
    assert on["restored_tokens"] > off["recomputed_tokens"] // 2
    assert on["unsaved_blocks"] == 0
    assert small["store_peak_blocks"] <= 10
    assert small["unsaved_blocks"] > 0
    assert small["restored_tokens"] < on["restored_tokens"]
    assert dear["virtual_s"] > on["virtual_s"]
    assert all(r["completed"] == off["completed"] for r in (on, small, dear))
