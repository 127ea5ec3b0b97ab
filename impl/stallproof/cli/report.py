"""``stallproof report``: one offline HTML page for a trace."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import click

from stallproof.errors import BadInput


@contextmanager
def spooled(traces: Sequence[str]) -> Iterator[list[str]]:
    """The traces as files that can be read twice: standard input is kept in a temporary one."""
    if "-" not in traces:
        yield list(traces)
        return
    if len(traces) > 1:
        raise BadInput("standard input cannot be one of several parts")
    with tempfile.TemporaryDirectory(prefix="stallproof-") as folder:
        path = Path(folder) / "standard-input"
        with path.open("wb") as out:
            shutil.copyfileobj(sys.stdin.buffer, out)
        yield [str(path)]


@contextmanager
def result(output: str) -> Iterator[IO[str]]:
    """The file to write; it appears under its name only when it is complete. ``-`` is standard output."""
    if output == "-":
        yield sys.stdout
        return
    final = Path(output)
    part = final.with_name(final.name + ".part")
    try:
        with part.open("w", encoding="utf-8") as out:
            yield out
        part.replace(final)
    except OSError as exc:
        raise BadInput(
            f"cannot be written: {exc.strerror or exc}",
            path=output,
            remedy="name a folder that exists with -o",
        ) from exc
    finally:
        part.unlink(missing_ok=True)


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


@click.command(
    "report",
    short_help="Draw a trace as one offline HTML page.",
)
@click.argument("traces", nargs=-1, required=True, metavar="TRACE...")
@click.option("-o", "--output", help="File to write, - for standard output (default: TRACE.html).")
@click.option("--check/--no-check", default=True, help="Run the checker and mark what it finds.")
@click.option("--title", default="", help="Title of the page (default: the name of the trace).")
@click.option("--json", "as_json", is_flag=True, help="Say what was written as one JSON object.")
def command(traces: tuple[str, ...], output: str | None, check: bool, title: str, as_json: bool) -> int:
    """Draw TRACE (plain, gzip or zstd; - reads standard input) as one HTML page that needs no network.

    The page shows blocks by state, requests as swim-lanes, fences and transfers, every record step by step,
    and what the checker finds. Several files are the parts of one recording.

    Exit code 0: the page was written, whatever it shows (stallproof replay is the judge); 2: bad input; 3:
    another schema version.
    """
    from stallproof.report import findings, tracepage

    if output is None:
        if traces == ("-",):
            raise BadInput(
                "standard input has no name to derive the page's from", remedy="give -o FILE, or -o -"
            )
        output = f"{traces[0]}.html"
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
