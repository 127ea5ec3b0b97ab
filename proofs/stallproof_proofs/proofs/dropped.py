"""Dropped late tokens with patience: who loses a token is paid for by one ahead of it, within the window.

A preemption comes after the wait, so every step from before the window is processed: only who was served in
the window has a token to lose. It was served ahead of one that was refused, and waits ended the calls there,
so whatever the refused one gave up since is still free, unless a request ahead took it.
"""

from __future__ import annotations

import z3

from stallproof_proofs.logic import Action, Bool, Expr, State, forall, zmax
from stallproof_proofs.proofs import order as delivered
from stallproof_proofs.result import Assumption
from stallproof_proofs.statements import dropped as stated
from stallproof_proofs.systems import dropped as system
from stallproof_proofs.systems import order as m
from stallproof_proofs.systems.dropped import Depth, at_window, in_window
from stallproof_proofs.systems.order import (
    ADMLOOP,
    CLOSED,
    HEAD,
    IDLE,
    RUNLOOP,
    RUNNING,
    Patience,
    component,
    less,
    order,
    q,
    u,
    v,
)
from stallproof_proofs.theory import Inductive, Twin, substituted

#: conjuncts of theory order about the call so far; a call that loses a token is judged from the window on
SINCE_THE_CALL = ("spent", "lowered", "raised only behind", "visited prefills lowered", "call keeps flight")


def payer(s: State, w: Expr) -> Bool:
    """A request ahead of ``w`` has gone down since the window began, or will when the eviction is used."""
    return z3.Or(z3.And(s.hasw(), order(s.ww()) < order(w)), z3.And(s.owes(), order(s.tgt()) < order(w)))


def window(s: State) -> dict[str, Bool]:
    inside = s.mode() != IDLE
    open_ = in_window(s)
    waits = z3.And(s.mode() == CLOSED, s.patient())
    to_come = z3.Or(s.mode() == IDLE, s.mode() == HEAD, z3.And(s.mode() == RUNLOOP, order(v) >= s.ptr()))
    runs = z3.And(open_, s.served(v), s.st(v) == RUNNING)
    visited = z3.And(s.mode() == RUNLOOP, order(q) < s.ptr())
    return {
        "no wait, no patience": z3.And(
            z3.Implies(z3.Not(s.pw()), s.pat() == 0),
            z3.Implies(z3.And(inside, s.patient()), s.mode() == CLOSED),
        ),
        "old steps": z3.Implies(open_, z3.And(s.oldn() >= 0, s.oldn() <= zmax(Depth - 1 - s.pat(), 0))),
        "deep": z3.Implies(z3.Or(inside, s.pw()), Depth - 1 <= Patience),
        "served": forall(q, z3.Implies(z3.And(open_, z3.Not(s.served(q))), s.ph(q) <= s.oldn())),
        "lost": z3.Implies(
            z3.And(inside, s.lost()),
            z3.And(
                s.acted(),
                z3.Not(s.patient()),
                z3.Or(s.mode() == CLOSED, z3.And(s.mode() == RUNLOOP, s.pre())),
            ),
        ),
        "lowered since": z3.Implies(
            z3.And(open_, s.hasw()), less(component(s, s.ww()), at_window(s, s.ww()))
        ),
        "holders since": forall(q, z3.Implies(z3.And(open_, s.own(q) > 0), s.heldw(q))),
        "payer held": z3.Implies(z3.And(open_, s.hasw()), s.heldw(s.ww())),
        "raised only behind since": forall(
            v, z3.Implies(z3.And(open_, less(at_window(s, v), component(s, v))), payer(s, v))
        ),
        "lost, paid": z3.Implies(z3.And(inside, s.lost()), z3.Or(s.hasw(), s.owes())),
        "visited prefills lowered since": forall(
            q,
            z3.Implies(
                z3.And(s.pf(q), visited),
                z3.Or(
                    z3.And(s.hasw(), order(s.ww()) <= order(q)), z3.And(s.owes(), order(s.tgt()) < order(q))
                ),
            ),
        ),
        "room since": forall(
            v, z3.Implies(z3.And(runs, z3.Or(to_come, waits)), z3.Or(payer(s, v), m.room(s, v) >= 1))
        ),
        "prefills ahead served": forall(
            u,
            v,
            z3.Implies(
                z3.And(runs, z3.Or(s.mode() != CLOSED, s.patient()), s.pf(u), order(u) < order(v)),
                payer(s, v),
            ),
        ),
    }


