"""Block safety: the statements, for any system over the vocabulary of ``systems.blocks``.

Names are those of ``spec/Properties.tla``; a suffix after a dot is one conjunct of the property.
"""

from __future__ import annotations

import z3

from stallproof_proofs.logic import Bool, State, forall
from stallproof_proofs.systems.blocks import OVER, STARTED, b, e, held, j, r, r2, x


def statements(s: State) -> dict[str, Bool]:
    """What must hold in every state.

    RefCount      a block that anybody holds is not in the pool
    NoLeak        a block that nobody holds is in the pool
    NoDoubleFree  no block is in the pool twice
    OneOwner      a block that was never shared has one owner; a quarantined block has none
    InFlightSafe  no unordered write met work that was not device done; none does now
    XferSafe      what an unfinished transfer writes belongs to its request, or is quarantined
    StoreSafe     a block is handed out again only after its unordered readers have ended
    BoundedWait   a transfer is over for the engine only when it writes no more
    """
    return {
        "RefCount.own": forall(r, b, z3.Implies(s.own(r, b), s.pool(b) < 1)),
        "RefCount.pin": forall(j, b, z3.Implies(s.pin(j, b), s.pool(b) < 1)),
        "RefCount.fenced": forall(e, b, z3.Implies(z3.And(s.live(e), s.dfd(e, b)), s.pool(b) < 1)),
        "RefCount.quarantined": forall(x, b, z3.Implies(s.quar(x, b), s.pool(b) < 1)),
        "NoLeak": forall(b, z3.Or(s.pool(b) >= 1, held(s, b))),
        "NoDoubleFree": forall(b, z3.And(s.pool(b) >= 0, s.pool(b) <= 1)),
        "OneOwner": forall(
            r, r2, b, z3.Implies(z3.And(z3.Not(s.shared(b)), s.own(r, b), s.own(r2, b)), r == r2)
        ),
        "OneOwner.quarantined": forall(x, r, b, z3.Not(z3.And(s.quar(x, b), s.own(r, b)))),
        "InFlightSafe.start": forall(b, z3.Not(s.raced(b))),
        "InFlightSafe.while": forall(x, b, z3.Implies(z3.And(s.wr(x), s.xw(x, b)), s.touch(b) <= s.done())),
        "XferSafe": forall(
            x, b, z3.Implies(z3.And(s.wr(x), s.xw(x, b)), z3.Or(s.own(s.xreq(x), b), s.quar(x, b)))
        ),
        "StoreSafe": forall(j, b, z3.Implies(z3.And(s.jlive(j), s.rd(j, b)), s.epoch(b) == s.jep(j, b))),
        "BoundedWait": forall(x, z3.Implies(s.xst(x) == OVER, z3.Not(s.wr(x)))),
        "BoundedWait.quarantine": forall(x, b, z3.Implies(s.quar(x, b), s.xst(x) == STARTED)),
    }
