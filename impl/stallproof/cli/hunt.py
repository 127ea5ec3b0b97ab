"""``stallproof hunt``: look for scenarios in which a scheduler class breaks the promise."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from click.core import ParameterSource

from stallproof import engines
from stallproof.cli.options import Finite
from stallproof.cli.run import named
from stallproof.errors import Exit

if TYPE_CHECKING:
    from stallproof.hunt.run import Hunt


@click.command(name="hunt")
@click.option("--scheduler-cls", "scheduler", default="stock", show_default=True, metavar="CLASS",
              help="'stock', 'stallproof', or a dotted class name.")  # fmt: skip
@click.option("--vllm", "version", default=engines.BASE, show_default=True, metavar="V",
              help="Release; with --bisect several, with commas between (default then: all).")  # fmt: skip
@click.option("--minutes", type=Finite(min=0, min_open=True), default=10.0, show_default=True,
              help="How long to hunt; shrinking is part of it.")  # fmt: skip
@click.option("--cpu-minutes", type=Finite(min=0), default=0.0,
              help="Count the CPU time of each process instead (0: count the clock).")  # fmt: skip
@click.option("--cases", type=click.IntRange(min=0), default=0,
              help="Stop each process after so many cases, too (0: no limit).")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option("--corpus", "folder", type=click.Path(path_type=Path, file_okay=False),
              help="Folder of the hunt; one that is there is gone on with. "
              "[default: hunt-<release>-<class>-<seed>]")  # fmt: skip
@click.option("--bisect", "bisect", type=click.Path(path_type=Path, exists=True), metavar="FINDING",
              help="Hunt nothing: say since which release FINDING fails, and where it stopped.")  # fmt: skip
@click.option("--ray", metavar="ADDRESS", help="Spread the processes over this Ray cluster.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(
    scheduler: str, version: str, minutes: float, cpu_minutes: float, cases: int, seed: int, jobs: int,
    folder: Path | None, bisect: Path | None, ray: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Run random scenarios on CLASS of an engine release, on CPU, and report those that break the promise.

    It knows no bug: the monitors decide. What is found is confirmed, made small and written to the folder as
    a scenario, a reproducer that needs vLLM only, an upstream test, a trace and an explanation.

    Exit code 0: nothing found but listed limits of our class; 1: a finding is in the folder; 2: bad input;
    3: unsupported release.
    """
    if bisect is not None:
        given = click.get_current_context().get_parameter_source("version") is not ParameterSource.DEFAULT
        versions = [v.strip() for v in version.split(",") if v.strip()] if given else []
        from stallproof.hunt import bisect as bisecting

        return bisecting.command(bisect, as_json, versions, jobs, ray)
    engines.check(version)
    named(scheduler)
    engines.get(version)
    from stallproof.hunt.run import Hunt

    where = folder or Path(f"hunt-{version}-{scheduler.rpartition('.')[2]}-{seed}")
    seconds = 0.0 if cpu_minutes else 60 * minutes
    hunt = Hunt(
        where, scheduler, version, seed=seed, jobs=jobs, ray=ray, seconds=seconds,
        cpu_seconds=60 * cpu_minutes, cases=cases,
    )  # fmt: skip
    with _progress(hunt, 60 * (cpu_minutes or minutes), quiet=as_json):
        hunt.go()
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(_plain(hunt)), indent=2).decode())
    else:
        _table(hunt)
    return int(Exit.FINDING if any(not f.limit for f in hunt.found) else Exit.OK)


def _plain(hunt: Hunt) -> dict:
    state = hunt.corpus.state
    return {
        "schema": "stallproof-hunt-report/1", "version": hunt.version, "scheduler": hunt.scheduler,
        "seed": hunt.seed, "folder": str(hunt.folder), "seconds": round(state.seconds, 1),
        "cpu": round(sum(state.cpu.values()), 1),
        "cases": state.cases, "coverage": state.coverage, "invalid": state.invalid,
        "dropped": state.dropped, "lost": state.lost, "findings": hunt.found,
    }  # fmt: skip


def _line(hunt: Hunt) -> str:
    state = hunt.corpus.state
    return (
        f"{state.cases:,} cases, {sum(state.cpu.values()):.0f} s of CPU, {state.coverage:,} behaviours, "
        f"{len(hunt.found)} findings"
    )


@contextmanager
def _progress(hunt: Hunt, seconds: float, quiet: bool) -> Iterator[None]:
    if quiet:
        yield
        return
    if not sys.stderr.isatty():
        said = time.monotonic()

        def state(h: Hunt) -> None:
            nonlocal said
            if time.monotonic() - said >= 30:
                said = time.monotonic()
                click.echo(f"{h.corpus.state.seconds:.0f} s: {_line(h)}", err=True)

        hunt.on_state = state
        hunt.on_finding = lambda f: click.echo(f"{f.seconds:.0f} s: {f.id}: {f.cause}", err=True)
        yield
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting the engine", total=seconds)

        def moved(h: Hunt) -> None:
            cpu = max(h.corpus.state.cpu.values(), default=0.0)
            done = cpu - h.cpu_before if h.cpu_seconds else h.corpus.state.seconds - h.before
            bar.update(task, completed=min(done, seconds), description=_line(h))

        hunt.on_state = moved
        hunt.on_finding = lambda f: console.print(f"[bold red]{escape(f.id)}[/] {escape(f.cause)}")
        yield


def _table(hunt: Hunt) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    click.echo(f"vLLM {hunt.version}, {hunt.scheduler}, seed {hunt.seed}: {_line(hunt)}")
    state = hunt.corpus.state
    if state.lost:
        click.echo(f"{state.lost} cases ended the engine's process itself; see the notes above")
    if not hunt.found:
        return
    table = Table(box=None, pad_edge=False)
    for name in ("finding", "after", "seen", "requests", "blocks", "steps", "cause", "needs"):
        number = name in ("after", "seen", "requests", "blocks", "steps")
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for f in hunt.found:
        cause = f.cause + (f" (listed limit: {f.limit})" if f.limit else "")
        table.add_row(
            f.id, f"{f.seconds:.0f} s", str(f.seen), str(f.size.requests), str(f.size.blocks),
            str(f.size.steps), escape(cause), escape(", ".join(f.needs)),
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(table)
    click.echo(f"each with scenario, reproducer, test, trace and explanation below {hunt.folder}/findings")
