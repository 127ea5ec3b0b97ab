"""RefCount, exactly."""

from __future__ import annotations

import z3

from stallproof_proofs.logic import Action, Bool, State, forall
from stallproof_proofs.systems.refcount import b, e, r, r0


def statements(s: State) -> dict[str, Bool]:
    """RefCount.exact   the count of a block is the number of its holders, deferred entries included
    RefCount.pool       a block is in the pool, once, iff its count is zero
    RefCount.positive   whoever holds a block sees a positive count
    """
    return {
        "RefCount.exact": forall(b, s.ref(b) == s.Hown(b) + s.Hdfd(b)),
        "RefCount.pool": forall(b, s.pool(b) == z3.If(s.ref(b) == 0, 1, 0)),
        "RefCount.positive": forall(b, s.ref(b) >= 0),
    }


def action_statements(s: State, t: State, a: Action) -> dict[str, Bool]:
    """NoDoubleFree: what goes back to the pool had this one reference, and is there once."""
    if a.name not in ("Drop", "Drain"):
        return {}
    returned = t.pool(b) > s.pool(b)
    nobody = z3.And(z3.Not(z3.Exists([r], t.own(r, b))), z3.Not(z3.Exists([e], t.dfd(e, b))))
    out = {"NoDoubleFree": forall(b, z3.Implies(returned, z3.And(t.pool(b) == 1, s.ref(b) == 1)))}
    if a.name == "Drop":
        out["NoDoubleFree.last"] = forall(b, z3.Implies(returned, z3.And(s.own(r0, b), nobody)))
    return out
