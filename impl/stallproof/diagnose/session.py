"""From inputs to engines: dispatches every candidate line, keeps what belongs to a whole instance."""

from __future__ import annotations

import math
from collections.abc import Callable

from . import dump as dumps
from . import parse
from .bare import contradiction, judge_bare, judge_scrape, judge_snapshot, leak_on_idle, unanswered
from .engine import IDLE, INTERVAL, PROGRESSING, STALLED, UNKNOWN, Engine, Finding, Quiet, Tally
from .evidence import Result, ev, found, hang, shm
from .judge import judge_quiet
from .metrics import Scrape, Scrapes, version_hints
from .observe import KEEP, NAN, Obs, Ref, Stats
from .prefix import Prefix
from .reader import Control
from .stacks import Stacks, Thread
from .version import Version

#: what a kind of line says about the configuration
_FACTS = {
    kind: facts
    for facts, kinds in (
        (
            "connector",
            "recv parked sent pull_failed force_freed transfers p_not_ready producer_timeout load_recovered",
        ),
        ("connector", "load_failing transport"),
        ("connector nixl", "lease read_after_free"),
        ("connector ascend", "delay_free received lookup no_preempt ascend_delayed"),
        ("spec", "spec"),
    )
    for kind in kinds.split()
}
_GLOBAL = frozenset({"client_timeout", "router_prefill", "router_prefilled", "router_decode"})
MAX_THREADS = 400


