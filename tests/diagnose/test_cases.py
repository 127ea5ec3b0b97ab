"""The published cases and our own: verdicts, exit codes, and what a report must contain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stallproof.diagnose import report as reports
from stallproof.diagnose import run
from stallproof.diagnose.confusion import judge, table

LOGS = Path(__file__).parents[1] / "fixtures" / "logs"
INDEXES = sorted(LOGS.glob("*/index.json"))
CASES = [(i.parent, c) for i in INDEXES for c in json.loads(i.read_text())]


@pytest.mark.parametrize(("folder", "case"), CASES, ids=[f"{f.name}/{c['file']}" for f, c in CASES])
def test_case(folder: Path, case: dict) -> None:
    report = run.diagnose([str(folder / f) for f in case.get("files", [case["file"]])])
    code = int(run.exit_code(report))
    assert code in case["exit_ok"], (report.verdict, code)
    stretches = {i.verdict for e in report.engines for i in e.intervals}
    if case["verdict"] == "stalled":
        # what one snapshot cannot prove stays undecided, and the index allows it
        assert report.verdict == "stalled" or (report.verdict == "cannot tell" and 2 in case["exit_ok"])
    else:
        assert report.verdict != "stalled"
        assert case["verdict"] in stretches
    if "mechanism" in case:
        assert case["mechanism"] in {f.mechanism for e in report.engines for f in e.findings}
    if "onset" in case:
        finding = next(f for e in report.engines for f in e.findings)
        lo, hi = (reports.show(t) for t in finding.onset)
        assert lo <= case["onset"] <= hi


@pytest.mark.parametrize(("folder", "case"), CASES, ids=[f"{f.name}/{c['file']}" for f, c in CASES])
def test_every_finding_is_backed(folder: Path, case: dict) -> None:
    """Each finding quotes lines that exist, names its layer and says what to do."""
    paths = [folder / f for f in case.get("files", [case["file"]])]
    report = run.diagnose([str(p) for p in paths])
    data = reports.as_json(report, 0)
    for engine in data["engines"]:
        for f in engine["findings"]:
            assert f["layer"] in ("client", "router", "transport", "scheduler", "worker or device")
            assert f["do_now"]
            assert f["prevented_by_stallproof"]["why"]
            assert f["evidence"]
            for e in f["evidence"]:
                assert e["line"] >= 1
                assert e["quote"] or e["tier"] == "A"
        if engine["verdict"] == "cannot tell":
            assert engine["cannot_tell"]["missing"]
            assert engine["cannot_tell"]["command"]
    assert reports.as_text(report)
    assert reports.as_text(report, verbose=True)


def test_confusion_table() -> None:
    rows = [r for i in INDEXES for r in judge(i)]
    assert all(r["exit_ok"] for r in rows)
    false_alarms = [
        r for r in rows if r["expected"] in ("progressing", "idle or paused") and r["got"] == "stalled"
    ]
    assert not false_alarms
    assert any(r["naive"] == "stalled" for r in rows if r["expected"] != "stalled"), (
        "the naive rule has false alarms"
    )
    assert table(rows)[-1].startswith("stalls found")
