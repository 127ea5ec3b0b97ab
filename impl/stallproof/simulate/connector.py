"""The simulated KV store, as a vLLM connector. It answers and records; it decides nothing about scheduling.

Kinds (``kind`` in the connector's extra configuration):

* ``pd``       a decode node: the whole prompt of a new request is loaded once from its prefill node
* ``store``    a shared store: blocks of finished requests, found again by their hashes
* ``offload``  the same over a small, fast local tier (capacity in blocks, least recently used goes first)

* ``recorded`` what a recorded connector answered, request by request (:mod:`.retrace`)

Latency, bandwidth, failures and lost completions are the business of :mod:`stallproof.simulate.engine`,
which plays the worker half.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)

from stallproof.simulate.retrace import Known


@dataclass
class SimMeta(KVConnectorMetadata):
    """Loads whose start is told with this step: (request id, block ids that will be written)."""

    loads: list[tuple[str, list[int]]] = field(default_factory=list)


class SimConnector(KVConnectorBase_V1, SupportsHMA):
    """See the module."""

    #: a declaration for Stallproof: a load writes newly allocated blocks only
    stallproof_new_blocks_only = True
    #: set by the simulation: what is known of each request (``recorded`` only), and the virtual clock
    known: ClassVar[dict[str, Known]] = {}
    now: ClassVar[Any] = staticmethod(lambda: 0.0)

    @property
    def requires_kv_delivery(self) -> bool:
        """As vLLM's own: the role decides, and a CPU tier is a best-effort cache."""
        return self.kind != "offload" and bool(getattr(super(), "requires_kv_delivery", False))

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = dict(vllm_config.kv_transfer_config.kv_connector_extra_config or {})
        self.kind = str(extra.get("kind", "store"))
        self.lookup = float(extra.get("lookup", 0.0))
        self.asked: dict[str, float] = {}
        self.capacity = int(extra.get("capacity", 0)) or 1 << 60
        self.block_size = vllm_config.cache_config.block_size
        self.kept: OrderedDict[bytes, None] = OrderedDict()
        self.pulled: set[str] = set()
        self.hit: dict[str, int] = {}
        self.new = SimMeta()

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        rid = request.request_id
        self.hit[rid] = num_computed_tokens
        if self.kind == "recorded":
            one = self.known.get(rid)
            if one is None:
                return 0, False
            if self.now() < one.ready:
                return None, False
            new = min(one.tokens, request.num_tokens - (one.mode == "sync")) - num_computed_tokens
            return max(0, new), new > 0 and one.mode == "async"
        if self.lookup and self.now() < self.asked.setdefault(rid, self.now()) + self.lookup:
            return None, False
        if self.kind == "pd":
            new = 0 if rid in self.pulled else request.num_prompt_tokens - num_computed_tokens
            return max(0, new), new > 0
        first = num_computed_tokens // self.block_size
        n = 0
        for h in request.block_hashes[first:]:
            if h not in self.kept:
                break
            self.kept.move_to_end(h)
            n += 1
        # The last token is computed here in any case: its logits are needed.
        new = min(n * self.block_size, request.num_tokens - 1 - num_computed_tokens)
        new -= new % self.block_size
        return max(0, new), new > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens <= 0:
            return
        rid = request.request_id
        self.pulled.add(rid)
        if self.kind == "recorded" and self.known[rid].mode == "sync":
            return  # part of its step
        first = self.hit.get(rid, 0) // self.block_size
        last = -(-(self.hit.get(rid, 0) + num_external_tokens) // self.block_size)
        self.new.loads.append((rid, list(blocks.get_block_ids()[0])[first:last]))

    def build_connector_meta(self, scheduler_output: Any) -> SimMeta:
        meta, self.new = self.new, SimMeta()
        return meta

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        if self.kind != "pd":
            for h in request.block_hashes:
                self.kept[h] = None
                self.kept.move_to_end(h)
            while len(self.kept) > self.capacity:
                self.kept.popitem(last=False)
        self.hit.pop(request.request_id, None)
        self.asked.pop(request.request_id, None)
        return False, None

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, block_ids)

    # The worker half is played by the simulator.
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        return

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        return


def outcome(seed: int, rid: str, attempt: int, p_fail: float, p_lost: float) -> str:
    """``ok``, ``fail`` or ``lost``: the fate of one load, the same for every scheduler that meets it."""
    x = zlib.crc32(f"{seed}:{rid}:{attempt}".encode()) / 2**32
    return "lost" if x < p_lost else "fail" if x < p_lost + p_fail else "ok"
