"""``stallproof diagnose``: why did it stall, from what production left behind."""

from __future__ import annotations

import sys

import click
import msgspec

from stallproof.cli.output import printable
from stallproof.diagnose import report as reports
from stallproof.diagnose import run


@click.command(name="diagnose")
@click.argument("files", nargs=-1, required=True, type=click.Path(allow_dash=True))
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One JSON object on standard output (schema stallproof-diagnose/1).",
)
@click.option(
    "-v", "--verbose", is_flag=True, help="All intervals, quotations, rival explanations, versions."
)
def command(files: tuple[str, ...], as_json: bool, verbose: bool) -> int:
    """Say why an engine stalled: logs, scrapes, dumps, stacks, KV events, traces; plain, gzip or zstd.

    FILES are read together; "-" is standard input. Exit codes: 0 progressing or idle, 1 a finding, 2 cannot
    tell or bad input.
    """

    def progress(name: str, size: int) -> None:
        click.echo(f"{name}: {size >> 20} MiB read", err=True)

    report = run.diagnose(files, progress if sys.stderr.isatty() else None)
    code = run.exit_code(report)
    if as_json:
        click.echo(msgspec.json.encode(reports.as_json(report, int(code))).decode())
    else:
        for line in reports.as_text(report, verbose):
            click.echo(printable(line))
    return int(code)
