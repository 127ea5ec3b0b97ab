"""A generated test fails where the fault is, for its reason, and passes without the trigger."""

from __future__ import annotations

import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from stallproof import engines, scenario
from stallproof.hunt import upstream_test
from stallproof.scenario import Scenario

ROOT = Path(__file__).parents[2]


def load(name: str) -> Scenario:
    return scenario.load(ROOT / "tests" / "scenarios" / f"{name}.toml")


def test_its_name_and_its_head() -> None:
    text = upstream_test.text(load("lost-load-35943"), "BoundedWait")
    assert text.startswith('# SPDX-License-Identifier: Apache-2.0\n"""A load that never answers')
    assert "\n\npytestmark = pytest.mark.cpu_test\n\n\ndef test_lost_load_35943():\n" in text
    assert "def main" not in text
    assert "os.environ.setdefault" not in text, "the suite has settings of its own"


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_in_the_engines_own_python(tmp_path: Path) -> None:
    control = load("lost-load-35943")
    control.id = "answered-load"
    assert control.request[0].load is not None
    control.request[0].load.outcome = "ok"
    for s, prop in (
        (load("lost-load-35943"), "BoundedWait"), (load("starvation-n1"), "NoStarvation"),
        (load("failed-loads-own-finding"), "NoWedge"), (control, "BoundedWait"),
    ):  # fmt: skip
        upstream_test.write(tmp_path / f"test_{upstream_test.name(s)}.py", s, prop, version="0.32.0")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    cpu_test: runs on CPU\n")
    engine = engines.get("0.32.0")
    report = tmp_path / "report.xml"
    env = engine.env()
    env["PYTHONPATH"] = str(engine.path[0])
    done = subprocess.run(
        [str(engine.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"],
        cwd=tmp_path, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert report.exists(), done.stdout[-2000:] + done.stderr[-2000:]
    got = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        failure = case.find("failure")
        got[case.get("name")] = "passed" if failure is None else str(failure.get("message"))
    assert set(got) == {
        "test_lost_load_35943", "test_starvation_n1", "test_failed_loads_own_finding", "test_answered_load",
    }, done.stdout[-2000:]  # fmt: skip
    assert got["test_answered_load"] == "passed"
    assert "A waits for an answer that never comes" in got["test_lost_load_35943"]
    assert "R could run and got nothing in 64 calls" in got["test_starvation_n1"]
    assert "nothing in flight or pending, nothing is done" in got["test_failed_loads_own_finding"]
