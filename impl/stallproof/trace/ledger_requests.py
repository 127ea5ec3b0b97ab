"""Ledger: the life of requests."""

from __future__ import annotations

from typing import Any

from . import schema as s
from .ledger_state import Req, some
from .ledger_transfers import Transfers
from .schema import FINISHED, HELD, PREEMPTED, RECEIVED, RUNNING, WAITING


class Requests(Transfers):
    """Arrivals, admissions, preemptions, ends."""

    def known(self, e: Any) -> None:
        self.req(e.r, "a decision")

    def refuse(self, e: s.Refuse) -> None:
        self.req(e.r, "a refusal")
        self.last_refused = e.r
        self.refusals.add(e.r)
        if self.beneficiary:
            self.asks(e.r)

    def wait(self, e: s.Wait) -> None:
        q = self.req(e.r, "a wait")
        if q is not None and q.st != RUNNING:
            self._state(e.r, "waits for blocks as a running request", RUNNING, q.st, "ev.wait.r")
        elif self.refusals and e.r not in self.refusals:
            self.bad(
                "Queues",
                f"{e.r} waits for blocks, but {some(sorted(self.refusals))} was refused",
                field="ev.wait.r",
                expected=some(sorted(self.refusals)),
                observed=e.r,
                requests=[e.r, *sorted(self.refusals)],
            )

    def _state(self, r: str, text: str, expected: str, observed: str, field: str) -> None:
        self.bad(
            "Queues",
            f"{r} {text} but is {observed}",
            field=field,
            expected=expected,
            observed=observed,
            requests=[r],
        )

    def add(self, e: s.Add) -> None:
        if e.r in self.reqs:
            self.bad(
                "Requests",
                f"{e.r} arrives a second time",
                field="ev.add.r",
                expected="a new id",
                observed=e.r,
                requests=[e.r],
            )
            return
        self.reqs[e.r] = Req(e.r, e.prio, e.arr, e.prompt, e.max_tokens)

    def admit(self, e: s.Admit) -> None:
        q = self.req(e.r, "an admission")
        if self.beneficiary:
            self.asks(e.r)  # it had room for what it gets; the victim was for what it will get (full fit)
        if q is None:
            return
        if q.st == RUNNING or q.st == FINISHED:
            self._state(e.r, "enters RUNNING", "not running, not finished", q.st, "ev.admit.r")
        load = self.loads.get(e.r)
        if load is not None and load.mode == "async":
            self.bad(
                "XferSafe",
                f"{e.r} runs while its load {load.gen} is unfinished",
                field="ev.admit.r",
                expected="the load has ended",
                observed="unfinished",
                requests=[e.r],
            )
        if q.st == RECEIVED:
            self._state(e.r, "enters RUNNING", "promoted first", q.st, "ev.promote.r")
        self._computed(q, e.comp)
        q.st = RUNNING
        q.since = self.step
        q.exact = e.comp >= 0 and self.config.groups == 1
        q.comp = q.pcomp = max(e.comp, 0)
        self.running[e.r] = q

    def _computed(self, q: Req, comp: int) -> None:
        """Tokens computed at admission are those of prefix hits and of the load, one less if that is all."""
        if comp < 0 or not self.config.plain or q.hits < 0 or q.loaded < 0:
            return
        known, brought = q.prompt + q.out, q.hits * self.config.block_size + q.loaded
        if comp != min(brought, known - 1):
            self.bad(
                "Tokens",
                f"{q.r} is admitted with {comp} tokens computed; hits and loads brought {brought}",
                field="ev.admit.comp",
                expected=min(brought, known - 1),
                observed=comp,
                requests=[q.r],
            )

    def promote(self, e: s.Promote) -> None:
        q = self.req(e.r, "a promotion")
        if q is None:
            return
        if q.st != RECEIVED:
            self._state(e.r, "is promoted", RECEIVED, q.st, "ev.promote.r")
        q.st = HELD

    def preempt(self, e: s.Preempt) -> None:
        q = self.req(e.r, "a preemption")
        if q is None:
            return
        if q.st != RUNNING:
            self._state(e.r, "is preempted", RUNNING, q.st, "ev.preempt.r")
        if e.target:
            self.req(e.target, "a preemption")
        if self.beneficiary and self.beneficiary != e.target:
            self.asks(e.target)
        self.beneficiary, self.lateral = (e.target if e.target != e.r else ""), False
        if e.target == e.r and self.last_refused not in ("", e.r):
            self.beneficiary = self.last_refused
            self.asks(e.r)
        self.running.pop(e.r, None)
        q.st = PREEMPTED
        q.comp = q.pcomp = 0
        q.exact = False
        self.victims.append(q)

    def evict(self, e: s.Evict) -> None:
        q = self.req(e.r, "an eviction")
        if q is None:
            return
        if q.st in (RUNNING, FINISHED) or not q.blocks:
            self._state(
                e.r,
                "is evicted",
                "a holder that is not running",
                q.st if q.blocks else f"{q.st} without blocks",
                "ev.evict.r",
            )
        self.req(e.target, "an eviction")
        if self.beneficiary and self.beneficiary != e.target:
            self.asks(e.target)
        self.beneficiary, self.lateral = e.target, True
        if q.st != FINISHED:
            q.st = WAITING
        self.victims.append(q)

    def expire(self, e: s.Expire) -> None:
        q = self.req(e.r, "an expiry")
        if e.what == "load":
            if e.r in self.expired:
                self.bad(
                    "BoundedWait",
                    f"the load of {e.r} expires twice",
                    field="ev.expire.r",
                    expected="once",
                    observed="twice",
                    requests=[e.r],
                )
            self.expired.add(e.r)
        if q is not None and e.what == "load" and e.r not in self.loads:
            self.bad(
                "BoundedWait",
                f"a load of {e.r} expires, which has none",
                field="ev.expire.r",
                expected="an unfinished load",
                observed="none",
                requests=[e.r],
            )

    def finish(self, e: s.Finish) -> None:
        q = self.req(e.r, "a finish")
        if q is None:
            return
        if q.st == FINISHED:
            self.bad(
                "Requests",
                f"{e.r} finishes twice",
                field="ev.finish.r",
                expected="unfinished",
                observed=FINISHED,
                requests=[e.r],
            )
        if e.out >= 0 and e.out != q.out:
            self.bad(
                "Tokens",
                f"{e.r} ends with another number of output tokens than its steps gave it",
                field="ev.finish.out",
                expected=q.out,
                observed=e.out,
                requests=[e.r],
            )
        if e.reason == "length" and e.out >= 0 and e.out > q.max_tokens >= 0:
            self.bad(
                "Tokens",
                f"{e.r} has more tokens than it may get",
                field="ev.finish.out",
                expected=f"at most {q.max_tokens}",
                observed=e.out,
                requests=[e.r],
            )
        self.finished += 1
        self.running.pop(e.r, None)
        q.st, q.how = FINISHED, e.reason
        self.zombies[e.r] = q

    def reset(self, e: s.Reset) -> None:
        if e.ok:
            self.since_reset = set()

    def rewind(self, e: s.Rewind) -> None:
        q = self.req(e.r, "a rewind")
        if q is None:
            return
        if e.comp > q.comp and q.exact:
            self.bad(
                "Tokens",
                f"{e.r} is set back to more tokens than it had",
                field="ev.rewind.comp",
                expected=f"at most {q.comp}",
                observed=e.comp,
                requests=[e.r],
            )
        size = self.config.block_size
        if e.r in self.failing and self.config.plain and e.comp % size:
            self.bad(
                "Tokens",
                f"{e.r} is set back to the middle of a block, though its load failed",
                field="ev.rewind.comp",
                expected=f"a multiple of {size}",
                observed=e.comp,
                requests=[e.r],
            )
        q.comp = e.comp
        q.exact = False

    def park(self, e: s.Park) -> None:
        q = self.req(e.r, "a parking")
        if q is not None:
            q.awaits = e.what
            q.exact = False
            self._leaves(q)

    def unpark(self, e: s.Unpark) -> None:
        q = self.req(e.r, "the end of a parking")
        if q is None:
            return
        if not q.awaits:
            self._state(e.r, "is unparked", "parked", q.st, "ev.unpark.r")
        q.awaits = ""

    def turn(self, e: s.Turn) -> None:
        q = self.req(e.r, "a turn")
        if q is not None:
            q.prompt, q.max_tokens, q.exact = e.prompt, e.max_tokens, False
            q.out = 0  # the new prompt holds what was kept of the output
            q.hits = -1  # what it has computed so far is no longer that of hits and loads
            if e.arr >= 0:
                q.arr = e.arr
            self._leaves(q)

    def _leaves(self, q: Req) -> None:
        """A session whose chunk has ended leaves RUNNING and keeps its blocks."""
        if q.st == RUNNING:
            self.running.pop(q.r, None)
            q.st = HELD if q.blocks else WAITING

    def set_pause(self, e: s.Pause) -> None:
        self.pause = e.state
