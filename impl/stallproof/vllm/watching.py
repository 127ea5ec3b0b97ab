"""The guard's stall watch and metrics: what the engine looks like, gathered only when somebody asks.

Per scheduling call this costs a few comparisons; a scan of the requests happens once a second, more
often while calls do nothing. Decisions are those of :mod:`stallproof.core.stall_watch`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stallproof.core.stall_watch import Due, Kind, Situation, StallError, Waiter
from stallproof.vllm import metrics
from stallproof.vllm.base import Engine
from stallproof.vllm.stall_report import StallReporter

log = logging.getLogger("stallproof")

#: Seconds between two scans of the requests while all is well.
SCAN_S = 1.0
#: The same while calls schedule nothing: an engine that waits for a load spins.
SPIN_S = 0.05
#: Engine statuses in which a request waits for something outside the scheduler.
OUTSIDE = {
    "WAITING_FOR_REMOTE_KVS": "load",
    "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR": "grammar",
    "WAITING_FOR_FSM": "grammar",
}


class WatchPart(Engine):
    """Part of the guard; see :class:`stallproof.vllm.guard.Guard`, which calls four methods.

    ``_sp_set_up_watch`` at the end of the set-up, ``_sp_watch(output)`` after every scheduling call,
    ``_sp_watch_outputs(outputs)`` after every output-processing call, ``_sp_end_watch`` at shutdown.
    """

    def _sp_set_up_watch(self: Any) -> None:
        model_name, rank = self._sp_labels()
        self._sp_quiet = 0  #: scheduling calls since a request last advanced
        self._sp_high: dict[str, int] = {}  #: most computed tokens of a request, kept while nothing advances
        self._sp_outside_since: dict[str, float] = {}
        self._sp_refused_since: dict[str, float] = {}
        self._sp_scanned = -SCAN_S
        self._sp_oldest_wait: float | None = None
        self._sp_oldest_arrival: float | None = None
        self._sp_reporter = StallReporter(
            self._sp_situation,
            engine=str(rank),
            rules=self._sp_rules(),
            save_ring=self._sp_save_ring,
            fail_oldest=self._sp_fail_oldest,
            shadow=not self._sp_act,
        )
        self._sp_metrics = metrics.start(
            self._sp_reading,
            model_name=model_name,
            rank=rank,
        )

    def _sp_labels(self: Any) -> tuple[str, int]:
        """vLLM's own labels: the served name, and the index of the data-parallel rank."""
        parallel = getattr(self.vllm_config, "parallel_config", None)
        rank = getattr(parallel, "data_parallel_index", None)  # releases before it have the rank alone
        if rank is None:
            rank = getattr(parallel, "data_parallel_rank", 0)
        model = getattr(self.vllm_config, "model_config", None)
        name = getattr(model, "served_model_name", None) or getattr(model, "model", "") or ""
        return str(name[0] if isinstance(name, list | tuple) else name), int(rank or 0)

    # ------------------------------------------------------------ after a call

    def _sp_watch_outputs(self: Any, outputs: Any) -> None:
        """Somebody got a token or an end: that is an advance."""
        if outputs:
            for of_client in outputs.values():
                if of_client.outputs:
                    self._sp_quiet = 0
                    if self._sp_high:
                        self._sp_high.clear()
                    return

    def _sp_watch(self: Any, output: Any) -> None:
        """Look at one scheduling call. Raises ``StallError`` under ``on_stall = raise`` only."""
        if output is None:
            return
        self._sp_quiet += 1
        moved = output.total_num_scheduled_tokens > 0
        now = self._sp_now()
        advanced = self._sp_quiet <= self._sp_depth + 1
        if moved and advanced and now - self._sp_scanned < SCAN_S:
            watch = self._sp_reporter.watch
            if not watch.episodes or not watch.stalled():
                return
        try:
            facts = self._sp_facts(output, now, moved, advanced)
        except Exception as exc:
            self._sp_fault("stall watch", exc)
            return
        try:
            self._sp_reporter.after_call(now, **facts)
        except StallError:
            raise
        except Exception as exc:
            self._sp_fault("stall report", exc)

    def _sp_facts(self: Any, output: Any, now: float, moved: bool, advanced: bool) -> dict[str, Any]:
        if now - self._sp_scanned >= (SCAN_S if moved else SPIN_S):
            self._sp_scan(now)
        if not advanced and moved:
            advanced = self._sp_new_ground(output)
        call = self._sp_call
        return {
            "unfinished": len(self.requests),
            "moved": moved or bool(call.evicted) or bool(output.finished_req_ids),
            "advanced": advanced,
            "pending": bool(
                self._sp_steps.working
                or self._sp_outside_since
                or len(self._sp_gate)
                or self._sp_put_off
                # Without a deadline nobody counts the answers "not yet", so they cannot be told from a wedge.
                or (self.connector is not None and self._sp_deferral.limit <= 0)
                or getattr(getattr(self, "pause_state", None), "name", "UNPAUSED") != "UNPAUSED"
                or not self._sp_waits_for_us()
            ),
            "oldest_wait": self._sp_oldest_wait,
        }

    def _sp_waits_for_us(self: Any) -> bool:
        """Some request waits for nothing but this scheduler."""
        return any(r.status.name in ("WAITING", "PREEMPTED", "RUNNING") for r in self.requests.values())

    def _sp_new_ground(self: Any, output: Any) -> bool:
        """Some scheduled request has computed more tokens than ever since the last advance."""
        new, high = False, self._sp_high
        for rid in output.num_scheduled_tokens:
            request = self.requests.get(rid)
            if request is None:
                continue
            before = high.get(rid)
            if before is None or request.num_computed_tokens > before:
                new = new or before is not None
                high[rid] = request.num_computed_tokens
        return new

    def _sp_scan(self: Any, now: float) -> None:
        """Ages of the oldest waits, from the engine's own request table."""
        self._sp_scanned = now
        outside: dict[str, float] = {}
        arrival: float | None = None
        for rid, request in self.requests.items():
            status = request.status.name
            if status == "RUNNING":
                continue
            if request.is_finished():  # a send still reads its blocks
                outside[rid] = self._sp_outside_since.get(rid, now)
                continue
            if status in OUTSIDE:
                done = status == "WAITING_FOR_REMOTE_KVS" and rid in self.finished_recving_kv_req_ids
                if not done:
                    outside[rid] = self._sp_outside_since.get(rid, now)
            if arrival is None or request.arrival_time < arrival:
                arrival = request.arrival_time
        self._sp_outside_since = outside
        self._sp_oldest_wait = now - min(outside.values()) if outside else None
        self._sp_oldest_arrival = arrival
        refused = {r.request_id for r in (self._sp_call.target, self._sp_head()) if r is not None}
        self._sp_refused_since = {
            rid: self._sp_refused_since.get(rid, now) for rid in refused if rid in self.requests
        }

    def _sp_head(self: Any) -> Any:
        """The request at the head of the waiting queue although a seat is free: it lacks blocks."""
        if len(self.running) >= getattr(self, self._sp_seats_name) or not self.waiting:
            return None
        head = self.waiting.peek_request()
        return head if head.status.name in ("WAITING", "PREEMPTED") else None

    # ------------------------------------------------------------ when a line is due

    def _sp_blocked_requests(self: Any) -> list[Any]:
        """Unfinished requests that do not run, in scheduling order."""
        waiting = [r for r in self.requests.values() if r.status.name != "RUNNING" and not r.is_finished()]
        return sorted(waiting, key=self._sp_key)

    def _sp_holdings(self: Any, request: Any) -> int:
        groups = self.kv_cache_manager.get_blocks(request.request_id).blocks
        return sum(not b.is_null for group in groups for b in group)

    def _sp_waiters(self: Any, blocked: list[Any], now: float) -> Iterator[Waiter]:
        for r in blocked:
            status = r.status.name
            since = self._sp_outside_since.get(r.request_id) or self._sp_refused_since.get(r.request_id)
            why = OUTSIDE.get(status, "send") if r.request_id in self._sp_outside_since else ""
            if r.request_id in self._sp_refused_since:
                why = "refused"
            yield Waiter(
                r.request_id, status.lower(), now - since if since else 0.0, -1, self._sp_holdings(r), why
            )

    def _sp_situation(self: Any, due: Due) -> Situation:
        pool, now = self.kv_cache_manager.block_pool, self._sp_now()
        blocked = self._sp_blocked_requests()
        sending = [r for r in self.requests.values() if r.is_finished()]
        return Situation(
            running=len(self.running),
            waiting=len(blocked),
            parked=len(self._sp_outside_since),
            free=pool.get_num_free_blocks(),
            pool=pool.num_gpu_blocks - 1,
            fenced=sum(len(e[-1]) for e in getattr(self, "deferred_frees", ()) or ()),
            quarantined=self._sp_quarantine.blocks,
            steps_in_flight=self._sp_steps.in_flight,
            waiters=list(self._sp_waiters([*blocked, *sending], now)),
            trace=str(getattr(getattr(self, "_sp_writer", None), "path", "")),
        )

    def _sp_save_ring(self: Any, folder: Path) -> str | None:
        """The recorder writes every record at once, so its newest part is on disk already."""
        path = getattr(getattr(self, "_sp_writer", None), "path", None)
        return str(path) if path is not None else None

    def _sp_fail_oldest(self: Any, due: Due) -> str | None:
        blocked = self._sp_blocked_requests()
        if due.kind is Kind.EXTERNAL_WAIT:
            late = self._sp_outside_since
            blocked = sorted((r for r in blocked if r.request_id in late), key=lambda r: late[r.request_id])
        if not blocked:
            return None
        request = blocked[0]
        why = f"ended by on_stall=fail_oldest after {due.seconds:.0f} s ({due.kind})"
        self._sp_finish(request, "FINISHED_ERROR", why, "error")
        return str(request.request_id)

    # ------------------------------------------------------------ metrics

    def _sp_reading(self: Any) -> metrics.Reading:
        """Called in the metrics thread: reads plain values only."""
        import time

        counts, watch, now = self._sp_counts, self._sp_reporter.watch, self._sp_now()
        refused, arrival = list(self._sp_refused_since.values()), self._sp_oldest_arrival
        return metrics.Reading(
            stall_seconds=watch.seconds,
            stalled=watch.stalled(),
            oldest_waiting_s=max(0.0, time.time() - arrival) if arrival is not None else 0.0,
            oldest_refused_s=max(0.0, now - min(refused)) if refused else 0.0,
            load_starts_delayed=counts.held,
            quarantined_blocks=self._sp_quarantine.blocks,
            fenced_blocks=sum(len(e[-1]) for e in list(getattr(self, "deferred_frees", ()) or ())),
            evictions=counts.evictions,
            preemptions_avoided=counts.preemptions_avoided,
            completions_ignored=counts.ignored,
            rule_fired=counts.fired,
            fallbacks=counts.fallbacks,
            guard_faults=self._sp_faults.count,
            recorder_drops=int(getattr(getattr(self, "_sp_writer", None), "dropped", 0) or 0),
            rules=tuple(self._sp_rules()),
            mode=self._sp_settings.mode,
        )

    def _sp_end_watch(self: Any) -> None:
        if self._sp_metrics is not None:
            self._sp_metrics.close()
            self._sp_metrics = None
