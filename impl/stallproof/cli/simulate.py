"""``stallproof simulate``: schedulers side by side on a production workload, under a virtual clock."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import click

from stallproof.cli.output import apart, result
from stallproof.errors import BadInput, Exit

#: Rows of the table: summary key, label, format.
ROWS = (
    ("completed", "completed", "{:,.0f}"), ("stranded", "stranded", "{:,.0f}"),
    ("rejected", "rejected with error", "{:,.0f}"), ("ttft_p50_s", "first token p50 (s)", "{:.3f}"),
    ("ttft_p95_s", "first token p95 (s)", "{:.3f}"), ("ttft_p99_s", "first token p99 (s)", "{:.3f}"),
    ("itl_mean_s", "inter-token time, mean (s)", "{:.4f}"),
    ("itl_p50_s", "inter-token time p50 (s)", "{:.4f}"), ("itl_p95_s", "inter-token time p95 (s)", "{:.4f}"),
    ("itl_p99_s", "inter-token time p99 (s)", "{:.4f}"), ("goodput_rps", "goodput (requests/s)", "{:.3f}"),
    ("preemptions", "preemptions", "{:,.0f}"), ("evictions", "evictions", "{:,.0f}"),
    ("scheduled_tokens", "scheduled tokens", "{:,.0f}"), ("recomputed_tokens", "recomputed", "{:,.0f}"),
    ("zero_progress_calls", "zero-progress calls", "{:,.0f}"),
    ("longest_request_wait_s", "longest wait of a request (s)", "{:.2f}"),
    ("longest_engine_gap_s", "longest engine gap (s)", "{:.2f}"),
    ("fenced_block_seconds", "blocks idle behind fences (block s)", "{:,.1f}"),
    ("loads", "loads", "{:,.0f}"), ("load_starts_delayed", "load starts delayed", "{:,.0f}"),
    ("virtual_s", "virtual time (s)", "{:.1f}"), ("wall_s", "wall time (s)", "{:.1f}"),
)  # fmt: skip


@click.command(name="simulate")
@click.argument("workload", required=False)
@click.option(
    "--scheduler", "schedulers", multiple=True, help="stock, stallproof or module.Class; repeatable."
)
@click.option(
    "--vllm",
    "version",
    default="0.32.0",
    show_default=True,
    help="vLLM release; for one of our traces the recorded one is the default.",
)
@click.option(
    "--synthetic",
    type=click.IntRange(min=0),
    default=0,
    help="A generated workload of so many requests instead.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    default=2.0,
    show_default=True,
    help="Requests per second of --synthetic.",
)
@click.option("--from", "start", type=float, default=0.0, help="First second of the slice.")
@click.option("--length", type=float, default=0.0, help="Seconds of the slice; 0: to the end.")
@click.option("--limit", type=int, default=0, help="Requests at most.")
@click.option("--speedup", type=float, default=1.0, show_default=True, help="Compress arrival times.")
@click.option(
    "--share",
    type=float,
    default=1.0,
    show_default=True,
    help="Share of the conversations, drawn by --seed: what one of several instances gets.",
)
@click.option(
    "--jitter",
    type=float,
    default=0.0,
    show_default=True,
    help="Seconds by which each arrival moves at most, drawn by --seed.",
)
@click.option("--blocks", type=int, default=4096, show_default=True, help="Usable KV blocks.")
@click.option("--block-size", type=int, default=16, show_default=True, help="Tokens per block.")
@click.option(
    "--depth", type=click.IntRange(1, 3), default=2, show_default=True, help="Batches in flight (D)."
)
@click.option("--max-num-seqs", type=int, default=256, show_default=True)
@click.option("--max-num-batched-tokens", "budget", type=int, default=8192, show_default=True)
@click.option("--chunk-cap", type=int, default=0, help="Tokens of one prefill chunk at most; 0: none.")
@click.option(
    "--max-model-len", type=int, default=131072, show_default=True, help="Longer requests are left out."
)
@click.option("--policy", type=click.Choice(["fcfs", "priority"]), default="fcfs", show_default=True)
@click.option("--no-prefix-caching", is_flag=True)
@click.option(
    "--store",
    type=click.Choice(["none", "pd", "store", "offload", "recorded"]),
    default="none",
    show_default=True,
    help="Simulated connector: prefill/decode pair, shared store, CPU offload; recorded: as in one of our "
    "traces (its default).",
)
@click.option(
    "--load-latency", type=float, default=0.02, show_default=True, help="Seconds before a load's first byte."
)
@click.option("--load-bandwidth", type=float, default=20000.0, show_default=True, help="Blocks per second.")
@click.option(
    "--lookup",
    type=float,
    default=0.0,
    show_default=True,
    help='Seconds of "not yet" before the store answers.',
)
@click.option("--store-capacity", type=int, default=0, help="Blocks the store keeps; 0: unlimited.")
@click.option("--p-fail", type=float, default=0.0, help="Share of loads that fail.")
@click.option("--p-lost", type=float, default=0.0, help="Share of loads that never report.")
@click.option("--latency", default="", help="Device coefficients, e.g. base=0.006,per_prefill_token=0.00006.")
@click.option(
    "--save-restore",
    type=click.IntRange(min=0),
    default=0,
    help="What-if: save so many blocks of evicted requests instead of computing them again; 0: off.",
)
@click.option(
    "--move-cost",
    type=click.FloatRange(min=0),
    default=0.0001,
    show_default=True,
    help="Seconds that saving or restoring one block takes.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--horizon",
    type=float,
    default=600.0,
    show_default=True,
    help="H: virtual seconds after the last arrival.",
)
@click.option(
    "--zero-calls", type=int, default=200, show_default=True, help="K: zero-progress calls that end a run."
)
@click.option("--slo-ttft", type=float, default=5.0, show_default=True, help="Goodput objective, seconds.")
@click.option(
    "--slo-itl", type=float, default=0.1, show_default=True, help="Goodput objective, mean seconds per token."
)
@click.option("--jobs", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes at a time.")
@click.option("--ray", metavar="ADDRESS", help="Spread over a Ray cluster: host:port, auto or local.")
@click.option("--trace", type=click.Path(dir_okay=False), help="Record each run to FILE.<scheduler>.jsonl.")
@click.option("--html", type=click.Path(dir_okay=False), help="Write a self-contained page.")
@click.option(
    "--follow",
    is_flag=True,
    help="WORKLOAD is a recording: play its arrivals and completions back, compare every decision.",
)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable result.")
def command(**o: Any) -> int:
    """Run WORKLOAD (a Mooncake .jsonl, an Azure .csv, a ServeGen folder or one of our traces) through the
    real scheduler of a vLLM release and compare schedulers side by side.

    \b
    stallproof simulate conversation_trace.jsonl --length 600 --blocks 30000 --html out.html
    stallproof simulate --synthetic 200 --rate 20 --blocks 120 --max-model-len 2048 --store store

    Exit codes: 0 all runs ended with nothing stranded, 1 a run stranded requests, 2 bad input.
    With --follow: 0 every decision was made again, 1 one was not.
    """
    if o["follow"]:
        return _follow(o)
    _as_recorded(o)
    from stallproof import spread
    from stallproof.simulate.spawn import run_all

    plans = [(o["version"], plan_of(o, s)) for s in (o["schedulers"] or ("stock", "stallproof"))]
    _writable([x for x in (o["html"], *(p.trace for _, p in plans)) if x], o["workload"])
    where = spread.Where(jobs=0 if o["ray"] and o["jobs"] == 1 else o["jobs"], ray=o["ray"])
    results = run_all(plans, where, _ticker(o["as_json"], [p.scheduler for _, p in plans]))
    report = compare(results)
    if o["html"]:
        from stallproof.simulate.page import page

        with result(o["html"]) as out:
            out.write(page(report, results, ROWS))
    if o["as_json"]:
        click.echo(json.dumps(report, default=str))
    else:
        _table(report)
    return Exit.FINDING if any(r["summary"]["stranded"] for r in results) else Exit.OK


def _writable(outputs: list[str], workload: str | None) -> None:
    """Find out before an hour's run whether its results can be kept, and overwrite nothing that it needs."""
    from stallproof.cli.run import writable

    for name in outputs:
        apart(name, [workload] if workload else [])
        writable(Path(name), folder=False)


