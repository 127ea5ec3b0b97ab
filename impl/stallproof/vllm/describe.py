"""What the header of a trace says about an engine, read from its scheduler."""

from __future__ import annotations

from typing import Any

from stallproof.trace import schema as T


def leaf_connectors(connector: Any) -> list[Any]:
    """Connectors that move data; a composite is replaced by its children."""
    if connector is None:
        return []
    children = getattr(connector, "_connectors", None)
    if children:
        return [leaf for child in children for leaf in leaf_connectors(child)]
    return [connector]


def engine_of(sched: Any) -> T.Engine:
    import vllm

    kv = sched.vllm_config.kv_transfer_config
    cls = type(sched)
    real = cls.__mro__[2] if cls.__module__ == "stallproof.vllm.recording" else cls
    return T.Engine(
        name="vllm",
        version=str(vllm.__version__),
        scheduler=f"{real.__module__}.{real.__qualname__}",
        connectors=[type(c).__name__ for c in leaf_connectors(sched.connector)],
        role=str(kv.kv_role) if kv is not None and kv.kv_role else "",
    )


def fence_mode(sched: Any) -> str:
    """The guard's own answer where there is one, else what this release's stock scheduler does."""
    own = getattr(sched, "sp_fence_mode", None)
    if own:
        return str(own)
    if not getattr(sched, "defer_block_free", False):
        return "None"
    return "DeferFreesGuarded" if hasattr(sched, "_request_blocks_can_be_freed") else "DeferFrees"


def config_of(sched: Any) -> T.Config:
    sc = sched.vllm_config.scheduler_config
    return T.Config(
        pool=sched.kv_cache_manager.block_pool.num_gpu_blocks - 1,
        block_size=int(sched.block_size),
        depth=int(sched.vllm_config.max_concurrent_batches),
        policy="priority" if str(sc.policy) == "priority" else "fcfs",
        max_num_seqs=int(sc.max_num_seqs),
        max_num_batched_tokens=int(sched.max_num_scheduled_tokens),
        chunk_cap=int(sc.long_prefill_token_threshold or 0),
        prefix_caching=bool(sched.cache_config.enable_prefix_caching),
        fence_mode=fence_mode(sched),  # type: ignore[arg-type]
        stale_output="dropped" if getattr(sched, "requires_kv_delivery", False) else "delivered",
        patience=int(getattr(sched, "sp_patience", 0)),
        full_fit=bool(getattr(sched, "scheduler_reserve_full_isl", True)),
        # n-gram drafts have no slots of their own, but a step may compute and commit that many tokens more
        lookahead=max(int(getattr(sched, n, 0) or 0) for n in ("num_lookahead_tokens", "num_spec_tokens")),
        slots=int(getattr(sched, "num_lookahead_tokens", -1)),
        max_model_len=int(getattr(sched, "max_model_len", 0) or 0),
        groups=len(sched.kv_cache_config.kv_cache_groups),
        deadline=float(getattr(sched, "sp_deadline", 0.0)),
        deferral=float(getattr(sched, "sp_deferral", 0.0)),
        watermark=int(getattr(sched.kv_cache_manager, "watermark_blocks", 0)),
        window=window_of(sched),
    )


def window_of(sched: Any) -> int:
    """The smallest window of tokens that any KV cache group keeps; 0: all groups keep everything."""
    specs = [g.kv_cache_spec for g in sched.kv_cache_config.kv_cache_groups]
    sizes = [getattr(x, "sliding_window", None) or getattr(x, "attention_chunk_size", None) for x in specs]
    return min((int(x) for x in sizes if x), default=0)


def rules_of(sched: Any) -> list[str]:
    return sorted(str(r) for r in getattr(sched, "sp_rules", ()))
