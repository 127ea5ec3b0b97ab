"""The what-if of saving evicted blocks: bounded, paid for, and nothing else changes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from stallproof import engines

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def run(*more: str) -> dict[str, Any]:
    if not engines.is_up("0.32.0"):
        pytest.skip("vLLM 0.32.0 is not installed; make engines")
    args = "--synthetic 60 --rate 30 --blocks 150 --max-model-len 1024 --no-prefix-caching --json"
    command = [
        sys.executable,
        "-m",
        "stallproof",
        "simulate",
        *args.split(),
        "--scheduler",
        "stallproof",
        *more,
    ]
    out = subprocess.run(command, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    runs: list[dict[str, Any]] = json.loads(out.stdout)["runs"]
    return runs[0]


def test_bounded_paid_for_and_off_by_default() -> None:
    off, on, small = run(), run("--save-restore", "500"), run("--save-restore", "10")
    dear = run("--save-restore", "500", "--move-cost", "0.01")
    assert off["recomputed_tokens"] > 100
    assert "saved_blocks" not in off
    assert on["restored_tokens"] > 0
    assert on["restored_tokens"] > off["recomputed_tokens"] // 2
    assert on["unsaved_blocks"] == 0
    assert small["store_peak_blocks"] <= 10
    assert small["unsaved_blocks"] > 0
    assert small["restored_tokens"] < on["restored_tokens"]
    assert dear["virtual_s"] > on["virtual_s"]
    assert all(r["completed"] == off["completed"] for r in (on, small, dear))
