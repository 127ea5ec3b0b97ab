"""What holds of OneOrder where blocks are shared: the statements of theory order."""

from __future__ import annotations

import z3

from stallproof_proofs.logic import Bool, State
from stallproof_proofs.statements import order as unshared
from stallproof_proofs.systems.order import ADMLOOP, IDLING, can_load, ext, q, remaining, victim

action_statements = unshared.action_statements


def statements(s: State) -> dict[str, Bool]:
    """Conservation: nothing is negative; that nothing is lost is said in theories refcount and blocks.

    Everything else as in theory order.
    """
    return {**unshared.statements(s), "Conservation": s.free() >= 0}


def consequences(s: State) -> dict[str, Bool]:
    """EvictCoupled.go, with the hits that the target counts on."""
    t = s.tgt()
    fits = z3.If(can_load(s, t), ext(t) + s.Sres() <= s.free(), remaining(s, t) <= s.free() + s.hth())
    more = z3.Exists([q], z3.And(victim(s, q, t), z3.Implies(can_load(s, t), s.st(q) == IDLING)))
    return {"EvictCoupled.go": z3.Implies(z3.And(s.owes(), s.mode() == ADMLOOP), z3.Or(fits, more))}
