"""Behaviours of the model as traces: walks of the Python twin, and TLC's counterexamples.

    python -m stallproof.check.convert zero-progress-cascade > cascade.jsonl
    stallproof replay cascade.jsonl

The model counts blocks; here they get identities, handed out last in first out, so that an unsafe reuse
shows. A token is a block (block size 1). What one scheduling call decided is taken from the twin.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Literal

from stallproof.check import story
from stallproof.check.story import who as name
from stallproof.trace import schema as s
from stallproof.trace.policy import RULES
from stallproof_model.sched import X
from stallproof_model.state import Constants, State, at

DEFERRED = ("DeferFrees", "DeferFreesGuarded")
Walk = Sequence[tuple[str, State]]


def call_of(c: Constants, a: State, b: State) -> X:
    """What the call from ``a`` to ``b`` decided; raises ValueError if the twin does not know it."""
    if (x := story.call_of(c, a, b)) is None:
        raise ValueError("the walk holds a scheduling call that the model does not know")
    return x


class Converter:
    """Turn one walk into records; :meth:`records` does it all."""

    def __init__(
        self,
        c: Constants,
        walk: Walk,
        source: Literal["model", "tlc"],
        run: str = "",
        loop_to: int | None = None,
    ) -> None:
        self.c, self.walk, self.source = c, walk, source
        self.run, self.loop_to = run or source, loop_to
        #: how many records there are once ``walk[i]`` is reached
        self.reached: list[int] = []
        self.pool = list(range(c.B, 0, -1))
        self.own: dict[int, list[int]] = {r: [] for r in range(1, c.N + 1)}
        self.deferred: list[tuple[int, list[int]]] = []
        self.quar: dict[int, list[int]] = {}
        self.gen = dict.fromkeys(self.own, 0)
        self.due: set[int] = set()  # loads whose gate is closed
        self.step = self.processed = self.arrived = 0
        self.steps: list[bool] = []  # in flight, oldest first: does the model count the step?
        self.deepest = c.D
        self.ev: list[Any] = []
        self.out: list[Any] = []

    def records(self) -> list[s.Record]:
        c, first = self.c, self.walk[0][1]
        config = s.Config(
            pool=c.B, block_size=1, depth=c.D, policy="fcfs" if c.Fcfs else "priority",
            fence_mode=c.FenceMode, stale_output=c.StaleOutput, patience=c.P, full_fit=c.FullFit,  # type: ignore[arg-type]
            lookahead=c.Look, prefix_caching=False,
        )  # fmt: skip
        engine = s.Engine(self.source, "1", "Sched")
        self.out.append(
            s.Header(
                schema=s.SCHEMA, run=self.run, source=self.source,
                engine=engine, config=config, clock=s.Clock("", 0.0), state=s.Snapshot(free=c.B),
            )
        )  # fmt: skip
        for r in first.ord:
            if at(first.st, r) != "new":
                self.arrive(r, first)
        self.put(s.Outside())
        self.reached.append(len(self.out))
        for i, ((_, a), (action, b)) in enumerate(zip(self.walk, self.walk[1:], strict=False), 1):
            if self.loop_to == i:
                self.out.append(s.Note(n=len(self.out), kind="loop", text="from here it repeats for ever"))
            self.transition(action, a, b)
            self.reached.append(len(self.out))
        config.depth = self.deepest
        return self.out

    def put(self, record: Any) -> None:
        if self.ev or not isinstance(record, s.Outside):
            record.ev, self.ev = self.ev, []
            record.free = len(self.pool)
            record.n = len(self.out)
            self.out.append(record)

    # ------------------------------------------------------------------ blocks

    def arrive(self, r: int, state: State) -> None:
        self.arrived += 1
        c = self.c
        tokens = at(c.Total, r) - at(c.Prompt, r)
        self.ev.append(s.Add(name(r), 0 if c.Fcfs else r, float(self.arrived), at(c.Prompt, r), tokens))
        self.gen[r] = 0
        if at(state.st, r) == "blocked":
            self.ev.append(s.Park(name(r), "grammar"))

    def grow(self, r: int, blocks: int) -> list[int]:
        got = [self.pool.pop() for _ in range(blocks - len(self.own[r]))]
        if got:
            self.own[r] += got
            self.ev.append(s.Alloc(name(r), got))
        return got

    def release(self, r: int, a: State) -> None:
        blocks, self.own[r] = self.own[r][::-1], []
        self.due.discard(r)
        if not blocks:
            return
        if self.c.FenceMode in DEFERRED and any(r in e.all for e in a.infl):
            fence = self.processed + max(i for i, real in enumerate(self.steps, 1) if real)
            self.deferred.append((fence, blocks))
            self.ev.append(s.Fence(name(r), blocks, fence))
        else:
            self.pool += blocks
            self.ev.append(s.Free(name(r), blocks))

    # ------------------------------------------------------------------ transitions

    def transition(self, action: str, a: State, b: State) -> None:
        if action == "Schedule":
            self.schedule(a, b)
            return
        if action == "Process":
            self.process(a, b)
            return
        c = self.c
        r = next((q for q in self.own if self._differs(a, b, q)), 0)
        if action in ("Pause", "Resume"):
            self.ev.append(s.Pause("all" if action == "Pause" else "none"))
        elif action == "XferDone":
            self.ev.append(s.Recv(name(r), self.gen[r]))
        elif action == "XferFail":
            self.ev.append(s.LoadFailed(name(r), self.gen[r], list(self.own[r])))
            self.release(r, a)
        elif action == "Expire":
            self.ev += [
                s.Expire(name(r), "load"),
                s.Quarantine(name(r), self.gen[r], list(self.own[r])),
            ]
            self.quar[r], self.own[r] = self.own[r], []
        elif action == "LateDone":
            self.ev.append(s.Ignored(name(r), "recv", "late"))
            self.ev.append(s.Unquarantine(name(r), self.gen[r], self.quar[r]))
            self.pool += self.quar.pop(r)
        elif action == "XferFreed":
            self.ev.append(s.Recv(name(r), self.gen[r]))
            self.release(r, a)
        elif action == "Abort":
            self.ev.append(s.Finish(name(r), "abort", at(a.tok, r) - at(c.Prompt, r)))
            if at(b.st, r) != "zombie":
                self.release(r, a)
        elif action == "Arrive":
            self.arrive(r, b)
        elif action == "GrammarReady" or (action == "Input" and at(a.st, r) == "idle"):
            self.ev.append(s.Unpark(name(r)))
        self.put(s.Outside())

    @staticmethod
    def _differs(a: State, b: State, r: int) -> bool:
        return any(
            at(getattr(a, f), r) != at(getattr(b, f), r) for f in ("st", "own", "quar", "noload", "inp", "fl")
        )

    def schedule(self, a: State, b: State) -> None:
        c, x = self.c, call_of(self.c, a, b)
        for r in self.own:
            if at(a.st, r) == "received" and at(b.st, r) in ("held", "running"):
                self.ev.append(s.Promote(name(r)))
        self.ev += [s.NotYet(name(r)) for r in sorted(x.asked)]
        for r in self.own:
            if at(a.due, r) == "over" and at(b.noload, r):
                self.ev += [s.NotYet(name(r)), s.Expire(name(r), "deferral")]
        gone = {v for v, _, _ in x.pre} | {v for v, _ in x.ev}
        targets = list(dict.fromkeys([t for _, t, _ in sorted(x.pre)] + [t for _, t in sorted(x.ev)]))
        for t in targets:
            self.ev.append(s.Refuse(name(t), -1, "blocks"))
            for v, for_, _ in sorted(x.pre, key=lambda p: p[0] == p[1]):
                if for_ == t:
                    self.ev.append(s.Preempt(name(v), name(t)))
                    self.release(v, a)
            for v, for_ in sorted(x.ev):
                if for_ == t:
                    self.ev.append(s.Evict(name(v), name(t)))
                    self.release(v, a)
            if t not in gone and not self.grow(t, at(b.own, t)):
                self.ev.append(s.Refuse(name(t), -1, "blocks"))
        for r in self.own:
            if at(b.st, r) == "finished" and at(a.st, r) != "finished":
                self.ev.append(s.Finish(name(r), "infeasible", at(a.tok, r) - at(c.Prompt, r)))
                self.release(r, a)
        self.step += 1
        for r in b.ord:
            new = self.grow(r, at(b.own, r)) if at(b.own, r) > len(self.own[r]) else []
            if r in x.ld:
                self.gen[r] += 1
                self.ev.append(s.Load(name(r), self.gen[r], new, "async"))
                if at(b.gate, r) == 0:
                    self.ev.append(s.Start(name(r), self.gen[r]))
                else:
                    self.due.add(r)
            if at(b.st, r) == "running" and (at(a.st, r) != "running" or r in gone):
                self.ev.append(s.Admit(name(r)))
        for r in sorted(x.ref - gone - set(targets)):
            self.ev.append(s.Refuse(name(r), -1, "blocks"))
        if x.wait:
            self.ev += [s.Wait(name(r)) for r in sorted(x.ref) if r in a.run and r not in gone][:1]
        tok = {}
        for r in sorted(x.all):
            base = 0 if r in gone else at(a.comp, r)
            tok[name(r)] = max(1, at(b.comp, r) - base)
        self.put(s.Sched(step=self.step, tok=tok, total=sum(tok.values()), run=[name(r) for r in b.run]))
        # in the model a call without tokens dispatches nothing; in a trace every call is a step
        self.steps.append(len(b.infl) > len(a.infl))
        self.deepest = max(self.deepest, len(self.steps))
        self.empty()

    def empty(self) -> None:
        """Process the empty steps at the head."""
        while self.steps and not self.steps[0]:
            del self.steps[0]
            self.processed += 1
            self.drain()
            self.put(s.Update(step=self.processed))

    def drain(self) -> None:
        for step, blocks in list(self.deferred):
            if step <= self.processed:
                self.deferred.remove((step, blocks))
                self.pool += blocks
                self.ev.append(s.Drain(blocks))

    def process(self, a: State, b: State) -> None:
        del self.steps[0]
        self.processed += 1
        self.drain()
        out = {}
        for r in sorted(a.infl[0].out):
            if at(b.tok, r) > at(a.tok, r):
                out[name(r)] = 1
            if at(b.st, r) == "finished" and at(a.st, r) != "finished":
                self.ev.append(s.Finish(name(r), "stop", at(b.tok, r) - at(self.c.Prompt, r)))
                self.release(r, b)
            elif at(b.st, r) == "idle" and at(a.st, r) != "idle":
                self.ev.append(s.Park(name(r), "session"))
        for r in sorted(self.due):
            if at(b.gate, r) == 0:
                self.due.discard(r)
                self.ev.append(s.Start(name(r), self.gen[r]))
        self.put(s.Update(step=self.processed, out=out))
        self.empty()


def from_walk(c: Constants, walk: Walk, source: Literal["model", "tlc"] = "model") -> list[s.Record]:
    """Records of a walk ``(action, state)``, the first action empty. Raises ValueError if it is no walk."""
    return Converter(c, walk, source).records()


def from_gap(gap: str) -> list[s.Record]:
    """TLC's counterexample to a gap configuration, as a trace."""
    from stallproof.check import config
    from stallproof.check.equality import to_state
    from stallproof.errors import BadInput

    found = [x for x in config.load() if x.name == gap and x.refutes]
    if not found:
        raise BadInput(f"no gap named {gap!r}", remedy="stallproof explain --help lists them")
    result = story.refute(found[0])
    walk = [(t.action, to_state(t.values["s"])) for t in result.trace]
    if found[0].refutes == "NoWedge":  # the state is stuck: calling the scheduler again changes nothing
        walk += [("Schedule", walk[-1][1])] * 8
    out = from_walk(found[0].c, walk, "tlc")
    if found[0].refutes in RULES and isinstance(out[0], s.Header):
        out[0].rules = [found[0].refutes]
    return out


if __name__ == "__main__":
    for record in from_gap(sys.argv[1]):
        sys.stdout.buffer.write(s.encode(record) + b"\n")
