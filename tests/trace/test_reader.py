"""Every kind of bad input is one clear error with file, line and exit code; a killed recording reads on."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from stallproof.errors import BadInput, Unsupported
from stallproof.trace import reader
from stallproof.trace.checker import check

from .hand import Hand
from .toy import Toy, lines, trace

GOOD = lines(trace(Toy(seed=3, loads=False)))
BAD = lines(trace(Toy(seed=1, bug="doublefree")))


def cli(*args, data=None):
    """Run ``stallproof replay``; returns exit code, output, errors."""
    run = subprocess.run(
        [sys.executable, "-m", "stallproof", "replay", *args], input=data, capture_output=True, timeout=120
    )
    return run.returncode, run.stdout.decode(), run.stderr.decode()


def write(tmp_path, data, name="t.jsonl"):
    path = tmp_path / name
    path.write_bytes(data)
    return str(path)


def _edit(data, line, change):
    rows = data.split(b"\n")
    rows[line - 1] = change(rows[line - 1])
    return b"\n".join(rows)


def _json(**changes):
    def change(row):
        obj = json.loads(row)
        obj.update(changes)
        return json.dumps(obj).encode()

    return change


CASES = {
    "empty": (b"", 2, "empty"),
    "blank": (b"\n\n", 2, "not a Stallproof trace"),
    "text": (b"hello world\n", 2, "not JSON"),
    "binary": (bytes(range(256)) * 20, 2, "binary"),
    "foreign JSON": (b'{"event":"x"}\n', 2, "no header record"),
    "JSON list": (b"[1,2]\n", 2, "JSON of another kind"),
    "foreign schema": (b'{"t":"header","schema":"other/1"}\n', 2, "schema 'other/1'"),
    "newer version": (GOOD.replace(b"stallproof-trace/1", b"stallproof-trace/7"), 3, "schema version '7'"),
    "header cut short": (GOOD[:60], 2, "header is incomplete"),
    "header with wrong fields": (b'{"t":"header","schema":"stallproof-trace/1"}\n', 2, "not a record"),
    "broken in the middle": (_edit(GOOD, 7, lambda row: row[: len(row) // 2]), 2, ":7: broken record"),
    "binary in the middle": (_edit(GOOD, 7, lambda row: b"\xff\xfe\x00" + row), 2, ":7: "),
    "unknown event": (
        _edit(GOOD, 2, lambda row: row.replace(b'"add"', b'"teleport"')),
        2,
        ":2: not a record",
    ),
    "wrong type": (_edit(GOOD, 4, _json(ts="one")), 2, ":4: not a record"),
    "line missing": (
        b"\n".join(x for i, x in enumerate(GOOD.split(b"\n")) if i != 5),
        2,
        ":6: record 6 where",
    ),
    "line twice": (_edit(GOOD, 6, lambda row: row + b"\n" + row), 2, ":7: record 5 where record 6"),
    "two engines": (GOOD + GOOD.replace(b'"run":"toy"', b'"run":"other"'), 2, "a second recording begins"),
    "clock goes back": (_edit(GOOD, 9, _json(ts=0.5)), 2, ":9: the clock goes back"),
    "gzip cut short": (gzip.compress(GOOD)[:-40], 2, "compressed stream is broken"),
    "zstd broken": (zstandard.compress(GOOD)[:200] + b"x" * 300, 2, "compressed stream is broken"),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_one_clear_error(name, tmp_path):
    data, code, message = CASES[name]
    path = write(tmp_path, data)
    with pytest.raises((BadInput, Unsupported)) as info:
        check([path])
    assert message in str(info.value)
    assert path in str(info.value)
    assert info.value.code == code
    assert "\n" not in info.value.what


def test_exit_codes_and_streams(tmp_path):
    good, bad = write(tmp_path, GOOD), write(tmp_path, BAD, "bad.jsonl")
    code, out, err = cli(good)
    assert (code, err) == (0, "")
    assert "CONFORMS" in out
    code, out, err = cli(bad)
    assert (code, err) == (1, "")
    assert "DIVERGES: NoDoubleFree" in out
    assert "last events" in out
    assert "expected" in out
    assert len(out.splitlines()) <= 50, "one screen"
    code, out, err = cli(write(tmp_path, b"x\n", "x.jsonl"))
    assert (code, out) == (2, "")
    assert err.startswith("stallproof: ")
    assert "Traceback" not in err
    assert cli(write(tmp_path, CASES["newer version"][0], "v.jsonl"))[0] == 3
    assert cli(str(tmp_path / "missing.jsonl"))[0] == 2
    code, out, err = cli("-", data=gzip.compress(BAD))
    assert code == 1
    assert "NoDoubleFree" in out
    code, out, _ = cli("--json", "--all", bad)
    report = json.loads(out)
    assert code == 1
    assert report["status"] == "diverges"
    assert report["violations"][0]["rule"] == "NoDoubleFree"
    assert {"line", "field", "expected", "observed", "text"} <= set(report["violations"][0])
    h = Hand().add("a")
    for _ in range(2):
        h.call().upd()
    code, out, _ = cli(write(tmp_path, h.lines(), "h.jsonl"))
    assert code == 2
    assert "CANNOT TELL YET" in out


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_compression_is_recognised_by_content(pack, tmp_path):
    verdict = check([write(tmp_path, pack(GOOD))])
    assert verdict.status == "conforms"
    assert verdict.records == GOOD.count(b"\n")


def test_chunk_borders_do_not_matter(tmp_path, monkeypatch):
    path = write(tmp_path, BAD)
    whole = [(line, rec) for _, line, rec in reader.records(path)]
    for size in (1, 7, 64, 1000):
        monkeypatch.setattr(reader, "CHUNK", size)
        assert [(line, rec) for _, line, rec in reader.records(path)] == whole


def test_every_truncation_is_tolerated_at_the_end_only(tmp_path):
    """Cut the file anywhere: at most the record under way is lost, and the verdict is that of the rest."""
    head = GOOD.index(b"\n") + 1
    for cut in range(head, min(len(GOOD), head + 900)):
        notes = []
        path = write(tmp_path, GOOD[:cut])
        records = [rec for b in reader.read(reader.source(path), notes.append) for rec in b.records]
        whole = GOOD[:cut].count(b"\n")
        assert whole <= len(records) <= whole + 1
        if len(records) == whole and GOOD[cut - 1 : cut] != b"\n":
            assert "incomplete" in notes[0]


def test_parts_of_two_recordings_do_not_mix(tmp_path):
    a = write(tmp_path, GOOD, "a.jsonl")
    b = write(tmp_path, GOOD.replace(b'"run":"toy"', b'"run":"other"'), "b.jsonl")
    with pytest.raises(BadInput, match="another recording than"):
        check([a, b])
    with pytest.raises(BadInput, match="same part"):
        check([a, a])


@pytest.mark.parametrize("claim", [{"pool": 9_999_999_999}, {"pool": 0}, {"block_size": 0}, {"depth": -1}])
def test_an_impossible_header_is_bad_input(tmp_path, claim):
    fixtures = Path(__file__).resolve().parents[1] / "fixtures" / "traces"
    lines = (fixtures / "wedge-0.23.0.jsonl").read_text().splitlines(keepends=True)
    header = json.loads(lines[0])
    header["config"] |= claim
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(header) + "\n" + "".join(lines[1:]))
    with pytest.raises(BadInput, match=r"t\.jsonl:1: impossible configuration"):
        list(reader.records(path))


def test_a_range_behind_the_end_names_the_last_line_and_what_to_give(tmp_path):
    path = write(tmp_path, GOOD)
    last = len(GOOD.splitlines())
    code, out, _ = cli("--from", str(last + 5), path)
    assert code == 2
    assert f"the trace ends with line {last} (step " in out
    assert f"before line {last + 5}" in out
    assert f"remedy: give --from {last} or less" in out
    assert cli("--from", str(last), path)[0] == 0
    said = json.loads(cli("--json", "--from", str(last + 5), path)[1])
    assert said["remedy"].startswith(f"give --from {last} or less")
