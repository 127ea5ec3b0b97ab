"""Confusion table over a case index, with the naive rule beside it.

``python -m stallproof.diagnose.confusion tests/fixtures/logs/*/index.json`` prints one line per case and the
table; ``--json`` for machines. An index is a list of objects with ``file``, ``verdict`` (the answer that the
evidence in the excerpt allows) and ``exit_ok`` (exit codes that are right).

The naive rule is what monitoring scripts do: an engine is stalled if two statistics records in a row show no
token while Running + Waiting is above zero.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from stallproof.errors import StallproofError

from . import parse, run
from .prefix import Prefix
from .reader import Source

VERDICTS = ("stalled", "progressing", "idle or paused", "cannot tell")


def naive(path: Path) -> str:
    """``stalled`` or ``not stalled`` by "0 tokens twice"."""
    from .observe import Ref

    zero: dict[int, int] = {}
    prefix = Prefix()
    src = Source(str(path)).open()
    if src.kind != "lines":
        return "not stalled"
    for number, raw in src.lines():
        s = parse.stats(prefix.parse(raw), lambda n=number: Ref(str(path), n))  # type: ignore[misc]
        if s is None:
            continue
        busy = s.zero and s.running + s.waiting > 0
        zero[s.engine] = zero.get(s.engine, 0) + 1 if busy else 0
        if zero[s.engine] >= 2:
            return "stalled"
    return "not stalled"


def judge(index: Path) -> list[dict[str, Any]]:
    """One row per case of ``index``."""
    rows = []
    for case in json.loads(index.read_text()):
        files = [index.parent / f for f in case.get("files", [case["file"]])]
        try:
            report = run.diagnose([str(f) for f in files])
            got, code = report.verdict, int(run.exit_code(report))
            stretches = {i.verdict for e in report.engines for i in e.intervals}
        except StallproofError as exc:
            got, code, stretches = "cannot tell", int(exc.code), set()
        rows.append(
            {
                "index": str(index.parent.name),
                "file": case["file"],
                "expected": case["verdict"],
                "got": got,
                "exit": code,
                "exit_ok": code in case["exit_ok"],
                "same": got == case["verdict"],
                "within": got == case["verdict"] or case["verdict"] in stretches,
                "naive": naive(files[0]),
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The confusion matrix, expected against got, and the naive rule's."""
    seen = Counter((r["expected"], r["got"]) for r in rows)
    out = [
        f"{'expected':<16}"
        + "".join(f"{v:>16}" for v in VERDICTS)
        + f"{'naive: stalled':>18}{'naive: not':>12}"
    ]
    for v in VERDICTS:
        n = Counter(r["naive"] for r in rows if r["expected"] == v)
        out.append(
            f"{v:<16}"
            + "".join(f"{seen[v, g]:>16}" for g in VERDICTS)
            + f"{n['stalled']:>18}{n['not stalled']:>12}"
        )
    stalled = [r for r in rows if r["expected"] == "stalled"]
    healthy = [r for r in rows if r["expected"] in ("progressing", "idle or paused")]
    out.append("")
    out.append(
        f"stalls found: {sum(r['got'] == 'stalled' for r in stalled)} of {len(stalled)}"
        f" (naive {sum(r['naive'] == 'stalled' for r in stalled)})"
        f"; false alarms: {sum(r['got'] == 'stalled' for r in healthy)} of {len(healthy)}"
        f" (naive {sum(r['naive'] == 'stalled' for r in healthy)})"
        f"; exit code right: {sum(r['exit_ok'] for r in rows)} of {len(rows)}"
    )
    return out


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 if a healthy case is called stalled or an exit code is wrong."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("index", nargs="+", type=Path)
    p.add_argument("--json", action="store_true")
    args = p.parse_args(argv)
    rows = [r for i in args.index for r in judge(i)]
    if args.json:
        print(json.dumps(rows, indent=1))
    else:
        for r in rows:
            mark = "ok " if r["exit_ok"] else "BAD"
            print(
                f"{mark} {r['index']}/{r['file']:<56} expected {r['expected']:<15}"
                f" got {r['got']:<15} exit {r['exit']}"
            )
        print()
        print("\n".join(table(rows)))
    return 0 if all(r["exit_ok"] for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
