"""Run one scenario on one scheduler class: the engine's loop, a simulated worker, scripted completions."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from stallproof.harness import requests
from stallproof.harness.monitors import Monitors, passed_limit
from stallproof.scenario import Request, Scenario, Stream

#: after the last scripted request has ended, so many further steps show what is released late
_TAIL = 64
#: calls in a row with work, nothing in flight and nothing pending outside, that count as a wedge
_WEDGE = 3
#: idle steps with a report due that count as a lost wake-up
_UNPOLLED = 16


@dataclass
class Result:
    """Outcome of one run, plain data."""

    scenario: str
    version: str
    scheduler: str
    violated: dict[str, str] = field(default_factory=dict)
    steps: int = 0
    finished: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    outputs: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    free: int = 0
    pool: int = 0
    events: dict[str, int] = field(default_factory=dict)
    died: str = ""
    fired: dict[str, int] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        return asdict(self)


class Clock:
    """Counts up by a microsecond per reading: records keep their order, runs are reproducible."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now = round(self.now + 1e-6, 6)
        return self.now


class Run:
    """One scenario on one live scheduler; :meth:`go` does it all."""

    def __init__(
        self, scenario: Scenario, cls: type, version: str, name: str, trace: str | None, *, every: int = 1,
        config: Any = None,
    ):  # fmt: skip
        """``trace``: file to record to; ``None``: the second judge reads along, without a file.

        ``every``: the recorded block tables are compared with the engine's own every so many calls.
        ``config``: see :func:`~stallproof.harness.config.make_scheduler`.
        """
        from stallproof.harness.config import make_scheduler
        from stallproof.harness.live import Second, attach_live
        from stallproof.vllm.recording import attach_file, recorded

        self.sc = scenario
        self.step = 0
        self.clock = Clock()
        self.result = Result(scenario.id, version, name)
        self.sched = make_scheduler(recorded(cls), scenario.engine, config=config)
        engine = scenario.engine
        self.watch = Monitors(
            depth=engine.depth, passed_limit=passed_limit(engine.budget_tokens or engine.budget)
        )
        #: idle sessions count as running ones where the engine's own loop asks for their number
        self._idle_seats = any(
            "num_waiting_for_streaming_input"
            in getattr(vars(c)["schedule"], "__code__", self._loop.__code__).co_names
            for c in cls.__mro__
            if "schedule" in vars(c)
        )
        run_id = _run_id(scenario, version)
        self.second: Second | None = None
        if trace is None:
            rec, self.second = attach_live(self.sched, every=every, clock=self.clock, run=run_id)
        else:
            rec = attach_file(self.sched, trace, source="harness", every=every, clock=self.clock, run=run_id)
        rec.put = _both(rec.put, self.watch)
        #: one step of the harness is one second for deadlines
        self.sched._sp_now = lambda: float(self.step)
        self.rec = rec
        self.connector = self.sched.connector
        self.flight: deque[tuple[Any, dict[str, bool], int]] = deque()
        self.step = 0
        self.loads: list[tuple[int, Any]] = []
        self.sends: list[tuple[int, str, str]] = []
        self.live: dict[str, Request | Stream] = {}
        self.waiting: list[tuple[int, str, Request]] = []
        for q in scenario.request:
            for k in range(q.count):
                rid = q.id if q.count == 1 else f"{q.id}{k}"
                self.waiting.append((q.arrive + k * q.every, rid, q))
        self.waiting.sort(key=lambda w: w[0])
        self.must = {rid for _, rid, q in self.waiting if q.must_finish}
        self.all = {rid for _, rid, _ in self.waiting}
        self.stream_count = [0] * len(scenario.stream)
        self.outputs: dict[str, int] = {}
        self.ended: dict[str, str] = {}
        self.end_step: dict[str, int] = {}
        self.arrived: dict[str, int] = {}
        self.aborts: list[tuple[int, str]] = []
        self.quiet = 0
        self.owed = 0
        self.told: list[Any] = []  # loads under way that a stray report has called done
        self.turns: dict[str, int] = {}
        self.objects: dict[str, Any] = {}
        self.requests_made = 0
        self.death: Exception | None = None

    # ------------------------------------------------------------ the loop

    def go(self) -> Result:
        try:
            self._loop()
        except Exception as exc:  # the engine's loop would end here
            self.death = exc
            self.result.died = f"{type(exc).__name__}: {exc}"[:300]
            prop = self.sc.expect.death
            self.watch.found(prop, f"the engine's loop dies: {self.result.died or type(exc).__name__}")
        self._judge()
        return self.result

    def _loop(self) -> None:
        tail = 0
        for step in range(self.sc.steps):
            self.step = step
            if self._settled():
                break
            self._happenings()
            if self._has_requests():
                self._dispatch()
            elif not self.flight and not self.waiting:
                self._unpolled()
                tail += 1
                if tail > _TAIL and not self._pending() and all(a.step <= step for a in self.sc.at):
                    break
                continue
            depth = self.sc.engine.depth
            if self.flight and (len(self.flight) >= depth or not self._has_requests()):
                self._process()
            if not self.waiting and self.all <= set(self.ended):
                tail += 1
                if tail > _TAIL:
                    break
        while self.flight and not self.result.died:
            self._process()

    def _settled(self) -> bool:
        """Whether the rest of the run can be left out; asked before each step."""
        return False

    def _unpolled(self) -> None:
        """The engine sleeps although a report is due: nobody will ever ask for it."""
        due = any(
            x.script.get("outcome") != "lost"
            and not x.script.get("again")  # a repetition is nobody's to wait for
            and not any(x is told for told in self.told)
            and x.r in self.sched.requests
            and self.step - at >= x.script.get("delay", 2)
            for at, x in self.loads
        ) or any(at <= self.step and o != "lost" and r in self.sched.requests for at, r, o in self.sends)
        self.owed = self.owed + 1 if due and self._unfinished() else 0
        if self.owed >= _UNPOLLED:
            self.watch.found(
                "BoundedWait", f"a completion is due for {self.owed} steps and is never asked for"
            )

    def _has_requests(self) -> bool:
        s = self.sched
        if hasattr(s, "has_requests"):
            return bool(s.has_requests())
        return bool(s.has_unfinished_requests() or s.has_finished_requests())

    def _happenings(self) -> None:
        while self.waiting and self.waiting[0][0] <= self.step:
            _, rid, asked = self.waiting.pop(0)
            self._add(rid, asked)
            if asked.abort >= 0:
                self.aborts.append((asked.abort, rid))
        for rid, q in list(self.live.items()):
            if isinstance(q, Request) and q.turns and rid not in self.ended:
                self._turn(rid, q)
        for i, stream in enumerate(self.sc.stream):
            if self.step < stream.start or self.all <= set(self.ended):
                continue
            mine = sum(
                1 for r, q in self.live.items()
                if q is stream and r not in self.ended and r not in {x.request_id for x in self.sched.running}
            )  # fmt: skip
            for _ in range(stream.keep - mine):
                rid = f"{stream.id}{self.stream_count[i]}"
                self.stream_count[i] += 1
                self._add(rid, stream)
        for when, rid in list(self.aborts):
            if when <= self.step:
                self.aborts.remove((when, rid))
                self._abort(rid)
        for rid, q in list(self.live.items()):
            if isinstance(q, Request) and q.abort_on and rid not in self.ended and self._is(rid, q.abort_on):
                self._abort(rid)
        for at in self.sc.at:
            if at.step == self.step:
                self._do(at.do)

    def _turn(self, rid: str, q: Request) -> None:
        """Give a session its next chunk, or close it after the last."""
        k = self.turns.get(rid, 0)
        request = self.sched.requests.get(rid)
        parked = request is not None and request.status.name == "WAITING_FOR_STREAMING_REQ"
        parked = parked and rid not in self._kept()
        if k >= len(q.turns):
            if parked:
                self._ended(rid, "session closed")
                self.sched.add_request(self._request(rid, [], 1, q, resumable=False))
            return
        turn = q.turns[k]
        if self.step >= turn.at if turn.at >= 0 else parked:
            self.turns[rid] = k + 1
            prompt = requests.tokens(f"{rid}/{k}", turn.prompt)
            self.sched.add_request(self._request(rid, prompt, turn.max_tokens, q, resumable=True))

    def _kept(self) -> Any:
        """Sessions whose next input our class has and has not given to the engine: their clients wait."""
        return getattr(self.sched, "_sp_kept", ())

    def _is(self, rid: str, state: str) -> bool:
        request = self.sched.requests.get(rid)
        if request is None:
            return False
        name = request.status.name
        received = rid in self.sched.finished_recving_kv_req_ids
        if state == "running":
            return name == "RUNNING"
        return name == "WAITING_FOR_REMOTE_KVS" and received == (state == "received")

    def _do(self, what: str) -> None:
        if what in ("pause_new", "pause_all", "resume"):
            from vllm.v1.core.sched.interface import PauseState

            names = {"pause_new": "PAUSED_NEW", "pause_all": "PAUSED_ALL", "resume": "UNPAUSED"}
            self.sched.set_pause_state(PauseState[names[what]])
        elif what == "must_reset_running":  # refusing it is a fault
            self.sched.reset_prefix_cache(reset_running_requests=True)
        else:  # the engine answers its caller with the error, and goes on
            with suppress(RuntimeError):
                self.sched.reset_prefix_cache(reset_running_requests=what == "reset_running")

    def _abort(self, rid: str) -> None:
        from vllm.v1.request import RequestStatus

        if rid in self.sched.requests:
            self.sched.finish_requests(rid, RequestStatus.FINISHED_ABORTED)
        self.ended.setdefault(rid, "abort")

    def _add(self, rid: str, q: Request | Stream) -> None:
        prompt = requests.tokens(rid, q.prompt)
        if isinstance(q, Request) and q.prefix:
            prompt[: q.prefix_tokens] = requests.tokens(f"prefix {q.prefix}", q.prefix_tokens)
        session = isinstance(q, Request) and bool(q.turns or q.abandoned)
        request = self._request(rid, prompt, q.max_tokens, q, resumable=session)
        self.live[rid] = q
        self.objects[rid] = request
        self.arrived[rid] = self.step
        self.sched.add_request(request)

    def _request(self, rid: str, prompt: list[int], n: int, q: Request | Stream, resumable: bool) -> Any:
        self.requests_made += 1
        return requests.make(
            rid, prompt, n, q,
            arrival=float(self.requests_made), block_size=self.sc.engine.block_size, resumable=resumable,
        )  # fmt: skip

    # ------------------------------------------------------------ dispatch and process

    def _dispatch(self) -> None:
        if self.connector is not None:
            self.connector.step = self.step
        before = {r: self.rec.counts.get(r, 0) for r in ("load", "evict", "finish", "not_yet")}
        output = self.sched.schedule()
        self._wedge(output, before)
        self.watch.ready(self._ready(), output.num_scheduled_tokens)
        samples = {}
        for rid in output.num_scheduled_tokens:
            request = self.sched.requests[rid]
            known = request.num_tokens + request.num_output_placeholders
            samples[rid] = not getattr(request, "is_prefill_chunk", request.num_computed_tokens < known)
        self.sched.get_grammar_bitmask(output)  # the engine asks in every step
        meta = getattr(output, "kv_connector_metadata", None)
        if meta is not None:
            self.loads += [(self.step, x) for x in meta.loads]
            self.sends += [(self.step + s["delay"], r, s["outcome"]) for r, s in meta.sends]
        self.flight.append((output, samples, self.step))

    def _wedge(self, output: Any, before: dict[str, int]) -> None:
        """Work to do, nothing in flight, nothing pending outside, and the call does nothing."""
        busy = (
            output.total_num_scheduled_tokens
            or any(f[0].total_num_scheduled_tokens for f in self.flight)
            or any(self.rec.counts.get(k, 0) != n for k, n in before.items())
            or self._pending()
            or self._expiring()
            or not self._unfinished()
            or self._paused()
            or any(self._waits_outside(r) for r in self._unfinished())
            or any(
                q.status.name.startswith("WAITING_FOR_S") and r not in self._kept()
                for r, q in self.sched.requests.items()
            )
        )
        self.quiet = 0 if busy else self.quiet + 1
        if self.quiet >= _WEDGE:
            stuck = sorted(self._unfinished())
            self.watch.found(
                "NoWedge", f"{', '.join(stuck[:6])} unfinished, {self.rec.probe.free()} blocks free, "
                "nothing in flight or pending, and the call does nothing",
            )  # fmt: skip

    def _ready(self) -> list[str]:
        """Requests that wait for nothing but the scheduler; not those whose slots or adapters are taken.

        From 0.25 on a session that idles has a slot, too; its own deadline ends that.
        """
        out = []
        idle = self.sched.num_waiting_for_streaming_input if self._idle_seats else 0
        full = len(self.sched.running) + idle >= self.sc.engine.max_num_seqs
        adapters = {requests.adapter(r) for r in self.sched.running} - {0}
        taken = 0 < self.sc.engine.max_loras <= len(adapters)
        for r, request in self.sched.requests.items():
            name = request.status.name
            if name == "WAITING_FOR_REMOTE_KVS" and r not in self.sched.finished_recving_kv_req_ids:
                continue
            if name.startswith("WAITING_FOR_S") or request.is_finished() or r in self.ended:
                continue
            if full and name != "RUNNING":
                continue
            if taken and name != "RUNNING" and requests.adapter(request) not in {0, *adapters}:
                continue
            script = (request.kv_transfer_params or {}).get("script", {})
            if script.get("defer", 0) > 0 and name == "WAITING":
                continue
            out.append(r)
        return out

    def _paused(self) -> bool:
        state = getattr(self.sched, "pause_state", None)
        return state is not None and state.name != "UNPAUSED"

    def _unfinished(self) -> list[str]:
        return [r for r in self.live if r not in self.ended]

    def _pending(self) -> bool:
        """The connector still owes a report."""
        return any(x.script.get("outcome") != "lost" for _, x in self.loads) or any(
            o != "lost" for _, _, o in self.sends
        )

    def _expiring(self) -> bool:
        """A deadline of the scheduler's own still runs: it will move blocks. A stock class has none."""
        awaits = getattr(self.sched, "sp_awaits", None)
        return callable(awaits) and bool(awaits())

    def _process(self) -> None:
        from vllm.v1.outputs import ModelRunnerOutput

        output, samples, dispatched = self.flight.popleft()
        ids = list(output.num_scheduled_tokens)
        sampled = [[3 + (len(r) + self.outputs.get(r, 0)) % 500] if samples.get(r) else [] for r in ids]
        result = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={r: i for i, r in enumerate(ids)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
            kv_connector_output=self._reports(dispatched),
        )
        produced = self.sched.update_from_output(output, result)
        for client in produced.values():
            for o in client.outputs:
                self.outputs[o.request_id] = self.outputs.get(o.request_id, 0) + len(o.new_token_ids)
                if o.finish_reason is not None and not self._session(o.request_id):
                    self._ended(o.request_id, str(o.finish_reason).lower())
        for rid, request in self.objects.items():
            if rid not in self.ended and request.is_finished():
                self._ended(rid, request.status.name)

    def _session(self, rid: str) -> bool:
        q = self.live.get(rid)
        return isinstance(q, Request) and bool(q.turns or q.abandoned)

    def _ended(self, rid: str, how: str) -> None:
        if rid not in self.ended:
            self.ended[rid] = how
            self.end_step[rid] = self.step

    def _reports(self, dispatched: int) -> Any:
        """What the connector's worker half reports with the step of that number.

        A synchronous load is part of its step: it is reported with that step's output, not with the output of
        the step before, which is processed while its own is in flight.
        """
        if self.connector is None:
            return None
        from vllm.v1.outputs import KVConnectorOutput

        recv: set[str] = set()
        sent: set[str] = set()
        bad: set[int] = set()
        left = []
        for started, x in self.loads:
            outcome, delay = x.script.get("outcome", "ok"), x.script.get("delay", 2)
            sync = x.script.get("mode") == "sync"
            if outcome == "lost" or (started > dispatched if sync else self.step - started < delay):
                left.append((started, x))
                continue
            if outcome in ("fail", "fail_silent"):
                bad.update(x.blocks)
            elif outcome == "partial":
                bad.update(x.blocks[len(x.blocks) // 2 :])
            elif outcome == "duplicate":
                again = type(x)(x.r, x.blocks, dict(x.script, outcome="ok", delay=1, again=True))
                left.append((self.step, again))
            if outcome != "fail_silent" and not sync:
                recv.add(x.r)
        self.loads = left
        due = [s for s in self.sends if s[0] <= self.step and s[2] != "lost"]
        self.sends = [s for s in self.sends if s not in due]
        for _, r, outcome in due:
            sent.add(r)
            if outcome == "duplicate":
                self.sends.append((self.step + 1, r, "ok"))
            if outcome == "with_recv":
                recv.add(r)
        failed: set[str] = set()
        for raw in self.sc.report:
            if raw.step == self.step:
                {"recv": recv, "sent": sent, "failed": failed}[raw.kind].add(raw.id)
                self.told += [x for _, x in self.loads if x.r == raw.id and raw.kind == "recv"]
        if not (recv or sent or bad or failed):
            return None
        extra = (
            {"failed_recving": failed} if failed and hasattr(KVConnectorOutput(), "failed_recving") else {}
        )
        return KVConnectorOutput(
            finished_recving=recv or None, finished_sending=sent or None, invalid_block_ids=bad, **extra
        )

    # ------------------------------------------------------------ judgement

    def _judge(self) -> None:
        w, r = self.watch, self.result
        w.step = self.step
        r.steps, r.tokens = self.step + 1, w.tokens
        r.finished = sorted(x for x in self.ended if x in self.all)
        r.unfinished = sorted(self.all - set(self.ended))
        r.outputs = {k: v for k, v in sorted(self.outputs.items()) if k in self.all}
        r.pool, r.free = self.sc.engine.blocks, self.rec.probe.free()
        r.events = dict(sorted(w.counts.items()))
        r.fired = dict(getattr(self.sched, "sp_fired", None) or {})
        if not r.died:
            self._liveness()
            self._leaks()
        r.violated = {f.prop: f"step {f.step}: {f.text}" for f in w.findings.values()}

    def _liveness(self) -> None:
        left = sorted(self.must - set(self.ended))
        if not left:
            return
        text = f"{', '.join(left[:6])} not finished after {self.step + 1} steps"
        overtaken = {
            x: sum(
                1 for y, at in self.arrived.items() if at > self.arrived.get(x, 1 << 30) and y in self.ended
            )
            for x in left
        }
        outside = [x for x in left if self._waits_outside(x)]
        if outside:
            self.watch.found("BoundedWait", f"{outside[0]} waits for an answer that never comes: {text}")
        x = max(left, key=lambda y: overtaken[y])
        if self.sc.stream and overtaken[x] >= 16:
            self.watch.found("NoStarvation", f"{text}; {overtaken[x]} later arrivals finished before {x}")
        elif self.quiet < _WEDGE and set(left) - set(outside):
            self.watch.found("Termination", text)

    def _waits_outside(self, rid: str) -> bool:
        request = self.sched.requests.get(rid)
        if request is None or request.is_finished():
            return False
        name = request.status.name
        if name == "WAITING_FOR_REMOTE_KVS":
            return rid not in self.sched.finished_recving_kv_req_ids
        if name.startswith("WAITING_FOR_S"):
            return rid not in self._kept()
        if self.connector is None or self.step - self.connector.asked_at.get(rid, -_WEDGE) >= _WEDGE:
            return False  # nobody asks the connector any more: it is the scheduler that waits
        script = (request.kv_transfer_params or {}).get("script", {})
        return bool(script.get("defer", 0) > self.connector.asked.get(rid, 0))

    def _leaks(self) -> None:
        """All finished, nothing in flight and no deadline to come: free + quarantined = pool."""
        if set(self.live) - set(self.ended) or self._pending() or self._expiring():
            return
        held = getattr(self.sched, "sp_quarantined", None)  # sends past their deadline are in it, too
        out = max(self.watch.quarantined, len(held()) if callable(held) else 0)
        missing = self.sc.engine.blocks - self.rec.probe.free() - out
        if missing:
            self.watch.found("NoLeak", f"all requests have ended, {missing} blocks never came back")


def _both(first: Callable[[Any], Any], second: Callable[[Any], Any]) -> Callable[[Any], None]:
    def put(record: Any) -> None:
        first(record)
        second(record)

    return put


def _run_id(scenario: Scenario, version: str) -> str:
    return hashlib.sha256(f"{scenario.id} {version}".encode()).hexdigest()[:16]


def run(scenario: Scenario, version: str, scheduler: str, trace: str | None = None) -> Result:
    """Run ``scenario`` on this process's engine, recording to ``trace`` if given.

    Two judges: :class:`Monitors` while it runs, and the trace checker on what is recorded.
    """
    from stallproof.harness.config import scheduler_class
    from stallproof.vllm.recording import close_recording

    cls = scheduler_class(scheduler, scenario.engine.depth, scenario.engine.base)
    job = Run(scenario, cls, version, scheduler, trace)
    try:
        result = job.go()
    finally:
        close_recording(job.sched)
    found = job.second.found() if job.second else second_judge(trace or "")
    for prop, text in found.items():
        result.violated.setdefault(prop, text)
    return result


def second_judge(path: str) -> dict[str, str]:
    """Properties that the trace checker finds violated in a recording."""
    from stallproof.trace.checker import Options, check

    found: dict[str, str] = {}
    for v in check([path], Options(all=True), history=False).violations:
        found.setdefault(v.rule, f"trace line {v.line}: {v.text}")
    return found


__all__ = ["Result", "Run", "run", "second_judge"]
