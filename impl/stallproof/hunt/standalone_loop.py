"""Second half of a reproducer, after :mod:`stallproof.hunt.standalone_engine`: the loop, and its judge."""

# @if never
from __future__ import annotations

import sys
from collections import deque

from stallproof.hunt.standalone_engine import (
    SCENARIO,
    SimpleNamespace,
    make_request,
    make_scheduler,
    name,
    some_tokens,
)

PROPERTY = "@property@"

# @end

# ---------------------------------------------------------------- the engine's loop


class Run:
    def __init__(self, scenario):
        self.sc, self.e = scenario, scenario["engine"]
        self.sched = make_scheduler(self.e)
        self.connector = self.sched.connector
        self.manager = self.sched.kv_cache_manager
        self.pool = self.manager.block_pool
        self.size = self.e.get("block_size", 16)
        self.bugs = {}  # property -> what was seen first
        self.step, self.made, self.quiet, self.owed = 0, 0, 0, 0
        self.flight: deque = deque()  # steps in flight: output, who samples a token
        self.blocks = {}  # blocks that a step in flight may touch
        self.loads, self.sends, self.aborts = [], [], []
        self.live, self.objects, self.arrived, self.place = {}, {}, {}, {}
        self.ended, self.outputs, self.turns, self.passed = {}, {}, {}, {}
        self.streamed = [0] * len(scenario.get("stream", []))
        self.waiting = sorted(
            (
                (q.get("arrive", 0) + k * q.get("every", 0), name(q, k), q)
                for q in scenario["request"]
                for k in range(q.get("count", 1))
            ),
            key=lambda w: w[0],
        )
        self.all = {rid for _, rid, _ in self.waiting}
        self.must = {rid for _, rid, q in self.waiting if q.get("must_finish", True)}
        self.said, self.lines = None, 0
        self.asked, self.refused, self.victims, self.inside = "", {}, [], False
        self.watch()

    def found(self, prop, text):
        self.bugs.setdefault(prop, f"step {self.step}: {text}")

    # -------------------------------------------------------- what is watched inside a call

    def held(self, rid):
        return {b for group in self.manager.get_block_ids(rid) for b in group if b} if rid else set()

    # @if OneOwner StoreSafe XferSafe RefCount
    def tables(self):
        return {r: self.held(r) for r in self.sched.requests}

    # @end
    def watch(self):
        allocate, preempt = self.manager.allocate_slots, self.sched._preempt_request
        # @if OneOwner StoreSafe
        take = self.pool.get_new_blocks
        # @end
        # @if NoDoubleFree NoZeroPre
        free = self.pool.free_blocks
        released: list = []
        # @end

        def allocate_slots(request, *args, **kwargs):
            self.asked = rid = request.request_id
            # @if NoInversion
            had = bool(self.held(rid))
            # @end
            got = allocate(request, *args, **kwargs)
            if got is None:
                self.refused[rid] = self.place.get(rid, (0, 0.0))
                return got
            self.refused.pop(rid, None)
            # @if NoInversion
            ahead = [r for r, place in self.refused.items() if place < self.place.get(rid, (0, 0.0))]
            if self.inside and not had and self.held(rid) and ahead:
                self.found("NoInversion", f"{ahead[0]} was refused, {rid} behind it was given blocks")
            # @end
            return got

        def _preempt_request(request, *args, **kwargs):
            # @if NoZeroPre
            released.clear()
            # @end
            self.victims.append(request.request_id)
            preempt(request, *args, **kwargs)
            # @if NoZeroPre
            if self.inside and not released and request.request_id != self.asked:
                victim = request.request_id
                self.found("NoZeroPre", f"{victim} was preempted for {self.asked}, and no block came free")
            # @end

        # @if OneOwner StoreSafe
        def get_new_blocks(n):
            blocks = take(n)
            ids = {b.block_id for b in blocks}
            for r, mine in self.tables().items():
                if hit := ids & mine:
                    self.found("OneOwner", f"block {min(hit)} is handed out while {r} holds it")
            for send in self.sends:
                if hit := ids.intersection(send.blocks):
                    self.found("StoreSafe", f"block {min(hit)} of {send.r} is reused while it is read")
            return blocks

        # @end
        # @if NoDoubleFree NoZeroPre
        def free_blocks(blocks, *args, **kwargs):
            blocks = list(blocks)
            for b in blocks:
                if b.ref_cnt <= 0 and not b.is_null:
                    self.found("NoDoubleFree", f"block {b.block_id} is freed, which is free already")
            released.extend(blocks)
            return free(blocks, *args, **kwargs)

        # @end
        self.manager.allocate_slots, self.sched._preempt_request = allocate_slots, _preempt_request
        # @if OneOwner StoreSafe
        self.pool.get_new_blocks = get_new_blocks
        # @end
        # @if NoDoubleFree NoZeroPre
        self.pool.free_blocks = free_blocks
        # @end

    # @if OneOwner StoreSafe XferSafe RefCount
    def after_call(self):
        """Block tables after a call of the scheduler."""
        # @if XferSafe
        tables = self.tables()
        for x in self.loads:
            if x.script.get("mode", "async") == "sync" or not x.begun:
                continue
            gone = set(x.blocks) - tables.get(x.r, set())
            if gone:
                self.found("XferSafe", f"{x.r} gave up block {min(gone)}, which its load may still write")
                x.blocks = [b for b in x.blocks if b not in gone]
            for r, mine in tables.items():
                if r != x.r and (hit := mine.intersection(x.blocks)):
                    self.found("XferSafe", f"{r} holds block {min(hit)}, which a load of {x.r} writes")
        # @end
        # @if RefCount
        count: dict = {}
        for mine in self.tables().values():
            for b in mine:
                count[b] = count.get(b, 0) + 1
        for b, n in count.items():
            if (counted := self.pool.blocks[b].ref_cnt) < n:
                self.found("RefCount", f"{n} requests hold block {b}, its count is {counted}")
        # @end
        # @if StoreSafe
        for rid in self.connector.empty if self.connector is not None else ():
            self.found("StoreSafe", f"{rid} ended well and hands over nothing: no block of it is left")
        # @end

    # @end
    # @if InFlightSafe
    def touched(self, output):
        """Blocks that a step may read or write: those of its requests, as far as the window reaches."""
        ids = set(getattr(output, "new_block_ids_to_zero", None) or ())
        windows = self.e.get("groups") or [self.e.get("window", 0)]
        for r, n in output.num_scheduled_tokens.items():
            begin = self.sched.requests[r].num_computed_tokens - n
            for window, group in zip(windows, self.manager.get_block_ids(r), strict=False):
                first = max(0, begin - window + 1) // self.size if window else 0
                ids |= {b for b in group[first:] if b}
        return ids

    # @end
    # -------------------------------------------------------- the loop

    def go(self):
        try:
            self.loop()
        except Exception as exc:
            text = f"{type(exc).__name__}: {exc}"[:300]
            self.found(self.sc.get("death", "EngineDies"), f"the engine's loop dies: {text}")
            return
        self.judge()

    def loop(self):
        tail, depth = 0, self.e.get("depth", 2)
        for step in range(self.sc.get("steps", 400)):
            self.step = step
            self.happenings()
            if self.busy():
                self.dispatch()
            elif not self.flight and not self.waiting:
                self.asleep()
                tail += 1
                if tail > 64 and not self.pending():
                    break
                continue
            if self.flight and (len(self.flight) >= depth or not self.busy()):
                self.process()
            if not self.waiting and self.all <= set(self.ended):
                tail += 1
                if tail > 64:
                    break
        while self.flight:
            self.process()

    def busy(self):
        s = self.sched
        if hasattr(s, "has_requests"):
            return s.has_requests()
        return s.has_unfinished_requests() or s.has_finished_requests()

    def asleep(self):
        """Nothing to do for the engine: will anybody ask for what the connector has to report?"""
        due = [x for x in self.loads if x.script.get("outcome") != "lost"]
        due = [x for x in due if self.step - x.at >= x.script.get("delay", 2)]
        due += [x for x in self.sends if x.outcome != "lost" and x.at <= self.step]
        self.owed = self.owed + 1 if due and set(self.live) - set(self.ended) else 0
        if self.owed >= 16:
            self.found("BoundedWait", f"a completion is due for {self.owed} steps and nobody asks for it")

    def pending(self):
        """The connector still owes a report."""
        return any(x.script.get("outcome") != "lost" for x in self.loads) or any(
            x.outcome != "lost" for x in self.sends
        )

    def happenings(self):
        while self.waiting and self.waiting[0][0] <= self.step:
            _, rid, q = self.waiting.pop(0)
            self.add(rid, q)
            if q.get("abort", -1) >= 0:
                self.aborts.append((q["abort"], rid))
        # @if sessions
        for rid, q in list(self.live.items()):
            if q.get("turns") and rid not in self.ended:
                self.next_turn(rid, q)
        # @end
        # @if streams
        for i, stream in enumerate(self.sc.get("stream", [])):
            if self.step < stream.get("start", 0) or self.all <= set(self.ended):
                continue
            running = {x.request_id for x in self.sched.running}
            left = [r for r, q in self.live.items() if q is stream and r not in self.ended]
            for _ in range(stream.get("keep", 4) - len(set(left) - running)):
                self.add(f"{stream['id']}{self.streamed[i]}", stream)
                self.streamed[i] += 1
        # @end
        for when, rid in list(self.aborts):
            if when <= self.step:
                self.aborts.remove((when, rid))
                self.abort(rid)
        # @if aborts
        for rid, q in list(self.live.items()):
            if q.get("abort_on") and rid not in self.ended and self.state(rid) == q["abort_on"]:
                self.abort(rid)
        # @end
        # @if at
        for at in self.sc.get("at", []):
            if at["step"] == self.step:
                self.do(at["do"])
        # @end

    # @if sessions
    def next_turn(self, rid, q):
        """The next chunk of a streaming session, or its end after the last."""
        k, request = self.turns.get(rid, 0), self.sched.requests.get(rid)
        parked = request is not None and request.status.name == "WAITING_FOR_STREAMING_REQ"
        if k >= len(q["turns"]):
            if parked:
                self.end(rid)
                self.sched.add_request(self.request(rid, [], 1, q, resumable=False))
            return
        turn = q["turns"][k]
        if self.step >= turn["at"] if turn.get("at", -1) >= 0 else parked:
            self.turns[rid] = k + 1
            prompt = some_tokens(f"{rid}/{k}", turn["prompt"])
            self.sched.add_request(self.request(rid, prompt, turn.get("max_tokens", 1), q, resumable=True))

    # @end
    # @if aborts
    def state(self, rid):
        request = self.sched.requests.get(rid)
        if request is None or request.status.name not in ("RUNNING", "WAITING_FOR_REMOTE_KVS"):
            return ""
        if request.status.name == "RUNNING":
            return "running"
        return "received" if rid in self.sched.finished_recving_kv_req_ids else "loading"

    # @end
    # @if at
    def do(self, what):
        print(f"step {self.step}: {what}")
        if what in ("reset_cache", "reset_running", "must_reset_running"):
            self.sched.reset_prefix_cache(reset_running_requests=what != "reset_cache")
        else:
            from vllm.v1.core.sched.interface import PauseState

            names = {"pause_new": "PAUSED_NEW", "pause_all": "PAUSED_ALL", "resume": "UNPAUSED"}
            self.sched.set_pause_state(PauseState[names[what]])

    # @end
    def abort(self, rid):
        from vllm.v1.request import RequestStatus

        print(f"step {self.step}: the client of {rid} goes away")
        if rid in self.sched.requests:
            self.sched.finish_requests(rid, RequestStatus.FINISHED_ABORTED)
            # @if OneOwner StoreSafe XferSafe RefCount
            self.after_call()
            # @end
        self.end(rid)

    def add(self, rid, q):
        prompt = some_tokens(rid, q["prompt"])
        if q.get("prefix"):
            n = q.get("prefix_tokens", 0)
            prompt[:n] = some_tokens(f"prefix {q['prefix']}", n)
        session = bool(q.get("turns") or q.get("abandoned"))
        request = self.request(rid, prompt, q.get("max_tokens", 1), q, session)
        self.live[rid], self.objects[rid], self.arrived[rid] = q, request, self.step
        priority = q.get("priority", 0) if self.e.get("policy") == "priority" else 0
        self.place[rid] = (priority, request.arrival_time)
        self.sched.add_request(request)

    def request(self, rid, prompt, n, q, resumable):
        self.made += 1
        return make_request(rid, prompt, n, q, float(self.made), self.size, resumable)

    def end(self, rid):
        self.ended.setdefault(rid, self.step)

    # -------------------------------------------------------- one step

    def dispatch(self):
        if self.connector is not None:
            self.connector.step = self.step
        before = self.state_of_queues()
        self.refused, self.victims, self.inside = {}, [], True
        output = self.sched.schedule()
        self.inside = False
        tokens = output.num_scheduled_tokens
        meta = getattr(output, "kv_connector_metadata", None)
        self.starts(meta)
        samples = {}
        for rid in tokens:
            request = self.sched.requests[rid]
            known = request.num_tokens + request.num_output_placeholders
            samples[rid] = not getattr(request, "is_prefill_chunk", request.num_computed_tokens < known)
        self.sched.get_grammar_bitmask(output)
        self.say(tokens, meta)
        self.stuck(output, before != self.state_of_queues())
        # @if NoStarvation
        self.overtaken(tokens)
        # @end
        self.flight.append((output, samples))
        # @if InFlightSafe
        self.blocks[id(output)] = self.touched(output)
        # @end
        # @if OneOwner StoreSafe XferSafe RefCount
        self.after_call()
        # @end

    def state_of_queues(self):
        asked = dict(self.connector.asked) if self.connector is not None else {}
        return asked, {r: (q.status.name, len(self.held(r))) for r, q in self.sched.requests.items()}

    def starts(self, meta):
        """Loads begin as soon as the worker gets the step, whatever the device is doing."""
        if meta is None:
            return
        for x in meta.loads:
            x.at, x.begun = self.step, True
            # @if XferSafe
            if any(y.r == x.r and y.script.get("mode", "async") != "sync" for y in self.loads):
                self.found("XferSafe", f"a second load of {x.r} begins while the first is unfinished")
            # @end
            # @if InFlightSafe
            for output, _ in self.flight if x.script.get("mode", "async") != "sync" else ():
                if hit := self.blocks[id(output)].intersection(x.blocks):
                    text = f"a load of {x.r} writes block {min(hit)}, which a step in flight may touch"
                    self.found("InFlightSafe", text)
            # @end
            self.loads.append(x)
        for x in meta.sends:
            x.at = self.step + x.delay
            self.sends.append(x)

    def stuck(self, output, moved):
        """Work to do, nothing in flight, nothing pending outside, and the call does nothing."""
        paused = getattr(getattr(self.sched, "pause_state", None), "name", "UNPAUSED") != "UNPAUSED"
        busy = (
            output.total_num_scheduled_tokens or moved or paused or self.pending()
            or any(f[0].total_num_scheduled_tokens for f in self.flight)
            or not set(self.live) - set(self.ended)
            or any(q.status.name.startswith("WAITING_FOR_S") for q in self.sched.requests.values())
        )  # fmt: skip
        self.quiet = 0 if busy else self.quiet + 1
        if self.quiet >= 3:
            left = ", ".join(sorted(set(self.live) - set(self.ended))[:6])
            free = self.pool.get_num_free_blocks()
            text = f"{left} unfinished, {free} blocks free, nothing in flight or pending, nothing is done"
            self.found("NoWedge", text)

    # @if NoStarvation
    def overtaken(self, tokens):
        """Requests that could run, and others behind them that do instead, call after call."""
        last = max((self.place[r] for r in tokens if r in self.place), default=None)
        for r in tokens:
            self.passed.pop(r, None)
        for r, request in self.sched.requests.items():
            if r in tokens or r in self.ended or request.is_finished() or self.outside(r):
                continue
            if last is not None and self.place[r] < last:
                self.passed[r] = self.passed.get(r, 0) + 1
                if self.passed[r] >= 64:
                    text = f"{r} could run and got nothing in 64 calls, others behind it ran in each"
                    self.found("NoStarvation", text)
            else:
                self.passed.pop(r, None)

    # @end
    def outside(self, rid):
        """It waits for something other than the scheduler."""
        request = self.sched.requests.get(rid)
        if request is None or request.is_finished():
            return False
        name = request.status.name
        if name == "WAITING_FOR_REMOTE_KVS":
            return rid not in self.sched.finished_recving_kv_req_ids
        script = (request.kv_transfer_params or {}).get("script", {})
        return name.startswith("WAITING_FOR_S") or (
            self.connector is not None and script.get("defer", 0) > self.connector.asked.get(rid, 0)
        )

    def process(self):
        from vllm.v1.outputs import ModelRunnerOutput

        output, samples = self.flight.popleft()
        ids = list(output.num_scheduled_tokens)
        result = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={r: i for i, r in enumerate(ids)},
            sampled_token_ids=[
                [3 + (len(r) + self.outputs.get(r, 0)) % 500] if samples.get(r) else [] for r in ids
            ],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
            kv_connector_output=self.reports(),
        )
        for client in self.sched.update_from_output(output, result).values():
            for o in client.outputs:
                self.outputs[o.request_id] = self.outputs.get(o.request_id, 0) + len(o.new_token_ids)
                q = self.live.get(o.request_id, {})
                if o.finish_reason is not None and not (q.get("turns") or q.get("abandoned")):
                    self.end(o.request_id)
        for rid, request in self.objects.items():
            if request.is_finished():
                self.end(rid)
        # @if OneOwner StoreSafe XferSafe RefCount
        self.after_call()
        # @end

    def reports(self):
        """What the connector's worker reports with this step."""
        if self.connector is None:
            return None
        from vllm.v1.outputs import KVConnectorOutput

        recv, sent, bad, left = set(), set(), set(), []
        failed: set = set()
        for x in self.loads:
            outcome, sync = x.script.get("outcome", "ok"), x.script.get("mode") == "sync"
            if outcome == "lost" or (self.step - x.at < x.script.get("delay", 2) and not sync):
                left.append(x)
                continue
            if outcome in ("fail", "fail_silent"):
                bad.update(x.blocks)
            elif outcome == "partial":
                bad.update(x.blocks[len(x.blocks) // 2 :])
            elif outcome == "duplicate":
                again = dict(x.script, outcome="ok", delay=1)
                left.append(SimpleNamespace(r=x.r, blocks=x.blocks, script=again, at=self.step, begun=False))
            if outcome != "fail_silent" and not sync:
                recv.add(x.r)
        self.loads = left
        for x in [x for x in self.sends if x.at <= self.step and x.outcome != "lost"]:
            self.sends.remove(x)
            sent.add(x.r)
            if x.outcome == "duplicate":
                self.sends.append(SimpleNamespace(r=x.r, blocks=[], at=self.step + 1, outcome="ok"))
            if x.outcome == "with_recv":
                recv.add(x.r)
        for raw in self.sc.get("report", []):
            if raw["step"] == self.step:
                {"recv": recv, "sent": sent, "failed": failed}[raw["kind"]].add(raw["id"])
        if not (recv or sent or bad or failed):
            return None
        said = (("received", recv), ("sent", sent), ("bad blocks", bad), ("failed", failed))
        print(f"step {self.step}: the connector reports", *(f"{n} {sorted(x)}" for n, x in said if x))
        extra = (
            {"failed_recving": failed} if failed and hasattr(KVConnectorOutput(), "failed_recving") else {}
        )
        return KVConnectorOutput(
            finished_recving=recv or None, finished_sending=sent or None, invalid_block_ids=bad, **extra
        )

    # -------------------------------------------------------- at the end

    def judge(self):
        free, pool = self.pool.get_num_free_blocks(), self.e["blocks"]
        if not set(self.live) - set(self.ended) and not self.pending() and free != pool:
            self.found("NoLeak", f"all requests have ended, {pool - free} blocks never came back")
        left = sorted(self.must - set(self.ended))
        if not left:
            return
        text = f"{', '.join(left[:6])} not finished after {self.step + 1} steps"
        later = {
            r: sum(at > self.arrived.get(r, 1 << 30) and x in self.ended for x, at in self.arrived.items())
            for r in left
        }
        waits = [r for r in left if self.outside(r)]
        if waits:
            self.found("BoundedWait", f"{waits[0]} waits for an answer that never comes: {text}")
        r = max(left, key=lambda x: later[x])
        if self.sc.get("stream") and later[r] >= 16:
            self.found("NoStarvation", f"{text}; {later[r]} later arrivals finished before {r}")
        elif self.quiet < 3 and set(left) - set(waits):
            self.found("Termination", text)

    def say(self, tokens, meta):
        """One line for a step that differs from the one before."""
        loads = [x.r for x in meta.loads] if meta is not None else []
        now = (sorted(tokens), self.victims, loads, self.pool.get_num_free_blocks(), sorted(self.refused))
        if now == self.said or self.lines > 120:
            return
        self.said, self.lines = now, self.lines + 1
        line = f"step {self.step}: tokens {dict(tokens) or 'none'}, {now[3]} blocks free"
        for what, who in (("refused", now[4]), ("preempted", self.victims), ("loading", loads)):
            line += f", {what} {', '.join(who)}" if who else ""
        print(line)


# @if script
def main():
    try:
        import vllm

        run = Run(SCENARIO)
    except Exception as exc:
        print(f"cannot run: {type(exc).__name__}: {exc}")
        return 2
    print(
        f"vLLM {vllm.__version__}, {type(run.sched).__name__}, {SCENARIO['engine']['blocks']} usable blocks"
    )
    run.go()
    if PROPERTY in run.bugs:
        print(f"FAULT: {PROPERTY}: {run.bugs[PROPERTY]}")
        return 1
    print(f"no fault: {PROPERTY} holds; {len(run.all & set(run.ended))} of {len(run.all)} requests ended")
    return 0


if __name__ == "__main__":
    sys.exit(main())
# @end
