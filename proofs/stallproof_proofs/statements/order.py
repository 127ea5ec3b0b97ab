"""Conservation, Decreases, NoInversion, NoWedge and what NoStarvation needs, for the rules of OneOrder."""

from __future__ import annotations

import z3

from stallproof_proofs.logic import Action, Bool, State, forall, ite
from stallproof_proofs.systems.order import (
    ADMLOOP,
    BLOCKED,
    FINISHED,
    HELD,
    IDLE,
    IDLING,
    LOADING,
    RECEIVED,
    RUNNING,
    WAITING,
    ZOMBIE,
    Blocks,
    CountParked,
    Deferral,
    Dropped,
    Patience,
    Seats,
    at_start,
    can_load,
    component,
    less,
    load_need,
    order,
    q,
    r0,
    remaining,
    same,
    u,
    v,
    victim,
)


def live_at_start(s: State, r: z3.ExprRef) -> Bool:
    return z3.Or(*(s.sts(r) == x for x in (WAITING, LOADING, RECEIVED, HELD, RUNNING)))


def statements(s: State) -> dict[str, Bool]:
    """What holds in every state, inside a call too.

    Conservation  free + owned + quarantined (+ handed to the next turn of a session) = pool; nothing is
                  negative
    NoLeak        a finished request owns nothing
    Seated        at most MaxSeqs requests run, the parked ones counted if they are to be
    NoInversion   no request that held no block is given any ahead of which one was refused in the call
    Patience      between 0 and P processed steps were waited for; with Patience.steps below: at most P steps
                  are processed between two calls of which the first waits and the last preempts
    Drain         a non-holder is served, or its connector asked, only if every request ahead of it was
                  served too, waits for its own load, waits for its own late token, or its connector said
                  not yet
    """
    behind = z3.And(z3.Or(s.given(u), s.heard(u)), order(v) < order(u), live_at_start(s, v))
    served = z3.Or(
        z3.Not(same(component(s, v), at_start(s, v))), s.phs(v) > 0, s.sts(v) == LOADING, s.heard(v)
    )
    return {
        "Conservation": z3.And(s.free() >= 0, s.free() + s.limbo() + s.Sown() + s.Squar() == Blocks),
        "Conservation.own": forall(q, z3.And(s.own(q) >= 0, s.quar(q) >= 0)),
        "NoLeak": forall(q, z3.Implies(s.st(q) == FINISHED, s.own(q) == 0)),
        "Seated": s.Nrun() + ite(CountParked, s.Npark(), 0) <= Seats,
        "NoInversion": forall(
            u, v, z3.Implies(z3.And(s.mode() != IDLE, s.given(u), s.refused(v)), order(u) < order(v))
        ),
        "Patience": z3.And(s.pat() >= 0, s.pat() <= Patience),
        "Drain": forall(u, v, z3.Implies(z3.And(s.mode() != IDLE, behind), served)),
    }


def consequences(s: State) -> dict[str, Bool]:
    """What follows in every state.

    EvictCoupled.go  while the target of an eviction is not admitted, it fits or there is one more victim, so
                     the loop goes on to its admission
    """
    return {
        "EvictCoupled.go": z3.Implies(
            z3.And(s.owes(), s.mode() == ADMLOOP),
            z3.Or(
                z3.If(
                    can_load(s, s.tgt()),
                    load_need(s, s.tgt()) <= s.free(),
                    remaining(s, s.tgt()) <= s.free(),
                ),
                z3.Exists(
                    [q],
                    z3.And(victim(s, q, s.tgt()), z3.Implies(can_load(s, s.tgt()), s.st(q) == IDLING)),
                ),
            ),
        ),
    }


def lexicographic(s: State, t: State, *, from_start: bool) -> Bool:
    """The oldest request whose measure changed has gone down (so the vector in scheduling order did)."""
    old = (lambda w: at_start(s, w)) if from_start else (lambda w: component(s, w))
    changed = lambda w: z3.Not(same(component(t, w), old(w)))  # noqa: E731
    first = forall(u, z3.Implies(order(u) < order(v), z3.Not(changed(u))))
    return forall(v, z3.Implies(z3.And(changed(v), first), less(component(t, v), old(v))))


