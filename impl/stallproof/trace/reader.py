"""Read traces: plain, gzip or zstd, files or standard input, many parts as one recording.

Streaming: memory is bounded by one chunk. Whatever cannot be read is one :class:`~stallproof.errors.BadInput`
that names file and line; the one thing tolerated is an incomplete last line, which is what a kill leaves.
"""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import msgspec

from stallproof.errors import BadInput, Unsupported

from .schema import SCHEMA, Header, Record

CHUNK = 1 << 19
#: a longer line is taken for something that is not a trace
MAX_LINE = 1 << 28
_FAMILY = SCHEMA.split("/")[0]

_lines: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


class _Peek(msgspec.Struct):
    t: Any = None
    schema: Any = None


_peek = msgspec.json.Decoder(_Peek)


class Batch(NamedTuple):
    """Consecutive records of one file. ``line``: number of the first, from 1, blank lines counted."""

    path: str
    line: int
    records: list[Record]
    size: int  #: bytes of text


class Source(NamedTuple):
    """A trace to read: a display name and a function that opens it."""

    name: str
    open: Callable[[], BinaryIO]


class _Zstd:
    """The text of a zstd stream; unlike the library's own reader, a stream that ends early is an error."""

    def __init__(self, raw: BinaryIO, decompressor: Any) -> None:
        self.raw, self.new = raw, decompressor.decompressobj
        self.frame = self.new()

    def read(self, size: int) -> bytes:
        while True:
            data = self.frame.unused_data if self.frame.eof else b""
            if self.frame.eof and (data or (data := self.raw.read(size))):
                self.frame = self.new()
            elif not self.frame.eof:
                data = self.raw.read(size)
            if not data:
                if not self.frame.eof:
                    raise EOFError("it ends early")
                return b""
            text = self.frame.decompress(data)
            if text:
                return text


def _decompress(name: str, raw: BinaryIO) -> BinaryIO:
    head = raw.peek(4)[:4] if hasattr(raw, "peek") else b""
    if head[:2] == b"\x1f\x8b":
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
    if head == b"\x28\xb5\x2f\xfd":
        try:
            import zstandard
        except ModuleNotFoundError as exc:
            raise BadInput(
                "compressed with zstd, which this Python cannot read",
                path=name,
                remedy="pip install zstandard, or decompress the file first",
            ) from exc
        return cast(BinaryIO, _Zstd(raw, zstandard.ZstdDecompressor()))
    return raw


def source(path: str | PathLike[str]) -> Source:
    """The trace at ``path``; ``-`` is standard input."""
    name = os.fsencode(path).decode("utf-8", "backslashreplace")  # may be no text; JSON and pages are
    if name == "-":
        return Source("standard input", lambda: cast(BinaryIO, sys.stdin.buffer))

    def opened() -> BinaryIO:
        try:
            return Path(path).open("rb")
        except OSError as exc:
            raise BadInput(
                f"cannot be read: {exc.strerror or exc}",
                path=name,
                remedy="give the name of a recorded trace, or - for standard input",
            ) from exc

    return Source(name, opened)


def read(src: Source, note: Callable[[str], None] = lambda text: None) -> Iterator[Batch]:
    """The records of one file, in batches; the first record is a header.

    ``note`` gets a sentence about an incomplete last line. Raises ``BadInput`` (unreadable, truncated in the
    middle, foreign, binary, records missing, clock going back) and ``Unsupported`` (another schema version).
    """
    name = src.name
    raw = src.open()
    try:
        stream = _decompress(name, raw)
        yield from _batches(name, stream, note)
    except (EOFError, zlib.error, gzip.BadGzipFile) as exc:
        raise BadInput(
            f"the compressed stream is broken: {exc}", path=name, remedy="copy the file again"
        ) from exc
    except Exception as exc:
        if type(exc).__name__ == "ZstdError":
            raise BadInput(
                f"the compressed stream is broken: {exc}", path=name, remedy="copy the file again"
            ) from exc
        if isinstance(exc, OSError):
            raise BadInput(f"cannot be read: {exc.strerror or exc}", path=name) from exc
        raise
    finally:
        if raw is not sys.stdin.buffer:
            raw.close()


