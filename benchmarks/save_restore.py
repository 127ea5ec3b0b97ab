"""What saving evicted blocks would bring: the simulator without and with a store, as one Markdown table.

``.venv/bin/python benchmarks/save_restore.py [--vllm 0.32.0] [--requests 400] [--cost 0.0001]``, or
``make bench-save-restore``. The scheduler and its rules are the same; only what a recomputed token costs
differs (``simulate/save_restore.py``). One engine process runs all plans.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

import msgspec

from stallproof import engines
from stallproof.errors import StallproofError
from stallproof.simulate.plan import Plan, Store, Work

#: name -> what differs: loads, and whether freed blocks stay in the prefix cache until they are reused
LOADS: dict[str, dict[str, Any]] = {
    "no connector, no prefix cache": {"prefix_caching": False},
    "no connector, prefix cache": {},
    "prefill/decode pair": {"store": Store(kind="pd"), "prefix_caching": False},
}
STORES = (0, 50, 2000)
COLUMNS = (
    ("preemptions", "{:,.0f}"), ("evictions", "{:,.0f}"), ("recomputed_tokens", "{:,.0f}"),
    ("restored_tokens", "{:,.0f}"), ("unsaved_blocks", "{:,.0f}"), ("store_peak_blocks", "{:,.0f}"),
    ("ttft_p95_s", "{:.2f}"), ("itl_p99_s", "{:.4f}"), ("virtual_s", "{:.2f}"),
)  # fmt: skip


def results(version: str, plans: list[Plan]) -> list[dict[str, Any]]:
    """Summaries. Raises StallproofError if the engine is missing, RuntimeError if a plan fails."""
    engine = engines.get(version)
    read, write = os.pipe()
    with tempfile.TemporaryFile() as noise, os.fdopen(read) as lines:
        proc = subprocess.Popen(
            [str(engine.python), "-m", "stallproof.simulate", str(write)],
            env=engine.env({"OMP_NUM_THREADS": "1"}), stdin=subprocess.PIPE, stdout=noise, stderr=noise,
            pass_fds=(write,), text=True,
        )  # fmt: skip
        os.close(write)
        assert proc.stdin is not None
        proc.stdin.write("".join(json.dumps(msgspec.to_builtins(p)) + "\n" for p in plans))
        proc.stdin.close()
        said = [json.loads(line) for line in lines]
        proc.wait()
    for x in said:
        if "error" in x:
            raise RuntimeError(x["error"])
    return [x["result"]["summary"] for x in said if "result" in x]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", default="0.32.0")
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--rate", type=float, default=30.0)
    parser.add_argument("--blocks", type=int, default=400)
    parser.add_argument("--cost", type=float, default=0.0001)
    args = parser.parse_args()
    cases = [(load, store) for load in LOADS for store in STORES]
    plans = [
        Plan(
            work=Work(synthetic=args.requests, rate=args.rate),
            scheduler="stallproof",
            blocks=args.blocks,
            max_model_len=2048,
            save_restore=store,
            move_cost=args.cost,
            **LOADS[load],
        )
        for load, store in cases
    ]
    try:
        found = results(args.vllm, plans)
    except StallproofError as e:
        print(e, file=sys.stderr)
        return int(e.code)
    names = [n.replace("_", " ").removesuffix(" s") for n, _ in COLUMNS]
    print(f"| workload | store (blocks) | {' | '.join(names)} |")
    print("|---" * (len(names) + 2) + "|")
    for (load, store), r in zip(cases, found, strict=True):
        cells = [form.format(r[name]) if name in r else "-" for name, form in COLUMNS]
        print(f"| {load} | {store or 'none'} | {' | '.join(cells)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
