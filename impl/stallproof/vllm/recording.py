"""Record what a vLLM scheduler does, as a trace: works over the stock classes and over any subclass.

:func:`recorded` makes a class that records; it must be the outermost class, so that what a guard does before
and after the engine's own call is recorded too. Recording is on when a writer is attached
(:func:`attach`) or when ``STALLPROOF_TRACE`` names a file; otherwise each method costs one attribute test.

Where things are seen, for every release from 0.23.0:

===================  ==========================================================================
what                 hook
===================  ==========================================================================
blocks               ``BlockPool.get_new_blocks``, ``touch``, ``free_blocks``, on the instance
for whom             ``KVCacheManager.allocate_slots``, ``free``, ``pop_blocks_for_free`` and the
                     coordinator's ``remove_skipped_blocks`` around them
loads                ``allocate_slots`` (admission), the connector's ``update_state_after_alloc``
                     (start), ``_update_from_kv_xfer_finished`` (end)
decisions            ``_preempt_request``, ``_update_waiting_for_remote_kv``, ``_free_request``
===================  ==========================================================================

After each call the recorded block tables are compared with the engine's own: what the hooks did not see is
reported as a note of kind ``blind``, never passed over (``RecordingError`` where ``strict``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from stallproof.trace import schema as T
from stallproof.vllm.ledger_probe import Probe

#: environment variable: path of the trace file; recording is on when it is set
TRACE_ENV = "STALLPROOF_TRACE"
#: environment variables of the ring: bytes per part (0: one file), parts kept, compress finished parts
TRACE_BYTES_ENV, TRACE_PARTS_ENV, TRACE_ZSTD_ENV = (
    "STALLPROOF_TRACE_BYTES", "STALLPROOF_TRACE_PARTS", "STALLPROOF_TRACE_ZSTD",
)  # fmt: skip


class _Tags(dict[type, str]):
    def __missing__(self, event: Any) -> str:
        tag = self[event] = str(event.__struct_config__.tag)
        return tag


_TAGS = _Tags()


class RecordingError(AssertionError):
    """The hooks did not see a change of the engine's block tables."""


