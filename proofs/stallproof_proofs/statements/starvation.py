"""NoStarvation and the bypass bound, for one request in line (any request, any number behind it)."""

from __future__ import annotations

import z3

from stallproof_proofs.logic import Action, Bool, State, forall
from stallproof_proofs.statements.order import live_at_start
from stallproof_proofs.systems.order import (
    BLOCKED,
    FINISHED,
    IDLE,
    IDLING,
    LOADING,
    ZOMBIE,
    Blocks,
    at_start,
    component,
    less,
    order,
    q,
    same,
    u,
    v,
)
from stallproof_proofs.systems.starvation import o


def takes_part(s: State, w: z3.ExprRef) -> Bool:
    """``w`` may stand between ``o`` and its blocks: not behind ``o``, or it held some when the call began."""
    return z3.Or(order(w) <= order(o), s.owns(w) > 0)


def one_turn(s: State) -> Bool:
    behind = z3.And(order(q) > order(o), s.own(q) > 0)
    return z3.Implies(z3.And(s.line(), s.alone()), forall(q, z3.Implies(behind, s.gen(q) <= 1)))


def statements(s: State) -> dict[str, Bool]:
    """What holds in every state.

    Bypass  while o is in line, every request behind it that holds blocks has held some ever since o got in
            line, or has taken them over, turn by turn of a session (FCFS), from one that had, or from one
            ahead of o. There are at most as many as then, at most as many as the pool has blocks, and one
            more for each turn of a session that was ahead of o. So between two changes of o at most B
            sessions or requests behind it are served, and one for each request ahead of it, each from the
            blocks that it kept, and none that came later: independent of how many arrive
    Turns   and the blocks of each came through at most as many turns since then as the pool has blocks: each
            turn computes a token more. So a session that goes on talking passes o finitely often
    OneTurn if o has been the oldest that waits all the while, at most one (TurnsYield), however many tokens a
            block holds, and whatever the length of a session
    """
    behind = z3.And(order(q) > order(o), s.own(q) > 0)
    newcomer = z3.And(behind, z3.Not(s.since(q)))
    return {
        "Bypass": z3.Implies(
            s.line(),
            z3.And(z3.Not(z3.Exists([q], newcomer)), s.Sbeh() <= s.h0() + s.tn(), s.h0() <= Blocks),
        ),
        "OneTurn": one_turn(s),
        "Turns": z3.Implies(s.line(), forall(q, z3.Implies(behind, s.gen(q) <= Blocks + 1))),
    }


def _between(s: State, t: State) -> Bool:
    part = lambda w: z3.Or(order(w) <= order(o), s.own(w) > 0, t.own(w) > 0)  # noqa: E731
    changed = lambda w: z3.And(part(w), z3.Not(same(component(t, w), component(s, w))))  # noqa: E731
    first = forall(u, z3.Implies(order(u) < order(v), z3.Not(changed(u))))
    return forall(v, z3.Implies(z3.And(changed(v), first), less(component(t, v), component(s, v))))


def turns(s: State, t: State, a: Action) -> dict[str, Bool]:
    """That a turn which is kept begins in the end rests on these two.

    TurnBegins.whom  it waits for one request, the same until it begins (or the session ends)
    TurnBegins.over  who is over stays so: once that one is, nothing keeps the turn (guard Input.yields)
    """
    out: dict[str, Bool] = {}
    if a.name in ("Input", "InputAway", "InputHere"):
        kept = z3.And(s.passes(q), s.st(q) == IDLING, t.st(q) == IDLING)
        out["TurnBegins.whom"] = forall(q, z3.Implies(kept, z3.And(t.passes(q), t.passed(q) == s.passed(q))))
    if "st" in a.updates:
        out["TurnBegins.over"] = forall(q, z3.Implies(s.st(q) == FINISHED, t.st(q) == FINISHED))
    return out


def action_statements(s: State, t: State, a: Action) -> dict[str, Bool]:
    """What holds of turns (above), of a call that ends with o in line all the while, and between calls.

    NoStarvation.rank  of the requests that take part (those ahead of o, o, holders behind o; a finite set
                       that does not grow, by Bypass), the oldest whose measure changed has gone down; nothing
                       that a request behind o without blocks does can pay for a rise among them. Of actions
                       between calls, too (there the next turn that takes blocks over is one of them)
    NoStarvation.goes  with nothing pending outside (no step in flight, so no patience either, no load, no
                       grammar, no pause, no not-yet), the measure of one that takes part has changed
    """
    if "between_calls" in a.guards:
        return {"NoStarvation.rank": _between(s, t), **turns(s, t, a)}
    if a.name != "Dispatch":
        return turns(s, t, a)
    changed = lambda w: z3.And(takes_part(s, w), z3.Not(same(component(t, w), at_start(s, w))))  # noqa: E731
    first = forall(u, z3.Implies(order(u) < order(v), z3.Not(changed(u))))
    nothing_outside = z3.And(
        s.nfls() == 0,
        forall(q, z3.And(s.sts(q) != LOADING, s.sts(q) != ZOMBIE, s.sts(q) != BLOCKED)),
        z3.Not(s.asked()),
        z3.Not(s.paused()),
    )
    return {
        "NoStarvation.rank": z3.Implies(
            s.line(),
            forall(v, z3.Implies(z3.And(changed(v), first), less(component(t, v), at_start(s, v)))),
        ),
        "NoStarvation.goes": z3.Implies(
            z3.And(s.line(), nothing_outside, live_at_start(s, o), s.st(o) != FINISHED, s.mode() != IDLE),
            z3.Exists([v], changed(v)),
        ),
    }
