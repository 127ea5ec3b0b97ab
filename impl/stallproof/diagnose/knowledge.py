"""What each mechanism means: layer, promise, advice, and whether our scheduler class would have prevented it.

Mechanism names that are promises of ours are spelled as in the design and the specification. Catalogue ids are
public threads; they are only ever offered as "consistent with", and only where signature *and* version fit.
"""

# ruff: noqa: E501 - tables of wordings: one row, one line
from __future__ import annotations

import msgspec

from .version import MAX, V, Version


class Mechanism(msgspec.Struct, frozen=True, kw_only=True):
    """One way to stall or to break. ``rank``: 0 safety, 1 deadlock, 2 leak, 3 overload."""

    key: str
    rank: int
    layer: str
    promise: str
    title: str
    now: str
    prevented: str
    why: str


RANKS = ("safety violation", "deadlock", "leak", "overload")

_M = (
    Mechanism(
        key="head_never_fits", rank=1, layer="scheduler", promise="Feasible",
        title="the request at the head waits for capacity that the pool can never give",
        now="abort the waiting requests (or restart), cap prompt plus output below the usable pool "
            "(num_gpu_blocks - 1 blocks), or give the pool more memory",
        prevented="yes", why="a request that can never fit finishes at once with an error output (Feasible)",
    ),
    Mechanism(
        key="self_preempt", rank=1, layer="scheduler", promise="Feasible",
        title="a lone request outgrew the pool, pre-empted itself and can never be re-admitted",
        now="abort the request; lower max_tokens or max_model_len below the pool, or enlarge the pool; "
            "retries of the client repeat the cycle",
        prevented="yes", why="a lone request that outgrows the pool finishes as `length` with a warning (Feasible)",
    ),
    Mechanism(
        key="head_blocks_holders", rank=1, layer="scheduler", promise="NoWedge",
        title="a refused head stops the scan in front of requests that hold blocks",
        now="abort the request at the head; lower concurrency of remote loads; prefer 0.31 or later",
        prevented="yes",
        why="holders are scanned past a refused newcomer (NoInversion) and a holder behind the target is evicted when "
            "that is sure to help (EvictCoupled)",
    ),
    Mechanism(
        key="load_lost", rank=1, layer="transport", promise="BoundedWait",
        title="a remote KV load failed or never completed, and its request waits for ever",
        now="abort the parked requests; check the peer and the fabric named in the failure lines",
        prevented="yes",
        why="every parked load has a deadline; its blocks are quarantined and the request recomputes (BoundedWait)",
    ),
    Mechanism(
        key="load_done_not_promoted", rank=1, layer="scheduler", promise="NoWedge",
        title="a load has completed and its request is not promoted",
        now="abort the request at the head of the queue, or restart; stop the prefill that uses the whole token budget",
        prevented="yes", why="completed loads are promoted whatever token budget is left over (NoWedge)",
    ),
    Mechanism(
        key="parked", rank=1, layer="transport", promise="BoundedWait",
        title="every waiting request is parked (remote KV, grammar, encoder or session) past its deadline",
        now="find out what they wait for (DEBUG log or the connector's log); abort them",
        prevented="partly",
        why="loads and connector deferrals get deadlines (BoundedWait); a grammar compile or a silent session does not",
    ),
    Mechanism(
        key="wedge", rank=1, layer="scheduler", promise="NoWedge",
        title="requests wait, nothing runs, and the scheduler schedules nothing",
        now="take a py-spy dump for the record, then abort the head or restart",
        prevented="likely", why="the call schedules, loads, evicts towards a run or fails a request (NoWedge)",
    ),
    Mechanism(
        key="livelock", rank=1, layer="scheduler", promise="Termination",
        title="requests are pre-empted or retried in a circle without producing a token",
        now="lower max_num_seqs or the number of concurrent requests until pre-emption stops",
        prevented="yes",
        why="a pre-emption must make the blocks usable by its target grow at once (NoZeroPre), and every loop has a rank",
    ),
    Mechanism(
        key="running_not_scheduled", rank=1, layer="scheduler", promise="NoWedge",
        title="running requests exist, steps go on, and none of them is given a token",
        now="abort the running requests; take a trace with the recorder if it comes back",
        prevented="partly", why="NoWedge reports it; counters that drift inside the engine are not ours to repair",
    ),
    Mechanism(
        key="worker_hang", rank=1, layer="worker or device", promise="",
        title="a step was dispatched and never came back from the worker or device",
        now="py-spy dump every worker process before restarting; check the device log (dmesg, NCCL or HCCL, plog)",
        prevented="no", why="the scheduler is waiting for a step in flight; no scheduling rule ends it",
    ),
    Mechanism(
        key="engine_died", rank=1, layer="worker or device", promise="",
        title="the engine process ended with an error",
        now="restart; keep the dump and the first traceback",
        prevented="no", why="the failure is below or beside the scheduler",
    ),
    Mechanism(
        key="double_completion", rank=0, layer="scheduler", promise="NoDoubleFree",
        title="a transfer completion arrived for a request that was already freed, and an assertion ended the engine",
        now="restart; until then do not abort requests with transfers pending",
        prevented="yes", why="completion reports are counted per request and generation; late or duplicate ones are ignored",
    ),
    Mechanism(
        key="shm_lost", rank=1, layer="worker or device", promise="",
        title="a broadcast to the workers is never consumed",
        now="py-spy dump EngineCore and every worker; restart; releases with a bounded wait recover",
        prevented="no", why="the queue between engine and workers is below the scheduler",
    ),
    Mechanism(
        key="dp_desync", rank=1, layer="worker or device", promise="",
        title="data-parallel ranks disagree about whether there is work",
        now="restart all ranks together; compare the wave numbers in the DEBUG lines of every rank",
        prevented="no", why="the wave protocol between ranks is outside one rank's scheduler",
    ),
    Mechanism(
        key="collective_hang", rank=1, layer="worker or device", promise="",
        title="many requests run, hold no block, and no step has finished for a whole interval",
        now="py-spy dump every rank; compare batch shapes across ranks (graph padding)",
        prevented="no", why="a collective that one rank does not join is below the scheduler",
    ),
    Mechanism(
        key="read_after_free", rank=0, layer="transport", promise="StoreSafe",
        title="blocks were read by a peer after they had been released",
        now="treat the answers of the named requests as wrong; lengthen the lease or slow the prefill side",
        prevented="partly",
        why="a block that an unfinished transfer reads is not reused (StoreSafe) where the connector reports its readers; "
            "a lease that expires on the wall clock alone does not",
    ),
    Mechanism(
        key="lease_expired", rank=2, layer="transport", promise="BoundedWait",
        title="leases on sent blocks expire with readers missing: the decode side never fetched them",
        now="look at the decode side and the router: requests were cancelled, lost, or queued longer than the lease",
        prevented="no", why="the lease did its work here; the cause is on the reading side",
    ),
    Mechanism(
        key="held_blocks", rank=2, layer="scheduler", promise="NoLeak",
        title="blocks are held while no request lives",
        now="POST /reset_prefix_cache and read 'blocks (N) are not freed yet': N is the exact count; then drain and restart",
        prevented="partly",
        why="blocks of loads past their deadline are quarantined and released by any late report (NoLeak); "
            "a send that is never reported is bounded by its connector's lease only",
    ),
    Mechanism(
        key="overload", rank=3, layer="client", promise="",
        title="the engine works at its limit and the queue grows",
        now="add capacity or limit admission; nothing is stuck",
        prevented="no", why="it is not a stall",
    ),
)  # fmt: skip
MECHANISMS = {m.key: m for m in _M}


