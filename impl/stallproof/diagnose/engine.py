"""State per engine, fed one observation at a time; closed intervals get their verdict from :mod:`.judge`.

Bounded: an engine keeps the open interval, counters since its last progress, and merged intervals.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from .observe import NAN, Obs, Ref, Stats
from .version import Version

Verdict = Literal["stalled", "progressing", "idle or paused", "cannot tell"]
STALLED: Verdict = "stalled"
PROGRESSING: Verdict = "progressing"
IDLE: Verdict = "idle or paused"
UNKNOWN: Verdict = "cannot tell"

MAX_INTERVALS = 200
MAX_IDS = 2000
#: seconds per printed statistics record (VLLM_LOG_STATS_INTERVAL)
INTERVAL = 10.0


class Interval(msgspec.Struct, kw_only=True):
    """A stretch of one engine's time with one verdict. ``merged``: how many stretches were joined."""

    verdict: Verdict
    t0: float
    t1: float
    first: Ref
    last: Ref
    why: str = ""
    merged: int = 1


class Evidence(msgspec.Struct, kw_only=True):
    ref: Ref
    tier: str
    says: str


class Finding(msgspec.Struct, kw_only=True):
    """One finding; ``mechanism`` is a key of :mod:`.knowledge`."""

    mechanism: str
    rule: str
    evidence: list[Evidence]
    onset: tuple[float, float] = (NAN, NAN)
    concerned: list[str] = []
    count: int = 0
    rivals: list[tuple[str, str]] = []
    note: str = ""
    confidence: Literal["high", "medium", "low"] = "medium"
    certain: bool = True
    tier: str = "E"


class Missing(msgspec.Struct, kw_only=True):
    """Why nothing can be said, and the one command that would decide."""

    what: str
    command: str
    rivals: list[tuple[str, str]] = []
    candidate: str = ""


class Tally:
    """What was observed since some moment, by kind: count, first, last and the last few."""

    KEEP = 40

    def __init__(self) -> None:
        self.count: dict[str, int] = {}
        self.first: dict[str, Obs] = {}
        self.last: dict[str, Obs] = {}
        self.some: dict[str, list[Obs]] = {}
        self.order = 0
        self.at: dict[str, int] = {}
        self.at_first: dict[str, int] = {}
        self.ids: dict[str, dict[str, int]] = {}

    def add(self, o: Obs) -> None:
        k = o.kind
        self.order += 1
        self.count[k] = self.count.get(k, 0) + 1
        self.first.setdefault(k, o)
        self.last[k] = o
        self.at[k] = self.order
        self.at_first.setdefault(k, self.order)
        keep = self.some.setdefault(k, [])
        if len(keep) < self.KEEP:
            keep.append(o)
        one = o.data.get("id")
        for rid in o.data.get("ids", () if one is None else (one,)):
            per = self.ids.setdefault(k, {})
            if rid in per or len(per) < MAX_IDS:
                per[rid] = per.get(rid, 0) + 1

    def has(self, *kinds: str) -> bool:
        return any(k in self.count for k in kinds)

    def n(self, kind: str) -> int:
        return self.count.get(kind, 0)

    def after(self, kind: str, other: str) -> bool:
        """Was ``kind`` last seen after the last ``other`` (or with no ``other`` at all)?"""
        return kind in self.at and self.at[kind] > self.at.get(other, 0)

    def merge(self, other: Tally) -> None:
        for k in other.count:
            self.order += 1
            self.count[k] = self.count.get(k, 0) + other.count[k]
            self.first.setdefault(k, other.first[k])
            self.last.setdefault(k, other.last[k])
            self.at.setdefault(k, other.at[k])
            self.at_first.setdefault(k, other.at_first[k])
            self.some.setdefault(k, list(other.some[k]))
        for k, per in other.ids.items():
            mine = self.ids.setdefault(k, {})
            for rid, n in per.items():
                mine[rid] = mine.get(rid, 0) + n


_FAILURES = ("pull_failed", "p_not_ready", "producer_timeout", "transport")


