"""AdapterShare: never an adapter too many, and one who waits for its own is overtaken finitely often.

An engine that has all adapters it may run skips a waiting request of another one and goes on with those
behind it. Newcomers of the running adapters can keep it waiting for ever (vLLM #16876). And adapters of
requests whose steps are in flight may be left out of the count, which the engine's own assertion then ends
(our finding N4). Spec: ``NoSlot``, ``WaitsForSlot``, ``Overtakes``; invariant ``AdapterShare``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

#: a waiting request: place in scheduling order, id, adapter (0: none)
Waiting = tuple[Any, str, int]


class AdapterShare:
    """``most``: adapters at once; ``bound``: admissions of running ones before one who waits for its own."""

    def __init__(self, most: int, bound: int) -> None:
        self.most, self.bound = most, bound
        self.active: set[int] = set()
        self.head: Waiting | None = None  #: the first that no adapter is left for
        self.overtaken = 0  #: how often it was
        self._whom = ""
        self._waiting: Callable[[], Iterable[Waiting]] = tuple

    def begin(self, active: Iterable[int], waiting: Callable[[], Iterable[Waiting]]) -> None:
        """A call begins. ``active``: adapters of all running requests; ``waiting()``: in scheduling order."""
        self.active = {a for a in active if a}
        self.head, self._waiting = None, waiting
        self._look()

    def _look(self) -> None:
        """At the first that no adapter is left for, once all are taken, be it within the call."""
        if len(self.active) < self.most:
            return
        self.head = next((w for w in self._waiting() if w[2] and w[2] not in self.active), None)
        if self.head is not None and self.head[1] != self._whom:  # it may find adapters free in between
            self._whom, self.overtaken = self.head[1], 0

    def may(self, key: Any, adapter: int, holds: bool) -> bool:
        """Whether a waiting request of ``adapter`` may be admitted now; ``holds``: it has blocks."""
        if not adapter:
            return True
        if adapter not in self.active:
            return len(self.active) < self.most
        return holds or self.head is None or key <= self.head[0] or self.overtaken < self.bound

    def admitted(self, key: Any, adapter: int, runs: bool, holds: bool) -> None:
        """It was given blocks; ``runs``: in this step, else for a load."""
        if adapter and runs and adapter not in self.active:
            self.active.add(adapter)
            self._look()
        if adapter and not holds and self.head is not None and key > self.head[0]:
            self.overtaken += 1
