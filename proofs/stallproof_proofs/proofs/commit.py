"""Commit alone: the invariant behind the measure (M0, M1, M2, M3)."""

from __future__ import annotations

from dataclasses import replace

import z3

from stallproof_proofs.logic import Action, Bool, State, forall
from stallproof_proofs.proofs.order import shape, wedge
from stallproof_proofs.result import Assumption
from stallproof_proofs.statements import commit as stated
from stallproof_proofs.systems import commit as m
from stallproof_proofs.systems.order import (
    ADMLOOP,
    BLOCKED,
    CLOSED,
    FINISHED,
    HEAD,
    HELD,
    IDLE,
    IDLING,
    LOADING,
    RECEIVED,
    RUNLOOP,
    RUNNING,
    WAITING,
    ZOMBIE,
    can_load,
    fits,
    is_,
    less,
    order,
    q,
    remaining,
    same,
    total,
)
from stallproof_proofs.theory import Inductive, Twin


def auxiliary(s: State) -> dict[str, Bool]:
    inside = s.mode() != IDLE
    t = s.tgt()
    now, start = stated.measure(s), (s.S0s(), s.S1s(), s.S2s())
    quiet_idle = z3.And(
        inside,
        z3.Not(s.acted()),
        s.nfls() == 0,
        z3.Not(s.asked()),
        forall(q, z3.And(s.sts(q) != LOADING, s.sts(q) != ZOMBIE)),
    )
    kept = {
        n: g
        for n, g in {**shape(s), **wedge(s)}.items()
        if n not in ("room", "idle call runs nothing", "in flight")
    }
    return {
        **kept,
        "in flight": z3.And(
            s.nfl() >= 0,
            forall(
                q,
                z3.Or(
                    s.ph(q) <= s.nfl(),
                    z3.And(
                        s.all(),
                        s.mode() > HEAD,
                        s.ph(q) <= s.nfl() + 1,
                        z3.Or(s.mode() != RUNLOOP, s.st(q) != RUNNING, order(q) < s.ptr()),
                    ),
                ),
            ),
        ),
        "whole": forall(q, z3.Not(s.pf(q))),
        "left out": z3.And(
            z3.Not(s.paused()),
            z3.Not(s.handing()),
            s.limbo() == 0,
            forall(q, z3.And(s.st(q) != IDLING, s.lim(q) == total(q))),
            forall(q, z3.And(s.st(q) != BLOCKED, z3.Implies(inside, s.sts(q) != BLOCKED))),
        ),
        "quiet ends nobody": forall(
            q,
            z3.Implies(z3.And(inside, z3.Not(s.acted())), (s.st(q) == FINISHED) == (s.sts(q) == FINISHED)),
        ),
        "own": forall(q, z3.And(s.own(q) >= 0, s.quar(q) >= 0)),
        "head": z3.Implies(s.mode() == HEAD, z3.And(s.ptr() == 0, z3.Not(s.hast()), z3.Not(s.pre()))),
        "promoted": forall(
            q,
            z3.Implies(
                s.mode() > HEAD,
                z3.And(s.st(q) != RECEIVED, z3.Implies(is_(s, q, WAITING, HELD, RUNNING), fits(s, s.tok(q)))),
            ),
        ),
        "target": z3.Implies(
            s.hast(),
            z3.Or(
                z3.And(s.mode() == RUNLOOP, s.budget() > 0, s.st(t) == RUNNING, order(t) >= s.ptr()),
                z3.And(
                    s.mode() == ADMLOOP,
                    s.budget() > 0,
                    is_(s, t, WAITING, HELD),
                    z3.Not(s.seen(t)),
                    s.ph(t) == 0,
                    z3.Not(can_load(s, t)),
                    remaining(s, t) <= s.free() + m.gain(s, t),
                ),
            ),
        ),
        "no more": z3.Implies(inside, z3.And(s.S0() <= s.S0s(), s.S1() <= s.S1s())),
        "falls": z3.Implies(
            z3.And(inside, z3.Or(s.moved(), s.all())),
            z3.Or(less(now, start), z3.And(s.hast(), s.mode() == ADMLOOP)),
        ),
        "still": z3.Implies(z3.And(inside, z3.Not(s.moved())), z3.And(same(now, start), z3.Not(s.all()))),
        "no admission after a preemption": z3.Implies(s.mode() == ADMLOOP, z3.Not(s.pre())),
        "idle call runs nothing": z3.Implies(
            quiet_idle,
            z3.And(
                s.mode() != CLOSED,
                forall(q, z3.Implies(z3.And(s.st(q) == RUNNING, s.mode() == RUNLOOP), order(q) >= s.ptr())),
                forall(
                    q,
                    z3.Implies(
                        s.mode() == ADMLOOP,
                        z3.And(
                            s.st(q) != RUNNING, z3.Implies(s.seen(q), z3.And(s.own(q) == 0, s.Sown() > 0))
                        ),
                    ),
                ),
            ),
        ),
        "nothing looked at yet": forall(
            q,
            z3.Implies(
                z3.Or(s.mode() == HEAD, s.mode() == RUNLOOP), z3.And(z3.Not(s.seen(q)), z3.Not(s.asked()))
            ),
        ),
    }


def _not_whole(s: State, a: Action) -> Action:
    return replace(a, guards={n: g for n, g in a.guards.items() if n != "whole"})


def consequences(s: State) -> dict[str, Bool]:
    """EvictCoupled.go: while a target is not admitted, it fits or there is one more victim."""
    t = s.tgt()
    victim = z3.And(is_(s, q, RECEIVED, HELD), s.own(q) > 0, q != t)
    return {
        "EvictCoupled.go": z3.Implies(
            z3.And(s.hast(), s.mode() == ADMLOOP), z3.Or(remaining(s, t) <= s.free(), z3.Exists([q], victim))
        )
    }


theory = Inductive(
    name="commit",
    title="Commit alone: NoWedge and the lexicographic measure",
    theorem="With whole prompts (no partial chunk), any parked holder and any runner as victim, any order of "
    "the waiting scan, no rule R and no door: (M0 answers, failures and expiries left; M1 tokens not "
    "committed; M2 stages; M3 steps in flight) goes down lexicographically in every action that "
    "changes more than patience and quarantine, and a call acts whenever work is left and nothing is "
    "pending outside. So a closed system terminates.",
    system=m.system,
    statements=stated.statements,
    auxiliary=auxiliary,
    action_statements=stated.action_statements,
    consequences=consequences,
    sums=m.SUMS,
    universe=3,
    twins=[
        Twin(
            "AdmEvict",
            "sure",
            "target",
            note="eviction that does not make its target run: the ping-pong of #40968",
        ),
        Twin(
            "Admit",
            "whole",
            "falls",
            note="a partial chunk commits no token: this measure does not cover chunks",
        ),
        Twin("Admit", "full_fit", "Conservation"),
        Twin("Wait", "in_flight", "idle call runs nothing"),
        Twin("HeadEnd", "rejected", "promoted", note="Feasible: a request that fits nowhere wedges"),
        Twin("Dispatch", "over", "NoWedge"),
        Twin("XferFail", "fails_left", "numbers"),
    ],
    assumptions=(
        Assumption(
            "run_positions",
            "model",
            "In theory commit the running loop visits requests by a fixed position; the running "
            "list of an engine changes its order as requests are re-admitted.",
            ("commit",),
        ),
        Assumption(
            "closed",
            "scope",
            "M0, M1 and M2 are sums over all requests: theory commit is about a closed system.",
            ("commit",),
        ),
    ),
)
