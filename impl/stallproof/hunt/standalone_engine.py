"""@title@

@story@

Property: @property@ (@meaning@)
Found on vLLM @version@. Needs vLLM and nothing else: no weights, no GPU, no network. The real scheduler is
stepped by hand; worker and KV connector are simulated below. Counts are tokens, blocks, steps.

# @if script
Exit code 1: the fault shows; 0: it does not; 2: this vLLM cannot run it.
# @end
"""

import hashlib
import importlib
import inspect
import json
import os

# @if script
import sys  # noqa: F401

# @end
import tempfile
from collections import deque  # noqa: F401
from types import SimpleNamespace

# @if script
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# @end

# @if connector
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)

# @end
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
                kv_connector_extra_config={"delivers": e.get("delivers", True)},
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


def name(q, k):
    return f"{q['id']}{k}" if q.get("count", 1) > 1 else q["id"]


def some_tokens(name, n):
    """``n`` token ids that depend on ``name`` only."""
    raw = b"".join(hashlib.sha256(f"{name}/{i}".encode()).digest() for i in range(n // 16 + 1))
    return [3 + int.from_bytes(raw[2 * i : 2 * i + 2], "big") % 500 for i in range(n)]


_hashing: list = []


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

        future: Future = Future()
        if q["grammar"] == "error":
            future.set_exception(ValueError("the grammar does not compile"))
        request.structured_output_request._grammar = future
    # @end
    return request


# @if connector
# ---------------------------------------------------------------- the connector: answers, loads, sends


class Meta(KVConnectorMetadata):
    def __init__(self):
        self.loads, self.sends = [], []


class ScriptedConnector(KVConnectorBase_V1, SupportsHMA):
    """Scheduler half of a connector; what it does for a request travels in its ``kv_transfer_params``."""

    def __init__(self, vllm_config, role, kv_cache_config=None):
        super().__init__(vllm_config, role, kv_cache_config)
        self.size = vllm_config.cache_config.block_size
        self.delivers = vllm_config.kv_transfer_config.kv_connector_extra_config["delivers"]
        self.step, self.asked, self.loaded, self.hit, self.new = 0, {}, set(), {}, Meta()
        self.empty = []  # requests that ended well and hand over nothing

    requires_kv_delivery = property(lambda self: self.delivers)

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
