"""What holds of OneOrder where late tokens are dropped and patience is at least D - 1."""

from __future__ import annotations

import z3

from stallproof_proofs.logic import Action, Bool, Expr, State, forall
from stallproof_proofs.statements import order as delivered
from stallproof_proofs.systems.dropped import at_window
from stallproof_proofs.systems.order import at_start, component, less, order, q, same, u, v

statements = delivered.statements
consequences = delivered.consequences


def since_window(s: State, t: State) -> Bool:
    """The oldest request whose measure changed since the window began has gone down (one has)."""
    changed = lambda w: z3.Not(same(component(t, w), at_window(s, w)))  # noqa: E731
    first = forall(u, z3.Implies(order(u) < order(v), z3.Not(changed(u))))
    return forall(v, z3.Implies(z3.And(changed(v), first), less(component(t, v), at_window(s, v))))


def gone_down(s: State, w: Expr) -> Bool:
    """A request ahead of ``w`` that held blocks when the window began has gone down since.

    Or one that took over the blocks of a session's last turn since then.
    """
    down = z3.And(s.heldw(q), less(component(s, q), at_window(s, q)))
    return z3.Exists([q], z3.And(order(q) < order(w), down))


def action_statements(s: State, t: State, a: Action) -> dict[str, Bool]:
    """Those of theory order, but for a call that loses a token.

    LostPaid          a token is lost only if a request ahead of its own that held blocks when the window
                      began has gone down since (or one that took them over, as the next turn of a session)
    Decreases         as in theory order, of every call that loses no token and every action between calls
    Decreases.window  a call that loses a token is the last of its window (it does not wait), and the vector
                      is lower than when the window began
    """
    out = delivered.action_statements(s, t, a)
    out.pop("NothingLost", None)
    if a.name == "Dispatch":
        out["Decreases"] = z3.Implies(z3.Not(s.lost()), out["Decreases"])
        changed = z3.Exists([q], z3.Not(same(component(t, q), at_start(s, q))))
        anew = z3.Exists([q], z3.Not(same(component(t, q), at_window(s, q))))
        acts = z3.Or(s.moved(), s.all(), s.cut())
        out["Decreases.strict"] = z3.Implies(acts, z3.If(s.lost(), anew, changed))
        out["Decreases.window"] = z3.Implies(s.lost(), z3.And(z3.Not(t.pw()), since_window(s, t)))
    if a.name in ("Preempt", "SelfPreempt"):
        w = a.params[-1]
        out["LostPaid"] = z3.Implies(s.ph(w) > 0, gone_down(s, w))
    return out
