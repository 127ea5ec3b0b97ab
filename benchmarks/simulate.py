"""Stock against ours on production workloads, paired by seed: `make bench-simulate`.

    python benchmarks/simulate.py [--traces DIR] [--minutes 10] [--seeds 10] [--only GROUP ...] [--quick]
                                  [--first N] [--cells N] [--jobs N] [--ray ADDRESS] [--out DIR]
                                  [--no-run] [--no-page] [--archive FILE]

Each *cell* is a workload, a pool, a store and a vLLM release; each seed gives another slice of the workload,
another draw of its conversations and other arrivals, the same for both schedulers. Results are kept one file
per run in ``out/simulate``, named by what determines them (plan, release, the code of simulator and
scheduler class), so an interrupted bench goes on where it was. Those behind the pages are kept in
``benchmarks/results/simulate.jsonl.gz`` as well: a bench in a fresh clone runs what is not there, and
``--no-run`` makes the same pages. The order is that of the cells, so a bench
that is stopped has the most informative ones. Pages: ``docs/simulate-results.md`` and
``docs/img/simulate-*.svg``, from whatever results there are; the page says what ran.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from stallproof import spread
from stallproof.errors import BadInput, StallproofError
from stallproof.simulate import workload
from stallproof.simulate.plan import Plan, Store, Work
from stallproof.simulate.spawn import close_kept, run_case

sys.path.insert(0, str(Path(__file__).resolve().parent))
import simulate_report

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
ARCHIVE = ROOT / "benchmarks" / "results" / "simulate.jsonl.gz"
#: code on which a result depends: the simulator for both schedulers, the class for ours
SIMULATOR = ("simulate/engine.py", "simulate/worker.py", "simulate/connector.py", "simulate/workload.py")
SCHEDULERS = ("stock", "stallproof")
#: of a result, what the archive keeps; the plan follows from cell and seed
KEPT = ("cell", "seed", "scheduler", "vllm", "code", "summary")
#: Stated device coefficients: the scale of a 70B model on a few accelerators. Not a claim about any device.
DEVICE = "base=0.04,per_prefill_token=0.00008,per_decode_token=0.0002"
MOONCAKE = ("mooncake", "mooncake/conversation_trace.jsonl", 0.16)
AZURE = ("azure conv", "azure/AzureLLMInferenceTrace_conv.csv", 0.2)
#: a reasoning model's traffic: prompts are short, answers long, so running requests grow and grow; an hour
#: with a rate that one instance can serve
REASONING = ("reasoning", "servegen/deepseek-r1", 1.0)
REASONING_HOUR, REASONING_LEN = 17 * 3600.0, 16384
REASONING_HORIZON = 900.0  # the longest answer takes 16,384 steps of 40 ms (655 s)
NONE = Store()
PD = Store(kind="pd", latency=0.02, bandwidth=5000)
OFFLOAD = Store(kind="offload", latency=0.005, bandwidth=10000, capacity=40000)
#: a pool of KV blocks shared by instances; "not yet" for 50 ms after a request's first question
POOL = Store(kind="store", latency=0.02, bandwidth=5000, lookup=0.05)
PD_LOOKUP = Store(kind="pd", latency=0.02, bandwidth=5000, lookup=0.05)
LOSSY = Store(kind="pd", latency=0.02, bandwidth=5000, p_fail=0.03, p_lost=0.03)


@dataclass(frozen=True)
class Cell:
    """One row of the results. ``pool``: usable blocks in multiples of the trace's largest request.

    ``share``: of the trace's conversations that the simulated instance gets.
    """

    group: str
    version: str
    name: str
    path: str
    share: float
    pool: float
    store: Store = NONE
    length: float = 0.0  #: seconds of the slice; 0: the bench's
    since: float = 0.0  #: seconds of the trace before the first slice
    horizon: float = 1800.0  #: seconds after the last arrival at which a run is given up
    options: tuple[tuple[str, str], ...] = ()  #: settings of our class, by environment variable

    @property
    def label(self) -> str:
        said = "".join(f" {k.removeprefix('STALLPROOF_')}={v}" for k, v in self.options)
        kind = f" {self.store.kind}" if self.group == "patience" and self.store.kind != "none" else ""
        return f"{self.group} {self.name}{kind} {self.version} pool {self.pool:g}{said}"


def reasoning(group: str, version: str, store: Store, **more: Any) -> Cell:
    """A cell of reasoning traffic."""
    return Cell(
        group, version, *REASONING, 1.05, store, since=REASONING_HOUR, horizon=REASONING_HORIZON, **more
    )


def _cells() -> Iterator[Cell]:
    """The most informative ones first."""
    new, pd_share = "0.32.0", 0.18  # a decode node does no prefill, so it takes more requests
    pd, tight = (*MOONCAKE[:2], pd_share), 1.05
    for pool in (tight, 2.0):
        yield Cell("sweep", new, *AZURE, pool)
        yield Cell("sweep", new, *MOONCAKE, pool)
    yield Cell("pd", new, *pd, tight, PD)
    yield Cell("offload", new, *MOONCAKE, tight, OFFLOAD)
    yield Cell("lossy", new, *pd, 1.4, LOSSY, options=(("STALLPROOF_LOAD_DEADLINE_S", "30"),))
    for old in ("0.28.0", "0.23.0"):
        yield Cell("pd", old, *pd, tight, PD)
        yield Cell("sweep", old, *AZURE, tight)
    for version in ("0.28.0", new, "0.23.0"):
        yield reasoning("kv-pool", version, POOL)
        yield reasoning("pd", version, PD)
        yield Cell("kv-pool", version, *AZURE[:2], 0.3, tight, POOL, horizon=600.0)
        yield Cell("pd-burst", version, *MOONCAKE[:2], 0.35, tight, PD_LOOKUP)
        yield Cell("pd-burst", version, *AZURE[:2], 0.3, tight, PD_LOOKUP)
    yield reasoning("sweep", new, NONE)
    yield reasoning("offload", "0.28.0", OFFLOAD)
    yield reasoning("offload", new, OFFLOAD)
    for pool in (1.4, 8.0, 3.0):
        yield Cell("sweep", new, *AZURE, pool)
        yield Cell("sweep", new, *MOONCAKE, pool)
    for old in ("0.28.0", "0.23.0"):
        yield Cell("offload", old, *MOONCAKE, tight, OFFLOAD)
        yield Cell("sweep", old, *MOONCAKE, tight)
        yield Cell("sweep", old, *MOONCAKE, 2.0)
    yield Cell("pd", new, *pd, 2.0, PD)
    yield Cell("offload", new, *MOONCAKE, 2.0, OFFLOAD)
    for p in ("0", "2"):  # tuning of P; the default is in the other cells
        for store in (PD, POOL, OFFLOAD):
            yield reasoning("patience", new, store, options=(("STALLPROOF_PATIENCE", p),))
        for name in (AZURE, (*MOONCAKE[:2], pd_share)):
            store = PD if name[0] == "mooncake" else NONE
            yield Cell("patience", new, *name, tight, store, options=(("STALLPROOF_PATIENCE", p),))
    for old in ("0.23.0", "0.28.0"):
        yield Cell(
            "patience", old, *AZURE[:2], 0.3, tight, PD_LOOKUP, options=(("STALLPROOF_PATIENCE", "0"),)
        )
    yield reasoning("patience", "0.23.0", PD, options=(("STALLPROOF_PATIENCE", "0"),))
    for pool in (tight, 3.0):
        yield Cell("hour", new, *MOONCAKE, pool, length=3600.0)


CELLS = tuple(_cells())
#: the first seconds of the slices of the seeds: spread over the hour of every trace
SPAN = 3500.0


@cache
def largest(path: Path) -> int:
    """Tokens of the largest request of a trace; of statistics, the length at which requests are left out."""
    if path.is_dir():
        return REASONING_LEN
    read = workload.mooncake if path.suffix == ".jsonl" else workload.azure
    return max(j.prompt + j.output for j in read(path))


def plan_of(cell: Cell, seed: int, seeds: int, scheduler: str, traces: Path, length: float) -> Plan:
    """The run of one seed."""
    span = cell.length or length
    start = 0.0 if span >= SPAN else cell.since + round(seed * (SPAN - span) / max(1, seeds - 1), 1)
    return Plan(
        work=Work(
            path=str((traces / cell.path).resolve()), start=start, length=span, share=cell.share, jitter=2.0,
            seed=seed,
        ),
        scheduler=scheduler, blocks=math.ceil(cell.pool * largest(traces / cell.path) / 16), store=cell.store,
        latency=DEVICE, seed=seed, horizon=cell.horizon, slo_ttft=30.0, slo_itl=0.3,
        max_model_len=REASONING_LEN if cell.path == REASONING[1] else 131072,
        options=dict(cell.options) if scheduler != "stock" else {},
    )  # fmt: skip


@cache
def code(scheduler: str) -> str:
    """Fingerprint of the code that a result of ``scheduler`` depends on."""
    base = ROOT / "impl" / "stallproof"
    files = [base / f for f in SIMULATOR]
    if scheduler != "stock":
        files += sorted((base / "core").glob("*.py")) + sorted((base / "vllm").glob("*.py"))
    text = b"".join(p.read_bytes() for p in files)
    return hashlib.sha256(text).hexdigest()[:12]


def key(version: str, plan: Plan) -> str:
    """Name of a result: equal for equal runs."""
    raw = msgspec.to_builtins(plan)
    raw["work"]["path"] = Path(plan.work.path).name
    text = json.dumps([version, raw, code(plan.scheduler)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


@cache
def archived(archive: Path) -> dict[str, dict[str, Any]]:
    """Results of earlier benches by :func:`key`."""
    if not archive.exists():
        return {}
    try:
        lines = gzip.decompress(archive.read_bytes()).splitlines()
        return {kept["key"]: kept for kept in map(json.loads, lines)}
    except (OSError, EOFError, ValueError, KeyError) as exc:
        raise BadInput(
            f"no archive of results: {exc}", path=archive, remedy="git checkout it, or --archive FILE"
        ) from None


def result_of(name: str, a: argparse.Namespace) -> dict[str, Any] | None:
    """The result called ``name``, from this bench or the archive."""
    path = a.out / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else archived(a.archive).get(name)


def archive(cells: list[Cell], a: argparse.Namespace) -> None:
    """Keep what the pages are made of, beside what is there; results of other code are dropped."""
    kept = {n: one for n, one in archived(a.archive).items() if one["code"] == code(one["scheduler"])}
    for cell in cells:
        for seed in range(a.seeds):
            for scheduler in SCHEDULERS:
                name = key(cell.version, plan_of(cell, seed, a.seeds, scheduler, a.traces, a.minutes * 60))
                if (one := result_of(name, a)) is not None:
                    kept[name] = {"key": name, **{k: one[k] for k in KEPT}}
    lines = [json.dumps(kept[name], sort_keys=True) + "\n" for name in sorted(kept)]
    a.archive.parent.mkdir(parents=True, exist_ok=True)
    a.archive.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))
    archived.cache_clear()


def run(cells: list[Cell], a: argparse.Namespace) -> None:
    """Run what has no result yet; each result is written as it comes."""
    todo: list[tuple[Cell, int, Plan, Path]] = []
    asked: set[str] = set()  # cells that differ in our settings only share stock's runs
    for cell in cells:
        for seed in range(min(a.seeds, a.first or a.seeds)):  # the plan of a seed depends on --seeds alone
            for scheduler in SCHEDULERS:
                plan = plan_of(cell, seed, a.seeds, scheduler, a.traces, a.minutes * 60)
                name = key(cell.version, plan)
                target = a.out / f"{name}.json"
                if name not in asked and result_of(name, a) is None:
                    asked.add(name)
                    todo.append((cell, seed, plan, target))
    print(f"{len(todo)} runs to do", flush=True)
    begin = time.monotonic()

    def done(i: int, result: dict[str, Any]) -> None:
        cell, seed, plan, target = todo[i]
        kept = {
            "cell": cell.label, "seed": seed, "scheduler": plan.scheduler, "vllm": result["version"],
            "code": code(plan.scheduler), "plan": msgspec.to_builtins(plan), "summary": result["summary"],
        }  # fmt: skip
        spare = target.with_suffix(".tmp")
        spare.write_text(json.dumps(kept))
        spare.replace(target)
        s = result["summary"]
        print(
            f"{time.monotonic() - begin:6.0f} s  {cell.label} seed {seed} {plan.scheduler}: "
            f"{s['completed']} of {s['requests']}, {s['preemptions']} preemptions, {s['wall_s']:.1f} s",
            flush=True,
        )

    cases = [{"version": c.version, "plan": msgspec.to_builtins(p)} for c, _, p, _ in todo]
    where = spread.Where(jobs=a.jobs, ray=a.ray)
    try:
        spread.run(run_case, cases, where, on_done=done, label=lambda c: c["plan"]["scheduler"])
    finally:
        close_kept()


def results(cells: list[Cell], a: argparse.Namespace) -> dict[Cell, list[dict[str, dict[str, Any]]]]:
    """What there is: per cell, one ``{scheduler: summary}`` per seed for which both have run."""
    out: dict[Cell, list[dict[str, dict[str, Any]]]] = {}
    for cell in cells:
        for seed in range(a.seeds):
            pair = {}
            for scheduler in SCHEDULERS:
                plan = plan_of(cell, seed, a.seeds, scheduler, a.traces, a.minutes * 60)
                if (one := result_of(key(cell.version, plan), a)) is not None:
                    pair[scheduler] = one["summary"]
            if len(pair) == len(SCHEDULERS):
                out.setdefault(cell, []).append(pair)
    return out


def arguments(args: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "data" / "traces")
    parser.add_argument("--minutes", type=float, default=10.0, help="length of a slice")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument(
        "--first", type=int, default=0, help="run the first N seeds only, so that every cell gets some"
    )
    parser.add_argument(
        "--only", action="append", help="group of cells: " + ", ".join(sorted({c.group for c in CELLS}))
    )
    parser.add_argument("--cells", type=int, default=0, help="the first so many cells only")
    parser.add_argument(
        "--quick", action="store_true", help="3 cells, 2 seeds, slices of 1 minute; writes no page"
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--ray", help="address of a Ray cluster")
    parser.add_argument("--no-run", action="store_true", help="pages from the results that there are")
    parser.add_argument("--no-page", action="store_true", help="tables only; what is under docs/ stays")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "simulate", help="where results are kept")
    parser.add_argument("--archive", type=Path, default=ARCHIVE, help="results behind the pages")
    return parser.parse_args(args)


def main(args: list[str] | None = None) -> int:
    a = arguments(args)
    cells = [c for c in CELLS if not a.only or c.group in a.only]
    if a.quick:
        a.minutes, a.seeds, cells = 1.0, 2, [c for c in cells if not c.length and c.pool == 1.05][:3]
    cells = cells[: a.cells or None]
    missing = [c.path for c in cells if not (a.traces / c.path).exists()]
    if missing:
        print(f"no {missing[0]} below {a.traces}\nremedy: --traces FOLDER", file=sys.stderr)
        return 2
    a.out.mkdir(parents=True, exist_ok=True)
    try:
        if not a.no_run:
            run(cells, a)
        found = results(cells, a)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 130
    except StallproofError as exc:
        print(exc, file=sys.stderr)
        return int(exc.code)
    planned = dict.fromkeys(cells, a.seeds)
    text = simulate_report.tables(found, planned, a.minutes)
    print(text)
    if not a.quick and not a.no_page:
        archive(cells, a)
        (DOCS / "simulate-results.md").write_text(simulate_report.page(text, found, planned, a, DEVICE))
        for name, picture in simulate_report.pictures(found):
            (DOCS / "img" / name).write_text(picture)
    return 1 if any(p["stallproof"]["stranded"] for pairs in found.values() for p in pairs) else 0


if __name__ == "__main__":
    sys.exit(main())
