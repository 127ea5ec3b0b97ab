"""The real engine on CPU, with a tiny random model and a connector that really moves KV.

Few blocks, so that requests are preempted and evicted while loads write; the output tokens must be those of
the stock engine without pressure, request by request, no block may be missing at the end, and the recorded
trace must conform.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from stallproof import engines

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]
VERSION = engines.BASE


def run(plan: dict[str, Any], folder: Path, version: str = VERSION) -> dict[str, Any]:
    target = folder / "result.json"
    done = engines.get(version).run(
        ["-m", "stallproof.harness.engine_run", json.dumps(plan)],
        {"STALLPROOF_RESULT": str(target)},
        capture_output=True, text=True, timeout=600, cwd=folder,
    )  # fmt: skip
    assert target.exists(), done.stderr[-3000:]
    return json.loads(target.read_text())


@cache
def reference(requests: int, key: str, folder: str) -> dict[str, list[int]]:
    """Stock, synchronous, blocks in plenty, no connector."""
    plan = {"requests": requests, "blocks": 1200, "connector": None, "asynchronous": False, **json.loads(key)}
    got = run(plan, Path(folder))
    assert not got["died"]
    assert got["events"].get("preempt", 0) == 0, "the reference must be without pressure"
    return got["tokens"]


def check(got: dict[str, Any], want: dict[str, list[int]], floor: dict[str, int]) -> None:
    events = got["events"]
    print({k: events.get(k, 0) for k in ("preempt", "evict", "load", "refuse", "wait")}, got["fired"])
    assert got["died"] == ""
    assert got["depth"] == 2, "two batches must be in flight"
    for what, least in floor.items():
        assert events.get(what, 0) >= least, f"only {events.get(what, 0)} {what}: the run proves too little"
    wrong = {}
    for r in got["asked"]:
        have = got["tokens"].get(r, [])
        if have != (want[r][: len(have)] if r in got["aborted"] else want[r]):
            wrong[r] = have
    assert not wrong, f"other tokens than without pressure: {sorted(wrong)}"
    assert got["missing_blocks"] == 0
    assert set(got["finished"]) | set(got["aborted"]) == set(got["asked"])


PLANS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "loads and preemptions": ({}, {"preempt": 20, "load": 20}),
    "chunked prefill, prefix caching, priorities": (
        {"budget": 128, "chunk_cap": 64, "prefix_caching": True, "shared_prefix": 64, "policy": "priority",
         "priorities": 3},
        {"preempt": 20, "load": 20, "share": 20},
    ),
    "aborts, late, failed and repeated loads": (
        {"abort_every": 5, "connector": {"fail_every": 7, "repeat_every": 5, "defer_every": 3, "delay": 5}},
        {"preempt": 10, "load": 20, "load_failed": 5, "not_yet": 20, "ignored": 5},
    ),
    "pause and resume": ({"pause_at": 40, "pause_for": 30}, {"preempt": 20, "load": 20, "pause": 2}),
}  # fmt: skip


#: divergences that are known and open. A request whose load failed gives its blocks up when it is promoted,
#: keeps its place among the holders for the rest of that call, and may load again ahead of an older newcomer.
KNOWN: dict[str, set[str]] = {"aborts, late, failed and repeated loads": {"NoInversion"}}


@pytest.mark.parametrize("name", PLANS)
def test_ours_under_pressure(name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    extra, floor = PLANS[name]
    plan = {"requests": 120, **extra, "scheduler": "stallproof", "trace": str(tmp_path / "trace.jsonl")}
    same = {k: extra[k] for k in ("shared_prefix",) if k in extra}
    want = reference(120, json.dumps(same), str(tmp_path_factory.getbasetemp()))
    check(run(plan, tmp_path), want, floor)
    replay = subprocess.run(
        [sys.executable, "-m", "stallproof", "replay", "--all", "--json", str(tmp_path / "trace.jsonl")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert replay.returncode in (0, 1), replay.stderr
    rules = {v["rule"] for v in json.loads(replay.stdout)["violations"]}
    assert rules <= KNOWN.get(name, set()), replay.stdout[:3000]


def test_stock_under_the_same_pressure_is_the_control(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    want = reference(120, "{}", str(tmp_path_factory.getbasetemp()))
    check(run({"requests": 120, "scheduler": "stock"}, tmp_path), want, {"preempt": 20, "load": 20})
