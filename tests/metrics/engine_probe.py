"""Run by an engine's own interpreter: one scenario under our class, once per case on standard input.

A case is one JSON object: a name and settings for the environment. For each, one line ``PROBE {...}`` with
the log, the metrics, and how the requests ended. Arguments: scenario file, base class, steps.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import urllib.request
from pathlib import Path


def main() -> None:
    file, base, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])

    import stallproof.vllm as ours
    from stallproof import scenario
    from stallproof.harness.drive import Run

    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(f"{record.levelname} {record.getMessage()}")

    logger = logging.getLogger("stallproof")
    logger.addHandler(Keep())
    logger.setLevel(logging.INFO)
    before = dict(os.environ)
    for text in sys.stdin:
        case = json.loads(text)
        lines.clear()
        os.environ.clear()
        os.environ.update(before | case["env"])
        trace = Path(tempfile.mkdtemp()) / "trace.jsonl"
        run = Run(scenario.load(Path(file)), getattr(ours, base), "probe", base, str(trace))
        run.sc.steps = steps
        result = run.go()
        metrics = ""
        port = os.environ.get("STALLPROOF_METRICS_PORT")
        if port:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                metrics = answer.read().decode()
        run.sched.shutdown()
        out = {
            "name": case["name"],
            "log": lines,
            "metrics": metrics,
            "ended": run.ended,
            "died": result.died,
        }
        print("PROBE " + json.dumps(out), flush=True)


main()
