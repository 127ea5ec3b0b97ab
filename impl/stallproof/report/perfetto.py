"""Export to the trace-event JSON that Perfetto (ui.perfetto.dev) and Chrome's tracing page read.

One process "requests" with a thread per request (its states as slices, decisions as instants), one process
"blocks" with a counter track per place, one "transfers" with asynchronous slices, one "engine" with the
calls and the findings. Times are microseconds of the trace's own clock from its first record; a trace without
a clock (models, TLC) gets one millisecond a record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import IO, Any

from stallproof.report import names
from stallproof.report.timeline import KINDS, SCHED, UPDATE
from stallproof.report.tracepage import Drawn, Mark, position

ENGINE, REQUESTS, BLOCKS, TRANSFERS = 1, 2, 3, 4


def events(d: Drawn, marks: Sequence[Mark] = ()) -> Iterator[dict[str, Any]]:
    """Trace events in no particular order of time, as the format allows."""
    t = d.timeline
    clocked = any(x > 0 for x in t.ts)
    origin = next((x for x in t.ts if x > 0), 0.0)

    def us(p: int) -> float:
        if not clocked:
            return p * 1000.0
        last = t.ts[min(p, t.n - 1)] if t.n else origin
        return round((last - origin) * 1e6, 3) if last > 0 else 0.0

    for pid, name in (
        (ENGINE, "engine"),
        (REQUESTS, "requests"),
        (BLOCKS, "blocks"),
        (TRANSFERS, "transfers"),
    ):
        yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": {"sort_index": pid}}
    yield _thread(ENGINE, 1, "scheduling calls")
    yield _thread(ENGINE, 2, "output processed")
    yield _thread(ENGINE, 3, "findings")
    order = sorted(range(len(t.lanes)), key=lambda i: (*t.order[i], i))
    for rank, lane in enumerate(order):
        yield _thread(REQUESTS, lane + 1, t.lanes[lane])
        yield _thread(REQUESTS, lane + 1, "", "thread_sort_index") | {"args": {"sort_index": rank}}

    last: list[int] | None = None
    for p in range(t.n):
        counts = [column[p] for column in t.counts]
        if counts != last:
            last = counts
            args: dict[str, Any] = {style.label: n for style, n in zip(names.PLACES, counts, strict=True)}
            yield {"ph": "C", "pid": BLOCKS, "tid": 0, "name": "blocks", "ts": us(p), "args": args}
        if t.kind[p] in (SCHED, UPDATE):
            yield {
                "ph": "i", "s": "t", "pid": ENGINE, "tid": 1 + (t.kind[p] == UPDATE), "ts": us(p),
                "name": f"{KINDS[t.kind[p]]} {t.step[p]}",
                "args": {"line": d.lines[p], "tokens": t.tokens[p]},
            }  # fmt: skip
    for rows, styles, instant in (
        (t.states, names.STATES, False),
        (t.overlays, names.OVERLAYS, False),
        (t.marks, names.MARKS, True),
    ):
        for lane, start, end, code in zip(rows.lane, rows.start, rows.end, rows.code, strict=True):
            event: dict[str, Any] = {
                "pid": REQUESTS, "tid": lane + 1, "ts": us(start), "cat": "request",
                "name": styles[code].label, "args": {"line": d.lines[min(start, t.n - 1)] if t.n else 0},
            }  # fmt: skip
            if instant:
                yield event | {"ph": "i", "s": "t"}
            elif styles is names.OVERLAYS:
                # Stretches may cross a change of state, which nested slices must not: asynchronous ones may.
                key = f"{lane}.{code}.{start}"
                yield event | {"ph": "b", "id": key}
                yield event | {"ph": "e", "id": key, "ts": us(end)}
            else:
                yield event | {"ph": "X", "dur": max(0.0, round(us(end) - us(start), 3))}
    for i, row in enumerate(t.transfers):
        what = "store" if row.kind else "load"
        base = {
            "pid": TRANSFERS,
            "tid": 0,
            "cat": what,
            "id": f"transfer{i}",
            "name": f"{what} {t.lanes[row.lane]}",
        }
        about: dict[str, Any] = {"blocks": row.blocks, "outcome": names.OUTCOMES[row.outcome]}
        yield base | {"ph": "b", "ts": us(row.admitted), "args": about}
        if row.started > row.admitted:
            yield base | {"ph": "n", "ts": us(row.started), "args": {"event": "start"}}
        yield base | {"ph": "e", "ts": us(row.ended if row.ended >= 0 else t.n)}
    for mark in marks:
        yield {
            "ph": "i", "s": "g", "pid": ENGINE, "tid": 3, "ts": us(position(d, mark)), "name": mark.rule,
            "args": {"text": mark.text, "line": mark.line},
        }  # fmt: skip


def _thread(pid: int, tid: int, name: str, what: str = "thread_name") -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}}


def write(d: Drawn, out: IO[str], marks: Sequence[Mark] = ()) -> int:
    """Write the export event by event; returns the number of events."""
    h = d.timeline.header
    about = {"source": h.source, "engine": h.engine.name, "version": h.engine.version, "schema": h.schema}
    out.write('{"displayTimeUnit":"ms","otherData":' + json.dumps(about) + ',"traceEvents":[\n')
    count = 0
    for event in events(d, marks):
        out.write((",\n" if count else "") + json.dumps(event, separators=(",", ":"), allow_nan=False))
        count += 1
    out.write("\n]}\n")
    return count
