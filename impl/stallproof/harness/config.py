"""An engine configuration and scheduler made on the spot: a tiny model description, no weights."""

from __future__ import annotations

import inspect
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from stallproof.errors import BadInput
from stallproof.scenario import Engine

_TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 1 << 20,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "torch_dtype": "float32",
}

_model: Path | None = None


def tiny_model() -> Path:
    """A folder with nothing but a ``config.json``; enough for everything but running the model."""
    global _model
    if _model is None:
        folder = Path(tempfile.mkdtemp(prefix="stallproof-model-"))
        (folder / "config.json").write_text(json.dumps(_TINY))
        import atexit
        import shutil

        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _model = folder
    return _model


def _accepted(cls: Any, values: dict[str, Any]) -> dict[str, Any]:
    """The entries that this release's class knows."""
    names = set(inspect.signature(cls).parameters)
    return {k: v for k, v in values.items() if k in names}


def vllm_config(e: Engine, transfer: dict[str, Any] | None = None) -> Any:
    """The configuration of an engine of this release, as its scheduler reads it.

    ``transfer``: fields of ``KVTransferConfig`` for another connector than the scripted one.
    """
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from vllm.config import CacheConfig, KVTransferConfig, ModelConfig, SchedulerConfig, VllmConfig

    model = ModelConfig(
        model=str(tiny_model()),
        tokenizer=str(tiny_model()),
        skip_tokenizer_init=True,
        dtype="float32",
        seed=0,
        max_model_len=e.max_model_len,
    )
    scheduler = SchedulerConfig(
        **_accepted(
            SchedulerConfig,
            {
                "max_num_seqs": e.max_num_seqs,
                "max_num_batched_tokens": e.budget,
                "max_model_len": e.max_model_len,
                "long_prefill_token_threshold": e.chunk_cap,
                "enable_chunked_prefill": e.chunked_prefill,
                "policy": e.policy,
                "is_encoder_decoder": False,
                "async_scheduling": False,
                "watermark": 0.0,
                "scheduler_reserve_full_isl": e.full_fit,
                "disable_hybrid_kv_cache_manager": True,
            },
        )
    )
    cache = CacheConfig(
        block_size=e.block_size,
        gpu_memory_utilization=0.9,
        cache_dtype="auto",
        enable_prefix_caching=e.prefix_caching,
    )
    kv = None
    if transfer:
        kv = KVTransferConfig(**_accepted(KVTransferConfig, transfer))
    elif e.role:
        kv = KVTransferConfig(
            **_accepted(
                KVTransferConfig,
                {
                    "kv_connector": "ScriptedConnector",
                    "kv_connector_module_path": "stallproof.harness.connector",
                    "kv_role": e.role,
                    "kv_load_failure_policy": e.load_failure,
                    "kv_connector_extra_config": {} if e.delivers else {"delivers": False},
                },
            )
        )
    config = VllmConfig(
        model_config=model, scheduler_config=scheduler, cache_config=cache, kv_transfer_config=kv
    )
    # The CPU platform switches these off or rounds them; the scheduler itself has no such limits.
    config.cache_config.block_size = e.block_size
    config.cache_config.enable_prefix_caching = e.prefix_caching
    config.cache_config.num_gpu_blocks = e.blocks + 1
    config.scheduler_config.async_scheduling = e.depth == 2
    if e.depth > 2:
        config.parallel_config.pipeline_parallel_size = e.depth
    return config


def make_scheduler(cls: type, e: Engine, transfer: dict[str, Any] | None = None, config: Any = None) -> Any:
    """A live scheduler of ``cls`` over a pool of ``e.blocks`` usable blocks.

    ``config``: what :func:`vllm_config` made for the same engine before; making it takes longer than a short
    run does.
    """
    import torch
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        SlidingWindowSpec,
    )
    from vllm.v1.structured_output import StructuredOutputManager

    config = config or vllm_config(e, transfer)
    try:
        from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs

        register_all_kvcache_specs(config)
    except ImportError:
        pass
    shape: dict[str, Any] = {
        "block_size": e.block_size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32,
    }  # fmt: skip
    spec: Any = (
        SlidingWindowSpec(**shape, sliding_window=e.window) if e.window else FullAttentionSpec(**shape)
    )
    groups = [KVCacheGroupSpec(["layer"], spec)]
    if e.groups:
        groups = [
            KVCacheGroupSpec(
                [f"layer{i}"],
                SlidingWindowSpec(**shape, sliding_window=w) if w else FullAttentionSpec(**shape),
            )
            for i, w in enumerate(e.groups)
        ]
    kv_cache = KVCacheConfig(num_blocks=e.blocks + 1, kv_cache_tensors=[], kv_cache_groups=groups)
    sched = cls(
        vllm_config=config,
        kv_cache_config=kv_cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=e.block_size,
        hash_block_size=e.block_size,
        include_finished_set=False,
        log_stats=False,
    )
    if e.budget_tokens:
        sched.max_num_scheduled_tokens = e.budget_tokens
    if e.lookahead:
        sched.num_lookahead_tokens = e.lookahead
        blocks = -(-e.lookahead // e.block_size)
        reserve = getattr(sched, "_spec_decode_step_blocks", None)  # 0.31: a method, later a number
        if reserve is not None:
            sched._spec_decode_step_blocks = (lambda: blocks) if callable(reserve) else blocks
        sched.use_eagle = True  # up to 0.30 the reservation of a load depends on it
    if e.max_loras:
        from types import SimpleNamespace

        sched.lora_config = SimpleNamespace(max_loras=e.max_loras)
    if e.zeroing:
        sched.needs_kv_cache_zeroing = True
        for manager in sched.kv_cache_manager.coordinator.single_type_managers:
            if hasattr(manager, "_record_new_block_ids"):  # releases that record what will be zeroed only
                manager._record_new_block_ids = True
    return sched


def scheduler_class(name: str, depth: int, variant: str = "") -> type:
    """``stock``, ``stallproof`` or a dotted name; stock and ours come in two kinds, by ``depth``.

    What a dotted name means is a class, or a function that makes one for ``depth``.

    ``variant``: stock and ours over it are those of a fork, see :mod:`stallproof.harness.variants`.

    Raises:
        BadInput: the dotted name cannot be imported, or is no class.
    """
    from importlib import import_module

    if variant and name in ("stock", "stallproof"):
        from stallproof.harness import variants

        fork = variants.variant(variant, depth)
        return fork if name == "stock" else import_module("stallproof.vllm").guarded(fork)
    if name == "stock":
        if depth == 2:
            from vllm.v1.core.sched.async_scheduler import AsyncScheduler

            return AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler

        return Scheduler
    if name == "stallproof":
        return getattr(import_module("stallproof.vllm"), "AsyncScheduler" if depth == 2 else "Scheduler")
    module, _, cls = name.rpartition(".")
    try:
        found = getattr(import_module(module), cls)
    except (ImportError, AttributeError) as exc:
        raise BadInput(
            f"cannot import the scheduler {name}: {exc}",
            remedy="give package.module.Class as the engine's own interpreter finds it (PYTHONPATH counts)",
        ) from exc
    made = found(depth) if callable(found) and not isinstance(found, type) else found
    if not (isinstance(made, type) and hasattr(made, "schedule")):
        raise BadInput(f"{name} is no scheduler class, and does not make one")
    return made
