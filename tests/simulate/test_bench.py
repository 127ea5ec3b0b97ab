"""`make bench-simulate`: its arguments, plan, cache and page, on two tiny workloads and without an engine."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stallproof import engines

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """An hour of small requests in the two formats that the quick plan reads."""
    folder = tmp_path / "traces"
    (folder / "mooncake").mkdir(parents=True)
    (folder / "azure").mkdir()
    (folder / "servegen" / "deepseek-r1").mkdir(parents=True)  # planned, never read here
    rows = [
        {"timestamp": 2000 * n, "input_length": 700 + n % 90, "output_length": 9, "hash_ids": [1, n + 2]}
        for n in range(1775)
    ]
    (folder / "mooncake" / "conversation_trace.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    lines = [f"2023-11-16 18:{n // 30:02}:{n % 30 * 2:02}.0000000,300,7\n" for n in range(1775)]
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(lines)
    (folder / "azure" / "AzureLLMInferenceTrace_conv.csv").write_text(text)
    return folder


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    spec = importlib.util.spec_from_file_location("bench_simulate", ROOT / "benchmarks" / "simulate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "DOCS", tmp_path)
    (tmp_path / "img").mkdir()
    return module


@pytest.fixture
def ran(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """No engine: the cases that would have run, and ours one per cent slower than stock."""
    cases = []

    def answer(case: dict[str, Any], tick: Any) -> dict[str, Any]:
        cases.append(case)
        slow = 1.01 if case["plan"]["scheduler"] == "stallproof" else 1.0
        keys = (
            "scheduled_tokens", "ttft_p50_s", "ttft_p95_s", "ttft_p99_s", "itl_mean_s", "itl_p50_s",
            "itl_p99_s", "longest_request_wait_s", "virtual_s", "goodput_rps",
        )  # fmt: skip
        counts = ("stranded", "preemptions", "recomputed_tokens", "evictions")
        summary = dict.fromkeys(keys, slow) | dict.fromkeys(counts, 0)
        summary |= {
            "requests": 5,
            "completed": 5,
            "wall_s": 0.1,
            "virtual_s": slow + case["plan"]["seed"] / 1e6,
        }
        return {"version": case["version"], "summary": summary}

    monkeypatch.setattr(bench, "run_case", answer)
    return cases


def args(traces: Path, tmp_path: Path, *more: str) -> list[str]:
    archive = tmp_path / "kept" / "results.jsonl.gz"
    return ["--traces", str(traces), "--out", str(tmp_path / "out"), "--archive", str(archive), *more]


def seeds(cases: list[dict[str, Any]]) -> Counter[int]:
    return Counter(c["plan"]["seed"] for c in cases)


def test_the_first_seeds_are_those_of_the_whole_plan(
    bench: ModuleType, ran: list[dict[str, Any]], traces: Path, tmp_path: Path
) -> None:
    more = ("--only", "pd", "--seeds", "4", "--minutes", "1")
    cells = [c for c in bench.CELLS if c.group == "pd"]
    assert bench.main(args(traces, tmp_path, *more, "--first", "2")) == 0
    assert seeds(ran) == dict.fromkeys(range(2), 2 * len(cells))
    page = (tmp_path / "simulate-results.md").read_text()
    assert "2 of 4" in page
    assert "end of the run: 1.00 % more" in page, "ours is slower here, and the page must say so"
    ran.clear()
    assert bench.main(args(traces, tmp_path, *more)) == 0
    assert seeds(ran) == dict.fromkeys((2, 3), 2 * len(cells)), "what has run does not run again"
    ran.clear()
    assert bench.main(args(traces, tmp_path, *more, "--no-run")) == 0
    assert not ran
    assert "4 of 4" in (tmp_path / "simulate-results.md").read_text()


def test_the_archive_makes_the_same_page(
    bench: ModuleType, ran: list[dict[str, Any]], traces: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    more = args(traces, tmp_path, "--only", "pd", "--seeds", "2", "--minutes", "1")
    assert bench.main(more) == 0
    page = (tmp_path / "simulate-results.md").read_text()
    shutil.rmtree(tmp_path / "out")
    ran.clear()
    assert bench.main(more) == 0
    assert not ran, "what is in the archive does not run again"
    assert (tmp_path / "simulate-results.md").read_text() == page
    archive = tmp_path / "kept" / "results.jsonl.gz"
    before = set(bench.archived(archive))
    other = args(traces, tmp_path, "--only", "lossy", "--seeds", "2", "--minutes", "1")
    assert bench.main(other) == 0
    assert before < set(bench.archived(archive)), "what another bench has kept stays"
    archive.write_bytes(archive.read_bytes()[:-20])
    bench.archived.cache_clear()
    assert bench.main(more) == 2
    assert "results.jsonl.gz: no archive of results" in capsys.readouterr().err


def test_every_cell_can_be_planned(bench: ModuleType, traces: Path, tmp_path: Path) -> None:
    a = bench.arguments(args(traces, tmp_path))
    assert len({c.label for c in bench.CELLS}) == len(bench.CELLS)
    for cell in bench.CELLS:
        plans = [bench.plan_of(cell, n, 3, s, a.traces, 60.0) for n in range(3) for s in bench.SCHEDULERS]
        # the whole hour is one slice, drawn anew by each seed
        assert len({bench.key(cell.version, p) for p in plans}) == len(plans)


def test_a_missing_trace_is_named(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["--traces", str(tmp_path), "--quick"]) == 2
    assert "remedy: --traces FOLDER" in capsys.readouterr().err


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.skipif(not engines.is_up("0.32.0"), reason="make engines brings up 0.32.0")
def test_the_quick_plan_runs(
    bench: ModuleType, traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(args(traces, tmp_path, "--quick")) == 0
    said = capsys.readouterr().out
    assert said.startswith("12 runs to do")
    assert said.count("2 of 2") == 3
    assert not (tmp_path / "simulate-results.md").exists(), "a quick plan writes no page"
