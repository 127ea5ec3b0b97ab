"""One request in line: the actions of :mod:`stallproof_proofs.systems.order` with ghosts that watch it.

``o`` is any request. It is *in line* from the first call that begins while it waits, or is parked with the
blocks that it holds, and has no token outstanding, until something of it changes (blocks, a load, an answer
of its connector, its end).
``since`` marks the requests that have held blocks ever since ``o`` got in line, ``h0`` counts those behind
``o`` that held some then, ``Sbeh`` those that hold some now. Under FCFS the next turn of a session is a new
request that takes blocks over: it takes the mark over, too (``limbos``), or comes from one ahead of ``o``
(``limboa``, counted by ``tn``); ``gen`` counts the turns through which its blocks came since ``o`` got in
line (``limbog``). ``alone``: all the while ``o`` has been the oldest that waits.

One rule is added, ``TurnsYield`` (kept): the turn of a session that holds blocks notes whom it passes, the
oldest that waits (``passes``, ``passed``; ``limbop``, ``limbod`` under FCFS), and the next one does not begin
while that is still the oldest. No guard reads a ghost, so the actions are those of theory ``order`` with
:data:`ADDED` (:func:`same_actions`), and what is proved there of every state holds here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import z3

from stallproof_proofs.logic import Action, Bool, Expr, State, System, Var, Vocabulary, forall, ite
from stallproof_proofs.sums import Sum, below, members, moved
from stallproof_proofs.systems import order as m
from stallproof_proofs.systems import order_steps as steps

o = z3.Const("o", m.Req)

vocabulary = Vocabulary(
    *m.vocabulary.vars.values(),
    Var("line", (), m.B),
    Var("since", (m.Req,), m.B),
    Var("h0", (), m.I),
    Var("Sbeh", (), m.I),
    Var("limbos", (), m.B),
    Var("limboa", (), m.B),
    Var("limbog", (), m.I),
    Var("tn", (), m.I),
    Var("gen", (m.Req,), m.I),
    Var("alone", (), m.B),
    Var("passes", (m.Req,), m.B),
    Var("passed", (m.Req,), m.Req),
    Var("limbop", (), m.B),
    Var("limbod", (), m.Req),
)

#: the guards that TurnsYield adds
ADDED = {"Input": ["yields", "noted"], "InputAway": ["yields"], "InputHere": ["noted"]}


def holder_behind(s: State, w: Expr) -> Expr:
    return ite(z3.And(m.order(w) > m.order(o), s.own(w) > 0), 1, 0)


BEHIND = Sum("Sbeh", holder_behind, over=m.Req)

#: what of ``o`` may not change while it stays in line
_OF_O = ("st", "tok", "ph", "ny", "fl", "noload")


def ready(s: State) -> Bool:
    """``o`` waits, or is parked and no load of it is under way, and none of its tokens is outstanding."""
    return z3.And(m.is_(s, o, m.WAITING, m.HELD), s.ph(o) == 0)


def oldest(s: State, w: Expr) -> Bool:
    """``w`` waits, and nobody that waits is ahead of it."""
    first = forall(m.q, z3.Implies(s.st(m.q) == m.WAITING, m.order(w) <= m.order(m.q)))
    return z3.And(s.st(w) == m.WAITING, first)


def turns_yield(s: State, a: Action) -> Action:
    """``a`` with the rule: ``v0`` is whom the turn passes, if anybody waits."""
    if a.name not in ADDED:
        return a
    guards, updates, params = dict(a.guards), dict(a.updates), a.params
    holds = (s.limbo() if a.name == "InputHere" else s.own(m.r0)) > 0
    # under FCFS the place of a turn is behind everybody
    ahead = lambda w: m.order(w) < m.order(m.r0) if a.name == "Input" else z3.BoolVal(True)  # noqa: E731
    if a.name != "InputHere":
        again = z3.And(s.passes(m.r0), oldest(s, s.passed(m.r0)), ahead(s.passed(m.r0)))
        guards["yields"] = z3.Not(z3.And(holds, again))
    if a.name != "InputAway":
        nobody = z3.Not(z3.Exists([m.q], s.st(m.q) == m.WAITING))
        guards["noted"] = z3.Or(oldest(s, m.v0), nobody)
        params = (*params, m.v0)
    new = z3.And(holds, oldest(s, m.v0), ahead(m.v0))
    mine = lambda f, x: lambda w: ite(w == m.r0, x, f(w))  # noqa: E731
    if a.name == "InputAway":
        updates["limbop"], updates["limbod"] = lambda: s.passes(m.r0), lambda: s.passed(m.r0)
    elif a.name == "InputHere":
        updates["passes"] = mine(s.passes, z3.Or(new, s.limbop()))
        updates["passed"] = mine(s.passed, ite(new, m.v0, s.limbod()))
    else:
        updates["passes"] = mine(s.passes, z3.Or(new, s.passes(m.r0)))
        updates["passed"] = mine(s.passed, ite(new, m.v0, s.passed(m.r0)))
    return replace(a, guards=guards, updates=updates, params=params)


def watched(s: State, a: Action) -> Action:
    """``a`` with the rule and the ghosts' updates."""
    a = turns_yield(s, a)
    post = a.post(s)
    updates = dict(a.updates)
    if a.name == "Begin":
        updates["line"] = lambda: z3.Or(s.line(), ready(s))
        updates["since"] = lambda w: ite(s.line(), s.since(w), s.own(w) > 0)
        updates["h0"] = lambda: ite(s.line(), s.h0(), s.Sbeh())
        updates["tn"] = lambda: ite(s.line(), s.tn(), 0)
        updates["gen"] = lambda w: ite(s.line(), s.gen(w), 0)
        updates["alone"] = lambda: z3.Or(z3.And(s.line(), s.alone()), z3.And(z3.Not(s.line()), oldest(s, o)))
    elif set(_OF_O) & set(a.updates):
        same = z3.And(*(getattr(post, n)(o) == getattr(s, n)(o) for n in _OF_O))
        said = z3.And(a.name == "NotYet", m.r0 == o)  # an answer of its connector, whether it counts or not
        updates["line"] = lambda: z3.And(s.line(), same, z3.Not(said))
    if "st" in a.updates:
        updates["alone"] = lambda: z3.And(s.alone(), oldest(post, o))
    if a.name == "Input":
        passes_o = z3.And(s.own(m.r0) > 0, m.order(m.r0) > m.order(o))
        updates["gen"] = lambda w: s.gen(w) + ite(z3.And(w == m.r0, passes_o), 1, 0)
    if "own" in a.updates:
        kept = lambda w: z3.And(s.since(w), post.own(w) > 0)  # noqa: E731
        gen = lambda w: ite(post.own(w) > 0, s.gen(w), 0)  # noqa: E731
        updates["since"], updates["gen"] = kept, gen
        if a.name == "InputAway":
            updates["limbos"] = lambda: s.since(m.r0)
            updates["limboa"] = lambda: m.order(m.r0) <= m.order(o)
            updates["limbog"] = lambda: s.gen(m.r0)
        if a.name == "InputHere":
            passed_on = z3.And(s.limbo() > 0, z3.Or(s.limbos(), s.limboa()))
            from_ahead = z3.And(s.limbo() > 0, s.limboa(), m.order(m.r0) > m.order(o))
            updates["since"] = lambda w: ite(w == m.r0, passed_on, kept(w))
            updates["tn"] = lambda: s.tn() + ite(from_ahead, 1, 0)
            updates["gen"] = lambda w: ite(z3.And(w == m.r0, s.limbo() > 0), s.limbog() + 1, gen(w))
        return moved(s, replace(a, updates=updates), a.actors[m.OWN.name], (BEHIND,))
    return replace(a, updates=updates)


