"""Ledger: who holds which block."""

from __future__ import annotations

from collections.abc import Iterable

from . import schema as s
from .ledger_state import Req, State, some
from .schema import FINISHED, RUNNING


class Blocks(State):
    """Allocations, prefix hits, releases, deferred entries, pins."""

    def alloc(self, e: s.Alloc) -> None:
        q = self.reqs.get(e.r)
        if q is None:
            q = self.req(e.r, "an allocation")
            if q is None:
                return
        if self.beneficiary:
            self.asks(e.r)
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
            self.bad(
                "Requests",
                f"{e.r} has finished and is given blocks",
                field="ev.alloc.r",
                expected="an unfinished request",
                observed=FINISHED,
                requests=[e.r],
            )
        if self.since_reset is not None:
            self.since_reset.update(blocks)

    def _not_free(self, e: s.Alloc, taken: list[int] | None) -> None:
        for b in e.blocks:
            who = self.holders(b)
            if not 1 <= b <= self.config.pool:
                self.bad(
                    "Conservation",
                    f"block {b} is not a block of the pool",
                    field="ev.alloc.blocks",
                    expected=f"1 to {self.config.pool}",
                    observed=b,
                    requests=[e.r],
                    blocks=[b],
                )
                return
            if who:
                rule = "XferSafe" if who[0].startswith("quarantine") else "OneOwner"
                self.extra[b] = self.extra.get(b, 0) + 1
                self.bad(
                    rule,
                    f"block {b} is handed to {e.r} while it is not free: {some(who)}",
                    field="ev.alloc.blocks",
                    expected="a block of the pool",
                    observed=f"held by {some(who)}",
                    requests=[e.r] + [w for w in who if w in self.reqs],
                    blocks=[b],
                )
                return
        self.bad(
            "OneOwner",
            f"a block is handed to {e.r} twice in one allocation",
            field="ev.alloc.blocks",
            expected="distinct blocks of the pool",
            observed=some(e.blocks),
            requests=[e.r],
            blocks=e.blocks[:8],
        )

    def _hold(self, who: str, blocks: list[int], mine: set[int], rule_field: str) -> None:
        """``who`` takes one more reference of each block."""
        pool, extra = self.pool, self.extra
        self.events += len(blocks) - 1
        held = [b for b in blocks if b not in pool]
        for b in held:
            if not 1 <= b <= self.config.pool:
                self.bad(
                    "Conservation",
                    f"block {b} is not a block of the pool",
                    field=rule_field,
                    expected=f"1 to {self.config.pool}",
                    observed=b,
                    blocks=[b],
                )
            extra[b] = extra.get(b, 0) + 1
        pool.difference_update(blocks)
        size = len(mine) + len(blocks)
        doubled = [b for b in blocks if b in mine] if size and not mine.isdisjoint(blocks) else []
        mine.update(blocks)
        if len(mine) != size:
            doubled = doubled or blocks
            self.bad(
                "RefCount",
                f"{who} takes block {doubled[0]} a second time",
                field=rule_field,
                expected="a block it does not hold",
                observed=doubled[0],
                requests=[who],
                blocks=doubled[:8],
            )

    def share(self, e: s.Share) -> None:
        q = self.req(e.r, "a prefix hit")
        if q is None:
            return
        blocks = e.blocks
        if self.loads:
            for load in self.loads.values():
                hit = load.blocks.intersection(blocks)
                if hit and load.r != e.r and load.mode == "async":  # a sync load is ahead of its step's work
                    b = min(hit)
                    self.bad(
                        "XferSafe",
                        f"{e.r} shares block {b}, which the unfinished load {load.gen} of {load.r} writes",
                        field="ev.share.blocks",
                        expected="content that is complete",
                        observed="content in transfer",
                        requests=[e.r, load.r],
                        blocks=sorted(hit)[:8],
                    )
        if self.quar and any(not held.isdisjoint(blocks) for held in self.quar.values()):
            b = next(b for b in blocks if any(b in held for held in self.quar.values()))
            self.bad(
                "XferSafe",
                f"{e.r} shares block {b}, which is quarantined",
                field="ev.share.blocks",
                expected="not quarantined",
                observed="quarantined",
                requests=[e.r],
                blocks=[b],
            )
        if self.since_reset is not None and not self.since_reset.issuperset(blocks):
            stale = [b for b in blocks if b not in self.since_reset]
            self.bad(
                "PrefixValid",
                f"{e.r} hits block {stale[0]}, whose content was given up by the reset of the prefix cache",
                field="ev.share.blocks",
                expected="a block filled since the reset",
                observed=stale[0],
                requests=[e.r],
                blocks=stale[:8],
            )
        if self.beneficiary:
            self.asks(e.r)
        if q.hits >= 0:
            q.hits = len(blocks) if not q.blocks else q.hits + len(blocks)
        self._hold(e.r, blocks, q.blocks, "ev.share.blocks")

    def asks(self, r: str) -> None:
        """A request asks for blocks: after a victim gave up its own, that is whom it gave them up for."""
        if r != self.beneficiary:
            self.bad(
                "Queues",
                f"a victim gave its blocks up for {self.beneficiary}, but {r} is the next to ask",
                field="ev.preempt.target",
                expected=r,
                observed=self.beneficiary,
                requests=[self.beneficiary, r],
            )
        self.beneficiary = ""

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

    def _give(
        self, q: Req, e: s.Free | s.Prune | s.Fence | s.Quarantine, last: int | None = None
    ) -> list[int]:
        """``q`` stops holding the blocks of ``e``; returns those it really held.

        ``last``: newest step that may touch them, if it is not the newest that schedules ``q``.
        """
        last = q.last if last is None else last
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
        if not mine:
            q.hits = q.loaded = 0
        if last > self.quiet:
            self.touched.append((last, owned, q.r))
        if self.loads:
            load = self.loads.get(q.r)
            if load is not None and not load.blocks.isdisjoint(owned):
                if load.mode == "sync":  # part of its step: whoever comes next is behind it, or fenced by it
                    load.blocks.difference_update(owned)
                    if load.step > max(self.quiet, last):
                        self.touched.append((load.step, owned, q.r))
                elif load.started:
                    hit = sorted(load.blocks.intersection(owned))
                    self.bad(
                        "XferSafe",
                        f"{q.r} gives up block {hit[0]} while its load {load.gen} may still write it",
                        field="ev.free.blocks",
                        expected="held or quarantined until the load has ended",
                        observed="released",
                        requests=[q.r],
                        blocks=hit[:8],
                    )
                    load.blocks.difference_update(hit)
                else:
                    del self.loads[q.r]  # cancelled before it began
        return owned

    def _not_owned(self, q: Req, odd: list[int]) -> None:
        b = odd[0]
        where = "the pool" if b in self.pool else some(self.holders(b))
        self.bad(
            "NoDoubleFree",
            f"{q.r} releases block {b}, which it does not hold (or not twice); it is with: {where}",
            field="ev.free.blocks",
            expected="blocks it holds",
            observed=some(odd),
            requests=[q.r],
            blocks=odd[:8],
        )

    def free(self, e: s.Free) -> None:
        q = self.reqs.get(e.r) or self.req(e.r, "a release")
        if q is not None:
            self._drop(self._give(q, e))
            if q.hits > 0 and q.blocks and q.st != RUNNING:
                q.hits = -1  # a block hit in part was copied: the hit ends inside it

    def prune(self, e: s.Prune) -> None:
        q = self.req(e.r, "a pruning")
        if q is None:
            return
        if e.upto > q.comp:
            self.bad(
                "Tokens",
                f"blocks of {e.r} are pruned as if {e.upto} tokens were computed",
                field="ev.prune.upto",
                expected=f"at most {q.comp}",
                observed=e.upto,
                requests=[e.r],
                blocks=e.blocks[:8],
            )
        self._drop(self._give(q, e, self.reach(q, e.upto)))

    def reach(self, q: Req, upto: int) -> int:
        """The newest step that may touch blocks of ``q`` outside the window that ends at token ``upto``."""
        last = q.last
        if upto >= 0:
            begin = q.comp
            for step in sorted(self.in_flight, reverse=True):
                begin -= self.in_flight[step].get(q.r, 0)
                if begin >= upto:  # this step begins behind the window's end: it reads none of them
                    last = min(last, step - 1)
        return last

    def fence(self, e: s.Fence) -> None:
        q = self.req(e.r, "a deferred release")
        if q is None:
            return
        if e.step < q.last:
            self.bad(
                "InFlightSafe",
                f"blocks of {e.r} wait for step {e.step}, but step {q.last} schedules it",
                field="ev.fence.step",
                expected=f"{q.last} or later",
                observed=e.step,
                requests=[e.r],
                blocks=e.blocks[:8],
            )
        if e.step > self.step + 1:
            self.bad(
                "StepOrder",
                f"blocks of {e.r} wait for step {e.step}, which is not dispatched",
                field="ev.fence.step",
                expected=f"at most {self.step + 1}",
                observed=e.step,
                requests=[e.r],
            )
        if e.step <= self.processed:
            self.bad(
                "NoLeak",
                f"blocks of {e.r} wait for step {e.step}, which is processed already",
                field="ev.fence.step",
                expected=f"more than {self.processed}",
                observed=e.step,
                requests=[e.r],
            )
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
                        self.bad(
                            "InFlightSafe",
                            f"block {b} returns to the pool before step {step} is processed",
                            field="ev.drain.blocks",
                            expected=f"step {step} processed",
                            observed=f"step {self.processed} processed",
                            blocks=[b],
                        )
                    break
            else:
                self.bad(
                    "NoDoubleFree",
                    f"block {b} is drained but no deferred entry holds it",
                    field="ev.drain.blocks",
                    expected="a deferred block",
                    observed=some(self.holders(b)) if b not in self.pool else "in the pool",
                    blocks=[b],
                )
        self.deferred = [d for d in self.deferred if d[1]]
        self._drop(gone)

    def pin(self, e: s.Pin) -> None:
        self._hold(e.who, e.blocks, self.pins.setdefault(e.who, set()), "ev.pin.blocks")

    def unpin(self, e: s.Unpin) -> None:
        self.events += len(e.blocks) - 1
        mine = self.pins.get(e.who, set())
        odd = [b for b in e.blocks if b not in mine]
        odd = odd or [b for b in mine if e.blocks.count(b) > 1]
        if odd:
            self.bad(
                "NoDoubleFree",
                f"{e.who} unpins block {odd[0]}, which it does not pin (or not twice)",
                field="ev.unpin.blocks",
                expected="blocks it pins",
                observed=some(odd),
                blocks=odd[:8],
            )
        owned = list(dict.fromkeys(b for b in e.blocks if b in mine))
        mine.difference_update(owned)
        if not mine:
            self.pins.pop(e.who, None)
        self._drop(owned)

    def touch(self, e: s.Touch) -> None:
        odd = [b for b in e.blocks if not 1 <= b <= self.config.pool]
        if odd or len(set(e.blocks)) < len(e.blocks):
            self.bad(
                "Conservation",
                f"{e.who} touches a block that is not one of the pool, or one twice: {some(odd or e.blocks)}",
                field="ev.touch.blocks",
                expected=f"distinct blocks, 1 to {self.config.pool}",
                observed=some(e.blocks),
                blocks=e.blocks[:8],
            )
        self.touched.append((self.step, e.blocks, e.who))

    def _reuse(self, blocks: Iterable[int], user: str, how: str) -> None:
        """Blocks with an unfinished reader get new content: the reader has until the end of the call."""
        for job, (_, read) in self.stores.items():
            self.reused += [(b, job, user, how) for b in set(read).intersection(blocks)]
