"""The rules by name: what each rests on, where that was read or seen, and for which releases it holds.

``python -m stallproof.diagnose.rules`` prints the table of ``docs/diagnose.md``; a test keeps both equal, and
another that every rule in the code is listed here and every rule listed here is in the code.
"""

# ruff: noqa: E501 - one rule, one line
from __future__ import annotations

import msgspec


class Rule(msgspec.Struct, frozen=True):
    """``needs``: the evidence; ``source``: vLLM file or public thread; ``releases``: where it applies."""

    needs: str
    source: str
    releases: str = "all"


RULES: dict[str, Rule] = {
    "rpc-timeout": Rule("a call to the workers timed out", "vLLM v1/executor/multiproc_executor.py; Ray channel and V0 wordings"),
    "collective-timeout": Rule("NCCL watchdog, HCCL or CANN codes EI0002, EI0006", "PyTorch ProcessGroupNCCL; CANN error codes"),
    "device-error": Rule("out of memory, illegal access, CUDA, NCCL or ACL error", "device runtimes' own messages"),
    "engine-dead": Rule("EngineDeadError, fatal error, process died unexpectedly, not after a shutdown on request", "vLLM v1/engine/core.py, v1/utils.py"),
    "dump-without-cause": Rule("the engine's crash dump without a cause line", "vLLM logging_utils/dump_input.py", "0.9 and later"),
    "assert-xfer-finished": Rule("AssertionError inside _update_from_kv_xfer_finished", "vLLM v1/core/sched/scheduler.py; vllm#46240, vllm#43226", "0.9 and later"),
    "shm-repeated": Rule("three or more 'no broadcast block' records of the engine, no compile line after them", "vLLM distributed/device_communicators/shm_broadcast.py; vllm#51921", "0.11.2 wording and later"),
    "stack-dummy": Rule("EngineCore in execute_dummy_batch beside an interval without tokens", "vLLM v1/engine/core.py (data parallel)"),
    "stack-worker_wait": Rule("EngineCore waits for its workers beside an interval without tokens, requests running", "vLLM v1/executor/multiproc_executor.py; own runs"),
    "stack-device": Rule("a worker waits for the device beside an interval without tokens", "own runs"),
    "stack-scheduler": Rule("EngineCore busy in schedule() beside an interval without tokens", "own runs"),
    "kv-high-then-zero": Rule("KV usage falls from 30 % or more to nothing, Running to 0, Waiting grows, then no token", "vllm#52520; decode wall reproduced on 0.23.0, 0.28.0, 0.32.0"),
    "completed-and-parked": Rule("'Finished recving' for a request that is parked or waits afterwards", "vLLM v1/core/sched/scheduler.py (DEBUG); vllm#57841"),
    "fetch-completed-waiting": Rule("'KV fetch: ... completed waiting' above 0, nothing runs, no token", "vLLM v1/metrics/loggers.py", "0.32 and later"),
    "capacity-with-nothing-running": Rule("Running 0, Waiting above 0, Deferred 0, no token; not the moment between two steps", "vLLM v1/metrics/loggers.py; vllm#39734; own run on 0.28.0", "0.20 and later"),
    "waiting-with-nothing-running": Rule("as above where Deferred is not reported: the hit rate moves, or a minute and arrivals", "vLLM v1/core/kv_cache_manager.py (look-ups count per attempt)", "up to 0.25.1 for the hit rate"),
    "failed-and-parked": Rule("a failed pull, transport error or unready producer, and requests parked afterwards", "vLLM kv_connector/v1; vllm-ascend kv_transfer; vllm#35943"),
    "parked-past-deadline": Rule("parked requests, no token for 600 s", "time-outs: NIXL 480 s, Mooncake receive 540 s"),
    "preempting-without-tokens": Rule("pre-emptions counted, named, or seen as falling KV usage in several intervals without tokens", "vllm#49674, ascend#16315, vllm#52520; inference-sim#963 for the threshold of five"),
    "many-running-kv-zero": Rule("16 or more run, KV 0.0 %, no token in a whole interval", "vllm#23378"),
    "waiting-grows-without-tokens": Rule("Waiting grows record by record, Running above 0 and unchanged KV, no token", "statistics are refreshed by steps only (vLLM v1/core/sched/scheduler.py make_stats)"),
    "arrivals-without-a-step": Rule("a request arrived 120 s ago or more, not aborted, and the record is unchanged", "vllm RFC#56816 (300 s), gonka#1421 (120 s)"),
    "rank-unfinished-others-idle": Rule("one rank reports unfinished work, another none, and the record is never refreshed", "vLLM v1/engine/core.py (DEBUG); vllm#16580"),
    "unfinished-not-executed": Rule("unfinished=True, executed=False again and again", "vLLM v1/engine/core.py (DEBUG); ascend#13648"),
    "lookup-repeats": Rule("20 or more pool look-ups of one request within a minute or more, nothing else", "vllm-ascend kv_pool/pool_scheduler.py"),
    "reset-names-held-blocks": Rule("a refused cache reset names N blocks while nothing lives", "vLLM v1/core/block_pool.py"),
    "delayed-free-without-release": Rule("'Delaying free of N blocks' without release, idle, KV usage 25 % or more", "vllm-ascend mooncake_connector.py; ascend#15802"),
    "read-after-lease": Rule("a peer fetched blocks of a request that was already released", "vLLM kv_connector/v1/nixl; vllm#21570", "0.10 and later"),
    "lease-without-reader": Rule("leases expire with 0 readers", "vLLM kv_connector/v1/nixl", "0.10 and later"),
    "trace-empty-calls": Rule("eight scheduling calls of our own trace without a token, a load or a change, nothing pending outside", "trace schema 1; NoWedge"),
    "trace-preemptions": Rule("a request of our own trace is pre-empted five times and no token comes out in between", "trace schema 1; vllm#49674"),
}  # fmt: skip


def table() -> list[str]:
    """The rules as a Markdown table."""
    out = ["| rule | evidence | source | releases |", "|---|---|---|---|"]
    return out + [f"| `{k}` | {r.needs} | {r.source} | {r.releases} |" for k, r in RULES.items()]


if __name__ == "__main__":
    print("\n".join(table()))
