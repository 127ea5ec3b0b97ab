"""The part of a line before its text: wrappers, process tag, level, stamp, source file.

Sources: vLLM ``logging_utils/formatter.py`` (``LEVEL MM-DD HH:MM:SS [file.py:LINE]``; V0 without the opening
bracket), process tags of ``vllm/utils/system_utils.py`` (``(EngineCore_DP0 pid=N)``), and the wrappers met in
public threads: docker, Kubernetes CRI, journald, compose, Ray.
"""

from __future__ import annotations

import re

import msgspec

from .clock import Clock, seconds
from .observe import NAN

_ANSI = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]")
_HEAD = re.compile(
    rb"(?:(DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+)?(?:(?:\d{4}[-/])?(\d\d)[-/](\d\d)[ T])?"
    rb"(\d\d):(\d\d):(\d\d)(?:[.,]\d+)?\s*(?:\S{1,40} )?\[?$"
)
#: the usual stamp, fifteen bytes in front of the file tag; anything else goes through ``_HEAD``
_USUAL = re.compile(rb" (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d) \[")
_LEVELS = {n.encode(): n for n in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")}
_STAMP = re.compile(
    rb"(?:(\d\d)[-/](\d\d)[ T])?(\d\d):(\d\d):(\d\d)(?:[.,]\d+)?\s*(?:\S{1,40} )?\[?[\w/.\-]{1,80}\.py:\d"
)
_TAG = re.compile(
    rb"\((APIServer|EngineCore|Worker|VllmWorker|ApiServer)(?:_(?:DP)?(\d+))?([^)]*?)(?:pid=(\d+))?\)"
)
_DP = re.compile(rb"DP_?(\d+)")
_FILE = re.compile(rb"\[?([\w/.\-]+)\.py:(\d+)(?::[\w.]+)?[\])]\s?")
_ISO = re.compile(rb"(?:\d{4}-)?(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)")
_PLAIN = re.compile(rb"\b(DEBUG|INFO|WARNING|ERROR) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b")


class Line(msgspec.Struct):
    """One record. ``t`` is on the engine's clock (nan: no stamp); ``wrapper`` on the wrapper's."""

    text: bytes
    t: float = NAN
    level: str = ""
    file: bytes = b""
    lineno: int = 0
    process: str = ""
    engine: int = -1
    pid: int = 0
    wrapper: float = NAN


class Prefix:
    """Parses prefixes of one input; keeps the clocks of the engine and of the wrapper apart."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.outer = Clock()
        #: wrapper time minus engine time, seconds, of the last line that had both; zone and drift together
        self.delta = NAN

    @property
    def offset(self) -> float:
        """Zone offset of the wrapper against the engine, whole half hours; nan where unknown."""
        return round(self.delta / 1800) * 1800 if self.delta == self.delta else NAN

    def last_time(self, tail: bytes) -> float:
        """Engine time of the last stamped line in ``tail``, by its own stamp or by the wrapper's."""
        for raw in reversed(tail.split(b"\n")[-500:]):
            head = raw[:400]
            if b":" not in head:
                continue
            m = _STAMP.search(head)
            if m is not None:
                return self.clock(seconds(int(m[1] or 0), int(m[2] or 0), int(m[3]), int(m[4]), int(m[5])))
            if self.delta == self.delta and (m := _ISO.search(head[:40])) is not None:
                return self.outer(seconds(*(int(g) for g in m.groups()))) - self.delta
        return NAN

    def posts(self, tail: bytes, since: float) -> list[tuple[float, int, bytes]]:
        """Completion requests in the access log after ``since``, by the wrapper's stamps.

        With each its line, counted back from the last one (0). Nothing where the wrapper's offset is unknown.
        """
        out: list[tuple[float, int, bytes]] = []
        if self.delta != self.delta or b'"POST /v1/' not in tail:
            return out
        lines = tail.removesuffix(b"\n").split(b"\n")
        for i, raw in enumerate(lines):
            if b'"POST /v1/' in raw and (m := _ISO.search(raw[:40])) is not None:
                t = seconds(*(int(g) for g in m.groups())) + self.outer.base - self.delta
                if t > since:
                    out.append((t, len(lines) - 1 - i, raw))
        return out

    def parse(self, raw: bytes) -> Line:
        """Split one raw line; never raises."""
        if b"\x1b" in raw:
            raw = _ANSI.sub(b"", raw)
        if raw.endswith(b"\r"):
            raw = raw[:-1]
        if raw.startswith(b"{"):
            unpacked = _unjson(raw)
            if unpacked is not None:
                return self._json(*unpacked)
        return self._text(raw)

    def _text(self, raw: bytes) -> Line:
        i = raw.find(b".py:")
        if i < 0:
            return self._bare(raw)
        start = max(raw.rfind(b"[", 0, i), raw.rfind(b" ", 0, i), raw.rfind(b"(", 0, i))
        m = _FILE.match(raw, start if raw[start : start + 1] == b"[" else start + 1)
        if m is None:
            return self._bare(raw)
        line = Line(raw[m.end() :])
        line.file = m[1][m[1].rfind(b"/") + 1 :]
        line.lineno = int(m[2][:9])
        if start >= 20 and (u := _USUAL.match(raw, start - 16)) is not None:
            word = raw[max(0, start - 25) : start - 16]
            level = _LEVELS.get(word[word.rfind(b" ") + 1 :])
            if level is not None:
                line.level = level
                line.t = self.clock(seconds(int(u[1]), int(u[2]), int(u[3]), int(u[4]), int(u[5])))
                if start > 60:
                    self._wrapper(raw[: min(40, start - 20)], line)
                self._process(raw[:start], line)
                return line
        head = raw[max(0, start - 48) : start + 1]
        h = _HEAD.search(head.rstrip(b"[ ") + b" ")
        if h is not None:
            line.level = (h[1] or b"").decode()
            line.t = self.clock(seconds(int(h[2] or 0), int(h[3] or 0), int(h[4]), int(h[5]), int(h[6])))
            if start > 60:
                self._wrapper(raw[: min(40, start - 20)], line)
        self._process(raw[:start], line)
        return line

    def _process(self, head: bytes, line: Line) -> None:
        if b"(" not in head:
            return
        for m in _TAG.finditer(head):
            line.process = m[1].decode()
            if m[2]:
                line.engine = int(m[2][:6]) if m[1] == b"EngineCore" else -1
            if m[1].endswith(b"orker"):
                dp = _DP.search(m[0])
                line.engine = int(dp[1][:6]) if dp else -1
            elif m[1] == b"EngineCore" and not m[2]:
                line.engine = 0
            line.pid = int(m[4][:12]) if m[4] else 0

    def _wrapper(self, head: bytes, line: Line) -> None:
        m = _ISO.search(head)
        if m is not None:
            line.wrapper = self.outer(seconds(*(int(g) for g in m.groups())))
            if line.t == line.t:
                self.delta = line.wrapper - line.t

    def _bare(self, raw: bytes) -> Line:
        """A record without a vLLM file tag: glog, traceback, metrics, or a shortened quotation.

        Only a stamp in vLLM's own form is on the engine's clock; libraries often run in another zone.
        """
        line = Line(raw)
        m = _PLAIN.search(raw[:160])
        if m is not None:
            line.level = m[1].decode()
            line.t = self.clock(seconds(*(int(g) for g in m.groups()[1:])))
        elif (m := _ISO.search(raw[:40])) is not None:
            line.wrapper = self.outer(seconds(*(int(g) for g in m.groups())))
        if raw.startswith(b"("):
            self._process(raw[:80], line)
        return line

    def _json(self, text: str, fields: dict[str, object]) -> Line:
        line = self._text(text.encode(errors="replace"))
        stamp = str(fields.get("timestamp") or fields.get("asctime") or fields.get("time") or "").encode()
        m = _ISO.search(stamp)
        if m is not None and line.t != line.t:
            line.t = self.clock(seconds(*(int(g) for g in m.groups())))
        elif m is not None:
            line.wrapper = self.outer(seconds(*(int(g) for g in m.groups())))
        level = fields.get("level") or fields.get("levelname")
        if isinstance(level, str) and not line.level:
            line.level = level.upper()
        name = fields.get("filename") or fields.get("file") or fields.get("pathname")
        if isinstance(name, str) and not line.file:
            line.file = name.rsplit("/", 1)[-1].removesuffix(".py").encode(errors="replace")
        number = fields.get("lineno") or fields.get("line")
        if isinstance(number, int) and not line.lineno:
            line.lineno = number
        name = fields.get("process_name") or fields.get("processName") or ""
        if isinstance(name, str) and name and not line.process:
            self._process(b"(" + name.encode(errors="replace") + b" pid=0)", line)
        return line


def _unjson(raw: bytes) -> tuple[str, dict[str, object]] | None:
    """The message and the other fields of a JSON log record (docker json-file, JSON logging)."""
    try:
        obj = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError):
        return None
    if not isinstance(obj, dict):
        return None
    for key in ("log", "message", "msg", "MESSAGE"):
        text = obj.get(key)
        if isinstance(text, str):
            return text.rstrip("\n"), obj
    return None
