"""``stallproof replay``: check a recorded trace against the promise, on one screen."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TransferSpeedColumn

from stallproof.check.second import Second, second
from stallproof.cli.options import Finite
from stallproof.cli.output import printable
from stallproof.errors import BadInput, Exit
from stallproof.trace import reader
from stallproof.trace.checker import LAYERS, Options, Verdict, check
from stallproof.trace.ledger import Violation
from stallproof.trace.progress import Thresholds
from stallproof.trace.schema import Header

Say = Callable[..., None]

#: what each property promises, for the one-screen report
PROMISE = {
    "Conservation": "free + owned + fenced + quarantined = pool, always; a finished request owns nothing",
    "OneOwner": "an unshared block has exactly one place",
    "RefCount": "a shared block's count equals its holders",
    "InFlightSafe": "a writer not ordered with the device stream writes quiescent blocks only",
    "XferSafe": "a block that an unfinished transfer writes belongs to its request, or is quarantined",
    "StoreSafe": "a block that an unfinished transfer reads is reused only after the reader has ended",
    "NoDoubleFree": "a block is freed exactly once",
    "NoLeak": "no block stays out of the pool for ever",
    "NoZeroPre": "a preemption makes the blocks usable by its target grow in the same call",
    "EvictCoupled": "a lateral eviction happens only if its target runs in the same call",
    "NoInversion": "while a request is refused, nobody behind it that holds nothing is given blocks",
    "NoWedge": "unfinished work and nothing pending outside: the call does something",
    "Termination": "every request finishes",
    "NoStarvation": "a request finishes however many requests arrive behind it",
    "BoundedWait": "every external wait completes, fails or expires; a late report has no effect",
    "Feasible": "a request that can never fit finishes at once",
    "StepOrder": "steps are processed in dispatch order, each of them",
    "Tokens": "tokens are counted as scheduled, and sampled only when all known ones are computed",
    "Queues": "the running list is what the decisions say",
    "Requests": "every event names a live request",
    "Limits": "token budget and running requests stay within the configuration",
    "PrefixValid": "a prefix hit names a block filled since the last reset",
    "Snapshot": "the next part begins with the state this one ends with",
    "End": "the totals of the last record are those of the records before it",
    "VictimOrder": "victims are behind their target in scheduling order",
    "RunningOrder": "the running list is in scheduling order",
    "Patience": "a refused running request waits for at most P processed steps",
    "GateLoads": "a load is held back no longer than until every step dispatched at its admission is done",
    "OneOrder": "requests that hold nothing are served in scheduling order",
    "TurnsYield": "a session passes the oldest request that waits with one turn at most",
    "FullFit": "a request is admitted only if its whole known sequence fits",
    "RuleR": "a load start leaves free what running prefills still need",
    "Promotion": "a completed load is recognised by the next call",
}


@click.command("replay", short_help="Check a recorded trace against the promise.")
@click.argument("traces", nargs=-1, required=True, metavar="TRACE...")
@click.option("--all", "everything", is_flag=True, help="Go on after the first divergence and list them all.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
@click.option("--layer", "layers", multiple=True, type=click.Choice(LAYERS), help="Check these layers only.")
@click.option("--from", "first", type=click.IntRange(min=1), default=1, help="Report from this line on.")
@click.option("--to", "last", type=click.IntRange(min=1), default=None, help="Report up to this line.")
@click.option("--wedge-calls", type=click.IntRange(min=1), default=3, show_default=True,
              help="NoWedge: calls in a row, beyond the batches in flight, that change nothing.")  # fmt: skip
@click.option("--livelock-calls", type=click.IntRange(min=1), default=200, show_default=True,
              help="Termination: working calls in a row without progress.")  # fmt: skip
@click.option("--starve-calls", type=click.IntRange(min=1), default=32, show_default=True,
              help="NoStarvation: refusals of one request without progress ...")  # fmt: skip
@click.option("--starve-served", type=click.IntRange(min=1), default=8, show_default=True,
              help="... while so many newcomers behind it were served.")  # fmt: skip
@click.option("--deadline", type=Finite(min=0), default=0.0,
              help="BoundedWait: seconds a load may last (default: the recording's own).")  # fmt: skip
@click.option(
    "--with-tlc",
    type=click.IntRange(min=10, max=5000),
    metavar="EVENTS",
    help="Let TLC replay the first EVENTS events too (spec/TraceLedger.tla); verdicts must agree.",
)
@click.option(
    "--explain/--no-explain", default=True, help="Show waits and last events (reads the file again)."
)
def command(
    traces: tuple[str, ...], everything: bool, as_json: bool, layers: tuple[str, ...], first: int,
    last: int | None, wedge_calls: int, livelock_calls: int, starve_calls: int, starve_served: int,
    deadline: float, with_tlc: int | None, explain: bool,
) -> int:  # fmt: skip
    """Check TRACE (plain, gzip or zstd; - reads standard input) against the promise.

    Several files are the parts of one recording. Exit code 0: conforms; 1: diverges; 2: unreadable, or the
    trace ends before a suspected stall is decided; 3: another schema version.
    """
    if last is not None and last < first:
        raise BadInput(f"--to {last} comes before --from {first}", remedy="give --from <= --to")
    options = Options(
        layers=layers or LAYERS,
        thresholds=Thresholds(wedge_calls, livelock_calls, starve_calls, starve_served, deadline),
        all=everything,
        first=first,
        last=last or 0,
    )
    with _progress(traces, quiet=as_json) as tick:
        verdict = check(traces, options, history=explain, progress=tick)
    tlc = _second(traces, verdict, with_tlc) if with_tlc else None
    if as_json:
        plain = _plain(verdict) | ({"tlc": tlc} if tlc else {})
        click.echo(msgspec.json.format(msgspec.json.encode(plain), indent=2).decode())
    else:
        render(
            verdict,
            Console(width=None if sys.stdout.isatty() else 160, highlight=False, soft_wrap=True),
            everything,
        )
        if tlc:
            click.echo(_tlc_line(tlc))
    if tlc and tlc.agree is False:
        return Exit.FINDING
    return {"conforms": Exit.OK, "diverges": Exit.FINDING, "undecided": Exit.BAD_INPUT}[verdict.status]


def _second(traces: tuple[str, ...], verdict: Verdict, limit: int) -> Second:
    """TLC's own verdict on the head of the first part."""
    if "-" in traces:
        raise BadInput("--with-tlc needs a file, not standard input", remedy="save the trace first")
    records: list[Any] = []
    for _, _, rec in reader.records(verdict.files[0]):
        if records and isinstance(rec, Header):
            break
        records.append(rec)
        if len(records) > limit:
            break
    return second(records, limit)


