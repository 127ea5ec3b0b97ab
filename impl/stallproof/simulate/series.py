"""Occupancy over virtual time, bounded: when full, every second point is dropped and the stride doubles."""

from __future__ import annotations

LIMIT = 1024
FIELDS = ("t", "running", "waiting", "used", "fenced", "loading", "oldest")


class Series:
    """Points ``(t, running, waiting, used, fenced, loading, oldest)``: seconds, requests, blocks, seconds."""

    def __init__(self) -> None:
        self.points: list[tuple[float, int, int, int, int, int, float]] = []
        self.stride, self._skip, self._last = 1, 0, 0.0

    def since(self, now: float) -> float:
        """Seconds since the last call."""
        gap, self._last = now - self._last, now
        return gap

    def due(self) -> bool:
        """Whether this moment is kept; a caller that computes points asks first."""
        self._skip += 1
        if self._skip < self.stride:
            return False
        self._skip = 0
        return True

    def add(
        self, t: float, running: int, waiting: int, used: int, fenced: int, loading: int, oldest: float
    ) -> None:
        self.points.append((round(t, 6), running, waiting, used, fenced, loading, round(oldest, 6)))
        if len(self.points) >= LIMIT:
            del self.points[1::2]
            self.stride *= 2
