"""KV connector for the live test: asynchronous loads that move no data, scripted per request.

``kv_transfer_params={"script": {"defer_s": 2, "load": 672}}``: answer "not yet" for two seconds, then claim
672 tokens, whose load takes ``load_s`` seconds (connector's extra configuration).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata


@dataclass
class Meta(KVConnectorMetadata):
    loads: list[str] = field(default_factory=list)


class Scripted(KVConnectorBase_V1):
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.load_s = float(extra.get("load_s", 3))
        self.started: list[str] = []
        self.pending: dict[str, float] = {}
        self.until: dict[str, float] = {}

    # scheduler side

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        script = (request.kv_transfer_params or {}).get("script") or {}
        until = self.until.setdefault(request.request_id, time.monotonic() + script.get("defer_s", 0))
        if time.monotonic() < until:
            return None, False
        n = 0 if script.get("done") else max(0, script.get("load", 0) - num_computed_tokens)
        return n, n > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens > 0:
            request.kv_transfer_params["script"]["done"] = True
            self.started.append(request.request_id)

    def build_connector_meta(self, scheduler_output: Any) -> Meta:
        meta, self.started = Meta(self.started), []
        return meta

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return False, None

    # worker side

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        for rid in self._get_connector_metadata().loads:
            self.pending[rid] = time.monotonic() + self.load_s

    def get_finished(self, finished_req_ids: set[str]) -> tuple[None, set[str] | None]:
        done = {r for r, at in self.pending.items() if time.monotonic() >= at}
        for r in done:
            del self.pending[r]
        return None, done or None

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None: ...

    def wait_for_save(self) -> None: ...
