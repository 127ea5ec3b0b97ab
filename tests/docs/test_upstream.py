"""What we would send upstream: each test fails on the releases it names, and passes with our patch."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from stallproof import engines
from stallproof.errors import StallproofError

pytestmark = [pytest.mark.engine, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
N1, N2, N3, N4, N5 = (ROOT / "docs" / "upstream" / f"n{i}" for i in range(1, 6))
sys.path.insert(0, str(ROOT / "tests" / "vllm_class" / "upstream"))


def linked(source: Path, target: Path, parts: tuple[str, ...]) -> Path:
    """``target`` mirrors ``source`` by links, with real folders along ``parts``; returns the last of them."""
    target.mkdir()
    for item in source.iterdir():
        if not parts or item.name != parts[0]:
            (target / item.name).symlink_to(item)
    return linked(source / parts[0], target / parts[0], parts[1:]) if parts else target


def outcome(version: str, tmp_path: Path, patch: Path | None, *files: str, extra: Path | None = None) -> dict:
    import run as upstream

    try:
        engine = engines.get(version)
    except StallproofError as exc:
        if os.environ.get("STALLPROOF_CI"):
            raise
        pytest.skip(f"{exc}".replace("\n", " "))
    folder = upstream.unpack(version)
    place = linked(folder, tmp_path / "upstream", ("tests", "v1", "core"))
    if extra is not None:
        (place / extra.name).write_text(extra.read_text())
        files = (f"tests/v1/core/{extra.name}", *files)
    report = tmp_path / "report.xml"
    env = engine.env(
        {
            "HF_HOME": str(folder / "hub-cache"),
            "HF_HUB_OFFLINE": "1",
            "VLLM_TEST_DEFER_FREE_MODEL": "facebook/opt-125m",
            "PATCH": str(patch or ""),
        }
    )
    here = [str(tmp_path / "upstream"), str(Path(__file__).parent), env["PYTHONPATH"]]
    env["PYTHONPATH"] = ":".join(here)
    done = subprocess.run(
        [str(engine.python), "-m", "pytest", "-p", "patched", "-q", "-p", "no:cacheprovider",
         f"--junitxml={report}", *files],
        cwd=tmp_path / "upstream", env=env, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert report.exists(), done.stdout[-2000:] + done.stderr[-2000:]
    out = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        bad = next((child for child in case if child.tag in ("error", "failure", "skipped")), None)
        out[case.get("name")] = "passed" if bad is None else f"{bad.tag}: {bad.get('message')}"
    assert out, done.stdout[-2000:]
    return out


CASES = [f"test_running_request_is_not_starved_by_newcomers[{p}]" for p in ("fcfs", "priority")]


def test_n1_fails_on_stock(tmp_path: Path) -> None:
    got = outcome("0.32.0", tmp_path, None, extra=N1 / "test_running_not_starved.py")
    assert set(got) == set(CASES)
    for message in got.values():
        assert "refused for 199 steps while" in message, "for the reason it is about, not for another"


def test_n1_passes_with_the_patch_and_so_do_the_tests_of_deferral(tmp_path: Path) -> None:
    got = outcome(
        "0.32.0", tmp_path, N1 / "fix.patch", "tests/v1/core/test_deferred_block_free.py",
        extra=N1 / "test_running_not_starved.py",
    )  # fmt: skip
    assert set(CASES) <= set(got)
    assert len(got) > 10
    assert set(got.values()) == {"passed"}


RETRIES = [f"test_request_whose_load_failed_is_scheduled_again[{p}]" for p in ("1-6", "2-8")]


def test_n2_fails_on_stock(tmp_path: Path) -> None:
    got = outcome("0.32.0", tmp_path, None, extra=N2 / "test_failed_load_retries.py")
    assert set(got) == set(RETRIES)
    assert "never scheduled again with 6 of 6 blocks free" in got[RETRIES[0]]
    assert "never scheduled again with 5 of 8 blocks free" in got[RETRIES[1]]


def test_n2_passes_with_the_patch_and_so_do_the_tests_of_failed_loads(tmp_path: Path) -> None:
    got = outcome(
        "0.32.0", tmp_path, N2 / "fix.patch", "tests/v1/kv_connector/unit/test_kv_load_failure_recovery.py",
        extra=N2 / "test_failed_load_retries.py",
    )  # fmt: skip
    assert set(RETRIES) <= set(got)
    assert len(got) > 5
    assert set(got.values()) == {"passed"}


def test_n4_fails_on_stock(tmp_path: Path) -> None:
    got = outcome("0.32.0", tmp_path, None, extra=N4 / "test_lora_limit_in_flight.py")
    assert set(got) == {"test_max_loras_counts_requests_in_flight"}
    assert "max_loras" in next(iter(got.values())) or "AssertionError" in next(iter(got.values()))


def test_n4_passes_with_the_patch(tmp_path: Path) -> None:
    got = outcome("0.32.0", tmp_path, N4 / "fix.patch", extra=N4 / "test_lora_limit_in_flight.py")
    assert got == {"test_max_loras_counts_requests_in_flight": "passed"}


ROLES = {role: f"test_load_does_not_get_blocks_of_a_step_in_flight[{role}]" for role in
         ("kv_both", "kv_consumer", "kv_producer")}  # fmt: skip


def test_n3_fails_on_stock_for_a_producer_only(tmp_path: Path) -> None:
    got = outcome("0.32.0", tmp_path, None, extra=N3 / "test_defer_free_kv_producer.py")
    assert set(got) == set(ROLES.values())
    assert got[ROLES["kv_both"]] == got[ROLES["kv_consumer"]] == "passed"
    assert "while a step in flight may write to them" in got[ROLES["kv_producer"]]


def test_n3_passes_with_the_patch_and_so_do_the_tests_of_deferral(tmp_path: Path) -> None:
    got = outcome(
        "0.32.0", tmp_path, N3 / "fix.patch", "tests/v1/core/test_deferred_block_free.py",
        extra=N3 / "test_defer_free_kv_producer.py",
    )  # fmt: skip
    assert set(ROLES.values()) <= set(got)
    assert len(got) > 10
    assert set(got.values()) == {"passed"}


TURNS = [f"test_session_preempted_with_its_last_token_in_flight[{p}]" for p in (True, False)]


def test_n5_fails_on_stock(tmp_path: Path) -> None:
    got = outcome("0.32.0", tmp_path, None, extra=N5 / "test_session_preempted_in_flight.py")
    assert set(got) == set(TURNS)
    for message in got.values():
        assert "the second turn never ran: 2 of 4 tokens" in message


def test_n5_passes_with_the_patch_and_so_do_the_tests_of_sessions(tmp_path: Path) -> None:
    got = outcome(
        "0.32.0", tmp_path, N5 / "fix.patch", "tests/v1/streaming_input/test_scheduler_streaming.py",
        extra=N5 / "test_session_preempted_in_flight.py",
    )  # fmt: skip
    assert set(TURNS) <= set(got)
    assert len(got) > 5
    assert set(got.values()) == {"passed"}
