"""The checker's verdict as marks of a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from stallproof.report.tracepage import Mark
from stallproof.trace.checker import Options, Verdict, check
from stallproof.trace.ledger import Violation

#: Findings put into a page; the verdict's counts tell how many there are in all.
MOST = 1000


def mark(v: Violation) -> Mark:
    detail = []
    if v.field:
        detail.append(f"{v.field}: expected {v.expected}, observed {v.observed}")
    detail += v.evidence
    return Mark(
        rule=v.rule,
        line=v.line,
        text=v.text,
        file=v.path,
        detail=detail,
        requests=v.requests,
        blocks=v.blocks,
    )


def judge(paths: Sequence[str], tick: Callable[[int], None] | None = None) -> tuple[Verdict, list[Mark]]:
    """Check a recording; all its findings, in order of line, at most ``MOST``."""
    verdict = check(paths, Options(all=True), history=False, progress=tick)
    marks = [mark(v) for v in verdict.violations[:MOST]]
    if marks:
        marks[0] = replace(marks[0], detail=[*marks[0].detail, *verdict.waits])
    return verdict, marks
