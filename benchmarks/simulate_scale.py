"""Wall time and memory of `stallproof simulate` against the size of its input: `make bench-simulate-scale`.

    python benchmarks/simulate_scale.py [--seconds 900] [--blocks 60000] [--vllm 0.32.0] [--traces DIR]

Slices of 1, 2 and 4 times ``--seconds`` of the Mooncake conversation trace, one process each, one after the
other. The device is fast enough to keep up, so that the length of queues does not grow with the slice.
CPU seconds are the process's own (start of vLLM excluded), so a busy machine disturbs little.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from stallproof.simulate.plan import Plan, Work
from stallproof.simulate.spawn import run_plan

ROOT = Path(__file__).resolve().parent.parent
#: stated coefficients of a device that keeps up with the whole trace
DEVICE = "base=0.004,per_prefill_token=0.00001,per_decode_token=0.00001"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=900.0)
    parser.add_argument("--blocks", type=int, default=60000)
    parser.add_argument("--vllm", default="0.32.0")
    parser.add_argument("--schedulers", nargs="+", default=["stock", "stallproof"])
    parser.add_argument("--times", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "data" / "traces")
    a = parser.parse_args()
    path = (a.traces / "mooncake" / "conversation_trace.jsonl").resolve()
    if not path.exists():
        print(f"no {path.name} below {a.traces}\nremedy: --traces FOLDER", file=sys.stderr)
        return 2
    heads = "scheduler|slice (s)|requests|tokens scheduled|steps|CPU (s)|requests per CPU s|wall (s)|peak MB"
    print("| " + heads.replace("|", " | ") + " |")
    print("|---|---|---|---|---|---|---|---|---|")
    for scheduler in a.schedulers:
        for times in a.times:
            length = a.seconds * times
            plan = Plan(
                work=Work(path=str(path), length=length), scheduler=scheduler, blocks=a.blocks, latency=DEVICE
            )
            s = run_plan(a.vllm, plan)["summary"]
            cpu, rate = s["cpu_s"], s["requests"] / s["cpu_s"]
            print(
                f"| {scheduler} | {length:.0f} | {s['requests']:,} | {s['scheduled_tokens']:,} "
                f"| {s['steps']:,} | {cpu:.1f} | {rate:.1f} | {s['wall_s']:.1f} | {s['peak_rss_mb']} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
