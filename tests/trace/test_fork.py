"""The fork of examples/fork is caught by name; the scheduler it is forked from is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FORK = Path(__file__).parents[2] / "examples" / "fork"
pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]


def run(*args: str) -> tuple[int, dict]:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "stallproof",
            "run",
            str(FORK / "reuse.toml"),
            "--vllm",
            "0.32.0",
            "--json",
            *args,
        ],
        env=os.environ | {"PYTHONPATH": str(FORK)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def test_stock_conforms():
    code, result = run()
    assert code == 0, result
    assert not result["violated"]


def test_fork_is_caught():
    code, result = run("--scheduler", "forked.ForkedScheduler")
    assert code == 1
    assert "InFlightSafe" in result["violated"]