def _batches(name: str, stream: BinaryIO, note: Callable[[str], None]) -> Iterator[Batch]:
    rest = b""
    line = 1
    first = True
    check = _Order(name)
    while True:
        chunk = stream.read(CHUNK)
        if not chunk:
            break
        data = rest + chunk if rest else chunk
        if first and b"\x00" in data[:4096].split(b"\n", 1)[0]:
            raise BadInput(
                "binary data, not a trace",
                path=name,
                line=1,
                remedy="a trace is JSON lines, plain or compressed with gzip or zstd",
            )
        cut = data.rfind(b"\n") + 1
        if not cut:
            if len(data) > MAX_LINE:
                raise BadInput(
                    f"a line of more than {MAX_LINE >> 20} MiB", path=name, line=line,
                    remedy="a record is one short line; is this a trace?",
                )  # fmt: skip
            rest = data
            continue
        rest, data = data[cut:], data[:cut]
        if first:
            _first_line(name, data)
            first = False
        records = _decode(name, line, data)
        check(line, records, data)
        yield Batch(name, line, records, len(data))
        line += data.count(b"\n")
    if rest.strip():
        try:
            last = _lines.decode(rest)
        except (msgspec.MsgspecError, RecursionError):
            if first:
                _first_line(name, rest)
                raise BadInput(
                    "the header is incomplete; nothing was recorded",
                    path=name,
                    line=1,
                    remedy="use the part before it, if there is one",
                ) from None
            note(f"{name}:{line}: the last record is incomplete (recorder killed while writing); left out")
        else:
            if first:
                _first_line(name, rest)
            check(line, [last], rest)
            yield Batch(name, line, [last], len(rest))
    elif first:
        raise BadInput("empty", path=name, remedy="record again; a trace begins with a header line")


def _first_line(name: str, data: bytes) -> None:
    """One clear verdict about what this file is, from its first line alone."""
    text = data.split(b"\n", 1)[0]
    foreign = "not a Stallproof trace"
    remedy = f'the first line of a trace is a header record, {{"t":"header","schema":"{SCHEMA}",...}}'
    try:
        peek = _peek.decode(text)
    except msgspec.ValidationError:
        raise BadInput(
            f"{foreign}: the first line is JSON of another kind", path=name, line=1, remedy=remedy
        ) from None
    except (msgspec.DecodeError, RecursionError):
        if text.lstrip().startswith(b'{"t":"header"'):
            return  # a header cut short; the caller decides
        raise BadInput(f"{foreign}: the first line is not JSON", path=name, line=1, remedy=remedy) from None
    if peek.t != "header" or not isinstance(peek.schema, str):
        raise BadInput(f"{foreign}: no header record", path=name, line=1, remedy=remedy)
    family, _, version = peek.schema.partition("/")
    if family != _FAMILY:
        raise BadInput(f"{foreign}: schema {peek.schema!r}", path=name, line=1, remedy=remedy)
    if peek.schema != SCHEMA:
        raise Unsupported(
            f"{name}:1: trace schema version {version!r}; this build reads {SCHEMA!r}",
            remedy="use the Stallproof release that recorded it, or a newer one",
        )


