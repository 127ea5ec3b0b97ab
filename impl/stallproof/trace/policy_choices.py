"""Policy layer: whom a call serves, refuses, puts off and takes blocks from, beside the model's choice.

One method per decision of ``SchedX`` in ``spec/Sched.tla``. Where a trace does not tell what the scheduler
asked for (how many tokens of a prefill, whether blocks hit are free), a bound is used that the true value
cannot pass, so that a finding is certain. Counts of blocks follow from tokens only in a plain engine (one
group, full attention); elsewhere those comparisons are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import schema as s
from .ledger import Ledger, Req
from .schema import FINISHED, HELD, LOADING, PREEMPTED, RECEIVED, RUNNING, WAITING

#: full calls in a row in which an older request that is ready may go without tokens beside a younger prefill
SHARE_CALLS = 4


class Choices:
    """Hooks on a ledger; ``bad(rule, text, **fields)`` gets each violation."""

    def __init__(self, ledger: Ledger, bad: Callable[..., None], failed: set[str]) -> None:
        self.led, self.bad = ledger, bad
        self.failed = failed  # gave up the blocks of a failed load in this call: holders, still
        self.rules: frozenset[str] = frozenset()
        self.episode: int | None = None  # processed step at which the engine's present wait began
        self.put_off: dict[str, float] = {}  # request -> time of the first "not yet" in a row
        self.unserved: tuple[str, int] = ("", 0)  # older ready request, full calls it went without
        self.turned: set[str] = set()  # sessions that have not been served since their turn came
        self._new_call()
        for kind in (s.Alloc, s.Share):
            ledger.before(kind, self._grant)
        ledger.before(s.Preempt, self._preempt)
        ledger.before(s.Evict, self._evict)
        ledger.before(s.Wait, self._wait)
        ledger.before(s.Admit, self._admit)
        ledger.before(s.Load, self._load)
        ledger.after(s.Refuse, self._refuse)
        ledger.after(s.NotYet, self._not_yet)
        ledger.after(s.Expire, self._expire)
        ledger.after(s.Finish, self._finish)
        ledger.after(s.Turn, lambda e: self.turned.add(e.r))

    def _new_call(self) -> None:
        self.waited = ""  # the request that waits in this call
        self.closed = ""  # the request whose refusal or victim closed this call's admissions
        self.taken = 0  # victims of preemption
        self.newcomers: dict[str, None] = {}
        self.holder: Req | None = None  # the last holder admitted
        self.asked: set[str] = set()  # answered "not yet"
        self.expired: set[str] = set()  # not asked any more, and not decided on yet
        self.refused: set[str] = set()
        self.reserved = ""  # refused last, for what is kept back for others

    def forget(self) -> None:
        """The state was replaced by a snapshot."""
        self.episode = None
        self.put_off.clear()
        self.unserved = ("", 0)
        self._new_call()

    # ------------------------------------------------------------------ bounds

    def _most(self, q: Req) -> int:
        """Blocks that ``q`` can ask for in a call, at most."""
        c = self.led.config
        tokens = max(q.prompt + q.out, q.comp + 1) + 2 * c.lookahead
        return max(0, -(-tokens // c.block_size) - len(q.blocks))

    def _parked(self, target: Req) -> list[Req]:
        """Holders that do not run, whose blocks no transfer writes, and that ``target`` may evict."""
        return [
            q
            for q in self.led.reqs.values()
            if q is not target
            and q.blocks
            and q.st != FINISHED  # a session that ended between turns, its send outstanding
            and (q.awaits == "session" or (q.st in (RECEIVED, HELD) and q.place > target.place))
        ]

    def _gain(self, q: Req) -> int:
        """Blocks that nobody else holds."""
        extra = self.led.extra
        return sum(b not in extra for b in q.blocks) if extra else len(q.blocks)

    @property
    def _immediate(self) -> bool:
        """What is given up is free at once."""
        return self.led.config.fence_mode in ("GateLoads", "None")

    # ------------------------------------------------------------------ victims

    def _preempt(self, e: s.Preempt) -> None:
        led = self.led
        victim, target = led.running.get(e.r), led.reqs.get(e.target)
        if victim is None or target is None:  # for nobody: a reset of the cache
            return
        if "VictimOrder" in self.rules:
            last = max(led.running.values(), key=lambda q: q.place)
            if last.place > victim.place:
                self.bad(
                    "VictimOrder",
                    f"{e.r} is preempted though {last.r}, which runs too, is behind it",
                    field="ev.preempt.r",
                    expected=f"the youngest running request, {last.r}",
                    observed=e.r,
                    requests=[e.target, e.r, last.r],
                )
        self._sure(target, "preempts")
        if "Patience" in self.rules and self._immediate and not self.taken:
            limit = led.config.patience
            working = any(led.in_flight.values())
            waited = led.processed - self.episode if self.episode is not None else 0
            if working and limit and waited < limit:
                self.bad(
                    "Patience",
                    f"{e.r} is preempted for {e.target}, which has waited for {waited} processed steps",
                    field="ev.preempt.r",
                    expected=f"a wait of {limit} while a step is in flight",
                    observed=waited,
                    requests=[e.target, e.r],
                )
        self.taken += 1
        self.closed = self.closed or e.target

    def _sure(self, target: Req, does: str) -> None:
        """A running request is refused: evicting holders behind it would have been sure to help."""
        led = self.led
        if "Commit" not in self.rules or not led.config.plain or not self._immediate:
            return
        parked = self._parked(target)
        gain = sum(self._gain(q) for q in parked)
        need = self._most(target)
        if gain and len(led.pool) + gain >= need:
            self.bad(
                "Commit",
                f"{target.r} {does} though holders behind it that do not run could give {gain} blocks",
                field="ev.evict",
                expected=f"evictions: {need} blocks suffice, {len(led.pool)} are free",
                observed=does,
                requests=[target.r, *(q.r for q in parked[:3])],
            )

    def _evict(self, e: s.Evict) -> None:
        led = self.led
        victim, target = led.reqs.get(e.r), led.reqs.get(e.target)
        if victim is None or target is None:
            return
        if "VictimOrder" in self.rules and self._immediate and victim.awaits != "session":
            for q in self._parked(target):
                if q is not victim and self._gain(q) and (q.awaits == "session" or q.place > victim.place):
                    self.bad(
                        "VictimOrder",
                        f"{e.r} is evicted though {q.r}, which holds blocks and does not run, is behind it",
                        field="ev.evict.r",
                        expected=f"the youngest holder, {q.r}",
                        observed=e.r,
                        requests=[e.target, e.r, q.r],
                    )
                    break
        if "Commit" in self.rules and led.config.plain:
            need = self._most(target) + led.config.watermark
            # a load, too, needs room beside what is kept back; only idle sessions make room for one
            load = victim.awaits == "session" and target.st != RUNNING
            if load or self.reserved == e.target:
                others = [o for o in led.reqs.values() if o is not target and _reserves(o)]
                need += sum(self._most(o) for o in others)
                ahead = led.config.lookahead
                if ahead:  # for a step of each that drafts, from 0.31 on
                    need += -(-(1 + 2 * ahead) // led.config.block_size) * (len(others) + 1)
            if need <= len(led.pool):
                self.bad(
                    "Commit",
                    f"{e.r} is evicted for {e.target}, which has room without it",
                    field="ev.evict.r",
                    expected=f"no eviction: at most {need} blocks are needed",
                    observed=f"{len(led.pool)} free",
                    requests=[e.target, e.r],
                )

    # ------------------------------------------------------------------ waiting for steps in flight

    def _wait(self, e: s.Wait) -> None:
        if "Patience" in self.rules:
            led, limit = self.led, self.led.config.patience
            if self.episode is None:
                self.episode = led.processed
            waited = led.processed - self.episode
            if waited >= limit:
                self.bad(
                    "Patience",
                    f"{e.r} goes on waiting after {waited} processed steps",
                    field="ev.wait.r",
                    expected=f"a wait of at most {limit}",
                    observed=waited,
                    requests=[e.r],
                )
            if not any(led.in_flight.values()):
                self.bad(
                    "Patience",
                    f"{e.r} waits though no step with tokens is in flight",
                    field="ev.wait.r",
                    expected="a step that may free blocks",
                    observed="none",
                    requests=[e.r],
                )
        target = self.led.reqs.get(e.r)
        if target is not None:
            self._sure(target, "waits")
        self.waited = e.r
        self.closed = self.closed or e.r

    # ------------------------------------------------------------------ admissions

    def _grant(self, e: Any) -> None:
        q = self.led.reqs.get(e.r)
        if q is not None and not q.blocks and q.st != RUNNING and e.r not in self.failed:
            self.newcomers.setdefault(e.r)
        self._decided(e.r)

    def _door(self, r: str, what: str) -> None:
        if self.closed and "NoInversion" in self.rules:
            self.bad(
                "NoInversion",
                f"{r} {what} though {self.closed}, a running request, was refused in this call",
                field="ev.admit.r",
                expected="no admission after a wait or a victim",
                observed=r,
                requests=[self.closed, r],
            )

    def _load(self, e: s.Load) -> None:
        self._door(e.r, "is given blocks for a load")
        self._decided(e.r)

    def _admit(self, e: s.Admit) -> None:
        self._door(e.r, "is admitted")
        self._decided(e.r)
        q = self.led.reqs.get(e.r)
        turned = e.r in self.turned
        self.turned.discard(e.r)
        if q is None or "OneOrder" not in self.rules or e.r in self.newcomers:
            return
        if turned and self._older_waits(q):
            return  # it may begin its turn at its place, behind those that hold nothing, for a call
        ahead = next((r for r in self.newcomers if r != e.r), "")
        if ahead:
            self.bad(
                "OneOrder",
                f"{e.r} holds blocks and is served after {ahead}, which held none",
                field="ev.admit.r",
                expected="holders first",
                observed=f"{ahead}, {e.r}",
                requests=[e.r, ahead],
            )
        if self.holder is not None and self.holder.place > q.place:
            self.bad(
                "OneOrder",
                f"{e.r} is served after {self.holder.r}, a holder behind it",
                field="ev.admit.r",
                expected="scheduling order",
                observed=f"{self.holder.r}, {e.r}",
                requests=[e.r, self.holder.r],
            )
        self.holder = q

    def _older_waits(self, q: Req) -> bool:
        """Somebody ahead of ``q`` held nothing when the call began."""
        return any(
            o.place < q.place and (o.r in self.newcomers or (o.st in (WAITING, PREEMPTED) and not o.blocks))
            for o in self.led.reqs.values()
        )

    # ------------------------------------------------------------------ refusals

    def _refuse(self, e: s.Refuse) -> None:
        led, c = self.led, self.led.config
        self.refused.add(e.r)
        self.reserved = e.r if e.why == "reserved" else ""
        self._decided(e.r)
        q = led.reqs.get(e.r)
        if q is None or not c.plain or e.need < 0:
            return
        # a hit that ends inside a block is copied: one block more than the tokens tell
        room = len(led.pool) - c.watermark - int(c.prefix_caching)
        most = max(self._most(q), e.need)
        if e.why == "fit" and "FullFit" in self.rules and most <= room:
            self.bad(
                "FullFit",
                f"{e.r} is refused though all of it fits",
                field="ev.refuse.r",
                expected=f"admitted: {most} blocks at most",
                observed=f"{len(led.pool)} free",
                requests=[e.r],
            )
        if e.why == "reserved" and "RuleR" in self.rules and not c.lookahead:  # room for drafts is kept, too
            others = [o for o in led.reqs.values() if o is not q and _reserves(o)]
            kept = sum(self._most(o) for o in others)
            if most + kept <= room:
                self.bad(
                    "RuleR",
                    f"{e.r} is refused for reservations that nobody needs",
                    field="ev.refuse.r",
                    expected=f"admitted: {most} blocks, {kept} for others at most",
                    observed=f"{len(led.pool)} free",
                    requests=[e.r, *(o.r for o in others[:3])],
                )

    # ------------------------------------------------------------------ answers of the connector

    def _not_yet(self, e: s.NotYet) -> None:
        self.asked.add(e.r)
        self.put_off.setdefault(e.r, self.led.ts)

    def _expire(self, e: s.Expire) -> None:
        if e.what != "deferral" or "DeferralDeadline" not in self.rules:
            return
        if e.r not in self.asked:
            self.bad(
                "DeferralDeadline",
                f"{e.r} is no longer asked for, though its connector did not put it off in this call",
                field="ev.expire.r",
                expected='an answer "not yet" before',
                observed="none",
                requests=[e.r],
            )
        self.expired.add(e.r)

    def _decided(self, r: str) -> None:
        """The call went on with ``r``: its connector has answered, or is no longer asked."""
        if self.put_off and r in self.put_off and (r not in self.asked or r in self.expired):
            if r not in self.expired:
                del self.put_off[r]
            self.expired.discard(r)

    def _finish(self, e: s.Finish) -> None:
        self.put_off.pop(e.r, None)
        self.turned.discard(e.r)

    def _deferrals(self) -> None:
        led = self.led
        for r in sorted(self.expired):
            self.bad(
                "DeferralDeadline",
                f"the connector has put {r} off for too long, and the call still does nothing with it",
                field="ev.expire.r",
                event=-1,
                expected="computed here, or refused",
                observed="put off",
                requests=[r],
            )
        limit = led.config.deferral
        for r in self.asked - self.expired if limit else ():
            first = self.put_off.get(r, led.ts)
            if led.ts - first > limit * 1.5 + 1.0 and r in led.reqs and not self._told_expired(r):
                self.bad(
                    "DeferralDeadline",
                    f"the connector goes on putting {r} off",
                    field="ev.not_yet.r",
                    event=-1,
                    expected=f"within {limit:g} s",
                    observed=f"{led.ts - first:.1f} s",
                    requests=[r],
                )
                self.put_off[r] = led.ts  # once per period

    def _told_expired(self, r: str) -> bool:
        return r in self.refused or r in self.newcomers or self.led.reqs[r].st in (RUNNING, FINISHED)

    # ------------------------------------------------------------------ a share of the budget

    def _share(self, rec: s.Sched) -> None:
        """The oldest request that is ready gets tokens beside a younger prefill, some calls later at most."""
        led, c = self.led, self.led.config
        full = (
            sum(rec.tok.values()) >= c.max_num_batched_tokens > 0
            and led.pause == "none" and not self.closed and len(led.running) < c.max_num_seqs
        )  # fmt: skip
        ready = [
            q for q in led.reqs.values()
            if q.st in (WAITING, PREEMPTED, HELD, RECEIVED) and not q.awaits
            and q.r not in self.refused and q.r not in self.asked
        ] if full else []  # fmt: skip
        if not ready:
            self.unserved = ("", 0)
            return
        r = min(ready, key=lambda q: (not q.blocks, q.place))
        known = self.unserved[1] if self.unserved[0] == r.r else 0
        younger = [
            q.r for q in led.running.values()
            if q.place > r.place and rec.tok.get(q.r, 0) > 1 and q.r not in self.newcomers
        ]  # fmt: skip
        self.unserved = (r.r, known + 1 if younger else 0)
        if self.unserved[1] == SHARE_CALLS:
            self.bad(
                "BudgetShare",
                f"{r.r} is ready and got no token in {SHARE_CALLS} full calls, while {younger[0]}, a prefill "
                "behind it, did",
                field="tok",
                event=-1,
                expected="part of the budget",
                observed="none",
                requests=[r.r, *younger[:3]],
            )

    # ------------------------------------------------------------------ the end of a call

    def after(self, rec: s.Record) -> None:
        if type(rec) is not s.Sched:
            return
        if not self.waited or self.taken:
            self.episode = None
        if self.asked or self.expired:
            self._deferrals()
        # a trace does not tell who waits for an adapter
        if "BudgetShare" in self.rules and "AdapterShare" not in self.rules:
            self._share(rec)
        self._new_call()


def _reserves(q: Req) -> bool:
    """Blocks are kept for it: it loads, has loaded, or is in its prefill."""
    return q.st in (LOADING, RECEIVED, HELD) or (q.st == RUNNING and q.comp < q.prompt + q.out)
