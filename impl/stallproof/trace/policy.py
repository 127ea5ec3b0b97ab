"""Policy layer: the decisions of our own rules, checked where the header says that they are in force.

Each check carries the name of its rule, and is active iff the header lists that name:

* NoInversion: no request behind a refused one that holds nothing is given blocks in that call.
* VictimOrder: victims of preemption and eviction are behind their target in scheduling order.
* RunningOrder: the running list is in scheduling order.
* Patience: a refused running request waits for at most ``P`` processed steps, and only while one is in
  flight.
* Gate: an asynchronous load starts once every step dispatched at its admission, the one being built
  included, is done, and is not held back much longer.
* Feasible: a request that can never fit finishes at once.
"""

from __future__ import annotations

from typing import Any

from . import schema as s
from .ledger import Ledger, Report, Violation, some
from .schema import RUNNING

RULES = ("NoInversion", "VictimOrder", "RunningOrder", "Patience", "Gate", "Feasible")


class Policy:
    def __init__(self, ledger: Ledger, report: Report) -> None:
        self.led, self.report = ledger, report
        self.rules: frozenset[str] = frozenset()
        self.refused: dict[str, int] = {}
        self.newcomers: dict[str, int] = {}
        self.waits: dict[str, int] = {}  # request -> processed step at its first wait
        self.waited: set[str] = set()
        self.infeasible: dict[str, int] = {}
        self.held: dict[str, int] = {}  # load past its gate -> calls
        for kind in (s.Alloc, s.Share):
            ledger.before(kind, self._grant)
        ledger.after(s.Refuse, self._refuse)
        ledger.before(s.Preempt, self._victim)
        ledger.before(s.Evict, self._victim)
        ledger.after(s.Wait, self._wait)
        ledger.before(s.Start, self._start)
        ledger.after(s.Add, self._add)
        ledger.after(s.Finish, self._finish)

    def header(self, h: s.Header) -> list[str]:
        """Which rules of the header this build does not know."""
        self.rules = frozenset(h.rules)
        return []

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
        if "NoInversion" in self.rules:
            q = self.led.reqs.get(e.r)
            if q is not None and not q.blocks and q.st != RUNNING:
                self.newcomers.setdefault(e.r, self.led.event)

    def _refuse(self, e: s.Refuse) -> None:
        if e.why not in ("budget", "slots"):
            self.refused[e.r] = self.led.event

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

    def _wait(self, e: s.Wait) -> None:
        if "Patience" not in self.rules:
            return
        led = self.led
        self.waited.add(e.r)
        first = self.waits.setdefault(e.r, led.processed)
        limit = led.config.patience
        if led.processed - first >= limit:
            self.bad(
                "Patience",
                f"{e.r} goes on waiting after {led.processed - first} processed steps",
                field="ev.wait.r",
                expected=f"a wait of at most {limit}",
                observed=led.processed - first,
                requests=[e.r],
            )
        if not led.in_flight:
            self.bad(
                "Patience",
                f"{e.r} waits though no step is in flight",
                field="ev.wait.r",
                expected="a step in flight",
                observed="none",
                requests=[e.r],
            )

    def _start(self, e: s.Start) -> None:
        led = self.led
        load = led.loads.get(e.r)
        if load is None or "Gate" not in self.rules or load.mode != "async":
            return
        self.held.pop(e.r, None)
        if load.step > led.quiet:
            self.bad(
                "Gate",
                f"the load of {e.r}, admitted in step {load.step}, starts when step {led.quiet} is done",
                field="ev.start.r",
                expected=f"step {load.step} done",
                observed=f"step {led.quiet} done",
                requests=[e.r],
            )

    def _add(self, e: s.Add) -> None:
        c = self.led.config
        if "Feasible" in self.rules and c.plain and -(-(e.prompt + 1 + c.lookahead) // c.block_size) > c.pool:
            self.infeasible[e.r] = self.led.step

    def _finish(self, e: s.Finish) -> None:
        self.infeasible.pop(e.r, None)
        self.waits.pop(e.r, None)
        self.held.pop(e.r, None)

    # ------------------------------------------------------------------ records

    def after(self, rec: s.Record) -> None:
        if type(rec) is not s.Sched:
            return
        led = self.led
        if self.refused and self.newcomers:
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
        if self.waits:
            self.waits = {r: n for r, n in self.waits.items() if r in self.waited}
        self.waited.clear()
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
        if "Gate" in self.rules and led.loads:
            for r, load in led.loads.items():
                if load.mode == "async" and not load.started and load.step <= led.quiet:
                    self.held[r] = self.held.get(r, 0) + 1
                    if self.held[r] == led.config.depth + 2:
                        self.bad(
                            "Gate",
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
        self.waits.clear()
        self.infeasible.clear()
        self.held.clear()
