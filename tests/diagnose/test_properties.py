"""Whatever happens to a log on its way: no crash, and *idle* never becomes *stalled*."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stallproof.diagnose import run
from stallproof.diagnose.reader import Control, scan
from stallproof.errors import BadInput

from .lines import api, core, stats
from .test_cases import CASES
from .test_shapes import SHAPES

#: paused, asleep or drained by aborts: one line says so, and without it nothing does
NEEDS_LINE = ("stale after abort, abort lines", "asleep", "paused")
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

#: idle by the records themselves: nothing runs, nothing waits
IDLE: list[list[str]] = [s[1] for s in SHAPES if s[2] == "idle or paused" and s[0] not in NEEDS_LINE] + [
    [stats(10 * i, 0, 0, 0, 0, level="DEBUG") for i in range(1, 30)],
    [stats(10, 300, 4, 0, 30), stats(20, 20, 0, 0, 0), stats(30, 0, 0, 0, 0)]
    + [
        api(40 + 400 * i, "logger.py:42", f"Received request r{i}: params: x, lora_request: None.")
        for i in range(3)
    ]
    + [stats(5000, 4, 0, 0, 0), stats(5010, 0, 0, 0, 0), api(9000, "launcher.py:9", "Route: /health")],
    [core(i * 60, "core.py:1584", "EngineCore waiting for work.", "DEBUG") for i in range(20)]
    + [stats(1300, 0, 0, 0, 0, level="DEBUG")],
]
PAUSED = [s[1] for s in SHAPES if s[0] in NEEDS_LINE]
HEALTHY = [(f / c["file"]).read_bytes() for f, c in CASES if c["exit_ok"] == [0] and "files" not in c]
LOGS = [(f / c["file"]).read_bytes() for f, c in CASES if "files" not in c]
FOREIGN = [
    b'INFO:     192.0.2.9:4000 - "GET /health HTTP/1.1" 200 OK',
    b"I0331 02:48:57.801054 812 transfer_engine.cpp:90] started",
    b"[2025-11-27 09:31:28,557] LMCache INFO: Reqid: x, hit 12 (cache.py:88:lmcache)",
    b"\xff\xfe\x00\x80 not text",
    b"Traceback (most recent call last):",
    b'  File "/usr/lib/python3.12/asyncio/base_events.py", line 640, in run_forever',
    b"",
    b"(EngineCore_DP0 pid=41) INFO 07-14 99:99:99 [core.py:1] ?",
    b"{" * 300,
    b'{"log": "broken',
    b"vllm:num_requests_running{engine=",
    b"[0;36m",
]


def verdict(tmp: Path, data: bytes) -> str:
    p = tmp / "x.log"
    p.write_bytes(data)
    try:
        return run.diagnose([str(p)]).verdict
    except BadInput:
        return "cannot tell"


@st.composite
def mangled(draw: st.DrawFn, lines: list[bytes], lose: bool = True) -> bytes:
    """Cut, repeat, drop, mix with foreign lines, colour, wrap, break. ``lose``: lines may be lost."""
    out = list(lines)
    rng = random.Random(draw(st.integers(0, 2**32)))
    lo = draw(st.integers(0, len(out)))
    hi = draw(st.integers(lo, len(out)))
    out = out[lo:hi] if lose and draw(st.booleans()) else out
    if draw(st.booleans()):
        out = [x for x in out for _ in range(rng.choice((0, 1, 1, 1, 2) if lose else (1, 1, 2)))]
    if draw(st.booleans()):
        for _ in range(draw(st.integers(1, 12))):
            out.insert(rng.randint(0, len(out)), rng.choice(FOREIGN))
    if draw(st.booleans()):
        out = [b"\x1b[1;32m" + x.replace(b"INFO", b"\x1b[0;36mINFO\x1b[0m") + b"\x1b[0m" for x in out]
    wrap = draw(st.sampled_from(("", "docker", "cri", "journald", "compose", "ray", "json")))
    out = [_wrap(x, wrap, i) for i, x in enumerate(out)]
    if draw(st.booleans()):
        day = draw(st.sampled_from((b"12-31", b"02-28", b"07-13")))
        cut = draw(st.integers(0, len(out)))
        out = [x.replace(b"07-14", day if i < cut else b"01-01") for i, x in enumerate(out)]
    if lose and draw(st.booleans()):
        i = rng.randint(0, max(0, len(out) - 1))
        out = (
            out[:i]
            + [bytes(b ^ 0x80 if rng.random() < 0.02 else b for b in x) for x in out[i : i + 1]]
            + out[i + 1 :]
        )
    return draw(st.sampled_from((b"\n", b"\r\n"))).join(out) + draw(st.sampled_from((b"\n", b"")))


def _wrap(x: bytes, how: str, i: int) -> bytes:
    hms = b"%02d:%02d:%02d" % (i // 360 % 24, i // 6 % 60, i * 10 % 60)
    if how == "docker":
        return b"2026-07-14T" + hms + b".758564289Z " + x
    if how == "cri":
        return b"2026-07-14T" + hms + b".758564289Z stdout F " + x
    if how == "journald":
        return b"Jul 14 " + hms + b" host vllm[812]: " + x
    if how == "compose":
        return b"vllm-1  | " + x
    if how == "ray":
        return b"\x1b[36m(ServeReplica:app pid=812)\x1b[0m " + x
    if how == "json":
        return (
            b'{"log":"'
            + x.replace(b"\\", b"").replace(b'"', b"'")
            + b'\\n","stream":"stderr","time":"2026-07-14T'
            + hms
            + b'Z"}'
        )
    return x


@QUICK
@given(data=st.data())
def test_idle_never_becomes_stalled(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    lines = [x.encode() for x in data.draw(st.sampled_from(IDLE))]
    raw = data.draw(mangled(lines))
    assert verdict(tmp_path_factory.mktemp("i"), raw) != "stalled", raw


@QUICK
@given(data=st.data())
def test_paused_never_becomes_stalled(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    lines = [x.encode() for x in data.draw(st.sampled_from(PAUSED))]
    raw = data.draw(mangled(lines, lose=False))
    assert verdict(tmp_path_factory.mktemp("p"), raw) != "stalled", raw


@QUICK
@given(data=st.data())
def test_two_idle_logs_interleaved(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    a, b = data.draw(st.sampled_from(IDLE)), data.draw(st.sampled_from(IDLE))
    picks = data.draw(st.lists(st.booleans(), min_size=len(a) + len(b), max_size=len(a) + len(b)))
    left, right, out = list(a), list(b), []
    for p in picks:
        src = left if (p and left) or not right else right
        if src:
            out.append(src.pop(0))
    assert verdict(tmp_path_factory.mktemp("i"), "\n".join(out).encode()) != "stalled"


@QUICK
@given(data=st.data())
def test_any_log_mangled_does_not_crash(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    raw = data.draw(st.sampled_from([*LOGS, *("\n".join(s[1]).encode() for s in SHAPES)]))
    verdict(tmp_path_factory.mktemp("c"), data.draw(mangled(raw.split(b"\n"))))


@QUICK
@given(
    data=st.binary(max_size=4096),
    head=st.sampled_from(
        (
            b"",
            b"\x93",
            b"\x1f\x8b",
            b"\x28\xb5\x2f\xfd",
            b"vllm:",
            b'{"t":"header"',
            b"Process 1: x\nThread 1\n",
        )
    ),
)
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes, head: bytes) -> None:
    verdict(tmp_path_factory.mktemp("b"), head + data)


@QUICK
@given(data=st.data(), raw=st.sampled_from(HEALTHY))
def test_prefixes_and_suffixes_of_healthy_logs(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, raw: bytes
) -> None:
    a = data.draw(st.integers(0, len(raw)))
    b = data.draw(st.integers(a, len(raw)))
    assert verdict(tmp_path_factory.mktemp("h"), raw[a:b]) != "stalled"


@QUICK
@given(data=st.data())
def test_chunks_do_not_matter(data: st.DataObject) -> None:
    raw = data.draw(st.sampled_from(LOGS))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert list(scan(iter([p for p in pieces if p]), Control())) == list(scan(iter([raw]), Control()))
