"""The page of one trace: findings, occupancy, swim-lanes, block map, every record, step by step."""

from __future__ import annotations

import json
import zlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import IO, Any

from stallproof.errors import BadInput
from stallproof.report import names
from stallproof.report.page import Page
from stallproof.report.timeline import KINDS, Timeline
from stallproof.trace import schema as s
from stallproof.trace.checker import Verdict
from stallproof.trace.reader import records

#: A chunk of records is closed at this size, or at eight times its keyframe if that is more.
CHUNK_BYTES = 1 << 18


@dataclass(frozen=True)
class Mark:
    """A finding as the page shows it. ``line``: 1-based line of the file; ``text``: lines for people."""

    rule: str
    line: int
    text: str
    file: str = ""
    detail: Sequence[str] = ()
    requests: Sequence[str] = ()
    blocks: Sequence[int] = ()
    tone: str = "bad"


@dataclass
class Drawn:
    """A whole trace in drawable form."""

    timeline: Timeline
    lines: array[int] = field(default_factory=lambda: array("i"))
    part: array[int] = field(default_factory=lambda: array("i"))
    files: list[str] = field(default_factory=list)
    chunks: list[bytes] = field(default_factory=list)
    chunk_from: list[int] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)


def draw(
    recs: Iterable[tuple[str, int, s.Record]],
    *,
    keep_records: bool = True,
    tick: Callable[[int], None] = lambda n: None,
) -> Drawn:
    """Read a recording once. ``recs`` as :func:`stallproof.trace.reader.records` gives them."""
    out: Drawn | None = None
    chunk: list[bytes] = []
    size, limit, key = 0, 0, b"[]"

    def close_chunk() -> None:
        nonlocal chunk, size
        if out is not None and chunk:
            start = out.timeline.n - len(chunk)
            body = b'{"from":%d,"key":%s,"rec":[%s]}' % (start, key, b",\n".join(chunk))
            out.chunks.append(zlib.compress(body, 6))
            out.chunk_from.append(start)
        chunk, size = [], 0

    for path, line, rec in recs:
        if out is None:
            if not isinstance(rec, s.Header):
                raise BadInput("no header record", path=path, line=line)
            out = Drawn(Timeline(rec), files=[path])
            size, limit = 0, 0
            continue
        if path != out.files[-1]:
            out.files.append(path)
        if isinstance(rec, s.Header):
            close_chunk()
            out.timeline.restart(rec)
            continue
        if keep_records and not chunk:
            key = json.dumps(out.timeline.keyframe(), separators=(",", ":")).encode()
            limit = max(CHUNK_BYTES, 8 * len(key))
        moved = out.timeline.add(rec)
        out.lines.append(line)
        out.part.append(len(out.files) - 1)
        if isinstance(rec, s.Note) and len(out.notes) < 200:
            out.notes.append({"pos": out.timeline.n - 1, "kind": rec.kind, "text": rec.text[:300]})
        if keep_records:
            text = b"[%s,%s]" % (s.encode(rec), json.dumps(moved, separators=(",", ":")).encode())
            chunk.append(text)
            size += len(text)
            if size > limit:
                close_chunk()
        if out.timeline.n % 4096 == 0:
            tick(out.timeline.n)
    if out is None:
        raise BadInput("no header record")
    close_chunk()
    out.timeline.close()
    return out


def _lane_order(t: Timeline) -> list[int]:
    return sorted(range(len(t.lanes)), key=lambda i: (*t.order[i], i))


def position(d: Drawn, mark: Mark) -> int:
    """Position of the record at the finding's line; the nearest one before, if that line is a header."""
    part = d.files.index(mark.file) if mark.file in d.files else 0
    lo, hi = 0, len(d.lines)
    while lo < hi:
        mid = (lo + hi) // 2
        if (d.part[mid], d.lines[mid]) <= (part, mark.line):
            lo = mid + 1
        else:
            hi = mid
    return max(0, lo - 1)


def _rows(rows: Any, prefix: str, rank: array[int]) -> dict[str, array[Any]]:
    """Interval columns sorted by displayed lane, then start, which is what the page searches."""
    order = sorted(range(len(rows)), key=lambda i: (rank[rows.lane[i]], rows.start[i]))
    pick = {
        "lane": array("i", (rank[rows.lane[i]] for i in order)),
        "start": array("i", (rows.start[i] for i in order)),
        "end": array("i", (rows.end[i] for i in order)),
        "code": array("B", (rows.code[i] for i in order)),
    }
    return {f"{prefix}.{name}": column for name, column in pick.items()}


def _transfers(t: Timeline, rank: array[int]) -> dict[str, array[Any]]:
    rows = sorted(t.transfers, key=lambda x: (rank[x.lane], x.admitted))
    return {
        "transfer.lane": array("i", (rank[x.lane] for x in rows)),
        "transfer.kind": array("B", (x.kind for x in rows)),
        "transfer.admitted": array("i", (x.admitted for x in rows)),
        "transfer.started": array("i", (x.started for x in rows)),
        "transfer.ended": array("i", (x.ended for x in rows)),
        "transfer.blocks": array("i", (x.blocks for x in rows)),
        "transfer.outcome": array("B", (x.outcome for x in rows)),
    }


