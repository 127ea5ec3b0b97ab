"""NoStarvation and the bypass bound where blocks are shared."""

from __future__ import annotations

import z3

from stallproof_proofs.logic import Bool, State
from stallproof_proofs.statements import starvation as unshared
from stallproof_proofs.systems.order import order, q
from stallproof_proofs.systems.starvation import o

action_statements = unshared.action_statements


def statements(s: State) -> dict[str, Bool]:
    """As in theory starvation, but any number of requests may hold the same block.

    Bypass  while o is in line, every request behind it that holds blocks has held some ever since o got in
            line, and there are at most as many as then (which may be more than the pool has blocks)
    OneTurn and while o is the oldest that waits none of them begins more than one turn of a session
    """
    newcomer = z3.And(order(q) > order(o), s.own(q) > 0, z3.Not(s.since(q)))
    none = z3.Not(z3.Exists([q], newcomer))
    bypass = z3.Implies(s.line(), z3.And(none, s.Sbeh() <= s.h0()))
    return {"Bypass": bypass, "OneTurn": unshared.one_turn(s)}
