"""vLLM's own tests, its classes against ours: the comparison itself, and its fast set on one release.

`make test-upstream VLLM=...` runs the others; the results are in docs/upstream-tests.md.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.vllm_class.upstream.run import Expected, compare

RUN = Path(__file__).parent / "upstream" / "run.py"
UNIT = "tests/v1/kv_connector/unit/"


def expected(floor: int = 2, **exceptions: str) -> Expected:
    return Expected("", {}, {k.replace("__", "::"): v for k, v in exceptions.items()}, floor)


BOTH = {"f::a": "passed", "f::b": "passed", "f::c": "skipped"}


def test_equal_results_are_fine() -> None:
    assert compare("v", BOTH, dict(BOTH), expected()).ok


@pytest.mark.parametrize("how", ["failure", "error", "skipped", None])
def test_whatever_passes_with_stock_must_pass(how: str | None) -> None:
    ours = {t: h for t, h in BOTH.items() if t != "f::a"} | ({"f::a": how} if how else {})
    c = compare("v", BOTH, ours, expected(1))
    assert (c.ok, c.worse) == (False, ["f::a"])


def test_a_listed_exception_is_allowed_and_named() -> None:
    c = compare("v", BOTH, BOTH | {"f::a": "failure"}, expected(1, f__a="why"))
    assert (c.ok, c.exceptions) == (True, {"f::a": "why"})


def test_an_exception_that_no_longer_differs_is_an_error() -> None:
    c = compare("v", BOTH, dict(BOTH), expected(f__a="why"))
    assert (c.ok, c.stale) == (False, ["f::a"])
    assert compare("v", BOTH, dict(BOTH), expected(g__a="why")).ok, "its file was not run"


def test_too_few_passed_tests_are_an_error_and_so_is_no_floor() -> None:
    assert not compare("v", BOTH, dict(BOTH), expected(3)).ok
    assert not compare("v", BOTH, dict(BOTH), expected(0)).ok


def test_a_test_that_fails_with_stock_must_be_left_out() -> None:
    c = compare("v", BOTH | {"f::d": "failure"}, BOTH | {"f::d": "failure"}, expected())
    assert (c.ok, c.broken) == (False, ["f::d"])


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(RUN), *args], capture_output=True, text=True, check=False)


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_control_a_broken_scheduler_is_told_from_stock() -> None:
    """One class that keeps blocks and does not hear of failed loads: a test of vLLM finds each fault."""
    leaky, deaf = f"{UNIT}test_remote_decode_lifecycle.py", f"{UNIT}test_error_propagation.py"
    done = run("0.32.0", "--control", "leaky-deaf", leaky, deaf)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"WORSE: {leaky}::test_basic_lifecycle" in done.stdout
    assert f"WORSE: {deaf}::test_error_propagation_sync_load" in done.stdout


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_passes_with_stock_passes_with_ours() -> None:
    done = run("0.32.0")
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
