"""``stallproof report``: one offline HTML page for a trace."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stallproof.cli.output import apart, result
from stallproof.errors import BadInput

if TYPE_CHECKING:
    from stallproof.report.tracepage import Drawn, Mark


@contextmanager
def spooled(traces: Sequence[str]) -> Iterator[list[str]]:
    """The traces as files that can be read twice: standard input is kept in a temporary one."""
    if "-" not in traces:
        yield list(traces)
        return
    if len(traces) > 1:
        raise BadInput("standard input cannot be one of several parts", remedy="give every part as a file")
    with tempfile.TemporaryDirectory(prefix="stallproof-") as folder:
        path = Path(folder) / "standard-input"
        with path.open("wb") as out:
            shutil.copyfileobj(sys.stdin.buffer, out)
        yield [str(path)]


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[int], None]]:
    """A spinner on a terminal, one plain line each 200,000 records elsewhere, nothing when quiet."""
    if quiet:
        yield lambda n: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("reading")
            yield lambda n: bar.update(task, description=f"reading: {n:,} records")
    else:
        said = 0

        def plain(n: int) -> None:
            nonlocal said
            if n - said >= 200_000:
                said = n
                click.echo(f"stallproof: {n:,} records read", err=True)

        yield plain


def counterexample(gap: str | None, traces: Sequence[str]) -> tuple[Drawn, list[Mark]]:
    """TLC's counterexample of ``gap``, drawn; every wrong use is one error."""
    from stallproof.check import config
    from stallproof.report import counterexample as made
    from stallproof.report import tracepage

    if gap is None:
        raise BadInput("no trace named", remedy="name a trace, or a gap with --gap")
    if traces:
        raise BadInput("a trace and a gap at once", remedy="name one of them")
    chosen = [c for c in config.load() if c.kind == "gap" and c.name == gap]
    if not chosen:
        raise BadInput(f"no gap {gap!r}", remedy="stallproof explain lists them")
    recs, marks = made.of_gap(chosen[0])
    return tracepage.draw((gap, i, rec) for i, rec in enumerate(recs, 1)), marks


@click.command(
    "report",
    short_help="Draw a trace as one offline HTML page.",
)
@click.argument("traces", nargs=-1, metavar="TRACE...")
@click.option("--gap", metavar="NAME", help="Draw TLC's counterexample of this gap instead of a trace.")
@click.option("-o", "--output", help="File to write, - for standard output (default: TRACE.html).")
@click.option("--check/--no-check", default=True, help="Run the checker and mark what it finds.")
@click.option("--title", default="", help="Title of the page (default: the name of the trace).")
@click.option("--json", "as_json", is_flag=True, help="Say what was written as one JSON object.")
def command(
    traces: tuple[str, ...], gap: str | None, output: str | None, check: bool, title: str, as_json: bool
) -> int:  # fmt: skip
    """Draw TRACE (plain, gzip or zstd; - reads standard input) as one HTML page that needs no network.

    The page shows blocks by state, requests as swim-lanes, fences and transfers, every record step by step,
    and what the checker finds. Several files are the parts of one recording.

    Exit code 0: the page was written, whatever it shows (stallproof replay is the judge); 2: bad input; 3:
    another schema version.
    """
    from stallproof.report import findings, tracepage

    if gap is not None or not traces:
        drawn, marks = counterexample(gap, traces)
        output = output or f"{gap}.html"
        with result(output) as out:
            tracepage.page(drawn, marks, title=title or f"{gap}: TLC's counterexample").write(out)
        if output != "-":
            said = {"page": output, "records": drawn.timeline.n, "violations": {marks[0].rule: 1}}
            click.echo(json.dumps(said) if as_json else f"{output}: refutes {marks[0].rule}")
        return 0
    if output is None:
        if traces == ("-",):
            raise BadInput(
                "standard input has no name to derive the page's from", remedy="give -o FILE, or -o -"
            )
        output = f"{traces[0]}.html"
    apart(output, traces)
    with spooled(traces) as paths, progress(as_json or output == "-") as tick:
        verdict, marks = findings.judge(paths) if check else (None, [])
        name = title or ("standard input" if traces == ("-",) else "")
        with result(output) as out:
            drawn = tracepage.write(paths, out, marks, checked=check, title=name, tick=tick, verdict=verdict)
    if as_json and output != "-":
        counts = verdict.counts if verdict else None
        click.echo(json.dumps({"page": output, "records": drawn.timeline.n, "violations": counts}))
    elif output != "-":
        found: str = "not checked" if verdict is None else verdict.status
        if verdict is not None and verdict.counts:
            found = ", ".join(f"{rule} {n}" for rule, n in verdict.counts.items())
        click.echo(f"{output}: {drawn.timeline.n:,} records, {found}")
    return 0
