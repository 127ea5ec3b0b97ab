"""Our own traces (schema v1): every decision, so a stall needs no inference (tier A)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from stallproof.errors import BadInput
from stallproof.trace import schema

from .engine import IDLE, PROGRESSING, STALLED, UNKNOWN, Evidence, Finding, Missing
from .observe import Ref
from .reader import Source

if TYPE_CHECKING:
    from .session import Instance

#: scheduling calls without a token, a load or a state change that count as a wedge
CALLS = 200


def _lines(src: Source) -> Iterator[bytes]:
    rest = b""
    for chunk in src.chunks():
        parts = (rest + chunk).split(b"\n")
        rest = parts.pop()
        yield from parts
    if rest:
        yield rest


def read(inst: Instance, src: Source) -> None:
    """Feed one trace: live requests, loads pending, and how long nothing has been scheduled."""
    live: set[str] = set()
    loading: set[str] = set()
    empty = 0
    first: Ref | None = None
    last = Ref(src.name, 1)
    since = now = 0.0
    running = 0
    e = inst.engine(0)
    for number, raw in enumerate(_lines(src), 1):
        if not raw.strip():
            continue
        try:
            rec = schema.decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            if number == 1:
                raise BadInput(
                    f"is not a trace: {exc}", path=src.name, line=number, remedy="record it again"
                ) from None
            inst.notes.append(
                f"{src.name}:{number}: unreadable record, the trace is judged up to here ({exc})"
            )
            break
        last = Ref(src.name, number, raw[:120])
        inst.records += 1
        if isinstance(rec, schema.Header):
            inst.version.state(rec.engine.version, "trace header")
            for r in rec.state.requests:
                live.add(r.r)
                if r.st == "loading":
                    loading.add(r.r)
            continue
        now = getattr(rec, "ts", now) or now
        moved = False
        for event in getattr(rec, "ev", []):
            name = type(event).__name__
            rid = getattr(event, "r", "")
            if name == "Add":
                live.add(rid)
                moved = True
            elif name == "Finish":
                live.discard(rid)
                loading.discard(rid)
                moved = True
            elif name == "Load" and event.mode == "async":
                loading.add(rid)
                moved = True
            elif name in ("Recv", "LoadFailed", "Expire", "Quarantine"):
                loading.discard(rid)
                moved = True
            elif name in ("Admit", "Promote", "Evict"):
                moved = True
        if isinstance(rec, schema.Sched):
            if rec.run is not None:
                running = len(rec.run)
            if rec.tok or moved or not live or loading:
                empty, first = 0, None
                since = now
                e.last_progress = None
                e.interval(PROGRESSING if live else IDLE, now, now, last, last)
            else:
                empty += 1
                first = first or last
        elif moved:
            empty, first = 0, None
    if loading and not running and e.intervals and live:
        e.interval(UNKNOWN, since, now, last, last, "loads are pending")
        e.missing = Missing(
            what="whether the pending loads complete", command="record on, then stallproof replay TRACE"
        )
    elif empty >= CALLS and first is not None:
        e.interval(
            STALLED,
            since,
            now,
            first,
            last,
            f"{empty} scheduling calls schedule nothing while {len(live)} requests live",
        )
        e.findings.append(
            Finding(
                mechanism="wedge", rule="trace-empty-calls",
                evidence=[Evidence(ref=first, tier="A", says="first call that schedules nothing"),
                          Evidence(ref=last, tier="A", says=f"call {empty} of them; no load is pending")],
                onset=(since, now), concerned=sorted(live)[:20], count=len(live), confidence="high", tier="A",
            )
        )  # fmt: skip
    e.records += 1
