"""Runs inside an engine: one real vLLM on CPU, several phases, one JSON object.

``python engine_driver.py '{"scheduler": "stock" | "stallproof", "phases": [...], ...}'``. A phase names a
sanitizer mode and what is broken on purpose. Every phase runs the same requests, so tokens can be compared.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", STALLPROOF_CPU_ASYNC="1", OMP_NUM_THREADS="1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


def engine(plan: Any, scheduler: str) -> Any:
    from vllm import LLM

    from stallproof.harness import cpu_async, tiny
    from stallproof.harness.engine_run import Live

    cpu_async.register()
    kind = {"stock": "StockAsyncScheduler", "stallproof": "GuardedAsyncScheduler"}[scheduler]
    llm = LLM(
        model=str(tiny.make(Path(tempfile.gettempdir()) / f"stallproof-tiny-{os.getuid()}")),
        skip_tokenizer_init=True, max_model_len=plan.max_model_len, num_gpu_blocks_override=plan.blocks + 1,
        block_size=plan.block_size, max_num_seqs=plan.max_num_seqs, max_num_batched_tokens=plan.budget,
        async_scheduling=True, enforce_eager=True, enable_prefix_caching=plan.prefix_caching,
        scheduler_cls=f"stallproof.vllm.recording.{kind}", dtype="float32", seed=0, disable_log_stats=True,
        kv_transfer_config={
            "kv_connector": "MemoryConnector",
            "kv_connector_module_path": "stallproof.harness.memory_connector",
            "kv_role": plan.role,
            "kv_connector_extra_config": plan.connector,
        },
    )  # fmt: skip
    live = Live(llm, plan)
    live.warm()
    return live


def sanitizer(live: Any, phase: dict[str, Any]) -> Any:
    from stallproof.kernels.engine import SanitizeSettings, attach

    if not phase["mode"]:
        return None
    settings = SanitizeSettings(
        phase["mode"], phase.get("pattern", "finite"), checksum=phase.get("checksum", 0)
    )
    made = attach(live.core, settings)
    if phase.get("poison_in_use"):  # control: the oldest request's first block is poisoned while it runs
        feed, plain = made.scheduler.feed, made.scheduler.feed._poison

        def poison() -> list[int]:
            out, running = plain(), live.sched.running
            if running and running[0].num_output_tokens == 3:
                out.append(next(iter(feed.ledger.held(running[0].request_id))))
            return out

        feed._poison = poison
    return made


def device(live: Any, phase: dict[str, Any]) -> Any:
    """Device fences, and what the late device of the sanitizer does with the freedom that it has.

    ``behind``: it finishes a step only when a later one is processed. ``adversary``: it runs ahead as a seed
    says. ``lie``: the mutant, whose mark is early: a step counts as done when it has been submitted.
    """
    import random

    from stallproof.kernels import device_done

    worker = worker_of(live)
    late = getattr(worker, "stallproof_sanitizer", None)
    if late is not None:
        late.behind = phase.get("behind", 0)
        if "adversary" in phase:
            rng, begin = random.Random(phase["adversary"]), late.begin

            def hasty(plan: Any) -> None:
                begin(plan)
                late.sanitizer.device.advance(rng.randrange(12))

            late.begin = hasty
    made = device_done.attach(live.core) if phase.get("fences") else None
    if made is not None and "adversary" in phase:
        hook = worker.stallproof_fences
        close = hook._close

        def hasty_close() -> None:
            close()
            late.sanitizer.device.advance(rng.randrange(12))

        hook._close = hasty_close
    if phase.get("lie"):
        fences = worker.stallproof_fences.fences
        fences.poll = lambda: fences.newest
    return made


def corrupt(live: Any, made: Any) -> list[int]:
    """Flip one bit of one cached block that nobody holds: a write that no scheduler knows of."""
    pool, cache = made.scheduler.pool, worker_of(live).stallproof_sanitizer.sanitizer.cache
    for block, known in made.scheduler.digests._known.items():
        if pool.blocks[block].ref_cnt == 0 and known.step < made.scheduler.feed.ledger.processed:
            cache.segments[1].words[block, 7] ^= 1
            return [block, known.request]
    return []


def worker_of(live: Any) -> Any:
    return live.core.model_executor.driver_worker.worker


def run(live: Any, phase: dict[str, Any]) -> dict[str, Any]:
    """All requests under pressure, every ``abort_every``-th aborted in flight."""
    plan, name = live.plan, phase["name"]
    live.sched.reset_prefix_cache()
    fence = getattr(live.sched, "defer_block_free", None)
    if phase.get("no_fence"):  # what 0.23.0 is without a fence
        live.sched.defer_block_free = False
    if phase.get("trace"):
        from stallproof.vllm.recording import attach_file, close_recording

        attach_file(live.sched, phase["trace"], strict=True, every=1)
    made = sanitizer(live, phase)
    fenced = device(live, phase)
    live.tokens.clear()
    todo, finished, aborted, steps = list(live.work), set(), [], 0
    corrupted: list[Any] = []
    t0, cpu0 = time.perf_counter(), time.process_time()
    while (todo or live.engine.has_unfinished_requests()) and steps < plan.steps:
        for rid, prompt, n in todo[: plan.per_step]:
            live.add(name + rid, prompt, n, 0, load=True)
        todo = todo[plan.per_step :]
        finished |= live.step()
        steps += 1
        if phase.get("corrupt") and not corrupted:
            corrupted = corrupt(live, made)
        for rid, _, _ in live.work[plan.abort_every - 1 :: plan.abort_every] if plan.abort_every else ():
            r = name + rid
            if r not in aborted and r not in finished and len(live.tokens.get(r, ())) >= plan.abort_after:
                aborted.append(r)
                live.engine.abort_request([r])
    live.drain()
    seconds, cpu = time.perf_counter() - t0, time.process_time() - cpu0
    if fenced is not None:
        fenced.detach()
    out: dict[str, Any] = {"reports": [], "checks": 0, "filled": 0, "plans": 0, "repeated": 0}
    if made is not None:
        reports = made.finish()
        inner = worker_of(live).stallproof_sanitizer
        out |= {
            "reports": [
                {
                    "property": r.property, "request": r.request, "block": r.block, "step": r.step,
                    "expected": r.expected, "seen": r.seen, "job": r.job, "line": r.line(), "at": r.at,
                }
                for r in reports
            ],
            "checks": inner.sanitizer.checks, "filled": inner.filled, "plans": made.scheduler.steps,
            "repeated": made.scheduler.repeated,
            "sums": [getattr(made.scheduler.digests, k, 0) for k in ("taken", "compared", "skipped")],
        }  # fmt: skip
        made.detach()
    if phase.get("trace"):
        close_recording(live.sched)
    if fence is not None:
        live.sched.defer_block_free = fence
    cut = len(name)
    return {
        **phase, **out, "mode_used": made.settings.mode if made else "",
        "steps": steps, "seconds": seconds, "cpu": cpu,
        "finished": len(finished), "aborted": len(aborted),
        "fenced": fenced is not None, "corrupted": corrupted,
        "free": live.sched.kv_cache_manager.block_pool.get_num_free_blocks(),
        "tokens": {r[cut:]: t for r, t in live.tokens.items() if r in finished and r not in aborted},
    }  # fmt: skip


def main() -> None:
    asked = json.loads(sys.argv[1])
    from stallproof.harness import memory_connector
    from stallproof.harness.engine_run import Plan

    numbers = asked.get("plan", {})
    plan = Plan(**{k: tuple(v) if isinstance(v, list) else v for k, v in numbers.items()})
    from stallproof.harness.memory_connector import MemoryConnector

    # its stores delay the free of their blocks, so that the scheduler knows of each
    MemoryConnector.stallproof_reports_stores = asked.get("reports_stores", True)  # type: ignore[attr-defined]
    live = engine(plan, asked["scheduler"])
    results = [run(live, {"name": f"p{i}x", **phase}) for i, phase in enumerate(asked["phases"])]
    out = {"phases": results, "connector": memory_connector.counts}
    Path(asked["out"]).write_text(json.dumps(out))
    sys.stdout.flush()
    os._exit(0)  # an engine in this process has threads that do not end by themselves


if __name__ == "__main__":
    main()
