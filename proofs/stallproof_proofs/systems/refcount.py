"""Explicit reference counts: what an implementation keeps, against the exact number of holders."""

from __future__ import annotations

import z3

from stallproof_proofs.logic import Action, Bool, Expr, State, System, Var, Vocabulary, forall, ite
from stallproof_proofs.sums import Sum, members, moved, pair, positive

Blk, Req, Ent = z3.DeclareSort("Blk"), z3.DeclareSort("Req"), z3.DeclareSort("Ent")
B, I = z3.BoolSort(), z3.IntSort()  # noqa: E741 - the sort of integers

vocabulary = Vocabulary(
    Var("own", (Req, Blk), B),  # r holds the block: owner or pin
    Var("dfd", (Ent, Blk), B),  # entry e of the deferred queue holds a reference
    Var("ref", (Blk,), I),
    Var("pool", (Blk,), I),  # occurrences in the free list
    Var("Hown", (Blk,), I),
    Var("Hdfd", (Blk,), I),
)

r, b, e = z3.Const("r", Req), z3.Const("b", Blk), z3.Const("e", Ent)
r0, e0 = z3.Const("r0", Req), z3.Const("e0", Ent)
W = z3.Function("W", Blk, B)

OWN = Sum("Hown", lambda s, w, k: ite(s.own(w, k), 1, 0), (Blk,), Req)
DEFERRED = Sum("Hdfd", lambda s, w, k: ite(s.dfd(w, k), 1, 0), (Blk,), Ent)


def hold(s: State) -> Action:
    """``r0`` gets blocks ``W``, fresh or shared (``touch``): one more reference, out of the pool."""
    return moved(
        s,
        Action(
            "Hold",
            {"not_holding": forall(b, z3.Implies(W(b), z3.Not(s.own(r0, b))))},
            {
                "own": lambda q, k: z3.Or(s.own(q, k), z3.And(q == r0, W(k))),
                "ref": lambda k: s.ref(k) + ite(W(k), 1, 0),
                "pool": lambda k: ite(W(k), 0, s.pool(k)),
            },
            (r0, W),
            "touch / allocate",
        ),
        r0,
        [OWN],
    )


def drop(s: State) -> Action:
    """``r0`` gives up ``W``: one reference less; at zero, back to the pool."""
    return moved(
        s,
        Action(
            "Drop",
            {"holding": forall(b, z3.Implies(W(b), s.own(r0, b)))},
            {
                "own": lambda q, k: z3.And(s.own(q, k), z3.Not(z3.And(q == r0, W(k)))),
                "ref": lambda k: s.ref(k) - ite(W(k), 1, 0),
                "pool": lambda k: s.pool(k) + ite(z3.And(W(k), s.ref(k) == 1), 1, 0),
            },
            (r0, W),
            "free",
        ),
        r0,
        [OWN],
    )


def defer(s: State) -> Action:
    """The references of ``r0`` to ``W`` move to entry ``e0``; the counts stay."""
    a = Action(
        "Defer",
        {"holding": forall(b, z3.Implies(W(b), s.own(r0, b))), "new": forall(b, z3.Not(s.dfd(e0, b)))},
        {
            "own": lambda q, k: z3.And(s.own(q, k), z3.Not(z3.And(q == r0, W(k)))),
            "dfd": lambda q, k: z3.Or(s.dfd(q, k), z3.And(q == e0, W(k))),
        },
        (r0, e0, W),
        "free, deferred",
    )
    return moved(s, moved(s, a, r0, [OWN]), e0, [DEFERRED])


def drain(s: State) -> Action:
    """Entry ``e0`` gives up what it holds."""
    return moved(
        s,
        Action(
            "Drain",
            {},
            {
                "dfd": lambda q, k: z3.And(s.dfd(q, k), q != e0),
                "ref": lambda k: s.ref(k) - ite(s.dfd(e0, k), 1, 0),
                "pool": lambda k: s.pool(k) + ite(z3.And(s.dfd(e0, k), s.ref(k) == 1), 1, 0),
            },
            (e0,),
            "drain",
        ),
        e0,
        [DEFERRED],
    )


def init(s: State) -> list[Bool]:
    return [
        forall(r, b, z3.Not(s.own(r, b))),
        forall(e, b, z3.Not(s.dfd(e, b))),
        forall(b, z3.And(s.ref(b) == 0, s.pool(b) == 1, s.Hown(b) == 0, s.Hdfd(b) == 0)),
    ]


def facts(s: State) -> list[Bool]:
    """Facts about exact sums (theory ``sums``)."""
    k: Expr = z3.Const("k", Blk)
    return [
        members(s, OWN, r),
        members(s, DEFERRED, e),
        pair(s, OWN, r, r0),
        forall(k, positive(s, OWN, r, k)),
        forall(k, positive(s, DEFERRED, e, k)),
        forall(k, positive(s, OWN, r, k, but=r0)),
        forall(k, positive(s, DEFERRED, e, k, but=e0)),
    ]


system = System("RefCounts", vocabulary, init, lambda s: [hold(s), drop(s), defer(s), drain(s)], "", facts)
