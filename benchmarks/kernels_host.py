"""Host time of the sanitizer per step for a pool of real size, without an engine.

``python benchmarks/kernels_host.py [--blocks 2048] [--requests 64]``, in an environment with torch (for one:
``make kernels-env`` prints two interpreters, the first has it). Median over 200 steps in which each request
holds an equal share of the pool and one request changes hands.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=2048)
    parser.add_argument("--requests", type=int, default=64)
    args = parser.parse_args()
    from stallproof.kernels.device import open_device
    from stallproof.kernels.ledger import Ledger
    from stallproof.kernels.sanitizer import Sanitizer

    ledger, sanitizer = Ledger(args.blocks), Sanitizer(open_device("cpu"), args.blocks)
    each = args.blocks // args.requests
    share = {f"r{i}": range(i * each, (i + 1) * each) for i in range(args.requests)}
    for r, blocks in share.items():
        ledger.alloc(r, blocks)
    plans, checks = [], []
    for step in range(1, 221):
        r = f"r{step % args.requests}"
        ledger.free(r)
        ledger.alloc(r, share[r])
        t0 = time.perf_counter()
        plan = ledger.plan(step, share)
        t1 = time.perf_counter()
        sanitizer.jobs(plan.now)
        sanitizer.begin(plan)
        sanitizer.end(step)
        found = sanitizer.collect()
        t2 = time.perf_counter()
        assert not found
        ledger.forget(step)
        plans.append(1e3 * (t1 - t0))
        checks.append(1e3 * (t2 - t1))
    print(f"{args.blocks} blocks, {args.requests} requests, all held and scheduled")
    print(f"plan (scheduler process)                 {statistics.median(plans[20:]):6.2f} ms")
    print(f"stamps and two checks (worker, CPU path) {statistics.median(checks[20:]):6.2f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
