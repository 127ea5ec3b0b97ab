"""How many unsafe accesses the sanitizer misses, by where it looks; the figures of docs/kernels/sanitizer.md.

``python benchmarks/kernels_interleavings.py [--worlds 2000]``, in an environment with torch (the first that
``make kernels-env`` prints). Each world is one random interleaving of 150 host actions, judged independently.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=2000)
    args = parser.parse_args()
    from stallproof.kernels.interleave import Rules, play

    cases = {
        "all rules": Rules(),
        "no gate": Rules(gate=False),
        "no gate, begin check only": Rules(gate=False, bracket=False),
        "no gate, end check ahead of drafter": Rules(gate=False, late=False),
        "no quarantine": Rules(quarantine=False),
        "stores not kept": Rules(keep=False),
        "no rule at all": Rules(gate=False, quarantine=False, keep=False),
    }
    print(f"{args.worlds} worlds each{'':20s} unsafe accesses  missed  reports  unexplained")
    for name, rules in cases.items():
        n: Counter[str] = Counter()
        for seed in range(args.worlds):
            world = play(seed, rules, actions=150)
            n["unsafe"] += len({(v.property, v.block, v.job) for v in world.accesses})
            n["missed"] += len(world.missed())
            n["reports"] += len(world.reports)
            n["unexplained"] += len(world.unexplained())
        figures = (n["unsafe"], n["missed"], n["reports"], n["unexplained"])
        print(f"{name:38s} {figures[0]:15d} {figures[1]:7d} {figures[2]:8d} {figures[3]:12d}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
