"""Inputs to a report: opens files, sends each to its reader, joins the evidence that belongs together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from stallproof.errors import BadInput, Exit

from . import kvevents, owntrace
from .engine import STALLED, UNKNOWN
from .knowledge import MECHANISMS
from .observe import NAN, Stats
from .reader import Source
from .report import Report, build
from .session import Instance, read_lines

Progress = Callable[[str, int], None]


def diagnose(paths: Sequence[str], progress: Progress | None = None) -> Report:
    """Read every input and judge. Raises :class:`BadInput` for an input that cannot be used at all.

    Inputs with a serving log of their own are one instance each; scrapes, stacks, dumps and KV events without
    a log are taken to belong to the log where there is exactly one.
    """
    started = time.perf_counter()
    sources = [Source(p).open() for p in paths]
    parts: list[tuple[Instance, float, Source]] = []
    for src in sources:
        inst = Instance(src.name)
        tail = NAN
        kind = src.kind
        if kind == "lines":
            tail = read_lines(inst, src.name, _watched(src, progress), src.control)
        elif kind == "kv-events":
            _kv_events(inst, src)
        else:
            owntrace.read(inst, src)
        if src.control.truncated:
            inst.notes.append(f"{src.name}: {src.control.truncated}; judged on what was readable")
        parts.append((inst, tail, src))
    merged = _join(parts)
    for inst, tail in merged:
        inst.finish(tail)
    nothing = [src for inst, _, src in parts if not inst.records and not inst.threads and not inst.kv_batches]
    if len(nothing) == len(parts):
        raise BadInput(
            f"nothing of vLLM or vllm-ascend was recognised in {src_lines(nothing[0])} lines",
            path=nothing[0].name,
            remedy="give a serving log, a scrape, a dump, a py-spy stack, a KV-event capture or a trace",
        )
    return build([i for i, _ in merged], parts, time.perf_counter() - started)


def src_lines(src: Source) -> int:
    return max(src.control.lines, 1)


def _watched(src: Source, progress: Progress | None) -> Iterator[tuple[int, bytes]]:
    seen = 0
    for item in src.lines():
        if progress is not None and src.control.bytes - seen >= 64 << 20:
            seen = src.control.bytes
            progress(src.name, seen)
        yield item


def _join(parts: list[tuple[Instance, float, Source]]) -> list[tuple[Instance, float]]:
    logs = [
        (i, t)
        for i, t, _ in parts
        if any(e.records and not e.scrapes for e in i.engines.values()) or i.end == i.end
    ]
    if not logs:
        logs = [
            (i, t)
            for i, t, _ in parts
            if any(e.scrapes or e.last_scrape for e in i.engines.values()) or i.scrapes.current
        ]
    if len(logs) != 1 or len(parts) == 1:
        return [(i, t) for i, t, _ in parts]
    main, tail = logs[0]
    for inst, _, _ in parts:
        if inst is main:
            continue
        main.threads.extend(inst.threads)
        main.kv_batches += inst.kv_batches
        main.records += inst.records
        main.notes.extend(inst.notes)
        inst._scraped(inst.scrapes.flush())
        main.dump, main.dump_obs = main.dump or inst.dump, main.dump_obs or inst.dump_obs
        for k in inst.total.count:
            for o in inst.total.some[k]:
                main.total.add(o)
                for e in main.engines.values():
                    e.tally.add(o)
        for index, other in inst.engines.items():
            _attach(main, index, other)
    return [(main, tail)]


def _attach(main: Instance, index: int, other: object) -> None:
    """Scrapes taken beside a log: the newest facts about the same engine."""
    from .engine import Engine

    assert isinstance(other, Engine)
    if other.last_scrape is None:
        return
    s = other.last_scrape.stats()
    s.t = NAN  # its clock is not the log's
    e = main.engine(index if index in main.engines or len(main.engines) != 1 else next(iter(main.engines)))
    if other.last_progress is not None:
        main.stats(_moved(s))
        return
    s.gen = 0.0
    if other.scrapes == 1 and e.quiet is None and e.idle is None:
        e.scrapes, e.last_scrape = 1, other.last_scrape
        return
    s.engine = e.index
    main.stats(s)


def _moved(s: Stats) -> Stats:
    s.gen = 1.0
    return s


def _kv_events(inst: Instance, src: Source) -> None:
    last = None
    for b in kvevents.batches(src.chunks()):
        if isinstance(b, str):
            if last is None:
                raise BadInput(b, path=src.name, remedy="give the payloads of the KV-event publisher")
            inst.notes.append(f"{src.name}: {b}")
            break
        last = b
        inst.kv_batches += 1
        if b.layout.startswith("array"):
            inst.version.narrow(hi=(0, 24, 9), why="KV events in the array layout")
        elif b.layout:
            inst.version.narrow(lo=(0, 24, 0), why="KV events in the map layout")
    if last is None:
        raise BadInput(
            "holds no KV-event batch", path=src.name, remedy="give the payloads of the KV-event publisher"
        )
    inst.notes.append(
        f"{src.name}: {inst.kv_batches} KV-event batches; they show cache content, not ownership"
    )


def exit_code(report: Report) -> Exit:
    """0 progressing or idle, 1 finding, 2 cannot tell."""
    if report.verdict == STALLED or any(
        MECHANISMS[f.mechanism].rank <= 2 and f.mechanism != "lease_expired"
        for e in report.engines
        for f in e.findings
    ):
        return Exit.FINDING
    return Exit.BAD_INPUT if report.verdict == UNKNOWN else Exit.OK
