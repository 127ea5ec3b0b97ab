"""Requests that can never be served end with an output, never with an exception in the engine loop."""

from __future__ import annotations

import inspect
import logging
from typing import Any

from stallproof.core.deadlines import Deadlines
from stallproof.core.feasible import Wall, least, peak, verdict
from stallproof.vllm.base import Engine

log = logging.getLogger("stallproof")

#: cache managers whose blocks follow from tokens, in every release
FULL = "FullAttentionManager"
COUNTED = (FULL, "SlidingWindowManager", "ChunkedLocalAttentionManager")
#: waits that no block is needed to leave
READY = ("WAITING", "PREEMPTED", "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR")


class EndingPart(Engine):
    """Part of the guard; see :class:`stallproof.vllm.guard.Guard`."""

    def _sp_set_up_endings(self: Any) -> None:
        self._sp_suspects: dict[str, Any] = {}  #: waiting requests that may not fit the empty pool
        self._sp_endings: list[tuple[int, Any]] = []  #: (client, output) to add to the next outputs
        settings = self._sp_settings
        active = settings.active("WaitDeadline")
        self._sp_grammars = Deadlines(settings.wait_deadline_s if active else 0.0)
        self._sp_bad_grammars: list[tuple[Any, str]] = []
        self._sp_silent = Deadlines(settings.session_deadline_s if active else 0.0)  #: sessions between turns
        managers = self.kv_cache_manager.coordinator.single_type_managers
        kinds = [type(m).__name__ for m in managers]
        self._sp_groups = [
            (m.block_size, m.get_num_skipped_tokens)
            for m, kind in zip(managers, kinds, strict=True)
            if kind in COUNTED
        ]
        #: chunks of another size, hits and loads change what a sequence needs at once
        self._sp_windows = any(kind in COUNTED[1:] for kind in kinds)
        #: nothing can make the admission test easier than it is for a request that holds nothing
        self._sp_admission_fixed = not self._sp_windows or not (
            self.kv_cache_manager.enable_caching or self.connector is not None
        )
        #: as for the only request there is: a watermark is for others (0.24)
        self._sp_alone = {"full_sequence_must_fit": True} if self._sp_adapter.facts.full_fit else {}
        if "has_scheduled_reqs" in inspect.signature(type(self.kv_cache_manager).allocate_slots).parameters:
            self._sp_alone["has_scheduled_reqs"] = False

    def _sp_capacity(self: Any) -> int:
        """Blocks that the empty pool would have: null block and quarantine are not among them."""
        return int(self.kv_cache_manager.block_pool.num_gpu_blocks - 1 - self._sp_quarantine.blocks)

    def _sp_check_arrival(self: Any, request: Any) -> None:
        if request.request_id in self.requests and self._sp_settings.active("Feasible"):
            try:
                if not self._sp_can_fit(request) or self._sp_tight(request):
                    self._sp_suspects[request.request_id] = request
            except Exception as exc:
                self._sp_fault("feasible", exc)

    def _sp_capacity_shrank(self: Any) -> None:
        for queue in (self.waiting, getattr(self, self._sp_holding_name)):
            self._sp_suspects.update({r.request_id: r for r in queue})

    def _sp_admissible(self: Any, request: Any) -> bool:
        """The engine's own admission test of the known sequence, on an empty pool."""
        mine = self.kv_cache_manager.get_blocks(request.request_id).blocks
        free = self._sp_capacity() - sum(not b.is_null for group in mine for b in group)
        return bool(self._sp_fits(free, request, 1, **self._sp_alone))

    def _sp_can_fit(self: Any, request: Any) -> bool:
        """False: no run of the engine serves it. True if a hit, or chunks of another size, might help."""
        longest = self.max_model_len
        if request.resumable and request.num_tokens >= longest:
            return False  # a turn is longer than what is left of the sequence: the engine stops short of it
        if (
            least(self._sp_groups, request.num_tokens, self.num_lookahead_tokens, longest)
            > self._sp_capacity()
        ):
            return False
        return not self._sp_admission_fixed or self._sp_admissible(request)

    def _sp_watch_idle(self: Any) -> None:
        """A call gave nobody a token. With the whole pool free, those that could run may be refused for good.

        Hits and loads shift where chunks begin, and what windows hold at once with them: no count on arrival
        sees that.
        """
        if self.kv_cache_manager.block_pool.get_num_free_blocks() < self._sp_capacity():
            return
        for queue in (getattr(self, self._sp_holding_name), self.waiting):
            for r in queue:
                if r.status.name in ("WAITING", "PREEMPTED") and not getattr(r, "_sp_idled", False):
                    r._sp_idled = True
                    self._sp_suspects[r.request_id] = r

    def _sp_tight(self: Any, request: Any) -> bool:
        """Where groups have windows: alone, in chunks as large as they get and without hits, it is refused.

        Or it was ready while a call did nothing. It is ended only if it is seen to be refused for good
        (:meth:`_sp_at_wall`).
        """
        if not self._sp_windows:
            return False
        if getattr(request, "_sp_idled", False):
            return True
        chunk, cap = self.max_num_scheduled_tokens, self.scheduler_config.long_prefill_token_threshold
        chunk = min(chunk, cap) if cap > 0 else chunk
        most = peak(self._sp_groups, request.num_tokens, self.num_lookahead_tokens, self.max_model_len, chunk)
        return most > self._sp_capacity() or not self._sp_admissible(request)

    def _sp_at_wall(self: Any, request: Any) -> None:
        """A call refused ``request``: for good if the pool was empty and it got no further than before.

        Blocks of holders that it could have been given count as free: evicting them would not have helped. A
        request that did not run meets the same pool again in the next call, unless it asked for a load.
        """
        key, free = self._sp_key(request), self.kv_cache_manager.block_pool.get_num_free_blocks()
        held = {
            b.block_id
            for r in (request, *(r for r in self._sp_parked() if self._sp_key(r) > key))
            for group in self.kv_cache_manager.get_blocks(r.request_id).blocks
            for b in group
            if not b.is_null
        }
        if self.running or free + len(held) < self._sp_capacity():
            return
        now, before = (
            (request.num_tokens, getattr(request, "_sp_reached", 0)),
            getattr(request, "_sp_wall", None),
        )
        request._sp_wall = now
        again = not self._sp_call.preempted and not self._sp_call.loading
        request._sp_walled = again or (before is not None and now <= before)

    def _sp_end_infeasible(self: Any) -> None:
        suspects = self._sp_suspects.copy()
        self._sp_suspects.clear()
        if not self._sp_settings.active("Feasible"):
            return
        for rid, request in suspects.items():
            if self.requests.get(rid) is not request or request.is_finished():
                continue
            if request.status is self._sp_running:
                continue
            if request.status.name not in READY:
                self._sp_suspects[rid] = request  # it waits for something outside first
                continue
            try:
                fits = self._sp_can_fit(request)
                if fits and self._sp_tight(request):
                    fits = not getattr(request, "_sp_walled", False)
                    if fits:
                        self._sp_suspects[rid] = request  # until it is seen to be refused for good
                end = verdict(fits, request.num_output_tokens, self._sp_settings.on_wall)
            except Exception as exc:
                self._sp_fault("feasible", exc)
                continue
            if end is Wall.SERVE:
                continue
            late = getattr(request, "num_stale_output_tokens", 0) or any(rid in s for s in self._sp_flight)
            if late and not getattr(request, "drop_stale_output", False):
                self._sp_suspects[rid] = request  # output of a step in flight will still be delivered
                continue
            self._sp_fire("Feasible")
            if self._sp_on("Feasible"):
                self._sp_end(request, end)

    def _sp_end_waits(self: Any) -> None:
        """Grammars that do not compile and sessions that stay silent, past their deadline."""
        now = self._sp_now()
        bad = self._sp_bad_grammars[:]
        self._sp_bad_grammars.clear()
        for request, why in bad:
            if self.requests.get(request.request_id) is request:
                self._sp_finish(request, "FINISHED_ERROR", why[:300], "error")
        for deadlines, status, what in (
            (self._sp_grammars, "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR", "its grammar was not compiled"),
            (self._sp_silent, "WAITING_FOR_STREAMING_REQ", "no further input arrived"),
        ):
            for rid in deadlines.expired(now):
                request = self.requests.get(rid)
                if request is None or request.status.name != status:
                    continue
                if self._sp_grammar_ready(request):
                    continue  # compiled, not looked at yet
                self._sp_fire("WaitDeadline")
                if self._sp_act:
                    self._sp_finish(request, "FINISHED_ERROR", f"{what} in {deadlines.limit:.0f} s", "error")

    def _sp_end(self: Any, request: Any, end: Wall) -> None:
        why = (
            f"{request.num_tokens} tokens do not fit the KV cache of {self._sp_capacity()} "
            f"usable blocks of {self.block_size} tokens"
        )
        if request.num_tokens >= self.max_model_len:
            why = f"{request.num_tokens} tokens do not fit a sequence of {self.max_model_len}"
        length = end is Wall.LENGTH
        if not self.kv_cache_manager.get_blocks(request.request_id).blocks[0]:
            request.kv_transfer_params = None  # nothing is left to hand over (StoreSafe)
        self._sp_finish(request, "FINISHED_LENGTH_CAPPED" if length else "FINISHED_ERROR", why, str(end))

    def _sp_finish(self: Any, request: Any, status: str, why: str, end: str) -> None:
        """End ``request`` with an output that says why, added to the next outputs of its client."""
        from vllm.v1.engine import EngineCoreOutput

        rid = request.request_id
        log.warning("stallproof: %s; request %s ends as %s", why, rid, end)
        self.finish_requests(rid, type(request.status)[status])
        self._sp_endings.append(
            (
                request.client_index,
                EngineCoreOutput(
                    request_id=rid,
                    new_token_ids=[],
                    finish_reason=request.get_finished_reason(),
                    stop_reason=f"stallproof: {why}",
                ),
            )
        )

    def _sp_add_endings(self: Any, outputs: Any) -> Any:
        from vllm.v1.engine import EngineCoreOutputs

        endings, self._sp_endings = self._sp_endings, []
        for client, output in endings:
            if client in outputs:
                outputs[client].outputs.append(output)
            else:
                outputs[client] = EngineCoreOutputs(outputs=[output])
        return outputs
