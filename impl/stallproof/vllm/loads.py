"""External loads: gated starts, deadlines, quarantine, and which completion reports the engine sees."""

from __future__ import annotations

import logging
from collections import Counter, deque
from typing import Any

from stallproof.core import commit
from stallproof.core.completions import Completions
from stallproof.core.deadlines import Deadlines
from stallproof.core.gate import HeldLoad
from stallproof.core.quarantine import Lot, Quarantine
from stallproof.vllm import connectors
from stallproof.vllm.base import Engine
from stallproof.vllm.describe import leaf_connectors
from stallproof.vllm.probe import Shadow
from stallproof.vllm.state import Load

log = logging.getLogger("stallproof")

#: so many loads of one request may fail; then it computes its prompt here
MAX_FAILED_LOADS = 3
#: failures of a request whose load another rule gave up: it loads no more, LoadFailure or not
GIVEN_UP = 1 << 30


def _answers(connector: Any) -> bool:
    """Whether it has pending block frees of its own; the method of the base class says no."""
    own = getattr(type(connector), "has_pending_block_frees", None)
    return own is not None and not own.__qualname__.startswith("KVConnectorBase")


class LoadPart(Engine):
    """Part of the guard; see :class:`stallproof.vllm.guard.Guard`."""

    def _sp_set_up_loads(self: Any) -> None:
        settings, pool = self._sp_settings, self.kv_cache_manager.block_pool
        self._sp_loads: dict[str, Load] = {}
        self._sp_generations: dict[str, int] = {}
        self._sp_async: dict[str, bool] = {}
        self._sp_failures: dict[str, int] = {}  #: failed loads by request
        self._sp_blind = 0  #: step up to which fences may be missing
        self._sp_touching = 0  #: newest step that touches blocks which no request that it schedules implies
        self._sp_releasing = ""  #: request whose blocks are being released to the pool
        self._sp_at_once = ""  #: request whose load would start in the step being built
        self._sp_completions = Completions()
        self._sp_quarantine = Quarantine(pool.num_gpu_blocks - 1, settings.quarantine_cap)
        self._sp_load_deadline = Deadlines(
            settings.load_deadline_s if settings.active("LoadDeadline") else 0.0
        )
        self._sp_put_off: set[str] = set()  #: requests whose connector answered "not yet" last
        self._sp_deferral = Deadlines(
            settings.deferral_deadline_s if settings.active("DeferralDeadline") else 0.0
        )
        waits = settings.wait_deadline_s if settings.active("WaitDeadline") else 0.0
        self._sp_sends = Deadlines(waits)  #: finished requests whose send is outstanding
        self._sp_poll_until = 0.0
        #: request, and the newest step, of which outputs are not to be delivered (to 0.26)
        self._sp_stale: dict[str, tuple[Any, int]] = {}
        #: preempted requests of which a token is to come, where the engine keeps no place for it (to 0.26)
        self._sp_late: dict[str, Any] = {}
        self._sp_flight: deque[Any] = deque()  #: tokens by request of the steps in flight
        self._sp_lasting = Shadow()
        leaves = leaf_connectors(self.connector)
        self._sp_asks_pending = self._sp_adapter.facts.guard and any(map(_answers, leaves))
        if self._sp_gating:
            # Releases happen outside scheduling calls too, so this observer stays on; it changes nothing.
            self._sp_free_before = self._sp_lasting.put(pool, "free_blocks", self._sp_observe_free)

    def _sp_observe_free(self: Any, ordered_blocks: Any, *args: Any, **kwargs: Any) -> None:
        blocks = list(ordered_blocks)
        self._sp_free_before(blocks, *args, **kwargs)
        if not self._sp_steps.idle:
            try:
                self._sp_fences.raise_to((b.block_id for b in blocks), self._sp_last_touch())
            except Exception as exc:
                self._sp_blind = self._sp_steps.newest  # nothing is known of blocks freed up to here
                self._sp_fault("fences", exc)

    def _sp_last_touch(self: Any) -> int:
        """The newest step that may touch blocks released now.

        Outside a call, of a request that is known: the last step in flight that schedules it, or that zeroes
        or copies blocks of anybody. A request that its length ends is not scheduled in the step behind its
        last token, so a load into its blocks need not wait for that step. Spec: the fold of ``fence``.
        """
        steps, rid = self._sp_steps, self._sp_releasing
        late = steps.building or steps.done < steps.processed  # more than the outputs say is under way
        if not rid or late or steps.in_flight != len(self._sp_flight):
            return int(steps.newest)
        newest = int(self._sp_touching)
        for step, tokens in enumerate(self._sp_flight, steps.processed + 1):
            if rid in tokens:
                newest = max(newest, step)
        return newest

    # ------------------------------------------------------------ before a call

    def _sp_loads_before(self: Any) -> None:
        if len(self._sp_gate):
            for held in self._sp_gate.due():
                self._sp_start(held)
        if len(self._sp_load_deadline):
            for rid in self._sp_load_deadline.expired(self._sp_now()):
                try:
                    self._sp_expire(rid)
                except Exception as exc:
                    self._sp_fault("load deadline", exc)
        if len(self._sp_sends):
            for rid in self._sp_sends.expired(self._sp_now()):
                try:
                    self._sp_expire_send(rid)
                except Exception as exc:
                    self._sp_fault("send deadline", exc)

    def _sp_start(self: Any, held: HeldLoad) -> None:
        """Tell the connector now, with the request as it was when the blocks were given."""
        load = self._sp_loads.get(held.rid)
        if load is None or load.gen != held.gen:
            return
        request, blocks, tokens, computed, status = held.payload
        now = request.num_computed_tokens, request.status
        request.num_computed_tokens, request.status = computed, status
        try:
            self.connector.update_state_after_alloc(request, blocks, tokens)
        finally:
            request.num_computed_tokens, request.status = now
        load.held = False
        self._sp_load_deadline.begin(held.rid, self._sp_now())

    # ------------------------------------------------------------ hooks on the connector

    def _sp_hook_connector(self: Any, seat: bool = True) -> None:
        """``seat``: a waiting request may be admitted; without one the scan does not begin."""
        shadow, connector = self._sp_shadow, self.connector
        if connector is None:
            return
        if seat:
            self._sp_match_before = shadow.put(connector, "get_num_new_matched_tokens", self._sp_match)
            self._sp_alloc_state_before = shadow.put(
                connector, "update_state_after_alloc", self._sp_after_alloc
            )
        if self._sp_asks_pending:
            self._sp_pending_before = shadow.put(connector, "has_pending_block_frees", self._sp_pending_frees)

    def _sp_pending_frees(self: Any) -> Any:
        """Asked when a running request is refused; True ends the scan without a preemption."""
        pending = self._sp_pending_before()
        if pending:
            self._sp_call.waited = True
            self._sp_close()
        return pending

    def _sp_match(self: Any, request: Any, num_computed_tokens: int) -> Any:
        rid = request.request_id
        if not self._sp_quarantine.may_load(rid) and self._sp_act:
            return 0, False
        failures = self._sp_failures.get(rid, 0)
        if failures >= GIVEN_UP or (failures >= MAX_FAILED_LOADS and self._sp_on("LoadFailure")):
            return 0, False
        answer = self._sp_match_before(request, num_computed_tokens)
        try:
            return self._sp_answer(request, rid, answer)
        except Exception as exc:
            self._sp_fault("match", exc)
            return answer

    def _sp_answer(self: Any, request: Any, rid: str, answer: Any) -> Any:
        tokens, is_async = answer
        if tokens is None:
            now = self._sp_now()
            self._sp_deferral.begin(rid, now)
            self._sp_put_off.add(rid)
            if self._sp_deferral.is_over(rid, now):
                self._sp_fire("DeferralDeadline")
                if self._sp_act:
                    self._sp_put_off.discard(rid)
                    self._sp_emit("Expire", rid, "deferral")
                    self._sp_failures[rid] = GIVEN_UP
                    self._sp_async[rid] = False
                    return 0, False
            return answer
        self._sp_put_off.discard(rid)
        self._sp_async[rid] = bool(is_async and tokens)
        if tokens and self.kv_cache_manager.block_pool.get_num_free_blocks() >= self._sp_capacity():
            self._sp_hook_allocate()  # if it is refused, waiting will not help
        if self._sp_gating and tokens and (not is_async or self._sp_choice.start == connectors.REFUSE):
            # it starts in this step: its blocks must be quiescent already
            self._sp_at_once = rid
            self._sp_hook_allocate()
        return answer

    # ------------------------------------------------------------ loads that cannot start later

    def _sp_allocate_quiescent(self: Any, request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Allocate with quiescent blocks first; the order of the free list is kept otherwise.

        None, a refusal, if there are too few of them for the loaded part.
        """
        pool = self.kv_cache_manager.block_pool
        queue, quiescent = pool.free_block_queue, self._sp_fences.quiescent
        hits = kwargs.get("new_computed_blocks")
        hit_blocks = {b.block_id for group in hits.blocks for b in group} if hits is not None else set()
        tokens = kwargs.get("num_new_computed_tokens", 0) + kwargs.get("num_external_computed_tokens", 0)
        groups = len(self.kv_cache_config.kv_cache_groups)
        need = max(0, -(-tokens // self.block_size) * groups - len(hit_blocks))
        if not self._sp_steps.passed(self._sp_blind):
            return None
        block, found = queue.fake_free_list_head.next_free_block, 0
        while found < need and block is not None and block.next_free_block is not None:
            found += block.block_id not in hit_blocks and quiescent((block.block_id,))
            block = block.next_free_block
        if found < need:
            self._sp_fire("GateLoads")
            if need > pool.get_num_free_blocks():
                self._sp_give_load_up(request)
            return None
        take = pool.get_new_blocks

        def get_new_blocks(n: int, *a: Any, **k: Any) -> Any:
            aside, left, block = [], n, queue.fake_free_list_head.next_free_block
            while left and block is not None and block.next_free_block is not None:
                if quiescent((block.block_id,)):
                    left -= 1
                else:
                    aside.append(block)
                block = block.next_free_block
            if left or not aside:  # the part to be computed may take any block
                return take(n, *a, **k)
            self._sp_fire("GateLoads")
            for b in aside:
                queue.remove(b)
            try:
                return take(n, *a, **k)
            finally:
                queue.prepend_n(aside)

        shadow = Shadow()
        shadow.put(pool, "get_new_blocks", get_new_blocks)
        try:
            got = self._sp_allocate_before(request, *args, **kwargs)
        finally:
            shadow.take_off()
        if got is None:
            self._sp_give_load_up(request)
        return got

    def _sp_give_load_up(self: Any, request: Any) -> None:
        """A load was refused though nobody else needs a block: ``request`` computes here what it would load.

        A load may need more at once than computing does: what falls out of windows meanwhile, look-ahead.
        Sessions between turns would have given their blocks to it. Refused once, it may have met a passing
        fault of an allocator or a watermark: the same refusal again, by the same pool of the same sequence,
        is for good. So is the first one of a prompt that may not fit even computed: to wait would only put
        its end off. Spec: ``Alone``, ``GiveUp``.
        """
        capacity = self._sp_capacity()
        missing = capacity - self.kv_cache_manager.block_pool.get_num_free_blocks()
        if missing > 0 and self._sp_sessions:
            idle = [r for r in self._sp_sessions.values() if r.status is self._sp_between_turns]
            missing -= commit.gain_of(*self._sp_holders(idle))
        if missing > 0:
            return
        now = request.num_tokens, capacity
        suspect = self._sp_suspects.get(request.request_id) is request
        if not suspect and getattr(request, "_sp_refused_load", None) != now:
            request._sp_refused_load = now
            return
        self._sp_fire("Feasible")
        if self._sp_on("Feasible"):
            self._sp_failures[request.request_id] = GIVEN_UP

    def _sp_after_alloc(self: Any, request: Any, blocks: Any, num_external_tokens: int) -> Any:
        rid = request.request_id
        self._sp_deferral.end(rid)  # not before: a load that is refused may be put off again
        if num_external_tokens <= 0 or not self._sp_async.get(rid):
            return self._sp_alloc_state_before(request, blocks, num_external_tokens)
        gen = self._sp_generations[rid] = self._sp_generations.get(rid, 0) + 1
        load = self._sp_loads[rid] = Load(gen, request)
        self._sp_counts.loads += 1
        if self._sp_gating and self._sp_choice.start == connectors.DELAY:
            fence = self._sp_steps.newest  # if the decision fails: everything dispatched so far
            try:
                fence = self._sp_load_fence(blocks)
            except Exception as exc:
                self._sp_fault("gate", exc)
            if self._sp_gate.must_hold(fence):
                self._sp_fire("GateLoads")
                self._sp_counts.held += 1
                load.held = True
                payload = (request, blocks, num_external_tokens, request.num_computed_tokens, request.status)
                self._sp_gate.hold(HeldLoad(rid, gen, fence, payload))
                return None
        self._sp_load_deadline.begin(rid, self._sp_now())
        return self._sp_alloc_state_before(request, blocks, num_external_tokens)

    def _sp_load_fence(self: Any, blocks: Any) -> int:
        if not self._sp_adapter.facts.skip_zero and getattr(self, "needs_kv_cache_zeroing", False):
            return int(self._sp_steps.newest)  # the step being built zeroes new blocks, a load's included
        ids = (b.block_id for group in blocks.blocks for b in group if not b.is_null)
        return max(int(self._sp_fences.newest(ids)), int(self._sp_blind))

    # ------------------------------------------------------------ promotion

    def _sp_promote(self: Any) -> None:
        """Completed loads that the scan did not reach (no budget left, refused before, paused)."""
        if not self._sp_settings.active("Promotion"):
            return
        for rid in list(self.finished_recving_kv_req_ids):
            request = self.requests.get(rid)
            if request is None or request.status.name != "WAITING_FOR_REMOTE_KVS":
                continue
            self._sp_fire("Promotion")
            if not self._sp_act:
                continue
            try:
                getattr(self, self._sp_adapter.promote)(request)
            except Exception as exc:
                self._sp_fault("promotion", exc)
                continue

    def _update_waiting_for_remote_kv(self: Any, request: Any) -> None:
        failed = request.request_id in self.failed_recving_kv_req_ids
        super()._update_waiting_for_remote_kv(request)
        if not self._sp_ready:
            return
        if failed:
            self._sp_count_failure(request.request_id)
        self._sp_load_over(request.request_id)
        if failed and request.num_computed_tokens == 0 and request in self._inflight_prefills:
            # the load failed and holds nothing any more; its reservation would keep its own retry out
            self._sp_fire("LoadFailure")
            if self._sp_on("LoadFailure"):
                self._inflight_prefills.discard(request)

    def _sp_count_failure(self: Any, rid: str) -> None:
        n = self._sp_failures[rid] = self._sp_failures.get(rid, 0) + 1
        if n == MAX_FAILED_LOADS:
            self._sp_fire("LoadFailure")

    def _sp_load_over(self: Any, rid: str) -> None:
        self._sp_loads.pop(rid, None)
        self._sp_async.pop(rid, None)
        self._sp_load_deadline.end(rid)
        self._sp_gate.drop(rid)

    # ------------------------------------------------------------ deadline and quarantine

    def _sp_expire(self: Any, rid: str) -> None:
        """The load of ``rid`` is given up: what it may still write leaves the pool; it recomputes."""
        load = self._sp_loads.get(rid)
        request = self.requests.get(rid)
        if load is None or request is None or self._sp_quarantine.waits_for(rid, "recv"):
            return
        finished = request.is_finished()
        if finished and "recv" not in self._sp_completions.outstanding.get(rid, ()):
            self._sp_load_over(rid)  # it had ended when the request did; what is outstanding is a send
            return
        if not finished and (
            request.status.name != "WAITING_FOR_REMOTE_KVS" or rid in self.finished_recving_kv_req_ids
        ):
            return
        self._sp_fire("LoadDeadline")
        if not self._sp_act:
            return
        log.warning(
            "stallproof: the load of request %s did not complete in %.0f s; its blocks are quarantined until "
            "the connector reports it%s",
            rid,
            self._sp_load_deadline.limit,
            "" if finished else "; the request computes its prompt here",
        )
        self._sp_emit("Expire", rid, "load")
        if finished and "sent" in self._sp_completions.outstanding.get(rid, ()):
            self._sp_quarantine_both(rid, load.gen)
        else:
            self._sp_quarantine_blocks(rid, load.gen, "recv")
        self._sp_load_over(rid)
        if finished:
            self._free_blocks(request)
            return
        self._sp_failures[rid] = GIVEN_UP  # the next one would be as late
        self.kv_cache_manager.free(request)
        self._inflight_prefills.discard(request)
        self.failed_recving_kv_req_ids.discard(rid)
        request.num_computed_tokens = 0
        self._sp_set_waiting(request)
        if hasattr(self, "_set_kv_fetch_stage"):
            self._set_kv_fetch_stage(request, None)
        self._sp_moved.append(request)

    def _sp_expire_send(self: Any, rid: str) -> None:
        """Nobody acknowledges the send of finished ``rid``: its blocks go to quarantine."""
        request = self.requests.get(rid)
        owed = self._sp_completions.outstanding.get(rid, set())
        if request is None or not request.is_finished() or "sent" not in owed:
            return
        if "recv" in owed:  # the load's report or deadline comes first: what it writes is a lot of its own
            self._sp_sends.begin(rid, self._sp_now())
            return
        self._sp_fire("WaitDeadline")
        if not self._sp_act:
            return
        log.warning(
            "stallproof: the send of request %s was not acknowledged in %.0f s; its blocks are quarantined "
            "until the connector reports it",
            rid,
            self._sp_sends.limit,
        )
        self._sp_quarantine_blocks(rid, self._sp_generations.get(rid, 0), "sent")
        self._free_blocks(request)

    def _sp_quarantine_blocks(self: Any, rid: str, gen: int, kind: str) -> None:
        lot = self._sp_take_out(rid, everything=kind == "sent")
        self._sp_quarantine.put(Lot(rid, gen, lot, kind))
        self._sp_capacity_shrank()  # whoever waits may fit no longer, whichever transfer took the blocks
        self._sp_poll_until = self._sp_now() + self._sp_load_deadline.limit
        ids = [b.block_id for b in lot]
        if self._sp_rec is not None:
            probe = self._sp_rec.probe
            probe.tables.setdefault(rid, Counter()).subtract(ids)
            probe.others.update(ids)
        if kind == "recv":
            self._sp_emit("Quarantine", rid, gen, ids)
            if self._sp_rec is not None:
                self._sp_rec.loading.pop(rid, None)  # its report, if any, no longer completes a load
        elif ids:  # a reader keeps them: to the ledger of a trace, a reference of its own
            self._sp_emit("Pin", f"send-{rid}", ids)
            self._sp_emit("Free", rid, ids)

    def _sp_quarantine_both(self: Any, rid: str, gen: int) -> None:
        """The load of finished ``rid`` may still write what its send may still read: a reference for each."""
        written = self._sp_take_out(rid, everything=False)
        for b in written:
            b.ref_cnt += 1
        read = written + self._sp_take_out(rid, everything=True)
        self._sp_quarantine.put(Lot(rid, gen, written, "recv"))
        self._sp_quarantine.put(Lot(rid, gen, read, "sent"))
        self._sp_capacity_shrank()
        self._sp_poll_until = self._sp_now() + self._sp_load_deadline.limit
        writes, reads = [b.block_id for b in written], [b.block_id for b in read]
        if self._sp_rec is not None:
            probe = self._sp_rec.probe
            probe.tables.setdefault(rid, Counter()).subtract(reads)
            probe.others.update(writes + reads)
            self._sp_rec.loading.pop(rid, None)
        self._sp_emit("Pin", f"send-{rid}", reads)
        self._sp_emit("Quarantine", rid, gen, writes)
        if len(reads) > len(writes):
            self._sp_emit("Free", rid, reads[len(writes) :])

    def _sp_take_out(self: Any, rid: str, everything: bool) -> list[Any]:
        """Blocks that a transfer of ``rid`` may still use, out of its table; their references become ours.

        A load writes blocks that nobody else has and that have no content yet; a send reads all of them.
        A null block stands in their places, as for blocks that fell out of a window.
        """
        null, lot = self.kv_cache_manager.block_pool.null_block, []
        for manager in self.kv_cache_manager.coordinator.single_type_managers:
            blocks = manager.req_to_blocks.get(rid, ())
            for i, b in enumerate(blocks):
                if not b.is_null and (everything or (b.ref_cnt == 1 and b.block_hash is None)):
                    lot.append(b)
                    blocks[i] = null
        return lot

    def sp_awaits(self: Any) -> list[str]:
        """Requests, ended ones too, of whose transfer a report or the deadline is still to come.

        And one that waits until steps in flight, if only empty ones, have passed over the blocks of its load.
        """
        if not self._sp_act:
            return []
        loads = [r for r in self._sp_load_deadline.due if r not in self.finished_recving_kv_req_ids]
        fenced = [self._sp_call.fenced] if self._sp_call.fenced and self._sp_steps.in_flight > 1 else []
        return [*loads, *self._sp_sends.due, *fenced]

    def _sp_unquarantine(self: Any, lot: Lot) -> None:
        pool, ids = self.kv_cache_manager.block_pool, [b.block_id for b in lot.blocks]
        type(pool).free_blocks(pool, lot.blocks)  # past the recorder, which has a name of its own for it
        if not self._sp_steps.idle:
            self._sp_fences.raise_to(ids, self._sp_steps.newest)
        if self._sp_rec is not None:
            self._sp_rec.probe.others.subtract(ids)
        if lot.kind == "recv":
            self._sp_emit("Unquarantine", lot.rid, lot.gen, ids)
        elif ids:
            self._sp_emit("Stored", f"send-{lot.rid}")
            self._sp_emit("Unpin", f"send-{lot.rid}", ids)

    def reset_connector_cache(self: Any) -> bool:
        ok: bool = super().reset_connector_cache()
        if ok and self._sp_ready:
            for lot in self._sp_quarantine.release_all():
                self._sp_unquarantine(lot)
        return ok

    def reset_prefix_cache(self: Any, *args: Any, **kwargs: Any) -> bool:
        """Quarantined blocks hold no cached content, so they do not stand in the way of a reset."""
        if not self._sp_ready:
            ok: bool = super().reset_prefix_cache(*args, **kwargs)
            return ok
        pool, shadow = self.kv_cache_manager.block_pool, Shadow()
        if self._sp_quarantine.blocks:
            count = pool.get_num_free_blocks
            shadow.put(pool, "get_num_free_blocks", lambda: count() + self._sp_quarantine.blocks)
        try:
            ok = super().reset_prefix_cache(*args, **kwargs)
        finally:
            shadow.take_off()
            for request, _ in self._sp_stale.values():
                request.async_tokens_to_discard = 0  # counted by tokens expected; we go by steps
        return ok
