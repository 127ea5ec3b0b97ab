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

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from . import schema as s
from .schema import FINISHED, HELD, LOADING, PREEMPTED, RECEIVED, RUNNING, WAITING


class Violation(Struct, omit_defaults=True):
    """One divergence. ``line`` counts from 1 in ``path``; ``event`` counts from 0 in the record."""

    rule: str
    layer: str
    text: str
    path: str = ""
    line: int = 0
    step: int = 0
    field: str = ""
    expected: str = ""
    observed: str = ""
    event: int = -1
    requests: list[str] = []
    blocks: list[int] = []
    evidence: list[str] = []  #: further lines of explanation


Report = Callable[[Violation], None]


class Req:
    """A request as the ledger sees it."""

    __slots__ = (
        "arr", "awaits", "blocks", "comp", "exact", "gen", "jobs", "last", "max_tokens", "out", "pcomp",
        "prio", "prompt", "r", "since", "st",
    )  # fmt: skip

    def __init__(self, r: str, prio: int, arr: float, prompt: int, max_tokens: int) -> None:
        self.r, self.prio, self.arr, self.prompt, self.max_tokens = r, prio, arr, prompt, max_tokens
        self.st: str = WAITING
        self.blocks: set[int] = set()
        self.last = 0  # newest step that schedules it
        self.gen = 0  # its latest load
        self.jobs = 0  # unfinished unordered readers
        self.out = 0  # output tokens
        self.comp = self.pcomp = 0  # tokens computed: as scheduled, as processed
        self.since = 0  # first step of its current stay in RUNNING
        self.exact = False  # comp is known exactly
        self.awaits = ""

    @property
    def place(self) -> tuple[int, float]:
        """Its place in the scheduling order."""
        return (self.prio, self.arr)


class LoadRec:
    __slots__ = ("blocks", "gen", "mode", "r", "started", "step", "ts")

    def __init__(self, r: str, gen: int, blocks: Iterable[int], mode: str, step: int, ts: float) -> None:
        self.r, self.gen, self.blocks, self.mode, self.step, self.ts = r, gen, set(blocks), mode, step, ts
        self.started = False


def some(items: Iterable[Any], limit: int = 6) -> str:
    """A short list for a message."""
    seq = list(items)
    head = ", ".join(str(x) for x in seq[:limit])
    return head + (f" and {len(seq) - limit} more" if len(seq) > limit else "") if seq else "none"


