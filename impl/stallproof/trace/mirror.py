"""What a snapshot needs and an engine does not know by itself, folded from the events as they are written.

An engine can list its requests, its running list and its pool. It cannot say which freed blocks an
unprocessed step may still touch, which loads may be writing, or which deferred entries are waiting. The
:class:`Mirror` keeps just that, so that every part of a ring can begin with a full snapshot. It checks
nothing (:mod:`stallproof.trace.ledger` does) and costs little: bounded by steps in flight, live loads,
readers and pins.
"""

from __future__ import annotations

from .schema import (
    Admit,
    Deferred,
    Drain,
    Evict,
    Fence,
    Finish,
    Free,
    Held,
    InFlight,
    Job,
    Load,
    LoadFailed,
    LoadState,
    Outside,
    Pin,
    Preempt,
    Prune,
    Quarantine,
    Record,
    Recv,
    Rewind,
    Sched,
    Snapshot,
    Start,
    Store,
    Stored,
    Touch,
    Unpin,
    Unquarantine,
    Update,
)


class Mirror:
    """Fold records (:meth:`feed`) and complete snapshots (:meth:`fill`)."""

    def __init__(self, window: bool = False) -> None:
        self.window = window  # only then computed tokens matter
        self.comp: dict[str, int] = {}
        self.step = self.processed = 0
        self.done = -1
        self.last: dict[str, int] = {}
        self.in_flight: dict[int, dict[str, int]] = {}
        self.touched: list[tuple[int, list[int]]] = []
        self.deferred: list[Deferred] = []
        self.loads: dict[str, LoadState] = {}
        self.stores: dict[str, Job] = {}
        self.pins: dict[str, list[int]] = {}
        self.quarantined: dict[tuple[str, int], list[int]] = {}

    def feed(self, record: Record) -> None:
        """Fold one record, in the order of writing."""
        if isinstance(record, Sched):
            self.step = record.step
            self.done = max(self.done, record.done)
            self._events(record.ev)
            self.in_flight[record.step] = record.tok
            self.last.update(dict.fromkeys(record.tok, record.step))
            if self.window:
                for r, k in record.tok.items():
                    self.comp[r] = self.comp.get(r, 0) + k
        elif isinstance(record, Update):
            self.processed = record.step
            self.done = max(self.done, record.done)
            self.in_flight.pop(record.step, None)
            for r, load in list(self.loads.items()):
                if load.mode == "sync" and load.step <= record.step:
                    del self.loads[r]
            self._events(record.ev)
            quiet = self.done if self.done >= 0 else self.processed
            if self.touched:
                self.touched = [t for t in self.touched if t[0] > quiet]
        elif isinstance(record, Outside):
            self._events(record.ev)

    def _release(self, r: str, blocks: list[int], upto: int = -1) -> None:
        last = self.last.get(r, 0)
        if upto >= 0:
            begin = self.comp.get(r, 0)
            for step in sorted(self.in_flight, reverse=True):
                begin -= self.in_flight[step].get(r, 0)
                if begin >= upto:
                    last = min(last, step - 1)
        if last > (self.done if self.done >= 0 else self.processed):
            self.touched.append((last, blocks))
        load = self.loads.get(r)
        if load is not None and not load.started and not set(load.blocks).isdisjoint(blocks):
            del self.loads[r]

    def _events(self, events: list) -> None:
        for e in events:
            kind = type(e)
            if kind is Free:
                self._release(e.r, e.blocks)
            elif kind is Prune:
                self._release(e.r, e.blocks, e.upto)
            elif self.window and (kind is Admit or kind is Rewind):
                self.comp[e.r] = max(e.comp, 0)
            elif kind is Fence:
                self._release(e.r, e.blocks)
                self.deferred.append(Deferred(e.step, list(e.blocks)))
            elif kind is Drain:
                for b in e.blocks:
                    for entry in self.deferred:
                        if b in entry.blocks:
                            entry.blocks.remove(b)
                            break
                self.deferred = [d for d in self.deferred if d.blocks]
            elif kind is Touch:
                self.touched.append((self.step, e.blocks))
            elif kind is Pin:
                self.pins.setdefault(e.who, []).extend(e.blocks)
            elif kind is Unpin:
                left = self.pins.get(e.who, [])
                for b in e.blocks:
                    if b in left:
                        left.remove(b)
                if not left:
                    self.pins.pop(e.who, None)
            elif kind is Load:
                self.loads[e.r] = LoadState(
                    r=e.r, gen=e.gen, blocks=list(e.blocks), mode=e.mode, step=self.step
                )
            elif kind is Start:
                if e.r in self.loads:
                    self.loads[e.r].started = True
            elif kind is Recv or kind is LoadFailed:
                self.loads.pop(e.r, None)
            elif kind is Store:
                self.stores[e.job] = Job(e.job, e.r, list(e.blocks))
            elif kind is Stored:
                self.stores.pop(e.job, None)
            elif kind is Quarantine:
                self._release(e.r, e.blocks)
                self.loads.pop(e.r, None)
                self.quarantined.setdefault((e.r, e.gen), []).extend(e.blocks)
            elif kind is Unquarantine:
                self.quarantined.pop((e.r, e.gen), None)
            elif (kind is Finish or kind is Preempt or kind is Evict) and self.step - self.processed == 0:
                self.last.pop(e.r, None)

    def forget(self, live: set[str]) -> None:
        """Drop what is kept about requests that are no longer live and in no unprocessed step."""
        self.last = {r: s for r, s in self.last.items() if r in live or s > self.processed}
        self.comp = {r: n for r, n in self.comp.items() if r in live}

    def fill(self, snap: Snapshot) -> Snapshot:
        """Complete ``snap`` where the engine left a field empty; what the engine gave is kept."""
        self.forget({q.r for q in snap.requests})
        snap.step = snap.step or self.step
        snap.processed = snap.processed or self.processed
        if snap.done < 0:
            snap.done = self.done
        snap.in_flight = snap.in_flight or [InFlight(s, dict(t)) for s, t in sorted(self.in_flight.items())]
        if not snap.fences:
            for step, blocks in self.touched:
                for b in blocks:
                    snap.fences[b] = max(step, snap.fences.get(b, 0))
        snap.deferred = snap.deferred or [
            Deferred(d.step, list(d.blocks)) for d in sorted(self.deferred, key=lambda d: d.step)
        ]
        snap.loads = snap.loads or list(self.loads.values())
        snap.stores = snap.stores or list(self.stores.values())
        snap.pins = snap.pins or {k: list(v) for k, v in self.pins.items()}
        snap.quarantined = snap.quarantined or [
            Held(r, gen, list(blocks)) for (r, gen), blocks in self.quarantined.items()
        ]
        for q in snap.requests:
            q.last = q.last or self.last.get(q.r, 0)
        return snap
