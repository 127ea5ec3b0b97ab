"""The engine's loop under a virtual clock: real scheduler, simulated clients, device and store.

Runs in the engine's own interpreter. The device executes dispatched steps one after the other; up to
``depth`` are in flight; the host's own time counts as zero (it is reported as wall time instead). No
scheduling decision is taken here: an import test shows that nothing of :mod:`stallproof.core` is used.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from stallproof.simulate import retrace
from stallproof.simulate.metrics import RequestLog, RunLog
from stallproof.simulate.plan import Plan
from stallproof.simulate.retrace import Known
from stallproof.simulate.series import Series
from stallproof.simulate.worker import Latency
from stallproof.simulate.workload import Job

#: a token that ends its request (recordings only); every other token is 7
STOP = 9


@dataclass(slots=True)
class Flight:
    """A dispatched step: when the device is done with it, and who gets a token from it."""

    done: float
    output: Any
    sampled: list[list[int]]
    loads: list[tuple[str, list[int]]]


def make(plan: Plan) -> Any:
    """The scheduler of this process's vLLM, with the simulated connector if the plan has a store."""
    from stallproof.harness.config import make_scheduler, scheduler_class
    from stallproof.scenario import Engine

    engine = Engine(
        blocks=plan.blocks, block_size=plan.block_size, max_num_seqs=plan.max_num_seqs, budget=plan.budget,
        chunk_cap=plan.chunk_cap, max_model_len=plan.max_model_len, policy=plan.policy, depth=plan.depth,
        prefix_caching=plan.prefix_caching,
    )  # fmt: skip
    transfer = None
    if plan.store.kind != "none":
        transfer = {
            "kv_connector": "SimConnector",
            "kv_connector_module_path": "stallproof.simulate.connector",
            "kv_role": "kv_consumer" if plan.store.kind == "pd" else "kv_both",
            "kv_connector_extra_config": {
                "kind": plan.store.kind,
                "capacity": plan.store.capacity,
                "lookup": plan.store.lookup,
            },
            "kv_load_failure_policy": "recompute",
        }
    cls = scheduler_class(plan.scheduler, plan.depth)
    if plan.trace:
        from stallproof.vllm.recording import recorded

        cls = recorded(cls)
    return make_scheduler(cls, engine, transfer)


def make_request(job: Any, block_size: int) -> Any:
    """The engine's own request object for a job; ``block_size`` 0: no block hashes."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    def hasher(request: Any) -> Any:  # called for every output token
        have, full = len(request.block_hashes), request.num_tokens // block_size
        return job.block_hashes(have, full, block_size) if full > have else ()

    return Request(
        request_id=job.rid,
        prompt_token_ids=[7] * job.prompt,
        sampling_params=SamplingParams(
            max_tokens=job.output, ignore_eos=True, temperature=0.0, stop_token_ids=[STOP]
        ),
        pooling_params=None,
        arrival_time=job.at,
        priority=job.prio,
        block_hasher=hasher if block_size else None,
    )


def sampled_tokens(output: Any, live: Any) -> list[list[int]]:
    """What each request of a dispatched step will sample: one token, none while its prompt goes on."""
    return [[] if live[rid].is_prefill_chunk else [7] for rid in output.num_scheduled_tokens]


def model_output(output: Any, sampled: list[list[int]], reports: Any) -> Any:
    """The engine's own result object of a step."""
    from vllm.v1.outputs import ModelRunnerOutput

    ids = list(output.num_scheduled_tokens)
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={r: i for i, r in enumerate(ids)},
        sampled_token_ids=sampled,
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
        kv_connector_output=reports,
    )


