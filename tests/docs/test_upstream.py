"""What we would send upstream: each test fails on the releases it names, and passes with our patch."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from stallproof import engines
from stallproof.errors import StallproofError

pytestmark = [pytest.mark.engine, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
UPSTREAM = ROOT / "docs" / "upstream"
sys.path.insert(0, str(ROOT / "tests" / "vllm_class" / "upstream"))


def linked(source: Path, target: Path, parts: tuple[str, ...]) -> Path:
    """``target`` mirrors ``source`` by links, with real folders along ``parts``; returns the last of them."""
    target.mkdir()
    for item in source.iterdir():
        if not parts or item.name != parts[0]:
            (target / item.name).symlink_to(item)
    return linked(source / parts[0], target / parts[0], parts[1:]) if parts else target


def outcome(version: str, tmp_path: Path, findings: Iterable[str], patched: bool) -> dict[str, str]:
    """Result by test: the findings' own, and with their patches vLLM's tests of the same features, too."""
    import run as upstream

    try:
        engine = engines.get(version)
    except StallproofError as exc:
        if os.environ.get("STALLPROOF_CI"):
            raise
        pytest.skip(f"{exc}".replace("\n", " "))
    folder = upstream.unpack(version)
    place = linked(folder, tmp_path / "upstream", ("tests", "v1", "core"))
    files: list[str] = []
    for f in findings:
        test = next((UPSTREAM / f).glob("test_*.py"))
        (place / test.name).write_text(test.read_text())
        files += [f"tests/v1/core/{test.name}", *(FINDINGS[f].related if patched else ())]
    patches = [str(UPSTREAM / f / "fix.patch") for f in findings] if patched else []
    report = tmp_path / "report.xml"
    env = engine.env(
        {
            "HF_HOME": str(folder / "hub-cache"),
            "HF_HUB_OFFLINE": "1",
            "VLLM_TEST_DEFER_FREE_MODEL": "facebook/opt-125m",
            "PATCH": os.pathsep.join(patches),
        }
    )
    here = [str(tmp_path / "upstream"), str(Path(__file__).parent), env["PYTHONPATH"]]
    env["PYTHONPATH"] = ":".join(here)
    done = subprocess.run(
        [str(engine.python), "-m", "pytest", "-p", "patched", "-q", "-p", "no:cacheprovider",
         f"--junitxml={report}", *dict.fromkeys(files)],
        cwd=tmp_path / "upstream", env=env, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert report.exists(), done.stdout[-2000:] + done.stderr[-2000:]
    out = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        bad = next((child for child in case if child.tag in ("error", "failure", "skipped")), None)
        out[case.get("name")] = "passed" if bad is None else f"{bad.tag}: {bad.get('message')}"
    assert out, done.stdout[-2000:]
    return out


@dataclass(frozen=True)
class Finding:
    """``message``: what the failing tests say, by name; ``passing``: the others, which pass on stock."""

    message: dict[str, str]
    passing: tuple[str, ...] = ()
    related: tuple[str, ...] = ()


_DEFERRAL = "tests/v1/core/test_deferred_block_free.py"
_STARVED = "test_running_request_is_not_starved_by_newcomers"
_RETRY = "test_request_whose_load_failed_is_scheduled_again"
_ROLE = "test_load_does_not_get_blocks_of_a_step_in_flight"
_TURN = "test_session_preempted_with_its_last_token_in_flight"

FINDINGS = {
    "n1": Finding(
        {f"{_STARVED}[{p}]": "refused for 199 steps while" for p in ("fcfs", "priority")},
        related=(_DEFERRAL,),
    ),
    "n2": Finding(
        {
            f"{_RETRY}[1-6]": "never scheduled again with 6 of 6 blocks free",
            f"{_RETRY}[2-8]": "never scheduled again with 5 of 8 blocks free",
        },
        related=("tests/v1/kv_connector/unit/test_kv_load_failure_recovery.py",),
    ),
    "n3": Finding(
        {f"{_ROLE}[kv_producer]": "while a step in flight may write to them"},
        passing=(f"{_ROLE}[kv_both]", f"{_ROLE}[kv_consumer]"),
        related=(_DEFERRAL,),
    ),
    "n4": Finding({"test_max_loras_counts_requests_in_flight": "AssertionError"}),
    "n5": Finding(
        {f"{_TURN}[{p}]": "the second turn never ran: 2 of 4 tokens" for p in (True, False)},
        related=("tests/v1/streaming_input/test_scheduler_streaming.py",),
    ),
}  # fmt: skip
#: fewer of vLLM's own tests than these would show that they were not run at all
OWN = 30


def test_each_fails_on_stock_for_the_reason_it_is_about(tmp_path: Path) -> None:
    got = outcome("0.32.0", tmp_path, FINDINGS, patched=False)
    failing = {name: text for f in FINDINGS.values() for name, text in f.message.items()}
    passing = {name for f in FINDINGS.values() for name in f.passing}
    assert set(got) == set(failing) | passing
    assert {n for n, result in got.items() if result == "passed"} == passing
    assert {n: got[n] for n, text in failing.items() if text not in got[n]} == {}


def test_all_pass_with_the_patches_and_so_do_the_tests_of_the_same_features(tmp_path: Path) -> None:
    got = outcome("0.32.0", tmp_path, FINDINGS, patched=True)
    ours = {n for f in FINDINGS.values() for n in (*f.message, *f.passing)}
    assert ours <= set(got)
    assert len(got) - len(ours) >= OWN
    assert {n: r for n, r in got.items() if r != "passed"} == {}


@pytest.mark.long
@pytest.mark.parametrize("finding", FINDINGS)
def test_each_passes_with_its_own_patch_alone(finding: str, tmp_path: Path) -> None:
    got = outcome("0.32.0", tmp_path, [finding], patched=True)
    assert set(FINDINGS[finding].message) <= set(got)
    assert {n: r for n, r in got.items() if r != "passed"} == {}


def test_every_finding_is_here() -> None:
    assert {p.name for p in UPSTREAM.iterdir() if p.is_dir()} == set(FINDINGS)
