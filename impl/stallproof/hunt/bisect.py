"""Since which release does a finding fail, and where did it stop: runs it on every supported release.

No bisection in the strict sense: a fault can come, go and come back, and a run takes a second, so all
releases are run and the answer says whether it is one range.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from msgspec import Struct

from stallproof import engines, scenario, spread
from stallproof.errors import BadInput, Exit
from stallproof.hunt import finding as findings
from stallproof.scenario import Scenario

SCHEMA = "stallproof-bisect/1"
#: what a release can answer besides ``ok``: the property, other properties only, or that it cannot run this
OTHER, CANNOT = "other", "cannot run"
_HERE = spread.Where()


class Answer(Struct, kw_only=True):
    """One release. ``outcome``: ``ok``, the property, :data:`OTHER` or :data:`CANNOT`."""

    version: str
    outcome: str
    text: str = ""  #: what the judge said, or why it cannot run
    violated: list[str] = []


class Verdict(Struct, kw_only=True):
    """All releases. ``since``/``until``: first and last release of the only range that fails, if it is one;
    ``fixed``: the first release behind it that does not fail."""

    schema: str = SCHEMA
    scenario: str
    property: str
    scheduler: str
    answers: list[Answer]
    ranges: list[tuple[str, str]]  #: first and last failing release of each range, oldest first
    sentence: str


def run_one(case: dict[str, Any], tick: spread.Tick) -> dict[str, Any]:
    """One release in a process of its own; ``case``: version, scheduler, path of the scenario."""
    from stallproof.harness.spawn import Job, run_jobs

    [got] = run_jobs(case["version"], [Job(Path(case["path"]), case["scheduler"])])
    return got


def answer(version: str, prop: str, got: dict[str, Any]) -> Answer:
    """What the result of one run says about ``prop``."""
    if "error" in got:
        return Answer(version=version, outcome=CANNOT, text=str(got["error"]).splitlines()[0])
    violated = sorted(got["violated"])
    if prop in got["violated"]:
        return Answer(version=version, outcome=prop, text=got["violated"][prop], violated=violated)
    others = [p for p in violated if p != "NoInversion"]
    text = f"{others[0]}: {got['violated'][others[0]]}" if others else ""
    return Answer(version=version, outcome=OTHER if others else "ok", text=text, violated=violated)


def ranges(answers: Sequence[Answer], prop: str) -> list[tuple[str, str]]:
    """Runs of failing releases, in the order given; one that cannot run it ends none of them."""
    out: list[tuple[str, str]] = []
    inside = False
    for a in answers:
        if a.outcome == CANNOT:
            continue
        if a.outcome == prop:
            out[len(out) - inside :] = [(out[-1][0] if inside else a.version, a.version)]
            inside = True
        else:
            inside = False
    return out


def sentence(answers: Sequence[Answer], prop: str) -> str:
    """The answer in words, about the releases that were run."""
    able = [a.version for a in answers if a.outcome != CANNOT]
    found = ranges(answers, prop)
    if not able:
        return "no release can run it"
    if not found:
        return f"{prop} holds on every release from {able[0]} to {able[-1]}"
    parts = []
    for first, last in found:
        before, after = able.index(first), able.index(last)
        since = (
            f"since {first} (not in {able[before - 1]})" if before
            else f"since {first} or earlier (the oldest run)"
        )  # fmt: skip
        until = (
            f"fixed in {able[after + 1]}" if after + 1 < len(able) else f"still in {last} (the newest run)"
        )
        parts.append(f"{since}, {until}")
    more = "" if len(found) == 1 else f"; not one range: it came back {len(found) - 1} time(s)"
    return f"{prop} fails " + "; and again ".join(parts) + more


def bisect(
    s: Scenario, prop: str, *, scheduler: str = "stock", versions: Sequence[str] = (),
    where: spread.Where = _HERE, say: Callable[[str], None] = lambda x: None,
    on_answer: Callable[[Answer], None] = lambda a: None,
) -> Verdict:  # fmt: skip
    """Run ``s`` (``s.path`` is its file) on ``versions`` (default: all supported), oldest first.

    Releases that are not installed are brought up first, announced by one line through ``say``. Raises
    :class:`~stallproof.errors.Unsupported` for an unknown release, :class:`BadInput` if one cannot be brought
    up or its process dies.
    """
    wanted = [engines.check(v) for v in (versions or engines.MATRIX)]
    wanted = sorted(dict.fromkeys(wanted), key=lambda v: [int(x) for x in v.split(".")])
    missing = [v for v in wanted if not engines.is_up(v)]
    if missing:
        say(
            f"bringing up {len(missing)} release{'s'[: len(missing) > 1]} that this machine lacks: "
            f"{', '.join(missing)} (downloads about 30 MB and takes about 20 s each; kept for later)"
        )
        engines.up(missing)
    able = [v for v in wanted if not s.versions or v in s.versions]
    cases = [{"version": v, "scheduler": scheduler, "path": str(Path(s.path).absolute())} for v in able]
    results: dict[str, Answer] = {
        v: Answer(version=v, outcome=CANNOT, text="the scenario names other releases")
        for v in wanted if v not in able
    }  # fmt: skip

    def done(i: int, got: dict[str, Any]) -> None:
        results[able[i]] = a = answer(able[i], prop, got)
        on_answer(a)

    spread.run(run_one, cases, where, label=lambda c: f"vLLM {c['version']}", on_done=done)
    answers = [results[v] for v in wanted]
    return Verdict(
        scenario=s.id, property=prop, scheduler=scheduler, answers=answers, ranges=ranges(answers, prop),
        sentence=sentence(answers, prop),
    )  # fmt: skip


# ---------------------------------------------------------------- the command


def subject(path: Path) -> tuple[Scenario, str, str, findings.Finding | None]:
    """Scenario, property, scheduler of a finding, or of a scenario file that expects stock to fail.

    Raises :class:`BadInput` if there is no property to look for.
    """
    if path.is_file() and path.suffix == ".toml" and not (path.parent / "finding.json").exists():
        s = scenario.load(path)
        props = list(dict.fromkeys(p for p in s.expect.stock.values() if p != "ok"))
        if len(props) != 1:
            what = f"expects {' and '.join(props)}" if props else "expects no property to fail"
            raise BadInput(f"{what}: which one is the finding?", path=path,
                           remedy="give the folder of a finding that hunt has written")  # fmt: skip
        return s, props[0], "stock", None
    found, s = findings.read(path)
    return s, found.property, found.scheduler, found


def command(
    path: Path, as_json: bool, versions: Sequence[str] = (), jobs: int = 1, ray: str | None = None
) -> int:
    """``stallproof hunt --bisect``: table, sentence, exit code 1 if it fails anywhere, 0 if nowhere.

    The answers are kept in the finding's ``finding.json``.
    """
    s, prop, scheduler, found = subject(path)
    click.echo(f"{s.id}: {prop} on {scheduler}", err=True)

    def one(a: Answer) -> None:
        if not as_json:
            click.echo(f"  {a.version:8} {a.outcome:14} {a.text}"[:160].rstrip())

    verdict = bisect(
        s, prop, scheduler=scheduler, versions=versions, where=spread.Where(jobs, ray),
        say=lambda x: click.echo(x, err=True), on_answer=one,
    )  # fmt: skip
    if found is not None:
        found.versions = {**found.versions, **{a.version: a.outcome for a in verdict.answers}}
        findings.save(path.parent if path.is_file() else path, found)
    if as_json:
        click.echo(json.dumps(_plain(verdict), indent=2))
    else:
        click.echo(verdict.sentence)
    if all(a.outcome == CANNOT for a in verdict.answers):
        raise BadInput(f"no release can run it: {verdict.answers[0].text}", path=path)
    return int(Exit.FINDING if verdict.ranges else Exit.OK)


def _plain(v: Verdict) -> dict[str, Any]:
    import msgspec

    return msgspec.to_builtins(v)


__all__ = ["Answer", "Verdict", "answer", "bisect", "command", "ranges", "sentence", "subject"]
