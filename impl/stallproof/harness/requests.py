"""Requests of a scenario: token ids, connector scripts, and objects of the engine's own request class."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

from stallproof.scenario import Load, Request, Stream

_hashing = False  # the engine's block hashing has its seed


def tokens(seed: str, n: int) -> list[int]:
    """``n`` token ids that depend on ``seed`` only; never the end-of-sequence token."""
    return list(_tokens(seed, n))


@lru_cache(maxsize=4096)
def _tokens(seed: str, n: int) -> list[int]:
    out: list[int] = []
    block = 0
    while len(out) < n:
        raw = hashlib.sha256(f"{seed}/{block}".encode()).digest()
        out += [3 + int.from_bytes(raw[i : i + 2], "big") % 500 for i in range(0, 32, 2)]
        block += 1
    return out[:n]


def script_of(load: Load) -> dict[str, Any]:
    return {
        "defer": load.defer, "defer_until": load.defer_until, "tokens": load.tokens, "mode": load.mode,
        "delay": load.delay, "outcome": load.outcome, "again": load.again,
    }  # fmt: skip


def make(
    rid: str, prompt: list[int], n: int, q: Request | Stream, *, arrival: float, block_size: int,
    resumable: bool,
) -> Any:  # fmt: skip
    """A request of this release's own class, as the engine's front end would make it."""
    global _hashing
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request as EngineRequest

    if not _hashing:
        init_none_hash(sha256)
        _hashing = True
    script = script_of(q.load) if q.load else {}
    extra: dict[str, Any] = {}
    if isinstance(q, Request):
        if q.send:
            script["send"] = {"delay": q.send.delay, "outcome": q.send.outcome}
        if q.grammar:
            from vllm.sampling_params import StructuredOutputsParams

            extra["structured_outputs"] = StructuredOutputsParams(regex="a+")
    params = SamplingParams(
        max_tokens=n,
        ignore_eos=True,
        temperature=0.0,
        extra_args={"kv_transfer_params": {"script": script}} if script else None,
        **extra,
    )
    request = EngineRequest(
        request_id=rid,
        prompt_token_ids=prompt,
        sampling_params=params,
        pooling_params=None,
        arrival_time=arrival,
        priority=q.priority,
        block_hasher=get_request_block_hasher(block_size, sha256),
        resumable=resumable,
        lora_request=_adapter(q.lora) if q.lora else None,
    )
    if script:
        request.kv_transfer_params = {"script": script}
    if isinstance(q, Request) and q.grammar:
        _grammar(request, q.grammar)
    return request


def _adapter(number: int) -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest(lora_name=f"adapter{number}", lora_int_id=number, lora_path="none")


def _grammar(request: Any, how: str) -> None:
    """Put the engine's own structured-output request into the state of a compilation that hangs or failed."""
    from concurrent.futures import Future

    future: Future[Any] = Future()
    if how == "error":
        future.set_exception(ValueError("the grammar does not compile"))
    request.structured_output_request._grammar = future


def adapter(request: Any) -> int:
    """The id of its adapter; 0: none."""
    return request.lora_request.lora_int_id if request.lora_request is not None else 0
