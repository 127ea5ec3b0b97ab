"""A gap's counterexample as a story for people, from TLC's own trace.

TLC prints states and action names only. What a scheduling call decided is taken from the Python twin, whose
state graph equals TLC's: the twin's call must lead to exactly the state that TLC printed next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from stallproof.check import tlc
from stallproof.check.config import INVARIANTS, LIVE, Config
from stallproof.check.equality import to_state
from stallproof.errors import StallproofError
from stallproof_model import props
from stallproof_model.sched import CanDefer, Next, SchedR, SchedX, X, subsets
from stallproof_model.state import Constants, State, at

#: What a violated statement means, in one sentence.
MEANING = {
    "Conservation": "blocks were lost or counted twice",
    "Queues": "a request is in no queue, or in two",
    "InFlightSafe": "a load may write blocks that a step in flight may still touch",
    "XferSafe": "a load writes blocks that are not its own",
    "NoLeak": "everything is over, but blocks are missing from the pool",
    "Seated": "more requests run than there are seats",
    "AdapterShare": "more adapters run than the engine can run at once",
    "NoWedge": "nothing is pending outside, work is left, and the next call changes nothing",
    "NoZeroPre": "a request was preempted for nothing, or although a short wait would have helped",
    "EvictCoupled": "a parked holder lost its blocks, and the one they were taken for does not run",
    "NoInversion": "somebody behind a refused request got its first block in the same call",
    "BoundedWait": "a wait without bound: a completed load is not acted on, or a gate waits for no step",
    "StoreSafe": "a block was given away while a store or send still reads it",
    "OneOwner": "a block is in the pool and held, or has two owners",
    "RefCount": "a block's reference count is not the number of its holders",
    "NoDoubleFree": "a block was freed that nobody held",
    "Termination": "the requests go round for ever; one of them never finishes",
    "NoStarvation": "requests behind it come and go for ever; the one ahead never finishes",
}

_STATES = {
    "new": "not yet arrived",
    "waiting": "waits",
    "loading": "loads",
    "received": "has its load, waits to be promoted",
    "held": "parked, holds blocks",
    "running": "runs",
    "preempted": "preempted",
    "finished": "finished",
    "zombie": "aborted, its transfer still writes",
    "idle": "idle session",
    "blocked": "waits for its grammar",
    "stuck": "its grammar failed, nobody was told",
}


def who(r: int) -> str:
    """Requests are letters in stories: 1 is A, the first in scheduling order at the start."""
    return chr(ord("A") + r - 1)


@dataclass
class Beat:
    """One step of the story: what happened, in lines, and the state after it."""

    action: str
    lines: list[str]
    picture: str
    states: dict[str, str] = field(default_factory=dict)


@dataclass
class Story:
    """A counterexample told: the workload, the steps, the point."""

    name: str
    refutes: str
    workload: list[str]
    beats: list[Beat]
    loop_to: int | None
    point: list[str]
    fix: str


def pool(c: Constants, s: State) -> str:
    """The pool as a picture: one letter per owned block, ``.`` free, ``~`` fenced, ``?`` in quarantine."""
    text = "".join(who(r) * at(s.own, r) for r in range(1, c.N + 1))
    return f"[{text}{'~' * sum(n for _, n in s.dfq)}{'?' * sum(s.quar)}{'.' * s.free}]"


def flight(s: State) -> str:
    """Steps in flight, oldest first; lower case: a prefill chunk without a token."""
    return " ".join("".join(who(r) if r in e.out else who(r).lower() for r in sorted(e.all)) for e in s.infl)


def _plural(n: int, noun: str) -> str:
    return f"{n} {noun}" + ("" if n == 1 else "s")


def describe_call(c: Constants, s: State, x: X, t: State) -> Iterator[str]:
    """What one scheduling call did, in order of importance."""
    for v, target, gain in sorted(x.pre):
        if v == target:
            yield f"{who(v)} finds no room and preempts itself, giving {_plural(gain, 'block')} back"
        elif gain:
            yield f"{who(target)} finds no room and preempts {who(v)}, which gives {_plural(gain, 'block')}"
        else:
            yield f"{who(target)} finds no room and preempts {who(v)}, which gives nothing: still fenced"
    for v, target in sorted(x.ev):
        yield f"{who(target)} takes the blocks of the parked {who(v)}"
    for r in sorted(x.asked):
        yield f"{who(r)}'s connector answers 'not yet'"
    for r in range(1, c.N + 1):
        if at(t.noload, r) > at(s.noload, r) and at(s.due, r) == "over":
            yield f"{who(r)}'s connector is asked no more: it computes what it would load"
        elif r in x.ref and at(t.noload, r) > at(s.noload, r):
            yield f"the load of {who(r)} fits nowhere: it computes what it would load"
    for r in sorted(x.ld):
        gate = at(t.gate, r)
        yield f"{who(r)} gets {_plural(at(c.Ext, r), 'block')} and starts to load" + (
            f", once {_plural(gate, 'step')} in flight {'is' if gate == 1 else 'are'} done" if gate else ""
        )
    for r in sorted(x.all):
        entered = at(s.st, r) != "running"
        kind = "a token" if r in x.out else "a prefill chunk"
        yield f"{who(r)} {'enters the batch' if entered else 'goes on'}: {kind}"
    for r in sorted(x.ref):
        if r not in {v for v, _, _ in x.pre}:
            yield f"{who(r)} is refused blocks" + (" and waits" if x.wait and r in s.run else "")
    for r in range(1, c.N + 1):
        if at(t.st, r) == "finished" and at(s.st, r) != "finished":
            yield f"{who(r)} can never fit and is finished with an error"


def call_of(c: Constants, s: State, t: State) -> X | None:
    """What the scheduling call from ``s`` to ``t`` decided; None if the twin does not know it."""
    for NY in subsets(CanDefer(c, s)):
        if SchedR(c, s, NY) == t:
            return SchedX(c, s, NY)
    return None


def describe(c: Constants, action: str, s: State, t: State) -> list[str]:
    """One transition in words; raises StallproofError if the twin does not know it."""
    if action == "Schedule":
        x = call_of(c, s, t)
        if x is None:
            raise StallproofError("TLC's trace and the Python model disagree about a scheduling call")
        lines = list(describe_call(c, s, x, t)) or ["nothing can be done"]
        return [f"the scheduler is called: {lines[0]}", *lines[1:]]
    r = next((q for name, q, u in Next(c, s) if name == action and u == t), None)
    if r is None:
        raise StallproofError(f"TLC's trace and the Python model disagree about {action}")
    if action == "Process":
        out = [who(q) for q in sorted(s.infl[0].out)]
        done = [who(q) for q in range(1, c.N + 1) if at(t.st, q) == "finished" != at(s.st, q)]
        text = "the oldest step is processed" + (f": a token for {', '.join(out)}" if out else ": no token")
        return [text + (f"; {', '.join(done)} finished" if done else "")]
    n = who(r) if r else ""
    return [
        {
            "XferDone": f"the load of {n} completes",
            "XferFail": f"the load of {n} fails; its blocks go back",
            "Expire": f"the load of {n} did not answer in time: its blocks are quarantined",
            "DeferralOver": f"{n}'s connector has put it off for too long",
            "LateDone": f"the late answer for {n} releases the quarantine",
            "XferFreed": f"the transfer of the aborted {n} ends; its blocks go back",
            "Abort": f"{n} is aborted",
            "Arrive": f"{n} arrives",
            "GrammarReady": f"{n}'s grammar is {'ready' if at(t.st, r or 1) == 'waiting' else 'broken'}",
            "Input": f"input comes for {n}'s session",
            "Pause": "the engine is paused",
            "Resume": "the engine resumes",
        }[action]
    ]


def waits_for(c: Constants, s: State) -> list[str]:
    """Who is unfinished in ``s``, what it holds and what it needs."""
    out = []
    for r in range(1, c.N + 1):
        state = at(s.st, r)
        if state in ("finished", "new"):
            continue
        missing = max(at(s.tok, r) + c.Look - at(s.own, r), 0)
        out.append(
            f"{who(r)} {_STATES[state]}, holds {at(s.own, r)}"
            + (f", needs {missing} more for all its known tokens" if missing else "")
        )
    return out


def refute(cfg: Config, timeout: float = 300) -> tlc.Result:
    """TLC's run on the gap ``cfg``, with its trace; raises StallproofError if TLC does not refute it."""
    live = cfg.refutes in LIVE
    inv = not live and cfg.refutes in (INVARIANTS if cfg.has_twin else cfg.invariants)
    r = tlc.run(
        cfg.module,
        cfg.tla,
        invariants=[cfg.refutes] if inv else [],
        properties=[] if inv else [cfg.refutes],
        spec="FairSpec" if live else "Spec",
        symmetry=cfg.symmetry,
        timeout=timeout,
    )
    if r.result != (tlc.LIVENESS if live else cfg.refutes):
        raise StallproofError(f"TLC does not refute {cfg.refutes} on {cfg.name}: {r.error or r.result}")
    return r