class Recorder:
    """Collects the events of the call in progress and writes one record per call.

    ``emit(event)`` is the whole interface for a scheduler class that makes decisions of its own; a class
    names the event kinds it emits itself in ``sp_emits`` (for example ``{"start"}``), and may set
    ``done`` (newest device-done step, -1 unknown).
    """

    def __init__(
        self, sched: Any, writer: Callable[[T.Record], Any], *, strict: bool = False, every: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.s = sched
        self.put, self.strict, self.every, self.clock = writer, strict, max(1, every), clock
        self.own: frozenset[str] = frozenset(getattr(sched, "sp_emits", ()))
        self.ev: list[T.Event] = []
        self.depth = 0  # nesting of recorded calls
        self.kind = ""  # schedule | update | outside
        self.step = 0
        self.done = -1
        self.processed = 0
        self.flight: list[tuple[Any, int]] = []
        self.seq_step: dict[int, int] = {0: 0}  # the engine's own step sequence -> step of the trace
        self.run: list[str] = []
        self.gen: dict[str, int] = {}
        self.loading: dict[str, list[int]] = {}
        self.begun: set[str] = set()  # loads among them that the connector was told of
        self.sync_loads: dict[str, int] = {}
        self.sending: set[str] = set()
        self.accepting = False  # inside the engine's handling of completion reports
        self.refused = ""
        self.known: set[str] = set()
        self.finished: set[str] = set()
        self.parked: dict[str, str] = {}
        self.calls = 0
        self.counts: dict[str, int] = {}
        self.probe = Probe(self)

    # -------------------------------------------------------------- interface

    def emit(self, event: T.Event) -> None:
        """Append an event of the call in progress; outside any call it becomes a record of its own."""
        name = _TAGS[type(event)]
        self.counts[name] = self.counts.get(name, 0) + 1
        self.ev.append(event)
        if not self.depth:
            self._outside()

    def note(self, kind: str, text: str, **data: Any) -> None:
        self.put(T.Note(ts=self.clock(), kind=kind, text=text, data=data))

    # -------------------------------------------------------------- calls

    def begin(self, kind: str) -> bool:
        """Enter a recorded call; ``True`` if it is the outermost one."""
        self.depth += 1
        if self.depth == 1:
            self.kind = kind
            return True
        return False

    def leave(self) -> None:
        self.depth -= 1

    def crashed(self, exc: BaseException) -> None:
        """An exception leaves the engine's call: keep what was seen and say so."""
        if self.ev:
            if self.kind == "update":  # its record, which would tell the new tokens, will not be written
                self.ev = [T.Finish(e.r, e.reason) if type(e) is T.Finish else e for e in self.ev]
            self._outside()
        # no message of the exception: it may quote a request
        at = exc.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        where = f"{at.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}:{at.tb_lineno}" if at else "?"
        self.note("crash", f"{type(exc).__name__} at {where}", call=self.kind)

    def scheduled(self, output: Any) -> None:
        s = self.s
        total = output.total_num_scheduled_tokens
        if total > 0 and getattr(s, "defer_block_free", False):
            self.seq_step[s.sched_step_seq] = self.step
            if len(self.seq_step) > 256:
                for old in sorted(self.seq_step)[:128]:
                    del self.seq_step[old]
        self._touches(output)
        if self.parked:
            self.unparked()
        run = [r.request_id for r in s.running]
        changed = run != self.run
        if changed:
            known = {e.r for e in self.ev if type(e) is T.Admit}.union(self.run)
            for r in run:
                if r not in known:  # a scheduler that admits without the usual call
                    self.emit(T.Admit(r))
            self.run = run
        record = T.Sched(
            step=self.step, ts=self.clock(), tok=dict(output.num_scheduled_tokens), total=total,
            done=self.done, ev=self.ev, free=self.probe.free(), run=run if changed else None,
        )  # fmt: skip
        self.flight.append((output, self.step))
        self.refused = ""
        self._put(record)

    def updated(self, step: int, out: dict[str, int]) -> None:
        if self.parked:
            self.unparked()
        running = self.s.running
        if len(running) != len(self.run):
            still = {r.request_id for r in running}
            self.run = [r for r in self.run if r in still]
        if not step:
            self.note("early", "an output of a step dispatched before the recording began")
            self.outside()
            return
        self._put(
            T.Update(step=step, ts=self.clock(), out=out, done=self.done, ev=self.ev, free=self.probe.free())
        )

    def step_of(self, output: Any) -> int:
        """The step of an output; 0 for one dispatched before the recording began."""
        for i, (o, step) in enumerate(self.flight):
            if o is output:
                del self.flight[i]
                return step
        return 0

    def _outside(self) -> None:
        self._put(T.Outside(ts=self.clock(), ev=self.ev, free=self.probe.free()))

    def outside(self) -> None:
        self.unparked()
        if self.ev:
            self._outside()

    def _put(self, record: T.Sched | T.Update | T.Outside) -> None:
        self.ev = []
        self.calls += 1
        sampled = self.calls % self.every == 0
        if sampled:
            record.refs = self.probe.refs(record.ev)
        self.put(record)
        if sampled:
            for text in self.probe.differences():
                self.note("blind", text)
                if self.strict:
                    raise RecordingError(text)

    # -------------------------------------------------------------- details

    def _touches(self, output: Any) -> None:
        """Writers of the step that no scheduled request's own blocks imply."""
        zero = getattr(output, "new_block_ids_to_zero", None)
        copies = getattr(output, "kv_cache_block_copies", None)
        if not zero and not copies:
            return
        held = self.probe.held_by(output.num_scheduled_tokens)
        if zero:
            orphans = sorted({b for b in zero if b not in held})
            if orphans:
                self.emit(T.Touch("zero", orphans))
        if copies:
            ids = sorted({int(b) for c in copies for b in _block_ids(c)} - held)
            if ids:
                self.emit(T.Touch("copy", ids))

    def unparked(self) -> None:
        for r, what in list(self.parked.items()):
            request = self.s.requests.get(r)
            if request is None or request.status.name != what:
                del self.parked[r]
                self.emit(T.Unpark(r))

    def fence_step(self) -> int:
        return self.seq_step.get(getattr(self.s, "sched_step_seq", 0), self.step)


def _block_ids(copy: Any) -> list[int]:
    """Source and target of a block copy, whatever its shape in this release."""
    if isinstance(copy, (tuple, list)):
        return [x for x in copy if isinstance(x, int)]
    return [v for v in vars(copy).values() if isinstance(v, int)] if hasattr(copy, "__dict__") else []


def _turn(q: Any) -> T.Turn:
    return T.Turn(q.request_id, int(q.num_prompt_tokens), int(q.max_tokens), float(q.arrival_time))


_PARKS = {
    "WAITING_FOR_STREAMING_REQ": "session",
    "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR": "grammar",
}
_REASONS = {
    "FINISHED_STOPPED": "stop",
    "FINISHED_LENGTH_CAPPED": "length",
    "FINISHED_ABORTED": "abort",
    "FINISHED_IGNORED": "ignored",
    "FINISHED_ERROR": "error",
    "FINISHED_REPETITION": "repetition",
}


class RecordingMixin:
    """Put in front of a scheduler class; see :func:`recorded`."""

    _sp_rec: Recorder | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        path = os.environ.get(TRACE_ENV)
        if path:
            attach_file(self, path)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        rec = self._sp_rec
        if rec is None:
            return super().schedule(*args, **kwargs)  # type: ignore[misc]
        rec.begin("schedule")
        rec.step += 1
        try:
            output = super().schedule(*args, **kwargs)  # type: ignore[misc]
            rec.scheduled(output)
            return output
        except BaseException as exc:
            rec.crashed(exc)
            raise
        finally:
            rec.leave()

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        rec = self._sp_rec
        if rec is None:
            return super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        rec.begin("update")
        step = rec.step_of(scheduler_output)
        rec.processed = step or rec.processed
        running = list(self.running)  # type: ignore[attr-defined]
        comp = [r.num_computed_tokens for r in running]
        try:
            result = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
            if rec.sync_loads or comp != [r.num_computed_tokens for r in running]:
                before = {r.request_id: n for r, n in zip(running, comp, strict=True)}
                self._sp_after_update(rec, model_runner_output, before, step)
            out = {
                o.request_id: len(o.new_token_ids)
                for client in result.values()
                for o in client.outputs
                if o.new_token_ids
            }
            rec.updated(step, out)
            return result
        except BaseException as exc:
            rec.crashed(exc)
            raise
        finally:
            rec.leave()

    def _sp_after_update(self, rec: Recorder, output: Any, comp: dict[str, int], step: int) -> None:
        kv = output.kv_connector_output
        invalid = set(getattr(kv, "invalid_block_ids", None) or ()) if kv is not None else set()
        for request in self.running:  # type: ignore[attr-defined]
            r = request.request_id
            before = comp.get(r)
            if before is not None and request.num_computed_tokens < before:
                if invalid and r in rec.sync_loads:
                    bad = sorted(invalid & rec.probe.held_by([r]))
                    rec.emit(T.LoadFailed(r, rec.gen.get(r, 0), bad))
                rec.emit(T.Rewind(r, request.num_computed_tokens))
        for r, at in list(rec.sync_loads.items()):
            if at <= step:
                del rec.sync_loads[r]

    def add_request(self, request: Any) -> None:
        rec = self._sp_rec
        if rec is None:
            super().add_request(request)  # type: ignore[misc]
            return
        rec.begin("outside")
        try:
            r = request.request_id
            old = self.requests.get(r)  # type: ignore[attr-defined]
            unheard = getattr(self, "_sp_unheard", None)  # of ours: nothing comes of it
            if old is None and not (unheard is not None and self._sp_ready and unheard(request)):  # type: ignore[attr-defined]
                rec.finished.discard(r)
                rec.emit(
                    T.Add(
                        r,
                        rec.probe.priority_of(request),
                        float(request.arrival_time),
                        int(request.num_prompt_tokens),
                        int(request.max_tokens),
                    )
                )
                what = _PARKS.get(request.status.name)
                if what is not None:
                    rec.parked[r] = request.status.name
                    rec.emit(T.Park(r, what))  # type: ignore[arg-type]
            super().add_request(request)  # type: ignore[misc]
            rec.outside()
        finally:
            rec.leave()

    def finish_requests(self, *args: Any, **kwargs: Any) -> Any:
        return self._sp_outside(super().finish_requests, *args, **kwargs)  # type: ignore[misc]

    def set_pause_state(self, pause_state: Any) -> Any:
        rec = self._sp_rec
        if rec is not None:
            state = {"UNPAUSED": "none", "PAUSED_NEW": "new", "PAUSED_ALL": "all"}[pause_state.name]
            rec.emit(T.Pause(state))  # type: ignore[arg-type]
        return super().set_pause_state(pause_state)  # type: ignore[misc]

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> Any:
        rec = self._sp_rec
        result = self._sp_outside(super().reset_prefix_cache, *args, **kwargs)  # type: ignore[misc]
        if rec is not None:
            rec.run = [r.request_id for r in self.running]  # type: ignore[attr-defined]
            rec.emit(T.Reset(bool(result)))
        return result

    def _sp_outside(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        rec = self._sp_rec
        if rec is None:
            return call(*args, **kwargs)
        outermost = rec.begin("outside")
        try:
            return call(*args, **kwargs)
        except BaseException as exc:
            rec.crashed(exc)
            raise
        finally:
            if outermost:
                rec.outside()
            rec.leave()

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        rec = self._sp_rec
        if rec is None:
            return super()._preempt_request(request, *args, **kwargs)  # type: ignore[misc]
        at = len(rec.ev)
        result = super()._preempt_request(request, *args, **kwargs)  # type: ignore[misc]
        if request.status.name != "RUNNING":  # a guard may have kept it
            target = rec.refused if rec.kind == "schedule" else ""
            rec.ev.insert(at, T.Preempt(request.request_id, target))
            rec.counts["preempt"] = rec.counts.get("preempt", 0) + 1
        return result

    def _update_waiting_for_remote_kv(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        rec = self._sp_rec
        result = super()._update_waiting_for_remote_kv(request, *args, **kwargs)  # type: ignore[misc]
        if rec is not None:
            rec.emit(T.Promote(request.request_id))
        return result

    def _update_from_kv_xfer_finished(self, kv_connector_output: Any) -> Any:
        rec = self._sp_rec
        if rec is None:
            return super()._update_from_kv_xfer_finished(kv_connector_output)  # type: ignore[misc]
        # What counts is what the engine accepts: a guard below may discard a report.
        before = set(self.finished_recving_kv_req_ids)  # type: ignore[attr-defined]
        rec.accepting = True
        try:
            result = super()._update_from_kv_xfer_finished(kv_connector_output)  # type: ignore[misc]
        finally:
            rec.accepting = False
        for r in sorted(self.finished_recving_kv_req_ids - before):  # type: ignore[attr-defined]
            self._sp_received(rec, r)
        return result

    def _sp_received(self, rec: Recorder, r: str) -> None:
        blocks = rec.loading.pop(r, None)
        if blocks is None or r not in rec.begun:
            return
        failed = r in self.failed_recving_kv_req_ids  # type: ignore[attr-defined]
        rec.emit(T.LoadFailed(r, rec.gen[r], blocks) if failed else T.Recv(r, rec.gen[r]))

    def _sp_sent(self, rec: Recorder, r: str) -> None:
        if r in rec.sending:
            rec.sending.discard(r)
            rec.emit(T.Stored(f"send-{r}"))

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        rec = self._sp_rec
        if rec is None:
            return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]
        r = request.request_id
        if r not in rec.finished:
            rec.finished.add(r)
            rec.parked.pop(r, None)
            name = request.status.name
            rec.emit(T.Finish(r, _REASONS.get(name, name.lower()), int(request.num_output_tokens)))
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]

    def _free_blocks(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        rec, r = self._sp_rec, request.request_id
        if rec is not None and rec.accepting:  # the last report of a finished request
            self._sp_received(rec, r)
            self._sp_sent(rec, r)
        result = super()._free_blocks(request, *args, **kwargs)  # type: ignore[misc]
        if rec is not None:
            rec.gen.pop(r, None)
            rec.loading.pop(r, None)
            rec.finished.discard(r)
        return result

    def _connector_finished(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        result = super()._connector_finished(request, *args, **kwargs)  # type: ignore[misc]
        rec = self._sp_rec
        if rec is not None and result[0]:
            held = sorted(rec.probe.held_by([request.request_id]))
            rec.sending.add(request.request_id)
            rec.emit(T.Store(f"send-{request.request_id}", request.request_id, held))
        return result

    def _drain_deferred_frees(self, *args: Any, **kwargs: Any) -> Any:
        rec = self._sp_rec
        if rec is None:
            return super()._drain_deferred_frees(*args, **kwargs)  # type: ignore[misc]
        with rec.probe.within("drain", ""):
            return super()._drain_deferred_frees(*args, **kwargs)  # type: ignore[misc]

    def _free_cow_retained_blocks(self, blocks: Any, fence_seq: int, *args: Any, **kwargs: Any) -> Any:
        rec = self._sp_rec
        if rec is None:
            return super()._free_cow_retained_blocks(blocks, fence_seq, *args, **kwargs)  # type: ignore[misc]
        before = len(self.deferred_frees)  # type: ignore[attr-defined]
        with rec.probe.within("copy", ""):
            result = super()._free_cow_retained_blocks(blocks, fence_seq, *args, **kwargs)  # type: ignore[misc]
        if len(self.deferred_frees) > before:  # type: ignore[attr-defined]
            rec.probe.copies.put_off(blocks)
        return result

    def _handle_stopped_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        result = super()._handle_stopped_request(request, *args, **kwargs)  # type: ignore[misc]
        rec = self._sp_rec
        if rec is not None and not result:
            r, name = request.request_id, request.status.name
            if name in _PARKS:
                rec.parked[r] = name
                rec.emit(T.Park(r, _PARKS[name]))  # type: ignore[arg-type]
        return result

    def _update_request_as_session(self, session: Any, update: Any) -> None:
        super()._update_request_as_session(session, update)  # type: ignore[misc]
        if self._sp_rec is not None:
            self._sp_rec.emit(_turn(session))
            self._sp_rec.unparked()  # it may be a victim later in this call

    def shutdown(self, *args: Any, **kwargs: Any) -> Any:
        close_recording(self)
        return super().shutdown(*args, **kwargs)  # type: ignore[misc]


_made: dict[type, type] = {}


def recorded(base: type) -> type:
    """``base`` with recording in front; itself if it records already. The same class every time."""
    if issubclass(base, RecordingMixin):
        return base
    if base not in _made:
        _made[base] = type(f"Recorded{base.__name__}", (RecordingMixin, base), {"__module__": __name__})
    return _made[base]


def attach(
    sched: Any, put: Callable[[T.Record], Any], *, strict: bool = False, every: int = 1,
    clock: Callable[[], float] = time.monotonic,
) -> Recorder:  # fmt: skip
    """Turn recording on for a live scheduler that has :class:`RecordingMixin` in front.

    ``put`` takes each record after the header; ``every``: compare the block tables every so many calls;
    ``strict``: raise :class:`RecordingError` where they differ.
    """
    rec = Recorder(sched, put, strict=strict, every=every, clock=clock)
    rec.probe.install()
    sched._sp_rec = rec
    return rec


def attach_file(
    sched: Any, path: str, *, source: str = "engine", strict: bool = False, every: int | None = None,
    clock: Callable[[], float] = time.monotonic, run: str | None = None,
) -> Recorder:  # fmt: skip
    """Record to ``path`` through the ring writer; its limits come from the environment.

    ``every``: by default the comparison of the block tables is as rare as it is long: once in 64 calls, or
    in an eighth as many calls as the pool has blocks.
    """
    from stallproof.trace.writer import Writer
    from stallproof.vllm.describe import config_of, engine_of, rules_of

    every = every or max(64, sched.kv_cache_manager.block_pool.num_gpu_blocks // 8)
    rec = attach(sched, lambda record: writer.write(record), strict=strict, every=every, clock=clock)
    writer = Writer(
        path, engine=engine_of(sched), config=config_of(sched), snapshot=rec.probe.snapshot,
        source=source, rules=rules_of(sched), clock=clock, run=run,  # type: ignore[arg-type]
        max_bytes=int(os.environ.get(TRACE_BYTES_ENV) or 0),
        max_parts=int(os.environ.get(TRACE_PARTS_ENV) or 8),
        compress=bool(os.environ.get(TRACE_ZSTD_ENV)),
    )  # fmt: skip
    sched._sp_writer = writer
    import atexit

    atexit.register(close_recording, sched)
    return rec


def close_recording(sched: Any) -> None:
    """End the recording in order, with the counts of events; safe to call twice."""
    rec, writer = getattr(sched, "_sp_rec", None), getattr(sched, "_sp_writer", None)
    if rec is None:
        return
    sched._sp_rec = None
    rec.probe.remove()
    if writer is not None:
        writer.close(fired=dict(getattr(sched, "sp_fired", None) or {}))


def __getattr__(name: str) -> Any:
    """Recording classes by dotted name, for ``--scheduler-cls``: ``StockScheduler``, ``GuardedScheduler``
    and the same with ``Async``. Made on first use, so that importing this module does not import vLLM.
    """
    kind, dot, rest = name.partition("Stock") if name.startswith("Stock") else name.partition("Guarded")
    if kind or not dot or rest not in ("Scheduler", "AsyncScheduler"):
        raise AttributeError(name)
    from importlib import import_module

    if dot == "Stock":
        module = "async_scheduler" if rest == "AsyncScheduler" else "scheduler"
        base = getattr(import_module(f"vllm.v1.core.sched.{module}"), rest)
    else:
        base = getattr(import_module("stallproof.vllm"), rest)
    return recorded(base)
