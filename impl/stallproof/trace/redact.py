"""Request ids as keyed hashes, and the proof that a trace gives nothing else away.

The schema has no field for prompts or token values. What free text remains (request ids, names of jobs and
pins, notes) is listed here, in one place, for the writer that hashes it and for the check that proves it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from .schema import Event, Header, Note, Record, Rid, Snapshot

#: Event fields that name a request, by event type; taken from the annotations of the schema.
RID_FIELDS = ("r", "target")
#: Event fields with names that may contain a request id.
NAME_FIELDS = ("who", "job")
#: Record fields that are keyed by or list request ids.
_NUMBER = re.compile(rb"(?<![\d.])\d{1,9}(?![\d.])")
_HEX = re.compile(r"^[0-9a-f]{16}$")


def _event(e: Any, h: Callable[[str], str]) -> Any:
    changes = {f: h(getattr(e, f)) for f in (*RID_FIELDS, *NAME_FIELDS) if f in e.__struct_fields__}
    return msgspec.structs.replace(e, **changes) if changes else e


def _snapshot(s: Snapshot, h: Callable[[str], str]) -> Snapshot:
    replace = msgspec.structs.replace
    return replace(
        s,
        requests=[replace(q, r=h(q.r)) for q in s.requests],
        run=[h(r) for r in s.run],
        in_flight=[replace(i, tok={h(r): k for r, k in i.tok.items()}) for i in s.in_flight],
        loads=[replace(x, r=h(x.r)) for x in s.loads],
        stores=[replace(x, job=h(x.job), r=h(x.r)) for x in s.stores],
        pins={h(who): blocks for who, blocks in s.pins.items()},
        quarantined=[replace(x, r=h(x.r)) for x in s.quarantined],
    )


def hash_ids(record: Record, h: Callable[[str], str]) -> Record:
    """A copy of ``record`` in which every request id, job and pin name is replaced by ``h`` of it."""
    replace = msgspec.structs.replace
    if isinstance(record, Header):
        return replace(record, state=_snapshot(record.state, h))
    if isinstance(record, Note):
        return replace(record, text="", data={})
    changes: dict[str, Any] = {}
    fields = record.__struct_fields__
    if "ev" in fields:
        changes["ev"] = [_event(e, h) for e in record.ev]  # type: ignore[union-attr]
    for f in ("tok", "out"):
        if f in fields:
            changes[f] = {h(r): k for r, k in getattr(record, f).items()}
    if "run" in fields and record.run is not None:  # type: ignore[union-attr]
        changes["run"] = [h(r) for r in record.run]  # type: ignore[union-attr]
    return replace(record, **changes)


def leaks(records: Iterable[Record]) -> list[str]:
    """Every place in a redacted trace that holds free text other than hashes and the schema's own words.

    An empty list proves that the trace names no request of the outside world.
    """
    found: list[str] = []

    def name(where: str, value: str) -> None:
        if value and not _HEX.match(value):
            found.append(f"{where}: {value!r}")

    def collect(record: Record) -> None:
        if isinstance(record, Note):
            if record.text or record.data:
                found.append("note: free text")
            return

        def look(r: str) -> str:
            name(type(record).__name__.lower(), r)
            return r

        hash_ids(record, look)

    for record in records:
        collect(record)
    return found


def told(
    lines: Iterable[bytes], secrets: Mapping[str, Sequence[int]], words: Iterable[str] = (), run: int = 4
) -> list[str]:
    """Where the text of a trace holds ``run`` tokens in a row of a secret sequence, or one of ``words``.

    ``secrets``: name -> token ids (of a prompt, of an output). Numbers count wherever they stand, in free
    text too. An empty list proves that the trace tells nothing of them.
    """
    grams = {
        tuple(tokens[i : i + run]): name
        for name, tokens in secrets.items()
        for i in range(len(tokens) - run + 1)
    }
    texts = [w.encode() for w in words]
    found = []
    for n, line in enumerate(lines, 1):
        numbers = [int(x) for x in _NUMBER.findall(line)]
        for i in range(len(numbers) - run + 1):
            name = grams.get(tuple(numbers[i : i + run]))
            if name is not None:
                found.append(f"line {n}: tokens of {name}: {numbers[i : i + run]}")
        found += [f"line {n}: {w.decode()}" for w in texts if w in line]
    return found


__all__ = ["NAME_FIELDS", "RID_FIELDS", "Event", "Rid", "hash_ids", "leaks", "told"]
