"""Hunt on real schedulers: with a fixed seed stock breaks within few cases, ours in none of them."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from stallproof import scenario
from stallproof.errors import Exit
from stallproof.hunt import finding
from stallproof.hunt.causes import causes

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

CASES = 12


def hunt(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stallproof", "hunt", *args], capture_output=True, text=True, timeout=500
    )


@cache
def stock(folder: str) -> dict:
    done = hunt("--vllm", "0.28.0", "--seed", "1", "--cases", str(CASES), "--corpus", folder, "--json")
    assert done.returncode == Exit.FINDING, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hunt") / "corpus"


def test_stock_breaks_and_the_findings_are_whole(folder: Path) -> None:
    got = stock(str(folder))
    assert got["cases"] == CASES
    assert len(got["findings"]) >= 3
    assert len({f["id"] for f in got["findings"]}) == len(got["findings"])
    for f in got["findings"]:
        here = folder / "findings" / f["id"]
        found, s = finding.read(here)
        assert found.property in found.violated
        assert s.expect.stock == {"0.28.0": found.property}
        text = (here / "explanation.txt").read_text()
        assert "IT DOES NOT SHOW" not in text
        assert "Run again in a process of its own: it shows." in text
        for name in ("trace.jsonl", "reproducer.py"):
            assert (here / name).exists() or f"no {name}" in text
    report = subprocess.run(
        [sys.executable, "-m", "stallproof", "report", str(here / "trace.jsonl"), "-o", str(here / "x.html")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert report.returncode == 0, report.stderr


#: scenarios that once raised a false alarm, or that a rule of ours once missed
QUIET = scenario.load_all(Path(__file__).parent / "quiet")


def test_ours_breaks_in_none_of_the_findings(folder: Path) -> None:
    """But for those that name a listed limit of ours (docs/limits.md)."""
    stock(str(folder))
    rows = [finding.read(p) for p in sorted((folder / "findings").iterdir())]
    answers = causes("0.28.0", "stallproof", [s for _, s in rows] + QUIET)
    broken = [
        (f.property, a.causes)
        for (f, s), a in zip(rows, answers[: len(rows)], strict=True)
        if a.causes and not limit(s)
    ]
    assert broken == []
    assert {s.id: a.causes for s, a in zip(QUIET, answers[len(rows) :], strict=True) if a.causes} == {}


def test_stock_breaks_again_and_raises_no_false_alarm(folder: Path) -> None:
    stock(str(folder))
    rows = [finding.read(p) for p in sorted((folder / "findings").iterdir())]
    answers = causes("0.28.0", "stock", [s for _, s in rows] + QUIET)
    assert all(f.property in a.causes for (f, _), a in zip(rows, answers, strict=False))
    for s, a in zip(QUIET, answers[len(rows) :], strict=True):
        want = scenario.expected(s.expect.stock, "0.28.0")
        assert (want in a.causes) if want != "ok" else not a.causes, (s.id, a.causes)


def limit(s: scenario.Scenario) -> bool:
    """Failed loads named by blocks need one KV group: a limit we list."""
    return bool(s.engine.groups)


def test_a_hunt_goes_on_where_it_was(folder: Path) -> None:
    before = stock(str(folder))
    done = hunt("--vllm", "0.28.0", "--seed", "1", "--cases", "5", "--corpus", str(folder), "--json")
    after = json.loads(done.stdout)
    assert after["cases"] == before["cases"] + 5
    assert {f["id"] for f in before["findings"]} <= {f["id"] for f in after["findings"]}


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    for args, code, word in (
        (("--vllm", "0.1.0"), Exit.UNSUPPORTED, "0.1.0"),
        (("--scheduler-cls", "nonsense"), Exit.BAD_INPUT, "nonsense"),
        (("--scheduler-cls", "no.such.Class", "--cases", "1"), Exit.BAD_INPUT, "no"),
        (("--bisect", str(tmp_path)), Exit.BAD_INPUT, "finding"),
    ):
        done = hunt(*args, "--corpus", str(tmp_path / "c"))
        assert done.returncode == code, done.stderr
        assert word in done.stderr
        assert "Traceback" not in done.stderr
