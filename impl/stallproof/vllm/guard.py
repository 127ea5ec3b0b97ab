"""The guard: rules put around a vLLM scheduler class, which keeps its own ``schedule()``.

``Guard`` is a mixin in front of the base class. Hooks on the cache manager and the connector are put on for
the length of one ``schedule()`` call, only when they can matter in it, and taken off exactly. Each hook
decides with ``stallproof.core``, then acts; an error in a decision is logged once and the engine does what it
would have done.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from typing import Any

from stallproof import __version__
from stallproof.core.adapter_share import AdapterShare
from stallproof.core.faults import Faults
from stallproof.core.fences import BlockFences
from stallproof.core.gate import Gate
from stallproof.core.patience import Patience
from stallproof.core.rules import RULES, SHADOW, Settings
from stallproof.core.steps import Steps
from stallproof.vllm import connectors
from stallproof.vllm.adapters import Adapter, adapt
from stallproof.vllm.allocation import AllocationPart
from stallproof.vllm.endings import EndingPart
from stallproof.vllm.loads import LoadPart
from stallproof.vllm.probe import AllocationTest, Shadow
from stallproof.vllm.queues import QueuePart
from stallproof.vllm.reports import ReportPart
from stallproof.vllm.state import Call, Counts
from stallproof.vllm.turns import TurnPart
from stallproof.vllm.watching import WatchPart

log = logging.getLogger("stallproof")


def isolated(hook: str, default: Any = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An error inside the method is counted and logged once; the method then returns ``default``."""

    def wrap(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def safe(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return method(self, *args, **kwargs)
            except Exception as exc:
                self._sp_fault(hook, exc)
                return default

        return safe

    return wrap


class Guard(AllocationPart, LoadPart, ReportPart, QueuePart, TurnPart, EndingPart, WatchPart):
    """Mixin; use :func:`stallproof.vllm.guarded`."""

    _sp_rec: Any = None
    _sp_ready = False
    _sp_in = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sp_set_up()
        self._sp_ready = True

    # ------------------------------------------------------------ set-up

    def _sp_set_up(self) -> None:
        import vllm

        self._sp_settings = settings = Settings.from_environment()
        self._sp_act = settings.mode != SHADOW
        self._sp_adapter: Adapter = adapt(type(self), vllm.__version__, settings.allow_untested)
        self._sp_now = time.monotonic
        self._sp_call = Call()
        self._sp_counts = Counts()
        self._sp_faults = Faults()
        self._sp_shadow = Shadow()
        self._sp_allocate_before: Any = None
        self._sp_fits = AllocationTest(self.kv_cache_manager)

        from vllm.v1.request import RequestStatus

        self._sp_running = RequestStatus.RUNNING
        self._sp_between_turns = RequestStatus.WAITING_FOR_STREAMING_REQ
        config = self.vllm_config
        depth = config.max_concurrent_batches
        self._sp_depth = depth if isinstance(depth, int) else 1
        v2 = getattr(self, "use_v2_model_runner", False) is True
        self._sp_steps = Steps(lag=1 if v2 and self._sp_depth > 1 else 0)
        self._sp_fences = BlockFences(self._sp_steps)
        self._sp_gate = Gate(self._sp_steps)
        # until the steps in flight are processed: a victim in flight would lose its token, or would end with
        # it and have nothing to hand over; where the connector has to deliver nothing, neither (0.27 on)
        delivers = self.connector is not None and getattr(self, "requires_kv_delivery", None) is not False
        patience = self._sp_depth - 1 if delivers else 0
        if settings.patience is not None:
            must = settings.patience and getattr(self, "requires_kv_delivery", False) is True
            patience = max(settings.patience, patience if must else 0)
        if not settings.active("Patience") or self._sp_depth <= 1:
            patience = 0
        self._sp_patience = Patience(patience)
        self._sp_priority = self.policy.value == "priority"
        transfer = getattr(config, "kv_transfer_config", None)
        self._sp_choice = connectors.choose(
            connector=self.connector,
            depth=self._sp_depth,
            series=self._sp_adapter.series,
            can_store=bool(getattr(transfer, "is_kv_producer", True)),
            v2_runner=v2,
            zeroing=bool(getattr(self, "needs_kv_cache_zeroing", False)),
            hisparse=getattr(self.kv_cache_config, "hisparse_host_num_blocks", None) is not None,
            fence=self._sp_adapter.facts.fence,
            vouched=settings.connectors_ok,
            wanted=settings.active("GateLoads"),
        )
        gate = self._sp_choice.mode == "GateLoads" and self._sp_act
        #: frees go to the pool at once, whatever the engine's own fence says
        self._sp_immediate = gate and self._sp_adapter.facts.fence
        self._sp_gating = gate and self._sp_choice.start != connectors.ORDERED
        self._sp_share: AdapterShare | None = None
        self._sp_set_up_queues()
        self._sp_set_up_turns()
        self._sp_set_up_loads()
        self._sp_set_up_endings()
        if settings.active("FullFit") and not getattr(self, "scheduler_reserve_full_isl", True):
            self._sp_fire("FullFit")
            if self._sp_act:
                self.scheduler_reserve_full_isl = True
        #: empty while no wait has an end that could be due and nothing is to be put in its place
        self._sp_todo = (
            self._sp_gate.held,
            self._sp_load_deadline.due,
            self._sp_sends.due,
            self._sp_grammars.due,
            self._sp_silent.due,
            self._sp_suspects,
            self._sp_bad_grammars,
            self._sp_moved,
            self._sp_kept,
            self._sp_unserved,
        )
        self._sp_log_start()
        self._sp_set_up_watch()

    def _sp_log_start(self) -> None:
        choice, settings = self._sp_choice, self._sp_settings
        if choice.mode == "DeferFrees":
            self._sp_counts.fallbacks[choice.why] += 1
        fence = choice.mode + (f" ({choice.why})" if choice.why else "")
        off = f"; off: {', '.join(sorted(settings.off))}" if settings.off else ""
        notes = "".join(f"; {n}" for n in self._sp_adapter.notes)
        log.info(
            "stallproof %s on vLLM %s: %s, mode %s, fence %s, patience %d, batches %d, rules %s%s%s",
            __version__,
            self._sp_adapter.version,
            getattr(type(self), "_sp_base", type(self)).__name__,
            settings.mode,
            fence,
            self._sp_patience.limit,
            self._sp_depth,
            ",".join(self._sp_rules()),
            off,
            notes,
        )
        if choice.warn:
            log.warning("stallproof: unsupported, not made worse: %s", choice.warn)

    def _sp_rules(self) -> list[str]:
        """Rules in force here."""
        rules = [r for r in RULES if self._sp_settings.active(r)]
        drop = {"GateLoads", "DeferFrees"} - {self._sp_choice.mode}
        if self._sp_depth <= 1:
            drop.add("Patience")
        if getattr(self, "lora_config", None) is None:
            drop.add("AdapterShare")
        if self.connector is None:
            drop |= {"Completions", "LoadDeadline", "DeferralDeadline", "Promotion", "RuleR"}
        return [r for r in rules if r not in drop]

    # ------------------------------------------------------------ small services

    def _sp_on(self, rule: str) -> bool:
        """The rule is in force and may act."""
        return self._sp_act and rule not in self._sp_settings.off

    def _sp_fire(self, rule: str, n: int = 1) -> None:
        self._sp_counts.fired[rule] += n

    def _sp_emit(self, *event: Any) -> None:
        if self._sp_rec is not None:
            from stallproof.trace import schema

            name, *rest = event
            self._sp_rec.emit(getattr(schema, name)(*rest))

    def _sp_fault(self, hook: str, exc: Exception) -> None:
        if self._sp_settings.strict:
            raise exc
        if self._sp_faults.note(hook):
            log.error(
                "stallproof: internal error in %s, this call goes on as the engine alone would: %r "
                "(logged once; set STALLPROOF_STRICT=1 to raise)",
                hook,
                exc,
                exc_info=exc,
            )

    # ------------------------------------------------------------ the scheduling call

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        if self._sp_in or not self._sp_ready:  # a base class that calls itself
            return super().schedule(*args, **kwargs)
        output = None
        call = self._sp_call
        if call.used():
            call = self._sp_call = Call()
        call.running_before = len(self.running)
        # most calls: nothing waits, nothing is due, so nothing can be decided but about the running requests
        due, waiting = any(self._sp_todo), self._sp_has_waiting()
        if due or waiting:
            self._sp_before(due, waiting)
        # not earlier: what was released until here no request of this step can touch
        self._sp_in = self._sp_steps.building = True
        try:
            output = super().schedule(*args, **kwargs)
            return output
        finally:
            self._sp_in = False
            self._sp_after(output)

    def _sp_before(self, due: bool, waiting: bool) -> None:
        if due or getattr(self, self._sp_holding_name):
            if self.connector is not None:
                self._sp_loads_before()
            self._sp_prepare()
            waiting = self._sp_has_waiting()
        if not waiting:
            return
        self._sp_hook_later = False
        self._sp_at_once = ""
        seat = self._sp_foreign or len(self.running) < getattr(self, self._sp_seats_name)
        if seat or self._sp_asks_pending:
            try:
                self._sp_hook_connector(seat)
            except Exception as exc:
                self._sp_immediate = False  # load starts are not seen: back to the engine's own fence
                self._sp_fault("connector hook", exc)
        if seat and getattr(self, "lora_config", None) is not None:
            self._sp_adapters_before()
        if (
            self._sp_foreign or self._sp_late or self._sp_suspects
        ):  # whether a suspect is refused has to be seen
            self._sp_hook_allocate()
        elif self._inflight_prefills or self._sp_sessions:
            self._sp_hook_if_parked(seat)

    @isolated("adapters")
    def _sp_adapters_before(self) -> None:
        if not self._sp_settings.active("AdapterShare"):
            return
        if self._sp_share is None:
            # a turnover of all slots, then newcomers let one who waits for an adapter go first
            self._sp_share = AdapterShare(self.lora_config.max_loras, self.max_num_running_reqs)
        self._sp_count_adapters(self._sp_share)

    @isolated("prepare")
    def _sp_prepare(self) -> None:
        if self._sp_kept:
            self._sp_begin_turns()
        if self._sp_suspects:
            self._sp_end_infeasible()
        if len(self._sp_grammars) or len(self._sp_silent) or self._sp_bad_grammars:
            self._sp_end_waits()
        self._sp_arrange()
        if self._sp_unserved:
            self._sp_share_budget()

    @isolated("parked")
    def _sp_hook_if_parked(self, seat: bool) -> None:
        """A holder that does not run may have to give its blocks up, to a running or to a waiting request.

        While no running request can be refused, the hook is not needed before the waiting ones are looked
        at; without a seat they are not.
        """
        plenty = self._sp_plenty()
        if (plenty and not seat) or not self._sp_parked():
            return
        self._sp_hook_later = plenty
        if not plenty:
            self._sp_hook_allocate()

    def _sp_after(self, output: Any) -> None:
        if self._sp_allocate_before is not None or self._sp_shadow:
            self._sp_allocate_before = None
            self._sp_shadow.take_off()
        if self._sp_threshold is not None:
            self.scheduler_config.long_prefill_token_threshold, self._sp_threshold = self._sp_threshold, None
        call, steps = self._sp_call, self._sp_steps
        if output is None:
            steps.abandon()
        else:
            tokens = output.total_num_scheduled_tokens
            steps.dispatch(tokens)
            self._sp_flight.append(output.num_scheduled_tokens)
            if getattr(output, "new_block_ids_to_zero", None) or getattr(
                output, "kv_cache_block_copies", None
            ):
                self._sp_touching = self._sp_steps.newest
            if tokens >= self.max_num_scheduled_tokens:
                call.full = self._sp_has_waiting()
            elif not tokens and self._sp_windows and not self.running:
                self._sp_idle()
        if call.kept:
            self.running.extend(reversed(call.kept))
            if output is not None and not self._sp_adapter.facts.reset_list:
                output.preempted_req_ids -= {r.request_id for r in call.kept}
        if not call.waited:
            self._sp_patience.since = None
        if call.full or len(self.running) != call.running_before or call.used():
            self._sp_settle(call)
        if self.finished_recving_kv_req_ids and self.connector is not None:
            self._sp_promote()
        self._sp_watch(output)

    @isolated("idle")
    def _sp_idle(self) -> None:
        self._sp_watch_idle()

    @isolated("settle")
    def _sp_settle(self, call: Call) -> None:
        if call.kept or len(self.running) != call.running_before:
            self._sp_order_running()
        if call.evicted:
            self._sp_moved.extend(call.evicted)
        if call.full:
            self._sp_find_unserved()
        if call.target is not None and self._sp_suspects.get(call.target.request_id) is call.target:
            self._sp_at_wall(call.target)

    # ------------------------------------------------------------ preemption

    def _sp_wait(self, victim: Any) -> bool:
        """A running request was refused and ``victim`` would be preempted: wait for steps in flight?"""
        call, native = self._sp_call, self._sp_native_can_free(victim)
        can_free = self._sp_immediate or native
        if not can_free:  # the engine's fence: taking the victim would free nothing now
            self._sp_fire("DeferFrees")
            wait = True
        elif call.preempted:  # one wait per refusal, and not after a victim was taken
            wait = False
        else:
            wait = self._sp_patience.wait(self._sp_steps.processed, self._sp_steps.working)
            if wait:
                self._sp_fire("Patience")
        if not self._sp_act:
            return not native and self._sp_adapter.facts.guard
        if wait:
            call.waited = True
            self._sp_counts.preemptions_avoided += 1
            self._sp_close()
            if can_free and self._sp_rec is not None and self._sp_rec.refused:
                self._sp_emit("Wait", self._sp_rec.refused)
        else:
            self._sp_patience.settle()
        return wait

    def _sp_native_can_free(self, victim: Any) -> bool:
        if not self._sp_adapter.facts.fence or not self.defer_block_free:
            return True
        return victim.last_sched_seq <= self.processed_step_seq

    def _request_blocks_can_be_freed(self, request: Any) -> bool:
        """Native from 0.30: asked about the victim before it is popped, and on every free."""
        if not self._sp_ready:
            return super()._request_blocks_can_be_freed(request)
        if self._sp_in and not self._sp_freeing:
            try:
                return not self._sp_wait(request)
            except Exception as exc:
                self._sp_fault("patience", exc)
        return self._sp_immediate or super()._request_blocks_can_be_freed(request)

    def _free_request_blocks(self, request: Any) -> None:
        """Native from 0.24: frees, or defers while a step in flight may still write the blocks."""
        if self._sp_ready and self._sp_immediate:
            if not self._sp_native_can_free(request):
                self._sp_fire("GateLoads")
            self._sp_releasing = request.request_id
            try:
                self.kv_cache_manager.free(request)
            finally:
                self._sp_releasing = ""
            return
        self._sp_freeing = True
        try:
            super()._free_request_blocks(request)
        finally:
            self._sp_freeing = False

    def _preempt_request(self, request: Any, timestamp: float, *args: Any, **kwargs: Any) -> None:
        if not self._sp_in:
            if self._sp_ready:
                self._sp_moved.append(request)
                self._sp_suspects[request.request_id] = request
                if self._sp_act and not hasattr(request, "num_stale_output_tokens"):
                    self._sp_disown_flight(request)  # a reset of the cache: its tokens were of the old one
            super()._preempt_request(request, timestamp, *args, **kwargs)
            return
        call = self._sp_call
        if call.keeping or (not self._sp_adapter.facts.guard and self._sp_keep(request)):
            call.kept.append(request)
            return
        call.preempted += 1
        request._sp_reached = request.num_computed_tokens
        self._sp_note_late(request)
        self._sp_freeing = True
        try:
            super()._preempt_request(request, timestamp, *args, **kwargs)
        finally:
            self._sp_freeing = False
        self._sp_moved.append(request)
        self._sp_suspects[request.request_id] = request  # with what it has by now it may not fit any more
        if not self.running:
            call.target = request  # it was alone, and refused

    def _sp_note_late(self, request: Any) -> None:
        """Resumed before its last token comes, it would compute it again, and the client get it twice."""
        if hasattr(request, "num_stale_output_tokens") or request.num_output_placeholders:
            return  # the engine waits by itself, from 0.27 on, or has kept a place for the token
        if any(request.request_id in tokens for tokens in self._sp_flight) and self._sp_on("Patience"):
            self._sp_late[request.request_id] = request

    def _sp_keep(self, victim: Any) -> bool:
        """Before 0.30 there is no exit but through here: keep every victim, put them back after the call."""
        try:
            target = self._sp_call.target
            if target is not None and victim is not target and self._sp_key(victim) < self._sp_key(target):
                return False  # it may have been given blocks in this call already
            if not self._sp_wait(victim):
                return False
        except Exception as exc:
            self._sp_fault("patience", exc)
            return False
        if not self._sp_act:
            return False
        self._sp_call.keeping = True
        return True

    def _build_kv_connector_meta(self, connector: Any, scheduler_output: Any) -> Any:
        if self._sp_in and self._sp_call.kept and not self._sp_adapter.facts.reset_list:
            scheduler_output.preempted_req_ids = scheduler_output.preempted_req_ids - {
                r.request_id for r in self._sp_call.kept
            }
        return super()._build_kv_connector_meta(connector, scheduler_output)

    # ------------------------------------------------------------ output processing

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        if not self._sp_ready:
            return super().update_from_output(scheduler_output, model_runner_output)
        self._sp_steps.process(scheduler_output.total_num_scheduled_tokens)
        if self._sp_gating:
            fences = len(self._sp_fences)
            if fences > 4096 or (fences and self._sp_steps.in_flight == 0):
                self._sp_fences.prune()
        if self._sp_flight:
            self._sp_flight.popleft()
        if self._sp_stale:
            scheduled = scheduler_output.num_scheduled_tokens
            scheduler_output.num_scheduled_tokens = self._sp_without_stale(scheduled)
            try:
                outputs = super().update_from_output(scheduler_output, model_runner_output)
            finally:
                scheduler_output.num_scheduled_tokens = scheduled
        else:
            outputs = super().update_from_output(scheduler_output, model_runner_output)
        if self._sp_parted:
            try:
                self._sp_requeue_parted()
            except Exception as exc:
                self._sp_fault("sessions", exc)
        if self._sp_endings:
            outputs = self._sp_add_endings(outputs)
        self._sp_watch_outputs(outputs)
        return outputs

    # ------------------------------------------------------------ reports

    @property
    def sp_fence_mode(self) -> str:
        """For the header of a trace: the fence in force."""
        if self._sp_choice.mode != "DeferFrees" and self._sp_act:
            return self._sp_choice.mode
        if not getattr(self, "defer_block_free", False):
            return "None"
        return "DeferFreesGuarded" if self._sp_act or self._sp_adapter.facts.guard else "DeferFrees"

    @property
    def sp_patience(self) -> int:
        return self._sp_patience.limit if self._sp_act else 0

    @property
    def sp_rules(self) -> list[str]:
        return [*self._sp_rules(), "VictimOrder"] if self._sp_act else []

    @property
    def sp_deadline(self) -> float:
        return self._sp_load_deadline.limit

    @property
    def sp_deferral(self) -> float:
        return self._sp_deferral.limit if self._sp_on("DeferralDeadline") else 0.0

    def sp_quarantined(self) -> list[int]:
        """Block ids out of the pool because their transfer never answered."""
        return list(dict.fromkeys(b.block_id for lot in self._sp_quarantine for b in lot.blocks))

    @property
    def sp_fired(self) -> dict[str, int]:
        return dict(self._sp_counts.fired)

    def stallproof_stats(self) -> dict[str, Any]:
        """Counters and state, plain values: mode, fence mode, rules, fired per rule, faults, quarantine."""
        counts = self._sp_counts
        return {
            "version": __version__,
            "vllm": self._sp_adapter.version,
            "scheduler": type(self).__name__,
            "mode": self._sp_settings.mode,
            "fence_mode": self._sp_choice.mode,
            "why": self._sp_choice.why,
            "connectors": list(self._sp_choice.names),
            "patience": self._sp_patience.limit,
            "depth": self._sp_depth,
            "rules": self._sp_rules(),
            "fired": {r: counts.fired[r] for r in RULES if counts.fired[r]},
            "ignored": dict(counts.ignored),
            "fallbacks": dict(counts.fallbacks),
            "faults": dict(self._sp_faults.count),
            "loads": counts.loads,
            "load_starts_delayed": counts.held,
            "loads_held": len(self._sp_gate),
            "evictions": counts.evictions,
            "preemptions_avoided": counts.preemptions_avoided,
            "quarantined_blocks": self._sp_quarantine.blocks,
            "healthy": not self._sp_quarantine.over_cap,
        }

    def shutdown(self) -> None:
        if self._sp_ready:
            s = self.stallproof_stats()
            log.info(
                "stallproof: fired %s; loads %d, starts delayed %d; ignored %s; faults %s",
                s["fired"] or "nothing",
                s["loads"],
                s["load_starts_delayed"],
                s["ignored"] or "nothing",
                s["faults"] or "none",
            )
            self._sp_lasting.take_off()
            self._sp_end_watch()
        super().shutdown()
