"""A KV connector whose behaviour is a script: answers, delays and outcomes per request. No data moves.

The same class serves the harness (which plays the worker) and a real engine on CPU (the worker half
below). A request's script travels in ``kv_transfer_params["script"]``; without one, ``extra_config`` gives
the same script to every request.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)


@dataclass
class Started:
    """A load the worker is told about."""

    r: str
    blocks: list[int]
    script: dict[str, Any]


@dataclass
class ScriptMeta(KVConnectorMetadata):
    loads: list[Started] = field(default_factory=list)
    sends: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


def _gave_up(request: Any) -> bool:
    """It has no result: nobody expects its KV."""
    return request.status.name in ("FINISHED_ABORTED", "FINISHED_ERROR", "FINISHED_IGNORED")


class ScriptedConnector(KVConnectorBase_V1, SupportsHMA):
    """See the module. ``step`` (harness) is the number of the step being built, for ``defer_until``."""

    #: a declaration for Stallproof: a load writes newly allocated blocks only
    stallproof_new_blocks_only = True

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.extra = dict(vllm_config.kv_transfer_config.kv_connector_extra_config or {})
        self.block_size = vllm_config.cache_config.block_size
        self.step = 0
        # scheduler half
        self.asked: dict[str, int] = {}
        self.asked_at: dict[str, int] = {}  # step of the last "not yet"
        self.loaded: set[str] = set()
        self.hit: dict[str, int] = {}
        self.new = ScriptMeta()
        self.count = 0
        # worker half
        self.ticks = 0
        self.working: list[tuple[int, float, Started]] = []
        self.sending: list[tuple[int, str]] = []
        self.bad: set[int] = set()
        self.data_loaded = 0
        if role == KVConnectorRole.WORKER:
            self.caches: dict[str, Any] = {}

    @property
    def requires_kv_delivery(self) -> bool:
        return bool(self.extra.get("delivers", True))

    # ------------------------------------------------------------ scheduler half

    def script(self, request: Any) -> dict[str, Any]:
        params = request.kv_transfer_params or {}
        return params.get("script") or self._common(request)

    def _common(self, request: Any) -> dict[str, Any]:
        share = float(self.extra.get("share", 0))
        if not share:
            return {}
        tokens = int(request.num_prompt_tokens * share) // self.block_size * self.block_size
        return {"tokens": tokens, "delay": int(self.extra.get("delay", 3)), "again": True}

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        s, r = self.script(request), request.request_id
        asked = self.asked.get(r, 0)
        if asked < s.get("defer", 0) or self.step < s.get("defer_until", 0):
            self.asked[r] = asked + 1
            self.asked_at[r] = self.step
            return None, False
        if r in self.loaded and not s.get("again"):
            return 0, False
        sync = s.get("mode", "async") == "sync"  # the step that uses it must have a token to compute
        available = min(s.get("tokens", 0), request.num_tokens - sync)
        new = max(0, available - num_computed_tokens)
        self.hit[r] = num_computed_tokens
        return new, new > 0 and s.get("mode", "async") == "async"

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens <= 0:
            return
        r = request.request_id
        self.loaded.add(r)
        first = self.hit.get(r, 0) // self.block_size
        last = -(-(self.hit.get(r, 0) + num_external_tokens) // self.block_size)
        ids = list(blocks.get_block_ids()[0])[first:last]
        self.new.loads.append(Started(r, ids, self.script(request)))
        self.count += 1

    def build_connector_meta(self, scheduler_output: Any) -> ScriptMeta:
        meta, self.new = self.new, ScriptMeta()
        return meta

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        s = self.script(request).get("send")
        if not s or (not any(block_ids) and _gave_up(request)):
            return False, None
        self.new.sends.append((request.request_id, s))
        return True, None

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, block_ids)

    # ------------------------------------------------------------ worker half (real engine)

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self.caches = kv_caches

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        meta = self._get_connector_metadata()
        if not isinstance(meta, ScriptMeta):
            return
        self.working += [(self.ticks, time.monotonic(), x) for x in meta.loads]
        self.sending += [(self.ticks, r) for r, _ in meta.sends]

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        return

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        self.ticks += 1
        recv: set[str] = set()
        left = []
        for started, t0, x in self.working:
            if self.ticks - started < x.script.get("delay", 3):
                left.append((started, t0, x))
                continue
            outcome = x.script.get("outcome", "ok")
            if outcome == "lost":
                continue
            if outcome == "fail":
                self.bad.update(x.blocks)
            elif outcome == "duplicate":
                again = dict(x.script, outcome="ok", delay=1)
                left.append((self.ticks, t0, Started(x.r, x.blocks, again)))
            recv.add(x.r)
        self.working = left
        sent = {r for t, r in self.sending if self.ticks - t >= 2}
        self.sending = [(t, r) for t, r in self.sending if r not in sent]
        return sent or None, recv or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        bad, self.bad = self.bad, set()
        return bad