class Quiet:
    """An open stretch of records without tokens while requests are there."""

    def __init__(self, s: Stats, start: float, before: Stats | None) -> None:
        self.first = self.last = s
        self.start = start
        self.before = before
        self.lines = 1
        self.moved = 0  # records without tokens in which KV usage differs from the one before
        self.hit_moved = 0
        self.drops = 0
        self.stuck = 1  # records since the last move
        self.preempting = 1 if s.preempt else 0
        self.growing = 0
        self.fetch_done = 1 if s.fetch and s.fetch[2] > 0 else 0
        if before is not None and before.hit != s.hit and not math.isnan(before.hit + s.hit):
            self.hit_moved = 1

    def add(self, s: Stats) -> None:
        prev = self.last
        same_time = s.t == prev.t and not math.isnan(s.t)
        if same_time and (s.running, s.waiting, s.kv) == (prev.running, prev.waiting, prev.kv):
            return  # a duplicated line is not a second look
        self.lines += 1
        self.stuck += 1
        self._compare(prev, s)
        self.last = s
        self.preempting += 1 if s.preempt else 0
        self.fetch_done += 1 if s.fetch and s.fetch[2] > 0 else 0

    def _compare(self, a: Stats, b: Stats) -> None:
        kv = not math.isnan(a.kv) and not math.isnan(b.kv) and abs(a.kv - b.kv) > 0.049
        self.moved += kv
        # blocks were given up without a token, and nobody left: a pre-emption
        self.drops += kv and a.kv - b.kv > 20 and a.running + a.waiting <= b.running + b.waiting
        if kv or (a.running, a.waiting) != (b.running, b.waiting):
            self.stuck = 1
        if b.waiting > a.waiting and b.running == a.running and not kv:
            self.growing += 1
        if not math.isnan(a.hit) and not math.isnan(b.hit) and a.hit != b.hit:
            self.hit_moved += 1

    @property
    def kv_grew(self) -> bool:
        """KV use differs from the record before the zero interval: blocks were allocated in it."""
        b = self.before
        if b is None or math.isnan(b.kv) or math.isnan(self.first.kv):
            return False
        return self.first.kv > b.kv + 0.049


class Engine:
    """One engine of one instance."""

    def __init__(self, index: int, version: Version) -> None:
        self.index = index
        self.version = version
        self.tally = Tally()
        self.intervals: list[Interval] = []
        self.dropped = 0
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        self.missing: Missing | None = None
        self.quiet: Quiet | None = None
        self.idle: Stats | None = None
        self.idle_from = NAN
        self.idle_lines = 0
        self.prev: Stats | None = None
        self.last_progress: Stats | Obs | None = None
        self.self_preempt: tuple[Stats, Stats] | None = None
        self.records = 0
        self.paused: Obs | None = None
        self.iteration: Obs | None = None
        self.empty_steps = 0
        self.scrapes = 0
        self.last_scrape: Any = None
        self.snapshot: Stats | None = None
        self.zero_scrapes = 0
        self.overload: list[Stats] = []
        self.peak: Stats | None = None
        self.idle_held: tuple[Stats, int] | None = None

    @property
    def name(self) -> str:
        return "all engines (aggregated)" if self.index == -2 else f"engine {self.index:03d}"

    def interval(self, verdict: Verdict, t0: float, t1: float, first: Ref, last: Ref, why: str = "") -> None:
        """Append a stretch; equal neighbours are joined, and the list stays bounded."""
        if self.intervals:
            p = self.intervals[-1]
            if t0 == t0 and p.t1 == p.t1:
                t0 = max(t0, p.t1) if t1 != t1 or p.t1 <= t1 else t0
            if p.verdict == verdict and (verdict in (PROGRESSING, IDLE) or p.why == why):
                p.t1 = t1 if t1 == t1 else p.t1
                p.last, p.merged = last, p.merged + 1
                return
        self.intervals.append(Interval(verdict=verdict, t0=t0, t1=t1, first=first, last=last, why=why))
        if len(self.intervals) > MAX_INTERVALS:
            # keep what matters: drop the oldest ordinary stretch
            for i, iv in enumerate(self.intervals):
                if iv.verdict in (PROGRESSING, IDLE):
                    del self.intervals[i]
                    break
            else:
                del self.intervals[0]
            self.dropped += 1

    def progress(self, what: Stats | Obs) -> None:
        """Something moved: evidence for a stall that was collected so far is void."""
        self.last_progress = what
        old, self.tally = self.tally, Tally()
        # a record covers an interval: a failure within it may have come after its last token
        for kind in _FAILURES:
            for o in old.some.get(kind, ()):
                if o.t >= what.t - INTERVAL:
                    self.tally.add(o)
        self.self_preempt = None
        self.empty_steps = 0

    def verdict(self) -> Verdict:
        """The verdict for the whole input: a stall anywhere, else an undecided end, else the end."""
        if any(iv.verdict == STALLED for iv in self.intervals):
            return STALLED
        if not self.intervals:
            return UNKNOWN
        return self.intervals[-1].verdict

    def at_end(self) -> Verdict:
        """The verdict of the last stretch."""
        return self.intervals[-1].verdict if self.intervals else UNKNOWN
