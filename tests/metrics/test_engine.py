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
BARE = {"STALLPROOF_OFF": "Commit,OneOrder,NoInversion,RuleR", "STALLPROOF_STALL_ACT_AFTER_S": "0"}
VERSIONS = ("0.23.0", "0.28.0")


def free_port() -> str:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def probe(version: str, dumps: Path, steps: int = 150) -> dict[str, dict]:
    """All cases on one release, in one process: importing an engine takes seconds."""
    try:
        engine = engines.get(version)
    except StallproofError as exc:
        if os.environ.get("STALLPROOF_CI"):
            raise
        pytest.skip(f"{exc}".replace("\n", " "))
    cases = {
        "shadow": {
            "STALLPROOF_MODE": "shadow", "STALLPROOF_ON_STALL": "fail_oldest",
            "STALLPROOF_METRICS_PORT": free_port(), "STALLPROOF_METRICS_HOST": "127.0.0.1",
        },
        "control": {},
        "fail_oldest": BARE | {"STALLPROOF_ON_STALL": "fail_oldest"},
        "raise": BARE | {"STALLPROOF_ON_STALL": "raise"},
        "dump": BARE | {"STALLPROOF_ON_STALL": "dump", "STALLPROOF_DUMP_DIR": str(dumps)},
    }  # fmt: skip
    base = {"STALLPROOF_STRICT": "1", "STALLPROOF_STALL_WEDGE_S": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [str(engine.python), str(PROBE), str(WEDGE), "AsyncScheduler", str(steps)],
        input="".join(json.dumps({"name": n, "env": e}) + "\n" for n, e in cases.items()),
        env=engine.env(base), capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    found = [json.loads(x.removeprefix("PROBE ")) for x in done.stdout.splitlines() if x.startswith("PROBE ")]
    assert len(found) == len(cases), done.stderr[-3000:]
    for out in found:
        out["stalls"] = [value for line in out["log"] if (value := parse(line))]
    return {out["name"]: out for out in found}


@pytest.fixture(scope="module", params=VERSIONS)
def cases(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict:
    dumps = tmp_path_factory.mktemp("dumps")
    return probe(request.param, dumps) | {"dumps": dumps}


def test_shadow_mode_reports_the_wedge_that_stock_runs_into(cases: dict) -> None:
    out = cases["shadow"]
    assert set(out["ended"]) == {"W"}, "shadow mode changes nothing"
    first = out["stalls"][0]
    assert first["property"] == "NoWedge"
    assert {w["r"]: w["holds"] for w in first["waiters"]} == {"H": 0, "L": 21}
    assert first["free"] == 19
    # The harness counts a step as a second: the line comes at once, then after 10, 20 and 40 s.
    assert [x["seconds"] for x in out["stalls"]] == [2, 12, 32, 72]
    [line] = [x for x in out["metrics"].splitlines() if x.startswith("stallproof_stalled") and "wedge" in x]
    assert line.endswith(" 1.0")
    assert 'rule="Commit"' in out["metrics"], "it counts what it would have done"


def test_control_our_rules_leave_nothing_to_report(cases: dict) -> None:
    assert set(cases["control"]["ended"]) == {"H", "L", "W"}
    assert cases["control"]["stalls"] == []


def test_fail_oldest_ends_the_wedge_with_an_error_output(cases: dict) -> None:
    out = cases["fail_oldest"]
    assert out["ended"] == {"W": "length", "H": "error", "L": "length"}
    assert [x["event"] for x in out["stalls"]] == ["stall", "resumed"]
    assert not out["died"]


def test_raise_ends_the_engine_with_the_line(cases: dict) -> None:
    assert "StallError" in cases["raise"]["died"]
    assert "NoWedge" in cases["raise"]["died"]


def test_dump_leaves_the_stacks(cases: dict) -> None:
    first = cases["dump"]["stalls"][0]
    assert first["act"] == "dump"
    assert first["trace"].endswith("trace.jsonl"), "the recording in progress is named"
    [stacks] = cases["dumps"].glob("*.stacks.txt")
    assert "schedule" in stacks.read_text()
