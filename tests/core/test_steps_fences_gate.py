"""Steps, block fences and the gate, against a device that really runs late."""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from stallproof.core.fences import BlockFences
from stallproof.core.gate import Gate, HeldLoad
from stallproof.core.steps import Steps

BLOCKS = range(6)


class Device(RuleBasedStateMachine):
    """Requests own blocks and are scheduled by steps; the device runs steps in order, late.

    The truth is kept apart: ``touches[b]`` are the steps not yet device done that may touch block ``b``. A
    step that carries work after its output event (``lag``) is done only when the next one is processed.
    """

    lag = 0

    def __init__(self) -> None:
        super().__init__()
        self.steps = Steps(lag=self.lag)
        self.fences = BlockFences(self.steps)
        self.gate = Gate(self.steps)
        self.free = set(BLOCKS)
        self.owner: dict[int, str] = {}
        self.touches: dict[int, set[int]] = {b: set() for b in BLOCKS}
        self.loads: dict[str, list[int]] = {}
        self.count = 0

    def release(self, blocks: list[int]) -> None:
        self.fences.raise_to(blocks, self.steps.newest)
        for b in blocks:
            self.owner.pop(b, None)
            self.free.add(b)

    @rule(data=st.data())
    def schedule(self, data: st.DataObject) -> None:
        """A call: every owner's blocks may be touched by the step; some are taken and released within it."""
        self.steps.begin()
        step = self.steps.newest
        fresh = data.draw(
            st.sets(st.sampled_from(sorted(self.free)), max_size=2) if self.free else st.just(set())
        )
        for b in fresh:
            self.free.discard(b)
            self.owner[b] = "r"
        for b in self.owner:
            self.touches[b].add(step)
        dropped = data.draw(
            st.sets(st.sampled_from(sorted(self.owner)), max_size=2) if self.owner else st.just(set())
        )
        self.release(sorted(dropped))
        if self.free and data.draw(st.booleans()):  # a load is admitted in the same call
            blocks = sorted(data.draw(st.sets(st.sampled_from(sorted(self.free)), min_size=1, max_size=3)))
            self.count += 1
            rid = f"l{self.count}"
            self.free -= set(blocks)
            fence = self.fences.newest(blocks)
            if self.gate.must_hold(fence):
                self.gate.hold(HeldLoad(rid, 1, fence, blocks))
            else:
                self.start(rid, blocks)
            self.loads[rid] = blocks
        self.steps.dispatch(1)

    def start(self, rid: str, blocks: list[int]) -> None:
        for b in blocks:
            assert not self.touches[b], f"{rid} writes block {b} while steps {self.touches[b]} may touch it"

    @precondition(lambda self: self.steps.in_flight > 0)
    @rule()
    def process(self) -> None:
        self.steps.process(1)
        done = self.steps.processed - self.lag
        for b in BLOCKS:
            self.touches[b] = {s for s in self.touches[b] if s > done}

    @rule()
    def begin_starts_what_is_due(self) -> None:
        for load in self.gate.due():
            self.start(load.rid, load.payload)

    @rule(data=st.data())
    def load_ends(self, data: st.DataObject) -> None:
        running = sorted(r for r in self.loads if r not in self.gate)
        if running:
            self.release(self.loads.pop(data.draw(st.sampled_from(running))))

    @rule(data=st.data())
    def load_is_cancelled(self, data: st.DataObject) -> None:
        held = sorted(x.rid for x in self.gate)
        if held:
            rid = data.draw(st.sampled_from(held))
            assert self.gate.drop(rid) is not None
            self.release(self.loads.pop(rid))

    @rule()
    def prune(self) -> None:
        self.fences.prune()

    @invariant()
    def quiescent_means_untouched(self) -> None:
        for b in BLOCKS:
            if b in self.free and self.fences.quiescent([b]):
                assert not self.touches[b]


class LateDevice(Device):
    lag = 1


class MarkedDevice(Device):
    """The device reports for itself: it may be ahead of the processed steps, and behind them.

    ``truth`` is what it has done; reports reach the scheduler late, but never before they are true.
    """

    def __init__(self) -> None:
        super().__init__()
        self.truth = 0
        self.steps.observe(0)

    @precondition(lambda self: self.truth < self.steps.dispatched)
    @rule()
    def device_finishes_a_step(self) -> None:
        self.truth += 1
        for b in BLOCKS:
            self.touches[b] = {s for s in self.touches[b] if s > self.truth}

    @rule(behind=st.integers(0, 2))
    def report(self, behind: int) -> None:
        self.steps.observe(max(self.truth - behind, 0))

    @precondition(lambda self: self.steps.in_flight > 0)
    @rule()
    def process(self) -> None:
        self.steps.process(1)


