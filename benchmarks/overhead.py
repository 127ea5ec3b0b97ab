"""Cost of the guard: ``schedule()`` + ``update_from_output()``, vLLM's class and ours alternating.

    python benchmarks/overhead.py [--running 64 256 1024] [--rounds 300] [--json]      (in an engine)
    make bench-overhead VLLM=0.32.0

Two schedulers of the same shape decode the same requests in one process, a few steps each in turn; round by
round the order changes, each pair of rounds gives one difference, and the median difference with a 95 %
interval (order statistics) is reported as a share of the stock time. CPU time of the process is measured, so
a busy machine disturbs little. After each change of class ``WARM`` steps are not measured: CPython keeps
per-instruction caches for one class at a time, and an engine process has one class only. Without them
(``--warm 0``) two schedulers of vLLM's own class differ by up to 1 %, and the interval is ten times as wide.

States: ``decode`` (nothing refused, no load parked; FCFS), ``queue`` (as before, with requests waiting behind
full slots), ``recorded`` (recorder on, written to a file), ``parked`` (a parked load keeps the allocation
hook on). Limits of the promise: 3 % for the first two, 10 % for the others.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import math
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LIMIT = {"decode": 3.0, "queue": 3.0, "recorded": 10.0, "parked": 10.0}


def _rig() -> Any:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "vllm_class"))
    from rig import Rig

    return Rig


def _start(cls: str, running: int, state: str, tokens: int) -> Any:
    """A scheduler with ``running`` requests that decode, in the given state."""
    prompt = 17
    per = -(-(prompt + tokens + 2) // 16)
    rig = _rig()(
        cls,
        record=False,
        blocks=running * per + 64,
        depth=2,
        role="kv_both",
        budget=max(8192, running * prompt),
        max_num_seqs=running,
        max_model_len=4096,
    )
    if state == "parked":
        rig.s.max_num_running_reqs += 1
        if hasattr(rig.s, "max_num_active_reqs"):
            rig.s.max_num_active_reqs += 1
        rig.mute = {"load"}
        rig.add("load", 64, 4, tokens=48)
    for i in range(running):
        rig.add(f"r{i}", prompt, tokens)
    for _ in range(6):
        rig.step()
    if state == "parked":  # its load has ended, and no slot is free for it
        rig.s.max_num_running_reqs -= 1
        if hasattr(rig.s, "max_num_active_reqs"):
            rig.s.max_num_active_reqs -= 1
        rig.step(recv=["load"])
        rig.step()
    if state == "queue":
        for i in range(16):
            rig.add(f"w{i}", prompt, tokens)
        rig.step()
    return rig


def _record(rig: Any, folder: str) -> None:
    from stallproof.vllm.recording import attach_file

    attach_file(rig.s, str(Path(folder) / "trace.jsonl"))


#: Steps between two readings of the clock. A reading is a system call that can take as long as a small step.
STEPS = 4
#: Steps before them that are not measured: the interpreter adapts to the class again.
WARM = 4


def _round(rig: Any, warm: int) -> float:
    """CPU milliseconds of one ``schedule()`` and one ``update_from_output()``, mean of ``STEPS``.

    The worker's answer is made in between, for both classes alike: about 1 % of the time.
    """
    for _ in range(warm):
        _step(rig)
    t0 = time.process_time_ns()
    for _ in range(STEPS):
        _step(rig)
    return (time.process_time_ns() - t0) / 1e6 / STEPS


def _step(rig: Any) -> None:
    from vllm.v1.outputs import ModelRunnerOutput

    s = rig.s
    rig.flight.append(s.schedule())
    old = rig.flight.pop(0)
    ids = list(old.num_scheduled_tokens)
    result = ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={r: i for i, r in enumerate(ids)},
        sampled_token_ids=[[7]] * len(ids),
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
        kv_connector_output=None,
    )
    s.update_from_output(old, result)


def interval(values: list[float]) -> tuple[float, float, float]:
    """Median and its 95 % interval from order statistics."""
    v, n = sorted(values), len(values)
    half = 1.96 * math.sqrt(n) / 2
    low, high = max(0, math.floor(n / 2 - half)), min(n - 1, math.ceil(n / 2 + half))
    return statistics.median(v), v[low], v[high]


def measure(running: int, state: str, rounds: int, warm: int = WARM) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        tokens = rounds * (STEPS + warm) + 32
        pair = [_start("stock", running, state, tokens), _start("stallproof", running, state, tokens)]
        if state == "recorded":
            _record(pair[1], folder)
        gc.collect()
        gc.disable()
        try:
            stock, ours = [], []
            for i in range(rounds):
                order = (0, 1) if i % 2 else (1, 0)
                got = {k: _round(pair[k], warm) for k in order}
                stock.append(got[0])
                ours.append(got[1])
        finally:
            gc.enable()
        fired = pair[1].s.stallproof_stats()["fired"]
        for rig in pair:
            rig.s.shutdown()
    base = statistics.median(stock)
    mid, low, high = (100 * x / base for x in interval([b - a for a, b in zip(stock, ours, strict=True)]))
    return {
        "running": running,
        "state": state,
        "stock_ms": round(base, 3),
        "ours_ms": round(statistics.median(ours), 3),
        "overhead_pct": round(mid, 2),
        "interval_pct": [round(low, 2), round(high, 2)],
        "limit_pct": LIMIT[state],
        "within": mid <= LIMIT[state],
        "fired": fired,
    }


def memory_per_request() -> int:
    """Bytes the guard keeps for a running request: its arrival number, and nothing else."""
    return sys.getsizeof(1 << 20) + 8


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--running", type=int, nargs="+", default=[64, 256, 1024])
    p.add_argument("--state", nargs="+", choices=list(LIMIT), default=list(LIMIT))
    p.add_argument("--rounds", type=int, default=300)
    p.add_argument("--warm", type=int, default=WARM, help="steps not measured after each change of class")
    p.add_argument("--json", action="store_true")
    a = p.parse_args()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    logging.disable(logging.WARNING)
    import vllm

    rows = []
    for running in a.running:
        for state in a.state:
            row = measure(running, state, a.rounds, a.warm)
            rows.append(row)
            if not a.json:
                low, high = row["interval_pct"]
                print(
                    f"vLLM {vllm.__version__} {running:5} running, {state:9}"
                    f" stock {row['stock_ms']:8.3f} ms  ours {row['ours_ms']:8.3f} ms"
                    f"  {row['overhead_pct']:+6.2f} % [{low:+.2f}, {high:+.2f}]"
                    f"  limit {row['limit_pct']:.0f} %{'' if row['within'] else '  ABOVE'}",
                    flush=True,
                )
    if a.json:
        print(
            json.dumps({"vllm": vllm.__version__, "memory_per_request": memory_per_request(), "rows": rows})
        )
    else:
        print(f"memory per running request: {memory_per_request()} bytes")
    return 0 if all(r["within"] for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
