"""Devices and device fences; no torch needed."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallproof.errors import Unsupported
from stallproof.kernels.device import Device, Event, NotRecorded, open_device
from stallproof.kernels.fences import StepFences
from stallproof.kernels.simulated import SimulatedDevice


def device(seed: int = 0) -> SimulatedDevice:
    return SimulatedDevice(random.Random(seed).randrange)


def test_nothing_is_imported_or_chosen_at_import_time() -> None:
    code = (
        "import sys, pkgutil, stallproof.kernels, stallproof.kernels.device, stallproof.kernels.simulated, "
        "stallproof.kernels.fences, stallproof.kernels.tags, stallproof.kernels.ledger; "
        "print([m for m in ('torch', 'triton', 'torch_npu', 'vllm') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_unknown_device() -> None:
    with pytest.raises(Unsupported, match="tpu"):
        open_device("tpu")


def test_absent_device_is_one_clear_error() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        with pytest.raises(Unsupported, match="device cuda: none on this machine"):
            open_device("cuda")
    with pytest.raises(Unsupported, match="device npu"):
        open_device("npu")


@pytest.mark.parametrize("kind", ["simulated", "cpu"])
def test_query_before_record_is_refused(kind: str) -> None:
    if kind == "cpu":
        pytest.importorskip("torch")
    d = device() if kind == "simulated" else open_device("cpu")
    assert isinstance(d, Device)
    event = d.event()
    assert isinstance(event, Event)
    for ask in (event.query, event.synchronize, lambda: d.wait(d.compute(), event)):
        with pytest.raises(NotRecorded):
            ask()
    event.record(d.compute())
    event.synchronize()
    assert event.query()


def test_submitted_is_not_done() -> None:
    d, seen = device(), []
    d.launch(d.compute(), lambda: seen.append(1))
    event = d.event()
    event.record()
    assert not event.query()
    assert not seen
    event.synchronize()
    assert seen == [1]


def test_recording_again_moves_the_marker() -> None:
    d = device()
    event = d.event()
    event.record()
    d.finish()
    assert event.query()
    event.record()
    assert not event.query()


def test_streams_interleave_in_every_order_that_events_allow() -> None:
    def orders(wait: bool) -> set[str]:
        seen = set()
        for seed in range(200):
            d, log = device(seed), []
            a, b = d.compute(), d.side()
            for x in "12":
                d.launch(a, lambda x=x, log=log: log.append(x))
            event = d.event()
            event.record(a)
            if wait:
                d.wait(b, event)
            for x in "xy":
                d.launch(b, lambda x=x, log=log: log.append(x))
            d.finish()
            seen.add("".join(log))
        return seen

    assert orders(wait=False) == {"12xy", "1x2y", "1xy2", "x12y", "x1y2", "xy12"}
    assert orders(wait=True) == {"12xy"}


def test_waiting_for_each_other_is_an_error_not_a_hang() -> None:
    d = device()
    a, b = d.side(), d.side()
    first, second = d.event(), d.event()
    # each stream waits for the other's second recording, which lies behind its own wait
    first.record(a)
    second.record(b)
    d.finish()
    d.wait(a, _later(d, second, b))
    with pytest.raises(RuntimeError, match="wait for each other"):
        d.finish()


def _later(d: SimulatedDevice, event, stream):
    gate = d.event()
    gate.record(d.side())
    d.streams[-1].queue.clear()  # the marker is lost: a peer that never answers
    d.wait(stream, gate)
    event.record(stream)
    return event


def test_output_event_is_not_device_done() -> None:
    """vLLM's V2 runner records the output event before the drafter writes KV (P6 of the gate)."""
    d, log = device(), []
    fences = StepFences(d)
    d.launch(d.compute(), lambda: log.append("forward"))
    output = d.event()
    output.record()
    d.launch(d.compute(), lambda: log.append("drafter"))
    fences.close(1)
    output.synchronize()
    assert log == ["forward"]
    assert not fences.done(1)
    d.finish()
    assert fences.done(1)


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**31), steps=st.integers(1, 6))
def test_high_water_mark_never_runs_ahead(seed: int, steps: int) -> None:
    r = random.Random(seed)
    d = SimulatedDevice(r.randrange)
    fences, written = StepFences(d), {}
    for n in range(1, steps + 1):
        side = d.side()
        for where in (d.compute(), side):
            d.launch(where, lambda n=n: written.__setitem__(n, written.get(n, 0) + 1))
        fences.close(n, join=[side])
        d.advance(r.randrange(4))
        mark = fences.poll()
        assert all(written.get(k) == 2 for k in range(1, mark + 1))
        assert not fences.done(steps + 1)
    assert fences.drain() == steps == fences.newest
    assert all(fences.done(n) for n in range(1, steps + 1))


def test_an_unjoined_side_stream_is_not_covered() -> None:
    """Control: without ``join`` the mark does run ahead of the side stream; the contract forbids that."""
    ahead = 0
    for seed in range(50):
        d, log = device(seed), []
        fences = StepFences(d)
        d.launch(d.side(), lambda log=log: log.append(1))
        fences.close(1)
        while not fences.done(1):
            d.advance(1)
        ahead += not log
    assert ahead


def test_steps_close_upwards() -> None:
    fences = StepFences(device())
    fences.close(3)
    for step in (3, 2):
        with pytest.raises(ValueError, match="closed after"):
            fences.close(step)