class OneOfSeveral(MarkedDevice):
    """The mark speaks for one device of several: it may only delay, so outputs must have come as well."""

    def __init__(self) -> None:
        super().__init__()
        self.steps.early = False

    @invariant()
    def never_ahead_of_the_outputs(self) -> None:
        assert self.steps.done <= self.steps.processed


TestDevice = Device.TestCase
TestLateDevice = LateDevice.TestCase
TestMarkedDevice = MarkedDevice.TestCase
TestOneOfSeveral = OneOfSeveral.TestCase
for case in (TestDevice, TestLateDevice, TestMarkedDevice, TestOneOfSeveral):
    case.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
del case  # pytest would collect it once more


class Careless(Device):
    """The mutant: a release inside a call carries the fence of the last dispatched step (audit, W3)."""

    def release(self, blocks: list[int]) -> None:
        self.fences.raise_to(blocks, self.steps.dispatched)
        for b in blocks:
            self.owner.pop(b, None)
            self.free.add(b)


def test_a_fence_without_the_step_being_built_is_caught() -> None:
    limits = settings(
        max_examples=2000, stateful_step_count=10, deadline=None, database=None, derandomize=True,
        phases=[Phase.generate], report_multiple_bugs=False,
    )  # fmt: skip
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Careless, settings=limits)


class Lying(MarkedDevice):
    """The mutant: the device reports a step done that it is still running."""

    @rule(behind=st.integers(0, 2))
    def report(self, behind: int) -> None:
        self.steps.observe(self.truth + 1)


class Trusting(MarkedDevice):
    """The mutant: an output that was processed is taken for device done although the device reports."""

    @precondition(lambda self: self.steps.in_flight > 0)
    @rule()
    def process(self) -> None:
        self.steps.process(1)
        self.steps.observe(self.steps.processed)


@pytest.mark.parametrize("mutant", [Lying, Trusting])
def test_a_mark_that_is_not_true_is_caught(mutant: type[Device]) -> None:
    limits = settings(
        max_examples=2000, stateful_step_count=15, deadline=None, database=None, derandomize=True,
        phases=[Phase.generate], report_multiple_bugs=False,
    )  # fmt: skip
    with pytest.raises(AssertionError):
        run_state_machine_as_test(mutant, settings=limits)


def test_a_mark_never_falls_and_never_names_a_step_that_was_not_dispatched() -> None:
    steps = Steps()
    for _ in range(3):
        steps.begin()
        steps.dispatch(1)
    assert steps.done == 0
    steps.observe(7)
    assert steps.done == 3
    steps.observe(1)
    assert steps.done == 3
    assert steps.idle
    steps.observe(-1)
    assert steps.done == steps.processed == 0
    assert not steps.idle


def test_held_loads_start_in_order_of_admission_and_once() -> None:
    steps = Steps()
    gate = Gate(steps)
    for i in range(3):
        steps.begin()
        gate.hold(HeldLoad(f"r{i}", 1, steps.newest, None))
        steps.dispatch(0)
    steps.process(0)
    assert [x.rid for x in gate.due()] == ["r0"]
    steps.process(0)
    steps.process(0)
    assert [x.rid for x in gate.due()] == ["r1", "r2"]
    assert gate.due() == []


@given(st.lists(st.tuples(st.sampled_from("dp"), st.integers(0, 3)), max_size=60))
def test_counters_never_cross(moves: list[tuple[str, int]]) -> None:
    steps = Steps()
    for move, tokens in moves:
        if move == "d":
            steps.begin()
            steps.dispatch(tokens)
        else:
            steps.process(tokens)
        assert 0 <= steps.processed <= steps.dispatched
        assert steps.working >= 0
        assert steps.in_flight >= 0


def test_a_call_that_raises_dispatches_nothing() -> None:
    steps = Steps()
    steps.begin()
    steps.abandon()
    assert (steps.dispatched, steps.newest, steps.building) == (0, 0, False)
