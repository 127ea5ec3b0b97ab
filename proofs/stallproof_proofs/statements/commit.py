"""Conservation, Decreases (M1, M2, M3), NoWedge and EvictCoupled for commit without partial chunks."""

from __future__ import annotations

import z3

from stallproof_proofs.logic import Action, Bool, State, forall
from stallproof_proofs.statements.order import live_at_start
from stallproof_proofs.systems.order import FINISHED, LOADING, ZOMBIE, Blocks, less, q, same

#: Actions that leave (M0, M1, M2) and lower what comes after it: steps in flight, loads in
#: quarantine, deadlines of "not yet" that run.
QUIET = {"Pop", "LateDone", "Deliver", "DeliverLate", "Patience", "DeferralOver"}


def statements(s: State) -> dict[str, Bool]:
    """Natural: M0, M1 and M2 are natural numbers, so they cannot go down for ever."""
    return {
        "Conservation": z3.And(s.free() >= 0, s.free() + s.Sown() + s.Squar() == Blocks),
        "NoLeak": forall(q, z3.Implies(s.st(q) == FINISHED, s.own(q) == 0)),
        "Natural": z3.And(*(x >= 0 for x in measure(s))),
    }


def measure(s: State) -> tuple[z3.ExprRef, ...]:
    """M0: answers, failures and expiries left; M1: tokens not committed; M2: stages."""
    return s.S0(), s.S1(), s.S2()


def action_statements(s: State, t: State, a: Action) -> dict[str, Bool]:
    """Decreases     a call that changes anything but patience lowers (M0, M1, M2), so one that dispatches a
                  step may raise M3, the steps in flight; between calls each action lowers it, or leaves it
                  (QUIET)
    NoWedge       unfinished work and nothing pending outside: the call acts, or a connector said not yet
    EvictCoupled  a call does not end while a target of an eviction is not running
    """
    before = (s.S0s(), s.S1s(), s.S2s())
    if a.name == "Dispatch":
        nothing_outside = z3.And(
            s.nfls() == 0, forall(q, z3.And(s.sts(q) != LOADING, s.sts(q) != ZOMBIE)), z3.Not(s.asked())
        )
        return {
            "Decreases": z3.Or(
                less(measure(t), before),
                z3.And(z3.Not(s.moved()), z3.Not(s.all()), same(measure(t), before), t.nfl() == s.nfls()),
            ),
            "NoWedge": z3.Implies(z3.And(nothing_outside, z3.Exists([q], live_at_start(s, q))), s.acted()),
            "EvictCoupled": z3.Not(s.hast()),
        }
    if "between_calls" not in a.guards:
        return {}
    if a.name == "Pop":
        return {"Decreases": z3.And(same(measure(t), measure(s)), t.nfl() < s.nfl(), t.nfl() >= 0)}
    if a.name in QUIET:
        return {"Decreases": same(measure(t), measure(s))}
    return {"Decreases": less(measure(t), measure(s))}
