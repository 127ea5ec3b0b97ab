"""Random workloads on real schedulers, every call checked: stock keeps the contract, ours keeps the promise.

``STALLPROOF_LOCKSTEP=1000`` runs so many workloads per release and scheduler (default 40);
``STALLPROOF_MATRIX`` names other releases. What was exercised is counted: zero is a failure.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallproof import engines
from stallproof.harness.spawn import Job, run_jobs
from stallproof.trace import reader
from stallproof.trace.checker import Options, Verdict, check
from stallproof.trace.fields import event_types

from .workloads import scenario, toml

COUNT = int(os.environ.get("STALLPROOF_LOCKSTEP", "40"))
FIRST = int(os.environ.get("STALLPROOF_LOCKSTEP_SEED", "0"))
VERSIONS = tuple(os.environ.get("STALLPROOF_MATRIX", " ".join(engines.CI)).split())

#: what every engine must keep, whatever its policy (the clauses of the engine contract)
CONTRACT = {
    "Conservation", "OneOwner", "RefCount", "NoDoubleFree", "StepOrder", "Tokens", "Queues", "Requests",
    "Limits", "PrefixValid", "Snapshot", "End",
}  # fmt: skip
#: event kind -> how often it has to occur on a stock scheduler, in 40 workloads, for the run to count
STOCK_MINIMUM = {
    "add": 200, "admit": 200, "alloc": 500, "free": 200, "finish": 200, "load": 40, "start": 40, "recv": 20,
    "promote": 20, "refuse": 100, "preempt": 5, "prune": 10, "share": 5, "store": 5, "stored": 5,
    "not_yet": 20, "pause": 2, "reset": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("lockstep")


@cache
def runs(folder: Path, version: str, scheduler: str) -> list[tuple[str, Verdict, dict]]:
    """Workload, verdict of all layers, and the harness's own result."""
    place = folder / f"{version}-{scheduler}"
    place.mkdir()
    jobs = []
    for seed in range(FIRST, FIRST + COUNT):
        path = place / f"w{seed}.toml"
        path.write_text(toml(scenario(seed)))
        jobs.append(Job(path, scheduler, place / f"w{seed}.jsonl"))
    out = []
    for job, result in zip(jobs, run_jobs(version, jobs, timeout=3000), strict=True):
        assert "error" not in result, result
        out.append((job.scenario.stem, check([str(job.trace)], Options(), history=False), result))
    return out


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("version", VERSIONS)
def test_stock_keeps_the_contract(folder, version):
    bad = [
        (name, v.violations[0]) for name, v, _ in runs(folder, version, "stock")
        if v.violations and v.violations[0].rule in CONTRACT
    ]  # fmt: skip
    assert not bad, bad[0]


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("version", VERSIONS)
def test_ours_keeps_the_promise(folder, version):
    bad = [(name, v.violations[0]) for name, v, _ in runs(folder, version, "stallproof") if v.violations]
    assert not bad, f"{len(bad)} of {COUNT}: {bad[0]}"


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("version", VERSIONS)
def test_enough_was_exercised(folder, version):
    """A run in which nothing happened proves nothing."""
    seen: Counter[str] = Counter()
    for _, _, result in runs(folder, version, "stock"):
        seen.update(result["events"])
    short = {k: (seen[k], n) for k, n in STOCK_MINIMUM.items() if seen[k] * 40 < n * COUNT}
    assert not short, short
    assert set(STOCK_MINIMUM) <= set(event_types())


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("version", VERSIONS)
def test_recorder_saw_everything(folder, version):
    """Block tables are compared with the engine's own after every call; no call left a ``blind`` note."""
    runs(folder, version, "stock")
    for path in sorted((folder / f"{version}-stock").glob("*.jsonl")):
        for _, line, rec in reader.records(path):
            assert getattr(rec, "kind", "") != "blind", f"{path.name}:{line}: {rec.text}"


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_workloads_are_scenarios(seed, tmp_path_factory):
    """Whatever the generator makes is a valid scenario file."""
    from stallproof.scenario import load

    path = tmp_path_factory.getbasetemp() / "generated.toml"
    path.write_text(toml(scenario(seed)))
    assert load(path).request
