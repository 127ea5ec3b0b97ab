"""The real engine on CPU under pressure, stock and Stallproof side by side, in about a minute.

    stallproof engines up 0.32.0
    python examples/engine_under_pressure.py

Forty requests share 24 blocks; a connector in memory loads what was computed before while other requests run.
The output tokens must be those of an engine that has blocks in plenty.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from stallproof import engines


def run(**plan: object) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "result.json"
        engines.get(engines.BASE).run(
            ["-m", "stallproof.harness.engine_run", json.dumps(plan)],
            {"STALLPROOF_RESULT": str(target)}, capture_output=True, cwd=folder,
        )  # fmt: skip
        return json.loads(target.read_text())


def main() -> None:
    plenty = run(requests=40, blocks=600, connector=None, asynchronous=False)
    for name in ("stock", "stallproof"):
        got = run(requests=40, scheduler=name)
        e = got["events"]
        print(
            f"{name:11} {got['steps']} steps, {e.get('preempt', 0)} preemptions, "
            f"{e.get('evict', 0)} evictions, "
            f"{e.get('load', 0)} loads, {got['missing_blocks']} blocks missing, "
            f"tokens {'equal' if got['tokens'] == plenty['tokens'] else 'DIFFERENT'}"
        )


if __name__ == "__main__":
    main()
