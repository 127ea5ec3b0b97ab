"""Lines to observations: one table of wordings, each with the source it was read in.

The statistics record has a fast path, because it is the commonest relevant line. A wording that changed
between releases narrows the version; wordings are matched loosely where public quotations shorten them.
"""

# ruff: noqa: E501 - tables of wordings: one row, one line
from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from .observe import NAN, Obs, Ref, Stats
from .prefix import Line
from .version import Version

_STATS = re.compile(
    rb"(?:Engine (\d{1,5}): |(\d{1,5}) Engines Aggregated: )?Avg prompt throughput: ([\d.]{1,18}) tokens/s, "
    rb"Avg generation throughput: ([\d.]{1,18}) tokens/s, Running: (\d{1,9}) reqs, "
    rb"(?:Waiting: (\d{1,9}) reqs|Swapped: (\d{1,9}) reqs, Pending: (\d{1,9}) reqs)"
)
_DEFERRED = re.compile(rb"Deferred: (\d{1,9})")
_FETCH = re.compile(rb"KV fetch: (\d{1,9}) waiting to start, (\d{1,9}) in progress, (\d{1,9}) completed")
_PREEMPT = re.compile(rb"Preemptions: (\d{1,9})")
_KV = re.compile(rb"(\w+) KV cache usage: ([\d.]{1,18})\s?%")
_HIT = re.compile(rb", Prefix cache hit rate: (?:GPU: )?([\d.]{1,18})%")
_EXT = re.compile(rb"External prefix cache hit rate: ([\d.]{1,18})%")
# shortened quotations
_LOOSE = {
    "engine": re.compile(rb"Engine (\d{1,5})"),
    "prompt": re.compile(rb"prompt throughput:? ?([\d.]{1,18})"),
    "gen": re.compile(rb"generation throughput:? ?([\d.]{1,18})"),
    "running": re.compile(rb"[Rr]unning[:=] ?(\d{1,9})"),
    "rate": re.compile(rb"([\d.]{1,18}) ?tok(?:ens)?/s"),
    "waiting": re.compile(rb"(?:[Ww]aiting|Pending)[:=] ?(\d{1,9})"),
}


def _f(m: re.Match[bytes] | None, group: int = 1) -> float:
    if m is None:
        return NAN
    try:
        return float(m[group])
    except ValueError:
        return NAN


def stats(line: Line, ref: Callable[[], Ref]) -> Stats | None:
    """The statistics record in ``line``, or None."""
    text = line.text
    m = _STATS.search(text)
    if m is None:
        return _loose(line, ref)
    s = Stats(ref=ref(), t=line.t, level=line.level)
    s.engine = int(m[1]) if m[1] else -2 if m[2] else max(line.engine, 0)
    s.prompt, s.gen = _f(m, 3), _f(m, 4)
    s.running = int(m[5])
    if m[6] is not None:
        s.waiting = int(m[6])
    else:
        s.waiting, s.legacy = int(m[7]) + int(m[8]), True
    rest = text[m.end() :]
    k = _KV.search(rest)
    s.kv = _f(k, 2)
    if b"Deferred" in rest and (d := _DEFERRED.search(rest)):
        s.deferred = int(d[1])
    if b"KV fetch" in rest and (d := _FETCH.search(rest)):
        s.fetch = (int(d[1]), int(d[2]), int(d[3]))
    if b"Preemptions" in rest and (d := _PREEMPT.search(rest)):
        s.preempt = int(d[1])
    s.hit = _f(_HIT.search(rest))
    if b"External" in rest:
        s.ext_hit = _f(_EXT.search(rest))
    return s


def _loose(line: Line, ref: Callable[[], Ref]) -> Stats | None:
    found = {k: r.search(line.text) for k, r in _LOOSE.items()}
    if found["running"] is None or (found["gen"] is None and found["waiting"] is None):
        return None
    if found["gen"] is None and found["prompt"] is None:
        found["gen"] = found["rate"]
    s = Stats(ref=ref(), t=line.t, level=line.level)
    s.engine = int(found["engine"][1]) if found["engine"] else max(line.engine, 0)
    s.prompt, s.gen = _f(found["prompt"]), _f(found["gen"])
    s.running = int(found["running"][1])
    s.waiting = int(found["waiting"][1]) if found["waiting"] else -1
    if d := _DEFERRED.search(line.text):
        s.deferred = int(d[1])
    if d := _PREEMPT.search(line.text):
        s.preempt = int(d[1])
    k = _KV.search(line.text)
    s.kv = _f(k, 2)
    s.hit, s.ext_hit = _f(_HIT.search(line.text)), _f(_EXT.search(line.text))
    return s


