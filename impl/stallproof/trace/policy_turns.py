"""Policy layer: a streaming session passes the oldest waiting request with one turn at most (TurnsYield).

Whom a turn passes is settled when the first call after its arrival decides something, as ``Older`` of
``spec/Sched.tla``. Where a trace does not tell whether the oldest can go on (it waits for a grammar), nothing
is concluded, nor where no seat is left: idle sessions are counted on every release, though to 0.24 they take
none, so some violations go unnoticed there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from . import schema as s
from .ledger import Ledger, Req
from .schema import FINISHED, PREEMPTED, RUNNING, WAITING


class Turns:
    """Hooks on a ledger; ``bad(rule, text, **fields)`` gets each violation."""

    def __init__(self, ledger: Ledger, bad: Callable[..., None]) -> None:
        self.led, self.bad = ledger, bad
        self.on = False
        self.begun: set[str] = set()  # sessions whose turn no call has looked at
        #: session -> the oldest that waited when its last turn was looked at, and its place: a turn of that
        #: one is another arrival
        self.passed: dict[str, tuple[str, Any]] = {}
        self.calls = 0  # at the end of the last record
        self.left = 0  # requests that left their seats in this record: the engine takes them away at its end
        for kind in (s.Alloc, s.Share, s.Free, s.Admit, s.Load, s.Preempt, s.Evict, s.Refuse, s.NotYet):
            ledger.before(kind, self._decides)
        ledger.before(s.Turn, self._turn)
        ledger.after(s.Finish, self._finish)

    def begin(self, rules: Collection[str]) -> None:
        """A part begins, in which ``rules`` are in force. Without OneOrder the class keeps no turn."""
        self.on = {"TurnsYield", "OneOrder"} <= set(rules)
        self.calls = 0  # the ledger counts those of a part

    def _older(self) -> Req | None:
        """The oldest that waits and holds nothing (spec: ``Older``)."""
        waiting = (
            q
            for q in self.led.reqs.values()
            if q.st in (WAITING, PREEMPTED) and not q.blocks and q.awaits != "session"
        )
        return min(waiting, key=lambda q: q.place, default=None)

    def _decides(self, _: Any) -> None:
        if self.begun and self.led.calls > self.calls:
            self._look()

    def _look(self) -> None:
        older = self._older()
        for r in self.begun:
            q = self.led.reqs.get(r)
            if q is None or not q.blocks or older is None or older.place >= q.place:
                continue  # it passes nobody, and what its last turn passed stands
            if older.awaits:
                self.passed.pop(r, None)
            else:
                self.passed[r] = older.r, older.place
        self.begun.clear()

    def _turn(self, e: s.Turn) -> None:
        if not self.on:
            return
        q, older = self.led.reqs.get(e.r), self._older()
        holds = q is not None and bool(q.blocks)
        again = older is not None and not older.awaits and self.passed.get(e.r) == (older.r, older.place)
        if older is not None and holds and again and self._seats():
            self.bad(
                "TurnsYield",
                f"{e.r} begins another turn while {older.r}, which its last turn passed, still waits",
                field="ev.turn.r",
                expected=f"{older.r} is served first",
                observed=e.r,
                requests=[e.r, older.r],
            )
        self.begun.add(e.r)
        self.left += q is not None and q.st == RUNNING

    def _seats(self) -> bool:
        """Whether a seat is left beside sessions between turns, and who left one in this record."""
        led = self.led
        idle = sum(q.awaits == "session" and q.st != FINISHED for q in led.reqs.values())
        most = led.config.max_num_seqs
        return not most or len(led.running) + idle + self.left < most

    def _finish(self, e: s.Finish) -> None:
        self.left += 1
        self.begun.discard(e.r)
        self.passed.pop(e.r, None)

    def after(self, rec: s.Record) -> None:
        """The end of a record."""
        if self.begun and type(rec) is s.Sched:
            self._look()
        self.calls, self.left = self.led.calls, 0

    def forget(self) -> None:
        """The state was replaced by a snapshot."""
        self.begun.clear()
        self.passed.clear()
