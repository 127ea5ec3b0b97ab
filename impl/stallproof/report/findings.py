"""The checker's verdict as marks of a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from stallproof.report.tracepage import Mark
from stallproof.trace.checker import Options, Verdict, check
from stallproof.trace.ledger import Violation

#: Findings put into a page; the verdict's counts tell how many there are in all.
MOST = 1000
#: Further findings of the same rule and record that a mark lists.
MOST_LINES = 30


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


def grouped(violations: Iterable[Violation]) -> list[Mark]:
    """One mark for the findings of one rule in one record; the others become lines of its detail."""
    out: list[Mark] = []
    for v in violations:
        new = mark(v)
        last = out[-1] if out else None
        if last is None or (last.rule, last.file, last.line) != (new.rule, new.file, new.line):
            out.append(new)
            continue
        if len(last.detail) < MOST_LINES:
            out[-1] = replace(
                last,
                detail=[*last.detail, new.text],
                requests=list(dict.fromkeys([*last.requests, *new.requests])),
                blocks=list(dict.fromkeys([*last.blocks, *new.blocks])),
            )
    return out


def judge(paths: Sequence[str], tick: Callable[[int], None] | None = None) -> tuple[Verdict, list[Mark]]:
    """Check a recording; its findings in order of line, the first with who waits for what just then."""
    verdict = check(paths, Options(all=True, limit=MOST), history=False, progress=tick)
    marks = grouped(verdict.violations)
    if marks:
        marks[0] = replace(marks[0], detail=[*marks[0].detail, *verdict.waits])
    return verdict, marks
