"""Which completion reports the engine sees, what failed loads leave behind, and ends of requests."""

from __future__ import annotations

import time
from typing import Any

from stallproof.core.completions import Life, Verdict
from stallproof.vllm.base import Engine
from stallproof.vllm.probe import Shadow


class ReportPart(Engine):
    """Part of the guard; see :class:`stallproof.vllm.guard.Guard`."""

    # ------------------------------------------------------------ completion reports

    def _update_from_kv_xfer_finished(self: Any, kv_connector_output: Any) -> None:
        if not self._sp_ready or not self._sp_settings.active("Completions"):
            super()._update_from_kv_xfer_finished(kv_connector_output)
            return
        recv, sent = self._sp_filter(kv_connector_output)
        raw = kv_connector_output
        if len(recv) == len(raw.finished_recving or ()) and len(sent) == len(raw.finished_sending or ()):
            super()._update_from_kv_xfer_finished(raw)
            return
        # The connector keeps its own books: it sees the raw report, the engine the filtered one.
        filtered = type(raw)(**{**vars(raw), "finished_recving": recv, "finished_sending": sent})
        shadow = Shadow()
        if self.connector is not None:
            before = self.connector.update_connector_output
            shadow.put(self.connector, "update_connector_output", lambda _: before(raw))
        try:
            super()._update_from_kv_xfer_finished(filtered)
        finally:
            shadow.take_off()

    def _sp_filter(self: Any, out: Any) -> tuple[set[str], set[str]]:
        """Reports that the engine may see. Also ends quarantines."""
        keep: dict[str, set[str]] = {"recv": set(), "sent": set(), "failed": set()}
        reports = (
            ("recv", out.finished_recving),
            ("sent", out.finished_sending),
            ("failed", getattr(out, "failed_recving", None)),
        )
        freed: set[str] = set()  # the engine forgets these at their first report
        for kind, names in reports:
            for rid in names or ():
                if rid in freed:
                    self._sp_ignore(rid, kind, "duplicate")
                    continue
                try:
                    verdict, why = self._sp_judge(rid, kind)
                except Exception as exc:
                    self._sp_fault("completions", exc)
                    verdict, why = Verdict.ACCEPT, ""
                if verdict is Verdict.ACCEPT:
                    keep[kind].add(rid)
                    if rid in self.requests and self.requests[rid].is_finished():
                        freed.add(rid)
                    continue
                if verdict is Verdict.RELEASE:
                    lot = self._sp_quarantine.release(rid, kind)
                    if lot is not None:
                        self._sp_unquarantine(lot)
                if verdict is Verdict.HOLD and kind == "recv":
                    self._sp_load_ended(rid)
                elif verdict is Verdict.HOLD and kind == "sent":
                    self._sp_send_ended(rid)
                elif kind != "failed":  # the engine has looked at it already, by itself
                    self._sp_ignore(rid, kind, why)
        return keep["recv"], keep["sent"]

    def _sp_load_ended(self: Any, rid: str) -> None:
        """The load of a finished request has ended; its blocks stay until the send has ended, too."""
        self._sp_fire("Completions")
        self._sp_load_over(rid)  # what has ended cannot be late: no quarantine, whose report would never come
        if self._sp_rec is not None:
            self._sp_received(self._sp_rec, rid)

    def _sp_send_ended(self: Any, rid: str) -> None:
        """The send of a finished request has ended; its blocks stay until the load has ended, too."""
        self._sp_fire("Completions")
        self._sp_counts.ignored["sent"] += 1
        if self._sp_rec is not None:
            self._sp_sent(self._sp_rec, rid)

    def _sp_ignore(self: Any, rid: str, kind: str, why: str) -> None:
        self._sp_fire("Completions")
        self._sp_counts.ignored[kind] += 1
        self._sp_emit("Ignored", rid, kind, why)

    def _sp_judge(self: Any, rid: str, kind: str) -> tuple[Verdict, str]:
        request = self.requests.get(rid)
        load = self._sp_loads.get(rid)
        if request is None:
            life = Life.UNKNOWN
        elif request.is_finished():
            life = Life.FINISHED
        elif request.status.name == "WAITING_FOR_REMOTE_KVS":
            life = Life.LOADING
        else:
            life = Life.LIVE
        return self._sp_completions.judge(
            rid,
            kind,
            life,
            started=load is None or not load.held,
            received=rid in self.finished_recving_kv_req_ids,
            quarantined=self._sp_quarantine.waits_for(rid, kind),
        )

    # ------------------------------------------------------------ failed synchronous loads

    def _handle_invalid_blocks(self: Any, invalid_block_ids: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._sp_ready or not self._sp_on("LoadFailure"):
            affected = super()._handle_invalid_blocks(invalid_block_ids, *args, **kwargs)
        else:
            # the null block stands in all tables whose windows have moved on: it is nobody's load
            invalid = set(invalid_block_ids) - {self.kv_cache_manager.block_pool.null_block.block_id}
            if len(self.kv_cache_config.kv_cache_groups) > 1:
                affected = self._sp_fail_whole(invalid)
            else:
                affected = super()._handle_invalid_blocks(invalid, *args, **kwargs)
        if self._sp_ready and affected:
            for rid in affected:
                self._sp_count_failure(rid)
                try:
                    self._sp_reset_places(self.requests[rid])
                except Exception as exc:
                    self._sp_fault("load failure", exc)
        return affected

    def _sp_fail_whole(self: Any, invalid: set[int]) -> set[str]:
        """Several groups of layers: each request that has a block which failed to load begins anew.

        The engine's own recovery knows one group and stops the engine otherwise (#45474). Which tokens a
        block stands for differs by group, and windows may have given up what going on from there would need.
        """
        affected: set[str] = set()
        recompute = self.recompute_kv_load_failures
        for request in list(self.requests.values()):
            blocks = self.kv_cache_manager.get_blocks(request.request_id).blocks
            ids = {b.block_id for group in blocks for b in group if not b.is_null}
            if request.is_finished() or ids.isdisjoint(invalid):
                continue
            self._sp_fire("LoadFailure")
            if request.status.name == "WAITING_FOR_REMOTE_KVS":
                request.num_computed_tokens = 0
                if recompute:
                    self.failed_recving_kv_req_ids.add(request.request_id)
                else:
                    affected.add(request.request_id)
            elif request.status is self._sp_running:
                affected.add(request.request_id)
                if self.kv_cache_manager.enable_caching:
                    self.kv_cache_manager.evict_blocks(ids)
                if recompute:
                    self.running.remove(request)
                    self._preempt_request(request, time.monotonic())
                    # it may be resumed in the next step, as after a reset of the cache
                    self.prev_step_scheduled_req_ids.discard(request.request_id)
        return affected

    def _sp_reset_places(self: Any, request: Any) -> None:
        """The step that failed and those behind it computed ``request`` on what was never loaded.

        It computes again from there: their outputs are not delivered, and no place is kept for them.
        """
        in_flight = any(request.request_id in tokens for tokens in self._sp_flight)
        if not in_flight and request.num_output_placeholders == 0:
            return
        self._sp_fire("LoadFailure")
        if self._sp_on("LoadFailure"):
            self._sp_disown_flight(request)
            request.num_output_placeholders = 0
            # its last token's own step may be among them: there must be something to compute
            request.num_computed_tokens = min(request.num_computed_tokens, request.num_tokens - 1)

    def _sp_disown_flight(self: Any, request: Any) -> None:
        """Outputs of the steps in flight that schedule ``request`` are not delivered."""
        if hasattr(request, "num_stale_output_tokens"):  # the engine's own books, from 0.27
            request.drop_stale_output = True
            request.num_stale_output_tokens = request.num_in_flight_tokens
        elif any(request.request_id in tokens for tokens in self._sp_flight):
            self._sp_stale[request.request_id] = (request, self._sp_steps.newest)

    def _sp_without_stale(self: Any, tokens: dict[str, int]) -> dict[str, int]:
        """``tokens`` scheduled in the step whose output is processed now, less those disowned since."""
        step = self._sp_steps.processed
        stale = {rid for rid, (request, _) in self._sp_stale.items() if self.requests.get(rid) is request}
        self._sp_stale = {rid: x for rid, x in self._sp_stale.items() if rid in stale and x[1] > step}
        for rid in stale & tokens.keys():
            request = self.requests[rid]
            if hasattr(request, "num_in_flight_tokens"):  # 0.26 counts them, and looks at each in its loop
                request.num_in_flight_tokens -= tokens[rid]
        return {rid: n for rid, n in tokens.items() if rid not in stale}

    # ------------------------------------------------------------ keeping the engine awake

    def has_requests(self: Any) -> bool:
        """Reports arrive with steps only: go on while a load is under way and the engine is paused (#58041),
        and for one more deadline after a transfer was given up, so that a late report is heard."""
        return bool(super().has_requests()) or (self._sp_ready and self._sp_act and self._sp_wants_reports())

    def _sp_wants_reports(self: Any) -> bool:
        if len(self._sp_quarantine) and self._sp_now() < self._sp_poll_until:
            return True
        if not self._sp_loads or self.pause_state.name == "UNPAUSED":
            return False
        return any(rid not in self.finished_recving_kv_req_ids for rid in self._sp_loads)

    # ------------------------------------------------------------ ends of requests

    def _connector_finished(self: Any, request: Any) -> Any:
        answer = super()._connector_finished(request)
        if self._sp_ready and answer[0]:
            self._sp_completions.expect(request.request_id, "sent")
            self._sp_sends.begin(request.request_id, self._sp_now())
        return answer

    def _free_request(self: Any, request: Any, delay_free_blocks: bool = False, **kwargs: Any) -> Any:
        if self._sp_ready and delay_free_blocks:
            self._sp_completions.expect(request.request_id, "recv")
        return super()._free_request(request, delay_free_blocks=delay_free_blocks, **kwargs)

    def _free_blocks(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        if self._sp_ready:
            self._sp_forget(request.request_id)
        return super()._free_blocks(request, *args, **kwargs)

    def _sp_forget(self: Any, rid: str) -> None:
        self._sp_completions.forget(rid)
        self._sp_load_over(rid)
        self._sp_deferral.end(rid)
        self._sp_put_off.discard(rid)
        self._sp_sends.end(rid)
        self._sp_failures.pop(rid, None)
        self._sp_grammars.end(rid)
        self._sp_silent.end(rid)
        self._sp_sessions.pop(rid, None)
        self._sp_session_comp.pop(rid, None)
        self._sp_suspects.pop(rid, None)
        self._sp_late.pop(rid, None)
        if rid not in self._sp_quarantine:
            self._sp_generations.pop(rid, None)

    def finish_requests(self: Any, request_ids: Any, finished_status: Any) -> Any:
        """A load that never started owes no report: its request's blocks are freed at once."""
        if self._sp_ready and len(self._sp_gate):
            if request_ids is not None and not isinstance(request_ids, str):
                request_ids = list(request_ids)
            names = self._sp_names(request_ids)
            for rid in names:
                if self._sp_gate.drop(rid) is not None:
                    self.finished_recving_kv_req_ids.add(rid)
                    self._sp_loads.pop(rid, None)
        return super().finish_requests(request_ids, finished_status)

    def _sp_names(self: Any, request_ids: Any) -> list[str]:
        if request_ids is None:
            return list(self.requests)
        return [request_ids] if isinstance(request_ids, str) else list(request_ids)
