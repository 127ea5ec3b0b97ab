"""Our own traces (schema v1): every decision, so a stall needs no inference (tier A)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from stallproof.errors import BadInput, Unsupported
from stallproof.trace import schema

from .engine import IDLE, PROGRESSING, STALLED, UNKNOWN, Engine, Evidence, Finding, Missing
from .observe import Ref
from .reader import Source

if TYPE_CHECKING:
    from .session import Instance

#: scheduling calls in a row that schedule nothing, with nothing pending outside, that count as a wedge; the
#: promise NoWedge allows none, but a step in flight may still free something
CALLS = 8
#: pre-emptions of one request without any token in between that count as a livelock
OFTEN = 5


def _lines(src: Source) -> Iterator[bytes]:
    rest = b""
    for chunk in src.chunks():
        parts = (rest + chunk).split(b"\n")
        rest = parts.pop()
        yield from parts
    if rest:
        yield rest


def read(inst: Instance, src: Source) -> None:
    """Feed one trace: who lives, what is pending outside, and for how many calls nothing has come out."""
    st = _State(src.name)
    e = inst.engine(0)
    lines, broken, calls, ended, cut = _lines(src), 0, 0, False, False
    for number, raw in enumerate(lines, 1):
        if not raw.strip():
            continue
        try:
            rec = schema.decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            if number == 1:
                raise BadInput(
                    f"is not a trace: {exc}", path=src.name, line=number, remedy="record it again"
                ) from None
            # a recording that ends in the middle of a line is usual, records behind a broken one are not
            broken = number if any(x.strip() for x in lines) else 0
            what = "unreadable record" if broken else "the trace is cut within this record"
            inst.notes.append(f"{src.name}:{number}: {what}, judged up to here ({exc})")
            cut = True
            break
        st.ref = Ref(src.name, number, raw[:120])
        inst.records += 1
        if isinstance(rec, schema.Header):
            if rec.schema != schema.SCHEMA:
                raise Unsupported(
                    f"{src.name}:{number}: trace schema {rec.schema!r}; this build reads {schema.SCHEMA!r}",
                    remedy="use the Stallproof release that recorded it, or a newer one",
                )
            inst.version.state(rec.engine.version, "trace header")
            st.live.update(r.r for r in rec.state.requests)
            st.outside.update((r.r, "load") for r in rec.state.requests if r.st == "loading")
            continue
        ended = isinstance(rec, schema.End)
        calls += isinstance(rec, schema.Sched)
        st.feed(rec)
        if isinstance(rec, schema.Sched) and not st.empty and not st.preempted:
            e.interval(PROGRESSING if st.live else IDLE, st.since, st.now, st.ref, st.ref)
    if not (ended or cut):
        inst.notes.append(
            f"{src.name}:{st.ref.line}: no end record: the engine runs, was killed, or the trace is cut; "
            "judged up to here"
        )
    e.records += 1
    first, last = st.first or st.ref, st.ref
    often = max(st.preempted.items(), key=lambda kv: kv[1], default=("", 0))
    if st.empty >= CALLS and st.live:
        why = f"{st.empty} scheduling calls schedule nothing while {len(st.live)} requests live"
        says = [
            (first, "the first call that schedules nothing"),
            (last, f"call {st.empty} of them; nothing is pending outside"),
        ]
        _stalled(e, st, "wedge", "trace-empty-calls", why, says)
    elif often[1] >= OFTEN:
        why = f"{often[0]} was pre-empted {often[1]} times and no token came out in between"
        _stalled(
            e,
            st,
            "livelock",
            "trace-preemptions",
            why,
            [(first, "the first of these pre-emptions"), (last, "the end")],
        )
    elif st.outside and st.live and st.quiet >= CALLS:
        e.interval(UNKNOWN, st.since, st.now, first, last, "something outside is pending")
        e.missing = Missing(
            what="whether the pending loads, deferrals or waits end",
            command="record on, then stallproof diagnose TRACE",
        )
    elif broken:
        e.interval(UNKNOWN, st.since, st.now, first, last, "the records behind a broken one were not read")
        e.missing = Missing(
            what=f"what happened after {src.name}:{broken}, which is broken",
            command="copy the trace again, then stallproof diagnose TRACE",
        )
    elif not calls and (st.live or not ended):
        e.interval(UNKNOWN, st.since, st.now, first, last, "no scheduling call is recorded")
        e.missing = Missing(
            what="what the engine did: the trace has no scheduling call",
            command="record on, then stallproof diagnose TRACE",
        )
    else:
        e.interval(PROGRESSING if st.live else IDLE, st.since, st.now, first, last)


class _State:
    """The little that a verdict needs, updated record by record."""

    def __init__(self, name: str) -> None:
        self.live: set[str] = set()
        #: (request, kind) of what may still be answered from outside
        self.outside: set[tuple[str, str]] = set()
        self.preempted: dict[str, int] = {}
        self.empty = 0  # calls in a row without tokens and with nothing pending outside
        self.quiet = 0  # calls in a row without tokens
        self.first: Ref | None = None
        self.ref = Ref(name, 1)
        self.since = self.now = 0.0

    def feed(self, rec: schema.Record) -> None:
        self.now = getattr(rec, "ts", self.now) or self.now
        moved = False
        deferred = False
        for event in getattr(rec, "ev", []):
            name = type(event).__name__
            rid = getattr(event, "r", "")
            deferred = deferred or name in ("NotYet", "Wait")
            if name == "Add":
                self.live.add(rid)
            elif name == "Finish":
                self.live.discard(rid)
                self.outside = {o for o in self.outside if o[0] != rid}
                self.preempted.clear()
            elif name == "Load" and event.mode == "async":
                self.outside.add((rid, "load"))
            elif name in ("Recv", "LoadFailed", "Expire", "Quarantine"):
                self.outside.discard((rid, "load"))
            elif name == "Park":
                self.outside.add((rid, "park"))
            elif name in ("Unpark", "Turn"):
                self.outside.discard((rid, "park"))
            elif name == "Pause":
                (self.outside.discard if event.state == "none" else self.outside.add)(("", "pause"))
            elif name == "Preempt":
                if not self.preempted:
                    self.first = self.ref
                self.preempted[rid] = self.preempted.get(rid, 0) + 1
            moved = moved or name not in ("Refuse", "NotYet", "Wait", "Preempt", "Touch", "Ignored")
        if isinstance(rec, schema.Update) and any(rec.out.values()):
            self.preempted.clear()
            moved = True
        if isinstance(rec, schema.Sched):
            if rec.tok or not self.live:
                self.quiet = self.empty = 0
            else:
                self.quiet += 1
                self.empty = 0 if self.outside or deferred or moved else self.empty + 1
        elif moved:
            self.empty = 0
        if not self.empty and not self.preempted:
            self.first, self.since = None, self.now
        elif self.empty == 1 and self.first is None:
            self.first = self.ref


def _stalled(e: Engine, st: _State, mechanism: str, rule: str, why: str, says: list[tuple[Ref, str]]) -> None:
    e.interval(STALLED, st.since, st.now, says[0][0], says[-1][0], why)
    e.findings.append(
        Finding(
            mechanism=mechanism, rule=rule, evidence=[Evidence(ref=r, tier="A", says=t) for r, t in says],
            onset=(st.since, st.now), concerned=sorted(st.live)[:20], count=len(st.live), confidence="high",
            tier="A",
        )
    )  # fmt: skip
