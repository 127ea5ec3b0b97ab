"""@title@

@story@

Property: @property@ (@meaning@)
Found on vLLM @version@. Needs vLLM and nothing else: no weights, no GPU, no network. The real scheduler is
stepped by hand; worker and KV connector are simulated below. Counts are tokens, blocks, steps.

Exit code 1: the fault shows; 0: it does not; 2: this vLLM cannot run it.
"""

import hashlib
import importlib
import inspect
import json
import os
import sys
import tempfile
from collections import deque
from types import SimpleNamespace

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)

PROPERTY = "@property@"
SCHEDULER = "stock"
SCENARIO: dict = {}  # values that are not given are defaults


# ---------------------------------------------------------------- the engine in miniature


def accepted(cls, **values):
    """The fields that this release knows."""
    names = inspect.signature(cls).parameters
    return cls(**{k: v for k, v in values.items() if k in names})


def make_scheduler(e):
    """A scheduler over ``e["blocks"]`` usable blocks; the model is a description without weights."""
    import torch
    from vllm.config import CacheConfig, KVTransferConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core import single_type_kv_cache_manager
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        SlidingWindowSpec,
    )
    from vllm.v1.structured_output import StructuredOutputManager

    size, depth = e.get("block_size", 16), e.get("depth", 2)
    with tempfile.TemporaryDirectory() as folder:
        description = {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 512,
            "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 32,
            "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 1 << 20,
            "hidden_act": "silu", "rms_norm_eps": 1e-6, "torch_dtype": "float32",
        }  # fmt: skip
        with open(os.path.join(folder, "config.json"), "w") as f:  # noqa: PTH118, PTH123
            json.dump(description, f)
        model = ModelConfig(
            model=folder, tokenizer=folder, skip_tokenizer_init=True, dtype="float32", seed=0,
            max_model_len=e.get("max_model_len", 1024),
        )  # fmt: skip
        scheduler = accepted(
            SchedulerConfig,
            max_num_seqs=e.get("max_num_seqs", 16),
            max_num_batched_tokens=e.get("budget", 512),
            max_model_len=e.get("max_model_len", 1024),
            long_prefill_token_threshold=e.get("chunk_cap", 0),
            enable_chunked_prefill=e.get("chunked_prefill", True),
            policy=e.get("policy", "fcfs"),
            is_encoder_decoder=False,
            async_scheduling=False,
            watermark=0.0,
            scheduler_reserve_full_isl=e.get("full_fit", True),
            disable_hybrid_kv_cache_manager=True,
        )
        cache = CacheConfig(
            block_size=size, gpu_memory_utilization=0.9, cache_dtype="auto",
            enable_prefix_caching=e.get("prefix_caching", False),
        )  # fmt: skip
        transfer = None
        if e.get("role"):
            transfer = accepted(
                KVTransferConfig,
                kv_connector="ScriptedConnector",
                kv_connector_module_path=__name__,
                kv_role=e["role"],
                kv_load_failure_policy=e.get("load_failure", "recompute"),
            )
        config = VllmConfig(
            model_config=model, scheduler_config=scheduler, cache_config=cache, kv_transfer_config=transfer
        )
    # The CPU platform switches these off or rounds them; the scheduler has no such limits.
    config.cache_config.block_size = size
    config.cache_config.enable_prefix_caching = e.get("prefix_caching", False)
    config.cache_config.num_gpu_blocks = e["blocks"] + 1
    config.scheduler_config.async_scheduling = depth == 2
    if depth > 2:
        config.parallel_config.pipeline_parallel_size = depth
    if hasattr(single_type_kv_cache_manager, "register_all_kvcache_specs"):
        single_type_kv_cache_manager.register_all_kvcache_specs(config)
    shape = {"block_size": size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    windows = e.get("groups") or [e.get("window", 0)]
    groups = [
        KVCacheGroupSpec(
            [f"layer{i}"],
            SlidingWindowSpec(**shape, sliding_window=w) if w else FullAttentionSpec(**shape),
        )
        for i, w in enumerate(windows)
    ]
    if SCHEDULER != "stock":
        module, _, name = SCHEDULER.rpartition(".")
    elif depth == 2:
        module, name = "vllm.v1.core.sched.async_scheduler", "AsyncScheduler"
    else:
        module, name = "vllm.v1.core.sched.scheduler", "Scheduler"
    sched = getattr(importlib.import_module(module), name)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=e["blocks"] + 1, kv_cache_tensors=[], kv_cache_groups=groups
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=size,
        hash_block_size=size,
        include_finished_set=False,
        log_stats=False,
    )
    if e.get("budget_tokens"):
        sched.max_num_scheduled_tokens = e["budget_tokens"]
    # @if lookahead
    if e.get("lookahead"):  # the slots that speculative decoding reserves
        sched.num_lookahead_tokens = e["lookahead"]
        reserve = getattr(sched, "_spec_decode_step_blocks", None)
        if reserve is not None:
            blocks = -(-e["lookahead"] // size)
            sched._spec_decode_step_blocks = (lambda: blocks) if callable(reserve) else blocks
        sched.use_eagle = True
    # @end
    # @if loras
    if e.get("max_loras"):
        sched.lora_config = SimpleNamespace(max_loras=e["max_loras"])
    # @end
    if e.get("zeroing"):
        sched.needs_kv_cache_zeroing = True
    return sched


def some_tokens(name, n):
    """``n`` token ids that depend on ``name`` only."""
    raw = b"".join(hashlib.sha256(f"{name}/{i}".encode()).digest() for i in range(n // 16 + 1))
    return [3 + int.from_bytes(raw[2 * i : 2 * i + 2], "big") % 500 for i in range(n)]


_hashing = []


def make_request(rid, prompt, max_tokens, q, arrival, size, resumable):
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    if not _hashing:
        init_none_hash(sha256)
        _hashing.append(True)
    script = dict(q.get("load", {}))
    if "send" in q:
        script["send"] = {"delay": 2, "outcome": "ok", **q["send"]}
    extra = {"extra_args": {"kv_transfer_params": {"script": script}}} if script else {}
    # @if grammar
    if q.get("grammar"):
        from vllm.sampling_params import StructuredOutputsParams

        extra["structured_outputs"] = StructuredOutputsParams(regex="a+")
    # @end
    lora = None
    # @if loras
    if q.get("lora"):
        from vllm.lora.request import LoRARequest

        lora = LoRARequest(lora_name=f"adapter{q['lora']}", lora_int_id=q["lora"], lora_path="none")
    # @end
    request = Request(
        request_id=rid,
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=0.0, **extra),
        pooling_params=None,
        arrival_time=arrival,
        priority=q.get("priority", 0),
        block_hasher=get_request_block_hasher(size, sha256),
        resumable=resumable,
        lora_request=lora,
    )
    if script:
        request.kv_transfer_params = {"script": script}
    # @if grammar
    if q.get("grammar"):  # a compilation that never ends, or that failed
        from concurrent.futures import Future

        future = Future()
        if q["grammar"] == "error":
            future.set_exception(ValueError("the grammar does not compile"))
        request.structured_output_request._grammar = future
    # @end
    return request


# ---------------------------------------------------------------- the connector: answers, loads, sends

# @if connector


class Meta(KVConnectorMetadata):
    def __init__(self):
        self.loads, self.sends = [], []


class ScriptedConnector(KVConnectorBase_V1, SupportsHMA):
    """Scheduler half of a connector; what it does for a request travels in its ``kv_transfer_params``."""

    def __init__(self, vllm_config, role, kv_cache_config=None):
        super().__init__(vllm_config, role, kv_cache_config)
        self.size = vllm_config.cache_config.block_size
        self.step, self.asked, self.loaded, self.hit, self.new = 0, {}, set(), {}, Meta()
        self.empty = []  # requests that ended well and hand over nothing

    @staticmethod
    def script(request):
        return (request.kv_transfer_params or {}).get("script", {})

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        s, r = self.script(request), request.request_id
        if self.asked.get(r, 0) < s.get("defer", 0) or self.step < s.get("defer_until", 0):
            self.asked[r] = self.asked.get(r, 0) + 1
            return None, False  # not yet, ask again
        if r in self.loaded and not s.get("again"):
            return 0, False
        sync = s.get("mode", "async") == "sync"
        new = max(0, min(s.get("tokens", 0), request.num_tokens - sync) - num_computed_tokens)
        self.hit[r] = num_computed_tokens
        return new, new > 0 and not sync

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        if num_external_tokens <= 0:
            return
        r = request.request_id
        self.loaded.add(r)
        hit = self.hit.get(r, 0)
        ids = list(blocks.get_block_ids()[0])
        mine = ids[hit // self.size : -(-(hit + num_external_tokens) // self.size)]
        self.new.loads.append(SimpleNamespace(r=r, blocks=mine, script=self.script(request)))

    def build_connector_meta(self, scheduler_output):
        meta, self.new = self.new, Meta()
        return meta

    def request_finished(self, request, block_ids):
        send = self.script(request).get("send")
        if not send:
            return False, None
        groups = block_ids if block_ids and isinstance(block_ids[0], (list, tuple)) else [block_ids]
        ids = [b for group in groups for b in group]
        if not ids and request.status.name in ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED"):
            self.empty.append(request.request_id)
        self.new.sends.append(SimpleNamespace(r=request.request_id, blocks=ids, **send))
        return True, None

    def request_finished_all_groups(self, request, block_ids):
        return self.request_finished(request, block_ids)

    # the worker half is played by Run

    def start_load_kv(self, forward_context, **kwargs): ...

    def wait_for_layer_load(self, layer_name): ...

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs): ...

    def wait_for_save(self): ...


# @end

# ---------------------------------------------------------------- the engine's loop


class Run:
    def __init__(self, scenario):
        self.sc, self.e = scenario, scenario["engine"]
        self.sched = make_scheduler(self.e)
        self.connector = self.sched.connector
        self.manager = self.sched.kv_cache_manager
        self.pool = self.manager.block_pool
        self.size = self.e.get("block_size", 16)
        self.bugs = {}  # property -> what was seen first
        self.step, self.made, self.quiet, self.owed = 0, 0, 0, 0
        self.flight = deque()  # steps in flight: (output, who samples a token, blocks that the step may touch)
        self.loads, self.sends, self.aborts = [], [], []
        self.live, self.objects, self.arrived, self.place = {}, {}, {}, {}
        self.ended, self.outputs, self.turns, self.passed = {}, {}, {}, {}
        self.streamed = [0] * len(scenario.get("stream", []))
        self.waiting = sorted(
            (
                (q.get("arrive", 0) + k * q.get("every", 0), f"{q['id']}{k}" if q.get("count", 1) > 1 else q["id"], q)
                for q in scenario["request"]
                for k in range(q.get("count", 1))
            ),
            key=lambda w: w[0],
        )
        self.all = {rid for _, rid, _ in self.waiting}
        self.must = {rid for _, rid, q in self.waiting if q.get("must_finish", True)}
        self.said, self.lines = None, 0
        self.asked, self.refused, self.fresh, self.inside = "", {}, set(), False
        self.watch()

    def found(self, prop, text):
        self.bugs.setdefault(prop, f"step {self.step}: {text}")

    # -------------------------------------------------------- what is watched inside a call

    def held(self, rid):
        return {b for group in self.manager.get_block_ids(rid) for b in group if b} if rid else set()

    def tables(self):
        return {r: self.held(r) for r in self.sched.requests}

    def watch(self):
        allocate, preempt = self.manager.allocate_slots, self.sched._preempt_request
        take, free = self.pool.get_new_blocks, self.pool.free_blocks
        released = []

        def allocate_slots(request, *args, **kwargs):
            self.asked = rid = request.request_id
            had = bool(self.held(rid))
            got = allocate(request, *args, **kwargs)
            if got is None:
                self.refused[rid] = self.place.get(rid, (0, 0.0))
                return got
            self.refused.pop(rid, None)
            ahead = [r for r, place in self.refused.items() if place < self.place.get(rid, (0, 0.0))]
            if self.inside and not had and self.held(rid) and ahead:
                self.found("NoInversion", f"{ahead[0]} was refused, {rid} behind it was given blocks")
            return got

        def _preempt_request(request, *args, **kwargs):
            released.clear()
            preempt(request, *args, **kwargs)
            if self.inside and not released and request.request_id != self.asked:
                self.found("NoZeroPre", f"{request.request_id} was preempted for {self.asked}, and no block came free")

        def get_new_blocks(n):
            blocks = take(n)
            ids = {b.block_id for b in blocks}
            for r, mine in self.tables().items():
                if ids & mine:
                    self.found("OneOwner", f"block {min(ids & mine)} is handed out while {r} holds it")
            for send in self.sends:
                if ids & set(send.blocks):
                    self.found("StoreSafe", f"block {min(ids & set(send.blocks))} of {send.r} is reused while it is read")
            self.fresh |= ids
            return blocks

        def free_blocks(blocks, *args, **kwargs):
            blocks = list(blocks)
            for b in blocks:
                if b.ref_cnt <= 0 and not b.is_null:
                    self.found("NoDoubleFree", f"block {b.block_id} is freed, which is free already")
            released.extend(blocks)
            return free(blocks, *args, **kwargs)

        self.manager.allocate_slots, self.sched._preempt_request = allocate_slots, _preempt_request
        self.pool.get_new_blocks, self.pool.free_blocks = get_new_blocks, free_blocks

    def after_call(self):
        """Block tables after a call of the scheduler."""
        tables = self.tables()
        for x in self.loads:
            if x.script.get("mode", "async") == "sync" or not x.begun:
                continue
            gone = set(x.blocks) - tables.get(x.r, set())
            if gone:
                self.found("XferSafe", f"{x.r} gave up block {min(gone)}, which its unfinished load may still write")
                x.blocks = [b for b in x.blocks if b not in gone]
            for r, mine in tables.items():
                if r != x.r and mine & set(x.blocks):
                    self.found("XferSafe", f"{r} holds block {min(mine & set(x.blocks))}, which a load of {x.r} writes")
        count = {}
        for mine in tables.values():
            for b in mine:
                count[b] = count.get(b, 0) + 1
        for b, n in count.items():
            if self.pool.blocks[b].ref_cnt < n:
                self.found("RefCount", f"{n} requests hold block {b}, its count is {self.pool.blocks[b].ref_cnt}")
        for rid in self.connector.empty if self.connector is not None else ():
            self.found("StoreSafe", f"{rid} ended well and hands over KV that is gone: no block of it is left")

    def touched(self, output):
        """Blocks that a step may read or write: those of its requests, as far as the window reaches."""
        ids = set(getattr(output, "new_block_ids_to_zero", None) or ())
        windows = self.e.get("groups") or [self.e.get("window", 0)]
        for r, n in output.num_scheduled_tokens.items():
            begin = self.sched.requests[r].num_computed_tokens - n
            for window, group in zip(windows, self.manager.get_block_ids(r), strict=False):
                first = max(0, begin - window + 1) // self.size if window else 0
                ids |= {b for b in group[first:] if b}
        return ids

    # -------------------------------------------------------- the loop

    def go(self):
        try:
            self.loop()
        except Exception as exc:
            text = f"{type(exc).__name__}: {exc}"[:300]
            self.found(self.sc.get("death", "EngineDies"), f"the engine's loop dies: {text}")
            return
        self.judge()

    def loop(self):
        tail, depth = 0, self.e.get("depth", 2)
        for step in range(self.sc.get("steps", 400)):
            self.step = step
            self.happenings()
            if self.busy():
                self.dispatch()
            elif not self.flight and not self.waiting:
                self.asleep()
                tail += 1
                if tail > 64 and not self.pending():
                    break
                continue
            if self.flight and (len(self.flight) >= depth or not self.busy()):
                self.process()
            if not self.waiting and self.all <= set(self.ended):
                tail += 1
                if tail > 64:
                    break
        while self.flight:
            self.process()

    def busy(self):
        s = self.sched
        if hasattr(s, "has_requests"):
            return s.has_requests()
        return s.has_unfinished_requests() or s.has_finished_requests()

    def asleep(self):
        """Nothing to do for the engine: will anybody ask for what the connector has to report?"""
        due = [x for x in self.loads if x.script.get("outcome") != "lost" and self.step - x.at >= x.script.get("delay", 2)]
        due += [x for x in self.sends if x.outcome != "lost" and x.at <= self.step]
        self.owed = self.owed + 1 if due and set(self.live) - set(self.ended) else 0
        if self.owed >= 16:
            self.found("BoundedWait", f"a completion is due for {self.owed} steps and nobody asks for it")

    def pending(self):
        """The connector still owes a report."""
        return any(x.script.get("outcome") != "lost" for x in self.loads) or any(
            x.outcome != "lost" for x in self.sends
        )

    def happenings(self):
        while self.waiting and self.waiting[0][0] <= self.step:
            _, rid, q = self.waiting.pop(0)
            self.add(rid, q)
            if q.get("abort", -1) >= 0:
                self.aborts.append((q["abort"], rid))
        # @if sessions
        for rid, q in list(self.live.items()):
            if q.get("turns") and rid not in self.ended:
                self.next_turn(rid, q)
        # @end
        # @if streams
        for i, stream in enumerate(self.sc.get("stream", [])):
            if self.step < stream.get("start", 0) or self.all <= set(self.ended):
                continue
            running = {x.request_id for x in self.sched.running}
            mine = [r for r, q in self.live.items() if q is stream and r not in self.ended and r not in running]
            for _ in range(stream.get("keep", 4) - len(mine)):
                self.add(f"{stream['id']}{self.streamed[i]}", stream)
                self.streamed[i] += 1
        # @end
        for when, rid in list(self.aborts):
            if when <= self.step:
                self.aborts.remove((when, rid))
                self.abort(rid)
        # @if aborts
        for rid, q in list(self.live.items()):
            if q.get("abort_on") and rid not in self.ended and self.state(rid) == q["abort_on"]:
                self.abort(rid)
        # @end
        # @if at
        for at in self.sc.get("at", []):
            if at["step"] == self.step:
                self.do(at["do"])
        # @end

    # @if sessions
    def next_turn(self, rid, q):
        """The next chunk of a streaming session, or its end after the last."""
        k, request = self.turns.get(rid, 0), self.sched.requests.get(rid)
        parked = request is not None and request.status.name == "WAITING_FOR_STREAMING_REQ"
        if k >= len(q["turns"]):
            if parked:
                self.end(rid)
                self.sched.add_request(self.request(rid, [], 1, q, resumable=False))
            return
        turn = q["turns"][k]
        if self.step >= turn["at"] if turn.get("at", -1) >= 0 else parked:
            self.turns[rid] = k + 1
            prompt = some_tokens(f"{rid}/{k}", turn["prompt"])
            self.sched.add_request(self.request(rid, prompt, turn.get("max_tokens", 1), q, resumable=True))

    # @end
    # @if aborts
    def state(self, rid):
        request = self.sched.requests.get(rid)
        if request is None or request.status.name not in ("RUNNING", "WAITING_FOR_REMOTE_KVS"):
            return ""
        if request.status.name == "RUNNING":
            return "running"
        return "received" if rid in self.sched.finished_recving_kv_req_ids else "loading"

    # @end
    # @if at
    def do(self, what):
        print(f"step {self.step}: {what}")
        if what in ("reset_cache", "reset_running"):
            self.sched.reset_prefix_cache(reset_running_requests=what == "reset_running")
        else:
            from vllm.v1.core.sched.interface import PauseState

            names = {"pause_new": "PAUSED_NEW", "pause_all": "PAUSED_ALL", "resume": "UNPAUSED"}
            self.sched.set_pause_state(PauseState[names[what]])

    # @end
    def abort(self, rid):
        from vllm.v1.request import RequestStatus

        print(f"step {self.step}: the client of {rid} goes away")
        if rid in self.sched.requests:
            self.sched.finish_requests(rid, RequestStatus.FINISHED_ABORTED)
            self.after_call()
        self.end(rid)

    def add(self, rid, q):
        prompt = some_tokens(rid, q["prompt"])
        if q.get("prefix"):
            n = q.get("prefix_tokens", 0)
            prompt[:n] = some_tokens(f"prefix {q['prefix']}", n)
        request = self.request(rid, prompt, q.get("max_tokens", 1), q, bool(q.get("turns") or q.get("abandoned")))
        self.live[rid], self.objects[rid], self.arrived[rid] = q, request, self.step
        self.place[rid] = (q.get("priority", 0) if self.e.get("policy") == "priority" else 0, request.arrival_time)
        self.sched.add_request(request)

    def request(self, rid, prompt, n, q, resumable):
        self.made += 1
        return make_request(rid, prompt, n, q, float(self.made), self.size, resumable)

    def end(self, rid):
        self.ended.setdefault(rid, self.step)

    # -------------------------------------------------------- one step

    def dispatch(self):
        if self.connector is not None:
            self.connector.step = self.step
        asked, held = self.state_of_queues(), dict(self.connector.asked) if self.connector is not None else {}
        self.refused, self.fresh, self.inside = {}, set(), True
        preempted = {r.request_id: r.num_preemptions for r in self.sched.requests.values()}
        output = self.sched.schedule()
        self.inside = False
        tokens = output.num_scheduled_tokens
        preempted = [r for r, n in preempted.items() if r in self.sched.requests and self.sched.requests[r].num_preemptions > n]
        moved = asked != self.state_of_queues() or self.connector is not None and held != self.connector.asked
        meta = getattr(output, "kv_connector_metadata", None)
        self.starts(meta)
        samples = {}
        for rid in tokens:
            request = self.sched.requests[rid]
            known = request.num_tokens + request.num_output_placeholders
            samples[rid] = not getattr(request, "is_prefill_chunk", request.num_computed_tokens < known)
        self.sched.get_grammar_bitmask(output)
        self.say(tokens, preempted, meta)
        self.stuck(output, moved)
        self.overtaken(tokens)
        self.flight.append((output, samples, self.touched(output)))
        self.after_call()

    def state_of_queues(self):
        return {r: (q.status.name, len(self.held(r))) for r, q in self.sched.requests.items()}

    def starts(self, meta):
        """Loads begin as soon as the worker gets the step, whatever the device is doing."""
        if meta is None:
            return
        for x in meta.loads:
            x.at, x.begun = self.step, True
            if any(y.r == x.r and y.script.get("mode", "async") != "sync" for y in self.loads):
                self.found("XferSafe", f"a second load of {x.r} begins while the first is unfinished")
            for _, _, blocks in self.flight:
                hit = blocks & set(x.blocks)
                if hit and x.script.get("mode", "async") != "sync":
                    self.found("InFlightSafe", f"a load of {x.r} writes block {min(hit)}, which a step in flight may touch")
            self.loads.append(x)
        for x in meta.sends:
            x.at = self.step + x.delay
            self.sends.append(x)

    def stuck(self, output, moved):
        """Work to do, nothing in flight, nothing pending outside, and the call does nothing."""
        paused = getattr(getattr(self.sched, "pause_state", None), "name", "UNPAUSED") != "UNPAUSED"
        busy = (
            output.total_num_scheduled_tokens or moved or paused or self.pending()
            or any(f[0].total_num_scheduled_tokens for f in self.flight)
            or not set(self.live) - set(self.ended)
            or any(q.status.name.startswith("WAITING_FOR_S") for q in self.sched.requests.values())
        )  # fmt: skip
        self.quiet = 0 if busy else self.quiet + 1
        if self.quiet >= 3:
            left = ", ".join(sorted(set(self.live) - set(self.ended))[:6])
            free = self.pool.get_num_free_blocks()
            self.found("NoWedge", f"{left} unfinished, {free} blocks free, nothing in flight or pending, and nothing is scheduled")

    def overtaken(self, tokens):
        """Requests that could run, and others behind them that do instead, call after call."""
        last = max((self.place[r] for r in tokens if r in self.place), default=None)
        for r in tokens:
            self.passed.pop(r, None)
        for r, request in self.sched.requests.items():
            if r in tokens or r in self.ended or request.is_finished() or self.outside(r):
                continue
            if last is not None and self.place[r] < last:
                self.passed[r] = self.passed.get(r, 0) + 1
                if self.passed[r] >= 64:
                    self.found("NoStarvation", f"{r} could run and got nothing in 64 calls, others behind it ran in each")
            else:
                self.passed.pop(r, None)

    def outside(self, rid):
        """It waits for something other than the scheduler."""
        request = self.sched.requests.get(rid)
        if request is None or request.is_finished():
            return False
        name = request.status.name
        if name == "WAITING_FOR_REMOTE_KVS":
            return rid not in self.sched.finished_recving_kv_req_ids
        script = (request.kv_transfer_params or {}).get("script", {})
        return name.startswith("WAITING_FOR_S") or (
            self.connector is not None and script.get("defer", 0) > self.connector.asked.get(rid, 0)
        )

    def process(self):
        from vllm.v1.outputs import ModelRunnerOutput

        output, samples, _ = self.flight.popleft()
        ids = list(output.num_scheduled_tokens)
        result = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={r: i for i, r in enumerate(ids)},
            sampled_token_ids=[
                [3 + (len(r) + self.outputs.get(r, 0)) % 500] if samples.get(r) else [] for r in ids
            ],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
            kv_connector_output=self.reports(),
        )
        for client in self.sched.update_from_output(output, result).values():
            for o in client.outputs:
                self.outputs[o.request_id] = self.outputs.get(o.request_id, 0) + len(o.new_token_ids)
                q = self.live.get(o.request_id, {})
                if o.finish_reason is not None and not (q.get("turns") or q.get("abandoned")):
                    self.end(o.request_id)
        for rid, request in self.objects.items():
            if request.is_finished():
                self.end(rid)
        self.after_call()

    def reports(self):
        """What the connector's worker reports with this step."""
        if self.connector is None:
            return None
        from vllm.v1.outputs import KVConnectorOutput

        recv, sent, bad, failed, left = set(), set(), set(), set(), []
        for x in self.loads:
            outcome, sync = x.script.get("outcome", "ok"), x.script.get("mode") == "sync"
            if outcome == "lost" or (self.step - x.at < x.script.get("delay", 2) and not sync):
                left.append(x)
                continue
            if outcome in ("fail", "fail_silent"):
                bad.update(x.blocks)
            elif outcome == "partial":
                bad.update(x.blocks[len(x.blocks) // 2 :])
            elif outcome == "duplicate":
                again = dict(x.script, outcome="ok", delay=1)
                left.append(SimpleNamespace(r=x.r, blocks=x.blocks, script=again, at=self.step, begun=False))
            if outcome != "fail_silent" and not sync:
                recv.add(x.r)
        self.loads = left
        for x in [x for x in self.sends if x.at <= self.step and x.outcome != "lost"]:
            self.sends.remove(x)
            sent.add(x.r)
            if x.outcome == "duplicate":
                self.sends.append(SimpleNamespace(r=x.r, blocks=[], at=self.step + 1, outcome="ok"))
            if x.outcome == "with_recv":
                recv.add(x.r)
        for raw in self.sc.get("report", []):
            if raw["step"] == self.step:
                {"recv": recv, "sent": sent, "failed": failed}[raw["kind"]].add(raw["id"])
        if not (recv or sent or bad or failed):
            return None
        print(
            f"step {self.step}: the connector reports"
            + "".join(f" {n} {sorted(x)}" for n, x in (("received", recv), ("sent", sent), ("bad blocks", bad), ("failed", failed)) if x)
        )
        extra = {"failed_recving": failed} if failed and hasattr(KVConnectorOutput(), "failed_recving") else {}
        return KVConnectorOutput(
            finished_recving=recv or None, finished_sending=sent or None, invalid_block_ids=bad, **extra
        )

    # -------------------------------------------------------- at the end

    def judge(self):
        free, pool = self.pool.get_num_free_blocks(), self.e["blocks"]
        if not set(self.live) - set(self.ended) and not self.pending() and free != pool:
            self.found("NoLeak", f"all requests have ended, {pool - free} blocks never came back")
        left = sorted(self.must - set(self.ended))
        if not left:
            return
        text = f"{', '.join(left[:6])} not finished after {self.step + 1} steps"
        later = {
            r: sum(1 for x, at in self.arrived.items() if at > self.arrived.get(r, 1 << 30) and x in self.ended)
            for r in left
        }
        waits = [r for r in left if self.outside(r)]
        if waits:
            self.found("BoundedWait", f"{waits[0]} waits for an answer that never comes: {text}")
        r = max(left, key=lambda x: later[x])
        if self.sc.get("stream") and later[r] >= 16:
            self.found("NoStarvation", f"{text}; {later[r]} later arrivals finished before {r}")
        elif self.quiet < 3 and set(left) - set(waits):
            self.found("Termination", text)

    def say(self, tokens, preempted, meta):
        """One line for a step that differs from the one before."""
        loads = [x.r for x in meta.loads] if meta is not None else []
        now = (sorted(tokens), preempted, loads, self.pool.get_num_free_blocks(), sorted(self.refused))
        if now == self.said or self.lines > 120:
            return
        self.said, self.lines = now, self.lines + 1
        line = f"step {self.step}: tokens {dict(tokens) or 'none'}, {now[3]} blocks free"
        for what, who in (("refused", now[4]), ("preempted", preempted), ("loading", loads)):
            line += f", {what} {', '.join(who)}" if who else ""
        print(line)


def main():
    try:
        import vllm

        run = Run(SCENARIO)
    except Exception as exc:
        print(f"cannot run: {type(exc).__name__}: {exc}")
        return 2
    print(f"vLLM {vllm.__version__}, {type(run.sched).__name__}, {SCENARIO['engine']['blocks']} usable blocks")
    run.go()
    if PROPERTY in run.bugs:
        print(f"FAULT: {PROPERTY}: {run.bugs[PROPERTY]}")
        return 1
    print(f"no fault: {PROPERTY} holds; {len(run.all & set(run.ended))} of {len(run.all)} requests ended")
    return 0


if __name__ == "__main__":
    sys.exit(main())
