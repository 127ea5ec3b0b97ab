"""KV-event captures: msgpack batches in either wire layout.

Up to 0.23 an event is an array ``["BlockStored", ...]``, from 0.25.1 a map ``{"type": "BlockStored", ...}``
(vLLM distributed/kv_events.py). A capture is batches one after the other, raw or as ``[topic, seq, payload]``
frames, or a JSON file with the batches as hex. Says what the prefix cache holds; nothing about ownership.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Any

import msgspec

_HEX = re.compile(r'"((?:[0-9a-fA-F]{2}){4,})"')


class _Short(Exception):
    """The buffer ends inside an object."""


class _Bad(Exception):
    """Not msgpack."""


class Batch(msgspec.Struct, kw_only=True):
    """One decoded batch: time, counts per event type, layout, rank. ``index`` counts from 1."""

    index: int
    ts: float
    layout: str
    rank: int = 0
    stored: int = 0
    removed: int = 0
    cleared: int = 0
    seq: int = -1


def _unpack(b: memoryview, i: int, depth: int = 0) -> tuple[Any, int]:
    """One msgpack object at ``i``; only what the event layouts use, byte strings kept as bytes."""
    if depth > 32:
        raise _Bad
    try:
        c = b[i]
        i += 1
        if c < 0x80:
            return c, i
        if c < 0x90:
            return _map(b, i, c & 15, depth)
        if c < 0xA0:
            return _array(b, i, c & 15, depth)
        if c < 0xC0:
            return _raw(b, i, c & 31, True)
        if c >= 0xE0:
            return c - 256, i
        if c in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[c], i
        sizes = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
        if c in sizes:
            n = sizes[c]
            if i + n > len(b):
                raise _Short
            size, i = int.from_bytes(b[i : i + n], "big"), i + n
            if c in (0xC4, 0xC5, 0xC6):
                return _raw(b, i, size, False)
            if c in (0xD9, 0xDA, 0xDB):
                return _raw(b, i, size, True)
            return _array(b, i, size, depth) if c in (0xDC, 0xDD) else _map(b, i, size, depth)
        numbers = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"}
        numbers |= {0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
        if c in numbers:
            fmt = numbers[c]
            n = struct.calcsize(fmt)
            if i + n > len(b):
                raise _Short
            return struct.unpack(fmt, b[i : i + n])[0], i + n
    except IndexError:
        raise _Short from None
    raise _Bad


def _raw(b: memoryview, i: int, n: int, text: bool) -> tuple[Any, int]:
    if n > 64 << 20:
        raise _Bad
    if i + n > len(b):
        raise _Short
    data = bytes(b[i : i + n])
    return (data.decode("utf-8", "replace") if text else data), i + n


def _array(b: memoryview, i: int, n: int, depth: int) -> tuple[list[Any], int]:
    if n > len(b):
        raise _Short if n < 1 << 24 else _Bad
    out = []
    for _ in range(n):
        v, i = _unpack(b, i, depth + 1)
        out.append(v)
    return out, i


def _map(b: memoryview, i: int, n: int, depth: int) -> tuple[dict[Any, Any], int]:
    if n > len(b):
        raise _Short if n < 1 << 24 else _Bad
    out: dict[Any, Any] = {}
    for _ in range(n):
        k, i = _unpack(b, i, depth + 1)
        v, i = _unpack(b, i, depth + 1)
        if isinstance(k, (str, int, bytes)):
            out[k] = v
    return out, i


def _batch(obj: Any, index: int, seq: int) -> Batch | None:
    if isinstance(obj, dict):
        obj = [obj.get("ts"), obj.get("events"), obj.get("data_parallel_rank")]
    if not isinstance(obj, list) or len(obj) < 2 or not isinstance(obj[1], list):
        return None
    if not isinstance(obj[0], (int, float)):
        return None
    out = Batch(index=index, ts=float(obj[0]), layout="", seq=seq)
    if len(obj) > 2 and isinstance(obj[2], int):
        out.rank = obj[2]
    for event in obj[1]:
        if isinstance(event, list) and event:
            tag, layout = event[0], "array (up to 0.23)"
        elif isinstance(event, dict) and "type" in event:
            tag, layout = event["type"], "map (from 0.25.1)"
        else:
            return None
        out.layout = out.layout or layout
        if tag == "BlockStored":
            out.stored += 1
        elif tag == "BlockRemoved":
            out.removed += 1
        elif tag == "AllBlocksCleared":
            out.cleared += 1
    return out


def batches(chunks: Iterator[bytes]) -> Iterator[Batch | str]:
    """Batches of a capture; a string is a complaint about the rest, and ends the capture."""
    buf = b""
    index = 0
    seq = -1
    done = False
    while not done:
        chunk = next(chunks, b"")
        done = not chunk
        buf += chunk
        if index == 0 and buf.lstrip()[:1] in (b"{", b"["):
            if not done:
                if len(buf) > 64 << 20:
                    yield "JSON capture above 64 MiB; give the msgpack capture itself"
                    return
                continue
            for m in _HEX.finditer(buf.decode("utf-8", "replace")):
                index += 1
                try:
                    obj, _ = _unpack(memoryview(bytes.fromhex(m[1])), 0)
                except (_Short, _Bad):
                    yield f"batch {index} is cut or is not msgpack"
                    return
                b = _batch(obj, index, -1)
                if b is not None:
                    yield b
            return
        view, i = memoryview(buf), 0
        while i < len(view):
            try:
                obj, j = _unpack(view, i)
            except _Short:
                if len(view) - i > 256 << 20:
                    yield f"an object after batch {index} claims more than 256 MiB"
                    return
                break
            except _Bad:
                yield f"the bytes after batch {index} are not msgpack"
                return
            i = j
            if isinstance(obj, bytes) and len(obj) == 8:
                seq = int.from_bytes(obj, "big")
                continue
            if isinstance(obj, bytes) and len(obj) < 8:
                continue  # topic frame
            if isinstance(obj, bytes) or (
                isinstance(obj, list) and len(obj) == 3 and isinstance(obj[2], bytes)
            ):
                payload = obj if isinstance(obj, bytes) else obj[2]
                if isinstance(obj, list) and isinstance(obj[1], bytes):
                    seq = int.from_bytes(obj[1][:8], "big")
                try:
                    obj, _ = _unpack(memoryview(payload), 0)
                except (_Short, _Bad):
                    yield f"the payload after batch {index} is cut or is not msgpack"
                    return
            index += 1
            b = _batch(obj, index, seq)
            if b is None:
                yield f"object {index} is not a KV-event batch"
                return
            yield b
        buf = bytes(view[i:])
        if done and buf:
            yield f"the capture is cut inside batch {index + 1}"