class Simulation:
    """One plan on one live scheduler; :meth:`run` does it all and returns the log."""

    def __init__(self, plan: Plan, jobs: list[Job], scheduler: Any) -> None:
        self.plan, self.sched = plan, scheduler
        self.latency = Latency.parse(plan.latency)
        self.log = RunLog(plan.scheduler)
        self.series = Series()
        self.arrivals = deque(jobs)
        self.last_arrival = jobs[-1].at
        self.now = 0.0
        self.device_free = 0.0
        self.flight: deque[Flight] = deque()
        self.live: dict[str, Any] = {}
        self.high: dict[str, int] = {}
        self.attempts: dict[str, int] = {}
        self.loading: list[tuple[float, str, list[int], str]] = []
        self.failed_blocks: set[int] = set()
        self.quiet = 0
        self.moved_at = 0.0
        pool = scheduler.kv_cache_manager.block_pool
        self.pool_free = pool.get_num_free_blocks
        self.known: dict[str, Known] = {}
        if plan.store.kind != "none":
            from stallproof.simulate.connector import SimConnector

            SimConnector.now = staticmethod(lambda: self.now)
            if plan.store.kind == "recorded":
                self.known = SimConnector.known = retrace.read(Path(plan.work.path)).known
        if hasattr(scheduler, "_sp_now"):
            scheduler._sp_now = lambda: self.now  # our class's deadlines run on the virtual clock

    # ------------------------------------------------------------ clients

    def _arrive(self) -> None:
        while self.arrivals and self.arrivals[0].at <= self.now:
            job = self.arrivals.popleft()
            request = make_request(job, self.plan.block_size if self.plan.prefix_caching else 0)
            self.log.requests[job.rid] = RequestLog(job.rid, job.at, job.prompt, job.output)
            self.live[job.rid] = request
            self.sched.add_request(request)

    # ------------------------------------------------------------ device

    def _dispatch(self) -> bool:
        """One scheduling call; False if it scheduled no token."""
        log, live = self.log, self.live
        output = self.sched.schedule()
        log.calls += 1
        prefill = decode = 0
        highs = self.high
        for rid, n in output.num_scheduled_tokens.items():
            request = live[rid]
            end = request.num_computed_tokens
            if n == 1 and request._output_token_ids:
                decode += 1
            else:
                prefill += n
            high = highs.get(rid, 0)
            if end > high:
                highs[rid] = end
                if high > end - n:
                    log.recomputed_tokens += high - (end - n)
            else:
                log.recomputed_tokens += n
        log.scheduled_tokens += output.total_num_scheduled_tokens
        meta = getattr(output, "kv_connector_metadata", None)
        loads = meta.loads if meta is not None else []
        start = max(self.now, self.device_free)
        self.device_free = start + self.latency.step(prefill, decode, sum(len(b) for _, b in loads))
        for rid, blocks in loads:
            self._load(start, rid, blocks)
        self.flight.append(Flight(self.device_free, output, sampled_tokens(output, live), loads))
        worked = bool(output.total_num_scheduled_tokens)
        if worked:
            log.steps += 1
        self._progress(worked or bool(loads))
        if log.calls % 4 == 0:
            self._sample()
        return worked

    def _load(self, start: float, rid: str, blocks: list[int]) -> None:
        from stallproof.simulate.connector import outcome

        store, attempt = self.plan.store, self.attempts.get(rid, 0)
        self.attempts[rid] = attempt + 1
        self.log.loads += 1
        if store.kind == "recorded":
            takes, fate = self.known[rid].load(attempt)
        else:
            takes = store.latency + len(blocks) / store.bandwidth
            fate = outcome(self.plan.seed, rid, attempt, store.p_fail, store.p_lost)
        if fate != "lost":
            heappush(self.loading, (start + takes, rid, blocks, fate))

    def _progress(self, moved: bool) -> None:
        if moved or self._in_flight():
            self.log.longest_engine_gap = max(self.log.longest_engine_gap, self.now - self.moved_at)
            self.moved_at = self.now
        if moved or self.loading or self._in_flight() or not self.live:
            self.quiet = 0
        else:
            self.quiet += 1
            self.log.zero_progress_calls += 1

    def _in_flight(self) -> bool:
        return any(f.output.total_num_scheduled_tokens for f in self.flight)

    def _reports(self) -> Any:
        """What the store reports by now."""
        if self.plan.store.kind == "none":
            return None
        from vllm.v1.outputs import KVConnectorOutput

        done: set[str] = set()
        bad: set[int] = set()
        while self.loading and self.loading[0][0] <= self.now:
            _, rid, blocks, fate = heappop(self.loading)
            if fate == "fail":
                bad.update(blocks)
            done.add(rid)
        if not done:
            return None
        return KVConnectorOutput(finished_recving=done, invalid_block_ids=bad)

    def _process(self) -> None:
        f = self.flight.popleft()
        self.now = max(self.now, f.done)
        result = model_output(f.output, f.sampled, self._reports())
        produced = self.sched.update_from_output(f.output, result)
        for client in produced.values():
            for o in client.outputs:
                self._output(o)

    def _output(self, o: Any) -> None:
        log = self.log.requests[o.request_id]
        if o.new_token_ids:
            log.progress(self.now, len(o.new_token_ids), self.log.gaps)
        if o.finish_reason is not None:
            log.done = self.now
            log.longest_wait = max(log.longest_wait, self.now - max(log.last, log.at))
            if str(o.finish_reason).lower() in ("error", "abort"):
                log.error = str(o.finish_reason).lower()
            request = self.live.pop(o.request_id)
            self.log.preemptions += request.num_preemptions
            self.high.pop(o.request_id, None)

    # ------------------------------------------------------------ loop

    def run(self, tick: Any = None) -> RunLog:
        """Until all is finished, the horizon is reached, or the engine makes no progress any more."""
        wall, cpu = time.perf_counter(), time.process_time()
        log, plan = self.log, self.plan
        limit = self.last_arrival + plan.horizon
        while True:
            self._arrive()
            if not self.live and not self.flight:
                if not self.arrivals:
                    log.ended = "all finished"
                    break
                self._jump(self.arrivals[0].at)
                continue
            if self.now > limit:
                log.ended = f"horizon: {plan.horizon:g} s after the last arrival"
                break
            if self.quiet >= plan.patience_calls and not self.arrivals:
                log.ended = f"no progress in {self.quiet} calls, nothing pending"
                break
            worked = True
            if self.live and len(self.flight) < plan.depth:
                worked = self._dispatch()
                if worked and len(self.flight) < plan.depth and self.flight[0].done > self.now:
                    continue
            if self.flight:
                self._process()
            if not worked and not self._in_flight():
                self._idle()
            if tick is not None and log.calls % 16 == 0:
                tick(self.now, len(log.requests), len(self.live))
        self._end(wall, cpu)
        return log

    def _idle(self) -> None:
        """Nothing runs: move on to the next thing that can happen outside."""
        nexts = [self.loading[0][0]] if self.loading else []
        # With no load under way the next call may do something: what has just been reported can run.
        if self.arrivals and (self.loading or self.quiet >= self.plan.patience_calls):
            nexts.append(self.arrivals[0].at)
        # The pause doubles while nothing happens, up to a second, so that deadlines can pass in few calls.
        step = self.now + min(1.0, self.latency.idle * 2.0 ** min(self.quiet, 30))
        self._jump(max(step, min(nexts)) if nexts else step)

    def _jump(self, to: float) -> None:
        if not self.live:
            self.moved_at = max(self.moved_at, to)  # an idle engine owes no progress
        self.now = max(self.now, to)

    def _sample(self) -> None:
        sched = self.sched
        fenced = sum(len(b) for _, b in getattr(sched, "deferred_frees", ()) if hasattr(b, "__len__"))
        self.log.fenced_block_seconds += fenced * self.series.since(self.now)
        if not self.series.due():
            return
        running, waiting = sched.get_request_counts()
        logs = self.log.requests
        silent = [logs[r].at for r in self.live if logs[r].first < 0]
        self.series.add(
            self.now, running, waiting, self.plan.blocks - self.pool_free() - fenced, fenced,
            len(self.loading), self.now - min(silent, default=self.now),
        )  # fmt: skip

    def _end(self, wall: float, cpu: float) -> None:
        log = self.log
        log.virtual, log.wall = self.now, time.perf_counter() - wall
        log.cpu = time.process_time() - cpu
        for rid, request in self.live.items():
            log.preemptions += request.num_preemptions
            one = log.requests[rid]
            one.longest_wait = max(one.longest_wait, self.now - max(one.last, one.at))
        if self.live:
            log.longest_engine_gap = max(log.longest_engine_gap, self.now - self.moved_at)
        log.fired = dict(getattr(self.sched, "sp_fired", None) or {})
        log.evictions = log.fired.get("Commit", 0)
        log.load_starts_delayed = log.fired.get("GateLoads", 0)
