"""Late tokens dropped, and patience instead of sparing: theory order with a window of patience.

``StaleOutput = dropped``, no ``SpareInFlight``. A refused request waits while patience lasts and a step in
flight may yield a token (``CanFree``); here that is an obligation, not a choice (guard ``waited`` of a
preemption). At most ``D`` steps are in flight, and ``P >= D - 1``.

A *window* is a call and the calls that waited just before it. Ghosts, which no guard of an engine reads:
``oldn`` (steps in flight that were dispatched before the window), ``served`` (given tokens in the window),
the measure of each request when the window began (``w1`` to ``w4``), ``heldw`` (held blocks when it began, or
has taken those of a session's last turn over since), ``hasw``/``ww`` (the oldest of these that is known to
have gone down since), ``lost`` (a token was lost in this call).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import z3

from stallproof_proofs.logic import Action, Bool, Expr, State, System, Var, Vocabulary, forall, ite, zmax
from stallproof_proofs.systems import order as m
from stallproof_proofs.systems import order_steps as steps
from stallproof_proofs.systems.order import ADMLOOP, IDLE, Dropped, Patience, Spares, component, order, q

Depth = z3.Int("D")

vocabulary = Vocabulary(
    *m.vocabulary.vars.values(),
    Var("oldn", (), m.I),
    Var("served", (m.Req,), m.B),
    Var("w1", (m.Req,), m.I),
    Var("w2", (m.Req,), m.I),
    Var("w3", (m.Req,), m.I),
    Var("w4", (m.Req,), m.I),
    Var("heldw", (m.Req,), m.B),
    Var("hasw", (), m.B),
    Var("ww", (), m.Req),
    Var("lost", (), m.B),
)

#: between calls, these leave every request's measure as it is, or lower
QUIET = {"Pop", "LateDone", "Deliver", "DeliverLate", "Pause", "Resume", "DeferralOver"}


def in_window(s: State) -> Bool:
    """A window is open, and what it is about may still happen: admissions end it."""
    return z3.And(s.mode() != ADMLOOP, z3.Or(s.mode() != IDLE, s.pw()))


def at_window(s: State, r: Expr) -> tuple[Expr, Expr, Expr, Expr]:
    """The measure of ``r`` when the window began."""
    return s.w1(r), s.w2(r), s.w3(r), s.w4(r)


def lowered(s: State, r: Expr, when: Any = True) -> dict[str, Any]:
    """Ghost: ``r`` has gone down; the oldest such request that held blocks is remembered."""
    keep = z3.Or(z3.Not(when), z3.And(s.hasw(), order(s.ww()) < order(r)))
    return {
        "ww": lambda: ite(keep, s.ww(), r),
        "hasw": lambda: z3.Or(s.hasw(), when),
    }


def _begin(s: State, a: Action) -> Action:
    now: Any = lambda i: lambda w: ite(s.pw(), at_window(s, w)[i], component(s, w)[i])  # noqa: E731
    ghosts: dict[str, Any] = {
        "oldn": lambda: ite(s.pw(), s.oldn(), s.nfl()),
        "served": lambda w: z3.And(s.pw(), s.served(w)),
        "heldw": lambda w: ite(s.pw(), s.heldw(w), s.own(w) > 0),
        "hasw": lambda: z3.And(s.pw(), s.hasw()),
        "lost": lambda: z3.BoolVal(False),
        **{f"w{i + 1}": now(i) for i in range(4)},
    }
    guards = {"deep": s.nfl() < Depth, "patience": Depth - 1 <= Patience}
    return replace(a, guards={**a.guards, **guards}, updates={**a.updates, **ghosts})


def _preempted(s: State, a: Action, w: Expr) -> Action:
    gone = s.ph(w) > 0
    ghosts: dict[str, Any] = {
        "lost": lambda: z3.Or(s.lost(), gone),
        "hasd": lambda: ite(gone, z3.And(s.hasd(), s.dw() != w), a.updates["hasd"]()),
        "dw": lambda: ite(gone, s.dw(), a.updates["dw"]()),
        **lowered(s, w, z3.Not(gone)),
    }
    waited = z3.Or(s.pat() >= Patience, forall(q, s.phs(q) == 0))
    return replace(a, guards={**a.guards, "waited": waited}, updates={**a.updates, **ghosts})


def windowed(s: State, a: Action) -> Action:
    """``a`` with the ghosts of the window, and with the wait that patience asks for."""
    r = a.params[0] if a.params else None
    if a.name == "Begin":
        return _begin(s, a)
    if a.name in ("Preempt", "SelfPreempt"):
        return _preempted(s, a, a.params[-1])
    if a.name in ("Serve", "Admit"):
        more = {"served": lambda w: z3.Or(s.served(w), w == r), **lowered(s, r)}
    elif a.name in ("Promote", "Reject") or ("between_calls" in a.guards and a.name not in QUIET):
        # who holds nothing has nothing to give, so its end pays for nobody
        holds = (s.limbo() if a.name == "InputHere" else s.own(r)) > 0
        more = lowered(s, r, holds)
        if a.name == "InputHere":
            more["heldw"] = lambda w: z3.Or(s.heldw(w), z3.And(w == r, holds))
    elif a.name in ("RunEvict", "AdmEvict", "LoadEvict"):
        v = a.params[1]
        more = {"hasw": lambda: z3.And(s.hasw(), z3.Or(s.ww() != v, s.st(v) == m.IDLING))}
    elif a.name == "Pop":
        # a step yields at most one token of a request: who has one in every old step has one in the oldest
        mine = z3.Implies(z3.And(s.pw(), s.oldn() > 0, z3.Not(s.served(q))), s.ph(q) < s.oldn())
        more = {"oldn": lambda: ite(s.pw(), zmax(s.oldn() - 1, 0), s.oldn())}
        a = replace(a, guards={**a.guards, "oldest": forall(q, mine)})
    else:
        return a
    return replace(a, updates={**a.updates, **more})


def actions(s: State) -> list[Action]:
    return [windowed(s, a) for a in steps.every_action(s) if a.name != "Spare"]


def init(s: State) -> list[Bool]:
    return [*steps.init(s), s.oldn() == 0, z3.Not(s.hasw()), z3.Not(s.lost()), forall(q, z3.Not(s.served(q)))]


def facts(s: State) -> list[Bool]:
    """Those of theory order, but late tokens are dropped and nobody is spared."""
    either = z3.Implies(Dropped, Spares)
    return [*(h for h in steps.facts(s) if not h.eq(either)), Dropped, z3.Not(Spares), Depth >= 1]


system = System("OneOrder, late tokens dropped", vocabulary, init, actions, "counts, GateLoads", facts)
