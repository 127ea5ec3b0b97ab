"""Save and restore: staging rows between the device's stream and a store, as in ``spec/SaveRestore.tla``.

Only what the copies carry is modelled here: any number of requests and rows. That no unordered writer meets a
gather or a scatter is a fact about blocks, and theory ``blocks.gate`` has it: for blocks, a gather is the
action ``Run`` of the holder in the call that takes its blocks, a scatter is ``Run`` of the request on fresh
ones. So a gather reads what the request wrote, which ``Gathered`` below takes from there.
"""

from __future__ import annotations

import z3

from stallproof_proofs.logic import Action, Bool, State, System, Var, Vocabulary, forall, ite

Req, Row = z3.DeclareSort("Req"), z3.DeclareSort("Row")
B, I = z3.BoolSort(), z3.IntSort()  # noqa: E741 - the sort of integers

#: what a row is used for: gather submitted, gathered; copy from the store begun, here, scatter submitted
FREE, GATHERING, GATHERED, COMING, HERE, SCATTERING = range(6)
#: states of a request; without blocks and without a record: new
NEW, RUN, SAVING, SAVED, RESTORING = range(5)

vocabulary = Vocabulary(
    Var("st", (Req,), I),
    Var("use", (Row,), I),
    Var("of", (Row,), Req),
    Var("orphan", (Row,), B),  # the request has gone: the copy still ends, and nothing follows
    Var("rdata", (Row,), Req),  # whose content is in the row
    Var("host", (Req,), Req),  # whose content the record of a request has
    Var("wrong", (), B),  # ghost: a scatter wrote what is not its request's
)

r0, i0 = z3.Const("r0", Req), z3.Const("i0", Row)
r, i, j = z3.Const("r", Req), z3.Const("i", Row), z3.Const("j", Row)


def admit(s: State) -> Action:
    """Computed, or loaded: the request is resident."""
    return Action(
        "Admit",
        {"new": s.st(r0) == NEW},
        {"st": lambda q: ite(q == r0, RUN, s.st(q))},
        (r0,),
        "Admit / StartLoad",
    )


def leave(s: State) -> Action:
    """It ends, is evicted without a save, or a saved one is computed again."""
    return Action(
        "Leave",
        {"at_rest": z3.Or(s.st(r0) == RUN, s.st(r0) == SAVED)},
        {"st": lambda q: ite(q == r0, NEW, s.st(q))},
        (r0,),
        "Finish / EvictPlain / Forget",
    )


def evict_save(s: State) -> Action:
    """The gather is submitted ahead of whatever reuses the blocks."""
    return Action(
        "EvictSave",
        {"resident": s.st(r0) == RUN, "row_free": s.use(i0) == FREE},
        {
            "st": lambda q: ite(q == r0, SAVING, s.st(q)),
            "use": lambda k: ite(k == i0, GATHERING, s.use(k)),
            "of": lambda k: ite(k == i0, r0, s.of(k)),
            "orphan": lambda k: z3.And(s.orphan(k), k != i0),
        },
        (r0, i0),
        "EvictSave",
    )


def gathered(s: State) -> Action:
    """The device has run the gather."""
    return Action(
        "Gathered",
        {"submitted": s.use(i0) == GATHERING},
        {
            "rdata": lambda k: ite(k == i0, s.of(i0), s.rdata(k)),
            "use": lambda k: ite(k == i0, GATHERED, s.use(k)),
        },
        (i0,),
        "Exec of a gather",
    )


def copy_out(s: State) -> Action:
    """The copy engine has taken the row to the store; an orphan's row is given back all the same."""
    return Action(
        "CopyOut",
        {"gathered": s.use(i0) == GATHERED},
        {
            "host": lambda q: ite(z3.And(q == s.of(i0), z3.Not(s.orphan(i0))), s.rdata(i0), s.host(q)),
            "st": lambda q: ite(z3.And(q == s.of(i0), z3.Not(s.orphan(i0))), SAVED, s.st(q)),
            "use": lambda k: ite(k == i0, FREE, s.use(k)),
        },
        (i0,),
        "CopyOut",
    )


def restore(s: State) -> Action:
    return Action(
        "Restore",
        {"saved": s.st(r0) == SAVED, "row_free": s.use(i0) == FREE},
        {
            "st": lambda q: ite(q == r0, RESTORING, s.st(q)),
            "use": lambda k: ite(k == i0, COMING, s.use(k)),
            "of": lambda k: ite(k == i0, r0, s.of(k)),
            "orphan": lambda k: z3.And(s.orphan(k), k != i0),
        },
        (r0, i0),
        "Restore",
    )


def copy_in(s: State) -> Action:
    """The row has come from the store; an orphan's is given back."""
    return Action(
        "CopyIn",
        {"coming": s.use(i0) == COMING},
        {
            "rdata": lambda k: ite(k == i0, s.host(s.of(i0)), s.rdata(k)),
            "use": lambda k: ite(k == i0, ite(s.orphan(i0), FREE, HERE), s.use(k)),
        },
        (i0,),
        "CopyIn",
    )


def scatter(s: State) -> Action:
    """Submitted ahead of the steps that read: the request is resident again."""
    return Action(
        "Scatter",
        {"here": s.use(i0) == HERE},
        {
            "use": lambda k: ite(k == i0, SCATTERING, s.use(k)),
            "st": lambda q: ite(q == s.of(i0), RUN, s.st(q)),
        },
        (i0,),
        "Scatter",
    )


def scattered(s: State) -> Action:
    """The device has run the scatter; the row is free."""
    return Action(
        "Scattered",
        {"submitted": s.use(i0) == SCATTERING},
        {
            "wrong": lambda: z3.Or(s.wrong(), s.rdata(i0) != s.of(i0)),
            "use": lambda k: ite(k == i0, FREE, s.use(k)),
        },
        (i0,),
        "Exec of a scatter",
    )


def abort(s: State) -> Action:
    """The request goes, at any moment; what runs on its row ends by itself."""
    return Action(
        "Abort",
        {},
        {
            "st": lambda q: ite(q == r0, NEW, s.st(q)),
            "orphan": lambda k: z3.Or(s.orphan(k), z3.And(s.of(k) == r0, pending(s, k))),
            "use": lambda k: ite(z3.And(s.of(k) == r0, s.use(k) == HERE), FREE, s.use(k)),
        },
        (r0,),
        "Abort",
    )


def pending(s: State, k: z3.ExprRef) -> Bool:
    """A copy on row ``k`` has still to end before its request is saved or resident."""
    return z3.And(s.use(k) != FREE, s.use(k) != SCATTERING)


def init(s: State) -> list[Bool]:
    return [
        forall(r, s.st(r) == NEW),
        forall(i, z3.And(s.use(i) == FREE, z3.Not(s.orphan(i)))),
        z3.Not(s.wrong()),
    ]


system = System(
    "SaveRestore",
    vocabulary,
    init,
    lambda s: [
        admit(s), leave(s), evict_save(s), gathered(s), copy_out(s), restore(s), copy_in(s), scatter(s),
        scattered(s), abort(s),
    ],
)  # fmt: skip
