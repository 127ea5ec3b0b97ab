"""``stallproof explain GAP``: a counterexample as a story, from TLC's own trace."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from stallproof.check import config, story
from stallproof.cli.options import Finite
from stallproof.errors import BadInput, Exit


@click.command(name="explain")
@click.argument("gap", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the story as one JSON object.")
@click.option(
    "--timeout",
    type=Finite(min=0, min_open=True, max=10**6),
    default=300.0,
    show_default=True,
    help="Seconds for TLC.",
)
def command(gap: str | None, as_json: bool, timeout: float) -> int:
    """Tell the counterexample of GAP; without GAP, list the gaps.

    Letters are requests, in the pool picture one per block: `.` is free, `~` fenced, `?` quarantined.
    """
    gaps = [c for c in config.load() if c.kind == "gap"]
    if gap is None:
        for c in gaps:
            click.echo(f"{c.name:32} {c.refutes:14} {c.cause}")
        return Exit.OK
    chosen = [c for c in gaps if c.name == gap]
    if not chosen:
        raise BadInput(f"no gap {gap!r}", remedy="stallproof explain (without a name) lists them")
    told = story.tell(chosen[0], timeout)
    click.echo(json.dumps(asdict(told), indent=1) if as_json else story.text(told))
    return Exit.OK
