"""A connector that really moves KV, within one process and asynchronously: an offload tier in memory.

What a finished request computed for its prompt is stored block by block, by prefix; a later request with the
same prefix loads it. A load runs *between* steps, ``delay`` of them after its start, unordered with the
model's own work, so that any mistake about which block may be written when shows in the output tokens.
``extra_config``: ``delay`` (steps), ``share`` (of the prompt that is offered), ``defer_every`` (each n-th
request is first answered "not yet" three times), ``fail_every`` (each n-th load fails), ``repeat_every``
(each n-th load is reported twice), ``lose_every`` (each n-th load is never reported). Counts start at 1; 0
is never.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata

#: what the worker half did in this process, for tests
counts = {"loads": 0, "stored": 0, "failed": 0, "repeated": 0, "lost": 0, "deferred": 0, "blocks": 0}
_store: dict[bytes, list[Any]] = {}


@dataclass
class Meta(KVConnectorMetadata):
    loads: list[tuple[str, list[int], list[bytes], int]] = field(default_factory=list)
    saves: list[tuple[str, list[int], list[bytes]]] = field(default_factory=list)


class MemoryConnector(KVConnectorBase_V1):
    stallproof_new_blocks_only = True

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        x = dict(vllm_config.kv_transfer_config.kv_connector_extra_config or {})
        self.size = vllm_config.cache_config.block_size
        self.delay, self.share = int(x.get("delay", 3)), float(x.get("share", 0.75))
        self.every = {k: int(x.get(f"{k}_every", 0)) for k in ("defer", "fail", "repeat", "lose")}
        self.on = bool(x.get("on", True))
        self.asked = self.loaded = 0
        self.left: dict[str, int] = {}  # "not yet" answers that a request still gets
        self.hits: dict[str, tuple[int, list[bytes]]] = {}
        self.meta = Meta()
        self.caches: dict[str, Any] = {}
        self.ticks = 0
        self.working: list[tuple[int, str, list[int], list[bytes], int]] = []
        self.again: list[str] = []
        self.sent: list[str] = []
        self.bad: set[int] = set()

    def _turn(self, what: str, n: int) -> bool:
        return bool(self.every[what]) and n % self.every[what] == 0

    def _keys(self, request: Any, blocks: int) -> list[bytes]:
        tokens, key, keys = request.all_token_ids, b"", []
        for i in range(blocks):
            part = ",".join(map(str, tokens[i * self.size : (i + 1) * self.size])).encode()
            key = hashlib.sha256(key + part).digest()
            keys.append(key)
        return keys

    # ------------------------------------------------------------ scheduler half

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        params = request.kv_transfer_params or {}
        if not self.on or not params.get("load", False):
            return 0, False
        rid = request.request_id
        if rid not in self.left:
            self.asked += 1
            self.left[rid] = 3 if self._turn("defer", self.asked) else 0
        if self.left[rid]:
            self.left[rid] -= 1
            counts["deferred"] += 1
            return None, False
        blocks = int(request.num_prompt_tokens * self.share) // self.size
        keys = self._keys(request, blocks)
        while keys and keys[-1] not in _store:
            keys.pop()
        new = len(keys) * self.size - num_computed_tokens
        if new <= 0:
            return 0, False
        self.hits[request.request_id] = (num_computed_tokens // self.size, keys)
        return new, True

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens <= 0:
            return
        first, keys = self.hits[request.request_id]
        self.loaded += 1
        ids = list(blocks.get_block_ids()[0])[first : len(keys)]
        self.meta.loads.append((request.request_id, ids, keys[first:], self.loaded))

    def build_connector_meta(self, scheduler_output: Any) -> Meta:
        meta, self.meta = self.meta, Meta()
        return meta

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        params = request.kv_transfer_params or {}
        blocks = min(request.num_prompt_tokens // self.size, len(block_ids))
        if not params.get("store") or not blocks or request.num_computed_tokens < blocks * self.size:
            return False, None
        self.meta.saves.append((request.request_id, block_ids[:blocks], self._keys(request, blocks)))
        return True, None

    # ------------------------------------------------------------ worker half

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self.caches = kv_caches

    def _block(self, layer: Any, block: int) -> Any:
        """A view of one block of one layer, wherever this release keeps the block dimension."""
        return layer[block] if layer.shape[0] > 2 else layer[:, block]

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        meta = self._get_connector_metadata()
        assert isinstance(meta, Meta)
        for r, ids, keys in meta.saves:
            for block, key in zip(ids, keys, strict=True):
                _store[key] = [self._block(c, block).clone() for c in self.caches.values()]
            counts["stored"] += 1
            self.sent.append(r)
        self.working += [(self.ticks, *load) for load in meta.loads]

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        return

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        self.ticks += 1
        recv, self.again = set(self.again), []
        left = []
        for started, r, ids, keys, n in self.working:
            if self.ticks - started < self.delay:
                left.append((started, r, ids, keys, n))
                continue
            if self._turn("lose", n):
                counts["lost"] += 1
                continue
            if self._turn("fail", n):
                counts["failed"] += 1
                self.bad.update(ids)
            else:
                for block, key in zip(ids, keys, strict=True):
                    for cache, data in zip(self.caches.values(), _store[key], strict=True):
                        self._block(cache, block).copy_(data)
                counts["loads"] += 1
                counts["blocks"] += len(ids)
            if self._turn("repeat", n):
                counts["repeated"] += 1
                self.again.append(r)
            recv.add(r)
        self.working = left
        sent, self.sent = set(self.sent), []
        return sent or None, recv or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        bad, self.bad = self.bad, set()
        return bad