class Thread(msgspec.Struct, frozen=True):
    """A catalogue row: public thread, mechanisms it fits, releases it was reported or reproduced on.

    ``needs``: facts that must be in evidence (connector, ascend, dp, mm, spec, async), space-separated.
    """

    id: str
    keys: str
    lo: V
    hi: V
    title: str
    needs: str = ""


_T = (
    Thread("vllm#39734", "head_never_fits", (0, 19, 0), MAX, "prompt above the pool but below max_model_len blocks the queue"),
    Thread("vllm#35541", "head_never_fits", (0, 15, 0), MAX, "num_gpu_blocks_override smaller than the prompts"),
    Thread("RBLN-SW/vllm-rbln#957", "head_never_fits", (0, 22, 0), MAX, "prompt between usable pool and max_model_len"),
    Thread("vllm-project/vllm-metal#479", "head_never_fits", (0, 20, 0), MAX, "capacity waiting with an empty cache"),
    Thread("vllm#45414", "head_never_fits wedge", (0, 20, 0), (0, 23, 9), "running 0, waiting 5-6, KV 0 %, multimodal", "mm"),
    Thread("vllm#52520", "self_preempt livelock", (0, 16, 0), MAX, "request near the pool ceiling restarted for ever"),
    Thread("vllm#47272", "self_preempt head_never_fits", (0, 23, 0), MAX, "pool exactly max_model_len deadlocks mid-prefill"),
    Thread("vllm#45406", "head_blocks_holders load_done_not_promoted", (0, 20, 0), (0, 30, 9),
           "finished load stranded behind an unschedulable head", "connector"),
    Thread("vllm#57841", "head_blocks_holders load_done_not_promoted", (0, 20, 0), (0, 30, 9),
           "block-less head stops the scan in front of a holder", "connector"),
    Thread("vllm#53868", "head_blocks_holders", (0, 26, 0), (0, 30, 9), "running 0, one capacity, two deferred", "connector"),
    Thread("vllm#40968", "head_blocks_holders", (0, 19, 0), (0, 22, 9), "two block holders in the skipped queue", "connector"),
    Thread("vllm#57104", "head_blocks_holders", (0, 23, 0), (0, 30, 9), "loads fill the pool, look-ahead needs one more", "connector spec"),
    Thread("vllm#49439", "head_blocks_holders", (0, 20, 0), MAX, "resumable sessions hold KV and all wait", "session"),
    Thread("vllm#31731", "head_blocks_holders wedge", (0, 8, 0), MAX, "KV-heavy head blocks light requests"),
    Thread("vllm#35943", "load_lost parked", (0, 16, 0), MAX, "decode request stuck in WAITING_FOR_REMOTE_KVS", "connector"),
    Thread("vllm#50754", "load_lost parked", (0, 25, 0), MAX, "a write that cannot be posted is never announced", "connector nixl"),
    Thread("vllm#49829", "parked", (0, 26, 0), MAX, "pending hit without a deadline", "connector"),
    Thread("vllm#42371", "parked", (0, 20, 0), MAX, "async loads fill the pool", "connector"),
    Thread("vllm#54003", "parked", (0, 28, 0), MAX, "grammar compile without time-out", "grammar"),
    Thread("vllm#45012", "parked", (0, 8, 0), (0, 30, 9), "grammar error never wakes the request", "grammar"),
    Thread("vllm#53130", "load_done_not_promoted parked", (0, 20, 0), MAX, "promotions starve while prefill eats the budget", "prefill"),
    Thread("vllm#58041", "load_done_not_promoted", (0, 27, 0), MAX, "pause stops the steps that finish receives", "paused"),
    Thread("vllm#49674", "livelock", (0, 24, 0), (0, 29, 9), "zero-progress pre-emption cascade with fenced frees", "connector"),
    Thread("ascend#16315", "livelock", (0, 24, 0), MAX, "pre-emption thrash to 0 tok/s", "ascend connector"),
    Thread("vllm#40707", "wedge livelock", (0, 19, 0), (0, 27, 9), "two images on a hybrid model round every step to zero", "mm"),
    Thread("vllm#45138", "running_not_scheduled", (0, 22, 0), MAX, "placeholders kept after a load failure", "connector"),
    Thread("vllm#42722", "running_not_scheduled", (0, 20, 0), (0, 20, 9), "empty speculative output", "spec"),
    Thread("ascend#13648", "running_not_scheduled dp_desync", (0, 25, 0), (0, 26, 9), "decode hangs, NPUs run dummy batches", "ascend"),
    Thread("vllm#23378", "collective_hang", (0, 10, 0), (0, 10, 2), "graph padding differs across ranks", "dp"),
    Thread("vllm#51921", "shm_lost", (0, 27, 0), MAX, "next broadcast after idleness is never consumed"),
    Thread("vllm#16580", "dp_desync", (0, 8, 0), (0, 8, 9), "one rank unfinished, the other idle", "dp"),
    Thread("vllm#51983", "dp_desync", (0, 27, 0), MAX, "wave 0 never started for headless ranks", "dp"),
    Thread("ascend#15802", "held_blocks head_blocks_holders wedge", (0, 23, 0), (0, 23, 9),
           "prefill node: delayed frees hold the pool, pre-emption disabled", "ascend connector"),
    Thread("ascend#16662", "held_blocks", (0, 23, 0), (0, 26, 9), "abort during an async pool load leaks", "ascend connector"),
    Thread("vllm#46283", "held_blocks", (0, 23, 0), MAX, "aborted remote load leaks when the peer never answers", "connector"),
    Thread("vllm#43433", "held_blocks", (0, 9, 0), (0, 22, 9), "engine idles while finished requests wait for the connector", "connector"),
    Thread("vllm#50425", "held_blocks lease_expired", (0, 23, 0), MAX, "client drop strands the prefill side's blocks", "connector"),
    Thread("vllm#29906", "held_blocks lease_expired", (0, 11, 0), MAX, "abort racing with prefill finish", "connector"),
    Thread("vllm#21570", "read_after_free lease_expired", (0, 9, 0), (0, 22, 9), "time-out frees blocks that are read later", "connector"),
    Thread("vllm#46240", "double_completion", (0, 20, 0), MAX, "aborted request freed by both completions", "connector"),
    Thread("vllm#43226", "double_completion", (0, 9, 0), MAX, "completion for an already freed request", "connector"),
    Thread("ascend#7878", "double_completion", (0, 18, 0), MAX, "completion after abort asserts", "ascend connector"),
)  # fmt: skip


def consistent_with(key: str, version: Version, facts: set[str]) -> list[dict[str, str]]:
    """Catalogue rows whose mechanism, needed facts and releases fit. ``facts``: what is in evidence."""
    out = []
    for t in _T:
        if key not in t.keys.split() or not version.overlaps(t.lo, t.hi):
            continue
        missing = [n for n in t.needs.split() if n not in facts]
        if missing:
            continue
        out.append({"id": t.id, "title": t.title, "version": "fits" if version.known else "unknown"})
    return out[:6]
