"""TLC and the checker come to the same verdict at the same record, on real traces and on altered ones."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from stallproof.check.second import OUTSIDE, SHARED, sample, second
from stallproof.trace.checker import Checker, Options
from stallproof.trace.mutate import load, mutants
from stallproof.trace.reader import Batch

from .toy import Toy, trace

FIXTURES = Path(__file__).parents[1] / "fixtures" / "traces"
REAL = sorted(FIXTURES.glob("*.jsonl"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("path", REAL, ids=lambda p: p.stem)
def test_real_traces(path):
    got = second(load(str(path)), 300)
    assert got.agree
    assert got.rule == ""
    assert got.events > 50


@pytest.mark.parametrize("mode", ["GateLoads", "DeferFrees"])
def test_altered_traces(mode):
    """The checker rejects these; TLC rejects them too, by the same name, at the same record."""
    records = trace(Toy(seed=1, mode=mode, lost=0.3), calls=20)
    assert second(records, 500).agree
    found = list(mutants(records, 3))
    random.Random(mode).shuffle(found)
    seen = set()
    for m in found:
        fresh = [m.records[0], *(msgspec.structs.replace(x, n=i) for i, x in enumerate(m.records[1:], 1))]
        checker = Checker(Options(layers=("ledger",)))
        checker.run([Batch("x", 1, fresh, 0)])
        v = checker.out.violations
        rule = v[0].rule if v else ""
        if rule not in SHARED or v[0].field in OUTSIDE or (rule, m.field) in seen:
            continue
        seen.add((rule, m.field))
        got = second(fresh, 500)
        assert got.agree, (m.field, m.kind, got)
        if len(seen) == 10:
            break
    assert len({rule for rule, _ in seen}) >= 4


def test_a_part_with_a_snapshot():
    """A sample may begin anywhere: the snapshot becomes its first events."""
    toy = Toy(seed=3, mode="GateLoads")
    toy.play(calls=30, drain=False, max_calls=60)
    toy.records.clear()
    head = toy.header()
    from stallproof.trace.mirror import Mirror

    assert isinstance(Mirror().fill(head.state), type(head.state))
    assert sample([head]).events


def test_command_line():
    done = subprocess.run(
        [sys.executable, "-m", "stallproof", "replay", "--with-tlc", "150", str(REAL[1])],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "as the checker says" in done.stdout
