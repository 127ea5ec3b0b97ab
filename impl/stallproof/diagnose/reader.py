"""Bytes to candidate lines: plain, gzip, zstd or standard input, in constant memory.

Most lines of a production log say nothing about progress. So the scan never decodes or splits: it looks for a
few markers with ``bytes.find`` over large chunks, and cuts out only the lines around a hit. Line numbers come
from counting line feeds between hits.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Literal

from stallproof.errors import BadInput

CHUNK = 1 << 20
#: a longer line is cut here; a dump of a full batch of a large engine stays well below it
MAX_LINE = 16 << 20

Kind = Literal["lines", "kv-events", "trace"]

#: source files whose records matter (base name without ``.py``), vLLM and vllm-ascend
_FILES = frozenset(
    b"loggers metrics request_logger core core_client scheduler async_scheduler async_llm llm_engine "
    b"logger dump_input block_pool shm_broadcast kv_cache_utils kv_cache_manager multiproc_executor "
    b"ray_executor uniproc_executor gpu_worker coordinator backends monitor cudagraph_utils wrapper "
    b"decorators launcher api_server utils recompute_scheduler scheduler_dynamic_batch request "
    b"serving_chat parallel_state llmetrics async_llm_engine protocol default_loader weight_utils "
    b"abstract cumem camem xpumem gpu_model_runner cpu_model_runner model_runner npu_model_runner ".split()
)
_PARTS = (
    b"connector",
    b"nixl",
    b"mooncake",
    b"schedul",
    b"worker",
    b"executor",
    b"pool_",
    b"kv_",
    b"router",
    b"engine",
)
_WANTED: dict[bytes, bool] = {}
_CUT = (b"[", b"/", b" ", b"(", b"]")


def _py(buf: bytes, i: int) -> bool:
    """Is the ``.py:`` at ``i`` the tag of a record that matters, or a stack frame?"""
    j = i - 1
    seg = buf[i - 40 if i > 40 else 0 : i]
    j = max(seg.rfind(b"["), seg.rfind(b"/"), seg.rfind(b" "), seg.rfind(b"("))
    name = seg[j + 1 :]
    known = _WANTED.get(name)
    if known is None:
        low = name.lower()
        known = low in _FILES or any(p in low for p in _PARTS)
        if len(_WANTED) < 10_000:
            _WANTED[name] = known
    if known or b"(Worker" in buf[i - 120 if i > 120 else 0 : i]:
        return True
    k = buf.find(b")", i + 4, i + 12)
    return k > 0 and buf[k + 1 : k + 2] in (b"\n", b"\r", b"") and buf[i + 4 : k].isdigit()


def _any(buf: bytes, i: int) -> bool:
    return True


#: marker -> test of a hit
_MARKS: tuple[tuple[bytes, Callable[[bytes, int], bool]], ...] = (
    (b".py:", _py),
    (b'.py", line ', _any),
    (b"throughput: ", _any),
    (b"vllm:", _any),
    (b"Running: ", _any),
    (b"[vllm-ascend]", _any),
    (b".cpp:", _any),
    (b"\nThread ", _any),
    (b"Error: ", _any),
)


#: worth a search only once a pause has been seen
_RESUME: tuple[tuple[bytes, Callable[[bytes, int], bool]], ...] = (
    (b'"POST /pause', _any),
    (b'"POST /sleep', _any),
    (b'"POST /resume', _any),
    (b'"POST /wake_up', _any),
)


class Control:
    """What a scan learns besides the lines: sizes, the last piece of the input, and whether it broke off."""

    def __init__(self) -> None:
        self.lines = 0
        self.bytes = 0
        self.tail = b""
        self.truncated = ""


def scan(chunks: Iterator[bytes], ctl: Control) -> Iterator[tuple[int, bytes]]:
    """Yield ``(line number, line)`` of every candidate line, in order, without its line feed."""
    rest = b""
    line0 = 1  # number of the first line of the buffer
    marks = _MARKS
    for chunk in _with_end(chunks):
        if chunk:
            ctl.bytes += len(chunk)
            buf = rest + chunk if rest else chunk
            cut = buf.rfind(b"\n") + 1
            if cut == 0:
                if len(buf) < MAX_LINE:
                    rest = buf
                    continue
                buf, rest = buf + b"\n", b""
            else:
                buf, rest = buf[:cut], buf[cut:]
        else:
            buf, rest = rest, b""
            if not buf:
                break
            buf += b"\n"
        pos = 0
        number = line0
        if marks is _MARKS and (b'"POST /pause' in buf or b'"POST /sleep' in buf):
            marks = _MARKS + _RESUME
        for start, end in _hits(buf, marks):
            number += buf.count(b"\n", pos, start)
            pos = start
            yield number, buf[start:end]
        line0 = number + buf.count(b"\n", pos)
        ctl.lines = line0 - 1
        ctl.tail = (ctl.tail + buf)[-65536:] if len(buf) < 65536 else buf[-65536:]


def _with_end(chunks: Iterator[bytes]) -> Iterator[bytes]:
    yield from chunks
    yield b""


def _hits(buf: bytes, marks: tuple[tuple[bytes, Callable[[bytes, int], bool]], ...]) -> list[tuple[int, int]]:
    spans: set[tuple[int, int]] = set()
    find = buf.find
    size = len(buf)
    for mark, test in marks:
        i = find(mark)
        step = len(mark)
        while i >= 0:
            if test is _any or test(buf, i):
                at = i + 1 if mark[0] == 10 else i
                end = find(b"\n", at)
                if end < 0:
                    end = size
                spans.add((buf.rfind(b"\n", 0, at) + 1, end))
                i = find(mark, end)
            else:
                i = find(mark, i + step)
    # a header that opens the buffer has no line feed before it
    if buf.startswith((b"Thread ", b"Process ")):
        spans.add((0, find(b"\n")))
    return sorted(spans)


class Source:
    """One input: a path or ``-``; ``kind`` is sniffed from the first bytes after decompression."""

    def __init__(self, path: str) -> None:
        self.path = path
        # a file name may be no text; what names it in JSON is
        self.name = "<stdin>" if path == "-" else os.fsencode(path).decode("utf-8", "backslashreplace")
        self.control = Control()
        self.coding = "plain"
        self._head = b""
        self._stream: IO[bytes]

    def open(self) -> Source:
        """Open, find the coding and the kind. Raises :class:`BadInput` for what cannot be read."""
        try:
            plain = self.path != "-"
            raw: IO[bytes] = Path(self.path).open("rb") if plain else sys.stdin.buffer  # noqa: SIM115
        except IsADirectoryError:
            raise BadInput("is a folder", path=self.name, remedy="name the files in it") from None
        except OSError as exc:
            raise BadInput(
                f"cannot be read: {exc.strerror or exc}", path=self.name, remedy="check the path"
            ) from None
        buffered = raw if hasattr(raw, "peek") else io.BufferedReader(raw)  # type: ignore[type-var]
        magic = buffered.peek(4)[:4]
        self._stream = buffered
        if magic[:2] == b"\x1f\x8b":
            self.coding = "gzip"
            self._stream = gzip.open(buffered, "rb")  # type: ignore[assignment]  # noqa: SIM115
        elif magic == b"\x28\xb5\x2f\xfd":
            self.coding = "zstd"
            try:
                import zstandard
            except ModuleNotFoundError:
                raise BadInput(
                    "is zstd-compressed and 'zstandard' is not installed",
                    path=self.name,
                    remedy="pip install 'stallproof[diagnose]'",
                ) from None
            self._stream = zstandard.ZstdDecompressor(max_window_size=1 << 30).stream_reader(
                buffered, read_across_frames=True
            )
        self._head = self._read(1 << 16)
        if not self._head:
            raise BadInput(
                self.control.truncated or "is empty",
                path=self.name,
                remedy="give the log, metrics or dump itself",
            )
        return self

    @property
    def kind(self) -> Kind:
        """What the first bytes look like."""
        head = self._head
        if head.startswith((b'{"t":"header"', b'{"t": "header"')):
            return "trace"
        if head[0] in (0x92, 0x93, 0xDC, 0x82, 0x83) and not _textual(head):
            return "kv-events"
        if head.lstrip()[:1] == b"{" and (b"_layout_" in head or b'"kv_events"' in head):
            return "kv-events"
        if b"\x00" in head[:4096] and head.count(b"\x00") > len(head) // 10:
            raise BadInput(
                "is not text, gzip, zstd, a trace or a KV-event capture",
                path=self.name,
                remedy="give a log file",
            )
        return "lines"

    def chunks(self) -> Iterator[bytes]:
        """The decompressed bytes. A truncated archive ends early; ``control.truncated`` says so."""
        yield self._head
        while data := self._read(CHUNK):
            yield data
        with contextlib.suppress(Exception):
            if self.path != "-":
                self._stream.close()

    def _read(self, size: int) -> bytes:
        try:
            return self._stream.read(size) or b""
        except (EOFError, OSError, zlib.error) as exc:
            self.control.truncated = (
                f"{self.coding} data end or break after {self.control.bytes} bytes: {exc}"
            )
        except Exception as exc:  # zstandard.ZstdError, without importing it
            if type(exc).__module__.partition(".")[0] != "zstandard":
                raise
            self.control.truncated = f"zstd data end or break after {self.control.bytes} bytes: {exc}"
        return b""

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Candidate lines of a text input."""
        return scan(self.chunks(), self.control)


def _textual(head: bytes) -> bool:
    odd = sum(1 for b in head[:512] if b < 9 or 13 < b < 27 or b >= 0x80)
    return odd * 10 < min(512, len(head))
