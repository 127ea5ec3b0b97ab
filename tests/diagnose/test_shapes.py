"""Every root-cause class and every trap, in the shape in which it is met, as a table."""

# ruff: noqa: E501 - log lines as they are
from __future__ import annotations

from pathlib import Path

import pytest

from stallproof.diagnose import run

from .lines import SHM, api, core, stats

BUSY = stats(10, 300, 8, 2, 71.0)
STALL, PROG, IDLE, UNK = "stalled", "progressing", "idle or paused", "cannot tell"

SHAPES: list[tuple[str, list[str], str, int, str]] = [
    # remote-KV completion lost or failure not propagated
    (
        "pull failed, all parked",
        [stats(10, 50, 1, 3, 20, deferred=3, ext=88), core(12, "mooncake_connector.py:700", "pulling kv_caches for ['r1', 'r2'] failed: timeout", "ERROR"),
         stats(20, 0, 0, 4, 20, deferred=4, ext=88)],
        STALL, 1, "load_lost",
    ),
    (
        "the failure came in the interval of the last tokens",
        [core(8, "mooncake_connector.py:700", "pulling kv_caches for ['r1', 'r2'] failed: timeout", "ERROR"), stats(10, 50, 1, 3, 20, deferred=3, ext=88),
         stats(20, 0, 0, 4, 20, deferred=4, ext=88)],
        STALL, 1, "load_lost",
    ),
    ("transfer engine reports errors", ["E0714 00:00:12.801054 812 rdma_endpoint.cpp:190] handshake timeout with 192.0.2.7:1201"], UNK, 2, ""),
    ("all parked, nothing else", [stats(10, 50, 1, 3, 20, deferred=3, ext=88), stats(20, 0, 0, 4, 20, deferred=4, ext=88)], UNK, 2, ""),
    (
        "all parked past every deadline",
        [stats(10, 50, 1, 3, 20, deferred=3, ext=88), stats(20, 0, 0, 4, 20, deferred=4, ext=88), api(900, "launcher.py:40", "x"),
         api(905, "async_llm.py:578", "Added request r99.")],
        STALL, 1, "parked",
    ),
    (
        "DEBUG: load completed, request parked still",
        [core(5, "v1/core/sched/scheduler.py:3223", "Finished recving KV transfer for request r7", "DEBUG"),
         core(6, "v1/core/sched/scheduler.py:3182", "r7 is still in WAITING_FOR_REMOTE_KVS state.", "DEBUG"),
         core(66, "v1/core/sched/scheduler.py:3182", "r7 is still in WAITING_FOR_REMOTE_KVS state.", "DEBUG")],
        STALL, 1, "load_done_not_promoted",
    ),
    (
        "DEBUG: parked, no completion",
        [core(t, "v1/core/sched/scheduler.py:3182", "r7 is still in WAITING_FOR_REMOTE_KVS state.", "DEBUG") for t in (6, 7, 8)],
        UNK, 2, "",
    ),
    # head refused while loads hold blocks
    ("capacity and deferred, once", [BUSY, stats(20, 0, 0, 3, 64, deferred=2, ext=50)], UNK, 2, ""),
    (
        "fetch completed and waiting",
        [stats(10, 9, 1, 3, 60, version="0.32.0"), stats(20, 0, 0, 3, 64, deferred=2, fetch=(0, 0, 2), version="0.32.0", ext=50),
         stats(30, 0, 0, 3, 64, deferred=2, fetch=(0, 0, 2), version="0.32.0", ext=50, level="DEBUG")],
        STALL, 1, "head_blocks_holders",
    ),
    ("shortened quotation, a moment only", ["Engine 000: ... Running: 0 reqs, Waiting: 24 reqs, Deferred: 23 reqs ..."], UNK, 2, ""),
    ("shortened quotation with its rate", ["Engine 000: ... generation throughput: 0.0 tokens/s, Running: 4 reqs, Waiting: 0 reqs ..."], UNK, 2, ""),
    # head can never fit
    ("capacity on an empty pool", [stats(10, 80, 2, 0, 3), stats(20, 0, 0, 1, 0.0)], STALL, 1, "head_never_fits"),
    ("one zero record, no deferred count", [stats(10, 80, 2, 0, 3, version="0.16.0"), stats(20, 0, 0, 1, 0.0, version="0.16.0")], UNK, 2, ""),
    (
        "hit rate moves: the head is retried",
        [stats(10, 80, 2, 0, 3, version="0.16.0"), stats(20, 0, 0, 1, 0.0, version="0.16.0", hit=11.0)],
        STALL, 1, "head_never_fits",
    ),
    ("hit rate moves, a release that counts admissions only", [stats(10, 80, 2, 1, 3, version="0.28.0"), stats(20, 0, 0, 1, 0.0, version="0.28.0", hit=11.0)],
     UNK, 2, ""),
    ("hit rate moves, release unknown", [x.replace("loggers.py:259", "loggers.py:4711") for x in (stats(10, 80, 2, 1, 3, version="0.16.0"), stats(20, 0, 0, 1, 0.0, version="0.16.0", hit=11.0))],
     UNK, 2, ""),
    # self-pre-emption
    ("self pre-emption", [stats(10, 14, 1, 0, 98.0), stats(20, 3, 0, 1, 0.0), stats(30, 0, 0, 1, 0.0)], STALL, 1, "self_preempt"),
    ("finished, and two newcomers wait", [stats(10, 14, 1, 0, 98.0), stats(20, 3, 0, 2, 0.0), stats(30, 0, 0, 2, 0.0)], UNK, 2, ""),
    ("finished, next one waits for a long step", [stats(10, 14, 1, 3, 98.0), stats(20, 3, 0, 2, 0.0), stats(30, 0, 0, 2, 0.0)], UNK, 2, ""),
    ("pre-empting without tokens", [BUSY, stats(20, 0, 9, 2, 99, preempt=4), stats(30, 0, 9, 2, 99, preempt=5)], STALL, 1, "livelock"),
    (
        "prefilled and thrown away again and again",
        [BUSY] + [stats(20 + 10 * i, 0, 1, 0, (30, 60, 90, 2)[i % 4], level="DEBUG") for i in range(9)],
        STALL, 1, "livelock",
    ),
    (
        "one request pre-empted five times",
        [BUSY, stats(20, 0, 3, 1, 99)] + [core(21 + i, "recompute_scheduler.py:440", "[RecomputeScheduler] Preempted request r1. running_count=3, "
                                               "token_budget=0") for i in range(6)] + [stats(30, 0, 3, 1, 99, level="DEBUG")],
        STALL, 1, "livelock",
    ),
    # worker or device
    (
        "killed on request",
        [BUSY, api(15, "launcher.py:254", "[shutdown] API server: shutdown triggered"),
         core(15, "multiproc_executor.py:285", "Worker proc VllmWorker-0 died unexpectedly, shutting down executor.", "ERROR")],
        PROG, 0, "",
    ),
    ("an error that was survived", [BUSY, core(15, "gpu_worker.py:90", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "WARNING"),
                                    stats(20, 250, 8, 0, 60)], PROG, 0, ""),
    ("an error in the front end, then idle", [BUSY, api(15, "serving_chat.py:90", "torch.OutOfMemoryError: CUDA out of memory.", "ERROR"),
                                              stats(20, 3, 0, 0, 0), stats(30, 0, 0, 0, 0)], IDLE, 0, ""),
    ("died, restarted, busy again", [BUSY, core(15, "core.py:1348", "EngineCore encountered a fatal error.", "ERROR"),
                                     core(60, "core.py:134", "Initializing a V1 LLM engine (v0.23.0) with config: x"), stats(90, 250, 8, 0, 60)],
     STALL, 1, "engine_died"),
    ("died by itself", [BUSY, core(15, "multiproc_executor.py:285", "Worker proc VllmWorker-0 died unexpectedly, shutting down executor.", "ERROR")],
     STALL, 1, "engine_died"),
    ("vllm-ascend record without a file tag",
     [stats(10, 9, 0, 0, 61), "(EngineCore_DP0 pid=603) INFO 07-14 00:00:12 [vllm-ascend] [mooncake_connector] - Delaying free of 400 blocks for request r1",
      stats(20, 0, 0, 0, 61)], IDLE, 1, "held_blocks"),
    ("a traceback is no stack", [BUSY, stats(20, 0, 8, 2, 71.0), "Traceback (most recent call last):",
                                 '  File "/opt/vllm/v1/engine/core.py", line 700, in run_busy_loop',
                                 '  File "/opt/vllm/v1/executor/multiproc_executor.py", line 200, in execute_model'], UNK, 2, ""),
    (
        "RPC time-out with dump",
        [BUSY, stats(20, 0, 8, 3, 71.0),
         core(330, "dump_input.py:72", "Dumping input data for V1 LLM engine (v0.11.0) with config: model='m', ", "ERROR"),
         core(330, "dump_input.py:79", "Dumping scheduler output for model execution: SchedulerOutput(scheduled_new_reqs=[NewRequestData("
              "req_id=chatcmpl-1,prompt_token_ids_len=40,mm_features=[],block_ids=([3, 4, 5],),num_computed_tokens=0,lora_request=None)], "
              "scheduled_cached_reqs=CachedRequestData(req_ids=['a', 'b'],resumed_req_ids=set(),new_token_ids_lens=[],new_block_ids=[None, "
              "([9],)],num_computed_tokens=[100, 20],num_output_tokens=[4, 1]), num_scheduled_tokens={chatcmpl-1: 40, a: 1, b: 1}, "
              "total_num_scheduled_tokens=42, finished_req_ids=[])", "ERROR"),
         core(330, "core.py:800", "TimeoutError: RPC call to sample_tokens timed out.", "ERROR")],
        STALL, 1, "worker_hang",
    ),
    ("broadcast never consumed", [core(60 * i, "shm_broadcast.py:802", SHM) for i in range(1, 6)], STALL, 1, "shm_lost"),
    (
        "compilation between broadcasts",
        [core(0, "core.py:134", "Initializing a V1 LLM engine (v0.27.0) with config: x")]
        + [x for i in range(1, 5) for x in (core(60 * i, "shm_broadcast.py:802", SHM),
                                            core(60 * i + 20, "backends.py:300", "Compiling a graph for dynamic shape takes 20.1 s", tag="Worker_TP0 pid=9"))],
        PROG, 0, "",
    ),
    (
        "workers busy between broadcasts",
        [core(0, "core.py:134", "Initializing a V1 LLM engine (v0.27.0) with config: x")]
        + [core(60 * i, "shm_broadcast.py:802", SHM) if i % 3 else core(60 * i, "deep_gemm_warmup.py:88", "shape 4096 done", tag="Worker_TP1 pid=9")
           for i in range(1, 9)],
        PROG, 0, "",
    ),
    ("two broadcasts beside running requests", [BUSY, stats(20, 0, 8, 3, 71.0)] + [core(75 + 60 * i, "shm_broadcast.py:802", SHM) for i in range(2)],
     STALL, 1, "shm_lost"),
    ("two broadcasts, and the step came back", [BUSY, stats(20, 0, 8, 3, 71.0)] + [core(75 + 60 * i, "shm_broadcast.py:802", SHM) for i in range(2)]
     + [stats(190, 250, 8, 0, 60)], PROG, 0, ""),
    ("self pre-emption, admitted again at once", [stats(10, 14, 1, 0, 98.0), stats(20, 3, 0, 1, 0.0), stats(30, 0, 0, 1, 0.0), stats(40, 9, 1, 0, 97, prompt=900)],
     PROG, 0, ""),
    ("idle workers of an old release", [stats(10, 0, 0, 0, 0, version="0.10.1")]
     + [core(60 * i, "shm_broadcast.py:450", "No available block found in 60 second. ", tag="VllmWorker rank=1 pid=9") for i in range(1, 9)], IDLE, 0, ""),
    (
        "start-up, broadcasts only",
        [core(0, "core.py:134", "Initializing a V1 LLM engine (v0.27.0) with config: x")] + [core(60 * i, "shm_broadcast.py:802", SHM) for i in range(1, 5)],
        UNK, 2, "",
    ),
    (
        "arrivals into a silent engine",
        [BUSY, stats(20, 0, 8, 3, 71.0), api(40, "logger.py:42", "Received request r1: params: SamplingParams(n=1), lora_request: None."),
         api(400, "logger.py:42", "Received request r2: params: SamplingParams(n=1), lora_request: None.")],
        STALL, 1, "worker_hang",
    ),
    (
        "answers that began in the silence, by the wrapper's clock",
        ["2026-07-14T08:00:10.1Z " + BUSY, "2026-07-14T08:00:20.1Z " + stats(20, 0, 8, 2, 71.0)]
        + [f'2026-07-14T08:0{m}:30.2Z (APIServer pid=7) INFO:     192.0.2.9:4000 - "POST /v1/chat/completions HTTP/1.1" 200 OK' for m in range(1, 6)],
        STALL, 1, "worker_hang",
    ),
    ("running, one zero record", [BUSY, stats(20, 0, 8, 2, 71.0)], UNK, 2, ""),
    ("255 run and hold nothing", [stats(10, 0, 255, 0, 0.0, version="0.10.1")], STALL, 1, "collective_hang"),
    # data-parallel desync
    (
        "unfinished, nothing executed",
        [core(i, "core.py:900", "local unfinished=True, executed=False", "DEBUG") for i in range(0, 40, 2)],
        STALL, 1, "dp_desync",
    ),
    # leaks and safety
    (
        "delayed frees on an idle engine",
        [core(5, "mooncake_connector.py:1910", "Delaying free of 400 blocks for request r1"), stats(10, 9, 0, 0, 61), stats(20, 0, 0, 0, 61)],
        IDLE, 1, "held_blocks",
    ),
    (
        "delayed frees that are released",
        [core(5, "mooncake_connector.py:1910", "Delaying free of 400 blocks for request r1"), stats(10, 9, 0, 0, 61),
         core(12, "scheduler.py:2000", "Finished sending KV transfer for request r1", "DEBUG"), stats(20, 0, 0, 0, 0)],
        IDLE, 0, "",
    ),
    (
        "blocks named by a cache reset",
        [stats(10, 9, 0, 0, 8), stats(20, 0, 0, 0, 8), core(30, "block_pool.py:300", "Failed to reset prefix cache because some blocks (17) are not freed yet", "WARNING")],
        IDLE, 1, "held_blocks",
    ),
    (
        "read after the lease",
        [core(5, "nixl_connector.py:1", "Releasing expired KV blocks for request r1 which were retrieved by 0 decode worker(s) within 120 seconds.", "WARNING"),
         core(9, "nixl_connector.py:2", "Potentially invalid KV blocks for unrecognized request r1 were retrieved by a decode worker. They may have expired.", "ERROR"),
         BUSY],
        PROG, 1, "read_after_free",
    ),
    # traps
    ("idle silence", [BUSY, stats(20, 1, 0, 0, 0), stats(30, 0, 0, 0, 0), api(4000, "launcher.py:1", "x")], IDLE, 0, ""),
    ("long prefill, KV grows", [stats(10, 3, 1, 0, 5), stats(20, 0, 1, 0, 9)], PROG, 0, ""),
    ("long prefill, credited afterwards", [stats(10, 3, 1, 0, 5), stats(20, 0, 1, 0, 5), stats(30, 9, 1, 0, 5, prompt=7000)], PROG, 0, ""),
    ("slow decode", [stats(10 * i, 0.6, 1, 0, 0.0) for i in range(1, 6)], PROG, 0, ""),
    ("overload", [stats(10 * i, 700, 33, 20 * i, 99) for i in range(1, 6)], PROG, 0, ""),
    ("stale after abort, abort lines", [BUSY, stats(20, 0, 2, 0, 71, level="DEBUG"), api(21, "async_llm.py:922", "Aborted request(s) a."),
                                       api(21, "async_llm.py:922", "Aborted request(s) b."), stats(30, 0, 2, 0, 71, level="DEBUG")], IDLE, 0, ""),
    ("stale or wedged", [stats(10 * i, 0, 106, 15, 90.4, level="DEBUG", version="0.10.1") for i in range(1, 4)], UNK, 2, ""),
    ("asleep", [BUSY, core(15, "abstract.py:391", "It took 1.5 seconds to fall asleep."), stats(20, 0, 2, 0, 3), stats(30, 0, 2, 0, 3, level="DEBUG")], IDLE, 0, ""),
    ("paused", [BUSY, core(15, "scheduler.py:2756", "setting pause state to PAUSED_ALL"), stats(20, 0, 0, 4, 3)], IDLE, 0, ""),
    ("thrash that progresses", [stats(10 * i, 90, 9, 5, 99, preempt=3) for i in range(1, 5)], PROG, 0, ""),
    ("V0, a record per step", ["INFO 07-14 00:00:10 metrics.py:488] Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 30.1 tokens/s, "
                               "Running: 2 reqs, Swapped: 0 reqs, Pending: 4 reqs, GPU KV cache usage: 3.1%, CPU KV cache usage: 0.0%.",
                               "INFO 07-14 00:00:11 metrics.py:488] Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, "
                               "Running: 2 reqs, Swapped: 0 reqs, Pending: 4 reqs, GPU KV cache usage: 3.1%, CPU KV cache usage: 0.0%."], PROG, 0, ""),
    ("client time-outs beside a busy engine", [BUSY, "aiohttp.client_exceptions.ServerTimeoutError: Timeout on reading data", stats(20, 250, 8, 0, 60)], PROG, 0, ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "lines", "verdict", "code", "mechanism"), SHAPES, ids=[s[0] for s in SHAPES]
)
def test_shape(tmp_path: Path, name: str, lines: list[str], verdict: str, code: int, mechanism: str) -> None:
    p = tmp_path / "engine.log"
    p.write_text("\n".join(lines) + "\n")
    report = run.diagnose([str(p)])
    found = [f.mechanism for e in report.engines for f in e.findings]
    why = [(i.verdict, i.why) for e in report.engines for i in e.intervals]
    assert report.verdict == verdict, (found, why)
    assert int(run.exit_code(report)) == code
    assert (mechanism in found) if mechanism else not found


@pytest.mark.parametrize("shape", [s for s in SHAPES if s[4]], ids=[s[0] for s in SHAPES if s[4]])
def test_shape_without_its_evidence(tmp_path: Path, shape: tuple[str, list[str], str, int, str]) -> None:
    """Every rule can be silenced: with each evidence line taken out in turn, some cut loses the finding."""
    _, lines, _, _, mechanism = shape
    p = tmp_path / "engine.log"
    lost = []
    for cut in range(1, len(lines) + 1):
        p.write_text("\n".join(lines[:-cut] or [stats(1, 5, 1, 0, 1)]) + "\n")
        found = {f.mechanism for e in run.diagnose([str(p)]).engines for f in e.findings}
        lost.append(mechanism not in found)
    assert any(lost)