#: Actions between calls that lower the last components of the measure (steps in flight, loads in quarantine,
#: pauses, deadlines of "not yet" that run) and leave every request's component as it is, or lower.
QUIET = {"Pop", "LateDone", "Deliver", "DeliverLate", "Pause", "Resume", "DeferralOver"}


def action_statements(s: State, t: State, a: Action) -> dict[str, Bool]:
    """What holds of steps.

    Decreases     every call, and every action between calls, lowers the vector of components in scheduling
                  order, or leaves it and lowers what comes after it (steps in flight, loads in quarantine);
                  a call that does neither changes nothing but the patience fields
    Patience.steps  a call waits only while fewer than P steps were processed since it began to wait, each
                  processed step uses one up, and a call that does not wait starts anew
    NoWedge       a request that can fit is unfinished, nothing is pending outside: the call acts (more than
                  to reject requests without blocks), or a connector said not yet
    EvictCoupled  a call does not end while a target of an eviction is not running
    PreemptPaid   a request that preempts itself has committed a token since its admission, or a request
                  ahead of it has blocks (held or in quarantine) and does not idle; any other victim is behind
                  its target, or idles
    Deferral.ends   an answer "not yet" is one of finitely many, or comes before its deadline
    Deferral.kept   a deadline that has passed stays so until a load starts, or is given up; a refusal of the
                    load does not end it
    NothingLost   nobody is preempted while a late token of it would be dropped
    """
    out: dict[str, Bool] = {}
    if a.name == "Dispatch":
        nothing_outside = z3.And(
            s.nfls() == 0,
            forall(q, z3.And(s.sts(q) != LOADING, s.sts(q) != ZOMBIE, s.sts(q) != BLOCKED)),
            z3.Not(s.asked()),
            z3.Not(s.paused()),
        )
        unfinished = z3.Exists([q], z3.And(live_at_start(s, q), s.st(q) != FINISHED))
        changed = z3.Exists([q], z3.Not(same(component(t, q), at_start(s, q))))
        out["Decreases"] = lexicographic(s, t, from_start=True)
        out["Decreases.strict"] = z3.Implies(z3.Or(s.moved(), s.all(), s.cut()), changed)
        out["NoWedge"] = z3.Implies(z3.And(nothing_outside, unfinished), s.acted())
        out["EvictCoupled"] = z3.Not(s.owes())
        out["Patience.steps"] = z3.And(t.pw() == s.patient(), z3.Or(s.patient(), t.pat() == 0))
    elif "between_calls" in a.guards:
        out["Decreases"] = lexicographic(s, t, from_start=False)
        if a.name not in QUIET:
            out["Decreases.strict"] = z3.Exists([q], z3.Not(same(component(t, q), component(s, q))))
    if a.name == "NotYet":
        out["Deferral.ends"] = z3.Or(t.ny(r0) < s.ny(r0), z3.And(Deferral, z3.Not(s.late(r0))))
    if a.name in ("NotYet", "Refuse", "LoneLoad", "GiveUp"):
        out["Deferral.kept"] = forall(q, z3.Implies(s.late(q), z3.Or(t.late(q), t.noload(q))))
    if a.name == "Wait":
        out["Patience.steps"] = z3.And(s.pat() < Patience, t.patient(), z3.Not(t.pre()))
    if a.name == "Pop":
        out["Patience.steps"] = z3.Implies(z3.And(s.pw(), s.pat() < Patience), t.pat() == s.pat() + 1)
    if a.name == "SelfPreempt":
        out["PreemptPaid"] = z3.Implies(s.pf(r0), s.Sold(r0) > 0)
    if a.name in ("Preempt", "SelfPreempt"):
        w = a.params[-1]
        out["NothingLost"] = z3.Implies(Dropped, s.ph(w) == 0)
    if a.name in ("Preempt", "RunEvict", "AdmEvict", "LoadEvict"):
        w = a.params[1]
        out["PreemptPaid"] = z3.Or(order(t.tgt()) < order(w), s.st(w) == IDLING)
    if a.name == "Admit":
        out["FullFit"] = remaining(t, r0) <= t.free()
    return out
