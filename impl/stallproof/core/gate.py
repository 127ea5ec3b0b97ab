"""GateLoads: an asynchronous load owns its blocks at once and starts when their fences have passed.

Spec: ``Start`` is enabled iff ``fence[b] <= done`` for every block ``b`` that the load will write.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stallproof.core.steps import Steps


@dataclass(frozen=True, slots=True)
class HeldLoad:
    """A load that has its blocks but has not started. ``payload`` belongs to the caller."""

    rid: str
    gen: int
    fence: int
    payload: Any


class Gate:
    """Loads held back, in order of admission; one per request at most."""

    __slots__ = ("_steps", "held")

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        #: by request; the same object for good
        self.held: dict[str, HeldLoad] = {}

    def must_hold(self, fence: int) -> bool:
        return not self._steps.passed(fence)

    def hold(self, load: HeldLoad) -> None:
        self.held[load.rid] = load

    def due(self) -> list[HeldLoad]:
        """Remove and return the loads that may start now."""
        if not self.held:
            return []
        ready = [x for x in self.held.values() if self._steps.passed(x.fence)]
        for x in ready:
            del self.held[x.rid]
        return ready

    def drop(self, rid: str) -> HeldLoad | None:
        """The request is gone or evicted: its load never starts."""
        return self.held.pop(rid, None)

    def __contains__(self, rid: str) -> bool:
        return rid in self.held

    def __len__(self) -> int:
        return len(self.held)

    def __iter__(self) -> Iterator[HeldLoad]:
        return iter(self.held.values())
