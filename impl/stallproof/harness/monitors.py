"""What the harness watches by itself while a scenario runs: the promise, call by call, from recorded events.

Independent of the trace checker on purpose: two judges. ``InFlightSafe``, ``XferSafe`` and ``StoreSafe``
need block histories and are left to the checker.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stallproof.trace import schema as T

#: calls in a row, of a budget of 16 tokens or more, in which a request that could run is passed over by
#: others behind it
_PASSED = 64


#: that many requests or turns begin behind one that lacks blocks: more than a bound on bypassing explains
_OVERTAKEN = 16


def passed_limit(budget: int) -> int:
    """How many calls in a row that is for calls of ``budget`` tokens: small ones take more for the same."""
    return _PASSED * max(1, 16 // budget)


@dataclass
class Finding:
    prop: str
    step: int
    text: str


@dataclass
class Monitors:
    """Feed it every record; ask for :attr:`findings`. The first finding of each property is kept."""

    depth: int = 1
    passed_limit: int = _PASSED
    findings: dict[str, Finding] = field(default_factory=dict)
    place: dict[str, tuple[int, float]] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    running: list[str] = field(default_factory=list)
    step: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    quarantined: int = 0
    passed: dict[str, int] = field(default_factory=dict)
    behind: dict[str, set[str]] = field(default_factory=dict)  #: who was served since it was refused first
    overtaken: dict[str, int] = field(default_factory=dict)  #: how many of them began after that
    refused: set[str] = field(default_factory=set)  #: in the latest call, and not given blocks after that
    ended: dict[str, str] = field(default_factory=dict)

    def found(self, prop: str, text: str) -> None:
        self.findings.setdefault(prop, Finding(prop, self.step, text))

    def __call__(self, record: Any) -> None:
        if isinstance(record, T.Note):
            if record.kind == "blind":
                self.found("Conservation", f"the recorder did not see: {record.text}")
            return
        if isinstance(record, T.Sched):
            self.step = record.step
            self._call(record)
            self.tokens += sum(record.tok.values())
            if record.run is not None:
                self.running = record.run
        self._fold(record.ev)

    def _fold(self, events: list[Any]) -> None:
        for e in events:
            name = str(type(e).__struct_config__.tag)
            self.counts[name] = self.counts.get(name, 0) + 1
            self._one(e, self.held)

    def _one(self, e: Any, held: dict[str, int]) -> None:
        if isinstance(e, T.Add):
            self.place[e.r] = (e.prio, e.arr)
        elif isinstance(e, T.Turn):
            self.place[e.r] = (self.place.get(e.r, (0, 0.0))[0], e.arr)
            for seen in self.behind.values():
                seen.discard(e.r)  # a turn is an arrival
        elif isinstance(e, (T.Alloc, T.Share)):
            held[e.r] = held.get(e.r, 0) + len(e.blocks)
        elif isinstance(e, (T.Free, T.Fence, T.Prune, T.Quarantine)):
            held[e.r] = held.get(e.r, 0) - len(e.blocks)
        if held is self.held:
            if isinstance(e, T.Quarantine):
                self.quarantined += len(e.blocks)
            elif isinstance(e, T.Unquarantine):
                self.quarantined -= len(e.blocks)
            elif isinstance(e, T.Finish):
                self.ended[e.r] = e.reason
            elif isinstance(e, T.Store) and not e.blocks and self.ended.get(e.r) in ("stop", "length"):
                # who aborts gets no answer, so nobody will come for its KV
                self.found("StoreSafe", f"{e.r} hands over KV that is gone: no block of it is left")

    def ready(self, waiting: list[str], tokens: dict[str, int]) -> None:
        """``waiting`` could run and got no token, while ``tokens`` went to others: how long so far?

        Who lacks blocks, or waits behind one who does, is not starved by those that ran already: it takes
        :data:`_OVERTAKEN` requests or turns that began since.
        """
        served = {r: self.place[r] for r in tokens if r in self.place}
        last = max(served.values(), default=None)
        for r in waiting:
            if last is None or self.place[r] >= last:
                self.passed.pop(r, None)
                continue
            self.passed[r] = self.passed.get(r, 0) + 1
            if any(self.place[x] <= self.place[r] for x in self.refused if x in self.place):
                behind = {x for x, place in served.items() if place > self.place[r]}
                seen = self.behind.setdefault(r, behind)
                self.overtaken[r] = self.overtaken.get(r, 0) + len(behind - seen)
                seen |= behind
                if self.overtaken[r] < _OVERTAKEN:
                    continue
            if self.passed[r] >= self.passed_limit:
                self.found(
                    "NoStarvation",
                    f"{r} could run and got nothing in {self.passed_limit} calls in a row, "
                    "while a request behind it was served in each",
                )
        for r in tokens:
            self.passed.pop(r, None)
            self.behind.pop(r, None)
            self.overtaken.pop(r, None)

    def _call(self, record: T.Sched) -> None:
        """Decisions of one scheduling call."""
        held = dict(self.held)
        refused: dict[str, T.Refuse] = {}
        victim: T.Preempt | None = None
        gained = 0
        for e in record.ev:
            if isinstance(e, T.Preempt):
                self._end_preempt(victim, gained)
                victim, gained = e, 0
            elif isinstance(e, T.Free) and victim is not None and e.r == victim.r:
                gained += len(e.blocks)
            elif isinstance(e, (T.Alloc, T.Share)):
                refused.pop(e.r, None)
                if isinstance(e, T.Alloc) and not held.get(e.r):
                    self._newcomer(e.r, refused)
            elif isinstance(e, T.Refuse):
                refused[e.r] = e
            elif isinstance(e, (T.Admit, T.Load)):
                refused.pop(e.r, None)
            self._one(e, held)
        self.refused = set(refused)
        self._end_preempt(victim, gained)

    def _end_preempt(self, victim: T.Preempt | None, gained: int) -> None:
        if victim is not None and victim.target and victim.r != victim.target and gained == 0:
            self.found(
                "NoZeroPre",
                f"{victim.r} was preempted for {victim.target}, which gained no block in that call",
            )

    def _newcomer(self, r: str, refused: dict[str, T.Refuse]) -> None:
        """``r`` held nothing and is given blocks while ``refused`` requests, some ahead of it, wait."""
        for ahead in refused:
            if self.place.get(ahead, (0, 0.0)) < self.place.get(r, (0, 0.0)):
                self.found("NoInversion", f"{ahead} was refused, {r} behind it was given blocks")
                return