def version_of(line: Line, s: Stats, version: Version) -> None:
    """What a statistics record says about the release (research: production_evidence 1.1)."""
    if line.file == b"loggers" and line.lineno:
        version.line(line.lineno)
    if s.legacy:
        version.narrow(hi=(0, 8, 9), why="V0 statistics (Swapped, Pending)")
    if s.deferred is not None:
        version.narrow(lo=(0, 20, 0), why="'Deferred' in the statistics")
    if s.fetch is not None:
        version.narrow(lo=(0, 32, 0), why="'KV fetch' in the statistics")
    if s.preempt:
        version.narrow(lo=(0, 11, 2), why="'Preemptions' in the statistics")
    if version.at_least(0, 20) and s.deferred is None and not s.legacy:
        s.deferred = 0


Extract = Callable[[re.Match[bytes]], dict[str, Any]]


def _ids(m: re.Match[bytes]) -> dict[str, Any]:
    return {"id": m[1].decode("utf-8", "replace")[:120]}


_SUFFIX = re.compile(r"-[0-9a-f]{8}$")


def _requests(m: re.Match[bytes]) -> dict[str, Any]:
    """Ids as the client knows them: newer releases add eight hex digits inside the engine."""
    ids = [_SUFFIX.sub("", i[:120]) for i in m[1].decode("utf-8", "replace").split(",")[:200]]
    return {"id": ids[0], "ids": ids}


def _id_n(m: re.Match[bytes]) -> dict[str, Any]:
    return {"id": m[2].decode("utf-8", "replace")[:120], "n": int(m[1])}


def _n(m: re.Match[bytes]) -> dict[str, Any]:
    return {"n": int(m[1])}


def _none(m: re.Match[bytes]) -> dict[str, Any]:
    return {}


def _word(m: re.Match[bytes]) -> dict[str, Any]:
    return {"what": m[1].decode("utf-8", "replace")[:160]}


def _lease(m: re.Match[bytes]) -> dict[str, Any]:
    return {"id": m[1].decode("utf-8", "replace")[:120], "n": int(m[2]), "old": m[3] == b"decode"}


def _iteration(m: re.Match[bytes]) -> dict[str, Any]:
    k = ("index", "ctx_reqs", "ctx_tokens", "gen_reqs", "gen_tokens")
    d: dict[str, Any] = {n: int(m[i + 2]) for i, n in enumerate(k)}
    d["ms"] = _f(m, 7)
    d["api"] = m[1] is not None
    d["engine"] = int(m[1]) if m[1] else -1
    return d


def _transfer(m: re.Match[bytes]) -> dict[str, Any]:
    text = m.string[m.start() :]
    get = lambda p: _f(re.search(p + rb"=([\d.]+)", text))  # noqa: E731
    return {
        "ok": get(rb"Num successful transfers"),
        "failed": get(rb"Num failed transfers"),
        "expired": get(rb"Num KV expired reqs"),
    }


def _pool(m: re.Match[bytes]) -> dict[str, Any]:
    return {
        "id": m[1].decode("utf-8", "replace")[:120],
        "tokens": int(m[2]),
        "hit": int(m[3]),
        "load": int(m[4].replace(b"-", b"") or 0),
    }


