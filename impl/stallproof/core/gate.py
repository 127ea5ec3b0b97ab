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

    __slots__ = ("_held", "_steps")

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._held: dict[str, HeldLoad] = {}

    def must_hold(self, fence: int) -> bool:
        return not self._steps.passed(fence)

    def hold(self, load: HeldLoad) -> None:
        self._held[load.rid] = load

    def due(self) -> list[HeldLoad]:
        """Remove and return the loads that may start now."""
        if not self._held:
            return []
        ready = [x for x in self._held.values() if self._steps.passed(x.fence)]
        for x in ready:
            del self._held[x.rid]
        return ready

    def drop(self, rid: str) -> HeldLoad | None:
        """The request is gone or evicted: its load never starts."""
        return self._held.pop(rid, None)

    def __contains__(self, rid: str) -> bool:
        return rid in self._held

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[HeldLoad]:
        return iter(self._held.values())
