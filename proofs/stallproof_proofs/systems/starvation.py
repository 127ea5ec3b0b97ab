"""One request in line: the actions of :mod:`stallproof_proofs.systems.order` with ghosts that watch it.

``o`` is any request. It is *in line* from the first call that begins while it waits, holds nothing and has no
token outstanding, until something of it changes (blocks, a load, an answer of its connector, its end).
``since`` marks the requests that have held blocks ever since ``o`` got in line, ``h0`` counts those behind
``o`` that held some then, ``Sbeh`` those that hold some now. No guard reads a ghost, so the actions are those
of theory ``order`` exactly (:func:`same_actions`), and what is proved there of every state holds here.
"""

from __future__ import annotations

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
)


def holder_behind(s: State, w: Expr) -> Expr:
    return ite(z3.And(m.order(w) > m.order(o), s.own(w) > 0), 1, 0)


BEHIND = Sum("Sbeh", holder_behind, over=m.Req)

#: what of ``o`` may not change while it stays in line
_OF_O = ("st", "tok", "ph", "ny", "fl", "noload")


def ready(s: State) -> Bool:
    """``o`` waits, holds nothing, and none of its tokens is outstanding."""
    return z3.And(s.st(o) == m.WAITING, s.ph(o) == 0)


def watched(s: State, a: Action) -> Action:
    """``a`` with the ghosts' updates."""
    post = a.post(s)
    updates = dict(a.updates)
    if a.name == "Begin":
        updates["line"] = lambda: z3.Or(s.line(), ready(s))
        updates["since"] = lambda w: ite(s.line(), s.since(w), s.own(w) > 0)
        updates["h0"] = lambda: ite(s.line(), s.h0(), s.Sbeh())
    elif set(_OF_O) & set(a.updates):
        same = z3.And(*(getattr(post, n)(o) == getattr(s, n)(o) for n in _OF_O))
        said = z3.And(a.name == "NotYet", m.r0 == o)  # an answer of its connector, whether it counts or not
        updates["line"] = lambda: z3.And(s.line(), same, z3.Not(said))
    if "own" in a.updates:
        updates["since"] = lambda w: z3.And(s.since(w), post.own(w) > 0)
        return moved(s, replace(a, updates=updates), a.actors[m.OWN.name], (BEHIND,))
    return replace(a, updates=updates)


def actions(s: State) -> list[Action]:
    return [watched(s, a) for a in steps.actions(s)]


def same_actions(s: State) -> bool:
    """Each action has the guards of theory ``order``, and its updates of every variable of that theory."""
    pairs = list(zip(steps.actions(s), actions(s), strict=True))
    point = {d: z3.FreshConst(d) for v in vocabulary.vars.values() for d in v.dom}

    def value(a: Action, name: str) -> Expr:
        return a.updates[name](*(point[d] for d in vocabulary.vars[name].dom))

    return all(
        a.name == b.name
        and list(a.guards) == list(b.guards)
        and all(g.eq(b.guards[n]) for n, g in a.guards.items())
        and set(b.updates) & set(m.vocabulary.vars) == set(a.updates)
        and all(z3.eq(z3.simplify(value(a, n)), z3.simplify(value(b, n))) for n in a.updates)
        for a, b in pairs
    )


def init(s: State) -> list[Bool]:
    return [*steps.init(s), z3.Not(s.line()), s.Sbeh() == 0]


def facts(s: State) -> list[Bool]:
    """Those of theory ``order``, and of the new sum."""
    return [
        *steps.facts(s),
        members(s, BEHIND, m.q),
        below(s, BEHIND, m.OWN, m.q, (), ()),
        z3.Implies(forall(m.q, holder_behind(s, m.q) == 0), s.Sbeh() == 0),
    ]


system = System("OneOrder, one request watched", vocabulary, init, actions, "", facts)