class Instance:
    """One serving instance: its engines and what its lines say about all of them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.version = Version()
        self.engines: dict[int, Engine] = {}
        self.total = Tally()
        self.facts: set[str] = set()
        self.threads: list[Thread] = []
        self.scrapes = Scrapes()
        self.dump: dumps.Dump | None = None
        self.dump_obs: Obs | None = None
        self.rpc_timeout = 300.0
        self.core_pid = 0
        self.paused: Obs | None = None
        self.delayed = 0
        self.delayed_ids: dict[str, int] = {}
        self.preempted: dict[str, int] = {}
        self.kv_batches = 0
        self.first_t = NAN
        self.end = NAN
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        self.clock_jumps = 0
        self.offset = NAN
        self.records = 0

    # ------------------------------------------------------------ lines

    def engine(self, index: int) -> Engine:
        e = self.engines.get(index)
        if e is None:
            if len(self.engines) >= 1024:
                return next(iter(self.engines.values()))
            e = self.engines[index] = Engine(index, self.version)
            e.tally.merge(self.total)
            e.paused = self.paused
        return e

    def line(self, raw: bytes, prefix: Prefix, stacks: Stacks, ref: Callable[[], Ref]) -> None:
        """One candidate line of a text input."""
        if raw[:1] in (b"T", b"P", b" ", b"\t", b"C") and self._stack_line(raw, stacks, ref):
            return
        if raw.startswith((b"vllm:", b"# ")) and b"vllm:" in raw:
            if raw[0] != 35:
                self._scraped(self.scrapes.feed(raw.decode("utf-8", "replace"), ref(), NAN))
            return
        line = prefix.parse(raw)
        if line.t == line.t:
            if self.first_t != self.first_t:
                self.first_t = line.t
            self.end = line.t
        text = line.text
        if (b"throughput" in text or b"unning" in text) and (s := parse.stats(line, ref)) is not None:
            self.records += 1
            parse.version_of(line, s, self.version)
            self.stats(s)
            return
        at = text.find(b"vllm:")
        if at >= 0 and text[at + 5 : at + 6].isalpha() and not line.file:
            self._scraped(self.scrapes.feed(text[at:].decode("utf-8", "replace"), ref(), line.t))
            return
        if line.process == "EngineCore" and line.pid:
            self.core_pid = line.pid
        if line.process.endswith("orker") and self.total.has("shm") and b"broadcast block" not in text:
            self.observe(Obs(kind="worker_line", ref=ref(), t=line.t, engine=-1), text, line.process)
        for o in parse.observe(line, ref):
            self.records += 1
            self.observe(o, text, line.process)

    def _stack_line(self, raw: bytes, stacks: Stacks, ref: Callable[[], Ref]) -> bool:
        text = raw.decode("utf-8", "replace").rstrip("\r")
        r = ref()
        is_head, done = stacks.header(text, r) if raw[:1] in (b"T", b"P", b"C") else (False, None)
        if not is_head and raw[:1] in (b" ", b"\t"):
            is_head, done = stacks.frame(text, r)
        if done is not None:
            self.thread(done)
        return is_head

    def thread(self, t: Thread) -> None:
        """A finished stack."""
        if len(self.threads) < MAX_THREADS:
            self.threads.append(t)

    def stack_states(self) -> dict[str, list[Thread]]:
        """Threads by what they are doing; unclassified ones left out."""
        out: dict[str, list[Thread]] = {}
        for t in self.threads:
            if t.state:
                out.setdefault(t.state, []).append(t)
        return out

    # ------------------------------------------------------------ observations

    def observe(self, o: Obs, text: bytes, process: str) -> None:
        """File one observation with the instance and the engines it concerns."""
        kind = o.kind
        if kind in ("crash", "assertion") and process.lower() == "apiserver":
            return  # one request's error in the front end, not the engine's
        if fact := _FACTS.get(kind):
            self.facts.update(fact.split())
        if kind in ("startup", "dump_config"):
            self.version.state(str(o.data["what"]), f"'{kind}' record")
        if kind == "lease":
            self.version.narrow(
                **({"hi": (0, 22, 9)} if o.data["old"] else {"lo": (0, 23, 0)}),
                why="wording of the lease record",
            )
        if kind == "shm":
            o.data["worker"] = process.lower().endswith("worker")
        if kind == "dump":
            self.dump = dumps.parse(text.decode("utf-8", "replace"))
            self.dump_obs = o
        elif kind == "dump_stats":
            self._dump_stats(o, text)
        elif kind == "delay_free":
            self.delayed += o.data["n"]
            if len(self.delayed_ids) < 2000:
                self.delayed_ids[o.data["id"]] = o.data["n"]
        elif kind in ("sent", "force_freed", "lease", "producer_timeout"):
            self.delayed_ids.pop(o.data["id"], None)
        elif kind == "preempted":
            if o.data["id"] in self.preempted or len(self.preempted) < 2000:
                self.preempted[o.data["id"]] = self.preempted.get(o.data["id"], 0) + 1
        elif kind in ("pause", "pausing", "sleep"):
            up = str(o.data.get("what", "")).upper().startswith("UNPAUSE")
            self._pause(None if up else o)
        elif kind == "wake" or kind == "startup":
            self._pause(None)
        self.total.add(o)
        if kind in _GLOBAL:
            return
        targets = (
            [self.engine(o.engine)] if o.engine >= 0 and kind != "startup" else list(self.engines.values())
        )
        if kind == "iteration":
            self._iteration(o)
            return
        for e in targets:
            if kind == "startup":
                self._restart(e, o)
            e.tally.add(o)

    def _pause(self, o: Obs | None) -> None:
        self.paused = o
        if o is not None:
            self.facts.add("paused")
        for e in self.engines.values():
            e.paused = o

    def _restart(self, e: Engine, o: Obs) -> None:
        """The server starts again: whatever was open ends here."""
        self._close(e, o.t, None)
        self._died(e, o.t)
        e.progress(o)
        e.prev = None
        e.idle = None
        self.threads.clear()

    def _iteration(self, o: Obs) -> None:
        d = o.data
        e = self.engine(d["engine"] if d["engine"] >= 0 else max(o.engine, 0))
        self.version.narrow(
            **({"lo": (0, 26, 0)} if d["api"] else {"lo": (0, 14, 0), "hi": (0, 25, 9)}),
            why="wording of the iteration record",
        )
        before = e.iteration
        e.iteration = o
        if d["ctx_tokens"] + d["gen_tokens"] > 0:
            if e.quiet is not None:
                e.quiet = None
            e.progress(o)
            t0 = before.t if before is not None and before.t == before.t else o.t
            e.interval(PROGRESSING, t0, o.t, o.ref, o.ref, "steps with tokens")
        else:
            e.empty_steps += 1

    def _dump_stats(self, o: Obs, text: bytes) -> None:
        d = dumps.parse_stats(text[:65536].decode("utf-8", "replace"))
        if "num_running_reqs" not in d:
            return
        kv = d.get("kv_cache_usage", d.get("gpu_cache_usage", NAN))
        skipped = d.get("num_skipped_waiting_reqs")
        s = Stats(
            ref=o.ref, t=o.t, engine=max(o.engine, 0), running=int(d["num_running_reqs"]),
            waiting=int(d.get("num_waiting_reqs", 0) + (skipped or 0)),
            deferred=None if skipped is None else int(skipped), kv=kv * 100, level="DUMP",
        )  # fmt: skip
        if self.dump is not None:
            self.dump.stats = dict(d)
        e = self.engine(s.engine)
        if e.prev is None:
            e.prev = s

    # ------------------------------------------------------------ statistics

    def stats(self, s: Stats) -> None:
        """One statistics record."""
        e = self.engine(s.engine)
        e.records += 1
        if s.ext_hit == s.ext_hit:
            self.facts.add("connector")
        if b"MM cache" in s.ref.raw:
            self.facts.add("mm")
        if len(self.engines) > 1:
            self.facts.add("dp")
        if s.tokens != s.tokens:
            # quoted without its throughput: a moment, not an interval
            e.snapshot = s
            return
        prev, e.prev = e.prev, s
        start = s.t - INTERVAL if s.level != "METRICS" else s.t
        if e.paused is not None and s.zero:
            e.interval(IDLE, start, s.t, s.ref, s.ref, "paused or asleep")
            e.quiet = None
            return
        if not s.zero:
            self._close(e, s.t, s)
            if e.tally.has("rpc_timeout", "engine_dead", "dump"):
                self._died(e, s.t)  # fatal: tokens after it are another process's
            e.progress(s)
            if e.paused is not None:
                self._pause(None)
            if _self_preempted(prev, s):
                e.self_preempt = (prev, s)  # type: ignore[assignment]
            e.interval(PROGRESSING, start, s.t, s.ref, s.ref)
            if e.peak is None or s.kv > e.peak.kv:
                e.peak = s
            if s.kv >= 95 and s.waiting > 0:
                e.overload = [*e.overload[:1], s] if e.overload else [s]
            return
        if s.running == 0 and s.waiting <= 0:
            if e.quiet is not None:
                self._close(e, s.t, s)
            if e.idle is None or prev is None or prev.t != s.t:
                e.idle_lines += 1
            e.idle = s
            e.interval(IDLE, start, s.t, s.ref, s.ref)
            return
        if _self_preempted(prev, s):
            e.self_preempt = (prev, s)  # type: ignore[assignment]
        e.idle = None
        e.idle_lines = 0
        if e.quiet is None:
            before = prev if prev is not None and not prev.zero else None
            e.quiet = Quiet(s, before.t if before is not None else start, before)
        else:
            e.quiet.add(s)

    def _close(self, e: Engine, end: float, closed: Stats | None) -> None:
        """End the open stretch of ``e``, with its verdict."""
        q = e.quiet
        if q is not None:
            e.quiet = None
            r = judge_quiet(q, e, self, end, closed)
            # an open end reaches to the last line; a closed one to the record that closed it
            t1 = end if end == end else q.last.t
            e.interval(r.verdict, q.start, t1, q.first.ref, q.last.ref, r.why)
            self._keep(e, r, final=closed is None)
        if closed is not None and not closed.zero:
            e.idle = None
            e.idle_lines = 0

    def _keep(self, e: Engine, r: Result, final: bool) -> None:
        if r.finding is not None:
            same = next((f for f in e.findings if f.rule == r.finding.rule), None)
            if same is None:
                r.finding.note = r.finding.note or ""
                e.findings.append(r.finding)
            else:
                same.evidence = (same.evidence + r.finding.evidence[-1:])[:12]
        if final and r.missing is not None:
            e.missing = r.missing

    def _scraped(self, done: list[Scrape]) -> None:
        for c in done:
            e = self.engine(c.engine)
            hint = version_hints(c)
            if hint is not None:
                self.version.narrow(lo=hint[0], why=hint[1])
            if any(k.startswith(("nixl", "external_prefix")) for k in c.values):
                self.facts.add("connector")
            s = c.stats()
            last, e.last_scrape = e.last_scrape, c
            e.scrapes += 1
            e.records += 1
            self.records += 1
            if last is not None:
                grown = c.progress - last.progress
                s.gen = 0.0 if not grown > 0 else grown
                if math.isnan(grown) and (s.running, s.waiting) != (
                    last.stats().running,
                    last.stats().waiting,
                ):
                    s.gen = NAN
                if c.asleep:
                    e.interval(IDLE, s.t, s.t, s.ref, s.ref, "asleep")
                    continue
                if s.tokens == s.tokens:
                    self.stats(s)
                queries = "prefix_cache_queries_total"
                if e.quiet is not None and c.get(queries) > last.get(queries):
                    e.quiet.hit_moved += 1

    # ------------------------------------------------------------ the end

    def finish(self, tail: float) -> None:
        """Judge what is open. ``tail``: time of the last stamped line of the input, nan if none."""
        self._scraped(self.scrapes.flush())
        end = tail if tail == tail else self.end
        if not self.engines and (self.total.order or self.threads or self.kv_batches):
            self.engine(0)
        for e in list(self.engines.values()):
            self._finish(e, end)
        self._instance_findings()

    def _finish(self, e: Engine, end: float) -> None:
        if e.quiet is not None:
            self._close(e, end, None)
        elif e.idle is not None and self._died(e, end):
            pass
        elif e.idle is not None:
            r = contradiction(e.idle, e, self, e.idle_lines) or unanswered(e.idle, e, end)
            if r is None and e.idle.level != "METRICS":
                r = leak_on_idle(e.idle, e, self, e.idle_lines)
            if r is not None:
                s = e.idle
                if r.verdict == STALLED:
                    e.intervals = e.intervals[:-1]
                e.interval(r.verdict, s.t, end if end == end else s.t, s.ref, s.ref, r.why)
                self._keep(e, r, final=True)
            else:
                iv = e.intervals[-1]
                if end == end:
                    iv.t1 = max(end, iv.t1) if iv.t1 == iv.t1 else end
                if e.idle.kv >= 1.0:
                    e.notes.append(
                        f"KV usage {e.idle.kv:.1f} % while nothing runs and nothing waits: a stale record, "
                        "sends in flight or held blocks; POST /reset_prefix_cache tells"
                    )
        elif e.scrapes == 1 and e.last_scrape is not None and not e.intervals:
            s = e.last_scrape.stats()
            r = judge_scrape(e.last_scrape, s, e, self)
            e.interval(r.verdict, s.t, s.t, s.ref, s.ref, r.why)
            self._keep(e, r, final=True)
        elif e.snapshot is not None and not e.intervals:
            s = e.snapshot
            r = judge_snapshot(s, e, self)
            e.interval(r.verdict, s.t, s.t, s.ref, s.ref, r.why)
            self._keep(e, r, final=True)
        elif e.records == 0 and (not e.intervals or e.iteration is not None):
            r = judge_bare(e, self, end)
            o = e.iteration or next(iter(e.tally.first.values()), None)
            ref = o.ref if o is not None else self.threads[0].ref if self.threads else Ref(self.name, 0)
            e.interval(r.verdict, o.t if o is not None else NAN, end, ref, ref, r.why)
            self._keep(e, r, final=True)
        else:
            self._died(e, end)
        if (
            e.intervals
            and e.intervals[-1].verdict == UNKNOWN
            and e.missing is None
            and e.verdict() != STALLED
        ):
            r = judge_bare(e, self, end)
            e.missing = r.missing

    def _died(self, e: Engine, end: float) -> bool:
        """After the last record with tokens: a time-out, a dump or a death; none leaves a quiet record."""
        f = hang(e, self) or (shm(e) if e.records else None)
        if f is None or any(
            same.rule == f.rule and same.evidence[-1].ref == f.evidence[-1].ref for same in e.findings
        ):
            return False
        last = e.prev
        at = f.evidence[-1].ref
        if last is not None:
            f.evidence.insert(0, ev(last, "the last record"))
            if last.t == last.t and last.level != "DUMP":
                f.onset, f.note = (
                    (last.t - INTERVAL, max(last.t, f.onset[1]) if f.onset[1] == f.onset[1] else end),
                    "",
                )
        start = last.t if last is not None else f.onset[0]
        why = "the step did not come back, or the engine is gone"
        e.interval(STALLED, start, end, last.ref if last is not None else at, at, why)
        e.findings.append(f)
        return True

    def _instance_findings(self) -> None:
        t = self.total
        any_engine = next(iter(self.engines.values()), None)
        if any_engine is None:
            return
        if t.has("read_after_free"):
            o = t.first["read_after_free"]
            evidence = [ev(o, "a peer fetched blocks of a request that was already released")]
            early = next(
                (x for x in t.some.get("lease", []) if x.data["id"] == o.data["id"]), t.last.get("lease")
            )
            if early is not None:
                evidence.insert(0, ev(early, "the lease had expired"))
            ids = list(t.ids["read_after_free"])[:20]
            self.findings.append(
                found("read_after_free", "read-after-lease", evidence, any_engine, concerned=ids,
                      count=t.n("read_after_free"), onset=(early.t if early else NAN, o.t), confidence="high")
            )  # fmt: skip
        unread = [o for o in t.some.get("lease", []) if o.data["n"] == 0]
        if unread and not t.has("read_after_free"):
            self.findings.append(
                found("lease_expired", "lease-without-reader",
                      [ev(unread[0], "expired with no reader"), ev(unread[-1], "the last one")], any_engine,
                      concerned=list(t.ids["lease"])[:20], count=len(unread),
                      onset=(unread[0].t, unread[-1].t))
            )  # fmt: skip
        thrash = [(i, n) for i, n in self.preempted.items() if n >= 5]
        if thrash:
            i, n = max(thrash, key=lambda x: x[1])
            self.notes.append(f"{len(thrash)} requests were pre-empted five times or more ({i}: {n})")
        for kind, text in (
            (
                "client_timeout",
                "clients or proxies report time-outs ({n} lines): look there first where the engine is "
                "progressing or idle",
            ),
            (
                "p_not_ready",
                "the prefill side was not ready {n} times; a request that goes on afterwards may decode "
                "on KV that never arrived (vLLM #5660): compare its output",
            ),
            ("load_recovered", "load failures were recovered by recomputing ({n} records)"),
            ("load_failing", "requests were failed because of load failures ({n} records)"),
            (
                "no_preempt",
                "pre-emption is disabled on this prefill node (vllm-ascend 0.23.0): holders have no way out",
            ),
        ):
            if t.has(kind):
                self.notes.append(text.format(n=t.n(kind)))
        n = t.n("router_prefilled") - t.n("router_decode")
        if n > 0:
            self.notes.append(f"router: {n} prefills completed whose decode request was not sent")


def _self_preempted(prev: Stats | None, s: Stats) -> bool:
    """KV usage fell from high to nothing, and what ran alone waits again: a finished request would not wait.

    More that wait than ran: some are newcomers, so all may be.
    """
    return (
        prev is not None
        and s.running == 0
        and prev.running == 1
        and s.waiting == prev.waiting + 1 >= 1
        and s.kv <= 1.0
        and not s.deferred
        and prev.kv >= 30.0
        and (prev.kv >= 70.0 or not prev.zero)
    )


def read_lines(inst: Instance, name: str, lines: object, control: Control) -> float:
    """Feed one text input; returns the time of its last stamped line."""
    prefix, stacks = Prefix(), Stacks()
    for number, raw in lines:  # type: ignore[attr-defined]
        cached: list[Ref] = []

        def ref(number: int = number, raw: bytes = raw, cached: list[Ref] = cached) -> Ref:
            if not cached:
                cached.append(Ref(name, number, raw[:KEEP]))
            return cached[0]

        inst.line(raw, prefix, stacks, ref)
    last = stacks.flush()
    if last is not None:
        inst.thread(last)
    inst.clock_jumps += prefix.clock.jumps
    inst.offset = prefix.offset
    if inst.end != inst.end:
        return NAN
    # answers to streamed requests are logged when they begin: arrivals, where the log has no request records
    for e in list(inst.engines.values()):
        if e.quiet is not None and not e.tally.has("add"):
            for n, (t, back, raw) in enumerate(prefix.posts(control.tail, e.quiet.last.t)[:40]):
                where = Ref(name, control.lines - back, raw[:KEEP])
                e.tally.add(Obs(kind="add", ref=where, t=t, data={"id": f"POST {n + 1}"}))
    tail = prefix.last_time(control.tail)
    return max(tail, inst.end) if tail == tail else inst.end