class Ledger:
    """Replay records; call ``report`` for each violation and go on with the state repaired as well as can be."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.path, self.line, self.event = "", 0, -1
        self.config = s.Config(pool=0, block_size=1, depth=1)
        self.events = 0  #: block-state changes and decisions, as benchmarks count them
        self.calls = self.finished = 0
        self._started = False
        self._clear()
        d: dict[type, Callable[[Any], None]] = {
            s.Alloc: self.alloc, s.Share: self.share, s.Free: self.free, s.Prune: self.free,
            s.Fence: self.fence, s.Drain: self.drain, s.Pin: self.pin, s.Unpin: self.unpin,
            s.Touch: self.touch, s.Load: self.load, s.Start: self.start, s.Recv: self.recv,
            s.LoadFailed: self.load_failed, s.Store: self.store, s.Stored: self.stored,
            s.Ignored: self.ignored, s.Admit: self.admit, s.Promote: self.promote, s.Refuse: self.known,
            s.NotYet: self.known, s.Wait: self.wait, s.Preempt: self.preempt, s.Evict: self.evict,
            s.Quarantine: self.quarantine, s.Unquarantine: self.unquarantine, s.Expire: self.expire,
            s.Add: self.add, s.Finish: self.finish, s.Reset: self.reset, s.Rewind: self.rewind,
            s.Park: self.park, s.Unpark: self.unpark, s.Turn: self.turn, s.Pause: self.set_pause,
        }  # fmt: skip
        self._on = d

    def _clear(self) -> None:
        self.pool: set[int] = set()
        self.extra: dict[int, int] = {}  # references beyond the first
        self.reqs: dict[str, Req] = {}
        self.running: dict[str, Req] = {}
        self.zombies: dict[str, Req] = {}  # finished, still holding blocks
        self.step = self.processed = 0
        self.done = -1
        self.quiet = 0
        self.in_flight: dict[int, dict[str, int]] = {}
        self.touched: list[tuple[int, Iterable[int]]] = []
        self.deferred: list[tuple[int, set[int]]] = []
        self.loads: dict[str, LoadRec] = {}
        self.ended: dict[str, LoadRec] = {}  # synchronous loads that ended in this record
        self.stores: dict[str, tuple[str, list[int]]] = {}
        self.reading: dict[int, int] = {}
        self.reused: list[tuple[int, str, str, str]] = []  # block, its reader, new user, how
        self.pins: dict[str, set[int]] = {}
        self.quar: dict[tuple[str, int], set[int]] = {}
        self.given: list[s.Alloc] = []
        self.victims: list[Req] = []
        self.since_reset: set[int] | None = None
        self.pause = "none"
        self.ts = 0.0

    # ------------------------------------------------------------------ hooks of the other layers

    def before(self, kind: type, hook: Callable[[Any], None]) -> None:
        """Call ``hook(event)`` before each event of this kind is applied."""
        apply = self._on[kind]

        def both(e: Any) -> None:
            hook(e)
            apply(e)

        self._on[kind] = both

    def after(self, kind: type, hook: Callable[[Any], None]) -> None:
        """Call ``hook(event)`` after each event of this kind was applied."""
        apply = self._on[kind]

        def both(e: Any) -> None:
            apply(e)
            hook(e)

        self._on[kind] = both

    # ------------------------------------------------------------------ reporting

    def bad(self, rule: str, text: str, **kw: Any) -> None:
        for name in ("expected", "observed"):
            if name in kw and not isinstance(kw[name], str):
                kw[name] = str(kw[name])
        self.report(
            Violation(
                rule=rule, layer="ledger", text=text, path=self.path, line=self.line, step=self.step,
                event=self.event, **kw,
            )
        )  # fmt: skip

    def holders(self, block: int) -> list[str]:
        """Who holds a reference to ``block``, in words."""
        who = [q.r for q in self.reqs.values() if block in q.blocks]
        who += [f"pin {name}" for name, blocks in self.pins.items() if block in blocks]
        who += [f"deferred until step {step}" for step, blocks in self.deferred if block in blocks]
        who += [f"quarantine of {r} load {gen}" for (r, gen), blocks in self.quar.items() if block in blocks]
        return who

    def req(self, r: str, what: str) -> Req | None:
        q = self.reqs.get(r)
        if q is None:
            self.bad("Requests", f"{what} names {r!r}, which is not a live request", field="r",
                     expected="a request that has arrived and holds blocks or is unfinished", observed=r,
                     requests=[r])  # fmt: skip
        return q

    # ------------------------------------------------------------------ records

    def header(self, path: str, line: int, h: s.Header) -> bool:
        """Begin a part; returns whether the state was carried over (and compared) or taken from it."""
        self.path, self.line, self.event = path, line, -1
        carried = self._started and h.lost == 0 and h.part == self._next_part and h.run == self._run
        self._next_part, self._run = h.part + 1, h.run
        self.config = h.config
        self.calls = self.finished = 0
        if carried:
            self._compare(h.state)
        else:
            self._clear()
            self._restore(h.state)
        self._started = True
        return carried

    def record(self, line: int, rec: s.Record) -> None:
        self.line = line
        kind = type(rec)
        if kind is s.Sched:
            self._sched(rec)  # type: ignore[arg-type]
        elif kind is s.Update:
            self._update(rec)  # type: ignore[arg-type]
        elif kind is s.Outside:
            self.ts = rec.ts or self.ts  # type: ignore[union-attr]
            self._apply(rec.ev)  # type: ignore[union-attr]
            self._close(rec)  # type: ignore[arg-type]
        elif kind is s.End:
            if rec.finished != self.finished or rec.calls != self.calls:  # type: ignore[union-attr]
                self.bad("End", "the totals of the last record differ from the records before it", field="calls, finished",
                         expected=f"{self.calls} calls, {self.finished} finished",
                         observed=f"{rec.calls} calls, {rec.finished} finished")  # type: ignore[union-attr]  # fmt: skip

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
            self.bad("StepOrder", f"step {n} is dispatched after step {self.step}", field="step",
                     expected=self.step + 1, observed=n)  # fmt: skip
        self.step = n
        if rec.done >= 0:
            self._mark(rec.done)
        if rec.ev:
            self._apply(rec.ev)
        reqs, running = self.reqs, self.running
        total = 0
        tok = rec.tok
        for r, k in tok.items():
            total += k
            q = running.get(r)
            if q is None or k <= 0:
                self._bad_tokens(r, k, reqs.get(r))
                continue
            q.last = n
            q.comp += k
        self.in_flight[n] = tok
        c = self.config
        if rec.total >= 0 and total != rec.total:
            self.bad("Tokens", "tokens per request do not add up to the step's total", field="tok, total",
                     expected=rec.total, observed=total, requests=list(tok)[:4])  # fmt: skip
        if len(self.in_flight) > c.depth:
            self.bad("StepOrder", f"{len(self.in_flight)} batches in flight", field="step",
                     expected=f"at most {c.depth}", observed=len(self.in_flight))  # fmt: skip
        if c.max_num_batched_tokens and total > c.max_num_batched_tokens:
            self.bad("Limits", "more tokens than a step may have", field="tok",
                     expected=f"at most {c.max_num_batched_tokens}", observed=total)  # fmt: skip
        if c.max_num_seqs and len(running) > c.max_num_seqs:
            self.bad("Limits", "more running requests than allowed", field="ev.admit",
                     expected=f"at most {c.max_num_seqs}", observed=len(running))  # fmt: skip
        if rec.run is not None and (len(rec.run) != len(running) or any(r not in running for r in rec.run)):
            odd = sorted(set(rec.run) ^ set(running)) or sorted(
                r for r in set(rec.run) if rec.run.count(r) > 1
            )
            self.bad("Queues", f"the running list differs from the decisions before it in {some(odd)}", field="run",
                     expected=some(running), observed=some(rec.run), requests=odd[:4])  # fmt: skip
        self._close(rec)

    def _bad_tokens(self, r: str, k: int, q: Req | None) -> None:
        if q is None:
            self.req(r, "a scheduled token")
        elif k <= 0:
            self.bad("Tokens", f"{r} is scheduled with {k} tokens", field="tok", expected="at least 1",
                     observed=k, requests=[r])  # fmt: skip
        else:
            self.bad("Queues", f"{r} is scheduled though it is {q.st}", field="tok", expected=RUNNING,
                     observed=q.st, requests=[r])  # fmt: skip

    def _mark(self, done: int) -> None:
        if done < self.done or done > self.step:
            self.bad("StepOrder", "the device-done mark is impossible", field="done",
                     expected=f"{max(self.done, 0)} to {self.step}", observed=done)  # fmt: skip
            return
        self.done = self.quiet = done
        if self.touched:
            self.touched = [t for t in self.touched if t[0] > done]

    def _update(self, rec: s.Update) -> None:
        n = rec.step
        self.ts = rec.ts or self.ts
        tok = self.in_flight.pop(n, None)
        if tok is None or n != self.processed + 1:
            self.bad("StepOrder", f"step {n} is processed after step {self.processed}", field="step",
                     expected=f"{self.processed + 1}, dispatched before", observed=n)  # fmt: skip
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
        self._outputs(n, tok, rec.out)
        if rec.ev:
            self._apply(rec.ev)
        self._close(rec)
        if self.deferred and self.deferred[0][0] <= self.processed:
            step, blocks = self.deferred[0]
            self.bad("NoLeak", f"blocks fenced until step {step} are still out of the pool", field="ev.drain",
                     expected=f"drained once step {step} was processed", observed="still deferred",
                     blocks=sorted(blocks)[:8])  # fmt: skip

    def _outputs(self, n: int, tok: dict[str, int], out: dict[str, int]) -> None:
        reqs = self.reqs
        look = self.config.lookahead
        for r, k in out.items():
            q = reqs.get(r)
            if q is None:
                self.req(r, "an output token")
            elif r not in tok:
                self.bad("Tokens", f"{r} gets a token from step {n}, which did not schedule it", field="out",
                         expected=some(tok), observed=r, requests=[r])  # fmt: skip
            elif not 0 < k <= 1 + look:
                self.bad("Tokens", f"{r} gets {k} tokens from one step", field="out",
                         expected=f"1 to {1 + look}", observed=k, requests=[r])  # fmt: skip
        for r, k in tok.items():
            q = reqs.get(r)
            if q is None:
                continue
            got = out.get(r, 0)
            if q.since <= n and q.st == RUNNING:
                q.pcomp += k
                if q.exact and not look:
                    known = q.prompt + q.out
                    if (q.pcomp >= known) != (got > 0) and not q.awaits:
                        self.bad("Tokens",
                                 f"{r} has {q.pcomp} of {known} known tokens computed by step {n} and gets "
                                 f"{got} new ones", field="out", expected=int(q.pcomp >= known), observed=got,
                                 requests=[r])  # fmt: skip
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
                    self.bad("Conservation", f"{q.r} has finished and keeps {len(q.blocks)} blocks with no load, "
                             "send or store outstanding", field="ev.free", expected="0 blocks",
                             observed=len(q.blocks), requests=[q.r], blocks=sorted(q.blocks)[:8])  # fmt: skip
                    del self.zombies[q.r]
        if self.ended:
            self.ended = {}
        if rec.free >= 0 and rec.free != len(self.pool):
            self.bad("Conservation", "the pool's own count differs from the events", field="free",
                     expected=len(self.pool), observed=rec.free)  # fmt: skip
        if rec.refs:
            for b, count in rec.refs.items():
                want = 0 if b in self.pool else 1 + self.extra.get(b, 0)
                if count != want:
                    self.bad("RefCount", f"block {b} counts {count} references", field="refs", expected=want,
                             observed=count, blocks=[b], evidence=[f"held by: {some(self.holders(b))}"])  # fmt: skip

    def _reuse(self, blocks: Iterable[int], user: str, how: str) -> None:
        """Blocks with an unfinished reader get new content: the reader has until the end of the call."""
        for job, (_, read) in self.stores.items():
            self.reused += [(b, job, user, how) for b in set(read).intersection(blocks)]

    def _unflushed(self) -> None:
        for block, job, user, how in self.reused:
            if job in self.stores:
                self.bad("StoreSafe", f"block {block} is {how} {user} while {job} still reads it",
                         field="ev.stored", expected="the reader completed or flushed by the end of the call",
                         observed="neither", blocks=[block], requests=[user])  # fmt: skip
        self.reused = []

    def _given_up(self) -> None:
        for q in self.victims:
            if q.blocks and q.st != RUNNING and not any(a.r == q.r for a in self.given) and q.st != FINISHED:
                self.bad("Conservation", f"{q.r} was preempted or evicted and keeps {len(q.blocks)} blocks",
                         field="ev.free", expected="0 blocks", observed=len(q.blocks), requests=[q.r],
                         blocks=sorted(q.blocks)[:8])  # fmt: skip
        self.victims = []

    # ------------------------------------------------------------------ blocks

    def alloc(self, e: s.Alloc) -> None:
        q = self.reqs.get(e.r)
        if q is None:
            q = self.req(e.r, "an allocation")
            if q is None:
                return
        blocks, pool = e.blocks, self.pool
        k = len(blocks)
        self.events += k - 1
        left = len(pool) - k
        if self.reading and not self.reading.keys().isdisjoint(blocks):
            self._reuse(blocks, e.r, "handed to")
        before = pool if len(pool) < 64 else None
        taken = [b for b in blocks if b not in before] if before is not None else None
        pool.difference_update(blocks)
        if len(pool) != left:
            self._not_free(e, taken)
        q.blocks.update(blocks)
        self.given.append(e)
        if q.st == FINISHED:
            self.bad("Requests", f"{e.r} has finished and is given blocks", field="ev.alloc.r",
                     expected="an unfinished request", observed=FINISHED, requests=[e.r])  # fmt: skip
        if self.since_reset is not None:
            self.since_reset.update(blocks)

    def _not_free(self, e: s.Alloc, taken: list[int] | None) -> None:
        for b in e.blocks:
            who = self.holders(b)
            if not 1 <= b <= self.config.pool:
                self.bad("Conservation", f"block {b} is not a block of the pool", field="ev.alloc.blocks",
                         expected=f"1 to {self.config.pool}", observed=b, requests=[e.r], blocks=[b])  # fmt: skip
                return
            if who:
                rule = "XferSafe" if who[0].startswith("quarantine") else "OneOwner"
                self.extra[b] = self.extra.get(b, 0) + 1
                self.bad(rule, f"block {b} is handed to {e.r} while it is not free: {some(who)}",
                         field="ev.alloc.blocks", expected="a block of the pool", observed=f"held by {some(who)}",
                         requests=[e.r] + [w for w in who if w in self.reqs], blocks=[b])  # fmt: skip
                return
        self.bad("OneOwner", f"a block is handed to {e.r} twice in one allocation", field="ev.alloc.blocks",
                 expected="distinct blocks of the pool", observed=some(e.blocks), requests=[e.r],
                 blocks=e.blocks[:8])  # fmt: skip

    def _hold(self, who: str, blocks: list[int], mine: set[int], rule_field: str) -> None:
        """``who`` takes one more reference of each block."""
        pool, extra = self.pool, self.extra
        self.events += len(blocks) - 1
        held = [b for b in blocks if b not in pool]
        for b in held:
            if not 1 <= b <= self.config.pool:
                self.bad("Conservation", f"block {b} is not a block of the pool", field=rule_field,
                         expected=f"1 to {self.config.pool}", observed=b, blocks=[b])  # fmt: skip
            extra[b] = extra.get(b, 0) + 1
        pool.difference_update(blocks)
        size = len(mine) + len(blocks)
        doubled = [b for b in blocks if b in mine] if size and not mine.isdisjoint(blocks) else []
        mine.update(blocks)
        if len(mine) != size:
            doubled = doubled or blocks
            self.bad("RefCount", f"{who} takes block {doubled[0]} a second time", field=rule_field,
                     expected="a block it does not hold", observed=doubled[0], requests=[who],
                     blocks=doubled[:8])  # fmt: skip

    def share(self, e: s.Share) -> None:
        q = self.req(e.r, "a prefix hit")
        if q is None:
            return
        blocks = e.blocks
        if self.loads:
            for load in self.loads.values():
                hit = load.blocks.intersection(blocks)
                if hit and load.r != e.r:
                    b = min(hit)
                    self.bad("XferSafe", f"{e.r} shares block {b}, which the unfinished load {load.gen} of {load.r} "
                             "writes", field="ev.share.blocks", expected="content that is complete",
                             observed="content in transfer", requests=[e.r, load.r], blocks=sorted(hit)[:8])  # fmt: skip
        if self.quar and any(not held.isdisjoint(blocks) for held in self.quar.values()):
            b = next(b for b in blocks if any(b in held for held in self.quar.values()))
            self.bad("XferSafe", f"{e.r} shares block {b}, which is quarantined", field="ev.share.blocks",
                     expected="not quarantined", observed="quarantined", requests=[e.r], blocks=[b])  # fmt: skip
        if self.since_reset is not None and not self.since_reset.issuperset(blocks):
            stale = [b for b in blocks if b not in self.since_reset]
            self.bad("PrefixValid", f"{e.r} hits block {stale[0]}, whose content was given up by the reset of the "
                     "prefix cache", field="ev.share.blocks", expected="a block filled since the reset",
                     observed=stale[0], requests=[e.r], blocks=stale[:8])  # fmt: skip
        self._hold(e.r, blocks, q.blocks, "ev.share.blocks")

    def _drop(self, blocks: Iterable[int]) -> None:
        """One reference of each block goes."""
        extra = self.extra
        if extra and not extra.keys().isdisjoint(blocks):
            pool = self.pool
            for b in blocks:
                more = extra.get(b)
                if more is None:
                    pool.add(b)
                elif more == 1:
                    del extra[b]
                else:
                    extra[b] = more - 1
        else:
            self.pool.update(blocks)

    def _give(self, q: Req, e: s.Free | s.Prune | s.Fence | s.Quarantine) -> list[int]:
        """``q`` stops holding the blocks of ``e``; returns those it really held."""
        blocks, mine = e.blocks, q.blocks
        self.events += len(blocks) - 1
        left = len(mine) - len(blocks)
        owned = blocks
        if left < 0 or not mine.issuperset(blocks):
            odd = [b for b in blocks if b not in mine] or blocks
            owned = list(dict.fromkeys(b for b in blocks if b in mine))
            mine.difference_update(owned)
            self._not_owned(q, odd)
        else:
            mine.difference_update(blocks)
            if len(mine) != left:
                owned = list(dict.fromkeys(blocks))
                self._not_owned(q, [b for b in owned if blocks.count(b) > 1])
        if q.last > self.quiet:
            self.touched.append((q.last, owned))
        if self.loads:
            load = self.loads.get(q.r)
            if load is not None and not load.blocks.isdisjoint(owned):
                if load.started:
                    hit = sorted(load.blocks.intersection(owned))
                    self.bad("XferSafe", f"{q.r} gives up block {hit[0]} while its load {load.gen} may still write it",
                             field="ev.free.blocks", expected="held or quarantined until the load has ended",
                             observed="released", requests=[q.r], blocks=hit[:8])  # fmt: skip
                    load.blocks.difference_update(hit)
                else:
                    del self.loads[q.r]  # cancelled before it began
        return owned

    def _not_owned(self, q: Req, odd: list[int]) -> None:
        b = odd[0]
        where = "the pool" if b in self.pool else some(self.holders(b))
        self.bad("NoDoubleFree", f"{q.r} releases block {b}, which it does not hold (or not twice); it is with: {where}",
                 field="ev.free.blocks", expected="blocks it holds", observed=some(odd), requests=[q.r],
                 blocks=odd[:8])  # fmt: skip

    def free(self, e: s.Free | s.Prune) -> None:
        q = self.reqs.get(e.r) or self.req(e.r, "a release")
        if q is not None:
            self._drop(self._give(q, e))

    def fence(self, e: s.Fence) -> None:
        q = self.req(e.r, "a deferred release")
        if q is None:
            return
        if e.step < q.last:
            self.bad("InFlightSafe", f"blocks of {e.r} wait for step {e.step}, but step {q.last} schedules it",
                     field="ev.fence.step", expected=f"{q.last} or later", observed=e.step, requests=[e.r],
                     blocks=e.blocks[:8])  # fmt: skip
        if e.step > self.step + 1:
            self.bad("StepOrder", f"blocks of {e.r} wait for step {e.step}, which is not dispatched",
                     field="ev.fence.step", expected=f"at most {self.step + 1}", observed=e.step,
                     requests=[e.r])  # fmt: skip
        owned = self._give(q, e)
        self.deferred.append((e.step, set(owned)))

    def drain(self, e: s.Drain) -> None:
        self.events += len(e.blocks) - 1
        gone: list[int] = []
        for b in e.blocks:
            for step, blocks in self.deferred:
                if b in blocks:
                    blocks.discard(b)
                    gone.append(b)
                    if step > self.processed:
                        self.bad("InFlightSafe", f"block {b} returns to the pool before step {step} is processed",
                                 field="ev.drain.blocks", expected=f"step {step} processed",
                                 observed=f"step {self.processed} processed", blocks=[b])  # fmt: skip
                    break
            else:
                self.bad("NoDoubleFree", f"block {b} is drained but no deferred entry holds it",
                         field="ev.drain.blocks", expected="a deferred block",
                         observed=some(self.holders(b)) if b not in self.pool else "in the pool", blocks=[b])  # fmt: skip
        self.deferred = [d for d in self.deferred if d[1]]
        self._drop(gone)

    def pin(self, e: s.Pin) -> None:
        self._hold(e.who, e.blocks, self.pins.setdefault(e.who, set()), "ev.pin.blocks")

    def unpin(self, e: s.Unpin) -> None:
        self.events += len(e.blocks) - 1
        mine = self.pins.get(e.who, set())
        odd = [b for b in e.blocks if b not in mine]
        if odd:
            self.bad("NoDoubleFree", f"{e.who} unpins block {odd[0]}, which it does not pin", field="ev.unpin.blocks",
                     expected="blocks it pins", observed=some(odd), blocks=odd[:8])  # fmt: skip
        owned = [b for b in e.blocks if b in mine]
        mine.difference_update(owned)
        if not mine:
            self.pins.pop(e.who, None)
        self._drop(owned)

    def touch(self, e: s.Touch) -> None:
        self.touched.append((self.step, e.blocks))

    # ------------------------------------------------------------------ transfers

    def load(self, e: s.Load) -> None:
        q = self.req(e.r, "a load")
        if q is None:
            return
        if e.r in self.loads:
            self.bad("XferSafe", f"{e.r} begins load {e.gen} while load {self.loads[e.r].gen} is unfinished",
                     field="ev.load.r", expected="no unfinished load", observed=self.loads[e.r].gen, requests=[e.r])  # fmt: skip
        for r, gen in self.quar:
            if r == e.r:
                self.bad("XferSafe", f"{e.r} loads again while the lost load {gen} may still report under the same id",
                         field="ev.load.r", expected="recomputes", observed=f"load {e.gen}", requests=[e.r])  # fmt: skip
        if e.gen != q.gen + 1:
            self.bad("XferSafe", f"load generations of {e.r} are not consecutive", field="ev.load.gen",
                     expected=q.gen + 1, observed=e.gen, requests=[e.r])  # fmt: skip
        load = LoadRec(e.r, e.gen, e.blocks, e.mode, self.step, self.ts)
        new = {b for a in self.given if a.r == e.r for b in a.blocks}
        odd = sorted(load.blocks - new) or ([0] if len(load.blocks) != len(e.blocks) else [])
        if odd:
            self.bad("XferSafe", f"the load of {e.r} writes block {odd[0]}, which this call did not hand to it",
                     field="ev.load.blocks", expected="blocks newly handed out for it", observed=some(odd),
                     requests=[e.r], blocks=odd[:8])  # fmt: skip
        size = self.config.block_size
        if e.tokens >= 0 and self.config.groups == 1 and len(e.blocks) != -(-e.tokens // size):
            self.bad("XferSafe", f"a load of {e.tokens} tokens needs another number of blocks",
                     field="ev.load.blocks, tokens", expected=-(-e.tokens // size), observed=len(e.blocks),
                     requests=[e.r])  # fmt: skip
        q.gen = e.gen
        self.loads[e.r] = load
        if e.mode == "async":
            q.st = LOADING

    def start(self, e: s.Start) -> None:
        load = self.loads.get(e.r)
        if load is None or load.gen != e.gen or load.started:
            self.bad("XferSafe", f"load {e.gen} of {e.r} starts, which is not admitted, cancelled or started already",
                     field="ev.start.gen", expected=f"load {load.gen}, not started" if load else "no load",
                     observed=e.gen, requests=[e.r])  # fmt: skip
            return
        load.started = True
        if self.extra and not self.extra.keys().isdisjoint(load.blocks):
            b = next(b for b in load.blocks if b in self.extra)
            self.bad("XferSafe", f"the load of {e.r} may write block {b}, which others hold: {some(self.holders(b))}",
                     field="ev.start.r", expected="held by its request alone", observed=some(self.holders(b)),
                     requests=[e.r], blocks=[b])  # fmt: skip
        for step, blocks in self.touched:
            if step > self.quiet and not load.blocks.isdisjoint(blocks):
                hit = sorted(load.blocks.intersection(blocks))
                self.bad("InFlightSafe", f"the load of {e.r} may write block {hit[0]} at once, but step {step}, which "
                         f"may still touch it, is not done (newest done: {self.quiet})", field="ev.start.r",
                         expected=f"step {step} done before the start", observed=f"step {self.quiet} done",
                         requests=[e.r], blocks=hit[:8])  # fmt: skip
                break
        if self.reading and not self.reading.keys().isdisjoint(load.blocks):
            self._reuse(load.blocks, e.r, "written by the load of")

    def recv(self, e: s.Recv) -> None:
        q = self.req(e.r, "a completion")
        if q is None:
            return
        load = self.loads.get(e.r)
        if load is None or load.gen != e.gen or load.mode == "sync":
            late = (e.r, e.gen) in self.quar
            self.bad("BoundedWait", f"a {'late' if late else 'duplicate or unknown'} completion of load {e.gen} of "
                     f"{e.r} takes effect", field="ev.recv.gen", expected=f"load {load.gen}" if load else "no load",
                     observed=e.gen, requests=[e.r])  # fmt: skip
            return
        if not load.started:
            self.bad("XferSafe", f"load {e.gen} of {e.r} completes before it has started", field="ev.recv.gen",
                     expected="a started load", observed="not started", requests=[e.r])  # fmt: skip
        del self.loads[e.r]
        if q.st == LOADING:
            q.st = RECEIVED

    def load_failed(self, e: s.LoadFailed) -> None:
        q = self.req(e.r, "a failed load")
        if q is None:
            return
        load = self.loads.pop(e.r, None) or self.ended.get(e.r)
        if load is None or load.gen != e.gen:
            self.bad("BoundedWait", f"a failure report of load {e.gen} of {e.r} takes effect, which is not known",
                     field="ev.load_failed.gen", expected=f"load {load.gen}" if load else "no load",
                     observed=e.gen, requests=[e.r])  # fmt: skip
            return
        if not q.blocks.issuperset(e.blocks):
            odd = [b for b in e.blocks if b not in q.blocks]
            self.bad("XferSafe", f"the failed load of {e.r} names block {odd[0]}, which is not the request's",
                     field="ev.load_failed.blocks", expected="blocks of the request", observed=some(odd),
                     requests=[e.r], blocks=odd[:8])  # fmt: skip
        if q.st == LOADING:
            q.st = RECEIVED
        q.exact = False

    def store(self, e: s.Store) -> None:
        q = self.req(e.r, "a store or send")
        if q is None:
            return
        if e.job in self.stores:
            self.bad("StoreSafe", f"reader {e.job} begins twice", field="ev.store.job", expected="a new name",
                     observed=e.job)  # fmt: skip
            return
        odd = [b for b in e.blocks if b not in q.blocks and not any(b in p for p in self.pins.values())]
        if odd:
            self.bad("StoreSafe", f"reader {e.job} reads block {odd[0]}, which {e.r} does not hold",
                     field="ev.store.blocks", expected="blocks held by the request or pinned", observed=some(odd),
                     requests=[e.r], blocks=odd[:8])  # fmt: skip
        self.stores[e.job] = (e.r, e.blocks)
        q.jobs += 1
        for b in e.blocks:
            self.reading[b] = self.reading.get(b, 0) + 1

    def stored(self, e: s.Stored) -> None:
        job = self.stores.pop(e.job, None)
        if job is None:
            self.bad("BoundedWait", f"completion of reader {e.job}, which is not known, takes effect",
                     field="ev.stored.job", expected=some(self.stores), observed=e.job)  # fmt: skip
            return
        r, blocks = job
        for b in blocks:
            if self.reading[b] == 1:
                del self.reading[b]
            else:
                self.reading[b] -= 1
        q = self.reqs.get(r)
        if q is not None:
            q.jobs -= 1
            if q.st == FINISHED:
                self.zombies[r] = q

    def ignored(self, e: s.Ignored) -> None:
        load = self.loads.get(e.r)
        if e.kind == "recv" and load is not None and load.started and load.mode == "async":
            self.bad("BoundedWait", f"the completion that {e.r} waits for was discarded ({e.why})",
                     field="ev.ignored.r", expected="accepted", observed="ignored", requests=[e.r])  # fmt: skip

    def quarantine(self, e: s.Quarantine) -> None:
        q = self.req(e.r, "a quarantine")
        if q is None:
            return
        load = self.loads.pop(e.r, None)
        if load is None or load.gen != e.gen or load.blocks != set(e.blocks):
            self.bad("XferSafe", f"quarantine of load {e.gen} of {e.r} does not match its unfinished load",
                     field="ev.quarantine.gen, blocks", expected=f"load {load.gen}: {some(sorted(load.blocks))}"
                     if load else "no load", observed=f"load {e.gen}: {some(e.blocks)}", requests=[e.r],
                     blocks=e.blocks[:8])  # fmt: skip
        self.quar[(e.r, e.gen)] = set(self._give(q, e))
        if q.st == LOADING:
            q.st = WAITING

    def unquarantine(self, e: s.Unquarantine) -> None:
        self.events += len(e.blocks) - 1
        held = self.quar.pop((e.r, e.gen), None)
        if held is None or held != set(e.blocks) or len(held) != len(e.blocks):
            self.bad("NoDoubleFree", f"load {e.gen} of {e.r} leaves a quarantine it is not in with these blocks",
                     field="ev.unquarantine.gen, blocks", expected=some(sorted(held)) if held else "no quarantine",
                     observed=some(e.blocks), requests=[e.r], blocks=e.blocks[:8])  # fmt: skip
        self._drop(held or ())

    # ------------------------------------------------------------------ requests

    def known(self, e: Any) -> None:
        self.req(e.r, "a decision")

    def wait(self, e: s.Wait) -> None:
        q = self.req(e.r, "a wait")
        if q is not None and q.st != RUNNING:
            self._state(e.r, "waits for blocks as a running request", RUNNING, q.st, "ev.wait.r")

    def _state(self, r: str, text: str, expected: str, observed: str, field: str) -> None:
        self.bad("Queues", f"{r} {text} but is {observed}", field=field, expected=expected, observed=observed,
                 requests=[r])  # fmt: skip

    def add(self, e: s.Add) -> None:
        if e.r in self.reqs:
            self.bad("Requests", f"{e.r} arrives a second time", field="ev.add.r", expected="a new id",
                     observed=e.r, requests=[e.r])  # fmt: skip
            return
        self.reqs[e.r] = Req(e.r, e.prio, e.arr, e.prompt, e.max_tokens)

    def admit(self, e: s.Admit) -> None:
        q = self.req(e.r, "an admission")
        if q is None:
            return
        if q.st == RUNNING or q.st == FINISHED:
            self._state(e.r, "enters RUNNING", "not running, not finished", q.st, "ev.admit.r")
        load = self.loads.get(e.r)
        if load is not None and load.mode == "async":
            self.bad("XferSafe", f"{e.r} runs while its load {load.gen} is unfinished", field="ev.admit.r",
                     expected="the load has ended", observed="unfinished", requests=[e.r])  # fmt: skip
        q.st = RUNNING
        q.since = self.step
        q.exact = e.comp >= 0
        q.comp = q.pcomp = max(e.comp, 0)
        self.running[e.r] = q

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
            self._state(e.r, "is evicted", "a holder that is not running",
                        q.st if q.blocks else f"{q.st} without blocks", "ev.evict.r")  # fmt: skip
        self.req(e.target, "an eviction")
        if q.st != FINISHED:
            q.st = WAITING
        self.victims.append(q)

    def expire(self, e: s.Expire) -> None:
        q = self.req(e.r, "an expiry")
        if q is not None and e.what == "load" and e.r not in self.loads:
            self.bad("BoundedWait", f"a load of {e.r} expires, which has none", field="ev.expire.r",
                     expected="an unfinished load", observed="none", requests=[e.r])  # fmt: skip

    def finish(self, e: s.Finish) -> None:
        q = self.req(e.r, "a finish")
        if q is None:
            return
        if q.st == FINISHED:
            self.bad("Requests", f"{e.r} finishes twice", field="ev.finish.r", expected="unfinished",
                     observed=FINISHED, requests=[e.r])  # fmt: skip
        if e.out >= 0 and e.out != q.out:
            self.bad("Tokens", f"{e.r} ends with another number of output tokens than its steps gave it",
                     field="ev.finish.out", expected=q.out, observed=e.out, requests=[e.r])  # fmt: skip
        if e.reason == "length" and e.out >= 0 and e.out > q.max_tokens > 0:
            self.bad("Tokens", f"{e.r} has more tokens than it may get", field="ev.finish.out",
                     expected=f"at most {q.max_tokens}", observed=e.out, requests=[e.r])  # fmt: skip
        self.finished += 1
        self.running.pop(e.r, None)
        q.st = FINISHED
        self.zombies[e.r] = q

    def reset(self, e: s.Reset) -> None:
        if e.ok:
            self.since_reset = set()

    def rewind(self, e: s.Rewind) -> None:
        q = self.req(e.r, "a rewind")
        if q is None:
            return
        if e.comp > q.comp and q.exact:
            self.bad("Tokens", f"{e.r} is set back to more tokens than it had", field="ev.rewind.comp",
                     expected=f"at most {q.comp}", observed=e.comp, requests=[e.r])  # fmt: skip
        q.comp = e.comp
        q.exact = False

    def park(self, e: s.Park) -> None:
        q = self.req(e.r, "a parking")
        if q is not None:
            q.awaits = e.what
            q.exact = False

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

    def set_pause(self, e: s.Pause) -> None:
        self.pause = e.state

    # ------------------------------------------------------------------ snapshots

    _next_part = 0
    _run = ""

    def _restore(self, snap: s.Snapshot) -> None:
        self.pool = set(range(1, self.config.pool + 1))
        for state in snap.requests:
            q = Req(state.r, state.prio, state.arr, state.prompt, state.max_tokens)
            q.st, q.last, q.gen, q.out, q.awaits = state.st, state.last, state.gen, state.out, state.awaits
            q.comp = state.comp
            if q.r in self.reqs:
                self.bad(
                    "Requests", f"{q.r} is twice in the snapshot", field="state.requests.r", requests=[q.r]
                )
            self.reqs[q.r] = q
            self._hold(q.r, state.blocks, q.blocks, "state.requests.blocks")
            if q.st == RUNNING:
                self.running[q.r] = q
            elif q.st == FINISHED:
                self.zombies[q.r] = q
        if set(snap.run) != set(self.running) or len(snap.run) != len(self.running):
            self.bad("Queues", "the running list of the snapshot differs from its requests", field="state.run",
                     expected=some(self.running), observed=some(snap.run))  # fmt: skip
        for who, blocks in snap.pins.items():
            self._hold(who, blocks, self.pins.setdefault(who, set()), "state.pins")
        for d in snap.deferred:
            mine: set[int] = set()
            self._hold(f"step {d.step}", d.blocks, mine, "state.deferred")
            self.deferred.append((d.step, mine))
        for h in snap.quarantined:
            mine = self.quar.setdefault((h.r, h.gen), set())
            self._hold(f"quarantine of {h.r}", h.blocks, mine, "state.quarantined")
        self.step, self.processed, self.done = snap.step, snap.processed, snap.done
        self.quiet = snap.done if snap.done >= 0 else snap.processed
        self.in_flight = {i.step: i.tok for i in snap.in_flight}
        if sorted(self.in_flight) != list(range(snap.processed + 1, snap.step + 1)):
            self.bad("StepOrder", "the snapshot's steps in flight are not those between processed and dispatched",
                     field="state.in_flight", expected=f"{snap.processed + 1} to {snap.step}",
                     observed=some(sorted(self.in_flight)))  # fmt: skip
        self.touched = [(step, (b,)) for b, step in snap.fences.items()]
        for x in snap.loads:
            load = LoadRec(x.r, x.gen, x.blocks, x.mode, x.step, 0.0)
            load.started = x.started
            self.loads[x.r] = load
            q0 = self.reqs.get(x.r)
            if q0 is None or not q0.blocks.issuperset(load.blocks):
                self.bad("XferSafe", f"the unfinished load of {x.r} writes blocks its request does not hold",
                         field="state.loads.blocks", requests=[x.r], blocks=x.blocks[:8])  # fmt: skip
        for j in snap.stores:
            self.stores[j.job] = (j.r, j.blocks)
            for b in j.blocks:
                self.reading[b] = self.reading.get(b, 0) + 1
            if j.r in self.reqs:
                self.reqs[j.r].jobs += 1
        self.pause = snap.pause
        if len(self.pool) != snap.free:
            self.bad("Conservation", "free and held blocks of the snapshot do not add up to the pool",
                     field="state.free", expected=len(self.pool), observed=snap.free)  # fmt: skip

    def _compare(self, snap: s.Snapshot) -> None:
        """The snapshot of the next part must be the state that the records before it lead to."""

        def same(field: str, mine: Any, theirs: Any) -> None:
            if mine != theirs:
                self.bad("Snapshot", f"the next part begins with another state than this one ends with: {field}",
                         field=f"state.{field}", expected=some(_flat(mine)), observed=some(_flat(theirs)))  # fmt: skip

        live = {q.r: q for q in self.reqs.values() if q.blocks or q.st != FINISHED}
        same("requests", sorted(live), sorted(q.r for q in snap.requests))
        for q in snap.requests:
            m = live.get(q.r)
            if m is not None:
                same(f"requests.blocks of {q.r}", sorted(m.blocks), sorted(q.blocks))
                same(
                    f"requests of {q.r}",
                    (m.prio, m.arr, m.prompt, m.max_tokens, m.out, m.gen, m.awaits),
                    (q.prio, q.arr, q.prompt, q.max_tokens, q.out, q.gen, q.awaits),
                )
        same("run", sorted(self.running), sorted(snap.run))
        same("step", self.step, snap.step)
        same("processed", self.processed, snap.processed)
        same("free", len(self.pool), snap.free)
        same("in_flight", self.in_flight, {i.step: i.tok for i in snap.in_flight})
        same("deferred", _entries(self.deferred), _entries((d.step, set(d.blocks)) for d in snap.deferred))
        same("pins", self.pins, {k: set(v) for k, v in snap.pins.items()})
        same("quarantined", self.quar, {(h.r, h.gen): set(h.blocks) for h in snap.quarantined})
        same(
            "loads",
            {r: (x.gen, sorted(x.blocks), x.mode, x.started) for r, x in self.loads.items()},
            {x.r: (x.gen, sorted(x.blocks), x.mode, x.started) for x in snap.loads},
        )
        same("stores", {j: sorted(b) for j, (_, b) in self.stores.items()},
             {j.job: sorted(j.blocks) for j in snap.stores})  # fmt: skip
        mine: dict[int, int] = {}
        for step, blocks in self.touched:
            for b in blocks:
                mine[b] = max(step, mine.get(b, 0))
        quiet = self.quiet
        same("fences", {b: n for b, n in mine.items() if n > quiet},
             {b: n for b, n in snap.fences.items() if n > quiet})  # fmt: skip
        same("pause", self.pause, snap.pause)


def _entries(deferred: Iterable[tuple[int, set[int]]]) -> dict[int, list[int]]:
    merged: dict[int, list[int]] = {}
    for step, blocks in deferred:
        merged.setdefault(step, []).extend(blocks)
    return {step: sorted(blocks) for step, blocks in merged.items()}


def _flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [f"{k}: {v}" for k, v in value.items()]
    return list(value) if isinstance(value, list | tuple | set) else [value]
