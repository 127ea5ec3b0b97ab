"""From trace records to sanitizer plans: the events that a recorder sees are all that the ledger needs.

Works on the records of a live engine, on a recorded trace and on those of the model alike. One plan per
scheduling call; what happens in between goes out with the next plan, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from stallproof.trace import schema as T

from .digests import EVICTED, HIT, Digests
from .ledger import Finding, Ledger, Report, StepPlan

#: steps whose findings may still come in; far more than any engine has in flight
REMEMBERED = 64


class Feed:
    """``blocks``: ids below it occur. ``cached``: whether the prefix cache can still reach a block in the
    pool; given, plans list blocks to poison (freed or evicted, hence unreachable, read or written by nobody).
    ``digests``: which checksums plans take and compare; told by its owner what enters and leaves the cache.
    """

    def __init__(
        self, blocks: int, *, cached: Callable[[int], bool] | None = None, digests: Digests | None = None
    ) -> None:
        self.ledger = Ledger(blocks)
        self.digests = digests
        self._shared: list[tuple[str, int]] = []  # prefix hits, and blocks handed out, since the last plan
        self._handed: list[int] = []
        self._cached = cached
        self._loads: dict[str, tuple[str, list[int], str]] = {}  # job -> (request, blocks, mode)
        self._joined: set[int] = set()  # written by a synchronous load of this call
        self._started: set[str] = set()
        self._fresh: set[int] = set()  # handed out since the last plan, or freed: content unreachable
        self._poisoned: set[int] = set()

    def adopt(self, held: Iterable[tuple[str, Iterable[int]]]) -> None:
        """Requests that hold blocks already when the sanitizer starts: those blocks are not checked yet."""
        for request, blocks in held:
            self.ledger.share(request, blocks)

    def record(self, record: T.Record) -> StepPlan | None:
        """Take in one record; the plan of its step, if it is a scheduling call."""
        if isinstance(record, T.Sched):
            zero: list[int] = []
            for e in record.ev:
                if isinstance(e, T.Touch):
                    zero += e.blocks
                else:
                    self._event(e)
            self.ledger.forget(record.step - REMEMBERED)
            sums = self._sums(record.step)
            plan = self.ledger.plan(record.step, record.tok, zero=zero, fill=self._poison())
            return replace(plan, take=sums[0], verify=sums[1]) if sums else plan
        if isinstance(record, T.Update):
            self.ledger.processed = max(self.ledger.processed, record.step)
            for e in record.ev:
                self._event(e)
        elif isinstance(record, T.Outside):
            for e in record.ev:
                self._event(e)
        return None

    def _event(self, e: Any) -> None:
        ledger = self.ledger
        match e:
            case T.Alloc(r, blocks):
                ledger.alloc(r, blocks)
                self._fresh.update(blocks)
                self._handed += blocks
            case T.Share(r, blocks):
                ledger.share(r, blocks)
                self._shared += ((r, b) for b in blocks)
            case T.Free(r, blocks) | T.Prune(r, blocks):
                ledger.free(r, blocks)
                self._fresh.update(blocks)
                if not ledger.held(r):  # a load that never started is cancelled thereby
                    for job in [j for j, x in self._loads.items() if x[0] == r and j not in self._started]:
                        del self._loads[job]
            case T.Fence(r, blocks):
                ledger.free(r, blocks)  # as in the specification: deferred is no owner either
            case T.Drain(blocks):
                self._fresh.update(blocks)
            case T.Pin(who, blocks):
                ledger.pin(who, blocks)
            case T.Unpin(who, blocks):
                ledger.unpin(who, blocks)
                self._fresh.update(blocks)
            case T.Load(r, gen, blocks, mode):
                self._loads[f"{r}#{gen}"] = (r, blocks, mode)
            case T.Start(r, gen):
                self._start(f"{r}#{gen}")
            case T.Recv(r, gen) | T.LoadFailed(r, gen, _):
                self._ended(f"{r}#{gen}")
            case T.Quarantine(r, gen, blocks):
                ledger.quarantine(r, blocks)
            case T.Unquarantine(r, gen, blocks):
                self._ended(f"{r}#{gen}")
                self._fresh.update(blocks)
            case T.Store(job, r, blocks):
                ledger.read(job, r, blocks)
            case T.Stored(job):
                ledger.read_done(job)
            case _:
                pass

    def reports(self, findings: Iterable[Finding] = ()) -> list[Report]:
        """Explained findings, and what the ledger found on its own."""
        tags: list[Finding] = []
        sums: list[Finding] = []
        for f in findings:
            (sums if f.at in (HIT, EVICTED) else tags).append(f)
        out = self.ledger.reports(tags)
        return out + [self.digests.explain(f) for f in sums] if self.digests else out

    def _sums(self, step: int) -> tuple[tuple[int, ...], dict[int, str]] | None:
        shared, self._shared, handed, self._handed = self._shared, [], self._handed, []
        if self.digests is None:
            return None
        self.digests.forget(step - REMEMBERED)
        loads = {b for _, blocks, _ in self._loads.values() for b in blocks} | self._joined
        return self.digests.plan(step, shared, handed, loads)

    def _start(self, job: str) -> None:
        if job in self._loads:
            request, blocks, mode = self._loads[job]
            if mode == "sync":
                del self._loads[job]
                self._joined.update(blocks)
                self.ledger.join(job, request, blocks)
            else:
                self._started.add(job)
                self.ledger.start(job, request, blocks)

    def _ended(self, job: str) -> None:
        self._loads.pop(job, None)
        self._started.discard(job)
        self.ledger.finish(job)

    def _poison(self) -> list[int]:
        """Blocks whose old content nobody can reach any more and that nobody but this step's work touches.

        In the pool: unless the prefix cache still lists them. With an owner: only if handed out in this
        call, and not for a load, whose agent may write at any time.
        """
        fresh, self._fresh = self._fresh - self._joined, set()
        self._joined.clear()
        if self._cached is None:
            return []
        ledger, reading = self.ledger, self.ledger.reading()
        loading = {b for _, blocks, _ in self._loads.values() for b in blocks}
        pending = ledger.handed_out()
        out = []
        for b in sorted(fresh):
            if b in reading or b in loading or ledger.writing(b):
                continue
            if ledger.holds(b):
                if b in pending and b not in self._poisoned:
                    out.append(b)
                self._poisoned.discard(b)
            elif not self._cached(b) and b not in self._poisoned:
                out.append(b)
                self._poisoned.add(b)
        return out
