"""``stallproof report`` and ``export``: what they write, and one clear error for what they cannot read."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.report import toy

FIXTURES = Path(__file__).parent.parent / "fixtures" / "traces"


def run(*args: object, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "stallproof", *map(str, args)], input=stdin, capture_output=True, timeout=120
    )


def test_page_of_a_finding_names_the_rule(tmp_path: Path) -> None:
    out = tmp_path / "w.html"
    done = run("report", FIXTURES / "wedge-0.23.0.jsonl", "-o", out)
    assert done.returncode == 0, done.stderr
    text = out.read_text()
    assert "NoWedge violated" in text
    assert "Content-Security-Policy" in text
    assert "NoWedge 1" in done.stdout.decode()
    assert list(tmp_path.iterdir()) == [out]


def test_page_of_a_conforming_trace_says_so(tmp_path: Path) -> None:
    out = tmp_path / "c.html"
    done = run("report", FIXTURES / "cascade-0.32.0-ok.jsonl", "-o", out, "--json")
    assert json.loads(done.stdout)["violations"] == {}
    assert ">conforms<" in out.read_text()


def test_standard_input_and_output_and_gzip(tmp_path: Path) -> None:
    packed = gzip.compress((FIXTURES / "wedge-0.23.0.jsonl").read_bytes())
    done = run("report", "-", "-o", "-", stdin=packed)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"<!doctype html>")
    assert b"NoWedge violated" in done.stdout


def test_export_is_what_trace_viewers_read(tmp_path: Path) -> None:
    """Slices of a thread nest, asynchronous ones are paired, counters add up to the pool."""
    out = tmp_path / "p.json"
    done = run("export", FIXTURES / "wedge-0.23.0.jsonl", "--perfetto", out)
    assert done.returncode == 0, done.stderr
    data = json.loads(out.read_text())
    events = data["traceEvents"]
    assert {e["ph"] for e in events} >= {"M", "X", "C", "i", "b", "e"}
    ends: dict[tuple[int, int], float] = {}
    for e in sorted((e for e in events if e["ph"] == "X"), key=lambda e: (e["tid"], e["ts"])):
        assert e["dur"] >= 0
        assert e["ts"] >= ends.get((e["pid"], e["tid"]), 0.0) - 1e-6
        ends[e["pid"], e["tid"]] = e["ts"] + e["dur"]
    key = lambda e: (e["cat"], e["id"], e["name"])  # noqa: E731
    assert sorted(map(key, (e for e in events if e["ph"] == "b"))) == sorted(
        map(key, (e for e in events if e["ph"] == "e"))
    )
    assert {sum(e["args"].values()) for e in events if e["ph"] == "C"} == {40}
    assert [e["name"] for e in events if e.get("tid") == 3 and e["ph"] == "i"] == ["NoWedge"]
    assert all(isinstance(e["pid"], int) and isinstance(e["tid"], int) for e in events)


def test_a_trace_without_a_clock_exports_too(tmp_path: Path) -> None:
    src = tmp_path / "t.jsonl"
    lines = [json.loads(x) for x in toy.write(src, 30).read_text().splitlines()]
    for x in lines:
        x.pop("ts", None)
    src.write_text("\n".join(map(json.dumps, lines)) + "\n")
    out = tmp_path / "p.json"
    assert run("export", src, "--perfetto", out).returncode == 0
    times = [e["ts"] for e in json.loads(out.read_text())["traceEvents"] if e["ph"] == "C"]
    assert times == sorted(times)
    assert len(set(times)) == len(times)


BAD = {
    "empty": (b"", 2),
    "binary": (bytes(range(256)) * 40, 2),
    "foreign": (b'{"hello": "world"}\n', 2),
    "html": (b"<html><body>no</body></html>\n", 2),
    "future": (b'{"t":"header","schema":"stallproof-trace/99"}\n', 3),
    "cut header": (b'{"t":"header","schema":"stallproof-trace/1","run":', 2),
}


@pytest.mark.parametrize("verb", ["report", "export"])
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_error(verb: str, name: str, tmp_path: Path) -> None:
    data, code = BAD[name]
    src, out = tmp_path / "bad.jsonl", tmp_path / "out"
    src.write_bytes(data)
    done = run(verb, src, "-o" if verb == "report" else "--perfetto", out)
    assert done.returncode == code
    assert done.stdout == b""
    err = done.stderr.decode()
    assert "Traceback" not in err
    assert str(src) in err
    assert "remedy" in err
    assert list(tmp_path.iterdir()) == [src], "nothing half-written is left behind"


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (["report", "missing.jsonl", "-o", "x"], "missing.jsonl"),
        (["report", "-"], "standard input"),
        (["report", "-", "-", "-o", "x"], "standard input"),
        (["export", "missing.jsonl"], "--perfetto"),
        (["report", str(FIXTURES / "wedge-0.23.0.jsonl"), "-o", "no/such/folder/x.html"], "no/such/folder"),
    ],
)
def test_wrong_use_is_one_clear_error(args: list[str], what: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stallproof", *args], input=b"", capture_output=True, cwd=tmp_path, timeout=60
    )
    assert done.returncode == 2
    assert what in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


def page_to(folder: Path, output: str, verb: str = "report") -> subprocess.CompletedProcess[bytes]:
    option = "-o" if verb == "report" else "--perfetto"
    return subprocess.run(
        [sys.executable, "-m", "stallproof", verb, "t.jsonl", option, output],
        capture_output=True, cwd=folder, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("verb", ["report", "export"])
def test_what_is_no_file_is_written_to_and_not_replaced(verb: str, tmp_path: Path) -> None:
    """A pipe stands for /dev/null, which root would have lost to a page."""
    shutil.copy(FIXTURES / "wedge-0.23.0.jsonl", tmp_path / "t.jsonl")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert page_to(tmp_path, "pipe", verb).returncode == 0
        assert (tmp_path / "pipe").is_fifo()
    finally:
        os.close(reader)
    (tmp_path / "link").symlink_to("page")
    assert page_to(tmp_path, "link", verb).returncode == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "page").stat().st_size > 1000


@pytest.mark.parametrize("verb", ["report", "export"])
@pytest.mark.parametrize("output", ["t.jsonl", "./t.jsonl", "link", "", "/"])
def test_an_input_is_never_overwritten(verb: str, output: str, tmp_path: Path) -> None:
    shutil.copy(FIXTURES / "wedge-0.23.0.jsonl", tmp_path / "t.jsonl")
    (tmp_path / "link").symlink_to("t.jsonl")
    done = page_to(tmp_path, output, verb)
    assert done.returncode == 2
    assert b"remedy" in done.stderr
    assert b"Traceback" not in done.stderr
    assert (tmp_path / "t.jsonl").read_bytes() == (FIXTURES / "wedge-0.23.0.jsonl").read_bytes()
    assert {p.name for p in tmp_path.iterdir()} == {"t.jsonl", "link"}
