"""A trace as columns: blocks per place and call, request states, overlays, marks, transfers.

Position ``p`` is the index of a record (headers do not count); record ``p`` covers ``[p, p + 1)`` on the
horizontal axis. Every column is a flat :class:`array.array`, so a million events stay small and a page can
take them as they are.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from stallproof.report.names import MARK, OUTCOME, OVERLAY, PLACES, STATE
from stallproof.report.places import Places
from stallproof.trace import schema as s

#: Kinds of record, as ``Timeline.kind`` holds them.
SCHED, UPDATE, OUTSIDE, NOTE, END = range(5)
KINDS = ("sched", "update", "outside", "note", "end")
_KIND: dict[type, int] = {s.Sched: SCHED, s.Update: UPDATE, s.Outside: OUTSIDE, s.Note: NOTE, s.End: END}


def _ints() -> array[int]:
    return array("i")


@dataclass
class Rows:
    """Intervals ``[start, end)`` of a lane with a code; parallel columns."""

    lane: array[int] = field(default_factory=_ints)
    start: array[int] = field(default_factory=_ints)
    end: array[int] = field(default_factory=_ints)
    code: array[int] = field(default_factory=_ints)

    def add(self, lane: int, start: int, end: int, code: int) -> None:
        self.lane.append(lane)
        self.start.append(start)
        self.end.append(end)
        self.code.append(code)

    def __len__(self) -> int:
        return len(self.lane)


@dataclass
class Transfer:
    """A load (``kind`` 0) or store (1). Positions, -1: has not happened. ``outcome``: names.OUTCOMES."""

    lane: int
    kind: int
    admitted: int
    blocks: int
    started: int = -1
    ended: int = -1
    outcome: int = OUTCOME["open"]


@dataclass
class _Load:
    row: Transfer
    blocks: list[int]
    mode: str
    step: int


class Timeline:
    """Feed records in order with :meth:`add`, then call :meth:`close`."""

    def __init__(self, header: s.Header) -> None:
        self.header = header
        self.n = 0
        self.kind = array("B")
        self.step = _ints()
        self.ts = array("d")
        self.tokens = _ints()
        self.counts = [_ints() for _ in PLACES]
        self.lanes: list[str] = []
        self.order: list[tuple[int, float]] = []  # (priority, arrival) per lane
        self.states, self.overlays, self.marks = Rows(), Rows(), Rows()
        self.transfers: list[Transfer] = []
        self.events: dict[str, int] = {}
        self.calls = 0
        self.places = Places(max(0, header.config.pool))
        self._lane: dict[str, int] = {}
        self._state: dict[int, tuple[int, int]] = {}  # lane -> (state, since)
        self._repeat: dict[tuple[int, int], tuple[int, int, int]] = {}  # (lane, overlay) -> start, last, call
        self._fences: dict[int, list[tuple[int, int]]] = {}  # step -> [(lane, start)]
        self._running: set[str] = set()
        self._loads: dict[tuple[int, int], _Load] = {}
        self._sync: list[tuple[int, int]] = []
        self._stores: dict[str, Transfer] = {}
        self._by: dict[type, Callable[..., None]] = {
            kind: getattr(self, f"_{kind.__name__.lower()}")
            for kind in (
                s.Alloc, s.Share, s.Free, s.Prune, s.Fence, s.Drain, s.Pin, s.Unpin, s.Load, s.Start, s.Recv,
                s.LoadFailed, s.Store, s.Stored, s.Ignored, s.Admit, s.Promote, s.Refuse, s.NotYet, s.Wait,
                s.Preempt, s.Evict, s.Quarantine, s.Unquarantine, s.Expire, s.Add, s.Finish, s.Park, s.Unpark,
            )
        }  # fmt: skip
        self.restart(header)

    # ------------------------------------------------------------ records

    def restart(self, header: s.Header) -> None:
        """Take the snapshot at the head of a part; a later part replaces the book of blocks."""
        snap = header.state
        self.places = Places(max(0, header.config.pool))
        for key in list(self._loads):
            self._end_load(key, "open")
        known = set()
        for r in snap.requests:
            lane = self.lane(r.r, r.prio, r.arr)
            known.add(lane)
            self.places.hold(lane, r.blocks)
            state = (
                "outside"
                if r.awaits
                else ("ending" if r.blocks else s.FINISHED)
                if r.st == s.FINISHED
                else r.st
            )
            self._enter(lane, STATE[state])
        for lane in list(self._state):
            if lane not in known:
                self._enter(lane, STATE[s.FINISHED])  # it ended in records that are missing
        for deferred in snap.deferred:
            self.places.defer(deferred.blocks)
        for load in snap.loads:
            self._load(s.Load(load.r, load.gen, load.blocks, load.mode), step=load.step)
            if load.started:
                self._start(s.Start(load.r, load.gen))
        for job in snap.stores:
            self._store(s.Store(job.job, job.r, job.blocks))
        for blocks in snap.pins.values():
            self.places.pin(blocks)
        for held in snap.quarantined:
            self.places.quarantine(held.blocks)
        self.keyframe()

    def keyframe(self) -> list[int]:
        """Places of all blocks that are not free, as flat ``[block, place, lane, ...]``."""
        self.places.settle()
        return [x for b, (place, lane) in self.places.at.items() for x in (b, place, lane)]

    def add(self, record: s.Record) -> list[int]:
        """Apply a record; returns the blocks it moved, as :meth:`Places.settle` does."""
        if isinstance(record, s.Header):
            self.restart(record)
            return []
        step, tokens = -1, 0
        if isinstance(record, s.Sched):
            step, tokens = record.step, sum(record.tok.values())
            self.calls += 1
        for event in getattr(record, "ev", ()):
            kind = type(event)
            name = kind.__struct_config__.tag
            self.events[name] = self.events.get(name, 0) + 1
            apply = self._by.get(kind)
            if apply is not None:
                apply(event)
        if isinstance(record, s.Sched):
            self._scheduled(record)
        elif isinstance(record, s.Update):
            step, tokens = record.step, sum(record.out.values())
            self._processed(record.step)
        moved = self.places.settle()
        for column, count in zip(self.counts, self.places.counts, strict=True):
            column.append(min(max(0, count), 2**31 - 1))
        self.kind.append(_KIND[type(record)])
        self.step.append(min(max(-1, step), 2**31 - 1))
        self.ts.append(record.ts)
        self.tokens.append(min(max(0, tokens), 2**31 - 1))
        self.n += 1
        return moved

    def close(self) -> None:
        """End what is open at the end of the trace."""
        for lane in list(self._state):
            self._enter(lane, STATE[s.FINISHED])
        for (lane, code), (start, last, _) in self._repeat.items():
            self.overlays.add(lane, start, last + 1, code)
        for waiting in self._fences.values():
            for lane, start in waiting:
                self.overlays.add(lane, start, self.n, OVERLAY["fence"])
        self._repeat.clear()
        self._fences.clear()

    # ------------------------------------------------------------ lanes

    def lane(self, r: str, prio: int = 0, arr: float = float("inf")) -> int:
        """Number of request ``r``'s lane, made when first named."""
        number = self._lane.get(r)
        if number is None:
            number = self._lane[r] = len(self.lanes)
            self.lanes.append(r)
            self.order.append((prio, arr))
        elif arr != float("inf"):
            self.order[number] = (prio, arr)
        return number

    def state_of(self, lane: int) -> int:
        return self._state.get(lane, (STATE[s.FINISHED], 0))[0]

    def _enter(self, lane: int, state: int) -> None:
        old, since = self._state.get(lane, (STATE[s.FINISHED], self.n))
        if old == state:
            return
        if old != STATE[s.FINISHED] and since < self.n:
            self.states.add(lane, since, self.n, old)
        if state == STATE[s.FINISHED]:
            self._state.pop(lane, None)
        else:
            self._state[lane] = (state, self.n)
        if state == STATE[s.RUNNING]:
            self._running.add(self.lanes[lane])
        else:
            self._running.discard(self.lanes[lane])
        self.places.runs(lane, state == STATE[s.RUNNING])

    def _mark(self, r: str, code: int) -> int:
        lane = self.lane(r)
        self.marks.add(lane, self.n, self.n + 1, code)
        return lane

    def _stretch(self, r: str, code: int) -> None:
        """A thing that happens call after call is one stretch, not a thousand marks."""
        key = (self.lane(r), code)
        start, _, _ = self._repeat.get(key, (self.n, self.n, self.calls))
        self._repeat[key] = (start, self.n, self.calls)

    def _scheduled(self, record: s.Sched) -> None:
        running = STATE[s.RUNNING]
        for r in record.tok.keys() - self._running:
            self._enter(self.lane(r), running)
        if record.run is not None:
            listed = {self.lane(r) for r in record.run}
            for lane in listed:
                self._enter(lane, running)
            for lane, (state, _) in list(self._state.items()):
                if state == running and lane not in listed:
                    self._enter(lane, STATE[s.PREEMPTED])
        for key, (start, last, call) in list(self._repeat.items()):
            if call < self.calls:
                self.overlays.add(key[0], start, last + 1, key[1])
                del self._repeat[key]

    def _processed(self, step: int) -> None:
        for waiting in [k for k in self._fences if k <= step]:
            for lane, start in self._fences.pop(waiting):
                self.overlays.add(lane, start, max(start + 1, self.n), OVERLAY["fence"])
        for key in [k for k in self._sync if k in self._loads and self._loads[k].step <= step]:
            self._end_load(key, "received")

    # ------------------------------------------------------------ blocks

    def _alloc(self, e: s.Alloc | s.Share) -> None:
        self.places.hold(self.lane(e.r), e.blocks)

    _share = _alloc

    def _free(self, e: s.Free | s.Prune) -> None:
        self._give_up(e.r, e.blocks)

    _prune = _free

    def _give_up(self, r: str, blocks: Iterable[int]) -> None:
        lane = self.lane(r)
        self.places.release(lane, blocks)
        if self.state_of(lane) == STATE["ending"] and lane not in self.places.held:
            self._enter(lane, STATE[s.FINISHED])

    def _fence(self, e: s.Fence) -> None:
        self._give_up(e.r, e.blocks)
        self.places.defer(e.blocks)
        self._fences.setdefault(e.step, []).append((self.lane(e.r), self.n))

    def _drain(self, e: s.Drain) -> None:
        self.places.drain(e.blocks)

    def _pin(self, e: s.Pin) -> None:
        self.places.pin(e.blocks)

    def _unpin(self, e: s.Unpin) -> None:
        self.places.unpin(e.blocks)

    def _quarantine(self, e: s.Quarantine) -> None:
        self._give_up(e.r, e.blocks)
        self.places.quarantine(e.blocks)

    def _unquarantine(self, e: s.Unquarantine) -> None:
        self.places.unquarantine(e.blocks)
        self.places.written(self.lane(e.r), e.blocks)

    # ------------------------------------------------------------ transfers

    def _load(self, e: s.Load, step: int | None = None) -> None:
        lane = self.lane(e.r)
        row = Transfer(lane, 0, self.n, len(e.blocks))
        self.transfers.append(row)
        at = step if step is not None else (self.step[-1] + 1 if self.n else 0)
        self._loads[lane, e.gen] = _Load(row, e.blocks, e.mode, at)
        self.places.write(lane, e.blocks, started=False)
        if e.mode == "async":
            self._enter(lane, STATE[s.LOADING])
        else:
            self._sync.append((lane, e.gen))

    def _start(self, e: s.Start) -> None:
        load = self._loads.get((self.lane(e.r), e.gen))
        if load is not None:
            load.row.started = self.n
            self.places.write(load.row.lane, load.blocks, started=True)

    def _end_load(self, key: tuple[int, int], outcome: str) -> None:
        load = self._loads.pop(key, None)
        if key in self._sync:
            self._sync.remove(key)
        if load is not None:
            load.row.outcome = OUTCOME[outcome]
            load.row.ended = self.n if outcome != "open" else -1
            self.places.written(load.row.lane, load.blocks)

    def _recv(self, e: s.Recv) -> None:
        lane = self.lane(e.r)
        self._end_load((lane, e.gen), "received")
        if self.state_of(lane) == STATE[s.LOADING]:
            self._enter(lane, STATE[s.RECEIVED])

    def _loadfailed(self, e: s.LoadFailed) -> None:
        lane = self._mark(e.r, MARK["failed"])
        self._end_load((lane, e.gen), "failed")
        if self.state_of(lane) == STATE[s.LOADING]:
            self._enter(lane, STATE[s.RECEIVED])

    def _expire(self, e: s.Expire) -> None:
        lane = self._mark(e.r, MARK["expire"])
        if e.what == "load":
            for key in [k for k in self._loads if k[0] == lane]:
                # Its blocks go to quarantine: the row ends here, the writing does not.
                self._loads[key].row.outcome = OUTCOME["expired"]
                self._loads[key].row.ended = self.n
                del self._loads[key]
            self._enter(lane, STATE[s.WAITING])

    def _store(self, e: s.Store) -> None:
        row = Transfer(self.lane(e.r), 1, self.n, len(e.blocks), started=self.n)
        self.transfers.append(row)
        self._stores[e.job] = row

    def _stored(self, e: s.Stored) -> None:
        row = self._stores.pop(e.job, None)
        if row is not None:
            row.ended, row.outcome = self.n, OUTCOME["flushed" if e.how == "flush" else "stored"]

    def _ignored(self, e: s.Ignored) -> None:
        self._mark(e.r, MARK["ignored"])

    # ------------------------------------------------------------ decisions

    def _add(self, e: s.Add) -> None:
        self._enter(self.lane(e.r, e.prio, e.arr), STATE[s.WAITING])

    def _admit(self, e: s.Admit) -> None:
        self._enter(self.lane(e.r), STATE[s.RUNNING])

    def _promote(self, e: s.Promote) -> None:
        self._enter(self.lane(e.r), STATE[s.HELD])

    def _refuse(self, e: s.Refuse) -> None:
        self._stretch(e.r, OVERLAY["refused"])

    def _notyet(self, e: s.NotYet) -> None:
        self._stretch(e.r, OVERLAY["not_yet"])

    def _wait(self, e: s.Wait) -> None:
        self._stretch(e.r, OVERLAY["patience"])

    def _preempt(self, e: s.Preempt) -> None:
        self._enter(self._mark(e.r, MARK["preempt"]), STATE[s.PREEMPTED])

    def _evict(self, e: s.Evict) -> None:
        lane = self._mark(e.r, MARK["evict"])
        for key in [k for k in self._loads if k[0] == lane and self._loads[k].row.started < 0]:
            self._end_load(key, "cancelled")
        self._enter(lane, STATE[s.WAITING])

    def _park(self, e: s.Park) -> None:
        self._enter(self.lane(e.r), STATE["outside"])

    def _unpark(self, e: s.Unpark) -> None:
        lane = self.lane(e.r)
        self._enter(lane, STATE[s.HELD if self.places.held.get(lane) else s.WAITING])

    def _finish(self, e: s.Finish) -> None:
        lane = self.lane(e.r)
        self._enter(lane, STATE["ending"] if self.places.held.get(lane) else STATE[s.FINISHED])
