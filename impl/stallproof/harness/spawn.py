"""Run scenarios in an engine's own interpreter, many per process: importing an engine takes seconds."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stallproof import engines
from stallproof.errors import BadInput


@dataclass(frozen=True)
class Job:
    scenario: Path
    scheduler: str = "stock"
    trace: Path | None = None
    steps: int = 0  #: 0: as the file says

    def line(self) -> str:
        return json.dumps(
            {
                "scenario": str(self.scenario.absolute()),
                "scheduler": self.scheduler,
                "trace": str(self.trace.absolute()) if self.trace else None,
                "steps": self.steps,
            }
        )


class EngineGone(BadInput):
    """The engine's process ended before its work was done."""


def run_jobs(version: str, jobs: Sequence[Job], timeout: float = 600.0) -> Iterator[dict[str, Any]]:
    """Results (:class:`~stallproof.harness.drive.Result` as plain data) in the order of ``jobs``.

    A job that fails yields ``{"error": ..., "code": ...}``. Raises :class:`BadInput` if the engine is not
    installed, does not import, or its process dies or says nothing for ``timeout`` seconds.
    """
    engine = engines.get(version)
    read, write = os.pipe()
    with tempfile.TemporaryFile() as noise:
        proc = subprocess.Popen(
            [str(engine.python), "-m", "stallproof.harness", str(write)],
            env=engine.env({"VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR")}),
            stdin=subprocess.PIPE,
            stdout=noise,
            stderr=noise,
            pass_fds=(write,),
            cwd=tempfile.gettempdir(),
            text=True,
        )
        os.close(write)
        watchdog = threading.Timer(timeout, proc.kill)
        watchdog.daemon = True
        watchdog.start()
        try:
            with os.fdopen(read) as results:
                assert proc.stdin is not None
                try:
                    proc.stdin.write("".join(job.line() + "\n" for job in jobs))
                    proc.stdin.close()
                except BrokenPipeError:
                    pass
                done = 0
                for line in results:
                    answer = json.loads(line)
                    done += 1
                    yield answer.get("result") or answer
            code = proc.wait()
            if done < len(jobs):
                noise.seek(0)
                tail = noise.read()[-2000:].decode("utf-8", "replace").strip().splitlines()[-6:]
                raise EngineGone(
                    f"the process of vLLM {version} ended (code {code}), {done} of {len(jobs)} runs done:"
                    + "".join(f"\n    {x}" for x in tail)
                )
        finally:
            watchdog.cancel()
            if proc.poll() is None:
                proc.kill()
            proc.wait()