def tell(cfg: Config, timeout: float = 300) -> Story:
    """Run TLC on the gap ``cfg`` and tell its trace; raises StallproofError if TLC does not refute it."""
    r = refute(cfg, timeout)
    fix = ", ".join(f"{k} = {v}" for k, v in cfg.fixed.items())
    if not cfg.has_twin:
        return Story(cfg.name, cfg.refutes, [], _plain(r), r.loop_to, _point(cfg), fix)
    c = cfg.c
    states = [to_state(t.values["s"]) for t in r.trace]
    workload = [
        f"{who(q)}: {_plural(at(c.Prompt, q), 'prompt token')}, "
        f"{at(c.Total, q) - at(c.Prompt, q)} to generate"
        + (f", {at(c.Ext, q)} of the prompt can be loaded" if at(c.Ext, q) else "")
        + (", arrives again and again" if q in c.Recycle else ", arrives later" if q in c.Late else "")
        for q in range(1, c.N + 1)
    ]
    workload.append(f"{_plural(c.B, 'block')} of one token, at most {_plural(c.D, 'step')} in flight")
    beats = [Beat("", ["all wait"], pool(c, states[0]))]
    for before, after, t in zip(states, states[1:], r.trace[1:], strict=False):
        lines = describe(c, t.action, before, after)
        picture = pool(c, after) + (f"  in flight: {flight(after)}" if after.infl else "")
        beats.append(Beat(t.action, lines, picture, {who(q + 1): x for q, x in enumerate(after.st)}))
    point = _point(cfg)
    if not props.AllDone(c, states[-1]):
        point += waits_for(c, states[-1])
    return Story(cfg.name, cfg.refutes, workload, beats, r.loop_to, point, fix)


