"""Progress layer: the promise's progress and fairness properties on a finite trace, for any engine.

Liveness cannot be refuted by a finite trace. Each property is checked as a *bounded response* instead, with a
stated, configurable threshold; what stays below its threshold when the trace ends is reported as *cannot
tell yet*.

* NoZeroPre: a preemption makes the pool usable by its target grow in the same call.
* EvictCoupled: the target of a lateral eviction is running when the call ends.
* NoWedge: unfinished work, nothing pending outside, and so many calls in a row change nothing.
* Termination: tokens are scheduled or requests preempted for so many calls without one new token, one token
  computed for the first time, or one finish: a livelock.
* NoStarvation: a request is refused so often without progress while so many requests behind it in scheduling
  order, which held nothing, were served.
* BoundedWait: a load outlives its deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from . import schema as s
from .ledger import Ledger, Report, Req, Violation, some
from .schema import FINISHED, LOADING, RUNNING


class Thresholds(Struct, frozen=True):
    """Bounds of the bounded-response checks. Calls are scheduling calls."""

    wedge_calls: int = 3  #: calls in a row, beyond the batches in flight, that change nothing
    livelock_calls: int = 200  #: working calls in a row without progress
    starve_calls: int = 32  #: calls in which one request was refused without progress
    starve_served: int = 8  #: requests behind it that held nothing and were served meanwhile
    deadline: float = 0.0  #: seconds; 0: the recording's own, if any


class _Starving:
    __slots__ = ("calls", "first", "held", "line", "need", "path", "served", "step", "told")

    def __init__(self, path: str, line: int, step: int, held: int) -> None:
        self.path, self.line, self.step, self.held = path, line, step, held
        self.calls = 0
        self.need = -1
        self.served: dict[str, int] = {}  # request behind it -> line of its grant
        self.first = ""
        self.told = False


class Progress:
    """Watch a ledger; call ``report`` for violations and answer :meth:`undecided` at the end."""

    def __init__(self, ledger: Ledger, report: Report, thresholds: Thresholds | None = None) -> None:
        self.led, self.report, self.t = ledger, report, thresholds or Thresholds()
        self.starving: dict[str, _Starving] = {}
        self.refused: dict[str, int] = {}
        self.seen: dict[str, int] = {}
        self.dead = self.idle_work = 0
        self.dead_at: tuple[str, int, int] = ("", 0, 0)
        self.work_at: tuple[str, int, int] = ("", 0, 0)
        self.work_tokens = self.work_preempts = 0
        self.changed = False
        self.not_yet = False
        self.wedged = self.livelocked = False
        self.open: tuple[s.Preempt, int, int] | None = None
        self.evicted: list[tuple[s.Evict, int]] = []
        self.late: set[tuple[str, int]] = set()
        # totals for the summary
        self.tokens = self.scheduled = self.preempts = self.evicts = self.loads = 0
        self.reads = 0
        led = ledger
        for kind in (s.Alloc, s.Share):
            led.before(kind, self._grant)
        led.before(s.Preempt, self._settle)
        led.after(s.Preempt, self._preempt)
        led.after(s.Refuse, self._refuse)
        led.after(s.Evict, self._evict)
        led.after(s.NotYet, self._not_yet)
        led.after(s.Load, self._load)
        led.after(s.Finish, self._finish)

    # ------------------------------------------------------------------ events

    def bad(self, rule: str, text: str, at: tuple[str, int, int] | None = None, **kw: Any) -> None:
        led = self.led
        path, line, step = at or (led.path, led.line, led.step)
        for name in ("expected", "observed"):
            if name in kw:
                kw[name] = str(kw[name])
        self.report(Violation(rule=rule, layer="progress", text=text, path=path, line=line, step=step, **kw))

    def _grant(self, e: Any) -> None:
        if self.open:
            self._settle(e)
        self.refused.pop(e.r, None)
        if self.starving:
            q = self.led.reqs.get(e.r)
            if q is not None and not q.blocks and q.st != RUNNING:
                place = q.place
                for r, st in self.starving.items():
                    ahead = self.led.reqs[r]
                    if r != e.r and ahead.place < place and ahead.st != LOADING:  # loading, it is served
                        st.served[e.r] = self.led.line

    def _settle(self, e: Any) -> None:
        """The last preemption is over: did the pool grow?"""
        if self.open is None:
            return
        p, size, index = self.open
        self.open = None
        led = self.led
        if len(led.pool) <= size and p.target and p.target != p.r:
            victim = led.reqs.get(p.r)
            why = (
                "its blocks wait for a step in flight" if any(led.deferred) else "others hold its blocks too"
            )
            self.bad(
                "NoZeroPre",
                f"{p.r} is preempted for {p.target}, which can use no block more: {why}",
                event=index,
                field="ev.preempt.r",
                expected="the pool grows in the same call",
                observed=f"{len(led.pool)} free before and after",
                requests=[p.target, p.r] if victim else [p.target],
            )

    def _preempt(self, e: s.Preempt) -> None:
        self.open = (e, len(self.led.pool), self.led.event)
        self.preempts += 1
        self.work_preempts += 1

    def _evict(self, e: s.Evict) -> None:
        self.evicts += 1
        self.evicted.append((e, self.led.event))

    def _refuse(self, e: s.Refuse) -> None:
        if self.open:
            self._settle(e)
        if e.why in ("budget", "slots", "adapter"):  # not for blocks; who frees one is not in a trace
            return
        self.refused[e.r] = e.need

    def _not_yet(self, e: s.NotYet) -> None:
        self.not_yet = True

    def _load(self, e: s.Load) -> None:
        self.loads += 1

    def _finish(self, e: s.Finish) -> None:
        self.starving.pop(e.r, None)
        self.seen.pop(e.r, None)
        self.idle_work = 0
        self.work_tokens = self.work_preempts = 0

    # ------------------------------------------------------------------ records

    def after(self, rec: s.Record) -> None:
        """The ledger has applied ``rec``."""
        kind = type(rec)
        if kind is s.Sched:
            self._sched(rec)  # type: ignore[arg-type]
        elif kind is s.Update:
            out = rec.out  # type: ignore[union-attr]
            if out:
                self.tokens += sum(out.values())
                self._progressed()
            if rec.ev:  # type: ignore[union-attr]
                self.changed = True
        elif kind is s.Outside:
            self.changed = True
            self.refused.clear()
        if self.open:
            self._settle(None)

    def _progressed(self) -> None:
        self.idle_work = 0
        self.work_tokens = self.work_preempts = 0
        self.livelocked = False

    def _sched(self, rec: s.Sched) -> None:
        led = self.led
        if self.open:
            self._settle(None)
        for e, index in self.evicted:
            idle = e.r in led.reqs and led.reqs[e.r].awaits == "session"
            if e.target not in led.running and not (idle and e.target in led.loads):
                self.bad(
                    "EvictCoupled",
                    f"{e.r} is evicted for {e.target}, which does not run in this call",
                    event=index,
                    field="ev.evict.target",
                    expected=RUNNING,
                    observed=led.reqs[e.target].st if e.target in led.reqs else "unknown",
                    requests=[e.target, e.r],
                )
        self.evicted.clear()
        self._starvation(rec)
        self._wedge(rec)
        self._livelock(rec)
        self._deadlines()
        self.refused.clear()
        self.not_yet = False

    def _starvation(self, rec: s.Sched) -> None:
        led, tok, t = self.led, rec.tok, self.t
        if self.starving:
            for r in [r for r in self.starving if r in tok or r not in led.reqs]:
                del self.starving[r]
        for r, need in self.refused.items():
            if r in tok:
                continue
            q = led.reqs.get(r)
            if q is None or q.st == FINISHED:
                continue
            st = self.starving.get(r)
            if st is None:
                st = self.starving[r] = _Starving(led.path, led.line, rec.step, len(q.blocks))
            st.calls += 1
            st.need = need
            enough = t.starve_served + (led.config.max_num_seqs if led.adapters else 0)
            if not st.told and st.calls >= t.starve_calls and len(st.served) >= enough:
                st.told = True
                self.bad(
                    "NoStarvation",
                    f"{r} ({q.st}) has been refused in {st.calls} calls since step {st.step} without one "
                    f"token, while {len(st.served)} requests behind it that held nothing were given blocks",
                    field="ev.refuse.r",
                    expected="no newcomer behind a refused request is served",
                    observed=f"{len(st.served)} were",
                    requests=[r, *list(st.served)[-3:]],
                    evidence=[
                        f"first refused at {st.path}:{st.line}, step {st.step}, holding {st.held} blocks",
                        f"served meanwhile: {some(list(st.served)[-6:])}",
                    ],
                )

    def pending(self) -> list[str]:
        """What happens outside the scheduler and may still change something."""
        led = self.led
        out = []
        work = [n for n, tok in led.in_flight.items() if tok and n != led.step]
        if work:
            out.append(f"step {some(work)} in flight")
        started = [r for r, load in led.loads.items() if load.started]
        if started:
            out.append(f"load of {some(started)}")
        # one whose blocks were pinned under its name was given up: the scheduler counts on it no longer
        reading = [job for job in led.stores if job not in led.pins]
        if reading:
            out.append(f"store or send {some(reading)}")
        parked = [q.r for q in led.reqs.values() if q.awaits]
        if parked:
            out.append(f"{some(parked)} parked")
        if led.pause != "none":
            out.append(f"engine paused ({led.pause})")
        if self.not_yet:
            out.append("a connector's answer")
        if led.deferred and any(step > led.processed for step, _ in led.deferred):
            out.append("blocks fenced by a step in flight")
        return out

    def _wedge(self, rec: s.Sched) -> None:
        led = self.led
        inert = not rec.tok and all(type(e) in _INERT for e in rec.ev) and not self.changed
        self.changed = False
        if not inert or self.pending():
            self.dead, self.wedged = 0, False
            return
        waiting = [q for q in led.reqs.values() if q.st != FINISHED]
        if not waiting:
            self.dead = 0
            return
        if not self.dead:
            self.dead_at = (led.path, led.line, rec.step)
        self.dead += 1
        if self.dead >= self.t.wedge_calls + led.config.depth and not self.wedged:
            self.wedged = True
            self.bad(
                "NoWedge",
                f"{len(waiting)} unfinished requests, nothing pending outside, and {self.dead} calls in a "
                "row change nothing",
                at=self.dead_at,
                field="tok, ev",
                expected="a token, a load start, an eviction towards a run, or a finish",
                observed="nothing",
                requests=[q.r for q in sorted(waiting, key=lambda q: q.place)][:8],
                evidence=[
                    f"{r} asks for {need} new blocks, {len(led.pool)} are free"
                    for r, need in list(self.refused.items())[:4]
                    if need > 0
                ],
            )

    def _livelock(self, rec: s.Sched) -> None:
        led = self.led
        tok = rec.tok
        if not tok and not self.work_preempts:
            return
        new = False
        if self.idle_work or len(tok) < 64:
            seen, reqs = self.seen, led.reqs
            for r in tok:
                q = reqs.get(r)
                if q is not None and q.comp > seen.get(r, 0):
                    if q.comp <= q.prompt:
                        new = True
                    seen[r] = q.comp
        self.scheduled += sum(tok.values())
        if new:
            self._progressed()
            return
        if not self.idle_work:
            self.work_at = (led.path, led.line, rec.step)
        self.idle_work += 1
        self.work_tokens += sum(tok.values())
        if self.idle_work >= self.t.livelock_calls and not self.livelocked:
            self.livelocked = True
            live = [q.r for q in led.reqs.values() if q.st != FINISHED]
            self.bad(
                "Termination",
                f"livelock: {self.idle_work} working calls with {self.work_preempts} preemptions and "
                f"{self.work_tokens} scheduled tokens, but no output token, nothing computed for the first "
                "time and nothing finished",
                at=self.work_at,
                field="out",
                expected="progress",
                observed="none",
                requests=live[:8],
            )

    def _deadlines(self) -> None:
        led = self.led
        limit = self.t.deadline or led.config.deadline
        if not limit or not led.loads or not led.ts:
            return
        for r, load in led.loads.items():
            key = (r, load.gen)
            if load.started and load.ts and led.ts - load.ts > limit * 1.5 + 1.0 and key not in self.late:
                self.late.add(key)
                self.bad(
                    "BoundedWait",
                    f"load {load.gen} of {r} has neither completed nor failed nor expired",
                    field="ev.recv",
                    expected=f"within {limit:g} s",
                    observed=f"{led.ts - load.ts:.1f} s",
                    requests=[r],
                    blocks=sorted(load.blocks)[:8],
                )

    # ------------------------------------------------------------------ the end

    def undecided(self) -> list[str]:
        """What looks like a stall but has not lasted long enough when the trace ends."""
        t, out = self.t, []
        if self.dead and not self.wedged:
            out.append(
                f"NoWedge: the last {self.dead} calls changed nothing (a finding from "
                f"{t.wedge_calls + self.led.config.depth})"
            )
        if self.idle_work >= max(8, t.livelock_calls // 4) and not self.livelocked:
            out.append(
                f"Termination: {self.idle_work} working calls without progress (a finding from "
                f"{t.livelock_calls})"
            )
        for r, st in self.starving.items():
            if st.served and not st.told:
                out.append(
                    f"NoStarvation: {r} refused in {st.calls} calls while {len(st.served)} behind it were "
                    f"served (a finding from {t.starve_calls} and {t.starve_served})"
                )
        return out

    def asked(self) -> dict[str, tuple[int, int]]:
        """Refused requests: blocks asked for, and in how many calls."""
        asked = {r: (need, 1) for r, need in self.refused.items()}
        asked.update({r: (st.need, st.calls) for r, st in self.starving.items()})
        return asked

    def forget(self) -> None:
        """The state was replaced by a snapshot: what was counted before it no longer applies."""
        self.starving.clear()
        self.refused.clear()
        self.seen.clear()
        self.dead = self.idle_work = 0
        self.open = None
        self.evicted.clear()


_INERT = frozenset({s.Refuse, s.NotYet, s.Wait, s.Ignored})

Hook = Callable[[Any], None]

__all__ = ["Progress", "Req", "Thresholds"]
