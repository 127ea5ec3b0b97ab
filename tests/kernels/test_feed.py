"""From trace records to plans, and recorded traces carried out on a device that is as late as it may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")

from stallproof.kernels.feed import Feed
from stallproof.kernels.tags import LOADING, OWNED, tag
from stallproof.trace import schema as T

TRACES = Path(__file__).parent.parent / "fixtures" / "traces"


def feed(*records: Any, cached: Any = None) -> list[Any]:
    f = Feed(16, cached=cached)
    return [plan for r in records if (plan := f.record(r)) is not None]


def sched(step: int, *ev: Any, run: tuple[str, ...] = ()) -> T.Sched:
    return T.Sched(step=step, ev=list(ev), tok=dict.fromkeys(run, 1))


def test_one_plan_per_call_with_everything_in_between() -> None:
    plans = feed(
        sched(1, T.Alloc("a", [1, 2]), run=("a",)),
        T.Outside(ev=[T.Free("a", [1, 2])]),
        T.Update(step=1, ev=[]),
        sched(2, T.Alloc("b", [2]), run=("b",)),
    )
    assert [p.step for p in plans] == [1, 2]
    assert [p.processed for p in plans] == [0, 1]
    assert plans[1].expect == {2: tag(2, OWNED)}


def test_a_load_is_stamped_at_its_start_not_at_its_admission() -> None:
    admit, wait, start, end = feed(
        sched(1, T.Alloc("a", [3]), T.Load("a", 1, [3], "async", 16)),
        sched(2),
        sched(3, T.Start("a", 1)),
        sched(4, T.Recv("a", 1), run=("a",)),
    )
    assert not admit.now
    assert not admit.stamps
    assert not wait.now
    assert [(j.kind, j.job, j.entries[0].tag) for j in start.now] == [("start", "a#1", tag(2, LOADING))]
    assert [j.kind for j in end.now] == ["finish"]
    assert end.expect == {3: tag(2, LOADING)}


def test_jobs_keep_their_place_among_processed_steps() -> None:
    *_, last = feed(
        sched(1, T.Alloc("a", [3]), T.Load("a", 1, [3], "async", 16)),
        T.Update(step=1, ev=[]),
        sched(2),
        T.Outside(ev=[T.Start("a", 1)]),
        T.Update(step=2, ev=[T.Recv("a", 1)]),
        sched(3),
    )
    assert [(j.kind, j.after) for j in last.now] == [("start", 1), ("finish", 2)]
    assert last.processed == 2


def test_a_synchronous_load_ends_with_its_step() -> None:
    first, second = feed(
        sched(1, T.Alloc("a", [3]), T.Load("a", 1, [3], "sync", 16), T.Start("a", 1), run=("a",)),
        sched(2, T.Free("a", [3])),
    )
    assert [j.kind for j in first.now] == ["start"]
    assert first.expect == {3: tag(2, LOADING)}
    assert not second.now, "freed after its step: nobody writes any more"


@pytest.mark.parametrize(
    ("cached", "want"),
    [(lambda b: False, [1, 2]), (lambda b: b == 1, [2]), (None, [])],
    ids=["unreachable", "still in the prefix cache", "check only"],
)
def test_poison_takes_what_nothing_can_reach(cached: Any, want: list[int]) -> None:
    plans = feed(
        sched(1, T.Alloc("a", [1, 2]), run=("a",)),
        sched(2, T.Free("a", [1, 2])),
        sched(3),
        cached=cached,
    )
    assert [list(p.fill) for p in plans[1:]] == [want, []]


def test_poison_spares_loads_and_readers() -> None:
    plans = feed(
        sched(1, T.Alloc("a", [1]), T.Load("a", 1, [1], "async", 16), T.Start("a", 1)),
        sched(2, T.Alloc("b", [2]), T.Load("b", 1, [2], "sync", 16), T.Start("b", 1), run=("b",)),
        sched(3, T.Alloc("c", [3]), run=("c",)),
        T.Outside(ev=[T.Store("s", "c", [3]), T.Free("c", [3])]),
        sched(4),
        cached=lambda b: False,
    )
    assert [list(p.fill) for p in plans] == [[], [], [3], []]


def test_memory_is_bounded_by_live_requests_and_blocks() -> None:
    f = Feed(16)
    for step in range(1, 500):
        r = f"r{step}"
        f.record(sched(step, T.Alloc(r, [1]), T.Load(r, 1, [1], "async", 16), T.Start(r, 1)))
        f.record(T.Update(step=step, ev=[T.Recv(r, 1), T.Free(r, [1])]))
    assert len(f.ledger._steps) <= 65
    assert not f._loads
    assert not f._started
    assert not f.ledger._held


def late(path: Path) -> list[Any]:
    """All reports of a recorded trace on a device that runs a step when its output is processed."""
    from stallproof.kernels.fences import StepFences
    from stallproof.kernels.sanitizer import Sanitizer
    from stallproof.kernels.simulated import SimulatedDevice

    records = [T.decoder.decode(line) for line in path.read_bytes().splitlines()]
    blocks = records[0].config.pool + 1
    f, device = Feed(blocks), SimulatedDevice(lambda n: 0)
    sanitizer, fences = Sanitizer(device, blocks), StepFences(device)
    for record in records:
        plan = f.record(record)
        if plan is not None:
            for job in plan.now:
                fences.drain(job.after)
                sanitizer.jobs([job])
            fences.drain(plan.processed)
            sanitizer.begin(plan)
            sanitizer.end(plan.step)
            fences.close(plan.step)
    fences.drain()
    return f.ledger.reports(sanitizer.collect())


@pytest.mark.parametrize("path", sorted(TRACES.glob("*.jsonl")), ids=lambda p: p.stem)
def test_recorded_traces_of_safe_schedulers_are_clean(path: Path) -> None:
    pytest.importorskip("torch")
    assert [r.line() for r in late(path)] == []
