"""Run plans in engines' own interpreters, several at once; progress comes back while they run.

Starting an engine's interpreter costs more than a small run, so a :class:`Worker` keeps one and runs plan
after plan in it; a run's result does not depend on what ran before it (a test compares them).
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from stallproof import engines, spread
from stallproof.errors import BadInput, Exit, StallproofError
from stallproof.simulate.plan import Plan

#: (index of the plan, virtual seconds, requests arrived, requests live, requests in all)
Tick = Callable[[int, float, int, int, int], None]


class Worker:
    """A process of vLLM ``version`` that runs plans one after the other. Use it as a context manager."""

    def __init__(self, version: str) -> None:
        self.version, self.engine = version, engines.get(version)
        self.proc: subprocess.Popen[str] | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close(kill=kind is not None)

    def _start(self) -> subprocess.Popen[str]:
        read, write = os.pipe()
        self.noise = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self.proc = subprocess.Popen(
            [str(self.engine.python), "-m", "stallproof.simulate", str(write)],
            env=self.engine.env({"OMP_NUM_THREADS": "1"}), stdin=subprocess.PIPE, stdout=self.noise,
            stderr=self.noise, pass_fds=(write,), text=True,
        )  # fmt: skip
        os.close(write)
        self.lines = os.fdopen(read)
        return self.proc

    def run(self, plan: Plan, tick: Callable[..., None] = lambda *a: None) -> dict[str, Any]:
        """Result of one plan. Raises :class:`BadInput` if the engine's process fails."""
        return self._ask(msgspec.to_builtins(plan), f"the simulation of {plan.scheduler}", tick)

    def follow(self, trace: Path) -> dict[str, Any]:
        """Play a recording back, see :mod:`stallproof.simulate.follow`."""
        return self._ask({"follow": str(trace.absolute())}, f"following {trace.name}", lambda *a: None)

    def _ask(self, what: dict[str, Any], name: str, tick: Callable[..., None]) -> dict[str, Any]:
        proc = self.proc or self._start()
        assert proc.stdin is not None
        answer: dict[str, Any] = {}
        try:
            proc.stdin.write(json.dumps(what) + "\n")
            proc.stdin.flush()
            for line in self.lines:
                said = json.loads(line)
                if "tick" not in said:
                    answer = said
                    break
                tick(*said["tick"])
        except BrokenPipeError:
            pass  # it has died; said below
        except BaseException:
            self.close(kill=True)
            raise
        if "result" in answer:
            return answer["result"]
        if "error" in answer:
            if code := answer.get("code"):
                known = StallproofError(answer["error"])
                known.code = Exit(code)
                raise known
            raise BadInput(
                f"{name} on vLLM {self.version} failed: {answer['error']}",
                remedy="run with --scheduler stock to see whether the engine or the class is at fault",
            )
        code = proc.wait()
        self.noise.seek(0)
        tail = self.noise.read()[-1500:].decode("utf-8", "replace").strip().splitlines()[-5:]
        self.close()
        raise BadInput(
            f"the process of vLLM {self.version} ended with code {code}: " + " | ".join(tail),
            remedy=f"stallproof engines up {self.version}",
        )

    def close(self, *, kill: bool = False) -> None:
        """End the process; safe to call twice."""
        proc, self.proc = self.proc, None
        if proc is None:
            return
        if kill:
            proc.kill()
        if proc.stdin is not None:
            proc.stdin.close()
        proc.wait()
        self.lines.close()
        self.noise.close()


def run_plan(version: str, plan: Plan, tick: Callable[..., None] = lambda *a: None) -> dict[str, Any]:
    """One plan in a process of its own. Raises :class:`BadInput` if the engine's process fails."""
    with Worker(version) as worker:
        return worker.run(plan, tick)


_kept: dict[str, Worker] = {}


def run_case(case: dict[str, Any], tick: Callable[..., None]) -> dict[str, Any]:
    """A case of :mod:`stallproof.spread`: ``version`` and ``plan`` as plain data.

    The engine's process stays for the next case that this process gets.
    """
    version = case["version"]
    if version not in _kept:
        if not _kept:
            atexit.register(close_kept)
        _kept[version] = Worker(version)
    return _kept[version].run(msgspec.convert(case["plan"], Plan), tick)


def close_kept() -> None:
    """End the engines' processes that :func:`run_case` kept."""
    while _kept:
        _kept.popitem()[1].close()


def run_all(
    plans: Sequence[tuple[str, Plan]], where: spread.Where | None = None, tick: Tick = lambda *a: None,
    on_done: Callable[[int, dict[str, Any]], None] = lambda i, r: None,
) -> list[dict[str, Any]]:  # fmt: skip
    """``(version, plan)`` pairs over processes or a Ray cluster, results in order."""
    cases = [{"version": v, "plan": msgspec.to_builtins(p)} for v, p in plans]
    try:
        return spread.run(
            run_case, cases, where or spread.Where(), on_tick=tick, on_done=on_done,
            label=lambda c: f"{c['plan']['scheduler']} on vLLM {c['version']}",
        )  # fmt: skip
    finally:
        close_kept()
