"""SaveSafe and RestoreSafe, for any number of requests and staging rows."""

from __future__ import annotations

import z3

from stallproof_proofs.logic import Bool, State, exists, forall
from stallproof_proofs.systems.save_restore import RESTORING, SAVED, SAVING, i, pending, r


def statements(s: State) -> dict[str, Bool]:
    """SaveSafe      the record of a saved request has the request's content
    RestoreSafe   every scatter wrote its request's content
    NoLeak.row    who is being saved or restored has a row whose copy ends that
    """
    between = z3.Or(s.st(r) == SAVING, s.st(r) == RESTORING)
    row = exists(i, z3.And(pending(s, i), z3.Not(s.orphan(i)), s.of(i) == r))
    return {
        "SaveSafe": forall(r, z3.Implies(s.st(r) == SAVED, s.host(r) == r)),
        "RestoreSafe": z3.Not(s.wrong()),
        "NoLeak.row": forall(r, z3.Implies(between, row)),
    }
