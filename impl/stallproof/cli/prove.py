"""``stallproof prove``: the Z3 proofs, each with what would make it fail.

Exit codes: 0 every obligation is proved and every twin refuted; 1 one is not, or the solver does not know;
2 bad arguments; 3 Z3 is missing or has another version than the pinned one refuses to load; 130 interrupted.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from stallproof.errors import Exit, Unsupported

if TYPE_CHECKING:
    from stallproof_proofs.result import Result


def _need_z3() -> str:
    try:
        import z3
    except ImportError as exc:
        raise Unsupported(
            "the proofs need Z3, which is not installed", remedy="pip install 'stallproof[check]'"
        ) from exc
    return str(z3.get_version_string())


def _table(results: Iterable[Result], seconds: float) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    rows: dict[str, list[Result]] = {}
    for r in results:
        rows.setdefault(r.theory, []).append(r)
    table = Table(title="Z3 proofs", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("theory", no_wrap=True)
    for head in ("proved", "frames", "twins", "sanity", "unknown", "s", "slowest"):
        table.add_column(head, justify="right")
    table.add_column("result")
    for name, rs in rows.items():
        kinds = ("obligation", "frame", "twin", "sanity")
        ob, fr, tw, sa = ([r for r in rs if r.kind == k] for k in kinds)
        ok = all(r.ok for r in rs)
        table.add_row(
            name,
            f"{sum(r.ok for r in ob)}/{len(ob)}",
            str(len(fr)),
            f"{sum(r.ok for r in tw)}/{len(tw)}",
            f"{sum(r.ok for r in sa)}/{len(sa)}",
            str(sum(r.status == "unknown" for r in rs)),
            f"{sum(r.seconds for r in rs):.1f}",
            f"{max(r.seconds for r in rs):.2f}",
            "[green]ok[/green]" if ok else "[red]FAIL[/red]",
        )
    console = Console(soft_wrap=False)
    console.print(table)
    bad = [r for rs in rows.values() for r in rs if not r.ok]
    for r in bad:
        console.print(
            f"[red]FAIL[/red] {r.kind} {r.name}: {r.status}, expected {r.expected}", highlight=False
        )
        if r.detail:
            console.print(f"     {r.detail}", highlight=False, markup=False)
    total = sum(len(rs) for rs in rows.values())
    verdict = f"{len(bad)} not as expected" if bad else "all as expected"
    console.print(f"{total} checks in {seconds:.1f} s: {verdict}", highlight=False)


def _differential(transitions: int, seed: int, as_json: bool) -> None:
    from stallproof_proofs.differential import run

    last = [0.0]

    def progress(report: object) -> None:
        if time.monotonic() - last[0] > 5:
            last[0] = time.monotonic()
            click.echo(f"{report.transitions}/{transitions} transitions", err=True)  # type: ignore[attr-defined]

    report = run(seed, transitions, progress=progress)
    if as_json:
        click.echo(json.dumps({**vars(report), "by_action": dict(report.by_action)}))
    else:
        click.echo(
            f"{report.transitions} transitions of the model, {report.micro} micro-steps of the relations; "
            f"guards true {report.enabled}, false {report.disabled}; differences {report.found}"
        )
        for name, n in sorted(report.by_action.items()):
            click.echo(f"  {name:13s} {n}")
        for text in report.differences:
            click.echo(f"DIFFERENT {text}")
    if report.found:
        raise click.exceptions.Exit(Exit.FINDING)


def _renew(only: tuple[str, ...], again: bool) -> None:
    from stallproof_proofs.renew import Tally, renew

    last = [0.0]
    terminal = sys.stderr.isatty()

    def progress(tally: Tally, name: str) -> None:
        now = time.monotonic()
        if now - last[0] < (0.2 if terminal else 30) and tally.left:
            return
        last[0] = now
        line = f"{tally.total - tally.left}/{tally.total} looked at, {tally.frames} new frames; {name}"
        click.echo(f"\r{line:100.100s}" if terminal else line, err=True, nl=not terminal or not tally.left)

    try:
        tally = renew(progress, only, again)
    except KeyboardInterrupt:
        click.echo("\ninterrupted; what was found is written, and the next run goes on from here", err=True)
        raise click.exceptions.Exit(130) from None
    click.echo(
        f"{tally.renewed} renewed ({tally.frames} frames, {tally.undecided} undecided), {tally.skipped} known"
    )
    for name in tally.failed:
        click.echo(f"NOT PROVED {name}")
    if tally.failed:
        raise click.exceptions.Exit(Exit.FINDING)


@click.command("prove")
@click.option("--json", "as_json", is_flag=True, help="Results as one JSON document.")
@click.option("--list", "listing", is_flag=True, help="Names of all obligations and twins; checks nothing.")
@click.option("--only", multiple=True, metavar="NAME", help="A theory, an exact name or a shell pattern.")
@click.option("--assumptions", is_flag=True, help="What the theorems rest on and no obligation proves.")
@click.option("--markdown", is_flag=True, help="The page docs/proofs.md, from a fresh run.")
@click.option("--thorough", is_flag=True, help="Look again, for each obligation, for what makes it fail.")
@click.option(
    "--differential",
    type=click.IntRange(1),
    metavar="N",
    help="Run the relations on states of the model instead: at least N transitions, no difference.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of --differential.")
@click.option(
    "--renew-hints",
    is_flag=True,
    help="For developers: find what each proof uses and what breaks it, where no record is complete "
    "(everywhere with --thorough). Written while it goes on; Ctrl-C loses nothing.",
)
@click.option(
    "--jobs", type=click.IntRange(1), default=lambda: os.cpu_count() or 1, show_default="all cores",
    metavar="N", help="Processes that share the work.",
)  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="One line per check.")
def command(
    as_json: bool,
    listing: bool,
    only: tuple[str, ...],
    assumptions: bool,
    markdown: bool,
    thorough: bool,
    differential: int | None,
    seed: int,
    renew_hints: bool,
    jobs: int,
    verbose: bool,
) -> None:
    """Run the Z3 proofs, each with its guard-removed twins.

    An obligation must be proved; a twin is the same obligation with one guard, update or hypothesis taken
    away, and must be refuted. `unknown` is a failure.
    """
    import stallproof_proofs as proofs

    version = _need_z3()
    if listing:
        for o in proofs.obligations(only):
            click.echo(f"{o.kind:10s} {o.name}")
        return
    if assumptions:
        items = proofs.assumptions()
        if as_json:
            click.echo(json.dumps([vars(a) for a in items], indent=1))
            return
        for a in items:
            click.echo(f"{a.kind:9s} {a.name}\n          {a.text}\n          in: {', '.join(a.theories)}")
        return

    if differential:
        _differential(differential, seed, as_json)
        return
    if renew_hints:
        _renew(only, thorough)
        return

    show = not (as_json or markdown)
    began = time.perf_counter()
    step = [0.0]

    def progress(done: int, total: int, r: Result) -> None:
        now = time.perf_counter()
        if verbose and show:
            cause = f"  fails with {r.fails_if[0]}" if r.fails_if else ""
            click.echo(
                f"{'ok  ' if r.ok else 'FAIL'} {r.status:8s} {r.seconds * 1000:7.1f} ms  {r.name}{cause}"
            )
        elif now - step[0] > 2 or done == total:
            step[0] = now
            click.echo(f"{done}/{total} {r.theory}", err=True)

    results = proofs.run(progress, only, thorough, jobs)
    seconds = time.perf_counter() - began
    if as_json:
        click.echo(
            json.dumps(
                {
                    "z3": version,
                    "seconds": round(seconds, 2),
                    "ok": all(r.ok for r in results),
                    "results": [r.to_json() for r in results],
                }
            )
        )
    elif markdown:
        from stallproof_proofs.page import evidence, page

        click.echo(page(results, version, evidence()), nl=False)
    else:
        _table(results, seconds)
    if not all(r.ok for r in results):
        raise click.exceptions.Exit(Exit.FINDING)
