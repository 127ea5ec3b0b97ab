"""``stallproof run``: a scenario file on the real scheduler of an engine release."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from stallproof import engines, scenario
from stallproof.cli.output import apart, printable
from stallproof.errors import BadInput, Exit, StallproofError, Unsupported
from stallproof.harness.spawn import Job, run_jobs


@click.command(name="run")
@click.argument("scenarios", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--vllm", "versions", multiple=True, default=(engines.BASE,), show_default=True, metavar="V",
              help="Release; may be given several times.")  # fmt: skip
@click.option("--scheduler", default="stock", show_default=True,
              help="'stock', 'stallproof', or a dotted class name.")  # fmt: skip
@click.option("-o", "--output", type=click.Path(path_type=Path),
              help="Trace file; a folder if more than one run is asked for.")  # fmt: skip
@click.option(
    "--steps", type=click.IntRange(min=0), default=0, help="Stop after so many steps (0: as the file says)."
)
@click.option("--check/--no-check", default=True, help="Compare with what the scenario expects.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per run.")
def command(
    scenarios: tuple[Path, ...], versions: tuple[str, ...], scheduler: str, output: Path | None,
    steps: int, check: bool, as_json: bool,
) -> int:  # fmt: skip
    """Run SCENARIOS (files or folders) and say what happened.

    Exit code 0: every run did what its file expects; 1: one did not; 2: bad input; 3: unsupported release.
    With --no-check the code is 1 as soon as a property is violated.
    """
    files = [f for s in scenarios for f in (sorted(s.rglob("*.toml")) if s.is_dir() else [s])]
    if not files:
        raise BadInput(
            f"no scenario below {', '.join(map(str, scenarios))}",
            remedy="a scenario is a file *.toml, see docs/scenarios.md",
        )
    versions = tuple(dict.fromkeys(versions))
    loaded = [scenario.load(f) for f in files]
    for v in versions:
        engines.check(v)
    named(scheduler)
    if not any(not s.versions or v in s.versions for s in loaded for v in versions):
        raise BadInput(
            f"nothing to run: made for {', '.join(sorted({v for s in loaded for v in s.versions}))} only",
            path=loaded[0].path, remedy="name one of these with --vllm",
        )  # fmt: skip
    many = len(files) * len(versions) > 1
    if output:
        if many:
            distinct(loaded)
        apart(output, files)
        writable(output, folder=many)
    if os.environ.get("STALLPROOF_TRACE"):
        click.echo("stallproof: STALLPROOF_TRACE is for engines, not for this; name a file with -o", err=True)
    worst = Exit.OK
    for v in versions:
        runnable = [s for s in loaded if not s.versions or v in s.versions]
        jobs = [
            Job(Path(s.path), scheduler, _trace(output, s.id, v, scheduler, many), steps) for s in runnable
        ]
        for s, job, got in zip(runnable, jobs, run_jobs(v, jobs), strict=False):
            if "error" in got:
                raise failure(s, v, got)
            table = s.expect.stock if scheduler == "stock" else s.expect.ours
            want = scenario.expected(table, v)
            ok = matches(want, got["violated"]) if check else not got["violated"]
            worst = worst if ok else Exit.FINDING
            if as_json:
                click.echo(json.dumps({**got, "expected": want, "as_expected": ok}))
            else:
                _say(s, v, got, want, ok, check, job.trace)
    return int(worst)


def failure(s: scenario.Scenario, version: str, got: dict) -> StallproofError:
    """What the engine's process said instead of a result, with the code that it gave."""
    text = f"{s.id} on {version}: {got['error']}"
    return Unsupported(text) if got.get("code") == Exit.UNSUPPORTED else BadInput(text, path=s.path)


def named(scheduler: str) -> None:
    """Refuse what can be no scheduler before an engine is started; raises :class:`BadInput`."""
    if scheduler not in ("stock", "stallproof") and "." not in scheduler.strip("."):
        raise BadInput(
            f"no scheduler is called {scheduler!r}",
            remedy="give 'stock', 'stallproof' or a dotted class name such as package.module.Class",
        )


def distinct(loaded: list[scenario.Scenario]) -> None:
    """Refuse two scenarios whose traces would have one name; raises :class:`BadInput`."""
    seen: dict[str, str] = {}
    for s in loaded:
        if s.id in seen:
            raise BadInput(
                f"id {s.id!r} is also that of {seen[s.id]}: one trace would overwrite the other", path=s.path,
                remedy="change one id, or run them one at a time",
            )  # fmt: skip
        seen[s.id] = s.path


def writable(output: Path, folder: bool) -> None:
    """Find out before an engine is started; raises :class:`BadInput`. No parent is made: it may be a typo.

    ``folder``: ``output`` is to be a folder, and is made if its parent is there.
    """
    try:
        if folder:
            output.mkdir(exist_ok=True)
            probe = output / f".stallproof-{os.getpid()}"
            probe.touch()
            probe.unlink()
        else:
            there = os.path.lexists(output)
            with output.open("ab"):
                pass
            if not there:
                output.unlink()
    except OSError as exc:
        raise BadInput(
            f"cannot write there: {exc.strerror}",
            path=output,
            remedy="name a file in a folder that exists and may be written",
        ) from exc


def matches(want: str, violated: dict[str, str]) -> bool:
    """Nothing is violated where ``ok`` is expected; the named property is where it is expected to be.

    ``NoInversion`` alone does not spoil an ``ok``: every stock release breaks it by design somewhere, and
    the scenarios that are about it name it.
    """
    if want == "ok":
        return not set(violated) - {"NoInversion"}
    return want in violated


def _trace(output: Path | None, sid: str, version: str, scheduler: str, many: bool) -> Path | None:
    if output is None:
        return None
    return output / f"{sid}.{version}.{scheduler.rpartition('.')[2]}.jsonl" if many else output


def _say(
    s: scenario.Scenario, version: str, got: dict, want: str, ok: bool, check: bool, trace: Path | None
) -> None:
    verdict = ", ".join(sorted(got["violated"])) or "ok"
    mark = "" if not check else "  (as expected)" if ok else f"  (EXPECTED {want})"
    click.echo(f"{printable(s.id)}  vLLM {version}  {got['scheduler']}: {verdict}{mark}")
    for prop, text in sorted(got["violated"].items()):
        click.echo(f"    {prop}: {printable(text)}")
    e = got["events"]
    click.echo(
        f"    {got['steps']} steps, {got['tokens']} tokens, {len(got['finished'])} of "
        f"{len(got['finished']) + len(got['unfinished'])} finished, {e.get('preempt', 0)} preemptions, "
        f"{e.get('evict', 0)} evictions, {e.get('load', 0)} loads, {got['free']} of {got['pool']} blocks free"
    )
    if got.get("fired"):
        click.echo("    fired: " + ", ".join(f"{k} {v}" for k, v in sorted(got["fired"].items())))
    if trace:
        click.echo(f"    trace: {trace}")
