"""Exact sums over all requests as state variables.

``Sum("Sown", term)`` stands for the sum of ``term(s, q, *index)`` over every request ``q``. An action that
changes one request ``a`` moves the sum by ``term(after, a) - term(before, a)``; nothing is written by hand.
Two things justify it, and both are checked: the *footprint* (no other request's term changes, one
obligation per action and sum) and the lemma that a sum moves by the change of its one changed term (theory
``sums``, by induction).

:func:`facts` are the instances of further sum lemmas that a proof may use; each is proved in ``sums``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import z3

from stallproof_proofs.logic import Action, Bool, Changes, Expr, State, after, changes, forall


@dataclass(frozen=True)
class Sum:
    """``name`` is the state variable, ``over`` the sort that is summed over, ``index`` further sorts."""

    name: str
    term: Callable[..., Expr]
    index: tuple[z3.SortRef, ...] = ()
    over: Any = None


def moved(s: State, action: Action, actor: Expr, sums: Sequence[Sum]) -> Action:
    """``action`` of one request, with the updates of all sums that it derives."""
    post = action.post(s)
    updates: dict[str, Any] = dict(action.updates)
    for t in sums:
        probe = [z3.FreshConst(i) for i in t.index]
        if t.term(s, actor, *probe).eq(t.term(post, actor, *probe)):
            continue

        def update(*ix: Expr, t: Sum = t) -> Expr:
            return getattr(s, t.name)(*ix) + t.term(post, actor, *ix) - t.term(s, actor, *ix)

        updates[t.name] = update
    return replace(action, updates=updates, actors={**action.actors, **{t.name: actor for t in sums}})


def footprint(
    s: State, action: Action, t: Sum, *, exempt: bool = True, change: Changes | None = None
) -> Bool:
    """No request but the actor has a changed term (``exempt`` off: the actor neither).

    ``change``, if it is known: what the action makes of the symbolic state ``s``.
    """
    if change is None:
        change = changes(s, action.post(s))
    ix = [z3.Const(f"i{n}!", i) for n, i in enumerate(t.index)]
    q = z3.Const("q!", t.over)
    term = {"": t.term(s, q, *ix)}
    same = term[""] == after(change, term)[""]
    actor = action.actors.get(t.name)
    body = same if actor is None or not exempt else z3.Implies(q != actor, same)
    return forall(q, *ix, body)


def members(s: State, t: Sum, q: Expr) -> Bool:
    """Terms are not negative, so none exceeds the sum. (``sums/member``)"""
    ix = [z3.FreshConst(i) for i in t.index]
    return forall(q, *ix, z3.And(t.term(s, q, *ix) >= 0, t.term(s, q, *ix) <= getattr(s, t.name)(*ix)))


def pair(s: State, t: Sum, q: Expr, with_: Expr) -> Bool:
    """No two terms of naturals exceed the sum. (``sums/pair``)"""
    ix = [z3.FreshConst(i) for i in t.index]
    two = t.term(s, q, *ix) + t.term(s, with_, *ix)
    return forall(q, *ix, z3.Implies(q != with_, two <= getattr(s, t.name)(*ix)))


def positive(s: State, t: Sum, q: Expr, *ix: Expr, but: Expr | None = None) -> Bool:
    """A sum above the term of ``but`` (above 0) has another positive term. (``sums/positive``)"""
    rest = getattr(s, t.name)(*ix) - (t.term(s, but, *ix) if but is not None else 0)
    other = z3.And(t.term(s, q, *ix) > 0, q != but if but is not None else True)
    return z3.Implies(rest > 0, z3.Exists([q], other))


def below(
    s: State, small: Sum, big: Sum, q: Expr, six: Sequence[Expr], bix: Sequence[Expr], but: Expr | None = None
) -> Bool:
    """Termwise ``<=``, except at ``but``, gives ``<=`` of the sums without ``but``. (``sums/below``)"""
    term = small.term(s, q, *six) <= big.term(s, q, *bix)
    rest: Any = getattr(s, small.name)(*six) <= getattr(s, big.name)(*bix)
    if but is not None:
        term = z3.Implies(q != but, term)
        rest = getattr(s, small.name)(*six) - small.term(s, but, *six) <= getattr(s, big.name)(
            *bix
        ) - big.term(s, but, *bix)
    return z3.Implies(z3.ForAll([q], term), rest)
