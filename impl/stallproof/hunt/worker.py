"""A hunt's process inside an engine: ``python -m stallproof.hunt.worker FD`` reads one job from its input.

Messages go to file descriptor FD, one JSON object per line, so that nothing an engine prints gets between.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
from typing import Any

import msgspec

#: seconds of CPU after which one case is broken off: a call of the engine does not return
_CASE_LIMIT = 60.0


class StuckCall(Exception):
    """A case has used more CPU time than any sound one does."""


def _stuck(*_: Any) -> None:
    raise StuckCall("a call of the engine does not return")


def _warm(bench: Any) -> None:
    """A few cases before the clock starts: the first one imports half the engine."""
    from random import Random

    from stallproof.hunt.space import fresh

    for k in range(3):
        bench.run(fresh(Random(f"warm {k}"), "warm"))
    bench.runs = 0


def bench_here(scheduler: str) -> Any:
    """A bench on this process's engine, with the harness's settings and a limit of CPU time per case."""
    from stallproof.hunt.space import DEADLINE

    # As the harness: deadlines are in seconds, a step is one; internal errors of a guard must show.
    for name in ("LOAD", "DEFERRAL", "WAIT", "SESSION"):
        os.environ.setdefault(f"STALLPROOF_{name}_DEADLINE_S", str(DEADLINE))
    os.environ.setdefault("STALLPROOF_STRICT", "1")
    os.environ.pop("STALLPROOF_TRACE", None)
    import vllm

    from stallproof.harness.config import scheduler_class
    from stallproof.hunt.case import Bench

    scheduler_class(scheduler, 2)
    signal.signal(signal.SIGPROF, _stuck)

    class Limited(Bench):
        def run(self, s: Any) -> Any:
            signal.setitimer(signal.ITIMER_PROF, _CASE_LIMIT)
            try:
                return super().run(s)
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
                if self.runs % 64 == 0:
                    gc.collect()

    return Limited(scheduler, str(vllm.__version__))


def main() -> int:
    out = os.fdopen(int(sys.argv[1]), "wb", buffering=0)
    faulthandler.register(signal.SIGUSR1)

    def tell(kind: str, data: dict[str, Any]) -> None:
        out.write(msgspec.json.encode({"kind": kind, **data}) + b"\n")

    from stallproof.hunt.search import Hunter, Job

    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    try:
        bench = bench_here(job.scheduler)
    except Exception as exc:
        tell("error", {"text": f"{type(exc).__name__}: {exc}"})
        return 2
    _warm(bench)
    hunter = Hunter(bench, job, tell)
    tell("ready", {"version": bench.version})
    gc.collect()
    gc.freeze()
    gc.disable()
    hunter.go()
    tell("done", {"case": hunter.case})
    return 0


if __name__ == "__main__":
    sys.exit(main())
