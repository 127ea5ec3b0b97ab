"""Policy layer: the decisions of our own rules, checked where the header says that they are in force.

A rule has one name everywhere (see :mod:`stallproof.core.rules`). What is checked of each:

* NoInversion: no request behind a refused one that holds nothing is given blocks in that call; a running
  request that waits or takes a victim ends the call's admissions. (A request whose load failed gives its
  blocks up in the call that serves it again: in that call it counts as the holder it was.)
* OneOrder: within a call holders are served first, then those that hold nothing, each in scheduling order.
* TurnsYield: a session's next turn does not begin while the request that its last turn passed is the oldest.
* VictimOrder: victims are behind their target; a victim of preemption is the youngest that runs, a victim of
  eviction the youngest holder that does not.
* RunningOrder: the running list is in scheduling order.
* Commit: nobody is evicted for a request that has room, and no running request waits or preempts while
  evictions would be sure to help.
* Patience: a refused running request waits before it preempts, for at most ``P`` processed steps, only while
  a step with tokens is in flight.
* GateLoads: an asynchronous load is not held back much longer than until every step dispatched at its
  admission, the one being built included, is done (that it starts no earlier than its own blocks allow is
  InFlightSafe).
* FullFit: when a request is admitted, its known tokens fit what it holds and what is free; it is not refused
  for want of room if they do.
* RuleR: when a load is admitted, what running prefills still need stays free; it is not refused for
  reservations that nobody needs (a failed load that left one behind: LoadFailure).
* BudgetShare: an older request that is ready is not kept without tokens by younger prefills, call after call.
* Promotion: a completed load is recognised by the next call.
* DeferralDeadline: a request that its connector put off for too long is decided on in that call.
* Feasible: a request that can never fit finishes at once.

Commit is also checked as EvictCoupled, Completions and LoadDeadline as BoundedWait and XferSafe, DeferFrees
as InFlightSafe and NoLeak; those are checked of every engine.
"""

from __future__ import annotations

from typing import Any

from . import schema as s
from .ledger import Ledger, Report, Req, Violation, least, some
from .policy_choices import Choices
from .policy_turns import Turns
from .schema import RECEIVED, RUNNING

#: rules with a check of their own here
RULES = (
    "NoInversion", "OneOrder", "TurnsYield", "VictimOrder", "RunningOrder", "Commit", "Patience", "GateLoads",
    "FullFit", "RuleR", "BudgetShare", "Promotion", "DeferralDeadline", "Feasible",
)  # fmt: skip
#: rules whose promise is checked of every engine, under these names
ELSEWHERE = {
    "Completions": ("BoundedWait", "XferSafe"),
    "LoadDeadline": ("BoundedWait", "XferSafe"),
    "DeferFrees": ("InFlightSafe", "NoLeak"),
    "LoadFailure": ("RuleR", "NoWedge"),
}
#: rules that no trace shows enough of to check, and why
UNCHECKED = {
    "AdapterShare": "a trace does not name adapters",
    "WaitDeadline": "a trace does not say how long a grammar, a session or a send may take",
}


