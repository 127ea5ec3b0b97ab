"""Commit alone: any victims, any order, no rule R; but no partial chunks.

The micro-steps are those of :mod:`stallproof_proofs.systems.order_steps` with guards taken away (scheduling
order, door, rule R, victims behind their target) and one put in: a request is scheduled with all its known
tokens or not at all, so every scheduled request commits a token. Pause, grammar wait and max_num_seqs are
left to theory order: here nothing pauses, no request waits for a grammar, there is always a seat, and late
tokens are delivered.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import z3

from stallproof_proofs.logic import Action, Bool, Expr, State, System, Var, Vocabulary, forall, ite
from stallproof_proofs.sums import Sum, below, members, moved, positive
from stallproof_proofs.systems import order as m
from stallproof_proofs.systems import order_steps as steps
from stallproof_proofs.systems.order import (
    FINISHED,
    HELD,
    NEW,
    RECEIVED,
    RUNNING,
    ZOMBIE,
    Req,
    is_,
    q,
    r0,
    v0,
)

#: actions of theory order that have no part in theory commit; rule E (RunEvict) belongs to OneOrder
LEFT_OUT = {
    "RunEvict",
    "Spare",
    "DeliverTurn",
    "Input",
    "LoadEvict",
    "Paused",
    "Pause",
    "Resume",
    "GrammarReady",
    "GrammarFails",
}

vocabulary = Vocabulary(
    *m.vocabulary.vars.values(),
    *(Var(n, (), z3.IntSort()) for n in ("S0", "S1", "S2", "Spark", "S0s", "S1s", "S2s")),
)


def tries(s: State, r: Expr) -> Expr:
    """Not-yet answers, failures and expiries that ``r`` may still see."""
    return ite(is_(s, r, FINISHED, ZOMBIE), 0, s.ny(r) + s.fl(r) + ite(s.noload(r), 0, 1))


def uncommitted(s: State, r: Expr) -> Expr:
    """Tokens of ``r`` that no step has been scheduled for yet."""
    return ite(is_(s, r, FINISHED, ZOMBIE), 0, m.total(r) - m.goal(s, r))


def stage(s: State, r: Expr) -> Expr:
    """``Stage`` of the specification: how far ``r`` is from running once more."""
    out: Any = z3.IntVal(0)
    ranks = {RUNNING: 5, m.WAITING: 4, m.LOADING: 3, RECEIVED: 2, HELD: 1, ZOMBIE: 1, NEW: 5}
    for code, rank in ranks.items():
        out = ite(s.st(r) == code, rank, out)
    return out


def parked(s: State, r: Expr) -> Expr:
    return ite(is_(s, r, RECEIVED, HELD), s.own(r), 0)


M0 = Sum("S0", tries, over=Req)
M1 = Sum("S1", uncommitted, over=Req)
M2 = Sum("S2", stage, over=Req)
PARKED = Sum("Spark", parked, over=Req)
SUMS = (m.OWN, m.QUAR, M0, M1, M2, PARKED)


def gain(s: State, r: Expr) -> Expr:
    """What all parked holders but ``r`` hold."""
    return s.Spark() - parked(s, r)


def _without(a: Action, drop: Collection[str], add: Mapping[str, Bool] | None = None) -> Action:
    return replace(a, guards={**{n: g for n, g in a.guards.items() if n not in drop}, **(add or {})})


def _true() -> Bool:
    return z3.BoolVal(True)


def _over(s: State) -> Bool:
    """A call may end: closed, out of budget, or both loops are through."""
    visited = forall(q, z3.Implies(s.st(q) == RUNNING, m.order(q) < s.ptr()))
    return z3.Or(
        s.mode() == m.CLOSED,
        s.budget() <= 0,
        z3.And(s.mode() == m.RUNLOOP, s.pre(), visited),
        z3.And(s.mode() == m.ADMLOOP, forall(q, z3.Not(m.candidate(s, q)))),
    )


def actions(s: State) -> list[Action]:
    base = {a.name: a for a in steps.actions(s)}
    whole = {"whole": m.n0 == m.goal(s, r0) - s.comp(r0)}
    here = {"running": s.st(r0) == RUNNING, "unvisited": m.order(r0) >= s.ptr()}
    turn = z3.Or(z3.Not(s.hast()), s.tgt() == r0)
    victim = z3.And(is_(s, v0, RECEIVED, HELD), s.own(v0) > 0, v0 != r0)
    short = m.remaining(s, r0) > s.free() + gain(s, r0)
    alone = s.free() == m.Blocks - s.Squar()  # no session idles here
    changed = {
        "Begin": replace(
            base["Begin"], updates={**base["Begin"].updates, "S0s": s.S0, "S1s": s.S1, "S2s": s.S2}
        ),
        "Serve": _without(base["Serve"], ["next"], here),
        "Arrive": replace(
            base["Arrive"],
            updates={**base["Arrive"].updates, "st": lambda w: ite(w == r0, m.WAITING, s.st(w))},
        ),
        # a closed system: a rejection counts, whatever the request held
        "Reject": replace(base["Reject"], updates={**base["Reject"].updates, "moved": _true, "acted": _true}),
        "Dispatch": replace(base["Dispatch"], guards={**base["Dispatch"].guards, "over": _over(s)}),
        "Preempt": _without(
            base["Preempt"],
            ["next", "youngest", "not_sure", "spared"],
            {**here, "victim": s.st(v0) == RUNNING},
        ),
        "SelfPreempt": _without(base["SelfPreempt"], ["next", "youngest", "not_sure", "spared"], here),
        "Wait": _without(base["Wait"], ["not_sure"]),
        "StartLoad": _without(
            base["StartLoad"],
            ["next", "rule_R", "not_shut"],
            {
                "candidate": m.candidate(s, r0),
                "free_hands": z3.Not(s.hast()),
                "kept_back": m.ext(r0) + m.KeptBack <= s.free(),
            },
        ),
        "NotYet": _without(base["NotYet"], ["next", "not_shut"], {"candidate": m.candidate(s, r0)}),
        "Admit": _without(
            base["Admit"], ["turn", "not_shut"], {**whole, "turn": turn, "candidate": m.candidate(s, r0)}
        ),
        "AdmEvict": _without(
            base["AdmEvict"],
            ["turn", "not_shut", "behind", "sure"],
            {
                "turn": turn,
                "candidate": m.candidate(s, r0),
                "victim": victim,
                "sure": m.remaining(s, r0) <= s.free() + gain(s, r0),
            },
        ),
        "Refuse": _without(
            base["Refuse"],
            ["next", "not_shut", "short", "not_alone"],
            {
                "candidate": m.candidate(s, r0),
                "short": ite(m.can_load(s, r0), m.ext(r0) + m.KeptBack > s.free(), short),
                "not_alone": z3.Not(z3.And(m.can_load(s, r0), alone)),
            },
        ),
        "GiveUp": _without(base["GiveUp"], ["next", "not_shut"], {"candidate": m.candidate(s, r0)}),
        "LoneLoad": _without(
            base["LoneLoad"],
            ["next", "not_shut", "short", "alone"],
            {
                "candidate": m.candidate(s, r0),
                "short": m.ext(r0) + m.KeptBack > s.free(),
                "alone": alone,
            },
        ),
        "Pass": _without(
            base["Pass"],
            ["next", "cannot"],
            {"candidate": m.candidate(s, r0), "cannot": z3.Or(is_(s, r0, m.LOADING, RECEIVED), s.ph(r0) > 0)},
        ),
    }
    out = []
    for name, a in base.items():
        if name in LEFT_OUT:
            continue
        b = _without(changed.get(name, a), ["seat"])
        plain = {n: u for n, u in b.updates.items() if n not in {t.name for t in m.SUMS}}
        b = replace(b, updates=plain, actors={})
        actor = a.actors.get("Sown")
        out.append(b if actor is None else moved(s, b, actor, SUMS))
    return out


def init(s: State) -> list[Bool]:
    # the sums of the measure start anywhere: finitely many requests, all of them new
    return [
        *steps.init(s),
        forall(q, s.lim(q) == m.total(q)),
        s.Spark() == 0,
        s.S0() >= 0,
        s.S1() >= 0,
        s.S2() >= 0,
    ]


def facts(s: State) -> list[Bool]:
    return [
        *steps.constants(),
        z3.Not(m.Dropped),
        *(members(s, t, q) for t in SUMS),
        positive(s, m.OWN, q),
        positive(s, PARKED, q),
        positive(s, PARKED, q, but=s.tgt()),
        below(s, m.OWN, PARKED, q, (), (), but=r0),
    ]


system = System("Commit", vocabulary, init, actions, "commit alone, whole prompts", facts)
