"""The clauses of the engine contract on recorded traces: when each is at stake, and a trace that breaks it.

``spec/EngineContract.tla`` says what is assumed of an engine; each clause has a monitor, a rule of the
checker. A monitor that never met a case proves nothing, so :class:`Exercise` counts, clause by clause, the
moments at which a wrong engine would have been caught. :func:`broken` alters a recorded trace so that it
breaks one clause; the monitor must reject it by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from . import schema as s
from .ledger import Ledger
from .schema import FINISHED, RUNNING

Records = Sequence[Any]


class Clause(NamedTuple):
    """One clause. ``stock``, ``ours``: how often 40 workloads must exercise it, at least."""

    rules: tuple[str, ...]  #: its monitor: these rules reject a trace that breaks it
    counted: str  #: what one exercise is
    breaks: str  #: how a recorded trace is altered to break it
    stock: int
    ours: int


#: in the order of the specification
CLAUSES: dict[str, Clause] = {
    "StepsInOrder": Clause(
        ("StepOrder",), "a step is processed while a younger one is in flight",
        "a step is processed one too early", 200, 200,
    ),
    "Depth": Clause(
        ("StepOrder",), "a call leaves D > 1 steps in flight",
        "one batch less may be in flight", 200, 200,
    ),
    "TouchingCallsAreSteps": Clause(
        ("StepOrder",), "a call hands out or shares blocks",
        "a call that hands out blocks dispatches no step", 150, 150,
    ),
    "DeviceInOrder": Clause(
        ("StepOrder",), "a step is processed that touched blocks which were given up meanwhile",
        "the device-done mark goes back", 5, 5,
    ),
    "FreshFromPool": Clause(
        ("Conservation", "OneOwner"), "a block is handed out",
        "a block that another request holds is handed out", 400, 400,
    ),
    "FreeOnlyHeld": Clause(
        ("NoDoubleFree",), "a block is given up",
        "a block is given up that its request does not hold", 400, 400,
    ),
    "LastUseFrees": Clause(
        ("RefCount",), "one of several holders gives a block up",
        "the pool counts a block that still has a holder as free", 5, 5,
    ),
    "TouchOnlyOwned": Clause(
        ("InFlightSafe",), "a step computes tokens of a request (one group, full attention)",
        "a step computes tokens for which its request holds no block", 400, 400,
    ),
    "LoadsOnlyNewBlocks": Clause(
        ("XferSafe",), "a load is admitted for a request that has prefix hits, too",
        "a load writes a block hit", 1, 1,
    ),
    "OneReport": Clause(
        ("XferSafe",), "a load ends with a report",
        "a load ends that was never started", 15, 15,
    ),
    "LateReportsOnlyRelease": Clause(
        ("BoundedWait",), "a report comes for a load that nobody waits for (request ended, or load given up)",
        "a late report makes its request go on", 1, 1,
    ),
    "ReadersListed": Clause(
        ("StoreSafe",), "a reader begins on blocks of a request",
        "a reader reads a block that its request does not hold", 10, 10,
    ),
    "OnlyRunningRun": Clause(
        ("Queues",), "a request is in a step",
        "a request is in a step without having been admitted", 500, 500,
    ),
    "Tokens": Clause(
        ("Tokens",), "a step gives a request tokens",
        "a step gives a token to a request it did not name", 500, 500,
    ),
    "Limits": Clause(
        ("Limits",), "a call reaches max_num_batched_tokens or max_num_seqs",
        "the limit is one token below what a step has", 50, 50,
    ),
    "Requests": Clause(
        ("Requests",), "a request arrives while others live",
        "a request arrives twice", 80, 80,
    ),
    "PrefixValid": Clause(
        ("PrefixValid",), "a prefix hit after the cache was reset",
        "the cache is reset before a prefix hit", 1, 1,
    ),
}  # fmt: skip

#: clauses without a monitor on traces, with the reason
UNMONITORED = {
    "Dummy batches touch the null block only": "a trace records real steps; the block sanitizer sees such a "
    "write on the device",
    "Side streams join before their step ends": "not visible from the host; the block sanitizer checks tags "
    "at step begin and end",
    "Every writer of a block": "read from the source of each supported release (scope table)",
}


class Exercise:
    """Count the exercises of each clause while ``ledger`` replays a trace. Attach before the first record."""

    def __init__(self, ledger: Ledger) -> None:
        self.led = ledger
        self.counts: Counter[str] = Counter(dict.fromkeys(CLAUSES, 0))
        ledger.before(s.Alloc, self._alloc)
        for kind in (s.Free, s.Prune, s.Unpin, s.Drain, s.Fence):
            ledger.before(kind, self._gives)
        ledger.before(s.Share, self._share)
        ledger.after(s.Load, self._load)
        for end in (s.Recv, s.LoadFailed):
            ledger.before(end, self._report)
        ledger.before(s.Ignored, self._ignored)
        ledger.before(s.Store, self._store)
        ledger.before(s.Add, self._add)
        self._record, ledger.record = ledger.record, self.record  # type: ignore[method-assign]

    def record(self, line: int, rec: s.Record) -> None:
        n = self.counts
        led, c = self.led, self.led.config
        if type(rec) is s.Update:
            n["StepsInOrder"] += len(led.in_flight) > 1
            n["DeviceInOrder"] += any(step <= rec.step for step, _, _ in led.touched)
            n["Tokens"] += len(rec.out)
        self._record(line, rec)
        if type(rec) is s.Sched:
            n["Depth"] += c.depth > 1 and len(led.in_flight) == c.depth
            n["TouchingCallsAreSteps"] += any(type(e) is s.Alloc or type(e) is s.Share for e in rec.ev)
            n["OnlyRunningRun"] += len(rec.tok)
            n["TouchOnlyOwned"] += len(rec.tok) if c.plain else 0
            full = rec.tok and sum(rec.tok.values()) == c.max_num_batched_tokens
            n["Limits"] += bool(full or (rec.tok and len(led.running) == c.max_num_seqs))

    def _alloc(self, e: s.Alloc) -> None:
        self.counts["FreshFromPool"] += len(e.blocks)

    def _gives(self, e: Any) -> None:
        extra = self.led.extra
        self.counts["FreeOnlyHeld"] += len(e.blocks)
        if extra and type(e) is not s.Fence:
            self.counts["LastUseFrees"] += sum(b in extra for b in e.blocks)

    def _share(self, e: s.Share) -> None:
        self.counts["PrefixValid"] += self.led.since_reset is not None

    def _load(self, e: s.Load) -> None:
        q = self.led.reqs.get(e.r)
        self.counts["LoadsOnlyNewBlocks"] += q is not None and q.hits > 0

    def _report(self, e: Any) -> None:
        load, q = self.led.loads.get(e.r), self.led.reqs.get(e.r)
        self.counts["OneReport"] += load is not None and load.mode == "async"
        self.counts["LateReportsOnlyRelease"] += q is not None and q.st == FINISHED

    def _ignored(self, e: s.Ignored) -> None:
        self.counts["LateReportsOnlyRelease"] += any(r == e.r for r, _ in self.led.quar)

    def _store(self, e: s.Store) -> None:
        self.counts["ReadersListed"] += bool(e.blocks)

    def _add(self, e: s.Add) -> None:
        self.counts["Requests"] += bool(self.led.reqs)


# ---------------------------------------------------------------- traces that break a clause


def _with(records: Records, i: int, *new: Any) -> list[Any]:
    return [*records[:i], *new, *records[i + 1 :]]


def _event(records: Records, i: int, j: int, *new: Any) -> list[Any]:
    rec = records[i]
    return _with(records, i, msgspec.structs.replace(rec, ev=[*rec.ev[:j], *new, *rec.ev[j + 1 :]]))


def _events(records: Records, *kinds: type) -> Iterator[tuple[int, int, Any]]:
    for i, rec in enumerate(records):
        for j, e in enumerate(getattr(rec, "ev", ())):
            if type(e) in kinds:
                yield i, j, e


def _states(records: Records) -> Iterator[tuple[int, Any, Ledger]]:
    """Each record with the ledger just before it."""
    led = Ledger(lambda v: None)
    led.header("", 1, records[0])
    for i, rec in enumerate(records[1:], 1):
        yield i, rec, led
        led.record(i + 1, rec)


def _header(records: Records, **changes: Any) -> list[Any]:
    h = records[0]
    return _with(records, 0, msgspec.structs.replace(h, config=msgspec.structs.replace(h.config, **changes)))


def _steps_in_order(records: Records) -> Iterator[list[Any]]:
    for i, rec, led in _states(records):
        if type(rec) is s.Update and len(led.in_flight) > 1:
            yield _with(records, i, msgspec.structs.replace(rec, step=rec.step + 1))


def _depth(records: Records) -> Iterator[list[Any]]:
    if any(len(led.in_flight) == led.config.depth > 1 for _, _, led in _states(records)):
        yield _header(records, depth=records[0].config.depth - 1)


def _touching_calls(records: Records) -> Iterator[list[Any]]:
    for i, _, _ in _events(records, s.Alloc):
        rec = records[i]
        if any(type(x) is s.Admit for x in rec.ev):
            continue  # it would seem to run in the step before
        if type(rec) is s.Sched and any(type(x) is s.Sched for x in records[i + 1 :]):
            yield _with(records, i, s.Outside(ev=rec.ev, free=rec.free))


def _device_in_order(records: Records) -> Iterator[list[Any]]:
    updates = [i for i, rec in enumerate(records) if type(rec) is s.Update]
    for a, b in pairwise(updates):
        done = records[a].step
        one = _with(records, a, msgspec.structs.replace(records[a], done=done))
        yield _with(one, b, msgspec.structs.replace(records[b], done=done - 1))


def _fresh_from_pool(records: Records) -> Iterator[list[Any]]:
    for i, rec, led in _states(records):
        for j, e in enumerate(getattr(rec, "ev", ())):
            if type(e) is s.Alloc:
                others = [b for q in led.reqs.values() if q.r != e.r for b in q.blocks]
                gone = {b for x in rec.ev[:j] if hasattr(x, "blocks") for b in x.blocks}
                for b in [b for b in others if b not in gone][:1]:
                    yield _event(records, i, j, s.Alloc(e.r, [b, *e.blocks[1:]]))


def _free_only_held(records: Records) -> Iterator[list[Any]]:
    for i, rec, led in _states(records):
        for j, e in enumerate(getattr(rec, "ev", ())):
            if type(e) is s.Free:
                for b in sorted(led.pool - set(e.blocks))[:1]:
                    yield _event(records, i, j, s.Free(e.r, [b, *e.blocks[1:]]))


def _last_use_frees(records: Records) -> Iterator[list[Any]]:
    for i, rec, led in _states(records):
        shared = dict(led.extra)
        if type(rec) in (s.Sched, s.Update) and shared:
            gives = [b for e in rec.ev if type(e) is s.Free for b in e.blocks if b in shared]
            for b in gives[:1]:
                if sum(b in getattr(e, "blocks", ()) for e in rec.ev) == 1:
                    yield _with(records, i, msgspec.structs.replace(rec, refs={b: 0}))


def _touch_only_owned(records: Records) -> Iterator[list[Any]]:
    if not records[0].config.plain or records[0].config.lookahead:  # a block may be for drafts alone
        return
    for i, rec, led in _states(records):
        for j, e in enumerate(getattr(rec, "ev", ())):
            q = led.reqs.get(getattr(e, "r", ""))
            if type(e) is s.Alloc and type(rec) is s.Sched and q and q.st == RUNNING and q.r in rec.tok:
                if any(type(x) is s.Preempt or type(x) is s.Evict for x in rec.ev):
                    continue  # the victim would be the first to be missed
                yield _event(records, i, j)


def _loads_only_new(records: Records) -> Iterator[list[Any]]:
    for i, j, e in _events(records, s.Load):
        hits = [b for x in records[i].ev[:j] if type(x) is s.Share and x.r == e.r for b in x.blocks]
        if hits and e.blocks:
            yield _event(records, i, j, msgspec.structs.replace(e, blocks=[hits[-1], *e.blocks[1:]]))


def _one_report(records: Records) -> Iterator[list[Any]]:
    ends = {(e.r, e.gen) for _, _, e in _events(records, s.Recv)}
    for i, j, e in _events(records, s.Start):
        if (e.r, e.gen) in ends:
            yield _event(records, i, j)


def _late_reports(records: Records) -> Iterator[list[Any]]:
    for i, rec, led in _states(records):
        for j, e in enumerate(getattr(rec, "ev", ())):
            if type(e) is s.Unquarantine and e.r in led.reqs:
                yield _event(records, i, j, s.Recv(e.r, e.gen))
    for i, j, e in _events(records, s.Recv):
        yield _event(records, i, j, e, e)


def _readers_listed(records: Records) -> Iterator[list[Any]]:
    for i, rec, led in _states(records):
        for j, e in enumerate(getattr(rec, "ev", ())):
            if type(e) is s.Store and e.blocks:
                for b in sorted(led.pool)[:1]:
                    yield _event(records, i, j, msgspec.structs.replace(e, blocks=[*e.blocks[1:], b]))


def _only_running(records: Records) -> Iterator[list[Any]]:
    for i, j, e in _events(records, s.Admit):
        if e.r in getattr(records[i], "tok", {}):
            yield _event(records, i, j)


def _tokens(records: Records) -> Iterator[list[Any]]:
    for i, rec, led in _states(records):
        if type(rec) is s.Update:
            named = led.in_flight.get(rec.step, {})
            for r in [r for r, q in led.reqs.items() if r not in named and q.st != FINISHED][:1]:
                yield _with(records, i, msgspec.structs.replace(rec, out={**rec.out, r: 1}))


def _limits(records: Records) -> Iterator[list[Any]]:
    most = max((sum(r.tok.values()) for r in records if type(r) is s.Sched), default=0)
    if most > 1:
        yield _header(records, max_num_batched_tokens=most - 1)


def _requests(records: Records) -> Iterator[list[Any]]:
    for i, j, e in _events(records, s.Add):
        yield _event(records, i, j, e, e)


def _prefix_valid(records: Records) -> Iterator[list[Any]]:
    for i, _, _ in _events(records, s.Share):
        if type(records[i]) is s.Sched:
            yield [*records[:i], s.Outside(ev=[s.Reset(True)]), *records[i:]]


_BREAKS: dict[str, Callable[[Records], Iterator[list[Any]]]] = {
    "StepsInOrder": _steps_in_order,
    "Depth": _depth,
    "TouchingCallsAreSteps": _touching_calls,
    "DeviceInOrder": _device_in_order,
    "FreshFromPool": _fresh_from_pool,
    "FreeOnlyHeld": _free_only_held,
    "LastUseFrees": _last_use_frees,
    "TouchOnlyOwned": _touch_only_owned,
    "LoadsOnlyNewBlocks": _loads_only_new,
    "OneReport": _one_report,
    "LateReportsOnlyRelease": _late_reports,
    "ReadersListed": _readers_listed,
    "OnlyRunningRun": _only_running,
    "Tokens": _tokens,
    "Limits": _limits,
    "Requests": _requests,
    "PrefixValid": _prefix_valid,
}


def broken(clause: str, records: Records, limit: int = 3) -> list[list[Any]]:
    """At most ``limit`` traces made from ``records`` (one part, header first) that break ``clause``.

    Record numbers are renewed. Empty if the clause is not at stake in this trace. Raises ``KeyError`` for an
    unknown clause.
    """
    out = []
    for new in _BREAKS[clause](records):
        out.append([msgspec.structs.replace(x, n=n) if n and x.n != n else x for n, x in enumerate(new)])
        if len(out) >= limit:
            break
    return out
