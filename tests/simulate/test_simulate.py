"""Simulation of the real scheduler: deterministic, complete, no decisions of its own."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stallproof import engines
from stallproof.errors import BadInput, Exit
from stallproof.simulate.plan import Plan, Store, Work
from stallproof.simulate.series import LIMIT, Series

SIMULATE = Path(__file__).resolve().parents[2] / "impl" / "stallproof" / "simulate"

#: What the simulator may use of our own: it must not contain or import a scheduling decision.
ALLOWED = (
    "stallproof.simulate", "stallproof.errors", "stallproof.engines", "stallproof.harness.config",
    "stallproof.scenario", "stallproof.trace.reader", "stallproof.trace.schema", "stallproof.vllm.recording",
    "stallproof.vllm.describe", "stallproof.report.page", "stallproof.report.names", "stallproof.spread",
)  # fmt: skip


def test_the_simulator_holds_no_scheduling_decision() -> None:
    decisions = {"allocate_slots", "_preempt_request", "get_new_blocks", "free_blocks", "running", "waiting"}
    for path in sorted(SIMULATE.glob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("stallproof"):
                names = [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
                assert any(n.startswith(ALLOWED) for n in names), (path.name, node.module)
            # The scheduler's queues, pool and allocation are neither called nor assigned.
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
                assert not (node.value.attr == "sched" and node.attr in decisions), (path.name, node.attr)


def test_series_is_bounded_and_keeps_the_whole_span() -> None:
    series = Series()
    for i in range(50_000):
        if series.due():
            series.add(float(i), 1, 2, 3, 4, 5, 0.0)
    assert LIMIT // 2 <= len(series.points) < LIMIT
    assert series.points[0][0] == 0.0
    assert series.points[-1][0] > 49_000


def cli(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stallproof", "simulate", *args], capture_output=True, text=True
    )


@pytest.mark.parametrize(
    "args",
    [
        (), ("/nonexistent/trace.jsonl",), ("--synthetic", "5", "--blocks", "0"),
        ("--synthetic", "5", "--latency", "speed=1"), ("--synthetic", "5", "--vllm", "0.1.0"),
        ("--synthetic", "5", "--p-fail", "2"),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_error(args: tuple[str, ...]) -> None:
    run = cli(*args)
    assert run.returncode in (Exit.BAD_INPUT, Exit.UNSUPPORTED)
    assert "Traceback" not in run.stderr
    assert run.stderr.strip()


needs_engine = pytest.mark.skipif(
    not all(engines.is_up(v) for v in ("0.28.0", "0.32.0")), reason="make engines brings up 0.28.0 and 0.32.0"
)
PRESSED = Plan(
    work=Work(synthetic=80, rate=40, seed=3), blocks=70, max_num_seqs=16, budget=1024, max_model_len=1024,
    store=Store(kind="store"), horizon=60,
)  # fmt: skip


@pytest.fixture(scope="module")
def worker() -> Iterator[Any]:
    """One engine for all runs: what ran before must not matter."""
    from stallproof.simulate.spawn import Worker

    with Worker("0.32.0") as w:
        yield w


def with_(plan: Plan, **changes: object) -> Plan:
    import msgspec

    return msgspec.convert(msgspec.to_builtins(plan) | changes, Plan)


@pytest.mark.engine
@pytest.mark.slow
@needs_engine
@pytest.mark.parametrize("scheduler", ["stock", "stallproof"])
def test_same_plan_same_bytes_and_every_token_delivered(worker: Any, scheduler: str) -> None:
    a, b = (worker.run(with_(PRESSED, scheduler=scheduler)) for _ in range(2))
    for r in (a, b):
        for machine in ("wall_s", "cpu_s", "peak_rss_mb"):
            del r["summary"][machine]
    assert json.dumps(a) == json.dumps(b)
    s = a["summary"]
    assert s["completed"] == s["requests"] == 80
    assert s["preemptions"] > 0
    assert s["loads"] > 0
    assert all(tokens == output for *_, output, tokens in a["requests"])


@pytest.mark.engine
@pytest.mark.slow
@needs_engine
def test_without_a_connector_ours_is_as_fast_as_stock(worker: Any) -> None:
    """Nothing is fenced there: waiting before a preemption would only cost steps, so P is 0 by default."""
    plan = with_(PRESSED, store={"kind": "none"}, blocks=60)
    waits = {"STALLPROOF_PATIENCE": "1"}
    stock, ours, slow = (
        worker.run(with_(plan, scheduler=s, options=o))["summary"]
        for s, o in (("stock", {}), ("stallproof", {}), ("stallproof", waits))
    )
    assert stock["preemptions"] > 10
    compared = ("virtual_s", "ttft_p95_s", "itl_p99_s", "scheduled_tokens", "preemptions", "steps")
    assert {k: ours[k] for k in compared} == {k: stock[k] for k in compared}
    assert slow["fired"]["Patience"] > 0, "the control: patience makes a difference here"
    assert slow["virtual_s"] != stock["virtual_s"]


@pytest.mark.engine
@pytest.mark.slow
@needs_engine
def test_a_loaded_request_does_not_wait_for_the_next_arrival(worker: Any) -> None:
    """20 s lie between arrivals; a load takes 0.02 s, "not yet" is said for as long as asked."""
    sparse = with_(PRESSED, work={"synthetic": 6, "rate": 0.05, "seed": 3}, store={"kind": "pd"})
    late = with_(sparse, store={"kind": "pd", "lookup": 3.0})
    for scheduler in ("stock", "stallproof"):
        now, then = (worker.run(with_(p, scheduler=scheduler))["summary"] for p in (sparse, late))
        assert now["loads"] == now["completed"] == 6
        assert now["ttft_p99_s"] < 0.1
        assert 3.0 < then["ttft_p50_s"] < then["ttft_p99_s"] < 4.5


@pytest.mark.engine
@pytest.mark.slow
@needs_engine
def test_growing_requests_on_a_kv_pool_strand_stock_and_not_ours() -> None:
    """The cascade of 0.28.0 without a script: short prompts, long answers, more than the pool holds."""
    from stallproof.simulate.spawn import Worker

    plan = with_(PRESSED, horizon=20)
    with Worker("0.28.0") as w:
        stock, ours = (w.run(with_(plan, scheduler=s))["summary"] for s in ("stock", "stallproof"))
    assert stock["stranded"] > 0
    assert stock["preemptions"] > 1000
    assert ours["stranded"] == 0


@pytest.mark.engine
@pytest.mark.slow
@needs_engine
def test_lost_loads_strand_stock_and_not_ours(worker: Any) -> None:
    plan = with_(PRESSED, store={"kind": "pd", "p_lost": 0.05}, options={"STALLPROOF_LOAD_DEADLINE_S": "5"})
    stock, ours = (worker.run(with_(plan, scheduler=s))["summary"] for s in ("stock", "stallproof"))
    assert stock["stranded"] > 0
    assert ours["stranded"] == 0
    from stallproof.simulate.metrics import ratios

    assert ratios(stock, ours) is None


@pytest.mark.engine
@pytest.mark.slow
@needs_engine
def test_cli_table_json_html_and_conforming_trace(tmp_path: Path) -> None:
    page, trace = tmp_path / "out.html", tmp_path / "t"
    run = cli(
        "--synthetic", "60", "--rate", "40", "--blocks", "70", "--max-model-len", "1024", "--store", "pd",
        "--vllm", "0.28.0", "--json", "--html", str(page), "--trace", str(trace),
    )  # fmt: skip
    assert run.returncode == Exit.OK, run.stderr
    report = json.loads(run.stdout)
    assert [r["scheduler"] for r in report["runs"]] == ["stock", "stallproof"]
    assert report["ratios"][0]["completed"] == 1.0
    text = page.read_text()
    assert "Content-Security-Policy" in text
    assert "http" not in text.split("<script>")[0].replace("http-equiv", "")
    replay = [sys.executable, "-m", "stallproof", "replay", f"{trace}.stallproof.jsonl"]
    done = subprocess.run(replay, capture_output=True, text=True)
    assert done.returncode == Exit.OK, done.stdout


def test_no_request_in_the_slice(tmp_path: Path) -> None:
    (tmp_path / "w.jsonl").write_text('{"timestamp":0,"input_length":5,"output_length":5,"hash_ids":[1]}\n')
    with pytest.raises(BadInput, match="no request"):
        Work(path=str(tmp_path / "w.jsonl"), start=10).jobs(100)