def _point(cfg: Config) -> list[str]:
    return [f"{cfg.refutes} is violated: {MEANING.get(cfg.refutes, 'see the specification')}", cfg.cause]


#: Actions of ``Blocks.tla`` in words; the changed variables say which request and which block.
_ACTIONS = {
    "BeginCall": "a scheduling call begins",
    "EndCall": "the call ends; its step, if it touches anything, is dispatched",
    "Admit": "a request is admitted with fresh blocks (and hits)",
    "Resume": "a request whose load is complete runs",
    "Grow": "a running request goes on, with or without a new block",
    "Load": "an asynchronous load is given blocks",
    "SyncLoad": "a synchronous load is given a block and starts",
    "Preempt": "a request is preempted within the call",
    "Process": "the oldest step is processed",
    "LateDone_": "the late work of the last processed step ends",
    "Finish": "a request finishes",
    "PruneOne": "a block falls out of a request's window",
    "StartXfer": "a gated load starts to write",
    "XferDone": "a load reports completion",
    "AbortLoad": "a loading request is aborted",
    "Expire": "a load's deadline passes",
    "LateReport": "a lost load reports after all",
    "Store": "an unordered reader (store, send) starts",
    "ReadDone": "an unordered reader is done",
}


def _plain(r: tlc.Result) -> list[Beat]:
    """A story without a twin: the variables that changed."""
    beats: list[Beat] = []
    last: dict[str, Any] = {}
    for t in r.trace:
        flat: dict[str, Any] = {}
        for name, v in t.values.items():
            flat.update(v if isinstance(v, dict) and all(isinstance(k, str) for k in v) else {name: v})
        changed = [f"{k} = {_show(v)}" for k, v in flat.items() if last.get(k) != v]
        head = _ACTIONS.get(t.action, t.action) if last else "all blocks are in the pool"
        beats.append(Beat(t.action, [head, *(f"  {x}" for x in changed if last)], ""))
        last = flat
    return beats


def _show(v: Any) -> str:
    if isinstance(v, tuple):
        return "<" + ", ".join(map(_show, v)) + ">"
    if isinstance(v, frozenset):
        return "{" + ", ".join(sorted(map(_show, v))) + "}"
    if isinstance(v, dict):
        return "[" + ", ".join(f"{_show(k)}: {_show(x)}" for k, x in v.items()) + "]"
    return str(v)


def text(s: Story) -> str:
    """The story as plain text, one screen."""
    out = [f"{s.name}: refutes {s.refutes}", ""]
    out += [f"  {w}" for w in s.workload] + ([""] if s.workload else [])
    wide = max((len(b.picture.split("  ")[0]) for b in s.beats), default=0)
    for i, b in enumerate(s.beats, 1):
        mark = ">" if i == s.loop_to else " "
        out.append(f"{mark}{i:3}  {b.picture.split('  ')[0]:{wide}}  {b.lines[0]}")
        out += [f"      {'':{wide}}  {line}" for line in b.lines[1:]]
    if s.loop_to:
        out += ["", f"  ... and back to {s.loop_to}, for ever."]
    out += ["", *(f"  {p}" for p in s.point if p), "", f"  With {s.fix} every statement holds."]
    return "\n".join(out)
