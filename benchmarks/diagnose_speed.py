"""Speed of ``stallproof diagnose`` on a stated mix, one core.

The mix: 5 % relevant lines (statistics and request records), the rest access-log, application and library
lines, mean length about 200 bytes, written once to a temporary file. The dense log has relevant lines only.
Prints MB/s of processor time, best of three, (decimal megabytes) and peak memory; ``--json`` for machines.
"""
# ruff: noqa: E501 - log lines as they are

from __future__ import annotations

import argparse
import json
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from stallproof.diagnose import run


def relevant(rng: random.Random, n: int) -> bytes:
    t = 10 * n
    stamp = f"{7 + t // 2592000 % 5:02d}-{1 + t // 86400 % 28:02d} {t // 3600 % 24:02d}:{t // 60 % 60:02d}:{t % 60:02d}"
    if rng.random() < 0.5:
        return (
            f"(APIServer pid=1) INFO {stamp} [loggers.py:271] Engine 000: Avg prompt throughput: {rng.random() * 9e3:.1f} "
            f"tokens/s, Avg generation throughput: {1 + rng.random() * 900:.1f} tokens/s, Running: {rng.randrange(1, 99)} reqs, "
            f"Waiting: {rng.randrange(9)} reqs, GPU KV cache usage: {rng.random() * 90:.1f}%, Prefix cache hit rate: 42.4%\n"
        ).encode()
    return (
        f"(APIServer pid=1) INFO {stamp} [logger.py:42] Received request chatcmpl-{rng.getrandbits(96):024x}: "
        f"params: SamplingParams(n=1, temperature=0.7, top_p=0.95, max_tokens=512, seed=None, stop=[]), lora_request: None.\n"
    ).encode()


def other(rng: random.Random, n: int) -> bytes:
    k = rng.random()
    if k < 0.6:
        path = "x" * rng.randrange(90, 150)
        return (
            f"(APIServer pid=1) INFO:     192.0.2.{rng.randrange(255)}:{rng.randrange(1024, 65535)} - "
            f'"POST /v1/chat/completions?trace={path} HTTP/1.1" 200 OK\n'
        ).encode()
    if k < 0.8:
        return (
            f'2026-01-01T00:00:00.{n % 10**6:06d}Z app={rng.getrandbits(64):016x} msg="{"served " * rng.randrange(15, 28)}"\n'
        ).encode()
    return (
        f"(APIServer pid=1) INFO 07-01 00:00:00 [media.py:{rng.randrange(900)}] fetched {'part ' * rng.randrange(20, 35)}\n"
    ).encode()


def lines(size: int, share: float, seed: int = 7) -> Iterator[bytes]:
    rng = random.Random(seed)
    n = done = 0
    while done < size:
        line = relevant(rng, n) if rng.random() < share else other(rng, n)
        n += line.startswith(b"(APIServer pid=1) INFO 0")
        done += len(line)
        yield line


def measure(size: int, share: float, folder: Path) -> dict[str, float]:
    path = folder / f"mix-{share}.log"
    count = 0
    with path.open("wb") as f:
        for line in lines(size, share):
            f.write(line)
            count += 1
    dt = float("inf")
    for _ in range(3):  # the best of three: other work on the machine only ever adds
        t = time.process_time()
        report = run.diagnose([str(path)])
        dt = min(dt, time.process_time() - t)
    assert report.inputs[0]["lines"] == count, (report.inputs, count)
    return {
        "share": share,
        "bytes": path.stat().st_size,
        "mean_line": round(path.stat().st_size / count, 1),
        "seconds": round(dt, 3),
        "mb_per_s": round(path.stat().st_size / dt / 1e6, 1),
        "lines_per_s": round(count / dt),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--mb", type=int, default=200, help="size of the mixed log in MB (the dense one: a tenth)")
    p.add_argument("--json", action="store_true")
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as d:
        rows = [measure(args.mb * 10**6, 0.05, Path(d)), measure(args.mb * 10**5, 1.0, Path(d))]
    if args.json:
        print(json.dumps(rows))
        return
    print("share of relevant lines  mean line  MB/s   lines/s    peak memory")
    for r in rows:
        print(
            f"{r['share']:>22.0%}  {r['mean_line']:>7.1f} B  {r['mb_per_s']:>5.1f}  {r['lines_per_s']:>8}  {r['peak_rss_mb']:>6.1f} MB"
        )


if __name__ == "__main__":
    main()