#: option -> field of a trace's configuration; zero there: not recorded
_RECORDED = {
    "blocks": "pool", "block_size": "block_size", "depth": "depth", "max_num_seqs": "max_num_seqs",
    "budget": "max_num_batched_tokens", "chunk_cap": "chunk_cap", "policy": "policy",
}  # fmt: skip


def _as_recorded(o: dict[str, Any]) -> None:
    """One of our traces as the workload: options that were not given are as recorded."""
    from click.core import ParameterSource

    from stallproof.simulate import retrace, workload

    path = Path(o["workload"] or "")
    if not o["workload"] or not path.exists() or workload.detect(path) != "trace":
        if o["store"] == "recorded":
            raise BadInput("--store recorded needs one of our traces as the workload")
        return
    header, context = retrace.header(path), click.get_current_context()

    def given(name: str) -> bool:
        return context.get_parameter_source(name) is not ParameterSource.DEFAULT

    for name, key in _RECORDED.items():
        if not given(name):
            o[name] = getattr(header.config, key) or o[name]
    if not given("no_prefix_caching"):
        o["no_prefix_caching"] = not header.config.prefix_caching
    if not given("store") and header.engine.connectors:
        o["store"] = "recorded"
    if not given("version") and header.engine.name == "vllm":
        o["version"] = header.engine.version


