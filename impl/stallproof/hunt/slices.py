"""One process of a hunt, seen from outside: start it in its engine, read what it says, start it again.

:func:`hunt_slice` is what :mod:`stallproof.spread` runs, here or on another node.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from stallproof import engines
from stallproof.errors import BadInput

#: so often an engine process that dies is started again, behind the case that killed it
_LIVES = 5


def hunt_slice(case: dict[str, Any], tick: Callable[..., None]) -> dict[str, Any]:
    """Hunt as ``case`` says: ``version`` and the fields of :class:`~stallproof.hunt.search.Job`.

    Messages go out through ``tick(kind, data)``. Returns the last state. Raises :class:`BadInput` if the
    engine is not there, does not import the class, or keeps dying.
    """
    version, job = case["version"], dict(case["job"])
    started, told = time.monotonic(), 0.0
    last: dict[str, Any] = {}
    for life in range(_LIVES):
        tail = ""
        for message in _messages(version, job):
            kind = message.pop("kind")
            if kind == "error":
                raise BadInput(
                    f"vLLM {version}: {message['text']}", remedy="name a class as package.module.Class"
                )
            if kind == "died":
                tail = message["text"]
            elif kind == "done":
                tick("state", last)
                return last
            elif kind == "state":
                last = message
                if time.monotonic() - told > 1.0:
                    told = time.monotonic()
                    tick("state", last)
            else:
                tick(kind, message)
                if kind == "corpus":
                    job["corpus"] = [*job.get("corpus", []), message["scenario"]]
                    job["coverage"] = [*job.get("coverage", []), *message["coverage"]]
                elif kind == "finding":
                    job["known"] = [*job.get("known", []), *(
                        [message["property"], message[name], *message["needs"]] for name in ("raw", "cause")
                    )]  # fmt: skip
        at: int = last["case"] if "case" in last else job.get("first", 0)
        if life == _LIVES - 1 or "case" not in last:
            raise BadInput(f"the process of vLLM {version} died in case {at}:\n    {tail}")
        tick("lost", {"case": at, "text": tail})
        if job.get("cases"):
            job["cases"] = max(1, int(job["cases"]) - (at + 1 - int(job.get("first", 0))))
        job["first"] = at + 1
        if job.get("seconds"):
            job["seconds"] = max(0.1, case["job"]["seconds"] - (time.monotonic() - started))
    return last


def _messages(version: str, job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    engine = engines.get(version)
    read, write = os.pipe()
    with tempfile.TemporaryFile() as noise:
        proc = subprocess.Popen(
            [str(engine.python), "-m", "stallproof.hunt.worker", str(write)],
            env=engine.env({"VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "CRITICAL")}),
            stdin=subprocess.PIPE, stdout=noise, stderr=noise, pass_fds=(write,), cwd=tempfile.gettempdir(),
        )  # fmt: skip
        os.close(write)
        try:
            with os.fdopen(read, "rb") as said:
                assert proc.stdin is not None
                try:
                    proc.stdin.write(msgspec.json.encode(job))
                    proc.stdin.close()
                except BrokenPipeError:
                    pass
                for line in said:
                    if line.endswith(b"\n"):
                        yield msgspec.json.decode(line)
            code = proc.wait()
            if code:
                noise.seek(0)
                text = noise.read()[-2000:].decode("utf-8", "replace").strip().splitlines()[-4:]
                yield {"kind": "died", "text": f"code {code}: " + " / ".join(text)}
        finally:
            if proc.poll() is None:
                proc.kill()
            proc.wait()
