"""A TLC counterexample as a trace, so that it is drawn like every other one.

``Sched.tla`` counts blocks; here they get numbers, handed out in order and given back newest first. Nothing
is decided here: what a call did is taken from the Python twin of the specification, whose state graph equals
TLC's, and the differences of neighbouring states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from stallproof.check import story
from stallproof.check.config import Config
from stallproof.check.equality import to_state
from stallproof.errors import BadInput, StallproofError
from stallproof.report.tracepage import Mark
from stallproof.trace import schema as s
from stallproof_model.state import Constants, State, at

#: states of the model that the trace schema calls otherwise
_NAMES = {"zombie": s.FINISHED, "idle": s.HELD, "blocked": s.WAITING, "stuck": s.WAITING}
_AWAITS = {"idle": "session", "blocked": "grammar", "stuck": "grammar"}
_FENCES = ("None", "DeferFrees", "DeferFreesGuarded", "GateLoads")


class _Book:
    """Numbers for blocks that the specification only counts."""

    def __init__(self, c: Constants, first: State) -> None:
        self.c = c
        self.free = list(range(c.B, 0, -1))
        self.own: dict[int, list[int]] = {r: [] for r in range(1, c.N + 1)}
        self.fenced: list[int] = []
        self.quarantined: dict[int, list[int]] = {}
        self.step = self.done = self.n = 0
        self.gen: dict[int, int] = {}
        for r in self.own:
            self.own[r] = self.take(at(first.own, r))
        self.fenced = self.take(sum(n for _, n in first.dfq))

    def take(self, n: int) -> list[int]:
        return [self.free.pop() for _ in range(min(n, len(self.free)))]

    def give(self, r: int, n: int) -> list[int]:
        blocks, self.own[r] = self.own[r][len(self.own[r]) - n :], self.own[r][: len(self.own[r]) - n]
        return blocks

    def releases(self, r: int, old: State, new: State, ev: list[s.Event]) -> None:
        """What ``r`` gives back between two states: to quarantine, behind a fence, or to the pool."""
        lost = at(old.own, r) - at(new.own, r)
        if lost <= 0:
            return
        blocks, name = self.give(r, lost), story.who(r)
        fenced = sum(n for _, n in new.dfq) - len(self.fenced)
        if at(new.quar, r) > at(old.quar, r):
            self.quarantined[r] = blocks
            ev += [s.Expire(name, "load"), s.Quarantine(name, self.gen.get(r, 0), blocks)]
        elif fenced > 0:
            ev.append(s.Fence(name, blocks, self.step))
            self.fenced += blocks
        else:
            ev.append(s.Free(name, blocks))
            self.free += blocks

    def grants(self, r: int, old: State, new: State, ev: list[s.Event]) -> None:
        more = at(new.own, r) - at(old.own, r)
        if more > 0:
            blocks = self.take(more)
            self.own[r] += blocks
            ev.append(s.Alloc(story.who(r), sorted(blocks)))

    def drains(self, new: State, ev: list[s.Event]) -> None:
        gone = len(self.fenced) - sum(n for _, n in new.dfq)
        if gone > 0:
            blocks, self.fenced = self.fenced[:gone], self.fenced[gone:]
            self.free += blocks
            ev.append(s.Drain(blocks))

    def starts(self, old: State, new: State, ev: list[s.Event]) -> None:
        """Loads whose gate has opened."""
        for r in self.own:
            if (
                at(new.st, r) == "loading"
                and at(old.st, r) == "loading"
                and at(old.gate, r) > 0 == at(new.gate, r)
            ):
                ev.append(s.Start(story.who(r), self.gen.get(r, 0)))

    def number(self, record: s.Record, free: int) -> s.Record:
        self.n += 1
        record.n = self.n  # type: ignore[union-attr]
        if not isinstance(record, s.Note | s.End | s.Header):
            record.free = free
        return record


def header(c: Constants, name: str, first: State, book: _Book) -> s.Header:
    requests = []
    for r in range(1, c.N + 1):
        st = at(first.st, r)
        if st in ("new", "finished"):
            continue
        state = s.ReqState(story.who(r), cast(s.State, _NAMES.get(st, st)), awaits=_AWAITS.get(st, ""))
        state.arr = float(first.ord.index(r) if r in first.ord else r)
        state.prompt, state.max_tokens = at(c.Prompt, r), at(c.Total, r) - at(c.Prompt, r)
        state.tok, state.comp, state.blocks = at(first.tok, r), at(first.comp, r), list(book.own[r])
        requests.append(state)
    return s.Header(
        schema=s.SCHEMA, run=name, source="tlc", engine=s.Engine("tlc", "Sched.tla", "spec"),
        config=s.Config(
            pool=c.B, block_size=1, depth=c.D, policy="fcfs" if c.Fcfs else "priority", patience=c.P,
            fence_mode=c.FenceMode if c.FenceMode in _FENCES else "None",  # type: ignore[arg-type]
            stale_output="dropped" if c.StaleOutput == "dropped" else "delivered",
        ),
        clock=s.Clock("1970-01-01T00:00:00Z", 0.0),
        state=s.Snapshot(free=first.free, requests=requests),
    )  # fmt: skip


def records(
    c: Constants, name: str, actions: Sequence[str], states: Sequence[State], loop_to: int | None = None
) -> Iterator[s.Record]:
    """The trace of a behaviour: ``actions[i]`` leads from ``states[i]`` to ``states[i + 1]``.

    ``loop_to`` counts states from 1, as TLC does: the behaviour goes on there for ever.
    """
    book = _Book(c, states[0])
    yield header(c, name, states[0], book)
    for i, (action, old, new) in enumerate(zip(actions, states, states[1:], strict=False), 1):
        if loop_to == i:
            yield book.number(s.Note(kind="loop", text="from here it repeats for ever"), old.free)
        make = {"Schedule": _call, "Process": _processed}.get(action, _outside)
        yield book.number(make(book, c, action, old, new), new.free)
    yield book.number(s.End(calls=book.step), states[-1].free)


def _call(book: _Book, c: Constants, action: str, old: State, new: State) -> s.Record:
    x = story.call_of(c, old, new)
    if x is None:
        raise StallproofError("TLC's trace and the Python model disagree about a scheduling call")
    book.step += 1
    ev: list[s.Event] = []
    who = story.who
    for r in sorted(x.asked):
        ev.append(s.NotYet(who(r)))
    for r in book.own:
        if at(old.st, r) == "received" and at(new.st, r) != "received":
            ev.append(s.Promote(who(r)))
    for victim, target, _ in sorted(x.pre):
        ev.append(s.Preempt(who(victim), who(target)))
        book.releases(victim, old, new, ev)
    for victim, target in sorted(x.ev):
        ev.append(s.Evict(who(victim), who(target)))
        book.releases(victim, old, new, ev)
    for r in book.own:
        if at(new.own, r) < at(old.own, r) and len(book.own[r]) > at(new.own, r):
            book.releases(r, old, new, ev)
    for r in sorted(x.ref):
        ev.append(s.Refuse(who(r), -1, "blocks"))
        if x.wait and r in old.run:
            ev.append(s.Wait(who(r)))
    for r in book.own:
        book.grants(r, old, new, ev)
        if r in x.ld:
            book.gen[r] = book.gen.get(r, 0) + 1
            ev.append(s.Load(who(r), book.gen[r], list(book.own[r]), "async", at(c.Ext, r)))
            if not at(new.gate, r):
                ev.append(s.Start(who(r), book.gen[r]))
        if at(new.st, r) == "running" != at(old.st, r):
            ev.append(s.Admit(who(r), at(old.comp, r)))
        if at(new.st, r) == "finished" != at(old.st, r):
            ev.append(s.Finish(who(r), "infeasible"))
    book.starts(old, new, ev)
    tok = {who(r): max(1, at(new.comp, r) - at(old.comp, r)) for r in sorted(x.all)}
    return s.Sched(step=book.step, tok=tok, total=sum(tok.values()), ev=ev, run=[who(r) for r in new.run])


def _processed(book: _Book, c: Constants, action: str, old: State, new: State) -> s.Record:
    book.done += 1
    ev: list[s.Event] = []
    for r in book.own:
        if at(new.st, r) == "finished" != at(old.st, r):
            ev.append(s.Finish(story.who(r), "length"))
        book.releases(r, old, new, ev)
    book.drains(new, ev)
    book.starts(old, new, ev)
    out = {story.who(r): 1 for r in sorted(old.infl[0].out)} if old.infl else {}
    return s.Update(step=book.done, out=out, ev=ev)


def _outside(book: _Book, c: Constants, action: str, old: State, new: State) -> s.Record:
    """Completions, arrivals, aborts, pauses: what changed is whose state, blocks or quarantine differ."""
    ev: list[s.Event] = []
    for r in book.own:
        name, before, after = story.who(r), at(old.st, r), at(new.st, r)
        gen = book.gen.get(r, 0)
        if before == "new" != after:
            tokens = at(c.Prompt, r), at(c.Total, r) - at(c.Prompt, r)
            ev.append(s.Add(name, 0, float(new.ord.index(r)), *tokens))
        if action == "XferDone" and before == "loading" != after:
            ev.append(s.Recv(name, gen))
        if action == "XferFail" and before == "loading" != after:
            ev.append(s.LoadFailed(name, gen, list(book.own[r])))
        if action == "Abort" and before != after:
            ev.append(s.Finish(name, "abort"))
        if before in _AWAITS and after not in _AWAITS and after != "finished":
            ev.append(s.Unpark(name))
        if at(new.quar, r) < at(old.quar, r):
            blocks = book.quarantined.pop(r, [])
            book.free += blocks
            ev.append(s.Unquarantine(name, gen, blocks))
        if before == "zombie" != after:
            ev.append(s.Recv(name, gen))
        book.releases(r, old, new, ev)
    if action in ("Pause", "Resume"):
        ev.append(s.Pause("all" if new.paused else "none"))
    book.drains(new, ev)
    return s.Outside(ev=ev)


def of_gap(cfg: Config, timeout: float = 300) -> tuple[list[s.Record], list[Mark]]:
    """TLC's counterexample of the gap ``cfg``, and the mark that names what it refutes."""
    if not cfg.has_twin:
        raise BadInput(
            f"{cfg.name} is a gap of {cfg.module}, whose counterexamples cannot be drawn yet",
            remedy=f"stallproof explain {cfg.name} tells it in words",
        )
    r = story.refute(cfg, timeout)
    states = [to_state(t.values["s"]) for t in r.trace]
    recs = list(records(cfg.c, cfg.name, [t.action for t in r.trace[1:]], states, r.loop_to))
    detail = [cfg.cause] if cfg.cause else []
    if r.loop_to:
        detail.append(f"from state {r.loop_to} on it repeats for ever")
    detail += story.waits_for(cfg.c, states[-1])
    stuck = [story.who(q) for q in range(1, cfg.c.N + 1) if at(states[-1].st, q) not in ("finished", "new")]
    return recs, [
        Mark(cfg.refutes, len(recs) - 1, story.MEANING.get(cfg.refutes, ""), cfg.name, detail, stuck)
    ]
