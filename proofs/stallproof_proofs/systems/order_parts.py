"""Parts of the micro-steps of theory order: what a request takes, gives up, and leaves as a mark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import z3

from stallproof_proofs.logic import Action, Bool, Expr, State, ite, zmax
from stallproof_proofs.sums import moved
from stallproof_proofs.systems.order import (
    IDLING,
    SUMS,
    WAITING,
    Dropped,
    Look,
    goal,
    n0,
    order,
    r0,
)

Updates = Mapping[str, Callable[..., Expr]]


def at(s: State, r: Expr, **values: Any) -> dict[str, Callable[..., Expr]]:
    """Per-request variables changed for ``r`` only."""
    return {n: (lambda w, n=n, x=x: ite(w == r, x, getattr(s, n)(w))) for n, x in values.items()}


def mark(s: State, var: str, r: Expr) -> dict[str, Callable[..., Expr]]:
    return {var: lambda w: z3.Or(getattr(s, var)(w), w == r)}


def const(**values: Any) -> dict[str, Callable[..., Expr]]:
    return {n: partial(_lift, x) for n, x in values.items()}


def _lift(x: Any) -> Expr:
    return z3.BoolVal(x) if isinstance(x, bool) else x if z3.is_expr(x) else z3.IntVal(x)


def unless(cond: Bool, then: Callable[..., Expr], other: Callable[..., Expr]) -> Expr:
    return ite(cond, then(), other())


def lower(s: State, r: Expr) -> dict[str, Callable[..., Expr]]:
    """Ghost: remember the oldest request known to have gone down in this call."""
    keep = z3.And(s.hasd(), order(s.dw()) < order(r))
    return {"dw": lambda: ite(keep, s.dw(), r), "hasd": lambda: z3.BoolVal(True)}


def evict(s: State, w: Expr) -> dict[str, Callable[..., Expr]]:
    """``w`` gives its blocks up for ``r0``, which the loop now has to serve."""
    return {
        **give_up(s, w, st=ite(s.st(w) == IDLING, IDLING, WAITING)),
        **const(hast=True, tgt=r0, owes=True, moved=True, acted=True),
        "hasd": lambda: z3.And(s.hasd(), z3.Or(s.dw() != w, s.st(w) == IDLING)),
    }


def preempt(s: State, w: Expr) -> dict[str, Callable[..., Expr]]:
    """``Preempt`` of ``w`` for ``r0``; its late token is lost where late tokens are dropped (``DropStale``).

    It lowers the measure of ``w``: a prefill that may be preempted had no room.
    """
    return {
        **give_up(s, w, st=z3.IntVal(WAITING), ph=ite(Dropped, 0, s.ph(w))),
        **const(hast=True, tgt=r0, moved=True, acted=True),
        **lower(s, w),
    }


def act(
    s: State,
    name: str,
    actor: Expr,
    guards: Mapping[str, Bool],
    updates: Updates,
    source: str,
    params: tuple[Any, ...] = (),
) -> Action:
    return moved(s, Action(name, guards, updates, params or (actor,), source), actor, SUMS)


def rederived(s: State, a: Action, actor: Expr, **updates: Callable[..., Expr]) -> Action:
    """``a`` with some updates replaced and the sums derived again; for twins."""
    own = {n: x for n, x in {**a.updates, **updates}.items() if n not in {t.name for t in SUMS}}
    return moved(s, Action(a.name, a.guards, own, a.params, a.source), actor, SUMS)


def take(s: State, r: Expr, extra: Mapping[str, Any]) -> dict[str, Callable[..., Expr]]:
    """``Grab`` and ``TakeStep``: blocks for ``n0`` tokens; a token is committed iff the rest is scheduled."""
    grab = zmax(s.comp(r) + n0 + Look - s.own(r), 0)
    whole = n0 == goal(s, r) - s.comp(r)
    prefill = extra.get("pf", s.pf(r))
    extra = {n: x for n, x in extra.items() if n != "pf"}
    return {
        **at(
            s,
            r,
            own=s.own(r) + grab,
            comp=s.comp(r) + n0,
            ph=s.ph(r) + ite(whole, 1, 0),
            **extra,
            pf=z3.And(z3.Not(whole), prefill),
        ),
        **const(
            free=s.free() - grab,
            budget=s.budget() - n0,
            all=True,
            moved=True,
            acted=True,
            hast=False,
            owes=False,
        ),
        **lower(s, r),
    }


def give_up(s: State, w: Expr, **extra: Any) -> dict[str, Callable[..., Expr]]:
    """``Release`` of everything ``w`` holds."""
    return {
        **at(s, w, own=z3.IntVal(0), comp=z3.IntVal(0), pf=z3.BoolVal(False), **extra),
        **const(free=s.free() + s.own(w)),
    }
