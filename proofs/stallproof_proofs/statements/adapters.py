"""AdapterShare: never an adapter too many, and who waits for its own is overtaken finitely often."""

from __future__ import annotations

import z3

from stallproof_proofs.logic import Bool, State
from stallproof_proofs.systems.adapters import Bound, Most, has, q, r0, slot


def statements(s: State) -> dict[str, Bool]:
    """What holds in every state.

    AdapterShare           at most MaxLoras adapters among all running requests
    AdapterShare.overtaken as long as one request is the first that waits for its adapter, at most
                           AdapterBound newcomers with adapters behind it are given blocks while it lacks its
                           own, times between when no adapter is lacking included (AdapterWatch = always)
    """
    return {
        "AdapterShare": s.Nada() <= Most,
        "AdapterShare.overtaken": z3.And(s.past() >= 0, s.past() <= Bound),
    }


def consequences(s: State) -> dict[str, Bool]:
    """What follows in every state.

    AdapterShare.waits  who lacks an adapter waits for a request that runs with one, never for nothing
    """
    return {
        "AdapterShare.waits": z3.Implies(z3.Not(slot(s, r0)), z3.Exists([q], z3.And(s.run(q), has(q)))),
    }