def actions(s: State) -> list[Action]:
    return [watched(s, a) for a in steps.every_action(s)]


def same_actions(base: Sequence[Action], mine: Sequence[Action], variables: Mapping[str, Var]) -> bool:
    """Each of ``mine`` has the guards of ``base``, :data:`ADDED`, and its updates of all ``variables``."""
    point = {d: z3.FreshConst(d) for v in variables.values() for d in v.dom}

    def value(a: Action, name: str) -> Expr:
        return a.updates[name](*(point[d] for d in variables[name].dom))

    return all(
        a.name == b.name
        and [*a.guards, *ADDED.get(a.name, ())] == list(b.guards)
        and all(g.eq(b.guards[n]) for n, g in a.guards.items())
        and set(b.updates) & set(variables) == set(a.updates)
        and all(z3.eq(z3.simplify(value(a, n)), z3.simplify(value(b, n))) for n in a.updates)
        for a, b in zip(base, mine, strict=True)
    )


def init(s: State) -> list[Bool]:
    return [*steps.init(s), *first(s)]


def first(s: State) -> list[Bool]:
    """Nobody is watched, and no turn has passed anybody."""
    nobody = forall(m.q, z3.And(s.gen(m.q) == 0, z3.Not(s.passes(m.q))))
    return [z3.Not(s.line()), s.Sbeh() == 0, s.tn() == 0, nobody]


def facts(s: State) -> list[Bool]:
    """Those of theory ``order``, and of the new sum."""
    return [
        *steps.facts(s),
        members(s, BEHIND, m.q),
        below(s, BEHIND, m.OWN, m.q, (), ()),
        z3.Implies(forall(m.q, holder_behind(s, m.q) == 0), s.Sbeh() == 0),
    ]


system = System("OneOrder, one request watched", vocabulary, init, actions, "", facts)
