"""Sharing in counts: what a set of victims gives together, block by block.

Theory order counts a block as one unit that one request holds, and its tests speak about *room*: what is
free, or held by those who may have to go. With shared blocks the room of a set W of requests is the number of
blocks that are not in quarantine and that nobody outside W holds. Each lemma is about one block ``b``;
termwise relations of indicators give the same relations of their sums (theory ``sums``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import z3

from stallproof_proofs.logic import Bool, Expr, exists, forall
from stallproof_proofs.result import Assumption
from stallproof_proofs.theory import Lemma, Lemmas

Blk, Req = z3.DeclareSort("Block"), z3.DeclareSort("Request")
B = z3.BoolSort()
holds, after = (z3.Function(n, Req, Blk, B) for n in ("holds", "holds'"))
may_go = z3.Function("W", Req, B)  # who may have to go: victims, or runners behind
quarantined, free, gain, room, room2, taken = (
    z3.Function(n, Blk, B) for n in ("quar", "free", "gain", "room", "room'", "T")
)
b, c = z3.Consts("b c", Blk)
r, x, target, victim = z3.Consts("r x target victim", Req)
total, quar, own, left, tok, look = z3.Ints("B Quar Own Room tok Look")


def one(p: Bool) -> Expr:
    """The indicator of ``p``."""
    return z3.If(p, 1, 0)


def only_w(h: Any, at: Expr) -> Bool:
    """Nobody outside W holds the block."""
    return forall(r, z3.Implies(h(r, at), may_go(r)))


def _room(name: Any, h: Any) -> Bool:
    return forall(b, name(b) == z3.And(z3.Not(quarantined(b)), only_w(h, b)))


ROOM: Mapping[str, Bool] = {"room is": _room(room, holds), "room after is": _room(room2, after)}
APART = {"quarantined apart": forall(b, z3.Implies(quarantined(b), forall(r, z3.Not(holds(r, b)))))}
FREE = {"free is": forall(b, free(b) == z3.And(z3.Not(quarantined(b)), forall(r, z3.Not(holds(r, b)))))}
GAIN = {"gain is": forall(b, gain(b) == z3.And(exists(r, holds(r, b)), only_w(holds, b)))}
GONE = {"let go": forall(r, b, after(r, b) == z3.And(holds(r, b), r != victim))}
TAKE = {"takes": forall(r, b, after(r, b) == z3.Or(holds(r, b), z3.And(r == x, taken(b))))}
ALONE = {
    "others may go": forall(r, b, z3.Implies(z3.And(holds(r, b), r != target), may_go(r))),
    "target stays": z3.Not(may_go(target)),
}


def lemmas() -> list[Lemma]:
    new = z3.And(taken(c), z3.Not(holds(x, c)))
    return [
        Lemma(
            "Room",
            {"room is": ROOM["room is"], **FREE, **GAIN, **APART},
            z3.And(one(room(c)) == one(free(c)) + one(gain(c))),
            ("gain is", "quarantined apart"),
            "room = free + what W gives together",
        ),
        Lemma(
            "EvictCoupled.sure",
            {**ROOM, **GONE, "victim": may_go(victim)},
            room2(c) == room(c),
            ("let go", "victim"),
            "a victim of W goes: the room of W is what it was, so an eviction that was sure stays sure",
        ),
        Lemma(
            "EvictCoupled.next",
            {**GAIN, "gives": gain(c)},
            exists(r, z3.And(may_go(r), holds(r, c))),
            ("gain is", "gives"),
            "as long as W gives something, one of W holds something",
        ),
        Lemma(
            "Release",
            {**ROOM, **GONE},
            z3.Implies(room(c), room2(c)),
            ("let go",),
            "whoever goes, no room gets smaller",
        ),
        Lemma(
            "Serve.within",
            {**ROOM, **TAKE, "one of W": may_go(x)},
            room2(c) == room(c),
            ("takes", "one of W"),
            "one of W takes blocks, fresh ones or prefix hits: the room of W is what it was",
        ),
        Lemma(
            "Serve.outside",
            {**ROOM, **TAKE},
            one(room(c)) - one(room2(c)) <= one(new),
            ("takes",),
            "anybody takes blocks: the room of W falls at most by those that were not its own before; the "
            "need of a target falls by as many, so it stays sure (hits on blocks of victims)",
        ),
        Lemma(
            "NoWedge.place",
            {"room is": ROOM["room is"], **APART, **ALONE},
            one(quarantined(c)) + one(holds(target, c)) + one(room(c)) == 1,
            ("others may go", "target stays", "quarantined apart"),
            "if all other holders may go, each block is in quarantine, the target's own, or room",
        ),
        Lemma(
            "NoWedge.fits",
            {
                "places": total == quar + own + left,
                "Feasible": tok + look <= total - quar,
            },
            tok + look - own <= left,
            ("places", "Feasible"),
            "so what fits the pool fits: the first holder, or the first candidate, is served",
        ),
    ]


def refuted() -> list[Lemma]:
    sole = z3.And(
        exists(x, z3.And(may_go(x), holds(x, c), forall(r, z3.Implies(holds(r, c), r == x)))),
    )
    free_after = z3.And(z3.Not(quarantined(c)), forall(r, z3.Not(after(r, c))))
    return [
        Lemma(
            "NoWedge.sole",
            {**FREE, **APART, **ALONE},
            one(quarantined(c)) + one(holds(target, c)) + one(z3.Or(free(c), sole)) == 1,
            note="each victim counted for itself (blocks that only it holds): two parked holders of one "
            "prefix give nothing, and nobody runs",
        ),
        Lemma(
            "EvictCoupled.own",
            {**APART, **GONE, "victim": may_go(victim), "holds it": holds(victim, c)},
            free_after,
            note="each victim counted with all that it holds: a shared block does not come free",
        ),
        Lemma(
            "Serve.unpinned",
            {**ROOM, **TAKE},
            room2(c) == room(c),
            note="a prefix hit of somebody outside W counted as costing nothing: it pins blocks of victims",
        ),
    ]


theory = Lemmas(
    name="sharing",
    title="Sharing in counts: joint gain",
    theorem="Blocks with any number of holders. Room of a set W: blocks that are free or come free when all "
    "of W let go. An eviction that was sure stays sure, victim by victim and through the target's own prefix "
    "hits; whoever goes, no room gets smaller; whoever takes blocks costs others at most what it takes; and "
    "if all other holders may go, what fits the pool fits. Theory shared rests on it; the core counts gain "
    "so (gain_of).",
    lemmas=lemmas,
    refuted=refuted,
    assumptions=(
        Assumption(
            "sum_facts",
            "glue",
            "Sums over requests, entries and blocks obey the lemmas of theory sums (they are sums "
            "over finitely many terms).",
            ("refcount", "order"),
        ),
    ),
)