def _follow(o: dict[str, Any]) -> int:
    """The release is the recorded one; nothing is simulated but the order of events."""
    from stallproof.simulate import script, workload
    from stallproof.simulate.spawn import Worker

    path = Path(o["workload"] or "")
    if not o["workload"] or workload.detect(path) != "trace":
        raise BadInput("--follow needs one of our recordings", path=o["workload"] or None)
    version = script.read(path).header.engine.version
    with Worker(version) as worker:
        got = worker.follow(path)
    if o["as_json"]:
        click.echo(json.dumps(got | {"vllm": version}))
    elif got["difference"]:
        click.echo(f"{path}:{got['line']}: {got['difference']}")
    else:
        n = got["counts"]
        click.echo(
            f"vLLM {version} decides as recorded: {n['sched']} scheduling calls, {n['update']} steps "
            f"processed, {n['events']} events"
        )
    return Exit.FINDING if got["difference"] else Exit.OK


def plan_of(o: dict[str, Any], scheduler: str) -> Any:
    """The plan that these command-line options ask for."""
    import msgspec

    from stallproof.cli.run import named
    from stallproof.simulate.plan import Plan, Store, Work
    from stallproof.simulate.worker import Latency

    Latency.parse(o["latency"])
    named(scheduler)
    for name, value in o.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise BadInput(f"--{name.replace('_', '-')} is {value}", remedy="give a finite number")
    if bool(o["workload"]) == bool(o["synthetic"]):
        raise BadInput("give either a workload or --synthetic N", remedy="stallproof simulate --help")
    if o["workload"] and not Path(o["workload"]).exists():
        raise BadInput("no such file", path=o["workload"])
    try:
        raw = Plan(
            work=Work(
                path=str(Path(o["workload"]).absolute()) if o["workload"] else "", synthetic=o["synthetic"],
                rate=o["rate"], start=o["start"], length=o["length"], limit=o["limit"], speedup=o["speedup"],
                share=o["share"], jitter=o["jitter"], seed=o["seed"],
            ),
            store=Store(
                kind=o["store"], latency=o["load_latency"], bandwidth=o["load_bandwidth"],
                capacity=o["store_capacity"], lookup=o["lookup"], p_fail=o["p_fail"], p_lost=o["p_lost"],
            ),
            scheduler=scheduler, blocks=o["blocks"], block_size=o["block_size"], depth=o["depth"],
            max_num_seqs=o["max_num_seqs"], budget=o["budget"], chunk_cap=o["chunk_cap"],
            max_model_len=o["max_model_len"], policy=o["policy"], prefix_caching=not o["no_prefix_caching"],
            latency=o["latency"], seed=o["seed"], horizon=o["horizon"], patience_calls=o["zero_calls"],
            slo_ttft=o["slo_ttft"], slo_itl=o["slo_itl"], save_restore=o["save_restore"],
            move_cost=o["move_cost"],
            trace=f"{Path(o['trace']).absolute()}.{scheduler}.jsonl" if o["trace"] else "",
        )  # fmt: skip
        return msgspec.convert(msgspec.to_builtins(raw), Plan)
    except msgspec.ValidationError as exc:
        raise BadInput(f"bad option: {exc}", remedy="stallproof simulate --help") from exc


