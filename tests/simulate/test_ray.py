"""`simulate --ray` and `hunt --ray` from the command line to the engine, on a cluster of this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stallproof import engines
from tests.test_spread import cluster

__all__ = ["cluster"]
pytestmark = [
    pytest.mark.long,
    pytest.mark.engine,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not engines.is_up("0.28.0"), reason="make engines brings up 0.28.0"),
]
#: what the machine adds to a result
MACHINE = ("wall_s", "cpu_s", "peak_rss_mb", "seconds", "cpu", "elapsed")


def stallproof(*args: str) -> tuple[int, Any]:
    run = subprocess.run(
        [sys.executable, "-m", "stallproof", *args, "--json"], capture_output=True, text=True, timeout=600
    )
    assert run.stdout.startswith("{"), run.stderr[-2000:]
    return run.returncode, without(json.loads(run.stdout))


def without(value: Any) -> Any:
    """``value`` without what differs from run to run."""
    if isinstance(value, dict):
        return {k: without(v) for k, v in value.items() if k not in MACHINE}
    return [without(v) for v in value] if isinstance(value, list) else value


def test_simulate_gives_the_same_on_a_cluster(cluster: str) -> None:
    args = ("simulate", "--synthetic", "80", "--rate", "12", "--blocks", "70", "--max-model-len", "1024",
            "--max-num-seqs", "16", "--store", "pd", "--seed", "3", "--vllm", "0.28.0")  # fmt: skip
    here = stallproof(*args, "--jobs", "2")
    assert stallproof(*args, "--ray", cluster) == here
    assert here[0] == 0
    other = stallproof(*args[:-1], "0.28.0", "--share", "0.5", "--ray", cluster)
    assert other != here, "the comparison can fail"


def test_hunt_finds_the_same_on_a_cluster(cluster: str, tmp_path: Path) -> None:
    """One process: with several, which of them is first to find a thing is a matter of time."""

    def hunt(name: str, *where: str) -> tuple[int, Any, dict[str, str]]:
        folder = tmp_path / name
        args = f"--vllm 0.28.0 --seed 1 --cases 12 --minutes 60 --corpus {folder}".split()
        code, said = stallproof("hunt", *args, *where)
        scenarios = {p.parent.name: p.read_text() for p in folder.glob("findings/*/scenario.toml")}
        said.pop("folder", None)
        return code, said, scenarios

    here, there = hunt("here"), hunt("there", "--ray", cluster)
    assert here[2], "the stock scheduler of 0.28.0 has findings"
    assert there == here
