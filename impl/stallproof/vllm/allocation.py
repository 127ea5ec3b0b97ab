"""The hook on ``KVCacheManager.allocate_slots``: refusals, closed admissions, commit eviction."""

from __future__ import annotations

from typing import Any

from stallproof.core import commit
from stallproof.core.adapter_share import AdapterShare
from stallproof.vllm.base import Engine


def adapter_of(request: Any) -> int:
    """The id of its adapter; 0: none."""
    lora = request.lora_request
    return int(lora.lora_int_id) if lora is not None else 0


class AllocationPart(Engine):
    """Part of the guard; see :class:`stallproof.vllm.guard.Guard`."""

    _sp_freeing = False
    _sp_hook_later = False
    _sp_allocate_before: Any = None

    def _sp_hook_allocate(self: Any) -> None:
        """Put the hook on for the rest of this call, once."""
        if self._sp_allocate_before is not None:
            return
        call, running, refused = self._sp_call, self._sp_running, self._sp_refused
        admit = self._sp_admit

        def allocate_slots(request: Any, *args: Any, **kwargs: Any) -> Any:
            # called once per running request: the common case first
            if request.status is running:
                if call.keeping:  # the loop only empties itself; do not ask the pool again
                    return None
                blocks = allocate(request, *args, **kwargs)
                return blocks if blocks is not None else refused(request, args, kwargs)
            return admit(request, args, kwargs)

        allocate: Any = self._sp_shadow.put(self.kv_cache_manager, "allocate_slots", allocate_slots)
        self._sp_allocate_before = allocate

    def _sp_plenty(self: Any) -> bool:
        """Whether the blocks that all running requests could get in this call are free.

        At most a block per request and group beyond what the token budget and the look-ahead fill.
        """
        managers, n = self.kv_cache_manager.coordinator.single_type_managers, len(self.running)
        groups, size = len(managers), min(m.block_size for m in managers)
        ahead = 2 + (self.num_lookahead_tokens + self.num_spec_tokens) // size
        most = (self.max_num_scheduled_tokens // size + n * ahead) * groups
        return bool(self.kv_cache_manager.block_pool.get_num_free_blocks() > most)

    def _handle_blocked_waiting_request(self: Any, request: Any) -> bool:
        """Native from 0.31: first look at each waiting request."""
        if self._sp_hook_later and self._sp_in:
            self._sp_hook_later = False
            self._sp_hook_allocate()
        return bool(super()._handle_blocked_waiting_request(request))

    def _sp_close(self: Any) -> None:
        """A running request waits: nobody is admitted in the rest of this call."""
        if self._sp_on("NoInversion"):
            self._sp_call.closed = True
        self._sp_hook_allocate()

    def _sp_admit(self: Any, request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A waiting request asks for blocks: to run, or for a load."""
        call = self._sp_call
        if call.keeping:
            return None
        if call.closed or (call.closed_new and not self._sp_holds(request)):
            self._sp_fire("NoInversion")
            self._sp_emit("Refuse", request.request_id, -1, "closed")
            return None
        if self._sp_late.get(request.request_id) is request:
            if any(request.request_id in tokens for tokens in self._sp_flight):
                self._sp_fire("Patience")
                self._sp_emit("Refuse", request.request_id, -1, "closed")
                return None
            del self._sp_late[request.request_id]
        share = self._sp_share
        if share is None:
            return self._sp_admit_now(request, args, kwargs)
        key, adapter, holds = self._sp_key(request), adapter_of(request), self._sp_holds(request)
        if not share.may(key, adapter, holds):
            self._sp_fire("AdapterShare")
            if self._sp_act:
                why = "closed" if adapter in share.active else "adapter"
                self._sp_emit("Refuse", request.request_id, -1, why)
                return None
        blocks = self._sp_admit_now(request, args, kwargs)
        if blocks is not None:
            share.admitted(key, adapter, not kwargs.get("delay_cache_blocks"), holds)
        return blocks

    def _sp_count_adapters(self: Any, share: AdapterShare) -> None:
        """Before a call that may admit somebody: which adapters run, and who waits for another one."""
        queues = (getattr(self, self._sp_holding_name), self.waiting)
        ready = ("WAITING", "PREEMPTED")
        share.begin(
            map(adapter_of, self.running),
            lambda: (
                (self._sp_key(r), r.request_id, adapter_of(r))
                for q in queues
                for r in q
                if r.status.name in ready
            ),
        )
        self._sp_hook_allocate()

    def _sp_admit_now(self: Any, request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._sp_foreign:
            self._sp_complete_arguments(kwargs)
        if self._sp_at_once == request.request_id and kwargs.get("num_external_computed_tokens"):
            blocks = self._sp_allocate_quiescent(request, args, kwargs)
            if blocks is None:
                self._sp_call.fenced = request.request_id
                self._sp_emit("Refuse", request.request_id, -1, "fence")
            return blocks
        blocks = self._sp_allocate_before(request, *args, **kwargs)
        return blocks if blocks is not None else self._sp_refused(request, args, kwargs)

    def _sp_refused(self: Any, request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The pool has too few blocks: evict holders if that is sure to help."""
        self._sp_call.target = request
        self._sp_call.loading = bool(kwargs.get("num_external_computed_tokens"))
        try:
            plan = self._sp_plan(request, args, kwargs)
        except Exception as exc:
            self._sp_fault("commit", exc)
            return None
        if plan is None and self._sp_call.loading:
            self._sp_give_load_up(request)
        if plan is None or not self._sp_act:
            return None
        self._sp_evict(plan, request)
        blocks = self._sp_allocate_before(request, *args, **kwargs)
        if blocks is None:
            self._sp_fault("commit", AssertionError(f"{plan} did not make {request.request_id} fit"))
        return blocks

    def _sp_complete_arguments(self: Any, kwargs: dict[str, Any]) -> None:
        """A copied ``schedule()`` may lack the engine's admission tests (full fit, rule R)."""
        if not self._sp_act:
            return
        facts = self._sp_adapter.facts
        if facts.full_fit and "full_sequence_must_fit" not in kwargs and self._sp_on("FullFit"):
            kwargs["full_sequence_must_fit"] = True
            self._sp_fire("FullFit")
        if (
            facts.reserve
            and kwargs.get("delay_cache_blocks")
            and "reserved_blocks" not in kwargs
            and self._sp_on("RuleR")
        ):
            kwargs["reserved_blocks"] = self._inflight_prefill_reserved_blocks()
            self._sp_fire("RuleR")

    def _inflight_prefill_reserved_blocks(self: Any) -> int:
        """What prefills in flight still need, look-ahead included: the engine leaves that out (#57104).

        From 0.31 on it counts that itself where it drafts tokens.
        """
        reserved = int(super()._inflight_prefill_reserved_blocks())
        ahead = self.num_lookahead_tokens
        each = getattr(getattr(type(self), "_request_remaining_blocks", None), "__code__", None)
        names = {"num_lookahead_tokens", "_spec_decode_step_blocks"}
        counted = self.num_spec_tokens and each is not None and not names.isdisjoint(each.co_names)
        if not ahead or counted or not self._sp_on("RuleR"):
            return reserved
        longest, sizes = self.max_model_len, self.kv_cache_manager.coordinator.single_type_managers
        for r in self._inflight_prefills:
            n, more = min(r.num_tokens, longest), min(r.num_tokens + ahead, longest)
            reserved += sum(-(-more // m.block_size) - -(-n // m.block_size) for m in sizes)
        return reserved

    # ------------------------------------------------------------ commit

    def _sp_parked(self: Any) -> list[Any]:
        """Holders that do not run and whose blocks no transfer writes."""
        done = self.finished_recving_kv_req_ids
        found = []
        for r in self._inflight_prefills:
            status = r.status.name
            if status in ("WAITING", "PREEMPTED"):
                if self._sp_holds(r):
                    found.append(r)
            elif status == "WAITING_FOR_REMOTE_KVS" and r.request_id in done:
                found.append(r)
        for r in self._sp_sessions.values():
            if r.num_computed_tokens > 0 and r.status.name in ("WAITING", "WAITING_FOR_STREAMING_REQ"):
                found.append(r)
        return found

    def _sp_plan(self: Any, request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Which holders to evict so that ``request`` runs now; None if none, or no set suffices.

        A load start does not run in this call, so only sessions between turns give their blocks up for it:
        they compete with nobody (spec: ``CommitVictims``, the one exception of EvictCoupled).
        """
        if not self._sp_settings.active("Commit"):
            return None
        parked = [r for r in self._sp_parked() if r is not request]
        if kwargs.get("delay_cache_blocks") and request.status is not self._sp_running:
            parked = [r for r in parked if r.status is self._sp_between_turns]
        if not parked:
            return None
        holders, refs = self._sp_holders(parked)
        hits = kwargs.get("new_computed_blocks")
        keep = {b.block_id for group in hits.blocks for b in group} if hits is not None else set()
        free = self.kv_cache_manager.block_pool.get_num_free_blocks()

        def fits(gain: int) -> bool:
            return self._sp_fits(free + gain, request, *args, **kwargs)

        plan = commit.plan(self._sp_key(request), holders, refs, fits, keep)
        if plan is not None:
            self._sp_fire("Commit")
        return plan

    def _sp_holders(self: Any, parked: list[Any]) -> tuple[list[commit.Holder], dict[int, int]]:
        """Those of ``parked`` whose blocks would come free at once; how many hold each of their blocks."""
        refs: dict[int, int] = {}
        holders = []
        for r in parked:
            if not self._sp_immediate and not self._sp_native_can_free(r):
                continue  # the engine would defer its blocks
            ids = []
            for group in self.kv_cache_manager.get_blocks(r.request_id).blocks:
                for b in group:
                    if not b.is_null:
                        refs[b.block_id] = b.ref_cnt
                        ids.append(b.block_id)
            holders.append(commit.Holder(r.request_id, self._sp_key(r), ids))
        return holders, refs

    def _sp_evict(self: Any, plan: Any, target: Any) -> None:
        call = self._sp_call
        for rid in plan.victims:
            victim = self.requests[rid]
            self._sp_counts.evictions += self._sp_release(victim, target)
            call.evicted.append(victim)  # it goes to its place in the queue, evicted or not
        call.closed_new = True

    def _sp_release(self: Any, victim: Any, target: Any) -> bool:
        """Take the blocks of a holder that does not run; it keeps its place and computes again.

        A request that never ran must stay WAITING: PREEMPTED would be sent to the worker as resumed.
        False: its load had failed as a whole, so that the engine took them, and it was not evicted.
        """
        if victim.status.name == "WAITING_FOR_REMOTE_KVS":
            failed = victim.request_id in self.failed_recving_kv_req_ids
            self._update_waiting_for_remote_kv(victim)  # consumes the mark, caches what was loaded
            self._sp_set_waiting(victim)
            if failed and victim.num_computed_tokens == 0:
                return False
        self._sp_emit("Evict", victim.request_id, target.request_id)
        self._sp_freeing = True
        try:
            if self._sp_adapter.facts.fence:
                self._free_request_blocks(victim)
            else:
                self.kv_cache_manager.free(victim)
        finally:
            self._sp_freeing = False
        self.encoder_cache_manager.free(victim)
        self._inflight_prefills.discard(victim)
        if victim.status.name == "WAITING_FOR_STREAMING_REQ":
            self._sp_session_comp[victim.request_id] = victim.num_computed_tokens
        victim.num_computed_tokens = 0
        self._sp_suspects[victim.request_id] = victim  # what it has by now may not fit from the start
        if victim.spec_token_ids:
            victim.spec_token_ids = []
        return True

    def _sp_set_waiting(self: Any, request: Any) -> None:
        status = type(request.status)
        request.status = status.PREEMPTED if request.num_preemptions else status.WAITING