#: (kind, literal that must occur, expression, extractor, tier). Order matters: the first match of a kind wins.
#: Sources: vLLM v1/core/sched/scheduler.py, v1/engine/core.py, v1/engine/async_llm.py, v1/core/block_pool.py,
#: logging_utils/dump_input.py, distributed/device_communicators/shm_broadcast.py, kv_connector/v1/{nixl,mooncake},
#: executor/abstract.py; vllm-ascend distributed/kv_transfer; production-stack router.
TABLE: tuple[tuple[str, bytes, re.Pattern[bytes], Extract, str], ...] = tuple(
    (kind, literal, re.compile(expr), extract, tier)
    for kind, literal, expr, extract, tier in (
        ("add", b"Added request", rb"Added request (\S{1,200}?)[.\s]*$", _requests, "E"),
        ("add", b"Received request", rb"Received request (\S{1,200}?):? ", _requests, "E"),
        ("abort", b"Aborted request", rb"Aborted request\(?s?\)? (\S{1,4000}?)[.\s]*$", _requests, "E"),
        ("abort", b" aborted", rb"Request (\S{1,200}) aborted", _requests, "E"),
        ("failed", b" failed", rb"Request (\S{1,200}) failed", _requests, "E"),
        ("done", b"finish_reason: ", rb"Generated response (\S{1,200}?) .*finish_reason: (?!None)", _requests, "E"),
        (
            "iteration",
            b"Iteration(",
            rb"(?:Engine (\d{1,5}): )?Iteration\((\d{1,18})\): (\d{1,9}) context requests, (\d{1,12}) context tokens,"
            rb" (\d{1,9}) generation requests, (\d{1,12}) generation tokens(?:, iteration elapsed time: ([\d.]{1,18}))?",
            _iteration,
            "D",
        ),
        ("parked", b"WAITING_FOR_REMOTE_KVS", rb"(\S{1,200}) is still in WAITING_FOR_REMOTE_KVS", _ids, "C"),
        ("recv", b"Finished recving KV", rb"Finished recving KV transfer for request (\S{1,200})", _ids, "C"),
        ("sent", b"Finished sending KV", rb"Finished sending KV transfer for request (\S{1,200})", _ids, "C"),
        ("work_wait", b"EngineCore waiting for work", rb"EngineCore waiting for work", _none, "C"),
        (
            "loop",
            b"loop active",
            rb"EngineCore loop active(?:[^A-Za-z]*local unfinished: (True|False))?",
            lambda m: {"what": (m[1] or b"").decode()},
            "C",
        ),
        ("wave_idle", b"starting idle loop", rb"EngineCore starting idle loop", _none, "C"),
        ("dp", b"execut", rb"unfinished\w*\s?[=:]\s?(True|False).{0,40}execut\w*[=:] ?(False|True)",
         lambda m: {"unfinished": m[1] == b"True", "executed": m[2] == b"True"}, "C"),
        ("pause", b"setting pause state", rb"setting pause state to (\w+)", _word, "E"),
        ("pause", b"POST /pause", rb"POST /(pause)[? ]", _word, "E"),
        ("sleep", b"POST /sleep", rb"POST /sleep[? ]", _none, "E"),
        ("wake", b"POST /", rb"POST /(?:resume|wake_up)[? ]", _none, "E"),
        ("pausing", b"before sleeping", rb"Waiting for in-flight requests to complete before sleeping", _none, "E"),
        ("sleep", b"fall asleep", rb"seconds to fall asleep", _none, "E"),
        ("sleep", b"leep mode freed", rb"[Ss]leep mode freed", _none, "E"),
        ("wake", b"to wake up", rb"seconds to wake up", _none, "E"),
        ("load_recovered", b"KV load failure", rb"Recovered from KV load failure: (\d+) request", _n, "E"),
        ("load_failing", b"KV load failure", rb"Failing (\d+) request\(s\) due to KV load failure", _n, "E"),
        ("reset_held", b"Failed to reset prefix cache", rb"some blocks \((\d+)\) are not freed yet", _n, "E"),
        ("shm", b"shared memory broadcast block", rb"No available shared memory broadcast block found in (\d+) second",
         lambda m: {"n": int(m[1]), "new": b"typically happens" in m.string}, "E"),
        ("shm", b"No available block found", rb"No available block found in (\d+) second",
         lambda m: {"n": int(m[1]), "new": False}, "E"),
        ("lease", b"Releasing expired KV blocks",
         rb"Releasing expired KV blocks for request (\S{1,200}) which were retrieved by (\d+) (decode|remote)", _lease, "E"),
        ("read_after_free", b"Potentially invalid KV blocks",
         rb"Potentially invalid KV blocks for\s+unrecognized request (\S{1,200})", _ids, "E"),
        ("pull_failed", b"pulling kv_caches", rb"pulling kv_caches for (.{1,160}?) failed", _ids, "E"),
        ("pull_failed", b"ooncake transfer failed", rb"[Mm]ooncake transfer failed for (?:send )?requests?\.? ?(.{0,120})", _ids, "E"),
        ("pull_failed", b"Failed to transfer KV cache", rb"Failed to transfer KV cache for request (\S{1,200})", _ids, "E"),
        ("pull_failed", b"NIXL transfer failure", rb"NIXL transfer failure: (.{0,120})", _ids, "E"),
        ("pull_failed", b"andshake", rb"(?:NIXL )?[Hh]andshake (?:failed|with .{1,80} failed|error)(.{0,120})", _ids, "E"),
        ("transport", b".cpp:", rb"\b[EF]\d{4} [\d:.]+ +\d+ (\w+\.cpp:\d+\] [^\n]{0,160})", _word, "E"),
        ("transport", b"LMCache", rb"LMCache (?:ERROR|WARNING): ([^\n]{0,60}(?:fail|time|error|lost|refused)[^\n]{0,100})", _word, "E"),
        ("p_not_ready", b"P side ready", rb"Timeout waiting for P side ready(.{0,80})", _word, "E"),
        ("producer_timeout", b"without being sent",
         rb"Request (\S{1,200}) timed out after [\d.]+ seconds without being sent", _ids, "E"),
        ("force_freed", b"orce freed", rb"[Ff]orce freed (?:expired )?request:? (\S{1,200})", _ids, "E"),
        ("delay_free", b"Delaying free of", rb"Delaying free of (\d{1,9}) blocks for request (\S{1,200})", _id_n, "E"),
        ("received", b"KV cache transfer for request", rb"KV cache transfer for request (\S{1,200}) took", _ids, "E"),
        ("transfers", b"KV Transfer metrics", rb"KV Transfer metrics:", _transfer, "E"),
        ("preempted", b"reempted request", rb"[Pp]reempted request (\S{1,200}?)[.\s(,]", _ids, "E"),
        ("preempted", b"Recompute triggered", rb"Recompute triggered for request (\S{1,200}?)\.?\s*$", _ids, "E"),
        ("lookup", b"kvpool hit tokens",
         rb"Reqid: (\S{1,200}?), Total tokens (\d{1,12}), kvpool hit tokens: (\d{1,12}), need to load: (-?\d{1,12})", _pool, "E"),
        ("ascend_delayed", b"delayed_free_reqs", rb"delayed_free_reqs=(\d+)", _n, "E"),
        ("starving", b"starv", rb"(?i)(starv\w+[^\n]{0,120})", _word, "E"),
        ("no_preempt", b"reemption is disabled", rb"scheduler preemption is disabled", _none, "E"),
        ("dump_config", b"Dumping input data", rb"Dumping input data(?: for V1 LLM engine)? \((v[\w.+]+)\)?", _word, "B"),
        ("dump", b"Dumping scheduler output", rb"Dumping scheduler output for model execution", _none, "B"),
        ("dump_stats", b"Dumping scheduler stats", rb"Dumping scheduler stats: ", _none, "B"),
        ("dump_stats", b"SchedulerStats(", rb"SchedulerStats\(", _none, "B"),
        ("rpc_timeout", b"RPC call to", rb"RPC call to (\w+) timed out", _word, "E"),
        ("rpc_timeout", b"execute_model timed out", rb"(execute_model) timed out", _word, "E"),
        ("rpc_timeout", b"imed out", rb"(Timed out waiting for object available to read|Engine iteration timed out)", _word, "E"),
        ("rpc_timeout", b"RayChannelTimeoutError", rb"(RayChannelTimeoutError)", _word, "E"),
        ("collective_timeout", b"eartbeat monitor", rb"(Heartbeat monitor timed out[^\n]{0,60})", _word, "E"),
        ("crash", b"CUDA error: ", rb"(CUDA error: [^\n]{0,100})", _word, "E"),
        ("crash", b"ynchronize", rb"(ACL stream synchronize failed[^\n]{0,80})", _word, "E"),
        ("crash", b"rror code", rb"(error code(?: is|:)? ?507\d{3})", _word, "E"),
        ("engine_dead", b"AsyncEngineDeadError", rb"(AsyncEngineDeadError[^\n]{0,80})", _word, "E"),
        ("shutdown", b"hut", rb"\[shutdown\] (?:API server|MPClient|EngineCore: trigger)|Shutting down FastAPI HTTP server", _none, "E"),
        ("shutdown", b"eceived SIG", rb"[Rr]eceived SIG(?:TERM|INT)", _none, "E"),
        ("collective_timeout", b"atchdog caught collective", rb"[Ww]atchdog caught collective operation timeout(.{0,80})", _word, "E"),
        ("collective_timeout", b"imed out", rb"(?i)\b(hccl|nccl|gloo|mccl)\b[^\n]{0,80}timed out",
         lambda m: {"what": m[0].decode("utf-8", "replace")[:160]}, "E"),
        ("collective_timeout", b"EI00", rb"\b(EI0002|EI0006)\b", _word, "E"),
        ("engine_dead", b"EngineDeadError", rb"(EngineDeadError[^\n]{0,120})", _word, "E"),
        ("engine_dead", b"encountered a fatal error", rb"EngineCore encountered (a fatal error)", _word, "E"),
        ("engine_dead", b"died unexpectedly", rb"((?:Worker|Engine)[^\n]{0,60} died unexpectedly[^\n]{0,60})", _word, "E"),
        ("engine_dead", b"ngine core proc", rb"(Engine core proc\S* \S+ died[^\n]{0,60})", _word, "E"),
        ("crash", b"out of memory", rb"((?:CUDA|NPU|HIP|XPU) out of memory[^\n]{0,80}|OutOfMemoryError[^\n]{0,80})", _word, "E"),
        ("crash", b"llegal memory access", rb"([^\n]{0,30}illegal memory access[^\n]{0,40})", _word, "E"),
        ("assertion", b"AssertionError", rb"(AssertionError[^\n]{0,120})", _word, "E"),
        ("frame_assert", b"_update_from_kv_xfer_finished", rb"in (_update_from_kv_xfer_finished)", _word, "E"),
        ("startup", b"Initializing a", rb"Initializing an? (?:V\d )?LLM engine \((v[\w.+]+)\)", _word, "E"),
        ("startup", b"ersion", rb"vLLM (?:API )?server version ([\w.+]+)", _word, "E"),
        ("starting", b"core engine proc", rb"Waiting for \d+ local, \d+ remote core engine proc", _none, "E"),
        ("starting", b"Starting to load model", rb"Starting to load model", _none, "E"),
        ("starting", b"hecking connectivity", rb"[Cc]hecking connectivity|init_distributed|distributed_init_method", _none, "E"),
        ("compile", b"oading", rb"Loading (?:weights took|safetensors checkpoint shards|model weights)|Model loading took", _none, "E"),
        ("compile", b"ompil", rb"torch\.compile|Compiling a graph|[Cc]ompilation|Dynamo bytecode|compiled graph|[Cc]ompiling", _none, "E"),
        ("compile", b"apturing", rb"(?:Graph c|C)apturing (?:finished|CUDA graph|ACL graph|graph)", _none, "E"),
        ("compile", b"arm", rb"[Ww]arming up|[Ww]armup|[Aa]utotun|Using cache directory", _none, "E"),
        ("ready", b"init engine", rb"init engine \(profile.{0,60}took", _none, "E"),
        ("ready", b"Application startup complete", rb"Application startup complete", _none, "E"),
        ("capacity", b"KV cache size", rb"KV cache size: ([\d,]+) tokens", lambda m: {"tokens": int(m[1].replace(b",", b""))}, "E"),
        ("concurrency", b"aximum concurrency", rb"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x",
         lambda m: {"len": int(m[1].replace(b",", b"") or 0), "x": _f(m, 2)}, "E"),
        ("router_prefill", b"Sending prefill request", rb"Sending prefill request", _none, "E"),
        ("router_prefilled", b"Prefill completed", rb"Prefill completed in", _none, "E"),
        ("router_decode", b"Sending decode request", rb"Sending decode request", _none, "E"),
        ("client_timeout", b"imeout", rb"(aiohttp\S*Timeout\w*|APITimeoutError|ReadTimeout\w*|ServerTimeoutError|504 Gateway)",
         _word, "E"),
        ("spec", b"Draft acceptance rate", rb"Draft acceptance rate: ([\d.]+)%", lambda m: {"rate": _f(m)}, "E"),
    )
)  # fmt: skip

