"""``stallproof check``: the specification, its gaps, graph equality and the proofs, in one table."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from stallproof.check import config, jobs, startup, tlc, tools
from stallproof.check.jobs import Job, Row
from stallproof.cli.options import Finite
from stallproof.errors import BadInput, Exit

_PROVE = """
import dataclasses, json, stallproof_proofs
print(json.dumps([dataclasses.asdict(r) for r in stallproof_proofs.run()]))
"""


def _proof_rows(timeout: float) -> list[Row]:
    """The Z3 proofs as rows; absence of the package is a failed row, not silence."""
    started = time.monotonic()
    if not find_spec("stallproof_proofs") or not find_spec("z3"):
        return [Row("proofs", "proof", "proved", "broken", note="stallproof_proofs or z3 is not installed")]
    # A process of its own: the solver can be stopped, and does not share an interpreter with the rest.
    try:
        p = subprocess.run(
            [sys.executable, "-c", _PROVE], capture_output=True, text=True, timeout=timeout, check=False
        )
        results = json.loads(p.stdout) if p.returncode == 0 else []
        why = p.stderr.strip().splitlines()[-1:] or ["no output"]
    except subprocess.TimeoutExpired:
        results, why = [], [f"no verdict after {timeout:.0f} s"]
    except ValueError as exc:
        results, why = [], [str(exc)]
    if not results:
        return [Row("proofs", "proof", "proved", "broken", note=why[0])]
    from stallproof_proofs.result import Result

    rows = []
    for doc in results:
        r = Result(**doc)
        rows.append(Row(r.name, r.kind, r.expected, r.status, seconds=r.seconds, good=r.ok, note=r.detail))
    bad = [r for r in rows if not r.good]
    # Frames are to be proved, too, but nothing could break them: they are no evidence and counted apart.
    frames = sum(r.kind == "frame" for r in rows)
    proved = sum(r.expected == "proved" for r in rows) - frames
    refuted = sum(r.expected == "refuted" for r in rows)
    total = Row(
        "proofs (Z3, unbounded)",
        "proof",
        f"{proved} proved (and {frames} frames), {refuted} refuted",
        "as expected" if not bad else f"{len(bad)} wrong",
        seconds=time.monotonic() - started,
        good=not bad,
        extra={"obligations": [r.json() for r in rows]},
    )
    return [total, *bad]


def _mutation_rows(timeout: float) -> list[Row]:
    """Mutants of the model against the graph-equality configurations, as one row."""
    row = Row("mutants of the model", "mutants", "all killed", "broken")
    started = time.monotonic()
    cmd = [sys.executable, "-m", "stallproof.check.mutation"]
    try:
        p = subprocess.run(cmd, capture_output=True, text=True, timeout=timeout, check=False)
        doc = json.loads(p.stdout)
    except subprocess.TimeoutExpired:
        row.note = f"no verdict after {timeout:.0f} s"
        return [row]
    except ValueError:
        row.note = (p.stderr.strip().splitlines() or ["no output"])[-1]
        return [row]
    row.seconds, row.extra = time.monotonic() - started, doc
    todo = doc["mutants"] - doc["equivalent"]
    row.good = doc["killed"] == todo > 0 and not doc["survived"] and not doc["control"] and not doc["stale"]
    row.result = f"{doc['killed']} of {todo} killed"
    row.note = f"{doc['equivalent']} equivalent; by {len(doc['by'])} configurations; control equal"
    if not row.good:
        wrong = [f"survived: {x}" for x in doc["survived"]] + [f"stale: {x}" for x in doc["stale"]]
        wrong += [f"the unmodified model differs on {x}" for x in doc["control"]]
        row.note = "; ".join(wrong[:5])
    return [row]


def _select(names: tuple[str, ...], tier: str) -> list[config.Config]:
    every = config.load()
    if names:
        known = {c.name for c in every}
        for n in names:
            if n not in known:
                raise BadInput(f"no configuration {n!r}", remedy="stallproof check --list")
        return [c for c in every if c.name in names]
    return [c for c in every if tier == "all" or c.tier == tier]


def _shard(chosen: list[config.Config], shard: str | None) -> list[config.Config]:
    if shard is None:
        return chosen
    first, _, every = shard.partition("/")
    if not (first.isdigit() and every.isdigit() and 1 <= int(first) <= int(every)):
        raise BadInput(f"--shard {shard!r} is not I/N with 1 <= I <= N")
    return chosen[int(first) - 1 :: int(every)]


def _verdict(r: Row) -> str:
    """``more``: a large run that has no end yet and found nothing."""
    return "ok" if r.good else "more" if r.result == tlc.UNFINISHED else "FAIL"


def _table(rows: list[Row]) -> Table:
    t = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("configuration", "expected", "result"):
        t.add_column(head, overflow="fold")
    for head in ("states", "depth", "s"):
        t.add_column(head, justify="right")
    t.add_column("note", overflow="fold")
    for r in rows:
        mark = {"ok": "[green]ok[/]   ", "more": "[yellow]more[/] "}.get(_verdict(r), "[red]FAIL[/] ")
        t.add_row(
            mark + r.name,
            r.expected,
            r.result if r.trace is None else f"{r.result} in {r.trace}",
            "" if r.distinct is None else f"{r.distinct:,}",
            "" if r.depth is None else str(r.depth),
            f"{r.seconds:.1f}",
            r.note,
        )
    return t


@click.command(name="check")
@click.argument("names", nargs=-1)
@click.option("--tier", type=click.Choice(["pr", "nightly", "all"]), default="pr", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True)
@click.option(
    "--timeout",
    type=Finite(min=0, min_open=True, max=10**6),
    default=300.0,
    show_default=True,
    help="Seconds per TLC run.",
)
@click.option("--equal-all", is_flag=True, help="Also compare the graphs of every quick configuration.")
@click.option("--keep", type=click.Path(), help="Directory for checkpoints of large runs; taken up again.")
@click.option("--shard", help="I/N: only every N-th configuration, from the I-th.")
@click.option("--list", "list_only", is_flag=True, help="List the configurations and stop.")
@click.option("--record", is_flag=True, help="Write the figures to spec/recorded.json.")
@click.option(
    "--mutants/--no-mutants", default=None, help="Kill the model's mutants (default: unless NAMES are given)."
)
@click.option("--no-proofs", is_flag=True, help="Leave the Z3 proofs out.")
def command(
    names: tuple[str, ...],
    tier: str,
    as_json: bool,
    workers: int,
    timeout: float,
    equal_all: bool,
    keep: str | None,
    shard: str | None,
    list_only: bool,
    record: bool,
    mutants: bool | None,
    no_proofs: bool,
) -> int:
    """Model-check every configuration, or only NAMES.

    A configuration is *ok* (every statement holds), a *gap* (the named statement is refuted, and holds
    again with the one fix), or *equal* (TLC's state graph equals the Python model's).
    """
    chosen = _select(names, tier)
    if equal_all:
        chosen += config.equal_to_all(config.load())
    chosen = _shard(chosen, shard)
    if list_only:
        for c in chosen:
            want = f"refuted by {c.refutes}" if c.refutes else c.kind
            click.echo(f"{c.name:34} {want:26} {' '.join(c.bugs)}")
        return Exit.OK
    tools.java(), tools.jar()
    todo = jobs.jobs(chosen, timeout, Path(keep) if keep else None)
    if not names and not no_proofs:
        todo.append(Job("proofs", "proof", "proved", lambda: _proof_rows(timeout), cost=10**9))
    if mutants if mutants is not None else not names and tier == "pr" and shard is None:
        job = Job("mutants", "mutants", "all killed", lambda: _mutation_rows(max(timeout, 900)), cost=10**8)
        todo.append(job)
    started = time.monotonic()
    with startup.shared_classes(chosen):
        rows = _run(todo, workers, quiet=as_json)
    order = {c.name: i for i, c in enumerate(chosen)}
    rows.sort(key=lambda r: order.get(r.name, len(order)))
    good = all(r.good for r in rows) and bool(rows)
    unsure = all(r.good or r.result == tlc.UNFINISHED for r in rows) and bool(rows)
    seconds = time.monotonic() - started
    if record:
        figures: dict[str, dict[str, Any]] = {}
        for r in rows:
            if r.result == tlc.UNFINISHED:
                figures[r.name] = {"states": r.distinct, "unfinished": True, **r.extra}
            elif r.good and r.kind in ("ok", "equal"):
                figures[r.name] = {"states": r.distinct, "depth": r.depth, **r.extra}
            elif r.good and r.kind in ("gap", "mutant"):
                figures[r.name] = r.extra.get("lasso") or {"trace": r.trace}
        config.record(figures)
    if as_json:
        click.echo(json.dumps({"good": good, "seconds": seconds, "rows": [r.json() for r in rows]}, indent=1))
    else:
        Console(width=None if sys.stdout.isatty() else 160).print(_table(rows))
        bad = sum(not r.good for r in rows)
        states = sum(r.distinct or 0 for r in rows)
        click.echo(
            f"{len(rows) - bad} of {len(rows)} as expected, {states:,} states, {seconds:.0f} s"
            + ("" if good else f"; {bad} unfinished" if unsure else f"; {bad} NOT as expected")
        )
    return Exit.OK if good else Exit.BAD_INPUT if unsure else Exit.FINDING


def _run(todo: list[Job], workers: int, quiet: bool) -> list[Row]:
    rows: list[Row] = []
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        for i, (job, got) in enumerate(jobs.run(todo, workers), 1):
            rows += got
            if not quiet:
                for r in got:
                    click.echo(
                        f"[{i}/{len(todo)}] {_verdict(r):4} {r.name}: {r.result} {r.seconds:.1f} s", err=True
                    )
            del job
        return rows
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("checking", total=len(todo))
        for job, got in jobs.run(todo, workers):
            rows += got
            bar.update(task, advance=1, description=job.name)
    return rows
