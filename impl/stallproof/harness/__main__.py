"""The engine side of ``stallproof run``: reads jobs from standard input, writes one result per line.

A job is ``{"scenario": path, "scheduler": name, "trace": path or null,
"steps": 0 or a limit}``. Results go to the file descriptor
named by the first argument, so that nothing an engine prints gets in between.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any


def main() -> int:
    # Deadlines are in seconds, and a step of the harness is one; internal errors of a guard must show.
    os.environ.setdefault("STALLPROOF_LOAD_DEADLINE_S", "64")
    os.environ.setdefault("STALLPROOF_DEFERRAL_DEADLINE_S", "64")
    os.environ.setdefault("STALLPROOF_WAIT_DEADLINE_S", "64")
    os.environ.setdefault("STALLPROOF_SESSION_DEADLINE_S", "64")
    os.environ.setdefault("STALLPROOF_STRICT", "1")
    os.environ.pop("STALLPROOF_TRACE", None)  # for engines: a second recorder would stand in the way of ours
    out = os.fdopen(int(sys.argv[1]), "w", buffering=1)

    def say(**fields: Any) -> None:
        print(json.dumps(fields), file=out, flush=True)

    try:
        import vllm

        version = str(vllm.__version__)
    except Exception as exc:
        say(error=f"the engine does not import: {type(exc).__name__}: {exc}")
        return 2
    from stallproof.errors import StallproofError
    from stallproof.harness.drive import run
    from stallproof.scenario import load

    for line in sys.stdin:
        job = json.loads(line)
        try:
            scenario = load(job["scenario"])
            scenario.steps = job.get("steps") or scenario.steps
            result = run(scenario, version, job["scheduler"], job.get("trace"))
            say(result=result.plain())
        except StallproofError as exc:
            say(error=str(exc), code=int(exc.code))
        except Exception as exc:
            say(error=f"{type(exc).__name__}: {exc}", traceback=traceback.format_exc())
    return 0


if __name__ == "__main__":
    sys.exit(main())