def compare(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Summaries, and each run's ratios to the first one (None where the first one stalled)."""
    from stallproof.simulate.metrics import ratios

    runs = [r["summary"] | {"vllm": r["version"]} for r in results]
    return {"runs": runs, "ratios": [ratios(runs[0], r) for r in runs[1:]]}


def _ticker(quiet: bool, names: list[str]) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        last: dict[int, float] = {}

        def plain(n: int, now: float, arrived: int, live: int, total: int) -> None:
            if not quiet and now - last.get(n, -1e9) >= 60:
                last[n] = now
                print(
                    f"{names[n]}: {now:.0f} virtual s, {arrived}/{total} arrived, {live} live",
                    file=sys.stderr, flush=True,
                )  # fmt: skip

        return plain
    bars = Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"), TimeElapsedColumn(),
        console=console, transient=True,
    )  # fmt: skip
    tasks = [bars.add_task(n, total=1, note="") for n in names]
    bars.start()

    def tick(n: int, now: float, arrived: int, live: int, total: int) -> None:
        note = f"{now:.0f} virtual s, {live} live"
        bars.update(tasks[n], total=total, completed=arrived - live, note=note)
        if arrived >= total and not live:
            bars.stop()

    import atexit

    atexit.register(bars.stop)
    return tick


def _table(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    runs = report["runs"]
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("")
    for r in runs:
        table.add_column(f"{r['scheduler']}\nvLLM {r['vllm']}", justify="right")
    for r in runs[1:]:
        table.add_column(f"{r['scheduler']}\n/ {runs[0]['scheduler']}", justify="right")
    for key, label, form in ROWS:
        cells = ["-" if _none(r[key]) else form.format(r[key]) for r in runs]
        table.add_row(label, *cells, *(_ratio(x, key) for x in report["ratios"]))
    console.print(table)
    for r in runs:
        fired = ", ".join(f"{k} {v}" for k, v in sorted(r["fired"].items())) or "no rule of ours fired"
        console.print(f"{r['scheduler']}: ended: {r['ended']}; {fired}", soft_wrap=True)
        if "saved_blocks" in r:
            say = "saved {saved_blocks:,} blocks, {unsaved_blocks:,} not; restored {restored_tokens:,} tokens"
            console.print(f"{r['scheduler']}: {say.format(**r)}", soft_wrap=True)
    if any(x is None for x in report["ratios"]):
        console.print(f"no ratios: {runs[0]['scheduler']} stranded {runs[0]['stranded']} requests")


def _none(x: Any) -> bool:
    return isinstance(x, float) and math.isnan(x)


def _ratio(ratios: dict[str, float] | None, key: str) -> str:
    if ratios is None or key not in ratios or math.isnan(ratios[key]):
        return ""
    return f"{ratios[key]:.3f}"
