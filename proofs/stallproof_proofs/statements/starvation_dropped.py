"""NoStarvation and the bypass bound where late tokens are dropped and patience is at least D - 1."""

from __future__ import annotations

import z3

from stallproof_proofs.logic import Action, Bool, Expr, State, forall
from stallproof_proofs.statements import starvation as delivered
from stallproof_proofs.systems.dropped import at_window
from stallproof_proofs.systems.order import component, less, order, same, u, v
from stallproof_proofs.systems.starvation import o

statements = delivered.statements


def takes_part(s: State, w: Expr) -> Bool:
    """``w`` may stand between ``o`` and its blocks: not behind ``o``, or it held some when the window began.

    Or it is the next turn of a session and has taken them over since.
    """
    return z3.Or(order(w) <= order(o), s.heldw(w))


def action_statements(s: State, t: State, a: Action) -> dict[str, Bool]:
    """Those of theory starvation, but for a call that loses a token.

    NoStarvation.rank    as there, of every call that loses no token and every action between calls
    NoStarvation.window  a call that loses a token is the last of its window; of the requests that take part
                         since the window began, the oldest whose measure changed is below what it was then,
                         and one has changed: who pays for the token is one of them, never a newcomer
    NoStarvation.goes    as there
    """
    out = delivered.action_statements(s, t, a)
    if a.name != "Dispatch":
        return out
    changed = lambda w: z3.And(takes_part(s, w), z3.Not(same(component(t, w), at_window(s, w))))  # noqa: E731
    first = forall(u, z3.Implies(order(u) < order(v), z3.Not(changed(u))))
    falls = forall(v, z3.Implies(z3.And(changed(v), first), less(component(t, v), at_window(s, v))))
    some = z3.Exists([v], changed(v))
    out["NoStarvation.rank"] = z3.Implies(z3.Not(s.lost()), out["NoStarvation.rank"])
    out["NoStarvation.window"] = z3.Implies(s.lost(), z3.And(z3.Not(t.pw()), falls, some))
    return out
