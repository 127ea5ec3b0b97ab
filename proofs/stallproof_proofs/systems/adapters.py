"""Adapters: who may run next to whom (``NoSlot``, ``Overtakes``, ``CountOvertaken`` of ``spec/Sched.tla``).

Blocks, steps and order of the scan play no part here: whoever is admitted next is any request that the two
rules let pass. ``hd`` is the first that waits for its adapter, or the last that was (``had``), if nobody
lacks one now (``hashd`` is false): its count is kept. ``ot`` counts as the rule does, up to the bound, and
``past`` (a ghost) counts every request that overtook it since it is first.
"""

from __future__ import annotations

import z3

from stallproof_proofs.logic import Action, Bool, Expr, State, System, Var, Vocabulary, forall, ite, zmin
from stallproof_proofs.sums import Sum, members, moved, positive

Req, Ada = z3.DeclareSort("Request"), z3.DeclareSort("Adapter")
B, I = z3.BoolSort(), z3.IntSort()  # noqa: E741 - the sort of integers

#: MaxLoras and AdapterBound
Most, Bound = z3.Ints("MaxLoras AdapterBound")
has = z3.Function("has", Req, B)  # it needs an adapter
ada = z3.Function("Adapter", Req, Ada)
order = z3.Function("ord", Req, I)

vocabulary = Vocabulary(
    Var("run", (Req,), B),
    Var("had", (), B),
    Var("hashd", (), B),
    Var("hd", (), Req),
    Var("ot", (), I),
    Var("past", (), I),
    Var("Nrun", (Ada,), I),
    Var("Nada", (), I),
)

q, r0, h0 = z3.Consts("q r0 h0", Req)
a = z3.Const("a", Ada)
holds = z3.Bool("holds")  # r0 holds blocks: it is nobody's newcomer

RUNNERS = Sum("Nrun", lambda s, w, k: ite(z3.And(s.run(w), has(w), ada(w) == k), 1, 0), (Ada,), Req)
TAKEN = Sum("Nada", lambda s, k: ite(s.Nrun(k) > 0, 1, 0), over=Ada)


def slot(s: State, r: Expr) -> Bool:
    """Not ``NoSlot``: its adapter runs, or one more may. Counted over all running requests."""
    return z3.Or(z3.Not(has(r)), s.Nrun(ada(r)) > 0, s.Nada() < Most)


def overtakes(s: State, r: Expr) -> Bool:
    return z3.And(s.hashd(), has(r), z3.Not(holds), order(s.hd()) < order(r))


def _runs(s: State, name: str, value: bool, guards: dict[str, Bool], source: str, **updates: Expr) -> Action:
    more = {n: (lambda x=x: x) for n, x in updates.items()}
    run = lambda w: ite(w == r0, z3.BoolVal(value), s.run(w))  # noqa: E731
    act = Action(name, guards, {"run": run, **more}, (r0, holds), source)
    return moved(s, moved(s, act, r0, [RUNNERS]), ada(r0), [TAKEN])


def actions(s: State) -> list[Action]:
    passes = overtakes(s, r0)
    lets = {"lets_go_first": z3.Or(s.ot() < Bound, z3.Not(passes))}
    count = {"ot": ite(passes, zmin(s.ot() + 1, Bound), s.ot()), "past": ite(passes, s.past() + 1, s.past())}
    waits = {"waits": z3.Not(s.run(r0))}
    first = {"had": lambda: z3.BoolVal(True), "hashd": lambda: z3.BoolVal(True), "hd": lambda: h0}
    same = z3.And(s.had(), s.hd() == h0)
    anew = {"ot": lambda: z3.IntVal(0), "past": lambda: ite(same, s.past(), 0)}
    return [
        _runs(s, "Admit", True, {**waits, "slot": slot(s, r0), **lets}, "Admit", **count),
        Action(
            "StartLoad",
            {**waits, "slot": slot(s, r0), **lets},
            {n: (lambda x=x: x) for n, x in count.items()},
            (r0, holds),
            "StartLoad: it overtakes, too, and runs later",
        ),
        _runs(s, "Leave", False, {"runs": s.run(r0)}, "Finish, Preempt, Idle"),
        Action(
            "Another",
            {"lacks": z3.Not(slot(s, h0)), "new": z3.Not(same)},
            {**first, **anew},
            (h0,),
            "WaitsForSlot: another request is the first that waits for its adapter",
        ),
        Action(
            "Again",
            {"lacks": z3.Not(slot(s, h0)), "same": same},
            first,
            (h0,),
            "WaitsForSlot: the same is first, or is so again",
        ),
        Action(
            "Nobody", {}, {"hashd": lambda: z3.BoolVal(False)}, (), "WaitsForSlot: none waits; not forgotten"
        ),
    ]


def init(s: State) -> list[Bool]:
    return [
        forall(q, z3.Not(s.run(q))),
        forall(a, s.Nrun(a) == 0),
        s.Nada() == 0,
        z3.Not(s.had()),
        z3.Not(s.hashd()),
        s.ot() == 0,
        s.past() == 0,
    ]


def facts(s: State) -> list[Bool]:
    """About constants and exact sums (theory ``sums``)."""
    return [
        Most >= 1,
        Bound >= 0,
        members(s, RUNNERS, q),
        members(s, TAKEN, a),
        positive(s, TAKEN, a),
        forall(a, positive(s, RUNNERS, q, a)),
    ]


system = System("Adapters", vocabulary, init, actions, "who runs, with which adapter", facts)