_REQUEST = "add abort failed done engine_dead client_timeout"
#: files whose records can only be of some kinds: the commonest lines skip the rest of the table
_OF_FILE = {
    "logger": _REQUEST,
    "request_logger": _REQUEST,
    "async_llm": _REQUEST,
    "loggers": "iteration spec transfers",
    "metrics": "spec transfers",
    "gpu_model_runner": "compile starting crash",
    "npu_model_runner": "compile starting crash",
    "shm_broadcast": "shm",
    "block_pool": "reset_held",
    "launcher": "startup shutdown",
    "api_server": "startup ready starting shutdown",
    "kv_cache_utils": "capacity concurrency",
}
_ROWS = {
    name.encode(): tuple(row for row in TABLE if row[0] in kinds.split()) for name, kinds in _OF_FILE.items()
}


def observe(line: Line, ref: Callable[[], Ref]) -> Iterator[Obs]:
    """Every observation in a line that is not a statistics record."""
    text = line.text if len(line.text) < 65536 else line.text[:65536]
    seen: set[str] = set()
    for kind, literal, pattern, extract, tier in _ROWS.get(line.file, TABLE):
        if literal not in text or kind in seen or (kind == "compile" and "shm" in seen):
            continue  # the shm record itself speaks of compilation
        m = pattern.search(text)
        if m is None:
            continue
        seen.add(kind)
        yield Obs(
            kind=kind,
            ref=ref(),
            t=line.t,
            engine=line.engine,
            data=extract(m),
            tier="C" if line.level == "DEBUG" and tier == "E" else tier,
        )
