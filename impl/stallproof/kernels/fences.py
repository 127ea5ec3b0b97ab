"""Device fences: one event per step, polled; the high-water mark is what *device done* means.

``DeviceInOrder`` of ``spec/EngineContract.tla``. The event of a step is recorded after its last KV write:
drafter, post-processing and joined side streams included. That is later than the event of the step's output,
after which vLLM's V2 runner still runs the drafter. What no event covers: a remote peer's write (RDMA), and a
stream that the step does not join.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import Any

from .device import Device, Event


class StepFences:
    """Steps are numbered upwards from 1 and finish in order, because they share the compute stream.

    One thread closes; others may poll (an engine reads asynchronous outputs in a thread of its own).
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pending: deque[tuple[int, Event]] = deque()
        self._done = 0
        self._newest = 0
        self._lock = threading.Lock()

    def close(self, step: int, *, join: Iterable[Any] = ()) -> None:
        """``step`` has submitted its last work; ``join``: side streams on which it wrote.

        Raises ValueError if ``step`` is not newer than every step closed before: a step without tokens that
        touches blocks is a step too and gets its own number.
        """
        if step <= self._newest:
            raise ValueError(f"step {step} closed after step {self._newest}")
        compute = self._device.compute()
        for stream in join:
            side = self._device.event()
            side.record(stream)
            self._device.wait(compute, side)
        event = self._device.event()
        event.record(compute)
        self._pending.append((step, event))
        self._newest = step

    def poll(self) -> int:
        """The newest step that, with all before it, is device done; 0 before the first. Never blocks."""
        with self._lock:
            while self._pending and self._pending[0][1].query():
                self._done = self._pending.popleft()[0]
            return self._done

    def done(self, step: int) -> bool:
        """Whether ``step`` is device done. A step that was not closed is not."""
        return step <= self._done or step <= self.poll()

    def drain(self, upto: int | None = None) -> int:
        """Block until every closed step (up to ``upto``, if given) is done; returns the high-water mark."""
        with self._lock:
            while self._pending and (upto is None or self._pending[0][0] <= upto):
                step, event = self._pending.popleft()
                event.synchronize()
                self._done = step
            return self._done

    @property
    def newest(self) -> int:
        """The newest closed step."""
        return self._newest
