"""What saving evicted blocks would bring: `stallproof simulate` without and with a store, as one table.

``.venv/bin/python benchmarks/save_restore.py [--vllm 0.32.0] [--requests 400] [--cost 0.0001]``. The
scheduler and its decisions are the same; only what a recomputed token costs differs
(``simulate/save_restore.py``).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

#: name, options of `stallproof simulate`: pressure from a small pool, without and with loads
LOADS = {
    "no connector": [],
    "shared store, loads": ["--store", "store", "--store-capacity", "3000"],
    "prefill/decode pair": ["--store", "pd"],
}
STORES = (0, 200, 2000)
COLUMNS = (
    ("recomputed_tokens", "{:,.0f}"), ("restored_tokens", "{:,.0f}"), ("saved_blocks", "{:,.0f}"),
    ("unsaved_blocks", "{:,.0f}"), ("store_peak_blocks", "{:,.0f}"), ("ttft_p95_s", "{:.2f}"),
    ("itl_p95_s", "{:.4f}"), ("goodput_rps", "{:.2f}"), ("virtual_s", "{:.1f}"),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", default="0.32.0")
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--rate", type=float, default=30.0)
    parser.add_argument("--blocks", type=int, default=400)
    parser.add_argument("--cost", type=float, default=0.0001)
    args = parser.parse_args()
    tool = Path(sys.executable).with_name("stallproof")
    names = [n.replace("_", " ").removesuffix(" s") for n, _ in COLUMNS]
    print(f"| workload | store (blocks) | {' | '.join(names)} |")
    print("|---" * (len(names) + 2) + "|")
    for load, options in LOADS.items():
        for store in STORES:
            command = [
                str(tool), "simulate", "--synthetic", str(args.requests), "--rate", str(args.rate),
                "--blocks", str(args.blocks), "--max-model-len", "2048", "--scheduler", "stallproof",
                "--vllm", args.vllm, "--save-restore", str(store), "--move-cost", str(args.cost), "--json",
                *options,
            ]  # fmt: skip
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            if run.returncode > 1:
                print(run.stderr[-2000:], file=sys.stderr)
                return run.returncode
            r = json.loads(run.stdout)["runs"][0]
            cells = [form.format(r[name]) if name in r else "-" for name, form in COLUMNS]
            print(f"| {load} | {store or 'none'} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