class Policy:
    def __init__(self, ledger: Ledger, report: Report) -> None:
        self.led, self.report = ledger, report
        self.rules: frozenset[str] = frozenset()
        self.refused: dict[str, int] = {}
        self.newcomers: dict[str, int] = {}
        self.infeasible: dict[str, int] = {}
        self.held: dict[str, int] = {}  # load past its gate -> calls
        self.received: dict[str, int] = {}  # completed load -> step after which it completed
        self.newest: Req | None = None  # the last newcomer served in this call
        self.failed: set[str] = set()  # gave up the blocks of a failed load in this call
        for kind in (s.Alloc, s.Share):
            ledger.before(kind, self._grant)
        ledger.before(s.Free, self._free)
        ledger.after(s.Admit, self._admit)
        ledger.after(s.Load, self._load)
        ledger.after(s.Recv, self._recv)
        ledger.after(s.Refuse, self._refuse)
        ledger.before(s.Preempt, self._victim)
        ledger.before(s.Evict, self._victim)
        ledger.before(s.Start, self._start)
        ledger.after(s.Add, self._add)
        ledger.after(s.Finish, self._finish)
        self.choices = Choices(ledger, self.bad, self.failed)
        self.turns = Turns(ledger, self.bad)

    def header(self, h: s.Header) -> list[str]:
        """Take the rules in force; returns those this build does not know."""
        self.rules = self.choices.rules = frozenset(h.rules)
        self.turns.begin(self.rules)
        return sorted(self.rules - set(RULES) - set(ELSEWHERE) - set(UNCHECKED))

    def bad(self, rule: str, text: str, **kw: Any) -> None:
        led = self.led
        for name in ("expected", "observed"):
            if name in kw:
                kw[name] = str(kw[name])
        kw.setdefault("event", led.event)
        self.report(
            Violation(rule=rule, layer="policy", text=text, path=led.path, line=led.line, step=led.step, **kw)
        )

    # ------------------------------------------------------------------ events

    def _grant(self, e: Any) -> None:
        self.refused.pop(e.r, None)
        q = self.led.reqs.get(e.r)
        if q is None or q.blocks or q.st == RUNNING or e.r in self.failed:
            return
        if e.r not in self.newcomers:
            self.newcomers[e.r] = self.led.event
            if self.newest is not None and "OneOrder" in self.rules and q.place < self.newest.place:
                self.bad(
                    "OneOrder",
                    f"{e.r} is served after {self.newest.r}, which is behind it and held nothing either",
                    field="ev.alloc.r",
                    expected="scheduling order",
                    observed=f"{self.newest.r}, {e.r}",
                    requests=[e.r, self.newest.r],
                )
            self.newest = q

    def _free(self, e: s.Free) -> None:
        q = self.led.reqs.get(e.r)
        if q is not None and q.loaded < 0 and q.st == RECEIVED:
            self.failed.add(e.r)  # the call began with it as a holder, and serves it as one

    def _need(self, q: Req) -> int:
        """Blocks that its known tokens still need."""
        c = self.led.config
        return max(0, -(-(q.prompt + q.out + c.lookahead) // c.block_size) - len(q.blocks))

    def _admit(self, e: s.Admit) -> None:
        led = self.led
        q = led.reqs.get(e.r)
        if q is None or "FullFit" not in self.rules or not led.config.plain:
            return
        need = -(-(q.prompt + q.out) // led.config.block_size) - len(q.blocks)
        if need > len(led.pool):
            self.bad(
                "FullFit",
                f"{e.r} is admitted though its known tokens do not fit",
                field="ev.admit.r",
                expected=f"{need} more blocks free",
                observed=len(led.pool),
                requests=[e.r],
            )

    def _load(self, e: s.Load) -> None:
        led = self.led
        if "RuleR" not in self.rules or not led.config.plain or e.mode != "async":
            return
        need = sum(self._need(q) for q in led.running.values() if q.comp < q.prompt + q.out)
        if need > len(led.pool):
            self.bad(
                "RuleR",
                f"the load of {e.r} leaves too little for running prefills",
                field="ev.load.r",
                expected=f"{need} blocks free",
                observed=len(led.pool),
                requests=[e.r],
            )

    def _recv(self, e: s.Recv) -> None:
        q = self.led.reqs.get(e.r)
        if q is not None and q.st == RECEIVED and "Promotion" in self.rules:
            self.received[e.r] = self.led.step

    def _refuse(self, e: s.Refuse) -> None:
        if e.why not in ("budget", "slots"):
            self.refused[e.r] = self.led.event
        q, c = self.led.reqs.get(e.r), self.led.config
        if (
            q is not None
            and "Feasible" in self.rules
            and c.plain
            and e.r not in self.infeasible
            and least(c, q.prompt + q.out) > c.pool
        ):
            self.infeasible[e.r] = self.led.step + c.depth

    def _victim(self, e: Any) -> None:
        if "VictimOrder" not in self.rules or not e.target or e.target == e.r:
            return
        victim, target = self.led.reqs.get(e.r), self.led.reqs.get(e.target)
        if victim and victim.awaits == "session":
            return  # an idle session competes with nobody
        if victim and target and not victim.place > target.place:
            self.bad(
                "VictimOrder",
                f"{e.r} gives its blocks up for {e.target}, which is behind it",
                field="ev.preempt.target",
                expected=f"a victim behind {target.place}",
                observed=victim.place,
                requests=[e.target, e.r],
            )

    def _start(self, e: s.Start) -> None:
        self.held.pop(e.r, None)  # whether it could start, InFlightSafe says

    def _add(self, e: s.Add) -> None:
        c = self.led.config
        if (
            "Feasible" in self.rules
            and c.plain
            and least(c, e.prompt, min(c.lookahead, 1)) > c.pool  # the first token needs no room
        ):
            self.infeasible[e.r] = self.led.step

    def _finish(self, e: s.Finish) -> None:
        self.infeasible.pop(e.r, None)
        self.held.pop(e.r, None)

    # ------------------------------------------------------------------ records

    def after(self, rec: s.Record) -> None:
        self.turns.after(rec)
        if type(rec) is not s.Sched:
            return
        led = self.led
        self.choices.after(rec)
        if self.refused and self.newcomers and "NoInversion" in self.rules:
            for g, index in self.newcomers.items():
                q = led.reqs.get(g)
                ahead = [r for r in self.refused if r in led.reqs and q and led.reqs[r].place < q.place]
                if ahead:
                    self.bad(
                        "NoInversion",
                        f"{g} holds nothing and is given blocks while {some(ahead)}, ahead of it, is refused",
                        event=index,
                        field="ev.alloc.r",
                        expected=f"nothing for newcomers behind {ahead[0]}",
                        observed=g,
                        requests=[ahead[0], g],
                    )
        self.newcomers.clear()
        self.refused.clear()
        self.failed.clear()
        self.newest = None
        for r, step in list(self.received.items()):
            q = led.reqs.get(r)
            if q is None or q.st != RECEIVED:
                del self.received[r]
            elif led.step > step:
                del self.received[r]
                self.bad(
                    "Promotion",
                    f"the load of {r} has completed after step {step} and is not recognised",
                    field="ev.promote.r",
                    expected="promoted by the next call",
                    observed=q.st,
                    event=-1,
                    requests=[r],
                )
        if rec.run is not None and "RunningOrder" in self.rules:
            places = [led.reqs[r].place for r in rec.run if r in led.reqs]
            for i in range(1, len(places)):
                if places[i] < places[i - 1]:
                    self.bad(
                        "RunningOrder",
                        f"{rec.run[i]} runs behind {rec.run[i - 1]} but is ahead of it in scheduling order",
                        field="run",
                        expected="scheduling order",
                        observed=some(rec.run),
                        event=-1,
                        requests=[rec.run[i - 1], rec.run[i]],
                    )
                    break
        if "GateLoads" in self.rules and led.loads:
            for r, load in led.loads.items():
                q = led.reqs.get(r)
                over = q is not None and q.st == "finished"  # cancelled; a send keeps the blocks
                if load.mode == "async" and not load.started and load.step <= led.quiet and not over:
                    self.held[r] = self.held.get(r, 0) + 1
                    if self.held[r] == led.config.depth + 2:
                        self.bad(
                            "GateLoads",
                            f"the load of {r} could start {self.held[r]} calls ago",
                            field="ev.start",
                            expected="started",
                            observed="not started",
                            event=-1,
                            requests=[r],
                        )
        for r, step in list(self.infeasible.items()):
            if led.step > step:
                del self.infeasible[r]
                q = led.reqs.get(r)
                self.bad(
                    "Feasible",
                    f"{r} can never fit and is not finished at once",
                    field="ev.finish",
                    event=-1,
                    expected=f"finished: {q.prompt if q else '?'} prompt tokens, {led.config.pool} blocks of "
                    f"{led.config.block_size}",
                    observed="still queued",
                    requests=[r],
                )

    def forget(self) -> None:
        self.choices.forget()
        self.turns.forget()
        self.infeasible.clear()
        self.held.clear()
        self.received.clear()
