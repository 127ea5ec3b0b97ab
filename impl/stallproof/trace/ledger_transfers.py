"""Ledger: loads (unordered writers), stores and sends (unordered readers), quarantine."""

from __future__ import annotations

from . import schema as s
from .ledger_blocks import Blocks
from .ledger_state import LoadRec, some
from .schema import FINISHED, LOADING, RECEIVED, WAITING


class Transfers(Blocks):
    """Loads by generation, readers by name, quarantine by request and generation."""

    def load(self, e: s.Load) -> None:
        q = self.req(e.r, "a load")
        if q is None:
            return
        # synchronous ones begin with their steps, which run in order
        if e.r in self.loads and "async" in (e.mode, self.loads[e.r].mode):
            self.bad(
                "XferSafe",
                f"{e.r} begins load {e.gen} while load {self.loads[e.r].gen} is unfinished",
                field="ev.load.r",
                expected="no unfinished load",
                observed=self.loads[e.r].gen,
                requests=[e.r],
            )
        for r, gen in self.quar:
            if r == e.r:
                self.bad(
                    "XferSafe",
                    f"{e.r} loads again while the lost load {gen} may still report under the same id",
                    field="ev.load.r",
                    expected="recomputes",
                    observed=f"load {e.gen}",
                    requests=[e.r],
                )
        if e.gen != q.gen + 1:
            self.bad(
                "XferSafe",
                f"load generations of {e.r} are not consecutive",
                field="ev.load.gen",
                expected=q.gen + 1,
                observed=e.gen,
                requests=[e.r],
            )
        load = LoadRec(e.r, e.gen, e.blocks, e.mode, self.step, self.ts)
        new = {b for a in self.given if a.r == e.r for b in a.blocks}
        odd = sorted(load.blocks - new) or ([0] if len(load.blocks) != len(e.blocks) else [])
        if odd:
            self.bad(
                "XferSafe",
                f"the load of {e.r} writes block {odd[0]}, which this call did not hand to it",
                field="ev.load.blocks",
                expected="blocks newly handed out for it",
                observed=some(odd),
                requests=[e.r],
                blocks=odd[:8],
            )
        size = self.config.block_size
        if e.tokens >= 0 and self.config.plain and len(e.blocks) != -(-e.tokens // size):
            self.bad(
                "XferSafe",
                f"a load of {e.tokens} tokens needs another number of blocks",
                field="ev.load.blocks, tokens",
                expected=-(-e.tokens // size),
                observed=len(e.blocks),
                requests=[e.r],
            )
        q.gen = e.gen
        q.loaded = e.tokens
        self.loads[e.r] = load
        if e.mode == "async":
            q.st = LOADING

    def start(self, e: s.Start) -> None:
        load = self.loads.get(e.r)
        if load is None or load.gen != e.gen or load.started:
            self.bad(
                "XferSafe",
                f"load {e.gen} of {e.r} starts, which is not admitted, cancelled or started already",
                field="ev.start.gen",
                expected=f"load {load.gen}, not started" if load else "no load",
                observed=e.gen,
                requests=[e.r],
            )
            return
        load.started = True
        if self.extra and not self.extra.keys().isdisjoint(load.blocks):
            b = next(b for b in load.blocks if b in self.extra)
            self.bad(
                "XferSafe",
                f"the load of {e.r} may write block {b}, which others hold: {some(self.holders(b))}",
                field="ev.start.r",
                expected="held by its request alone",
                observed=some(self.holders(b)),
                requests=[e.r],
                blocks=[b],
            )
        for step, blocks, who in self.touched:
            if step > self.quiet and not load.blocks.isdisjoint(blocks):
                hit = sorted(load.blocks.intersection(blocks))
                self.bad(
                    "InFlightSafe",
                    f"the load of {e.r} may write block {hit[0]} at once, but step {step}, which may still "
                    f"touch it{' for ' + who if who else ''}, is not done (newest done: {self.quiet})",
                    field="ev.start.r",
                    expected=f"step {step} done before the start",
                    observed=f"step {self.quiet} done",
                    requests=[e.r, who] if who else [e.r],
                    blocks=hit[:8],
                )
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
            self.bad(
                "BoundedWait",
                f"a {'late' if late else 'duplicate or unknown'} completion of load {e.gen} of "
                f"{e.r} takes effect",
                field="ev.recv.gen",
                expected=f"load {load.gen}" if load else "no load",
                observed=e.gen,
                requests=[e.r],
            )
            return
        if not load.started:
            self.bad(
                "XferSafe",
                f"load {e.gen} of {e.r} completes before it has started",
                field="ev.recv.gen",
                expected="a started load",
                observed="not started",
                requests=[e.r],
            )
        del self.loads[e.r]
        if q.st == LOADING:
            q.st = RECEIVED

    def load_failed(self, e: s.LoadFailed) -> None:
        q = self.req(e.r, "a failed load")
        if q is None:
            return
        load = self.loads.pop(e.r, None) or self.ended.get(e.r)
        if load is None or load.gen != e.gen:
            self.bad(
                "BoundedWait",
                f"a failure report of load {e.gen} of {e.r} takes effect, which is not known",
                field="ev.load_failed.gen",
                expected=f"load {load.gen}" if load else "no load",
                observed=e.gen,
                requests=[e.r],
            )
            return
        if not q.blocks.issuperset(e.blocks) or len(set(e.blocks)) < len(e.blocks):
            odd = [b for b in e.blocks if b not in q.blocks] or e.blocks
            self.bad(
                "XferSafe",
                f"the failed load of {e.r} names block {odd[0]}, which is not the request's (or twice)",
                field="ev.load_failed.blocks",
                expected="blocks of the request",
                observed=some(odd),
                requests=[e.r],
                blocks=odd[:8],
            )
        if q.st == LOADING:
            q.st = RECEIVED
        q.exact = False
        q.loaded = -1
        self.failing.add(e.r)

    def store(self, e: s.Store) -> None:
        q = self.req(e.r, "a store or send")
        if q is None:
            return
        if e.job in self.stores:
            self.bad(
                "StoreSafe",
                f"reader {e.job} begins twice",
                field="ev.store.job",
                expected="a new name",
                observed=e.job,
            )
            return
        odd = [b for b in e.blocks if b not in q.blocks and not any(b in p for p in self.pins.values())]
        odd = odd or [b for b in set(e.blocks) if e.blocks.count(b) > 1]
        if odd:
            self.bad(
                "StoreSafe",
                f"reader {e.job} reads block {odd[0]}, which {e.r} does not hold (or twice)",
                field="ev.store.blocks",
                expected="blocks held by the request or pinned",
                observed=some(odd),
                requests=[e.r],
                blocks=odd[:8],
            )
        if not e.blocks and q.how in ("stop", "length"):  # who aborts gets no answer to come back with
            self.bad(
                "StoreSafe",
                f"{e.r} hands over KV that is gone: no block of it is left",
                field="ev.store.blocks, ev.finish.reason",
                expected="the blocks of a request that ended well",
                observed="none",
                requests=[e.r],
            )
        self.stores[e.job] = (e.r, e.blocks)
        q.jobs += 1
        for b in e.blocks:
            self.reading[b] = self.reading.get(b, 0) + 1

    def stored(self, e: s.Stored) -> None:
        job = self.stores.pop(e.job, None)
        if job is None:
            self.bad(
                "BoundedWait",
                f"completion of reader {e.job}, which is not known, takes effect",
                field="ev.stored.job",
                expected=some(self.stores),
                observed=e.job,
            )
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
            self.bad(
                "BoundedWait",
                f"the completion that {e.r} waits for was discarded ({e.why})",
                field="ev.ignored.r",
                expected="accepted",
                observed="ignored",
                requests=[e.r],
            )

    def quarantine(self, e: s.Quarantine) -> None:
        q = self.req(e.r, "a quarantine")
        if q is None:
            return
        load = self.loads.pop(e.r, None)
        if load is None or load.gen != e.gen or load.blocks != set(e.blocks):
            self.bad(
                "XferSafe",
                f"quarantine of load {e.gen} of {e.r} does not match its unfinished load",
                field="ev.quarantine.gen, blocks",
                expected=f"load {load.gen}: {some(sorted(load.blocks))}" if load else "no load",
                observed=f"load {e.gen}: {some(e.blocks)}",
                requests=[e.r],
                blocks=e.blocks[:8],
            )
        elif not load.started:
            self.bad(
                "XferSafe",
                f"load {e.gen} of {e.r} is quarantined before it has started",
                field="ev.quarantine.gen",
                expected="a started load (another is cancelled)",
                observed="not started",
                requests=[e.r],
            )
        if e.r not in self.expired:
            self.bad(
                "BoundedWait",
                f"load {e.gen} of {e.r} is quarantined without having expired",
                field="ev.expire.r",
                expected="an expiry in the same record",
                observed="none",
                requests=[e.r],
            )
        self.quar[(e.r, e.gen)] = set(self._give(q, e))
        if q.st == LOADING:
            q.st = WAITING

    def unquarantine(self, e: s.Unquarantine) -> None:
        self.events += len(e.blocks) - 1
        held = self.quar.pop((e.r, e.gen), None)
        if held is None or held != set(e.blocks) or len(held) != len(e.blocks):
            self.bad(
                "NoDoubleFree",
                f"load {e.gen} of {e.r} leaves a quarantine it is not in with these blocks",
                field="ev.unquarantine.gen, blocks",
                expected=some(sorted(held)) if held else "no quarantine",
                observed=some(e.blocks),
                requests=[e.r],
                blocks=e.blocks[:8],
            )
        self._drop(held or ())
