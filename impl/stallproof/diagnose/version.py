"""Which release wrote a line: read off the line itself, never assumed.

The line number of the statistics record identifies the release line (read in the releases 0.8.5 to
0.33.0); wording and fields narrow it further; a record that states the version settles it.
"""

from __future__ import annotations

import re

V = tuple[int, int, int]

#: loggers.py line of the statistics record -> first and last release it was seen in
LOGGERS: dict[int, tuple[V, V]] = {
    80: ((0, 8, 0), (0, 8, 4)),
    87: ((0, 8, 0), (0, 8, 4)),
    111: ((0, 8, 5), (0, 9, 1)),
    118: ((0, 9, 2), (0, 9, 2)),
    122: ((0, 10, 0), (0, 10, 2)),
    123: ((0, 10, 0), (0, 10, 2)),
    127: ((0, 11, 0), (0, 11, 1)),
    236: ((0, 11, 2), (0, 12, 0)),
    248: ((0, 13, 0), (0, 13, 1)),
    257: ((0, 14, 0), (0, 15, 1)),
    259: ((0, 16, 0), (0, 19, 1)),
    271: ((0, 20, 0), (0, 23, 9)),
    273: ((0, 24, 0), (0, 25, 9)),
    310: ((0, 26, 0), (0, 29, 9)),
    315: ((0, 30, 0), (0, 30, 9)),
    320: ((0, 31, 0), (0, 31, 9)),
    335: ((0, 32, 0), (0, 33, 9)),
}
_STATED = re.compile(r"\bv?(?:ersion )?(\d+)\.(\d+)\.(\d+)")
MAX: V = (999, 0, 0)
MIN: V = (0, 0, 0)


def parse(text: str) -> V | None:
    """The first ``a.b.c`` in ``text``."""
    m = _STATED.search(text)
    return (int(m[1]), int(m[2]), int(m[3])) if m and len(m[2]) < 4 else None


class Version:
    """An interval of releases that the evidence allows, with the reasons. Starts unknown."""

    __slots__ = ("hi", "lo", "stated", "why")

    def __init__(self) -> None:
        self.lo: V = MIN
        self.hi: V = MAX
        self.stated: str = ""
        self.why: list[str] = []

    @property
    def known(self) -> bool:
        return self.lo != MIN or self.hi != MAX

    def narrow(self, lo: V = MIN, hi: V = MAX, why: str = "") -> None:
        """Evidence for releases ``lo`` to ``hi``. Contradictions keep the older evidence and say so."""
        if self.lo >= lo and self.hi <= hi:
            return
        new_lo, new_hi = max(self.lo, lo), min(self.hi, hi)
        if new_lo > new_hi:
            if len(self.why) < 8 and not any("contradicts" in w for w in self.why):
                self.why.append(f"{why} contradicts it (fork, or several engines in one file)")
            return
        self.lo, self.hi = new_lo, new_hi
        if why and why not in self.why and len(self.why) < 8:
            self.why.append(why)

    def line(self, number: int) -> None:
        """The statistics record came from ``loggers.py:number``."""
        r = LOGGERS.get(number)
        if r is not None:
            self.narrow(*r, f"loggers.py:{number}")

    def state(self, text: str, why: str) -> None:
        """A record states the version."""
        v = parse(text)
        if v is not None:
            self.stated = self.stated or ".".join(map(str, v))
            self.narrow(v, (v[0], v[1], max(v[2], 9)) if "dev" in text or "rc" in text else v, why)

    def at_least(self, *v: int) -> bool | None:
        """True / False where the evidence decides, None where it does not."""
        want = (*v, 0, 0)[:3]
        if self.lo >= want:
            return True
        if self.hi < want:
            return False
        return None

    def overlaps(self, lo: V, hi: V) -> bool:
        """Could the engine be one of the releases ``lo`` to ``hi``?"""
        return self.lo <= hi and lo <= self.hi

    def __str__(self) -> str:
        if self.stated:
            return self.stated
        if not self.known:
            return "unknown"
        show = lambda v: f"{v[0]}.{v[1]}" + (f".{v[2]}" if v[2] not in (0, 9) else "")  # noqa: E731
        if self.hi == MAX:
            return f"{show(self.lo)} or later"
        if self.lo == MIN:
            return f"up to {show(self.hi)}"
        return show(self.lo) if show(self.lo) == show(self.hi) else f"{show(self.lo)} to {show(self.hi)}"
