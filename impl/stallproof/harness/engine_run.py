"""Run the real engine on CPU under pressure: few blocks, loads, aborts, priorities, pauses, grammars, drafts.

In one process (``python -m stallproof.harness.engine_run '{"requests": 40, ...}'`` inside an engine), stepped
by hand, so that it is fast and repeatable. Prints one JSON object: what happened and every output token. With
a list of plans, all of them run on the engine of the first, one after the other, and a list is printed.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Plan:
    """What to run. ``connector`` is passed to :class:`~.memory_connector.MemoryConnector`."""

    scheduler: str = "stock"  #: stock (recorded), stallproof, or a dotted name
    requests: int = 40
    blocks: int = 24  #: usable blocks
    block_size: int = 32
    max_num_seqs: int = 16
    budget: int = 2048
    chunk_cap: int = 0
    max_model_len: int = 512
    prompt: tuple[int, int] = (48, 250)  #: shortest, longest
    max_tokens: tuple[int, int] = (20, 70)
    policy: str = "fcfs"
    priorities: int = 1
    prefix_caching: bool = False
    shared_prefix: int = 0  #: tokens that each group of four requests has in common
    asynchronous: bool = True
    role: str = "kv_both"
    connector: dict[str, Any] | None = field(default_factory=dict)
    per_step: int = 4  #: requests that arrive per engine step
    abort_every: int = 0  #: each n-th request is aborted after ``abort_after`` of its tokens
    abort_after: int = 5
    pause_at: int = 0  #: pause at this step for ``pause_for`` steps
    pause_for: int = 0
    pause_all: bool = False  #: running requests stop, too; otherwise only new ones are kept out
    structured_every: int = 0  #: the output of each n-th request must match :data:`GRAMMAR`
    echo: bool = False  #: the second half of a prompt repeats the first, so that n-gram drafts are found
    load_failure: str = "recompute"
    warm: bool = True  #: first run the prompts without pressure, so that the connector has something to load
    steps: int = 20000
    seed: int = 1
    speculative: dict[str, Any] | None = None
    trace: str = ""


#: what a structured output looks like; it may end after each comma
GRAMMAR = "([a-f]{3}[0-9]{2},)+"


def structured(plan: Plan, rid: str) -> bool:
    """The output of this request must match :data:`GRAMMAR`."""
    n = plan.structured_every
    return bool(n) and rid.startswith("q") and int(rid[1:]) % n == n - 1


def prompts(plan: Plan) -> list[tuple[str, list[int], int]]:
    """Request id, prompt tokens, output tokens; depends on the plan's numbers only."""
    import random

    rnd = random.Random(plan.seed)
    out = []
    for i in range(plan.requests):
        n, m = rnd.randint(*plan.prompt), rnd.randint(*plan.max_tokens)
        group = random.Random(f"{plan.seed} {i // 4}")
        shared = [group.randint(3, 500) for _ in range(min(plan.shared_prefix, n - 1))]
        prompt = shared + [rnd.randint(3, 500) for _ in range(n - len(shared))]
        if plan.echo:
            prompt = (prompt[: (n + 1) // 2] * 2)[:n]
        out.append((f"q{i:03d}", prompt, m))
    return out


def scheduler_class(plan: Plan) -> str:
    """The dotted name behind ``plan.scheduler``; the short names record."""
    suffix = "AsyncScheduler" if plan.asynchronous else "Scheduler"
    return {
        "stock": f"stallproof.vllm.recording.Stock{suffix}",
        "stallproof": f"stallproof.vllm.recording.Guarded{suffix}",
    }.get(plan.scheduler, plan.scheduler)


def transfer(plan: Plan) -> dict[str, Any]:
    """``kv_transfer_config``."""
    return {
        "kv_connector": "MemoryConnector",
        "kv_connector_module_path": "stallproof.harness.memory_connector",
        "kv_role": plan.role,
        "kv_load_failure_policy": plan.load_failure,
        "kv_connector_extra_config": plan.connector,
    }


def model_folder() -> Path:
    from stallproof.harness import tiny

    return tiny.make(Path(tempfile.gettempdir()) / f"stallproof-tiny-{os.getuid()}")


def run(plans: list[Plan]) -> list[dict[str, Any]]:
    plan = plans[0]
    os.environ.update(
        HF_HUB_OFFLINE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_NO_USAGE_STATS="1", OMP_NUM_THREADS="1", VLLM_CPU_OMP_THREADS_BIND="nobind",
    )  # fmt: skip
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if plan.asynchronous:
        os.environ["STALLPROOF_CPU_ASYNC"] = "1"
    os.environ.pop("STALLPROOF_TRACE", None)
    t0 = time.monotonic()
    import vllm
    from vllm import LLM

    from stallproof.harness import cpu_async

    cpu_async.register()
    kw: dict[str, Any] = {}
    if plan.connector is not None:
        kw["kv_transfer_config"] = transfer(plan)
    if plan.speculative:
        kw["speculative_config"] = plan.speculative
    llm = LLM(
        model=str(model_folder()), skip_tokenizer_init=not any(p.structured_every for p in plans),
        max_model_len=plan.max_model_len,
        num_gpu_blocks_override=plan.blocks + 1, block_size=plan.block_size, max_num_seqs=plan.max_num_seqs,
        max_num_batched_tokens=plan.budget, long_prefill_token_threshold=plan.chunk_cap,
        scheduling_policy=plan.policy, async_scheduling=plan.asynchronous, enforce_eager=True,
        enable_prefix_caching=plan.prefix_caching, scheduler_cls=scheduler_class(plan), dtype="float32",
        seed=0, disable_log_stats=True, **kw,
    )  # fmt: skip
    started = time.monotonic() - t0
    results = []
    for p in plans:
        live = Live(llm, p)
        if p.warm and plan.connector is not None:
            live.warm()
        about = {"vllm": str(vllm.__version__), "plan": asdict(p), "start_seconds": round(started, 1)}
        results.append(about | live.pressure())
    return results


class Live:
    """A live in-process engine, stepped by hand."""

    def __init__(self, llm: Any, plan: Plan) -> None:
        self.plan, self.engine = plan, llm.llm_engine
        self.core = self.engine.engine_core.engine_core
        self.sched = self.core.scheduler
        self.tokens: dict[str, list[int]] = {}
        self.work = prompts(plan)
        self.accepted = 0  #: draft tokens that became output

    def add(self, rid: str, prompt: list[int], n: int, priority: int, **params: Any) -> None:
        from vllm import SamplingParams

        kw: dict[str, Any] = {"ignore_eos": True}
        if structured(self.plan, rid):
            from vllm.sampling_params import StructuredOutputsParams

            kw = {"structured_outputs": StructuredOutputsParams(regex=GRAMMAR)}
        sampling = SamplingParams(
            temperature=0.0, max_tokens=n, detokenize=False,
            extra_args={"kv_transfer_params": params} if params else None, **kw,
        )  # fmt: skip
        self.engine.add_request(rid, {"prompt_token_ids": prompt}, sampling, priority=priority)

    def step(self) -> set[str]:
        done = set()
        for o in self.engine.step():
            rid = o.request_id.split("-")[0] if o.request_id not in self.tokens else o.request_id
            now, before = list(o.outputs[0].token_ids), len(self.tokens.get(rid, ()))
            self.accepted += max(0, len(now) - before - 1)
            self.tokens[rid] = now
            if o.finished:
                done.add(rid)
        return done

    def drain(self, steps: int = 200) -> None:
        """Let the connector finish what it owes."""
        for _ in range(steps):
            if not self.core.scheduler.has_requests() and not self.core.batch_queue:
                break
            self.engine.step()

    def warm(self) -> None:
        """One at a time: no pressure, and the connector stores each prompt."""
        for rid, prompt, _ in self.work:
            self.add(f"w{rid}", prompt, 1, 0, store=True)
            while self.engine.has_unfinished_requests():
                self.engine.step()
            self.drain()

    def pressure(self) -> dict[str, Any]:
        from stallproof.harness import memory_connector
        from stallproof.vllm.recording import attach, attach_file, close_recording

        plan, sched = self.plan, self.sched
        self.tokens.clear()
        for k in memory_connector.counts:
            memory_connector.counts[k] = 0
        rec = (
            attach_file(sched, plan.trace, strict=True, every=1)
            if plan.trace
            else attach(sched, lambda _: None, strict=True)
        )
        todo, n, t0, died = list(self.work), 0, time.monotonic(), ""
        aborted: list[str] = []
        finished: set[str] = set()
        paused = False
        try:
            while (todo or self.engine.has_unfinished_requests() or paused) and n < plan.steps:
                for rid, prompt, m in todo[: plan.per_step]:
                    index = int(rid[1:])
                    self.add(rid, prompt, m, index % plan.priorities, load=True)
                todo = todo[plan.per_step :]
                if plan.pause_for and n in (plan.pause_at, plan.pause_at + plan.pause_for):
                    paused = n == plan.pause_at
                    self.pause(paused)
                finished |= self.step()
                n += 1
                if plan.abort_every:
                    for rid, _, _ in self.work[plan.abort_every - 1 :: plan.abort_every]:
                        enough = len(self.tokens.get(rid, ())) >= plan.abort_after
                        if rid not in aborted and rid not in finished and enough:
                            aborted.append(rid)
                            self.engine.abort_request([rid])
            self.drain()
        except Exception as exc:
            died = f"{type(exc).__name__}: {exc}"[:500]
        events, fired = dict(sorted(rec.counts.items())), dict(getattr(sched, "sp_fired", None) or {})
        free = sched.kv_cache_manager.block_pool.get_num_free_blocks()
        depth = self.engine.vllm_config.max_concurrent_batches
        close_recording(sched)
        return {
            "scheduler": type(sched).__mro__[1].__name__, "depth": depth, "died": died, "steps": n,
            "seconds": round(time.monotonic() - t0, 1), "events": events, "fired": fired,
            "connector": dict(memory_connector.counts), "missing_blocks": plan.blocks - free,
            "accepted": self.accepted, "aborted": aborted, "finished": sorted(finished),
            "asked": [r for r, _, _ in self.work],
            "tokens": {r: self.tokens[r] for r in sorted(self.tokens)},
        }  # fmt: skip

    def pause(self, on: bool) -> None:
        from vllm.v1.core.sched.interface import PauseState

        kind = PauseState.PAUSED_ALL if self.plan.pause_all else PauseState.PAUSED_NEW
        self.sched.set_pause_state(kind if on else PauseState.UNPAUSED)


def plan_of(raw: dict[str, Any]) -> Plan:
    """A plan from JSON."""
    values: dict[str, Any] = {k: tuple(v) if k in ("prompt", "max_tokens") else v for k, v in raw.items()}
    return Plan(**values)


def write(result: Any) -> None:
    """To the file that ``STALLPROOF_RESULT`` names, else to standard output."""
    sys.stdout.flush()
    target = os.environ.get("STALLPROOF_RESULT")
    if target:
        Path(target).write_text(json.dumps(result))
    else:
        print(json.dumps(result), flush=True)


def main() -> int:
    raw = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    results = run([plan_of(one) for one in (raw if isinstance(raw, list) else [raw])])
    write(results if isinstance(raw, list) else results[0])
    os._exit(0)  # an engine in this process has threads that do not end by themselves


if __name__ == "__main__":
    sys.exit(main())
