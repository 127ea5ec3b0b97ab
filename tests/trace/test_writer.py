"""The ring: parts to be checked alone, one write per record, nothing raised into the engine, kill -9."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallproof.trace import reader
from stallproof.trace import schema as s
from stallproof.trace.checker import Checker, Options, check
from stallproof.trace.ledger import Ledger
from stallproof.trace.redact import leaks
from stallproof.trace.writer import Writer

from .toy import Toy

LAYERS = ("ledger", "policy")


def record(path, toy, calls=60, **kw):
    """Play ``toy`` into a ring at ``path``; returns the writer, closed."""
    writer = Writer(
        path,
        engine=toy.engine,
        config=toy.config,
        snapshot=toy.snapshot,
        source="harness",
        rules=toy.rules,
        clock=lambda: toy.ts,
        **kw,
    )
    toy.write = writer.write
    toy.play(calls=calls)
    writer.close({"NoInversion": 1})
    return writer


def parts(directory):
    return sorted(str(p) for p in Path(directory).iterdir())


def test_one_file(tmp_path):
    writer = record(tmp_path / "t.jsonl", Toy(seed=1))
    assert parts(tmp_path) == [str(tmp_path / "t.jsonl")]
    assert writer.dropped == 0
    verdict = check(parts(tmp_path), Options(layers=LAYERS))
    assert verdict.status == "conforms"
    assert verdict.ended
    last = [rec for _, _, rec in reader.records(tmp_path / "t.jsonl")][-1]
    assert isinstance(last, s.End)
    assert last.fired == {"NoInversion": 1}


@pytest.mark.parametrize("mode", ["GateLoads", "DeferFrees"])
@pytest.mark.parametrize("seed", range(6))
def test_every_part_can_be_checked_alone_and_all_as_one(tmp_path, mode, seed):
    record(tmp_path / "t.jsonl", Toy(seed=seed, mode=mode, lost=0.2), max_bytes=3000, max_parts=100)
    files = parts(tmp_path)
    assert len(files) >= 4
    for path in files:
        verdict = check([path], Options(layers=LAYERS))
        assert not verdict.violations, verdict.violations[0]
    random.Random(seed).shuffle(files)
    verdict = check(files, Options(layers=LAYERS))
    assert verdict.status == "conforms"
    assert not verdict.notes


def test_ring_is_bounded(tmp_path):
    record(tmp_path / "t.jsonl", Toy(seed=2), calls=400, max_bytes=4000, max_parts=3)
    files = parts(tmp_path)
    assert len(files) == 3
    assert all(Path(f).stat().st_size < 4000 + 3000 for f in files)
    verdict = check(files, Options(layers=LAYERS))
    assert verdict.status == "conforms"
    assert verdict.header.part > 0


def test_a_wrong_snapshot_is_found(tmp_path):
    toy = Toy(seed=3)
    real, seen = toy.snapshot, []

    def snapshot():
        snap = real()
        holders = [q for q in snap.requests if q.blocks]
        if seen and holders:
            holders[0].blocks = holders[0].blocks[:-1]
        seen.append(1)
        return snap

    toy.snapshot = snapshot
    record(tmp_path / "t.jsonl", toy, max_bytes=3000, max_parts=99)
    assert check(parts(tmp_path)).violations[0].rule == "Snapshot"


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), mode=st.sampled_from(["GateLoads", "DeferFrees"]), cut=st.integers(1, 200))
def test_mirror_and_ledger_agree_at_every_record(seed, mode, cut):
    """The snapshot the writer would take after any record is the state the checker has reached there."""
    from stallproof.trace.mirror import Mirror

    toy = Toy(seed=seed, mode=mode, lost=0.2)
    found: list = []
    ledger, mirror = Ledger(found.append), Mirror()
    head = toy.header()
    assert not ledger.header("x", 1, head)
    count = 0

    def write(rec):
        nonlocal count
        count += 1
        mirror.feed(rec)
        ledger.record(count, rec)
        if count % cut == 0:
            h = msgspec.structs.replace(head, part=ledger._next_part, state=mirror.fill(toy.snapshot()))
            assert ledger.header("x", count, h)
        assert not found, found[0]

    toy.write = write
    toy.play(calls=40)


def test_compressed_parts(tmp_path):
    record(tmp_path / "t.jsonl", Toy(seed=4), max_bytes=4000, max_parts=50, compress=True)
    files = parts(tmp_path)
    assert all(f.endswith(".jsonl.zst") for f in files)
    assert check(files, Options(layers=LAYERS)).status == "conforms"


def test_failing_writes_never_reach_the_engine(tmp_path):
    """A disk that fails for a while costs records, not the engine; what follows restarts from a snapshot."""
    toy = Toy(seed=5)
    writer = Writer(
        tmp_path / "t.jsonl",
        engine=toy.engine,
        config=toy.config,
        snapshot=toy.snapshot,
        source="harness",
        rules=toy.rules,
        max_bytes=10**6,
    )
    count = 0

    def write(rec):
        nonlocal count
        count += 1
        if count == 30:
            os.close(writer._fd)  # the next write fails
        if 30 < count < 60:
            writer._retry = 2  # and so does every attempt to open another part
        return writer.write(rec)

    toy.write = write
    toy.play(calls=80)
    writer.close()
    assert writer.dropped >= 30
    files = parts(tmp_path)
    assert len(files) == 2
    verdict = check(files, Options(layers=LAYERS))
    assert verdict.status == "conforms"
    assert f"{writer.dropped} records are missing" in verdict.notes[-1]


def test_short_write_leaves_no_half_line(tmp_path, monkeypatch):
    toy = Toy(seed=6)
    writer = Writer(
        tmp_path / "t.jsonl", engine=toy.engine, config=toy.config, snapshot=toy.snapshot, source="harness"
    )
    real = os.write
    toy.write = writer.write
    for _ in range(3):
        toy.add()
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[: len(data) // 2]))
    toy.add()
    monkeypatch.undo()
    toy.add()
    toy.add()
    writer.close()
    for f in parts(tmp_path):
        assert all(line.endswith(b"}\n") for line in Path(f).read_bytes().splitlines(keepends=True))
    assert check(parts(tmp_path)).status == "conforms"


def test_hashed_ids_say_nothing_and_check_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("STALLPROOF_TRACE_HASH_KEY", "secret")
    record(tmp_path / "h.jsonl", Toy(seed=7, lost=0.2), max_bytes=3000, max_parts=99)
    hashed = [rec for _, _, rec in reader.records(*parts(tmp_path))]
    assert leaks(hashed) == []
    assert check(parts(tmp_path), Options(layers=LAYERS)).status == "conforms"
    monkeypatch.delenv("STALLPROOF_TRACE_HASH_KEY")
    (tmp_path / "plain").mkdir()
    record(tmp_path / "plain" / "p.jsonl", Toy(seed=7, lost=0.2), max_bytes=3000, max_parts=99)
    plain = [rec for _, _, rec in reader.records(*parts(tmp_path / "plain"))]
    assert leaks(plain), "the check can fail"


CHILD = """
import sys
from tests.trace.toy import Toy
from tests.trace.test_writer import record
toy = Toy(seed=int(sys.argv[2]), pool=64, seqs=32)
record(sys.argv[1], toy, calls=10**7, max_bytes=int(sys.argv[3]), max_parts=4)
"""


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 20_000])
def test_kill_loses_at_most_one_record(tmp_path, size):
    """Many kills at random moments: every file left behind is readable, and the ring conforms."""
    kills = int(os.environ.get("STALLPROOF_KILLS", "6"))
    rng = random.Random(size)
    for i in range(kills):
        directory = tmp_path / str(i)
        directory.mkdir()
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(directory / "t.jsonl"), str(i), str(size)])
        try:
            while not any(directory.iterdir()):
                time.sleep(0.01)
            time.sleep(rng.uniform(0.0, 0.25))
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
        files = [f for f in parts(directory) if Path(f).stat().st_size]
        for f in files:
            rows = Path(f).read_bytes().split(b"\n")
            assert all(row.endswith(b"}") for row in rows[:-1]), "only the last line may be cut"
        whole = [f for f in files if Path(f).read_bytes().count(b"\n")]
        if whole:
            checker = check(whole, Options(layers=LAYERS))
            assert not checker.violations, checker.violations[0]


def test_nothing_is_written_after_close(tmp_path):
    toy = Toy(seed=8)
    writer = record(tmp_path / "t.jsonl", toy)
    size = (tmp_path / "t.jsonl").stat().st_size
    assert writer.write(s.Outside()) is False
    writer.close()
    assert (tmp_path / "t.jsonl").stat().st_size == size


def test_opening_fails_loudly(tmp_path):
    (tmp_path / "f").write_text("x")
    toy = Toy()
    with pytest.raises(OSError):
        Writer(tmp_path / "f" / "t.jsonl", engine=toy.engine, config=toy.config, snapshot=toy.snapshot)


def test_checker_memory_is_bounded_by_what_lives():
    toy = Toy(seed=9, pool=16)
    checker = Checker(Options(layers=("ledger", "progress", "policy")))
    checker.ledger.header("x", 1, toy.header())
    sizes = []
    n = 0

    def write(rec):
        nonlocal n
        n += 1
        checker.batch(reader.Batch("x", n, [rec], 0))
        led, p = checker.ledger, checker.progress
        live = len(toy.reqs) + len(toy.zombies)
        assert len(led.reqs) <= live + 1
        sizes.append(len(led.touched) + len(p.seen) + len(p.starving) + len(led.in_flight) - 3 * live)

    toy.write = write
    toy.play(calls=600, arrivals=0.3)
    assert max(sizes) < 64
