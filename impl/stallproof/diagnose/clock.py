"""One emitter's clock: engine prefixes have no year, some no date, and 1 s resolution.

:class:`Clock` turns such stamps into seconds that grow across midnight and new year. Steps back of less than
half a day are a clock that was set: they are counted, and the time stands still until it is passed again
(durations across them are then too short, never too long, so that no wait looks longer than it was).
"""

from __future__ import annotations

_DAYS = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)
DAY = 86400.0


def seconds(month: int, day: int, h: int, m: int, s: int) -> float:
    """Seconds since the start of a common year; month 0 stands for "no date"."""
    doy = 0 if not 1 <= month <= 12 else _DAYS[month - 1] + day - 1
    return doy * DAY + h * 3600 + m * 60 + s


class Clock:
    """Unwraps stamps. ``jumps`` counts steps back that no midnight or new year explains."""

    __slots__ = ("base", "jumps", "last", "raw")

    def __init__(self) -> None:
        self.base = 0.0
        self.raw = float("nan")
        self.last = float("nan")
        self.jumps = 0

    def __call__(self, raw: float) -> float:
        """Seconds on this clock for the stamp ``raw`` (of :func:`seconds`)."""
        if self.raw != self.raw:
            self.raw = self.last = raw
            return raw
        step = raw - self.raw
        if step < -DAY / 2:
            # midnight without a date, 29 February, or new year; whatever lands nearest after the last stamp
            for roll in (DAY, 365 * DAY):
                if -DAY / 2 <= step + roll < DAY / 2:
                    self.base += roll
                    break
            else:
                self.jumps += 1
                self.base -= step
        self.raw = raw
        t = raw + self.base
        if t < self.last:
            if self.last - t > 5:
                self.jumps += 1
            t = self.last
        self.last = t
        return t


def show(t: float) -> str:
    """``MM-DD HH:MM:SS`` (or the time alone where the stamp had no date)."""
    if t != t:
        return "?"
    t = t % (365 * DAY)
    d, s = divmod(int(t), 86400)
    hms = f"{s // 3600:02d}:{s % 3600 // 60:02d}:{s % 60:02d}"
    if d == 0:
        return hms
    m = max(i for i in range(12) if _DAYS[i] <= d)
    return f"{m + 1:02d}-{d - _DAYS[m] + 1:02d} {hms}"