def auxiliary(s: State) -> dict[str, Bool]:
    out = delivered.auxiliary(s)
    for name in SINCE_THE_CALL:
        out[name] = z3.Or(z3.And(s.mode() != IDLE, s.lost()), out[name])
    out["moved"] = z3.Implies(
        z3.And(s.mode() != IDLE, z3.Or(s.moved(), s.all())), z3.Or(s.hasd(), s.owes(), s.lost())
    )
    return {**out, **window(s)}


def _admissions_go_on(s: State, a: Action) -> Action:
    """A wait does not close the call's admissions."""
    return substituted(a, mode=lambda: z3.IntVal(ADMLOOP))


def _runners_go_on(s: State, a: Action) -> Action:
    """A wait does not end the running loop."""
    return substituted(a, mode=s.mode, ptr=lambda: order(m.r0) + 1)


def _kept(s: State, a: Action) -> Action:
    """Patience used up is carried over to the next window."""
    return substituted(a, pat=s.pat)


TWINS = [
    Twin("Begin", "patience", "deep", note="P < D - 1: late-token-dropped"),
    Twin("Begin", "deep", "old steps", note="more steps in flight than patience waits for"),
    Twin("Preempt", "waited", "LostPaid", note="preempts a victim in flight without a wait"),
    Twin(
        "SelfPreempt", "waited", "LostPaid", note="late-token-dropped: its token is computed again, for ever"
    ),
    Twin("SelfPreempt", "waited", "raised only behind since"),
    Twin("Pop", "oldest", "served"),
    Twin("Wait", "closes", "no wait, no patience", _admissions_go_on, note="CloseOnWait off"),
    Twin("Wait", "ends", "no wait, no patience", _runners_go_on, note="runners behind a wait are served"),
    Twin("Dispatch", "anew", "no wait, no patience", _kept, note="the next window starts with patience used"),
    Twin("DeliverTurn", "rule_E", "room since", note="a session idles, and no runner may take its blocks"),
    Twin("Serve", "next", "visited prefills lowered since"),
    Twin("SelfPreempt", "short", "LostPaid"),
]

ASSUMPTIONS = (
    Assumption(
        "windows",
        "glue",
        "Termination where late tokens are dropped. A call without a wait before it begins a window; only "
        "the last call of a window may lose a token, and does not wait (Decreases.window). So the vectors at "
        "the beginnings of windows never rise, and fall with each window that acts: by Decreases if it loses "
        "nothing, by Decreases.window if it does. Within a window nothing is raised, so it is finite, too. "
        "For NoStarvation see starvation_windows.",
        ("dropped",),
    ),
    Assumption(
        "old_steps",
        "model",
        "Theory dropped counts the steps from before a window and who was served in it. A step yields at "
        "most one token of a request, so before the oldest step leaves nobody has a token in all old steps "
        "any more (guard Pop.oldest).",
        ("dropped",),
        "tests/proofs/test_dropped.py (transitions of the model)",
    ),
)

theory = Inductive(
    name="dropped",
    title="Dropped late tokens, and patience for all steps in flight",
    theorem="Late tokens of who is preempted are lost, nobody is spared, at most D steps are in flight, and "
    "P >= D - 1. Tokens may be lost all the same (one request ahead takes what another left: a run of seven "
    "actions is in the tests), so the vector of theory order may rise in a call. But a token is lost only "
    "if a request ahead of its own that held blocks when the window began has gone down since (LostPaid; a "
    "window is a call and the calls that waited just before it), never for the end of a newcomer; such a "
    "call ends its window, and the vector is lower then than when the window began (Decreases.window). "
    "Every other call and action lowers it as in theory order; NoWedge, NoInversion, Drain, EvictCoupled, "
    "PreemptPaid and Seated hold as there.",
    system=system.system,
    statements=stated.statements,
    auxiliary=auxiliary,
    action_statements=stated.action_statements,
    consequences=stated.consequences,
    sums=m.SUMS,
    twins=TWINS,
    assumptions=ASSUMPTIONS,
    universe=3,
)
