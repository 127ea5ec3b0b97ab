"""What stands beside a finding: reproducer, upstream test, explanation. The trace is there already."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from stallproof.errors import StallproofError
from stallproof.hunt import finding as findings
from stallproof.hunt.finding import Finding
from stallproof.trace.checker import Options, check

#: lines of history shown
_HISTORY = 40


def write_all(here: Path, f: Finding, got: dict[str, Any]) -> None:
    """Write the files of the finding in ``here``; ``got``: result of its run in a process of its own.

    What cannot be written for this finding is named in the explanation, with the reason.
    """
    s = findings.read(here)[1]
    missing = []
    for name, module in (("reproducer.py", "reproducer"), ("test_upstream.py", "upstream_test")):
        try:
            import_module(f"stallproof.hunt.{module}").write(
                here / name, s, f.property, version=f.version, scheduler=f.scheduler
            )
        except (StallproofError, ImportError) as exc:
            missing.append(f"no {name}: {exc}")
    lines = [
        f"{f.property} on vLLM {f.version}, scheduler {f.scheduler}",
        f"  {f.text}",
        f"  cause: {f.cause}",
        f"  {f.size.requests} requests, {f.size.blocks} blocks, {f.size.steps} steps"
        + (f" (before: {f.before.requests}, {f.before.blocks}, {f.before.steps})" if f.before else ""),
        "",
    ]
    if "error" in got:
        lines += ["In a process of its own the scenario could not be run:", f"  {got['error']}", ""]
    elif f.property in got["violated"]:
        lines += ["Run again in a process of its own: it shows.", ""]
    else:
        lines += ["Run again in a process of its own: IT DOES NOT SHOW. Do not rely on this finding.", ""]
    lines += _story(here / "trace.jsonl", f.property)
    lines += ["", *missing] if missing else []
    (here / "explanation.txt").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def _story(trace: Path, prop: str) -> list[str]:
    """From the trace: what the checker says, who waits for what, the last events of those concerned."""
    try:
        verdict = check([str(trace)], Options(all=True))
    except StallproofError as exc:
        return [f"the trace cannot be read: {exc}"]
    out = []
    for v in verdict.violations:
        if v.rule == prop or v is verdict.violations[0]:
            out.append(f"trace line {v.line}, step {v.step}: {v.rule}: {v.text}")
            out += [f"    {x}" for x in v.evidence]
            break
    if verdict.waits:
        out += ["when it happened:", *(f"    {x}" for x in verdict.waits)]
    if verdict.history:
        out += ["last events (line: step: event):", *(f"    {x}" for x in verdict.history[-_HISTORY:])]
    for x in verdict.undecided:
        out.append(f"the trace alone cannot tell yet: {x}")
    return out or ["The trace alone shows no violation; the monitors of the run do."]
