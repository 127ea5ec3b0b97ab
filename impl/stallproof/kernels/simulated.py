"""A simulated device: streams whose operations interleave as an adversary likes, on real tensors or none.

Nothing runs when it is submitted. :meth:`SimulatedDevice.advance` lets the adversary execute operations of
any stream that is not held by a wait; :meth:`finish` executes all. So "the host has submitted", "the output
is there" and "the device is done" are three different moments, as on hardware, and every order that the
events allow can occur. Pure Python: the operations decide whether tensors are touched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .device import Event, NotRecorded


@dataclass(eq=False)
class SimulatedStream:
    name: str
    queue: deque[tuple[str, Any]] = field(default_factory=deque)


class SimulatedEvent:
    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self._generation = 0  # of the newest record()
        self._reached = 0  # newest generation whose marker the stream has passed

    def record(self, stream: Any = None) -> None:
        self._generation += 1
        (stream or self._device.compute()).queue.append(("record", (self, self._generation)))

    def query(self) -> bool:
        if not self._generation:
            raise NotRecorded("query")
        return self._reached >= self._generation

    def synchronize(self) -> None:
        if not self._generation:
            raise NotRecorded("synchronize")
        while not self.query():
            if not self._device.advance(1):
                raise RuntimeError("deadlock: streams wait for each other")


class SimulatedDevice:
    """``choose(n)`` is the adversary: an index below ``n``, e.g. ``random.Random(seed).randrange``."""

    name = "simulated"
    cores = 4
    asynchronous = True

    def __init__(self, choose: Callable[[int], int]) -> None:
        self._choose = choose
        self._compute = SimulatedStream("compute")
        self.streams = [self._compute]
        self.executed = 0

    def compute(self) -> SimulatedStream:
        return self._compute

    def side(self, name: str = "side") -> SimulatedStream:
        """A new stream, ordered with nothing."""
        stream = SimulatedStream(f"{name}{len(self.streams)}")
        self.streams.append(stream)
        return stream

    def event(self) -> SimulatedEvent:
        return SimulatedEvent(self)

    def wait(self, stream: Any, event: Event) -> None:
        assert isinstance(event, SimulatedEvent)
        if not event._generation:
            raise NotRecorded("wait")
        stream.queue.append(("wait", (event, event._generation)))

    def launch(self, stream: Any, work: Callable[[], object]) -> None:
        (stream or self._compute).queue.append(("run", work))

    def immediately(self, work: Callable[[], object]) -> None:
        work()

    def upload(self, values: Sequence[int], *, wide: bool = False) -> Any:
        import torch

        return torch.tensor(values, dtype=torch.int64 if wide else torch.int32)

    def _ready(self) -> list[SimulatedStream]:
        out = []
        for s in self.streams:
            while s.queue and s.queue[0][0] == "wait" and _passed(s.queue[0][1]):
                s.queue.popleft()
            if s.queue and s.queue[0][0] != "wait":
                out.append(s)
        return out

    def advance(self, operations: int) -> int:
        """Execute up to ``operations`` in an order that the adversary chooses; how many were possible."""
        for n in range(operations):
            ready = self._ready()
            if not ready:
                return n
            kind, what = ready[self._choose(len(ready))].queue.popleft()
            if kind == "run":
                what()
            else:
                event, generation = what
                event._reached = max(event._reached, generation)
            self.executed += 1
        return operations

    def finish(self) -> None:
        """Execute everything submitted. Raises RuntimeError if streams wait for each other."""
        while self.advance(1):
            pass
        if any(s.queue for s in self.streams):
            raise RuntimeError("deadlock: streams wait for each other")

    def idle(self) -> bool:
        return not any(s.queue for s in self.streams)


def _passed(wait: tuple[SimulatedEvent, int]) -> bool:
    event, generation = wait
    return event._reached >= generation
