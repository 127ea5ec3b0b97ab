"""How fast is the trace checker? Events, records and megabytes per second, parsing alone beside it.

An *event* is one block-state change or one decision; a plain decode token is not one.

The recording is either given (``--trace``) or made here: the engine of the trace tests, which schedules paged
blocks in earnest, serves requests of the shape of a Mooncake conversation trace (``--workload``, a JSON lines
file with ``input_length``, ``output_length`` and ``hash_ids``; without it, lengths drawn to its mean). One
process, one core, seconds of CPU time (other load does not count); the best of ``--repeat`` is printed.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from stallproof.trace import reader
from stallproof.trace import schema as s
from stallproof.trace.checker import LAYERS, Checker, Options


def shapes(path: str | None, seed: int = 0):
    """(prompt tokens, output tokens, first prefix hash) per request."""
    if path:
        with Path(path).open() as rows:
            for row in rows:
                x = json.loads(row)
                yield x["input_length"], x["output_length"], x["hash_ids"][1] if len(x["hash_ids"]) > 1 else 0
    rng = random.Random(seed)
    while True:
        yield int(rng.lognormvariate(8.6, 1.0)) + 1, rng.randint(20, 640), rng.randint(0, 400)


def make(path: Path, events: int, workload: str | None, pool: int, batch: int) -> None:
    """Record at least ``events`` events."""
    from tests.trace.toy import Toy

    from stallproof.trace.writer import Writer

    toy = Toy(pool=pool, block=16, depth=2, budget=8192, seqs=batch, seed=1, readers=False, loads=False)
    writer = Writer(
        path,
        engine=toy.engine,
        config=toy.config,
        snapshot=toy.snapshot,
        source="harness",
        rules=toy.rules,
        clock=lambda: toy.ts,
    )
    seen = 0

    def write(rec) -> None:
        nonlocal seen
        for e in rec.ev:
            seen += len(getattr(e, "blocks", ())) or 1
        writer.write(rec)

    toy.write = write
    source = shapes(workload)
    while seen < events or toy.reqs or toy.infl:
        if seen < events and len(toy.waiting) < 8:
            prompt, output, family = next(source)
            toy.add(prompt=min(prompt, pool * 8), max_tokens=output, family=family, ext=0)
        if len(toy.infl) >= 2 or (toy.infl and not toy.reqs):
            toy.update()
        else:
            toy.schedule()
    writer.close()


def measure(path: Path, layers: tuple[str, ...] | None) -> tuple[float, Checker | None, int, int, int]:
    """Seconds, checker, records, bytes and scheduled requests of one pass; ``layers`` None: parse only."""
    checker = Checker(Options(layers=layers, all=False)) if layers else None
    gc.collect()
    records = size = 0
    begin = time.process_time()
    for b in reader.read(reader.source(path)):
        records += len(b.records)
        size += b.size
        if checker is not None and not checker.run([b]):
            raise SystemExit(f"the recording does not conform: {checker.out.violations[0]}")
    return time.process_time() - begin, checker, records, size, 0


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--trace", help="an existing recording")
    ap.add_argument("--workload", help="Mooncake trace (JSON lines) whose request shapes are used")
    ap.add_argument("--events", type=int, default=1_000_000)
    ap.add_argument("--pool", type=int, default=30_000, help="blocks of 16 tokens")
    ap.add_argument("--batch", type=int, default=64, help="running requests at most")
    ap.add_argument("--repeat", type=int, default=3)
    ap.add_argument("--need", type=float, default=0, help="fail below so many ledger events per second")
    ap.add_argument("--json", action="store_true")
    opt = ap.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        path = Path(opt.trace) if opt.trace else Path(tmp) / "speed.jsonl"
        if not opt.trace:
            make(path, opt.events, opt.workload, opt.pool, opt.batch)
        tokens = calls = 0
        for b in reader.read(reader.source(path)):
            for rec in b.records:
                if type(rec) is s.Sched:
                    calls += 1
                    tokens += len(rec.tok)
        rows = {}
        for name, layers in (("parse only", None), ("ledger", ("ledger",)), ("all layers", LAYERS)):
            runs = [measure(path, layers) for _ in range(opt.repeat)]
            best = min(runs, key=lambda r: r[0])
            rows[name] = best
    events = rows["ledger"][1].ledger.events
    result = {
        "events": events,
        "records": rows["ledger"][2],
        "megabytes": round(rows["ledger"][3] / 1e6, 1),
        "calls": calls,
        "mean batch": round(tokens / max(1, calls), 1),
        "peak memory MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }
    for name, (seconds, _, records, size, _) in rows.items():
        result[name] = {
            "events/s": round(events / seconds),
            "records/s": round(records / seconds),
            "MB/s": round(size / seconds / 1e6, 1),
            "seconds": round(seconds, 2),
        }
    if opt.json:
        print(json.dumps(result))
    else:
        for key, value in result.items():
            print(
                f"{key:16} "
                + (
                    "  ".join(f"{v:>12,} {k}" for k, v in value.items())
                    if isinstance(value, dict)
                    else f"{value:>12,}"
                )
            )
    if events < opt.need or result["ledger"]["events/s"] < opt.need:
        print(f"below the bar of {opt.need:,.0f} ledger events/s", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
