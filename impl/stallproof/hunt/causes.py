"""Properties and signatures of given scenarios on one release, as a hunt there would name them.

``python -m stallproof.hunt.causes FD`` is the engine's side: a list of scenarios on its input, one answer per
line on FD. :func:`causes` is this side.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from stallproof import engines
from stallproof.errors import BadInput
from stallproof.scenario import Scenario


class _Task(Struct):
    scheduler: str
    scenarios: list[Scenario]


class Answer(Struct):
    """``causes``: property -> signature; ``refused``: the engine does not take the configuration."""

    causes: dict[str, str] = {}
    refused: bool = False


def causes(
    version: str, scheduler: str, scenarios: Sequence[Scenario], timeout: float = 1800
) -> list[Answer]:
    """What each of ``scenarios`` breaks on ``scheduler`` of ``version``, and why; in their order.

    The death of the engine's loop is ``EngineDies`` whatever a scenario calls it. Raises :class:`BadInput` if
    the engine is not there or dies.
    """
    engine = engines.get(version)
    read, write = os.pipe()
    with tempfile.TemporaryFile() as noise:
        proc = subprocess.Popen(
            [str(engine.python), "-m", "stallproof.hunt.causes", str(write)],
            env=engine.env({"VLLM_LOGGING_LEVEL": "CRITICAL"}),
            stdin=subprocess.PIPE, stdout=noise, stderr=noise, pass_fds=(write,), cwd=tempfile.gettempdir(),
        )  # fmt: skip
        os.close(write)
        try:
            assert proc.stdin is not None
            proc.stdin.write(msgspec.json.encode(_Task(scheduler, list(scenarios))))
            proc.stdin.close()
            with os.fdopen(read, "rb") as said:
                got = [msgspec.json.decode(line, type=Answer) for line in said]
            proc.wait(timeout=timeout)
        finally:
            if proc.poll() is None:
                proc.kill()
            proc.wait()
        if len(got) != len(scenarios):
            noise.seek(0)
            tail = noise.read()[-1500:].decode("utf-8", "replace").strip().splitlines()[-4:]
            raise BadInput(f"the process of vLLM {version} ended early: " + " / ".join(tail))
    return got


def main() -> int:
    from stallproof.hunt.worker import bench_here

    out = os.fdopen(int(sys.argv[1]), "wb", buffering=0)
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=_Task)
    bench: Any = bench_here(task.scheduler)
    for s in task.scenarios:
        s.expect.death = "EngineDies"
        got = bench.run(s)
        out.write(msgspec.json.encode(Answer(got.causes if got else {}, got is None)) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
