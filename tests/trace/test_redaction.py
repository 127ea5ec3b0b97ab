"""What a recording of the real engine tells of its prompts and outputs: nothing."""

from __future__ import annotations

import json
import os

import pytest

from stallproof import engines
from stallproof.harness.engine_run import Plan, prompts
from stallproof.trace import reader
from stallproof.trace.redact import leaks, told

VERSION = os.environ.get("STALLPROOF_ENGINE_VERSION", engines.BASE)
SECRET = [483, 497, 311, 402, 77]


@pytest.mark.parametrize(
    "line",
    [
        b'{"t":"sched","ev":[["alloc","a",[1,483,497,311,402]]]}',
        b'{"t":"note","text":"bad prompt [483, 497, 311, 402]"}',
        b'{"t":"note","text":"open sesame"}',
    ],
)
def test_what_is_planted_is_found(line):
    clean = b'{"t":"sched","n":1,"ts":48.3,"ev":[["alloc","a",[3,4,5,6]]]}'
    assert not told([clean], {"a": SECRET}, ["open sesame"])
    found = told([clean, line], {"a": SECRET}, ["open sesame"])
    assert found
    assert all(x.startswith("line 2: ") for x in found)


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.timeout(900)
def test_a_recording_of_the_real_engine_tells_nothing(tmp_path):
    """Random prompts, so that four tokens in a row are recognisable; request ids are hashed."""
    plan = {
        "requests": 24, "scheduler": "stallproof", "trace": str(tmp_path / "t.jsonl"), "prefix_caching": True,
        "abort_every": 5, "connector": {"fail_every": 7, "repeat_every": 5, "defer_every": 3},
    }  # fmt: skip
    target = tmp_path / "result.json"
    done = engines.get(VERSION).run(
        ["-m", "stallproof.harness.engine_run", json.dumps(plan)],
        {"STALLPROOF_RESULT": str(target), "STALLPROOF_TRACE_HASH_KEY": "key"},
        capture_output=True, text=True, timeout=800, cwd=tmp_path,
    )  # fmt: skip
    assert target.exists(), done.stderr[-3000:]
    got = json.loads(target.read_text())
    lines = (tmp_path / "t.jsonl").read_bytes().splitlines()
    assert len(lines) > 50
    asked = prompts(Plan(requests=24))
    secrets = {f"the prompt of {r}": tokens for r, tokens, _ in asked}
    secrets |= {f"the output of {r}": tokens for r, tokens in got["tokens"].items()}
    assert sum(map(len, secrets.values())) > 3000
    assert told(lines, secrets, [r for r, _, _ in asked]) == []
    assert leaks(rec for _, _, rec in reader.records(str(tmp_path / "t.jsonl"))) == []
    # the same question about a trace that does tell
    tokens = asked[0][1]
    assert told([*lines, json.dumps({"t": "note", "data": tokens}).encode()], secrets)