def _facts(d: Drawn, h: s.Header) -> list[list[str]]:
    c, e = h.config, h.engine
    recs, t = d.timeline.n, d.timeline
    facts = [
        ["engine", f"{e.name} {e.version}"],
        ["scheduler", e.scheduler or "not recorded"],
        ["source", h.source],
        ["rules in force", ", ".join(h.rules) or "none (stock)"],
        ["pool", f"{c.pool:,} blocks of {c.block_size} tokens"],
        ["policy", f"{c.policy}, {c.depth} {'batch' if c.depth == 1 else 'batches'} in flight"],
        ["fence mode", f"{c.fence_mode}, patience {c.patience}"],
        ["connectors", ", ".join(e.connectors) or "none"],
        ["trace", f"{recs:,} records, {t.calls:,} scheduling calls, {sum(t.events.values()):,} events"],
        ["requests", f"{len(t.lanes):,}"],
    ]
    busy = sorted(t.events.items(), key=lambda kv: -kv[1])
    facts.append(["events", ", ".join(f"{k} {v:,}" for k, v in busy) or "none"])
    return facts


def page(
    d: Drawn,
    marks: Sequence[Mark] = (),
    *,
    checked: bool = True,
    title: str = "",
    verdict: Verdict | None = None,
) -> Page:
    """The page; ``marks`` are the checker's findings, in order. ``checked``: the checker has run.

    ``verdict`` adds what the checker counted and what it could not decide.
    """
    t, h = d.timeline, d.timeline.header
    bad = [m for m in marks if m.tone == "bad"]
    if bad:
        chip, tone = f"{bad[0].rule} violated", "bad"
    elif verdict is not None and verdict.status == "undecided":
        chip, tone = "cannot tell yet", "plain"
    else:
        chip, tone = ("conforms", "good") if checked else ("not checked", "plain")
    name = title or Path(d.files[0]).name
    out = Page(name, f"{h.engine.name} {h.engine.version} · {h.source}", verdict=chip, tone=tone)

    order = _lane_order(t)
    rank = array("i", bytes(4 * len(order)))
    for shown, lane in enumerate(order):
        rank[lane] = shown
    out.data("facts", _facts(d, h))
    out.data(
        "lanes", {"names": [t.lanes[i] for i in order], "order": [list(_finite(t.order[i])) for i in order]}
    )
    out.data("rank", list(rank))
    out.data(
        "findings",
        [{**asdict(m), "pos": position(d, m), "lanes": _ranks(t, rank, m.requests)} for m in marks],
    )
    out.data("notes", d.notes)
    out.data(
        "styles",
        {k: names.table(getattr(names, k.upper())) for k in ("places", "states", "overlays", "marks")},
    )
    out.data("outcomes", names.OUTCOMES)
    out.data(
        "trace",
        {"n": t.n, "pool": max(0, h.config.pool), "kinds": KINDS, "files": d.files, "chunks": d.chunk_from},
    )
    out.columns(
        "axis",
        {"kind": t.kind, "step": t.step, "ts": t.ts, "tokens": t.tokens, "line": d.lines, "part": d.part},
    )
    out.columns("occupancy", {st.key: col for st, col in zip(names.PLACES, t.counts, strict=True)})
    out.columns(
        "lanes",
        {
            **_rows(t.states, "state", rank),
            **_rows(t.overlays, "overlay", rank),
            **_rows(t.marks, "mark", rank),
            **_transfers(t, rank),
        },
    )
    for i, chunk in enumerate(d.chunks):
        out.blob(f"records-{i}", chunk)

    undecided = list(verdict.undecided) if verdict else []
    counts = verdict.counts if verdict else {}
    out.part("findings", "Findings", area="wide", checked=checked, undecided=undecided, counts=counts)
    out.part("bands", "Blocks by state", columns="occupancy", styles="places", unit="blocks", total="pool")
    out.part("lanes", "Requests", columns="lanes")
    out.part("records", "At this record", area="side")
    out.part("blocks", "Every block", area="side")
    out.part("facts", "This trace", area="side", data="facts")
    return out


def _finite(order: tuple[int, float]) -> tuple[int, float | None]:
    prio, arr = order
    return prio, arr if arr == arr and abs(arr) != float("inf") else None


def _ranks(t: Timeline, rank: array[int], requests: Iterable[str]) -> list[int]:
    known = {name: i for i, name in enumerate(t.lanes)}
    return [rank[known[r]] for r in requests if r in known]


def write(
    paths: Sequence[str | PathLike[str]],
    out: IO[str],
    marks: Sequence[Mark] = (),
    *,
    checked: bool = True,
    title: str = "",
    verdict: Verdict | None = None,
    tick: Callable[[int], None] = lambda n: None,
) -> Drawn:
    """Read the parts of one recording and write its page."""
    drawn = draw(records(*paths), tick=tick)
    page(drawn, marks, checked=checked, title=title, verdict=verdict).write(out)
    return drawn
