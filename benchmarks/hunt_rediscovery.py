"""Which catalogued root causes did a hunt find? ``hunt_rediscovery.py FOLDER... [-o PAGE]``.

FOLDERs are those of finished hunts on stock. The hunt itself knows nothing of the catalogue; this looks at
what it left behind. A finding counts as root cause X only if all of these hold:

* X's scenario of the test suite breaks the same property on the hunted release, with the same cause: the
  signature of the shrunk finding names no kind of request, block or step that X's does not,
* the shrunk scenario uses what X's scenario is about (a lost report, a session, look-ahead, ...; all but
  :data:`FREE`), and nothing of that kind that X's scenario does not use,
* on every release where X's scenario is expected to fail, the shrunk scenario breaks that property, too,
* on every release where X's scenario is expected to pass, it does not.

A finding that fits several root causes counts for none of them unless it is the only one that fits one of
them; what is left over is listed. Runs on every supported release that is installed (``stallproof engines up
--all``); releases that are not are named.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import msgspec

from stallproof import engines, scenario
from stallproof.hunt import finding as findings
from stallproof.hunt.causes import Answer, causes
from stallproof.hunt.finding import Finding
from stallproof.hunt.search import within
from stallproof.hunt.space import copy, needs, refused
from stallproof.scenario import Scenario

#: circumstances that many stalls can do with or without
FREE = frozenset((
    "several batches in flight", "several requests", "a chunk cap", "whole prompts", "loose admission",
    "prefix caching", "zeroing", "a load", "a send", "newcomers", "not yet", "a late report", "policy fail",
))  # fmt: skip

#: scenarios of the suite that hunts themselves brought: finding them again is no rediscovery
OWN = frozenset(("own-finding-N4",))

Row = tuple[Path, Finding, Scenario]
Answers = dict[str, Answer]  #: release -> what a scenario breaks there, and why


def read(folders: Iterable[Path]) -> list[Row]:
    """The findings of hunts on stock, by release and time."""
    rows = [(f.parent, *findings.read(f)) for d in folders for f in sorted(d.glob("findings/*/finding.json"))]
    # what an older hunt found in an environment that breaks its side of the contract is no finding any more
    rows = [r for r in rows if r[1].scheduler == "stock" and not _unfair(r[2])]
    return sorted(rows, key=lambda r: (r[1].version, r[1].seconds))


def _unfair(s: Scenario) -> str:
    longer = copy(s)
    longer.steps = max([s.steps, *(a.step + 101 for a in s.at)])
    return refused(longer)


def judge(rows: list[Row], every: list[Scenario], up: list[str]) -> tuple[list[Answers], dict[str, Answers]]:
    """What each finding shows on each release, and each scenario of the suite on the releases hunted on.

    One engine process per release runs them all.
    """
    hunted = {f.version for _, f, _ in rows}
    seen: list[Answers] = [{} for _ in rows]
    judged: dict[str, Answers] = {s.id: {} for s in every}
    for v in up:
        which = [s for s in every if v in hunted and (not s.versions or v in s.versions)]
        print(f"vLLM {v}: {len(rows)} findings, {len(which)} scenarios", file=sys.stderr, flush=True)
        answers = causes(v, "stock", [s for _, _, s in rows] + which)
        for k, answer in enumerate(answers[: len(rows)]):
            seen[k][v] = answer
        for s, answer in zip(which, answers[len(rows) :], strict=True):
            judged[s.id][v] = answer
    return seen, judged


def fits(x: Scenario, judged: Answers, f: Finding, s: Scenario, seen: Answers) -> bool:
    """Whether finding ``f`` with scenario ``s``, which on each release showed ``seen``, is that of ``x``."""
    here, mine = judged.get(f.version), seen[f.version].causes.get(f.property)
    if here is None or mine is None or not within(mine, _unnamed(here.causes.get(f.property, ""), x)):
        return False
    about, uses = set(needs(x)) - FREE, set(needs(s)) - FREE
    if about != uses and not mine.startswith("a request that never fits"):
        return False
    for v, answer in seen.items():
        if x.versions and v not in x.versions:
            continue
        wanted = scenario.expected(x.expect.stock, v) != "ok"
        if answer.refused or (f.property in answer.causes) != wanted:
            return False
    return True


def _unnamed(cause: str, x: Scenario) -> str:
    """``cause`` with the names of ``x``'s requests as a hunt's signature has them."""
    names = {re.sub(r"\d+", "N", q.id) for q in [*x.request, *x.stream]}
    for name in sorted(names, key=len, reverse=True):
        cause = re.sub(rf"\b{re.escape(name)}N?\b", "R", cause)
    return cause


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, help="write the page here")
    parser.add_argument("--answers", type=Path, help="write what each scenario showed on each release here")
    parser.add_argument(
        "--again", action="store_true", help="do not run anything: take --answers as they are"
    )
    args = parser.parse_args()
    rows = read(args.folders)
    if not rows:
        print("no findings on stock below these folders", file=sys.stderr)
        return 2
    up = [v for v in engines.MATRIX if engines.is_up(v)]
    every = [s for s in scenario.load_all("tests/scenarios") if not s.engine.base and s.source[0] not in OWN]
    if args.again and args.answers:
        seen, judged = msgspec.json.decode(
            args.answers.read_bytes(), type=tuple[list[Answers], dict[str, Answers]]
        )
        up = [v for v in up if v in seen[0]]
    else:
        seen, judged = judge(rows, every, up)
    if args.answers and not args.again:
        args.answers.write_bytes(msgspec.json.format(msgspec.json.encode([seen, judged]), indent=1))
    found: dict[str, list[int]] = defaultdict(list)
    for k, (_, f, s) in enumerate(rows):
        for x in every:
            if x.source[0].startswith("gate-audit#S"):
                continue  # probes of one rule each: on stock they fail for causes that others stand for
            if fits(x, judged[x.id], f, s, seen[k]) and k not in found[x.source[0]]:
                found[x.source[0]].append(k)
    found = {c: ks for c, ks in found.items() if ks}
    text = page(rows, seen, found, up)
    if args.output:
        args.output.write_text(text, encoding="utf-8")
    print(text)
    return 0


def distinct(found: dict[str, list[int]]) -> dict[str, int]:
    """Root cause -> the finding that stands for it; no finding stands for two (largest assignment)."""
    chosen: dict[int, str] = {}

    def place(cause: str, tried: set[int]) -> bool:
        for k in found[cause]:
            if k not in tried:
                tried.add(k)
                if k not in chosen or place(chosen[k], tried):
                    chosen[k] = cause
                    return True
        return False

    for cause in sorted(found, key=lambda c: len(found[c])):
        place(cause, set())
    return {cause: k for k, cause in chosen.items()}


def spans(versions: list[str], up: list[str]) -> str:
    """Releases as ranges, by the order of ``up``."""
    out: list[str] = []
    for v in versions:
        if out and up.index(v) == up.index(out[-1].rpartition("..")[2]) + 1:
            out[-1] = out[-1].partition("..")[0] + ".." + v
        else:
            out.append(v)
    return ", ".join(out) or "none"


def page(rows: list[Row], seen: list[dict[str, Answer]], found: dict[str, list[int]], up: list[str]) -> str:
    """The Markdown page."""
    stand = distinct(found)
    hunted = sorted({f.version for _, f, _ in rows})
    fails = [
        spans([v for v in up if f.property in a[v].causes], up)
        for (_, f, _), a in zip(rows, seen, strict=True)
    ]
    lines = [
        "# What hunts on stock vLLM found",
        "",
        "<!-- generated by `make hunt-rediscovery`; do not edit -->",
        "",
        f"{len(rows)} findings on vLLM {', '.join(hunted)}; **{len(stand)} distinct root causes of the "
        "catalogue** among them. How a finding is judged stands at the head of "
        "`benchmarks/hunt_rediscovery.py`. Each finding was run again on "
        f"{', '.join(up)}. Times count from the first case, in brackets the CPU time of the one process; "
        "size is requests / blocks / steps of the shrunk scenario.",
        "",
        "| root cause | found on | property | after | size | its scenario fails on |",
        "|---|---|---|---|---|---|",
    ]
    for cause, k in sorted(stand.items(), key=lambda x: (rows[x[1]][1].version, rows[x[1]][1].seconds)):
        f = rows[k][1]
        lines.append(
            f"| {cause} | {f.version} | {f.property} | {f.seconds:.0f} s ({f.cpu:.0f} s) | "
            f"{f.size.requests} / {f.size.blocks} / {f.size.steps} | {fails[k]} |"
        )
    lines += [
        "", "## All findings", "",
        "| found on | property | cause | after | size | fails on | root cause |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for k, (_, f, _) in enumerate(rows):
        cause = ", ".join(c for c, ks in found.items() if k in ks)
        when = f"{f.seconds:.0f} s ({f.cpu:.0f} s)"
        lines.append(
            f"| {f.version} | {f.property} | {f.cause.replace('|', ';')} | {when} | "
            f"{f.size.requests} / {f.size.blocks} / {f.size.steps} | {fails[k]} | {cause} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
