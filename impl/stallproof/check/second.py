"""A second judge: TLC replays a sample of a trace against ``spec/TraceLedger.tla``.

The sample is turned into a constant of the specification, one tuple per event. The verdicts must agree: the
same rule at the same record, or none. Rules that the specification does not know (tokens, queues, names) are
outside the comparison, which then says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from stallproof.trace import schema as s
from stallproof.trace.checker import Checker, Options
from stallproof.trace.ledger import Ledger
from stallproof.trace.reader import Batch

#: rules that both judges know
SHARED = (
    "Conservation", "OneOwner", "RefCount", "NoDoubleFree", "NoLeak", "InFlightSafe", "XferSafe", "StoreSafe",
    "BoundedWait", "StepOrder",
)  # fmt: skip
#: fields whose comparison needs tokens or reasons, which the specification does not have
OUTSIDE = ("tok, ev.alloc.blocks", "ev.store.blocks, ev.finish.reason")
FAR = 1 << 30  #: "as far as the request itself was scheduled"


class Sample(Struct):
    """A trace as TLC sees it. ``lines[i]``: the record, from 1, that event ``i`` belongs to."""

    pool: int
    depth: int
    events: list[tuple[Any, ...]]
    lines: list[int]
    records: int


class Second(Struct):
    """What TLC said about a sample, beside what the checker says about the same records."""

    events: int
    records: int
    rule: str  #: TLC: the rule violated, empty: none
    line: int
    ours: str
    our_line: int
    seconds: float
    agree: bool | None  #: ``None``: the checker's finding is outside the specification


def sample(records: Sequence[Any], limit: int = 400) -> Sample:
    """The first records of a part (header first) that make about ``limit`` events."""
    head = records[0]
    out = Sample(head.config.pool, head.config.depth, [], [], 1)
    led = Ledger(lambda v: None)
    led.header("sample", 1, head)

    def put(line: int, *e: Any) -> None:
        out.events.append(e)
        out.lines.append(line)

    _snapshot(head.state, put)
    for i, rec in enumerate(records[1:], 2):
        if len(out.events) >= limit:
            break
        out.records = i
        if isinstance(rec, s.Sched | s.Update | s.Outside):
            _record(led, i, rec, put)
        led.record(i, rec)
    return out


def _snapshot(snap: s.Snapshot, put: Any) -> None:
    held: set[int] = set()

    def hold(r: str, blocks: list[int], first: str = "alloc", more: str = "share") -> None:
        new, old = [b for b in blocks if b not in held], [b for b in blocks if b in held]
        held.update(new)
        if new:
            put(1, first, r, new)
        if old:
            put(1, more, r, old)

    for q in snap.requests:
        if q.blocks:
            hold(q.r, q.blocks)
    for who, blocks in snap.pins.items():
        put(1, "pin", who, blocks)
    for d in snap.deferred:  # whoever gave them up: a request of its own that fences them at once
        name = f"deferred until {d.step}"
        put(1, "restore", max(0, d.step - 1), 0, [])
        hold(name, d.blocks)
        put(1, "fence", name, d.blocks, d.step)
    for h in snap.quarantined:
        hold(h.r, h.blocks)
        put(1, "load", h.r, 1, h.blocks)
        put(1, "start", h.r, 1, "writing")
        put(1, "quarantine", h.r, h.gen, h.blocks)
    put(1, "restore", snap.step, snap.processed, [(q.r, q.last, q.gen) for q in snap.requests])
    for b, step in snap.fences.items():
        put(1, "fenced", b, step)
    for j in snap.stores:
        put(1, "store", j.job, j.r, j.blocks)


def _record(led: Ledger, line: int, rec: Any, put: Any) -> None:
    pool = led.config.pool
    synced: set[str] = set()
    synchronous: set[str] = set()
    if isinstance(rec, s.Sched):
        put(line, "begin", rec.step)
    elif isinstance(rec, s.Update):
        put(line, "process", rec.step)
        for r, load in led.loads.items():
            if load.mode == "sync" and load.step <= rec.step:
                synced.add(r)
                put(line, "ended", r, load.gen)
    given, victims = set(), []
    for e in rec.ev:
        tag = str(type(e).__struct_config__.tag)
        if tag in ("alloc", "share", "pin", "unpin"):
            put(line, tag, e.r if hasattr(e, "r") else e.who, e.blocks)
            given.add(getattr(e, "r", ""))
        elif tag == "free":
            put(line, "free", e.r, e.blocks, FAR)
        elif tag == "prune":
            q = led.reqs.get(e.r)
            put(line, "free", e.r, e.blocks, led.reach(q, e.upto) if q else FAR)
        elif tag == "fence":
            put(line, "fence", e.r, e.blocks, e.step)
        elif tag == "touch":
            put(line, tag, e.blocks)
        elif tag == "drain":  # a block that two deferred entries hold is named twice
            rest = list(e.blocks)
            while rest:
                once = list(dict.fromkeys(rest))
                for b in once:
                    rest.remove(b)
                put(line, tag, once)
        elif tag == "load":
            put(line, "load", e.r, e.gen, e.blocks)
            if e.mode == "sync":
                synchronous.add(e.r)
        elif tag == "start":
            held = led.loads.get(e.r)
            sync = e.r in synchronous or (held is not None and held.mode == "sync")
            put(line, "start", e.r, e.gen, "sync" if sync else "writing")
        elif tag == "recv" or (tag == "load_failed" and e.r not in synced):
            put(line, "ended", e.r, e.gen)
        elif tag == "store":
            put(line, "store", e.job, e.r, e.blocks)
        elif tag == "stored":
            put(line, "stored", e.job)
        elif tag in ("quarantine", "unquarantine"):
            put(line, tag, e.r, e.gen, e.blocks)
        elif tag in ("finish", "add"):
            put(line, tag, e.r)
        elif tag in ("preempt", "evict"):
            victims.append(e.r)
        elif tag == "admit":
            given.add(e.r)
    if isinstance(rec, s.Sched):
        put(line, "dispatch", list(rec.tok))
    ended = {e.r for e in rec.ev if isinstance(e, s.Finish)}
    gave = [r for r in victims if r not in given and r not in ended]
    put(line, "close", rec.free if rec.free >= 0 else pool + 1, isinstance(rec, s.Update), gave)
    for b, n in rec.refs.items():
        put(line, "count", b, n)


def constants(x: Sample) -> dict[str, Any]:
    """The constants of ``TraceLedger``."""
    rids: set[str] = {"-"}
    names: set[str] = {"-"}
    jobs: set[str] = {"-"}
    for e in x.events:
        kind = e[0]
        if kind in ("pin", "unpin"):
            names.add(e[1])
        elif kind in ("store", "stored"):
            jobs.add(e[1])
            if kind == "store":
                rids.add(e[2])
        elif kind == "dispatch":
            rids.update(e[1])
        elif kind == "restore":
            rids.update(r for r, _, _ in e[3])
        elif kind not in ("drain", "touch", "fenced", "begin", "process", "close", "count"):
            rids.add(e[1])
        if kind == "close":
            rids.update(e[3])
    return {"Pool": x.pool, "Depth": x.depth, "Rids": rids, "Names": names, "Jobs": jobs, "Events": x.events}


def second(records: Sequence[Any], limit: int = 400, timeout: float = 300) -> Second:
    """Let TLC judge the first records of a part, and compare.

    Raises ``Unsupported`` if Java or TLC is missing, ``BadInput`` if TLC gives no verdict.
    """
    from stallproof.check import tlc
    from stallproof.errors import BadInput

    x = sample(records, limit)
    checker = Checker(Options(layers=("ledger",)))
    checker.run([Batch("sample", 1, list(records[: x.records]), 0)])
    found = checker.out.violations
    r = tlc.run("TraceLedger", constants(x), invariants=SHARED, timeout=timeout)
    if r.result == tlc.BROKEN:
        raise BadInput(f"TLC gives no verdict on the sample: {r.error}", remedy="replay without --with-tlc")
    rule, line = "", 0
    if r.result != tlc.OK:
        rule, line = r.result, x.lines[int(r.trace[-1].values["i"]) - 1]
    elif (r.distinct or 0) != len(x.events) + 1:
        raise BadInput(f"TLC replayed {r.distinct} states of {len(x.events) + 1}")
    ours, our_line = (found[0].rule, found[0].line) if found else ("", 0)
    agree: bool | None = (rule, line) == (ours, our_line)
    if ours and (ours not in SHARED or found[0].field in OUTSIDE):
        agree = None
    return Second(len(x.events), x.records, rule, line, ours, our_line, round(r.seconds, 1), agree)
