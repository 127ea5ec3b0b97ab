"""Words for people: who waits for what and who holds it, and what last happened to a request or a block."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from . import schema as s
from .ledger import Ledger, Req, some


def _why(led: Ledger, q: Req) -> str:
    load = led.loads.get(q.r)
    if q.awaits:
        return f"waits outside the scheduler ({q.awaits})"
    if load is not None and q.st != s.RUNNING:
        where = "may be writing" if load.started else "not started yet"
        return f"waits for its load {load.gen} of {len(load.blocks)} blocks ({where})"
    if q.st == s.RUNNING:
        return f"runs, last scheduled in step {q.last}" if q.last else "runs"
    size, c = q.prompt + q.out, led.config
    need = -(-(size + 1) // c.block_size) - len(q.blocks) if c.groups == 1 and size else 0
    if c.groups == 1 and size and -(-(size + 1) // c.block_size) > c.pool:
        return f"can never fit: {size} tokens and one more need more than {c.pool} blocks (Feasible)"
    return f"waits for {need} more block{'s' if need != 1 else ''}" if need > 0 else "waits to be scheduled"


def waits(led: Ledger, limit: int = 12) -> list[str]:
    """One line for the pool, then one per live request in scheduling order."""
    deferred = sum(len(b) for _, b in led.deferred)
    quarantined = sum(len(b) for b in led.quar.values())
    head = f"pool of {led.config.pool}: {len(led.pool)} free"
    if deferred:
        head += f", {deferred} waiting for steps in flight"
    if quarantined:
        head += f", {quarantined} quarantined"
    for who, blocks in list(led.pins.items())[:3]:
        head += f", {len(blocks)} pinned by {who}"
    lines = [head]
    live = sorted(led.reqs.values(), key=lambda q: (q.st == s.FINISHED, q.place))
    for q in live[:limit]:
        state = q.st if q.st != s.FINISHED else "finished, blocks outstanding"
        lines.append(f"{q.r}: {state}, holds {len(q.blocks)} blocks, {_why(led, q)}")
    if len(live) > limit:
        held = sum(len(q.blocks) for q in live[limit:])
        lines.append(f"... and {len(live) - limit} more requests holding {held} blocks")
    return lines


def event_text(e: Any) -> str:
    """An event as one short phrase: its name and its fields."""
    parts = []
    for name in e.__struct_fields__:
        value = getattr(e, name)
        if isinstance(value, list):
            parts.append(f"{name} [{some(value, 8)}]")
        elif name == "r":
            parts.append(str(value))
        elif value not in ("", -1):
            parts.append(f"{name} {value}")
    return f"{e.__struct_config__.tag} {' '.join(parts)}"


def events_of(
    records: Iterable[tuple[str, int, s.Record]],
    requests: Sequence[str],
    blocks: Sequence[int],
    path: str,
    line: int,
    limit: int = 12,
) -> list[str]:
    """The last events up to ``path:line`` that concern one of ``requests`` or ``blocks``."""
    names, ids = set(requests), set(blocks)
    found: deque[str] = deque(maxlen=limit)
    for where, number, rec in records:
        ev = getattr(rec, "ev", None)
        if ev:
            step = f"step {rec.step} {rec.__struct_config__.tag}" if hasattr(rec, "step") else "outside"
            for e in ev:
                if ids:
                    mine = getattr(e, "blocks", None)
                    if mine is not None and not ids.isdisjoint(mine):
                        found.append(f"{number}: {step}: {event_text(e)}")
                        continue
                    if mine is not None:
                        continue
                if getattr(e, "r", None) in names or getattr(e, "target", None) in names:
                    found.append(f"{number}: {step}: {event_text(e)}")
        if where == path and number >= line:
            break
    return list(found)


def sched_line(rec: s.Sched) -> str:
    """A scheduling call as one short line (for verbose output)."""
    return f"step {rec.step}: {sum(rec.tok.values())} tokens for {len(rec.tok)} requests, free {rec.free}"


__all__ = ["event_text", "events_of", "msgspec", "sched_line", "waits"]
