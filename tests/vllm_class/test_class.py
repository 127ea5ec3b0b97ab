"""The guarded classes on live schedulers of several releases (see ``cases``), one process per release."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from stallproof import engines

HERE = Path(__file__).resolve().parent
NAMES = re.findall(r"^def (case_\w+)\(", (HERE / "cases.py").read_text(), re.M)
VERSIONS = os.environ.get("STALLPROOF_TEST_VLLM", "0.23.0 0.28.0 0.32.0").split()

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def run_cases(version: str, module: str, extra: dict[str, str]) -> dict[str, str]:
    """Case -> its traceback, empty if it passed; all cases of ``module`` in one process of the engine."""
    engine = engines.get(version)
    read, write = os.pipe()
    process = subprocess.Popen(
        [str(engine.python), str(HERE / "runner.py"), str(write)],
        env=engine.env({"STALLPROOF_CASES": module, **extra}),
        pass_fds=(write,),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    os.close(write)
    found = {}
    with os.fdopen(read) as lines:
        for line in lines:
            answer = json.loads(line)
            found[answer["case"]] = answer["error"]
    noise, _ = process.communicate()
    if process.returncode != 0:
        found[""] = f"vLLM {version} ended with {process.returncode}:\n{noise[-3000:]}"
    return found


@functools.cache
def results(version: str) -> dict[str, str]:
    return run_cases(version, "cases", {})


@pytest.fixture
def engine_results(request: pytest.FixtureRequest) -> dict[str, str]:
    if not engines.is_up(request.param):
        pytest.fail(f"vLLM {request.param} is not installed; run: make engines VLLM={request.param}")
    return results(request.param)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("engine_results", VERSIONS, indirect=True)
def test_case(engine_results: dict[str, str], name: str) -> None:
    assert name in engine_results, engine_results.get("", "the case did not run")
    assert not engine_results[name], engine_results[name]
