"""Ledger layer: block safety of any engine, version or fork, with no policy assumed and no search.

The ledger keeps, per block, the number of references (requests, deferred entries, pins, quarantines) and
replays every event against it. Memory is bounded by live requests, blocks and steps in flight. Rules carry
the names of the promise (Conservation, OneOwner, RefCount, NoDoubleFree, NoLeak, InFlightSafe, XferSafe,
StoreSafe, BoundedWait) and of the engine contract (StepOrder, Tokens, Queues, Requests, Limits, PrefixValid,
Snapshot, End).

A *quiescent* step is one whose work the device has done: the ``done`` mark where the recording has one,
else the newest processed step.
"""

from __future__ import annotations

from . import schema as s
from .ledger_snapshots import Snapshots
from .ledger_state import LoadRec, Report, Req, Violation, least, some
from .schema import FINISHED, RUNNING

_NONE: set[str] = set()


class Ledger(Snapshots):
    """Replay records; ``report`` gets each violation, and the state is repaired as well as can be."""

    def __init__(self, report: Report) -> None:
        super().__init__(report)
        self._on = {
            s.Alloc: self.alloc,
            s.Share: self.share,
            s.Free: self.free,
            s.Prune: self.prune,
            s.Fence: self.fence,
            s.Drain: self.drain,
            s.Pin: self.pin,
            s.Unpin: self.unpin,
            s.Touch: self.touch,
            s.Load: self.load,
            s.Start: self.start,
            s.Recv: self.recv,
            s.LoadFailed: self.load_failed,
            s.Store: self.store,
            s.Stored: self.stored,
            s.Ignored: self.ignored,
            s.Admit: self.admit,
            s.Promote: self.promote,
            s.Refuse: self.refuse,
            s.NotYet: self.known,
            s.Wait: self.wait,
            s.Preempt: self.preempt,
            s.Evict: self.evict,
            s.Quarantine: self.quarantine,
            s.Unquarantine: self.unquarantine,
            s.Expire: self.expire,
            s.Add: self.add,
            s.Finish: self.finish,
            s.Reset: self.reset,
            s.Rewind: self.rewind,
            s.Park: self.park,
            s.Unpark: self.unpark,
            s.Turn: self.turn,
            s.Pause: self.set_pause,
        }

    # ------------------------------------------------------------------ records

    def header(self, path: str, line: int, h: s.Header) -> bool:
        """Begin a part; returns whether the state was carried over (and compared) or taken from it."""
        self.path, self.line, self.event = path, line, -1
        carried = self._started and h.lost == 0 and h.part == self._next_part and h.run == self._run
        self._next_part, self._run = h.part + 1, h.run
        self.config = h.config
        #: who waits for an adapter, which no record names, may be overtaken by a turnover of all slots
        self.adapters = "AdapterShare" in h.rules
        self.calls = self.finished = 0
        if carried:
            self._compare(h.state)
        else:
            self._clear()
            self._restore(h.state)
        self._started = True
        return carried

    def record(self, line: int, rec: s.Record) -> None:
        """Apply one record that is no header."""
        self.line = line
        if isinstance(rec, s.Sched):
            self._sched(rec)
        elif isinstance(rec, s.Update):
            self._update(rec)
        elif isinstance(rec, s.Outside):
            self.ts = rec.ts or self.ts
            self._apply(rec.ev)
            self._close(rec)
        elif isinstance(rec, s.End):
            self._end(rec)

    def _end(self, rec: s.End) -> None:
        if rec.finished != self.finished or rec.calls != self.calls:
            self.bad(
                "End",
                "the totals of the last record differ from the records before it",
                field="calls, finished",
                expected=f"{self.calls} calls, {self.finished} finished",
                observed=f"{rec.calls} calls, {rec.finished} finished",
            )
        quarantined = sum(len(held) for held in self.quar.values())
        lost = self.config.pool - len(self.pool) - quarantined
        if lost and not (self.reqs or self.in_flight or self.loads or self.stores or self.pins):
            self.bad(
                "NoLeak",
                f"everything has finished, nothing is in flight, and {lost} blocks are not back in the pool",
                field="free",
                expected=self.config.pool - quarantined,
                observed=len(self.pool),
            )

    def _apply(self, events: list) -> None:
        on = self._on
        self.events += len(events)
        for i, e in enumerate(events):
            self.event = i
            on[type(e)](e)
        self.event = -1

    def _sched(self, rec: s.Sched) -> None:
        self.calls += 1
        n = rec.step
        self.ts = rec.ts or self.ts
        if n != self.step + 1:
            self.bad(
                "StepOrder",
                f"step {n} is dispatched after step {self.step}",
                field="step",
                expected=self.step + 1,
                observed=n,
            )
        self.step = n
        if rec.done >= 0:
            self._mark(rec.done)
        if rec.ev:
            self._apply(rec.ev)
        reqs, running = self.reqs, self.running
        total = 0
        tok = rec.tok
        c = self.config
        size = c.block_size if c.plain else 0
        for r, k in tok.items():
            total += k
            q = running.get(r)
            if q is None or k <= 0:
                self._bad_tokens(r, k, reqs.get(r))
                continue
            q.last = n
            q.comp += k
            if size and q.comp > len(q.blocks) * size:
                self._no_room(q, k)
        self.in_flight[n] = tok
        if rec.total >= 0 and total != rec.total:
            self.bad(
                "Tokens",
                "tokens per request do not add up to the step's total",
                field="tok, total",
                expected=rec.total,
                observed=total,
                requests=list(tok)[:4],
            )
        if len(self.in_flight) > c.depth:
            self.bad(
                "StepOrder",
                f"{len(self.in_flight)} batches in flight",
                field="step",
                expected=f"at most {c.depth}",
                observed=len(self.in_flight),
            )
        if c.max_num_batched_tokens and total > c.max_num_batched_tokens:
            self.bad(
                "Limits",
                "more tokens than a step may have",
                field="tok",
                expected=f"at most {c.max_num_batched_tokens}",
                observed=total,
            )
        if c.max_num_seqs and len(running) > c.max_num_seqs:
            self.bad(
                "Limits",
                "more running requests than allowed",
                field="ev.admit",
                expected=f"at most {c.max_num_seqs}",
                observed=len(running),
            )
        if rec.run is not None and (len(rec.run) != len(running) or any(r not in running for r in rec.run)):
            odd = sorted(set(rec.run) ^ set(running)) or sorted(
                r for r in set(rec.run) if rec.run.count(r) > 1
            )
            self.bad(
                "Queues",
                f"the running list differs from the decisions before it in {some(odd)}",
                field="run",
                expected=some(running),
                observed=some(rec.run),
                requests=odd[:4],
            )
        self._close(rec)

    def _no_room(self, q: Req, k: int) -> None:
        size = self.config.block_size
        self.bad(
            "InFlightSafe",
            f"{q.r} computes tokens {q.comp - k + 1} to {q.comp}, but its {len(q.blocks)} blocks hold "
            f"{len(q.blocks) * size}",
            field="tok, ev.alloc.blocks",
            expected=f"{-(-q.comp // size)} blocks",
            observed=len(q.blocks),
            requests=[q.r],
            blocks=sorted(q.blocks)[-8:],
        )

    def _bad_tokens(self, r: str, k: int, q: Req | None) -> None:
        if q is None:
            self.req(r, "a scheduled token")
        elif k <= 0:
            self.bad(
                "Tokens",
                f"{r} is scheduled with {k} tokens",
                field="tok",
                expected="at least 1",
                observed=k,
                requests=[r],
            )
        else:
            self.bad(
                "Queues",
                f"{r} is scheduled though it is {q.st}",
                field="tok",
                expected=RUNNING,
                observed=q.st,
                requests=[r],
            )

    def _mark(self, done: int) -> None:
        if done < self.done or done > self.step:
            self.bad(
                "StepOrder",
                "the device-done mark is impossible",
                field="done",
                expected=f"{max(self.done, 0)} to {self.step}",
                observed=done,
            )
            return
        self.done = self.quiet = done
        if self.touched:
            self.touched = [t for t in self.touched if t[0] > done]

    def _update(self, rec: s.Update) -> None:
        n = rec.step
        self.ts = rec.ts or self.ts
        tok = self.in_flight.pop(n, None)
        if tok is None or n != self.processed + 1:
            self.bad(
                "StepOrder",
                f"step {n} is processed after step {self.processed}",
                field="step",
                expected=f"{self.processed + 1}, dispatched before",
                observed=n,
            )
            tok = tok or {}
        self.processed = max(n, self.processed)
        if rec.done >= 0:
            self._mark(rec.done)
        elif self.done < 0:
            self.quiet = self.processed
            if self.touched:
                self.touched = [t for t in self.touched if t[0] > n]
        if self.loads:
            for r, load in list(self.loads.items()):
                if load.mode == "sync" and load.step <= n:
                    self.ended[r] = self.loads.pop(r)
        # what step n computed for a request that is set back or ends in this record does not count
        back = _NONE
        if rec.ev:
            back = {e.r for e in rec.ev if isinstance(e, s.Rewind | s.Finish)} - rec.out.keys()
        self._outputs(n, tok, rec.out, back)
        if rec.ev:
            self._apply(rec.ev)
        self._close(rec)
        if self.deferred and self.deferred[0][0] <= self.processed:
            step, blocks = self.deferred[0]
            self.bad(
                "NoLeak",
                f"blocks fenced until step {step} are still out of the pool",
                field="ev.drain",
                expected=f"drained once step {step} was processed",
                observed="still deferred",
                blocks=sorted(blocks)[:8],
            )

    def _outputs(self, n: int, tok: dict[str, int], out: dict[str, int], back: set[str] = _NONE) -> None:
        reqs = self.reqs
        look = self.config.lookahead
        for r, k in out.items():
            q = reqs.get(r)
            if q is None:
                self.req(r, "an output token")
            elif r not in tok:
                self.bad(
                    "Tokens",
                    f"{r} gets a token from step {n}, which did not schedule it",
                    field="out",
                    expected=some(tok),
                    observed=r,
                    requests=[r],
                )
            elif not 0 < k <= 1 + look:
                self.bad(
                    "Tokens",
                    f"{r} gets {k} tokens from one step",
                    field="out",
                    expected=f"1 to {1 + look}",
                    observed=k,
                    requests=[r],
                )
        for r, k in tok.items():
            q = reqs.get(r)
            if q is None:
                continue
            got = out.get(r, 0)
            if q.since <= n and q.st == RUNNING:
                q.pcomp += k
                if q.exact and not look and r not in back:
                    known = q.prompt + q.out
                    if (q.pcomp > known or (q.pcomp == known) != (got > 0)) and not q.awaits:
                        self.bad(
                            "Tokens",
                            f"{r} has {q.pcomp} of {known} known tokens computed by step {n} and gets "
                            f"{got} new ones",
                            field="out",
                            expected=int(q.pcomp >= known),
                            observed=got,
                            requests=[r],
                        )
                        q.exact = False
            q.out += got

    def _close(self, rec: s.Sched | s.Update | s.Outside) -> None:
        if self.reused:
            self._unflushed()
        if self.victims:
            self._given_up()
        if self.given:
            self.given = []
        if self.zombies:
            for q in list(self.zombies.values()):
                if not q.blocks:
                    del self.zombies[q.r]
                    if not q.jobs and q.r not in self.loads:
                        self.reqs.pop(q.r, None)
                elif not q.jobs and q.r not in self.loads:
                    self.bad(
                        "Conservation",
                        f"{q.r} has finished and keeps {len(q.blocks)} blocks with no load, "
                        "send or store outstanding",
                        field="ev.free",
                        expected="0 blocks",
                        observed=len(q.blocks),
                        requests=[q.r],
                        blocks=sorted(q.blocks)[:8],
                    )
                    del self.zombies[q.r]
        if self.ended:
            self.ended = {}
        if self.expired:
            self.expired = set()
        if self.failing:
            self.failing = set()
        if self.beneficiary and not self.lateral:
            self.asks("nobody")
        self.beneficiary = ""
        self.last_refused = ""
        if self.refusals:
            self.refusals = set()
        if rec.free >= 0 and rec.free != len(self.pool):
            self.bad(
                "Conservation",
                "the pool's own count differs from the events",
                field="free",
                expected=len(self.pool),
                observed=rec.free,
            )
        if rec.refs:
            for b, count in rec.refs.items():
                want = 0 if b in self.pool else 1 + self.extra.get(b, 0)
                if count != want:
                    self.bad(
                        "RefCount",
                        f"block {b} counts {count} references",
                        field="refs",
                        expected=want,
                        observed=count,
                        blocks=[b],
                        evidence=[f"held by: {some(self.holders(b))}"],
                    )

    def _unflushed(self) -> None:
        for block, job, user, how in self.reused:
            if job in self.stores:
                self.bad(
                    "StoreSafe",
                    f"block {block} is {how} {user} while {job} still reads it",
                    field="ev.stored",
                    expected="the reader completed or flushed by the end of the call",
                    observed="neither",
                    blocks=[block],
                    requests=[user],
                )
        self.reused = []

    def _given_up(self) -> None:
        for q in self.victims:
            if q.blocks and q.st != RUNNING and not any(a.r == q.r for a in self.given) and q.st != FINISHED:
                self.bad(
                    "Conservation",
                    f"{q.r} was preempted or evicted and keeps {len(q.blocks)} blocks",
                    field="ev.free",
                    expected="0 blocks",
                    observed=len(q.blocks),
                    requests=[q.r],
                    blocks=sorted(q.blocks)[:8],
                )
        self.victims = []


__all__ = ["Ledger", "LoadRec", "Report", "Req", "Violation", "least", "some"]
