"""Words for people: who waits for what and who holds it, and what last happened to a request or a block."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import schema as s
from .ledger import Ledger, Req, least, some


def _why(led: Ledger, q: Req, asked: tuple[int, int] | None) -> str:
    load, c = led.loads.get(q.r), led.config
    size = q.prompt + q.out
    if q.awaits:
        return f"waits outside the scheduler ({q.awaits})"
    if load is not None and q.st != s.RUNNING:
        where = "may be writing" if load.started else "not started yet"
        return f"waits for its load {load.gen} of {len(load.blocks)} blocks ({where})"
    if c.plain and least(c, size) > c.pool:
        return f"can never fit: {size} tokens need more than {c.pool} blocks (Feasible)"
    if asked is not None:
        need, calls = asked
        what = f"asks for {need} more block{'s' * (need != 1)}" if need >= 0 else "asks for more blocks"
        return what + (f", refused in {calls} calls" if calls > 1 else ", refused in this call")
    if q.st == s.RUNNING:
        return f"last scheduled in step {q.last}" if q.last else "not scheduled yet"
    need = -(-size // c.block_size) - len(q.blocks) if c.plain else 0
    return f"needs {need} more block{'s' * (need != 1)}" if need > 0 else "waits to be scheduled"


def waits(led: Ledger, asked: Mapping[str, tuple[int, int]] | None = None, limit: int = 12) -> list[str]:
    """One line for the pool, then one per live request in scheduling order.

    ``asked``: request -> blocks it asked for (-1 unknown) and calls in which it was refused.
    """
    asked = asked or {}
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
        lines.append(f"{q.r}: {state}, holds {len(q.blocks)} blocks, {_why(led, q, asked.get(q.r))}")
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
    found: deque[list] = deque(maxlen=limit)  # [first line, step and kind, event, times, last line]

    def put(number: int, step: str, text: str) -> None:
        for row in list(found)[-2:]:
            if row[2] == text and row[1].split()[-1] == step.split()[-1]:  # the same again: one line
                row[3], row[4] = row[3] + 1, number
                return
        found.append([number, step, text, 1, number])

    for where, number, rec in records:
        ev = getattr(rec, "ev", None)
        if ev:
            step = f"step {rec.step} {rec.__struct_config__.tag}" if hasattr(rec, "step") else "outside"
            for e in ev:
                touched = getattr(e, "blocks", None)
                if ids and touched is not None:
                    mine = not ids.isdisjoint(touched)
                else:
                    mine = getattr(e, "r", None) in names or getattr(e, "target", None) in names
                if mine:
                    put(number, step, event_text(e))
        if where == path and number >= line:
            break
    return [
        f"{number}: {step}: {text}" + (f" ({times} times, until line {last})" if times > 1 else "")
        for number, step, text, times, last in found
    ]


__all__ = ["event_text", "events_of", "waits"]
