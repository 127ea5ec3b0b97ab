"""One case of a hunt, in the engine's process: the harness's run, its coverage, and the cause of a failure.

A case runs as ``stallproof run`` runs a scenario, with the same two judges. What is added here only looks.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import Any

import msgspec

from stallproof.harness.drive import Run
from stallproof.hunt.space import oversize
from stallproof.scenario import Request, Scenario
from stallproof.scenario.model import PROPERTIES
from stallproof.trace import schema as T

#: what a hunt reports; NoInversion is not among them, since every stock release breaks it by design somewhere
REPORTED = tuple(p for p in PROPERTIES if p != "NoInversion")
#: properties about requests that do not get on
LIVENESS = frozenset(("NoWedge", "Termination", "NoStarvation", "BoundedWait", "Feasible"))
#: calls in a row without any change that end a run; longer than the deadlines of the harness (64)
_STILL = 80
_IDLE = {"NotYet", "Refuse", "Wait"}
_NAMES = re.compile(r"\b(?:send-)?[rn]\d+x\d*\b")
_LIST = re.compile(r"\bR(?:(?:, | and )(?:R|N more))+")


def plain(text: str) -> str:
    """``text`` without names of requests, numbers and the place in a recording."""
    text = re.sub(r"^(?:trace line \d+|step \d+): ", "", text)
    text = re.sub(r"\d+", "N", _NAMES.sub("R", text))
    return _LIST.sub("R", re.sub(r"\bN(?:, N)+\b", "N", text))


class Outcome(msgspec.Struct, kw_only=True):
    """What one case showed."""

    causes: dict[str, str]  #: property -> signature of its cause
    texts: dict[str, str]  #: property -> what the judge said
    when: dict[str, int]  #: property -> step of the run
    steps: int
    coverage: set[int]
    tokens: int = 0
    fired: dict[str, int] = {}


class _Look:
    """Sees every record: coverage of behaviour, and what happened last to each block."""

    def __init__(self, run: HuntRun) -> None:
        self.run = run
        self.seen: set[Any] = set()
        self.block: dict[int, str] = {}  # block -> how it was released last
        self.fate: dict[str, str] = {}  # request -> what made it give blocks up
        self.refused: list[frozenset[str]] = []
        self.still = 0
        self.told = 0
        self.before: Any = ()
        self.after: dict[str, str] = {}  # property of the ledger -> signature

    def __call__(self, record: Any) -> None:
        if isinstance(record, T.Note):
            return
        kinds = [type(e).__name__ for e in record.ev]
        self.seen.update(pairwise(kinds))
        for e in record.ev:
            self._event(e)
        if isinstance(record, T.Sched):
            self._call(record)
        if set(kinds) - _IDLE or (isinstance(record, T.Sched) and record.total):
            self.still = 0
        self._violations()

    def _call(self, record: T.Sched) -> None:
        why = frozenset(e.why for e in record.ev if type(e) is T.Refuse)
        self.refused = [*self.refused[-2:], why]
        self.still += 1
        run, s = self.run, self.run.sched
        skipped = len(getattr(s, "skipped_waiting", ()) or ())
        state = (
            min(3, len(s.running)), min(3, len(s.waiting)), min(2, skipped), min(2, run.rec.probe.free()),
            len(run.flight), bool(run.loads), bool(run.sends),
            frozenset(q.status.name for q in s.requests.values()),
        )  # fmt: skip
        what = frozenset(type(e).__name__ for e in record.ev)
        self.seen.add((state, why))
        self.seen.add((what, why, bool(record.total)))
        self.seen.add((self.before, state[:4]))
        self.before = state[:4]
        for n in run.watch.passed.values():
            self.seen.add(("passed", n.bit_length()))
        self.seen.add(("quiet", run.quiet))

    def _event(self, e: Any) -> None:
        kind = type(e)
        if kind is T.Finish:
            self.fate[e.r] = f"finish {e.reason}"
        elif kind in (T.Preempt, T.Evict):
            self.fate[e.r] = kind.__name__.lower()
        elif kind is T.Admit or kind is T.Load:
            self.fate.pop(e.r, None)
        elif kind in (T.Free, T.Prune, T.Fence, T.Drain):
            how = kind.__name__.lower()
            fate = self.fate.get(e.r, "") if kind is not T.Drain else ""
            for b in e.blocks:
                self.block[b] = f"{how} {fate}".strip()

    def _violations(self) -> None:
        second = self.run.second
        assert second is not None
        for v in second.violations[self.told :]:
            if v.layer == "ledger" and v.rule not in self.after:
                how = sorted({self.block[b] for b in v.blocks if b in self.block})
                self.after[v.rule] = plain(v.text) + (f" | given up by: {', '.join(how)}" if how else "")
        self.told = len(second.violations)


class HuntRun(Run):
    """A run that ends when nothing more can happen, and can say why it failed."""

    def __init__(self, scenario: Scenario, cls: type, version: str, name: str, config: Any) -> None:
        super().__init__(scenario, cls, version, name, None, every=8, config=config)
        self.look = _Look(self)
        self.frozen: dict[str, str] = {}
        put = self.rec.put

        def three(record: Any) -> None:
            put(record)
            self.look(record)

        self.rec.put = three
        self.horizon = max([0, *(a.step for a in scenario.at), *(r.step for r in scenario.report)])

    def _settled(self) -> bool:
        if self.watch.findings and self._freeze():
            return True
        if self.waiting or self.step <= self.horizon or self.flight:
            return False
        if self.look.still > _STILL and not self._pending():
            return True
        return (
            self.all <= set(self.ended)
            and not (self.loads or self.sends or self._has_requests())
            and self.rec.probe.free() == self.sc.engine.blocks
        )

    def _freeze(self) -> bool:
        """Keep the state in which a stall was found; whether the rest is pointless."""
        for prop in ("NoWedge", "NoStarvation", "BoundedWait"):
            if prop in self.watch.findings:
                self.frozen.setdefault(prop, self._state())
                return True
        return False

    # ------------------------------------------------------------ causes

    def outcome(self) -> Outcome:
        """After :meth:`go` and the end of the recording."""
        assert self.second is not None
        found = dict(self.result.violated)
        for prop, text in self.second.found().items():
            found.setdefault(prop, text)
        found = {p: t for p, t in found.items() if p in REPORTED or (p not in PROPERTIES and self._ours())}
        causes = {p: self._cause(p, t) for p, t in found.items()}
        self._consequences(causes)
        steps = {f.prop: f.step for f in self.watch.findings.values()}
        seen = self.look.seen | {("fired", k, n.bit_length()) for k, n in self.result.fired.items()}
        return Outcome(
            causes=causes,
            texts={p: found[p] for p in causes},
            when={p: steps.get(p, self.step) for p in causes},
            steps=self.step + 1,
            coverage={hash_of(x) for x in seen},
            tokens=self.result.tokens,
            fired=self.result.fired,
        )

    def _ours(self) -> bool:
        """Rules of ours are in force: breaking one is a finding, too."""
        return bool(getattr(self.sched, "sp_rules", ()))

    def _consequences(self, causes: dict[str, str]) -> None:
        """What follows from a wait that never ends, or from a death, is not a finding of its own."""
        if "BoundedWait" in causes and self._outsiders():
            for p in ("NoWedge", "Termination", "NoStarvation"):
                causes.pop(p, None)
        if "NoWedge" in causes:
            causes.pop("Termination", None)

    def _cause(self, prop: str, text: str) -> str:
        if self.death is not None and text.partition(": ")[2].startswith("the engine's loop dies"):
            return f"{type(self.death).__name__} in {_where(self.death)}"
        if prop in self.look.after:
            return self.look.after[prop]
        if prop in LIVENESS:
            return self._stalled(prop, text)
        if prop == "NoLeak":
            return f"never came back: {self._holders() or 'held by nobody'}"
        return plain(text)

    def _stalled(self, prop: str, text: str) -> str:
        never = oversize(self.sc)
        if never and prop != "BoundedWait":
            return f"a request that never fits ({never})"
        if prop == "BoundedWait":
            outside = self._outsiders()
            return f"waits for: {', '.join(outside)}" if outside else plain(text)
        return self.frozen.get(prop) or self._state()

    def _outsiders(self) -> list[str]:
        return sorted({self._kind(r) for r in self._unfinished() if self._waits_outside(r)})

    def _state(self) -> str:
        """Who is stuck, who holds the blocks, what was refused: kinds, no numbers."""
        stuck = sorted({self._kind(r) for r in self._unfinished() if self._kind(r)})
        why = sorted(set().union(*self.look.refused)) if self.look.refused else []
        free = "some" if self.rec.probe.free() else "none"
        parts = [f"stuck: {', '.join(stuck)}", f"free: {free}"]
        if why:
            parts.append(f"refused: {', '.join(why)}")
        if others := self._holders():
            parts.append(f"held besides: {others}")
        return " | ".join(parts)

    def _kind(self, r: str) -> str:
        q = self.live.get(r)
        request = self.sched.requests.get(r)
        if request is None:
            return "gone"
        name = request.status.name
        script = (request.kv_transfer_params or {}).get("script", {})
        if name == "WAITING_FOR_REMOTE_KVS":
            kind = "received" if r in self.sched.finished_recving_kv_req_ids else "loading"
            if kind == "loading" and script.get("outcome", "ok") not in ("ok", "fail", "partial"):
                kind += f" ({script['outcome']})"
        elif name.startswith("WAITING_FOR_STREAM"):
            kind = "kept session" if r in getattr(self.sched, "_sp_kept", ()) else "session"
        elif name.startswith("WAITING_FOR_STRUCT"):
            kind = "grammar"
        elif name == "RUNNING":
            kind = "running"
        else:
            asked = self.connector.asked.get(r, 0) if self.connector else 0
            kind = "deferred" if self.connector and script.get("defer", 0) > asked else "waiting"
        if isinstance(q, Request) and q.grammar and kind == "grammar":
            kind += f" ({q.grammar})"
        if kind == "waiting" and self.rec.probe.blocks_of(r):
            kind += " with blocks"
        return kind

    def _holders(self) -> str:
        """Who holds blocks besides unfinished requests."""
        kinds: set[str] = set()
        held: Counter[int] = Counter()
        for r, request in self.sched.requests.items():
            blocks = self.rec.probe.blocks_of(r)
            held.update(blocks)
            if request.is_finished() and blocks:
                script = (request.kv_transfer_params or {}).get("script", {})
                load, send = script.get("outcome", "ok"), (script.get("send") or {}).get("outcome", "")
                kinds.add(f"ended, load {load}" + (f", send {send}" if send else ""))
        kept = getattr(self.sched, "sp_quarantined", None)
        missing = self.sc.engine.blocks - self.rec.probe.free() - len(held)
        if callable(kept):
            missing -= len(kept())
        if missing > 0:
            kinds.add("nobody")
        return "; ".join(sorted(kinds))


def _where(exc: BaseException) -> str:
    """The innermost engine functions that an exception left, inner first."""
    names: list[str] = []
    tb = exc.__traceback__
    while tb is not None:
        code = tb.tb_frame.f_code
        if "/stallproof/" not in code.co_filename or "/stallproof/vllm/" in code.co_filename:
            names.append(code.co_name)
        tb = tb.tb_next
    return " < ".join(dict.fromkeys(reversed(names[-3:])))


def hash_of(x: Any) -> int:
    """A stable hash of nested plain data: the same in every process."""
    import zlib

    def text(y: Any) -> str:
        if isinstance(y, (set, frozenset)):
            return "{" + ",".join(sorted(map(text, y))) + "}"
        return "(" + ",".join(map(text, y)) + ")" if isinstance(y, tuple) else str(y)

    return zlib.crc32(text(x).encode())


class Bench:
    """Runs cases on one scheduler class of this process's engine."""

    def __init__(self, scheduler: str, version: str) -> None:
        self.scheduler, self.version = scheduler, version
        self.configs: dict[bytes, Any] = {}
        self.runs = 0

    def run(self, s: Scenario) -> Outcome | None:
        """``None``: the engine refuses this configuration."""
        from stallproof.harness.config import scheduler_class, vllm_config
        from stallproof.vllm.recording import close_recording

        self.runs += 1
        key = msgspec.json.encode(s.engine)
        config = self.configs.get(key)
        try:
            if config is None:
                if len(self.configs) > 256:
                    self.configs.clear()
                config = self.configs[key] = vllm_config(s.engine)
            cls = scheduler_class(self.scheduler, s.engine.depth)
            job = HuntRun(s, cls, self.version, self.scheduler, config)
        except Exception:  # what no engine accepts is no case
            self.configs.pop(key, None)
            return None
        try:
            job.go()
        finally:
            close_recording(job.sched)
            _close(job.sched)
        return job.outcome()


def _close(sched: Any) -> None:
    """Give back what a scheduler keeps beyond its own life."""
    manager = getattr(sched, "structured_output_manager", None)
    for name in ("executor", "executor_for_fillmask"):
        pool = getattr(manager, name, None)
        if pool is not None:
            pool.shutdown(wait=False)
