"""What `stallproof check` runs: one job per row, each with its expectation and its verdict."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stallproof.check import equality, tlc
from stallproof.check.config import INVARIANTS, LARGE, LIVE, STEPS, Config, recorded
from stallproof_model import explore


@dataclass
class Row:
    """One line of the table. ``good`` is the verdict; ``note`` says what is wrong, or adds a figure."""

    name: str
    kind: str
    expected: str
    result: str = ""
    distinct: int | None = None
    depth: int | None = None
    trace: int | None = None
    seconds: float = 0.0
    good: bool = False
    note: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Job:
    """Something to run; ``cost`` orders long jobs first."""

    name: str
    kind: str
    expected: str
    run: Callable[[], list[Row]]
    cost: int = 0


def tlc_row(cfg: Config, timeout: float, figures: dict[str, dict[str, Any]], keep: Path | None = None) -> Row:
    """Check an ``ok`` configuration with TLC: all statements, liveness too if ``live``."""
    row = Row(cfg.name, "ok", "ok")
    twin = cfg.has_twin
    if twin and keep:
        # Calls judges each possible call once: the same statements, several times as fast (spec/Calls.tla).
        r = tlc.run("Calls", cfg.tla, invariants=LARGE, timeout=timeout, **_big(cfg, keep))
    elif twin:
        live = ["NoStarvation" if cfg.c.Recycle else "Termination"] if cfg.live else []
        r = tlc.run(
            cfg.module,
            cfg.tla,
            invariants=[x for x in INVARIANTS if x not in cfg.without],
            properties=[x for x in (*STEPS, *live) if x not in cfg.without],
            spec="FairSpec" if cfg.live else "Spec",
            timeout=timeout,
        )
    else:
        r = tlc_once(cfg, False, timeout, keep)
    if keep and r.collision:
        row.extra |= {"collision": r.collision, "seconds": round(r.seconds)}
        row.note = f"collision probability {r.collision}"
    row.result, row.distinct, row.depth, row.seconds = r.result, r.distinct, r.depth, r.seconds
    row.good = r.result == tlc.OK
    if r.result == tlc.BROKEN:
        row.note = r.error or "no verdict"
    elif r.result == tlc.UNFINISHED:
        row.note += ", no violation so far: run it again to go on"
    elif not row.good:
        row.note = f"violated after {len(r.trace)} states"
    known = figures.get(cfg.name, {})
    want = known.get("states")
    if row.good and want is not None and not known.get("unfinished") and want != r.distinct:
        row.good, row.note = False, f"recorded {want} states"
    if row.good and not r.distinct:
        row.good, row.note = False, "no state"
    if row.good and twin and not keep:
        cycle = explore.lasso(explore.graph(cfg.c), want_cycle=False)
        if cycle:
            row.good, row.note = False, f"fair-cycle search: {cycle.kind}"
    return row


def gap_row(cfg: Config, timeout: float, figures: dict[str, dict[str, Any]]) -> Row:
    """A gap: TLC must refute the named statement, and the fixed setting must pass."""
    row = Row(
        cfg.name, "gap", f"refuted by {cfg.refutes}", extra={"bugs": list(cfg.bugs), "cause": cfg.cause}
    )
    live = cfg.refutes in LIVE
    inv = not live and cfg.refutes in (INVARIANTS if cfg.has_twin else cfg.invariants)
    r = tlc.run(
        cfg.module,
        cfg.tla,
        invariants=[cfg.refutes] if inv else [],
        properties=[] if inv else [cfg.refutes],
        spec="FairSpec" if live else "Spec",
        symmetry=cfg.symmetry,
        timeout=timeout,
    )
    row.distinct, row.depth, row.seconds = r.distinct, r.depth, r.seconds
    row.trace = len(r.trace) or (1 if r.result not in (tlc.OK, tlc.BROKEN) else None)
    refuted = r.result == (tlc.LIVENESS if live else cfg.refutes)
    row.result = cfg.refutes if refuted else r.result
    if not refuted:
        row.note = r.error or f"expected a violation of {cfg.refutes}"
        return row
    want = figures.get(cfg.name, {}).get("trace")
    if not live and want is not None and want != row.trace:
        row.note = f"recorded a trace of {want} states"
        return row
    started = time.monotonic()
    if cfg.has_twin:
        if live:
            cycle = explore.lasso(explore.graph(cfg.c))
            if cycle is None:
                row.note = "TLC finds a fair cycle, the Python search none"
                return row
            row.extra["lasso"] = {
                "kind": cycle.kind,
                "prefix": len(cycle.prefix),
                "cycle": len(cycle.cycle) or 1,
            }
            known = figures.get(cfg.name, {}).get("cycle")
            if known is not None and known != row.extra["lasso"]["cycle"]:
                row.note = f"recorded a cycle of {known} states"
                return row
            row.note = f"{cycle.kind}: prefix {len(cycle.prefix)}, cycle {len(cycle.cycle) or 1}"
        bad = twin_verdict(cfg.fixed_c, without=cfg.without)
    else:
        bad = tlc_fixed(cfg, timeout)
    row.seconds += time.monotonic() - started
    if bad:
        row.note = f"with {dict(cfg.fixed)} it still violates {bad}"
        return row
    row.good = True
    return row


def twin_verdict(c: Any, limit: int = 60_000, without: Sequence[str] = ()) -> str:
    """The statement that ``c`` violates according to the Python model, liveness included; empty: none."""
    try:
        g = explore.graph(c, limit)
    except explore.TooBig as exc:
        return f"(no verdict: {exc})"
    found = explore.first_violation(g, [x for x in (*INVARIANTS, *STEPS) if x not in without])
    if found:
        return found.prop
    cycle = explore.lasso(g, want_cycle=False)
    return f"{cycle.prop} ({cycle.kind})" if cycle else ""


_lock = threading.Lock()
_once: dict[str, tuple[threading.Lock, list[tlc.Result]]] = {}


def _big(cfg: Config, keep: Path) -> dict[str, Any]:
    """Options of a nightly run: all cores, much memory, checkpoints below ``keep``."""
    return {"big": True, "workers": os.cpu_count() or 2, "heap": "5g", "keep": keep / cfg.name}


def tlc_once(cfg: Config, fixed: bool, timeout: float, keep: Path | None = None) -> tlc.Result:
    """All statements on ``cfg`` (or with the gap closed): many gaps share their fixed setting."""
    constants = cfg.tla_fixed if fixed else cfg.tla
    invariants, properties = (INVARIANTS, STEPS) if cfg.has_twin else (cfg.invariants, cfg.properties)
    key = repr((cfg.module, sorted(constants.items(), key=lambda kv: kv[0]), cfg.without))
    with _lock:
        lock, got = _once.setdefault(key, (threading.Lock(), []))
    with lock:
        if not got:
            got.append(
                tlc.run(
                    cfg.module,
                    constants,
                    invariants=[x for x in invariants if x not in cfg.without],
                    properties=[x for x in properties if x not in cfg.without],
                    symmetry=cfg.symmetry,
                    spec=cfg.spec,
                    timeout=timeout,
                    **(_big(cfg, keep) if keep else {}),
                )
            )
    return got[0]


def tlc_fixed(cfg: Config, timeout: float) -> str:
    """The statement that the closed gap still violates according to TLC; empty: none."""
    r = tlc_once(cfg, True, timeout)
    if r.result == tlc.OK and r.distinct:
        return ""
    return r.error or r.result


def mutant_row(cfg: Config, timeout: float, figures: dict[str, dict[str, Any]]) -> Row:
    """A wrong operator or constant: TLC must refute the named statement, and the right one must pass."""
    row = Row(cfg.name, "mutant", f"refuted by {cfg.refutes}", extra={"cause": cfg.cause})
    inv = cfg.refutes in (INVARIANTS if cfg.has_twin else cfg.invariants)
    r = tlc.run(
        cfg.module,
        cfg.tla,
        invariants=[cfg.refutes] if inv else [],
        properties=[] if inv else [cfg.refutes],
        spec=cfg.spec,
        definitions=cfg.definition,
        replaced=cfg.replaced,
        timeout=timeout,
    )
    row.result, row.distinct, row.depth, row.seconds = r.result, r.distinct, r.depth, r.seconds
    row.trace = len(r.trace) or None
    want = figures.get(cfg.name, {}).get("trace")
    if r.result != cfg.refutes:
        row.note = r.error or f"expected a violation of {cfg.refutes}"
    elif want is not None and want != row.trace:
        row.note = f"recorded a trace of {want} states"
    else:
        right = tlc_once(cfg, True, timeout)
        row.seconds += right.seconds
        row.good = right.result == tlc.OK and bool(right.distinct)
        row.note = (
            f"{right.distinct} states without it"
            if row.good
            else f"without the fault it still violates {right.error or right.result}"
        )
    return row


def equal_row(cfg: Config, timeout: float, figures: dict[str, dict[str, Any]]) -> Row:
    """Graph equality of TLC and the Python model."""
    row = Row(cfg.name, "equal", "equal graphs")
    started = time.monotonic()
    r = equality.compare(cfg.c, timeout)
    row.distinct, row.depth, row.seconds = r.nodes, r.depth, time.monotonic() - started
    row.result = "different" if r.difference else "equal"
    row.note = r.difference or f"{r.edges} edges"
    row.good = not r.difference
    want = figures.get(cfg.name, {}).get("states")
    if row.good and want is not None and want != r.nodes:
        row.good, row.note = False, f"recorded {want} states"
    return row


_ROWS = {"gap": gap_row, "mutant": mutant_row, "equal": equal_row}


def jobs(configs: Sequence[Config], timeout: float = 300, keep: Path | None = None) -> list[Job]:
    """One job per configuration; with ``keep``, large runs with checkpoints below that directory."""
    figures = recorded()
    out = []
    for cfg in configs:
        refuted = f"refuted by {cfg.refutes}"
        expected = {"ok": "ok", "gap": refuted, "mutant": refuted, "equal": "equal graphs"}[cfg.kind]

        def go(cfg: Config = cfg) -> list[Row]:
            if cfg.kind == "ok":
                return [tlc_row(cfg, timeout, figures, keep)]
            return [_ROWS[cfg.kind](cfg, timeout, figures)]

        cost = figures.get(cfg.name, {}).get("states") or 0
        out.append(Job(cfg.name, cfg.kind, expected, go, cost * (20 if cfg.live else 1)))
    return out


def run(todo: Sequence[Job], workers: int = 2) -> Iterator[tuple[Job, list[Row]]]:
    """Run jobs, long ones first, on ``workers`` threads; yields each as it ends.

    An exception that names a missing tool or bad input propagates; any other becomes a failed row.
    """
    from stallproof.errors import StallproofError

    order = sorted(todo, key=lambda j: -j.cost)
    with ThreadPoolExecutor(max_workers=workers) as pool:
        running: dict[Future, Job] = {pool.submit(j.run): j for j in order}
        try:
            while running:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for f in done:
                    job = running.pop(f)
                    try:
                        rows = f.result()
                    except StallproofError:
                        raise
                    except Exception as exc:
                        rows = [Row(job.name, job.kind, job.expected, "broken", note=f"{exc!r}")]
                    yield job, rows
        finally:
            for f in running:
                f.cancel()
