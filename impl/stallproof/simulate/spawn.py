"""Run plans in engines' own interpreters, several at once; progress comes back while they run."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from stallproof import engines
from stallproof.errors import BadInput, StallproofError
from stallproof.simulate.plan import Plan

#: (index of the plan, virtual seconds, requests arrived, requests live, requests in all)
Tick = Callable[[int, float, int, int, int], None]


def run_plan(version: str, plan: Plan, tick: Callable[..., None] = lambda *a: None) -> dict[str, Any]:
    """One plan on vLLM ``version``. Raises :class:`BadInput` if the engine's process fails."""
    engine = engines.get(version)
    read, write = os.pipe()
    with tempfile.TemporaryFile() as noise:
        proc = subprocess.Popen(
            [str(engine.python), "-m", "stallproof.simulate", str(write)],
            env=engine.env({"OMP_NUM_THREADS": "1"}), stdin=subprocess.PIPE, stdout=noise, stderr=noise,
            pass_fds=(write,), text=True,
        )  # fmt: skip
        os.close(write)
        assert proc.stdin is not None
        answer: dict[str, Any] = {}
        try:
            proc.stdin.write(json.dumps(msgspec.to_builtins(plan)) + "\n")
            proc.stdin.close()
            with os.fdopen(read) as lines:
                for line in lines:
                    said = json.loads(line)
                    if "tick" in said:
                        tick(*said["tick"])
                    else:
                        answer = said
            code = proc.wait()
        except BaseException:
            proc.kill()
            proc.wait()
            raise
        if "result" in answer:
            return answer["result"]
        if "error" in answer:
            if answer.get("code"):
                raise StallproofError(answer["error"])
            raise BadInput(
                f"the simulation of {plan.scheduler} on vLLM {version} failed: {answer['error']}",
                remedy="run with --scheduler stock to see whether the engine or the class is at fault",
            )
        noise.seek(0)
        tail = noise.read()[-1500:].decode("utf-8", "replace").strip().splitlines()[-5:]
        raise BadInput(
            f"the process of vLLM {version} ended with code {code}: " + " | ".join(tail),
            remedy=f"stallproof engines up {version}",
        )


def run_all(
    plans: Sequence[tuple[str, Plan]], jobs: int = 1, tick: Tick = lambda *a: None
) -> list[dict[str, Any]]:
    """``(version, plan)`` pairs, ``jobs`` processes at a time, results in order."""

    def one(item: tuple[int, tuple[str, Plan]]) -> dict[str, Any]:
        n, (version, plan) = item
        return run_plan(version, plan, lambda *a: tick(n, *a))

    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        return list(pool.map(one, enumerate(plans)))
