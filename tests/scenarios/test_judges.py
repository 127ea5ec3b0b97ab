"""The judges can see: a change that the hooks miss is reported, and a broken promise is found by both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from stallproof import engines
from stallproof.harness.monitors import Monitors
from stallproof.trace import schema as T

HERE = Path(__file__).parent


def inside(version: str, code: str) -> Any:
    """Run ``code`` in an engine; it prints one JSON value last."""
    done = engines.get(version).run(
        ["-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


BLIND = f"""
    import json
    from stallproof import scenario
    from stallproof.harness import drive
    from stallproof.harness.config import scheduler_class
    from stallproof.vllm.recording import RecordingError

    sc = scenario.load({str(HERE / "cascade-49674.toml")!r})
    sc.steps = 8

    def run(strict, cheat):
        job = drive.Run(sc, scheduler_class("stock", 2), "x", "stock", "blind.jsonl")
        job.rec.strict = strict
        if cheat:
            real = job.sched.schedule
            def schedule(*a, **k):
                pool = job.sched.kv_cache_manager.block_pool
                type(pool).get_new_blocks(pool, 1)      # past the hooks
                return real(*a, **k)
            job.sched.schedule = schedule
        return job.go()

    seen, control = run(False, True), run(False, False)
    strict = run(True, True)
    print(json.dumps([seen.violated, control.violated, strict.died]))
"""


@pytest.mark.engine
@pytest.mark.slow
def test_a_change_past_the_hooks_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seen, control, strict = inside("0.32.0", BLIND)
    assert "did not see" in seen["Conservation"]
    assert "Conservation" not in control
    assert strict.startswith("RecordingError")


@pytest.mark.engine
@pytest.mark.slow
def test_a_trace_asked_for_by_environment_is_for_engines_and_said_so(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    done = subprocess.run(
        [sys.executable, "-m", "stallproof", "run", str(HERE / "wedge-57841.toml")],
        capture_output=True, text=True, check=False, env={**os.environ, "STALLPROOF_TRACE": str(trace)},
    )  # fmt: skip
    assert "STALLPROOF_TRACE is for engines" in done.stderr
    assert "-o" in done.stderr
    assert not trace.exists()


def feed(*records: Any) -> set[str]:
    watch = Monitors()
    for r in records:
        watch(r)
    return set(watch.findings)


OLD, NEW = T.Add("old", 0, 1.0, 30, 4), T.Add("new", 0, 2.0, 30, 4)


@pytest.mark.parametrize(
    ("events", "found"),
    [
        ([T.Refuse("old", 2, "blocks"), T.Alloc("new", [1])], {"NoInversion"}),
        ([T.Refuse("new", 2, "blocks"), T.Alloc("old", [1])], set()),
        ([T.Refuse("old", 2, "blocks"), T.Alloc("old", [2]), T.Alloc("new", [1])], set()),
        ([T.Refuse("old", 1, "blocks"), T.Preempt("new", "old"), T.Fence("new", [1], 1)], {"NoZeroPre"}),
        ([T.Refuse("old", 1, "blocks"), T.Preempt("new", "old"), T.Free("new", [1])], set()),
        ([T.Preempt("new", "new")], set()),
        ([T.Finish("old", "length"), T.Store("send-old", "old", [])], {"StoreSafe"}),
        ([T.Finish("old", "length"), T.Store("send-old", "old", [3])], set()),
    ],
)
def test_monitors_find_and_spare(events: list[T.Event], found: set[str]) -> None:
    assert feed(T.Outside(ev=[OLD, NEW]), T.Sched(step=1, ev=events)) == found


def test_a_newcomer_that_already_holds_blocks_is_no_newcomer() -> None:
    first = T.Sched(step=1, ev=[T.Alloc("new", [1])])
    second = T.Sched(step=2, ev=[T.Refuse("old", 2, "blocks"), T.Alloc("new", [2])])
    assert feed(T.Outside(ev=[OLD, NEW]), first, second) == set()


def test_passed_over_needs_many_calls_in_a_row() -> None:
    watch = Monitors()
    watch(T.Outside(ev=[OLD, NEW]))
    for _ in range(63):
        watch.ready(["old"], {"new": 1})
    assert not watch.findings
    watch.ready([], {"old": 1})
    for _ in range(63):
        watch.ready(["old"], {"new": 1})
    assert not watch.findings
    watch.ready(["old"], {"new": 1})
    assert set(watch.findings) == {"NoStarvation"}
