"""Every scenario on the real schedulers: stock breaks where the file says so, ours never.

One process per release and scheduler runs them all; the releases are those that CI installs.
``STALLPROOF_MATRIX="0.24.0 0.25.1"`` names others.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from stallproof import engines, scenario
from stallproof.cli.run import matches
from stallproof.harness.spawn import Job, run_jobs

HERE = Path(__file__).parent
ALL = scenario.load_all(HERE)
VERSIONS = tuple(os.environ.get("STALLPROOF_MATRIX", " ".join(engines.CI)).split())

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]


def runnable(version: str) -> list[scenario.Scenario]:
    return [s for s in ALL if not s.versions or version in s.versions]


@cache
def results(version: str, scheduler: str) -> dict[str, dict]:
    which = runnable(version)
    jobs = [Job(Path(s.path), scheduler) for s in which]
    return {s.id: r for s, r in zip(which, run_jobs(version, jobs), strict=True)}


CASES = [(s.id, v) for v in VERSIONS for s in runnable(v)]


@pytest.mark.parametrize(("sid", "version"), CASES)
def test_stock(sid: str, version: str) -> None:
    s = next(x for x in ALL if x.id == sid)
    got = results(version, "stock")[sid]
    want = scenario.expected(s.expect.stock, version)
    assert "error" not in got, got.get("traceback", got)
    assert matches(want, got["violated"]), f"expected {want}, got {got['violated'] or 'ok'}"


@pytest.mark.parametrize(("sid", "version"), CASES)
def test_ours(sid: str, version: str) -> None:
    s = next(x for x in ALL if x.id == sid)
    got = results(version, "stallproof")[sid]
    want = scenario.expected(s.expect.ours, version)
    assert "error" not in got, got.get("traceback", got)
    assert matches(want, got["violated"]), f"expected {want}, got {got['violated'] or 'ok'}"


@pytest.mark.parametrize("version", VERSIONS)
def test_runs_are_repeatable(version: str) -> None:
    jobs = [Job(HERE / "cascade-49674.toml"), Job(HERE / "cascade-49674.toml")]
    first, second = run_jobs(version, jobs)
    assert first == second
