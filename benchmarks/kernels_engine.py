"""What the sanitizer and device fences cost in the real engine on CPU: CPU time per step, phase by phase.

``.venv/bin/python benchmarks/kernels_engine.py [--requests 100] [--rounds 3] [--vllm 0.32.0]``. One process,
one engine, the phases take turns, so that drift hits all alike. The tiny model makes the ratio pessimistic:
its step takes about two milliseconds, a real one twenty to fifty, and the sanitizer's part hardly grows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from stallproof import engines
from stallproof.errors import StallproofError

DRIVER = Path(__file__).parent.parent / "tests" / "kernels" / "engine_driver.py"
#: name -> phase of the driver. Prefix caching is on, so that there are blocks to watch.
PHASES = {
    "off": {"mode": ""},
    "check": {"mode": "check"},
    "poison": {"mode": "poison"},
    "check, checksum of every 8th block": {"mode": "check", "checksum": 8},
    "check, checksum of every block": {"mode": "check", "checksum": 1},
    "device fences": {"mode": "", "fences": True},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vllm", default="0.32.0")
    parser.add_argument("--no-prefix-caching", action="store_true", help="nothing to take a checksum of")
    args = parser.parse_args()
    caching = {} if args.no_prefix_caching else {"prefix_caching": True, "shared_prefix": 64}
    try:
        engine = engines.get(args.vllm)
    except StallproofError as e:
        print(e, file=sys.stderr)
        return int(e.code)
    with tempfile.TemporaryDirectory() as tmp:
        out = Path(tmp) / "out.json"
        asked = {
            "scheduler": "stallproof",
            "plan": {"requests": args.requests, **caching},
            "phases": [{"mode": ""}, *list(PHASES.values()) * args.rounds],  # the first warms up
            "out": str(out),
        }
        run = engine.run([str(DRIVER), json.dumps(asked)], capture_output=True, text=True)
        if not out.exists():
            print(run.stderr[-2000:], file=sys.stderr)
            return 2
        phases = json.loads(out.read_text())["phases"][1:]
    base = 0.0
    steps = phases[0]["steps"]
    print(f"vLLM {args.vllm}, {args.requests} requests, {steps} steps, median of {args.rounds} rounds")
    for i, name in enumerate(PHASES):
        mine = phases[i :: len(PHASES)]
        each = statistics.median(1e3 * p["cpu"] / p["steps"] for p in mine)
        base = base or each
        assert not any(p["reports"] for p in mine)
        sums = mine[0].get("sums", [0, 0, 0])
        more = f", {sums[0]} checksums taken, {sums[1]} compared" if sums[0] else ""
        print(f"{name:36s} {each:7.3f} ms CPU per step, {each / base:5.3f} of off{more}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
