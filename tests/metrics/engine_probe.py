"""Run by an engine's own interpreter: one scenario under our class, its log and metrics as one JSON line.

Arguments: scenario file, base class (``Scheduler`` or ``AsyncScheduler``), steps.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import urllib.request
from pathlib import Path


def main() -> None:
    file, base, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    logging.disable(logging.NOTSET)
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(f"{record.levelname} {record.getMessage()}")

    import stallproof.vllm as ours
    from stallproof import scenario
    from stallproof.harness.drive import Run

    logger = logging.getLogger("stallproof")
    logger.addHandler(Keep())
    logger.setLevel(logging.INFO)
    run = Run(scenario.load(Path(file)), getattr(ours, base), "probe", base)
    run.sc.steps = steps
    run.rec.put = lambda record: None
    result = run.go()
    text = ""
    port = os.environ.get("STALLPROOF_METRICS_PORT")
    if port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    run.sched.shutdown()
    out = {"log": lines, "metrics": text, "ended": run.ended, "died": result.died, "steps": result.steps}
    print("PROBE " + json.dumps(out))


main()
