"""The stall reporter: settings, the line in the log, and each ``on_stall`` action carried out."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from stallproof.core.stall_watch import Due, Kind, Limits, OnStall, Situation, StallError, Waiter, parse
from stallproof.errors import BadInput
from stallproof.vllm.stall_report import StallReporter, settings, thread_stacks

WEDGED = {"unfinished": 1, "moved": False, "pending": False}
WELL = {"unfinished": 1, "moved": True, "pending": False}
QUICK = {
    "STALLPROOF_STALL_WEDGE_S": "1",
    "STALLPROOF_STALL_WEDGE_CALLS": "1",
    "STALLPROOF_STALL_ACT_AFTER_S": "0",
}


def situation(due: Due) -> Situation:
    waiter = Waiter("req-1", "waiting", age_s=3.0, need=2, holds=0, why="blocks")
    return Situation(waiting=1, free=1, pool=4, waiters=[waiter])


def reporter(tmp_path: Path, mode: str, **kwargs: object) -> StallReporter:
    env = QUICK | {"STALLPROOF_ON_STALL": mode, "STALLPROOF_DUMP_DIR": str(tmp_path / "dumps")}
    return StallReporter(situation, engine="2", rules=("commit",), environ=env, **kwargs)  # type: ignore[arg-type]


def test_settings_come_from_the_environment() -> None:
    env = {
        "STALLPROOF_ON_STALL": " Dump ",
        "STALLPROOF_STALL_EXTERNAL_S": "60",
        "STALLPROOF_STALL_WEDGE_CALLS": "5",
    }
    limits, mode = settings(env)
    assert (limits.external_s, limits.wedge_calls, mode) == (60.0, 5, OnStall.DUMP)
    assert settings({}) == (Limits(), OnStall.LOG)


@pytest.mark.parametrize(
    "env",
    [
        {"STALLPROOF_ON_STALL": "explode"},
        {"STALLPROOF_STALL_WEDGE_S": "soon"},
        {"STALLPROOF_STALL_WEDGE_CALLS": "0"},
        {"STALLPROOF_STALL_REPEAT_S": "-1"},
        {"STALLPROOF_STALL_ACT_AFTER_S": "nan"},
    ],
    ids=str,
)
def test_a_senseless_setting_is_refused_by_name(env: dict) -> None:
    with pytest.raises(BadInput, match="remedy") as caught:
        settings(env)
    assert next(iter(env)) in str(caught.value)


def test_opening_and_closing_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rep = reporter(tmp_path, "log")
    for t in range(4):
        rep.after_call(t, **WEDGED)
    rep.after_call(9, **WELL)
    lines = [value for r in caplog.records if (value := parse(r.getMessage()))]
    assert all(r.levelno == logging.WARNING for r in caplog.records)
    assert [x["event"] for x in lines] == ["stall", "resumed"]
    assert lines[0]["property"] == "NoWedge"
    assert lines[0]["engine"] == "2"
    assert lines[0]["waiters"] == [
        {"r": "req-1", "state": "waiting", "age_s": 3.0, "need": 2, "holds": 0, "why": "blocks"}
    ]
    assert lines[1]["seconds"] == 9


def test_dump_writes_stacks_and_ring_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved: list[Path] = []
    rep = reporter(tmp_path, "dump", save_ring=lambda d: saved.append(d) or str(d / "ring.jsonl"))
    for t in range(100):
        rep.after_call(t, **WEDGED)
    [stacks] = (tmp_path / "dumps").glob("*.stacks.txt")
    assert "MainThread" in stacks.read_text()
    assert "test_dump_writes_stacks_and_ring_once" in stacks.read_text()
    assert saved == [tmp_path / "dumps"]


def test_a_dump_that_cannot_be_written_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "dumps").write_text("a file where the folder should be")
    rep = reporter(tmp_path, "dump")
    for t in range(100):
        rep.after_call(t, **WEDGED)
    assert sum("dump failed" in r.getMessage() for r in caplog.records) == 1


def test_fail_oldest_is_called_with_each_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    failed: list[Due] = []
    rep = reporter(tmp_path, "fail_oldest", fail_oldest=lambda due: failed.append(due) or "req-1")
    for t in range(40):
        rep.after_call(t, **WEDGED)
    assert len(failed) == sum(parse(r.getMessage()) is not None for r in caplog.records) >= 2
    assert {d.kind for d in failed} == {Kind.WEDGE}


def test_raise_leaves_with_the_line(tmp_path: Path) -> None:
    rep = reporter(tmp_path, "raise")
    rep.after_call(0, **WEDGED)
    with pytest.raises(StallError, match="STALLPROOF STALL"):
        rep.after_call(2, **WEDGED)


@pytest.mark.parametrize("mode", ["raise", "fail_oldest"])
def test_shadow_mode_touches_no_request(mode: str, tmp_path: Path) -> None:
    failed: list[Due] = []
    rep = reporter(tmp_path, mode, shadow=True, fail_oldest=lambda due: failed.append(due) or "r")
    for t in range(100):
        rep.after_call(t, **WEDGED)
    assert failed == []


def test_stacks_show_no_values() -> None:
    secret = "-".join(["a", "prompt", "of", "a", "user"])
    text = thread_stacks()
    assert "test_stacks_show_no_values" in text
    assert secret not in text