def _tlc_line(x: Second) -> str:
    what = f"TLC on the first {x.events} events ({x.records} records, {x.seconds} s): "
    said = f"{x.rule} at line {x.line}" if x.rule else "conforms"
    if x.agree is None:
        return f"{what}{said}; the checker's {x.ours} is outside its specification"
    if x.agree:
        return f"{what}{said}, as the checker says of them"
    return (
        f"{what}{said}, but the checker says {x.ours or 'conforms'} (line {x.our_line}): report this defect"
    )


@contextmanager
def _progress(traces: tuple[str, ...], quiet: bool) -> Iterator:
    size = sum(Path(t).stat().st_size for t in traces if Path(t).is_file())
    if quiet or not sys.stderr.isatty() or size < 20_000_000:
        yield None
        return
    columns = (TextColumn("reading"), BarColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=size)
        yield lambda n: bar.advance(task, n)


def _plain(v: Verdict) -> dict:
    h = v.header
    return {
        "schema": "stallproof-replay/1",
        "status": v.status,
        "engine": h.engine if h else None,
        "rules": h.rules if h else [],
        "files": v.files,
        "records": v.records,
        "events": v.events,
        "calls": v.calls,
        "totals": v.totals,
        "unfinished": v.unfinished,
        "ended": v.ended,
        "violations": v.violations,
        "counts": v.counts,
        "undecided": v.undecided,
        "remedy": v.remedy,
        "waits": v.waits,
        "history": v.history,
        "notes": v.notes,
    }


def render(v: Verdict, console: Console, everything: bool = False) -> None:
    """Print a verdict for people: at most one screen unless ``everything``."""

    def say(text: str = "", style: str | None = None) -> None:
        console.print(escape(printable(text)), style=style)

    h = v.header
    if h is not None:
        e, c = h.engine, h.config
        rules = f"rules {', '.join(h.rules)}" if h.rules else "no rules of ours"
        say(f"{e.name} {e.version} {e.scheduler}".rstrip() + f", {h.source} recording, {rules}")
        say(f"pool {c.pool} blocks of {c.block_size}, depth {c.depth}, {c.policy}, fence mode {c.fence_mode}"
            + (f", connectors {', '.join(e.connectors)}" if e.connectors else ""))  # fmt: skip
    totals = ", ".join(f"{n:,} {what}" for what, n in v.totals.items() if n)
    say(f"{v.records:,} records, {v.events:,} events, {v.calls:,} calls" + (f", {totals}" if totals else ""))
    for note in v.notes:
        say(f"note: {note}", "yellow")
    say()
    if v.violations:
        _violations(v, say, everything)
    elif v.undecided:
        what = "the trace ends inside what may become a stall"
        if not v.calls and not v.events:
            what = "nothing was recorded"
        elif v.undecided[0].startswith("nothing was checked"):
            what = "nothing was checked"
        say(f"CANNOT TELL YET: {what}", "bold yellow")
        for text in v.undecided:
            say(f"  {text.removeprefix('nothing was checked: ')}")
        say(f"  remedy: {v.remedy}")
    else:
        say("CONFORMS", "bold green")
        if v.unfinished:
            say(f"  {len(v.unfinished)} requests are unfinished at the end; if they finish, it cannot tell")


def _violations(v: Verdict, say: Say, everything: bool) -> None:
    first = v.violations[0]
    say(f"DIVERGES: {first.rule}", "bold red")
    _one(first, say)
    if v.waits:
        say("when it happened:", "bold")
        for text in v.waits:
            say(f"  {text}")
    if v.history:
        say("last events of the requests and blocks concerned (line: step: event):", "bold")
        for text in v.history:
            say(f"  {text}")
    more = {k: n for k, n in v.counts.items() if n > (k == first.rule)}
    if more and not everything:
        say("in the whole trace: " + ", ".join(f"{rule} {n}" for rule, n in v.counts.items()), "bold")
        shown = {first.rule}
        for x in v.violations:
            if x.rule not in shown:
                shown.add(x.rule)
                say(f"  {x.rule} at {x.path}:{x.line}: {x.text}")
                for text in x.evidence:
                    say(f"    {text}")
    if everything:
        for x in v.violations[1:]:
            say()
            say(x.rule, "bold red")
            _one(x, say)


def _one(x: Violation, say: Say) -> None:
    where = f"{x.path}:{x.line}" + (f", step {x.step}" if x.step else "")
    say(f"  {where}" + (f", event {x.event}" if x.event >= 0 else "") + f" ({x.layer} layer)")
    say(f"  {x.text}")
    if x.rule in PROMISE:
        say(f"  promised: {PROMISE[x.rule]}")
    say(f"  field {x.field}: expected {x.expected}, observed {x.observed}")
    for text in x.evidence:
        say(f"  {text}")