def _decode(name: str, line: int, data: bytes) -> list[Record]:
    try:
        return _lines.decode_lines(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    good = []
    for i, text in enumerate(data.split(b"\n")[:-1]):
        if not text.strip():
            continue
        try:
            good.append(_lines.decode(text))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            if isinstance(exc, msgspec.ValidationError):
                what = f"not a record of {SCHEMA}: {exc}"
                remedy = "the fields are listed in docs/trace-schema.md; if the file was edited, record again"
            else:
                what = f"broken record: {exc}"
                remedy = "only the last line of a trace may be incomplete; copy the file again"
            raise BadInput(what, path=name, line=line + i, remedy=remedy) from None
    return good


#: blocks of a pool at most; what a file claims is not trusted with memory
MAX_POOL = 100_000_000


class _Order:
    """Per file: one header first, consecutive record numbers, a clock that never goes back."""

    def __init__(self, name: str) -> None:
        self.name, self.n, self.ts, self.run = name, 0, float("-inf"), ""
        self.numbered: bool | None = None

    def __call__(self, line: int, records: Sequence[Record], data: bytes) -> None:
        n, ts, numbered = self.n, self.ts, self.numbered
        for i, rec in enumerate(records):
            if isinstance(rec, Header):
                if self.run and rec.run != self.run:
                    self._bad(
                        data, line, i, "a second recording begins in this file",
                        "two engines wrote to one file; record each to a file of its own",
                    )  # fmt: skip
                c = rec.config
                if not (1 <= c.pool <= MAX_POOL and c.block_size >= 1 and c.depth >= 1):
                    self._bad(
                        data, line, i,
                        f"impossible configuration: pool {c.pool}, block_size {c.block_size}, "
                        f"depth {c.depth}",
                        f"pool is 1 to {MAX_POOL:,} blocks, block_size and depth are at least 1",
                    )  # fmt: skip
                self.run = rec.run
                n, numbered = 0, None
                continue
            if numbered is None:  # traces of a model may leave the numbers out altogether
                numbered = rec.n != 0
            n += numbered
            if rec.n != n:
                self._bad(
                    data, line, i, f"record {rec.n} where record {n} is due: records are missing or moved",
                    "copy the file again; no verdict is possible across a gap",
                )  # fmt: skip
            t = rec.ts
            if t:
                if t < ts:
                    self._bad(
                        data, line, i, f"the clock goes back from {ts} to {t}",
                        "two recordings were mixed, or the file was edited",
                    )  # fmt: skip
                ts = t
        self.n, self.ts, self.numbered = n, ts, numbered

    def _bad(self, data: bytes, line: int, index: int, what: str, remedy: str) -> None:
        number = line
        for text in data.split(b"\n"):
            if text.strip():
                if index == 0:
                    break
                index -= 1
            number += 1
        raise BadInput(what, path=self.name, line=number, remedy=remedy)


def order_parts(sources: Sequence[Source]) -> list[Source]:
    """Sort the parts of one recording by number; raises ``BadInput`` if they are of several recordings."""
    if len(sources) < 2:
        return list(sources)
    heads = []
    for src in sources:
        if src.name == "standard input":
            raise BadInput(
                "standard input cannot be one of several parts", remedy="give every part as a file"
            )
        batches = read(src)
        try:
            header = next(batches).records[0]
        finally:
            batches.close()  # type: ignore[attr-defined]
        assert isinstance(header, Header)
        heads.append((header.run, header.part, src))
    if len({run for run, _, _ in heads}) > 1:
        other = next(src for run, _, src in heads if run != heads[0][0])
        raise BadInput(
            f"another recording than {heads[0][2].name}",
            path=other.name,
            line=1,
            remedy="give the parts of one recording; replay different recordings one at a time",
        )
    parts = [part for _, part, _ in heads]
    if len(set(parts)) < len(parts):
        raise BadInput("two of the files are the same part of the recording", remedy="leave one of them out")
    return [src for _, _, src in sorted(heads, key=lambda h: h[1])]


def records(*paths: str | PathLike[str]) -> Iterator[tuple[str, int, Record]]:
    """All records of one recording as ``(file, line, record)``: a convenience over :func:`read`."""
    for src in order_parts([source(p) for p in paths]):
        for batch in read(src):
            for i, rec in enumerate(batch.records):
                yield batch.path, batch.line + i, rec
