"""The report: one structure, as short text, detailed text, or JSON (schema ``stallproof-diagnose/1``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from .clock import show
from .engine import IDLE, PROGRESSING, STALLED, UNKNOWN, Engine, Finding, Interval, Missing, Verdict
from .knowledge import MECHANISMS, RANKS, consistent_with
from .observe import TIERS
from .rules import RULES
from .version import Version

if TYPE_CHECKING:
    from .reader import Source
    from .session import Instance

SCHEMA = "stallproof-diagnose/1"


class EngineReport(msgspec.Struct, kw_only=True):
    engine: str
    instance: str
    version: str
    version_why: list[str]
    verdict: Verdict
    at_end: Verdict
    intervals: list[Interval]
    intervals_dropped: int
    findings: list[Finding]
    notes: list[str]
    missing: Missing | None
    facts: list[str]
    ver: Version | None = None


class Report(msgspec.Struct, kw_only=True):
    verdict: Verdict
    engines: list[EngineReport]
    notes: list[str]
    inputs: list[dict[str, Any]]
    seconds: float


def build(instances: list[Instance], parts: list[tuple[Instance, float, Source]], seconds: float) -> Report:
    """Collect what the instances concluded."""
    engines: list[EngineReport] = []
    notes: list[str] = []
    for inst in instances:
        notes += inst.notes
        if inst.clock_jumps:
            notes.append(
                f"{inst.name}: the clock went back {inst.clock_jumps} times; spans across that are too short"
            )
        if inst.offset == inst.offset and abs(inst.offset) >= 1800:
            notes.append(
                f"{inst.name}: the wrapper's clock is {inst.offset / 3600:+.1f} h from the engine's; "
                "times are the engine's"
            )
        for i, e in enumerate(sorted(inst.engines.values(), key=lambda x: x.index)):
            engines.append(_engine(inst, e, inst.findings if i == 0 else []))
    order: tuple[Verdict, ...] = (STALLED, UNKNOWN, PROGRESSING, IDLE)
    verdict = next((v for v in order if any(e.verdict == v for e in engines)), UNKNOWN)
    inputs = [
        {"path": s.name, "coding": s.coding, "bytes": s.control.bytes, "lines": s.control.lines}
        for _, _, s in parts
    ]
    return Report(verdict=verdict, engines=engines, notes=notes, inputs=inputs, seconds=seconds)


def _engine(inst: Instance, e: Engine, extra: list[Finding]) -> EngineReport:
    notes = list(e.notes)
    if e.overload:
        a, b = e.overload[0], e.overload[-1]
        notes.append(
            f"overload, not a stall: KV {b.kv:.1f} % and Waiting {a.waiting} to {b.waiting} while "
            f"{b.tokens:.0f} tokens/s come out ({b.ref.file}:{b.ref.line})"
        )
    elif e.peak is not None and e.peak.kv >= 90:
        notes.append(
            f"KV usage reached {e.peak.kv:.1f} % ({e.peak.ref.file}:{e.peak.ref.line}): pre-emption is near"
        )
    findings = sorted(e.findings + extra, key=lambda f: MECHANISMS[f.mechanism].rank)
    return EngineReport(
        engine=e.name, instance=inst.name, version=str(inst.version), version_why=list(inst.version.why),
        verdict=e.verdict(), at_end=e.at_end(), intervals=list(e.intervals), intervals_dropped=e.dropped,
        findings=findings, notes=notes, missing=e.missing, facts=sorted(inst.facts), ver=inst.version,
    )  # fmt: skip


# ---------------------------------------------------------------- JSON


def _time(t: float) -> str | None:
    return show(t) if t == t else None


def _finding(f: Finding, e: EngineReport) -> dict[str, Any]:
    m = MECHANISMS[f.mechanism]
    return {
        "rank": RANKS[m.rank],
        "layer": m.layer,
        "mechanism": f.mechanism,
        "promise": m.promise or None,
        "title": m.title,
        "rule": f.rule,
        "source": RULES[f.rule].source,
        "tier": f.tier,
        "confidence": f.confidence,
        "onset": {"not_before": _time(f.onset[0]), "not_after": _time(f.onset[1])},
        "concerned": {"requests": f.concerned, "count": f.count},
        "evidence": [
            {"file": v.ref.file, "line": v.ref.line, "quote": v.ref.quote, "tier": v.tier, "says": v.says}
            for v in f.evidence
        ],
        "rivals": [{"explanation": a, "separated_by": b} for a, b in f.rivals],
        "consistent_with": consistent_with(f.mechanism, e.ver or Version(), set(e.facts)),
        "do_now": m.now,
        "prevented_by_stallproof": {"answer": m.prevented, "why": m.why},
        "note": f.note or None,
    }


def as_json(r: Report, code: int) -> dict[str, Any]:
    """The documented structure; times are on the clock of the emitter, without a year."""
    return {
        "schema": SCHEMA,
        "verdict": r.verdict,
        "exit_code": code,
        "engines": [
            {
                "engine": e.engine,
                "instance": e.instance,
                "version": e.version,
                "version_evidence": e.version_why,
                "verdict": e.verdict,
                "verdict_at_end": e.at_end,
                "intervals": [
                    {
                        "verdict": i.verdict, "from": _time(i.t0), "to": _time(i.t1), "file": i.first.file,
                        "first_line": i.first.line, "last_line": i.last.line, "why": i.why or None,
                    }
                    for i in e.intervals
                ],
                "intervals_dropped": e.intervals_dropped,
                "findings": [_finding(f, e) for f in e.findings],
                "cannot_tell": None
                if e.missing is None
                else {
                    "missing": e.missing.what, "command": e.missing.command,
                    "candidate": e.missing.candidate or None,
                    "rivals": [{"explanation": a, "separated_by": b} for a, b in e.missing.rivals],
                },
                "notes": e.notes,
            }
            for e in r.engines
        ],
        "notes": r.notes,
        "inputs": r.inputs,
        "seconds": round(r.seconds, 3),
    }  # fmt: skip


# ---------------------------------------------------------------- text


def as_text(r: Report, verbose: bool = False) -> list[str]:
    """Lines for people: the verdict first, then why, then what to do."""
    out: list[str] = [f"verdict: {r.verdict}"]
    shown = r.engines if verbose or len(r.engines) <= 8 else _worst(r.engines)
    for e in shown:
        head = f"{e.engine} of {e.instance} (vLLM {e.version}): {e.verdict}"
        if e.at_end != e.verdict:
            head += f", at the end {e.at_end}"
        out += ["", head]
        ivs = (
            e.intervals
            if verbose
            else [i for i in e.intervals if i.verdict != PROGRESSING][-6:] or e.intervals[-1:]
        )
        for i in ivs:
            span = f"{show(i.t0)} to {show(i.t1)}" if i.t0 == i.t0 else f"line {i.first.line}"
            out.append(f"  {span}: {i.verdict}" + (f" - {i.why}" if i.why else ""))
        for f in e.findings:
            out += _text_finding(f, e, verbose)
        if e.missing is not None and e.verdict != STALLED:
            out.append(f"  missing: {e.missing.what}")
            out.append(f"  decides: {e.missing.command}")
            for a, b in e.missing.rivals:
                out.append(f"    either {a}: {b}")
        out += [f"  note: {n}" for n in e.notes]
        if verbose:
            why = "; ".join(e.version_why) or "no line identifies the release: version rules are not applied"
            out.append(f"  version: {e.version} ({why})")
    if len(shown) < len(r.engines):
        out += ["", f"{len(r.engines) - len(shown)} more engines; -v shows all"]
    out += [f"note: {n}" for n in r.notes]
    if verbose:
        for src in r.inputs:
            out.append(f"input: {src['path']} ({src['coding']}, {src['lines']} lines, {src['bytes']} bytes)")
        out.append(f"time: {r.seconds:.2f} s")
    return out


def _worst(engines: list[EngineReport]) -> list[EngineReport]:
    rank = {STALLED: 0, UNKNOWN: 1, PROGRESSING: 2, IDLE: 3}
    return sorted(engines, key=lambda e: (not e.findings, rank[e.verdict]))[:8]


def _text_finding(f: Finding, e: EngineReport, verbose: bool) -> list[str]:
    m = MECHANISMS[f.mechanism]
    out = [f"  {RANKS[m.rank]} in the {m.layer}: {m.title}" + (f" [{m.promise}]" if m.promise else "")]
    if f.onset[0] == f.onset[0]:
        out.append(f"    began between {show(f.onset[0])} and {show(f.onset[1])}")
    evidence = f.evidence if verbose else f.evidence[-3:]
    for v in evidence:
        out.append(f"    {v.ref.file}:{v.ref.line} ({v.tier}) {v.says}")
        if verbose:
            out.append(f"      | {v.ref.quote}")
    if f.note:
        out.append(f"    {f.note}")
    if f.count:
        who = ", ".join(f.concerned[:5]) + (", ..." if len(f.concerned) > 5 else "")
        out.append(f"    concerns {f.count} requests" + (f": {who}" if who else ""))
    out.append(f"    now: {m.now}")
    out.append(f"    would Stallproof's scheduler have prevented it? {m.prevented}: {m.why}")
    for a, b in f.rivals if verbose else f.rivals[:2]:
        out.append(f"    or else: {a} (told apart by: {b})")
    same = consistent_with(f.mechanism, e.ver or Version(), set(e.facts))
    if same:
        out.append(
            "    consistent with "
            + ", ".join(t["id"] for t in same)
            + ("" if same[0]["version"] == "fits" else " (version unknown)")
        )
    if verbose:
        out.append(f"    rule {f.rule} ({RULES[f.rule].source})")
        out.append(f"    evidence tier {f.tier} ({TIERS[f.tier]}), confidence {f.confidence}")
    return out
