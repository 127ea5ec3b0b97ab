"""The stall watch and the metrics on the real scheduler of an engine: a wedge is reported, and ended."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from stallproof import engines
from stallproof.core.stall_watch import parse
from stallproof.errors import StallproofError

pytestmark = [pytest.mark.engine, pytest.mark.slow]
WEDGE = Path(__file__).parent.parent / "scenarios" / "wedge-57841.toml"
PROBE = Path(__file__).with_name("engine_probe.py")
#: the rules whose absence brings the wedge of vLLM #57841 back
BARE = "Commit,OneOrder,NoInversion,RuleR"


def probe(version: str, steps: int = 150, **env: str) -> dict:
    try:
        engine = engines.get(version)
    except StallproofError as exc:
        if os.environ.get("STALLPROOF_CI"):
            raise
        pytest.skip(f"{exc}".replace("\n", " "))
    base = {"STALLPROOF_STRICT": "1", "STALLPROOF_STALL_WEDGE_S": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [str(engine.python), str(PROBE), str(WEDGE), "AsyncScheduler", str(steps)],
        env=engine.env(base | env), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    found = [line for line in done.stdout.splitlines() if line.startswith("PROBE ")]
    assert found, done.stderr[-3000:]
    out = json.loads(found[0].removeprefix("PROBE "))
    out["stalls"] = [value for line in out["log"] if (value := parse(line))]
    return out


@pytest.mark.parametrize("version", ["0.23.0", "0.28.0"])
def test_shadow_mode_reports_the_wedge_that_stock_runs_into(version: str) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    out = probe(
        version,
        STALLPROOF_MODE="shadow",
        STALLPROOF_ON_STALL="fail_oldest",
        STALLPROOF_METRICS_PORT=str(port),
        STALLPROOF_METRICS_HOST="127.0.0.1",
    )
    assert set(out["ended"]) == {"W"}, "shadow mode changes nothing"
    first = out["stalls"][0]
    assert first["property"] == "NoWedge"
    assert {w["r"]: w["holds"] for w in first["waiters"]} == {"H": 0, "L": 21}
    assert first["free"] == 19
    assert len(out["stalls"]) == 1, "one line, then silence for the back-off"
    assert 'stallproof_stalled{engine="0",kind="wedge"' in out["metrics"].replace("} 0.0", "")
    [line] = [x for x in out["metrics"].splitlines() if x.startswith("stallproof_stalled") and "wedge" in x]
    assert line.endswith(" 1.0")
    assert 'rule="Commit"' in out["metrics"], "it counts what it would have done"


def test_control_our_rules_leave_nothing_to_report() -> None:
    out = probe("0.23.0")
    assert set(out["ended"]) == {"H", "L", "W"}
    assert out["stalls"] == []


def test_fail_oldest_ends_the_wedge_with_an_error_output() -> None:
    out = probe(
        "0.23.0", STALLPROOF_OFF=BARE, STALLPROOF_ON_STALL="fail_oldest", STALLPROOF_STALL_ACT_AFTER_S="0"
    )
    assert out["ended"] == {"W": "length", "H": "error", "L": "length"}
    assert [x["event"] for x in out["stalls"]] == ["stall", "resumed"]
    assert not out["died"]


def test_raise_ends_the_engine_with_the_line() -> None:
    out = probe("0.23.0", STALLPROOF_OFF=BARE, STALLPROOF_ON_STALL="raise", STALLPROOF_STALL_ACT_AFTER_S="0")
    assert "StallError" in out["died"]
    assert "NoWedge" in out["died"]


def test_dump_leaves_the_stacks(tmp_path: Path) -> None:
    probe(
        "0.23.0", STALLPROOF_OFF=BARE, STALLPROOF_ON_STALL="dump", STALLPROOF_STALL_ACT_AFTER_S="0",
        STALLPROOF_DUMP_DIR=str(tmp_path),
    )  # fmt: skip
    [stacks] = tmp_path.glob("*.stacks.txt")
    assert "schedule" in stacks.read_text()
