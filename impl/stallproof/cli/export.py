"""``stallproof export``: a trace in the format of another tool."""

from __future__ import annotations

import json

import click

from stallproof.cli.output import apart, result
from stallproof.cli.report import counterexample, progress, spooled
from stallproof.errors import BadInput


@click.command(
    "export",
    short_help="Write a trace for Perfetto and Chrome's trace viewer.",
)
@click.argument("traces", nargs=-1, metavar="TRACE...")
@click.option("--gap", metavar="NAME", help="Export TLC's counterexample of this gap instead of a trace.")
@click.option(
    "--perfetto", "output", metavar="FILE", help="Trace-event JSON to write, - for standard output."
)
@click.option("--check/--no-check", default=True, help="Run the checker and put what it finds on a track.")
@click.option("--json", "as_json", is_flag=True, help="Say what was written as one JSON object.")
def command(
    traces: tuple[str, ...], gap: str | None, output: str | None, check: bool, as_json: bool
) -> int:  # fmt: skip
    """Write TRACE (plain, gzip or zstd; - reads standard input) for another tool's viewer.

    Exit code 0: written; 2: bad input; 3: another schema version.
    """
    from stallproof.report import findings, perfetto, tracepage
    from stallproof.trace.reader import records

    if output is None:
        raise BadInput("no format named", remedy="give --perfetto FILE")
    if gap is not None or not traces:
        drawn, marks = counterexample(gap, traces)
    else:
        apart(output, traces)
        with spooled(traces) as paths, progress(as_json or output == "-") as tick:
            marks = findings.judge(paths)[1] if check else []
            drawn = tracepage.draw(records(*paths), keep_records=False, tick=tick)
    with result(output) as out:
        count = perfetto.write(drawn, out, marks)
    if as_json and output != "-":
        click.echo(json.dumps({"export": output, "events": count, "records": drawn.timeline.n}))
    elif output != "-":
        click.echo(f"{output}: {count:,} events")
    return 0
