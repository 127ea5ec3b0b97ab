"""Blocks with identities: pool, holders, pins, fences, transfers, unordered readers, the device.

One action per thing that can happen to a block. Any number of blocks, requests, transfers and jobs; any
number of steps in flight. A block *set* is a predicate, so one action hands out or frees any number of
blocks at once. Two systems share the vocabulary and most actions: ``GateLoads`` (immediate frees, a load
starts when its gate is device done) and ``DeferFrees`` (frees wait, loads start at once).

Ghost variables, which no guard may read: ``touch`` (the newest step whose work touches the block, the
step being built included), ``epoch`` (how often the block was handed out), ``wr`` (the transfer may still
write), ``raced`` (an unordered write met work that was not device done).

Names of actions and variables are those of ``spec/Blocks.tla`` where it has them.
"""

from __future__ import annotations

import z3

from stallproof_proofs.logic import (
    Action,
    Bool,
    Expr,
    State,
    Var,
    Vocabulary,
    exists,
    forall,
    ite,
    zmax,
)

Blk = z3.DeclareSort("Blk")
Req = z3.DeclareSort("Req")
Xfer = z3.DeclareSort("Xfer")  # one load, i.e. (request, generation)
Job = z3.DeclareSort("Job")  # a store, a send, a copy-on-write pin
Ent = z3.DeclareSort("Ent")  # an entry of the deferred-free queue
B, I = z3.BoolSort(), z3.IntSort()  # noqa: E741 - the sort of integers

#: states of a transfer
NEW, ADMITTED, STARTED, OVER = 0, 1, 2, 3

vocabulary = Vocabulary(
    Var("pool", (Blk,), I),  # occurrences in the free list; more than one is a double free
    Var("own", (Req, Blk), B),
    Var("pin", (Job, Blk), B),
    Var("quar", (Xfer, Blk), B),
    Var("live", (Ent,), B),
    Var("dfd", (Ent, Blk), B),
    Var("fence", (Ent,), I),
    Var("pos", (Ent,), I),
    Var("tail", (), I),
    Var("last", (Req,), I),  # newest step that schedules r
    Var("jlast", (Job,), I),  # newest step that uses pin j (copy-on-write)
    Var("bfence", (Blk,), I),  # recorded at release: newest step that may touch the block
    Var(
        "moved", (), I
    ),  # newest step that zeroes or copies blocks which no request that it schedules implies
    Var("valid", (Blk,), B),  # content is complete: it may be shared
    Var("shared", (Blk,), B),  # handed to somebody by a prefix hit since it was last handed out fresh
    Var("touch", (Blk,), I),
    Var("epoch", (Blk,), I),
    Var("raced", (Blk,), B),
    Var("sched", (), I),
    Var("proc", (), I),
    Var("done", (), I),
    Var("building", (), B),
    Var("xst", (Xfer,), I),
    Var("xw", (Xfer, Blk), B),
    Var("xreq", (Xfer,), Req),
    Var("xgate", (Xfer,), I),
    Var("xq", (Xfer,), B),
    Var("wr", (Xfer,), B),
    Var("rep", (Xfer,), B),
    Var("jlive", (Job,), B),
    Var("rd", (Job, Blk), B),
    Var("jep", (Job, Blk), I),
)

# Parameters of actions: what the environment or the scheduler chooses.
r0, b0, x0, j0, e0 = (
    z3.Const("r0", Req),
    z3.Const("b0", Blk),
    z3.Const("x0", Xfer),
    z3.Const("j0", Job),
    z3.Const("e0", Ent),
)
W = z3.Function("W", Blk, B)  # the blocks of this action
Z = z3.Function("Z", Blk, B)  # of those, the ones the step being built zeroes
flag = z3.Bool("flag")
g0 = z3.Int("g0")  # a step to wait for

b, r, x, j, e = (
    z3.Const("b", Blk),
    z3.Const("r", Req),
    z3.Const("x", Xfer),
    z3.Const("j", Job),
    z3.Const("e", Ent),
)
r2, x2, j2, e2 = z3.Const("r2", Req), z3.Const("x2", Xfer), z3.Const("j2", Job), z3.Const("e2", Ent)


def newest(s: State) -> Expr:
    """The newest step that exists: the one being built, or the last dispatched one."""
    return s.sched() + ite(s.building(), 1, 0)


def held(
    s: State,
    blk: Expr,
    *,
    no_r: Expr | None = None,
    no_j: Expr | None = None,
    no_e: Expr | None = None,
    no_x: Expr | None = None,
) -> Bool:
    """Somebody holds ``blk``; one holder may be left out."""
    yes = z3.BoolVal(True)
    return z3.Or(
        exists(r2, z3.And(s.own(r2, blk), r2 != no_r if no_r is not None else yes)),
        exists(j2, z3.And(s.pin(j2, blk), j2 != no_j if no_j is not None else yes)),
        exists(e2, z3.And(s.live(e2), s.dfd(e2, blk), e2 != no_e if no_e is not None else yes)),
        exists(x2, z3.And(s.quar(x2, blk), x2 != no_x if no_x is not None else yes)),
    )


def loading(s: State, req: Expr) -> Bool:
    """``req`` waits for a load: admitted, or started and not past its deadline."""
    waiting = z3.Or(s.xst(x2) == ADMITTED, z3.And(s.xst(x2) == STARTED, z3.Not(s.xq(x2))))
    return exists(x2, z3.And(s.xreq(x2) == req, waiting))


def target(s: State, blk: Expr) -> Bool:
    """Some load that is not over will write or writes ``blk``."""
    return exists(x2, z3.And(s.xw(x2, blk), z3.Or(s.xst(x2) == ADMITTED, s.xst(x2) == STARTED)))


def read(s: State, blk: Expr) -> Bool:
    """An unordered reader has not finished with ``blk``."""
    return exists(j2, z3.And(s.jlive(j2), s.rd(j2, blk)))


def racing(s: State, blk: Expr) -> Bool:
    """A transfer may write ``blk`` right now."""
    return exists(x2, z3.And(s.wr(x2), s.xw(x2, blk)))


def init(s: State) -> list[Bool]:
    """Everything in the pool, nothing has happened."""
    return [
        forall(
            b,
            z3.And(s.pool(b) == 1, s.touch(b) == 0, s.bfence(b) == 0, z3.Not(s.raced(b)), z3.Not(s.valid(b))),
        ),
        forall(r, b, z3.Not(s.own(r, b))),
        forall(j, b, z3.Not(s.pin(j, b))),
        forall(x, b, z3.Not(s.quar(x, b))),
        forall(e, z3.Not(s.live(e))),
        forall(r, s.last(r) == 0),
        forall(j, s.jlast(j) == 0),
        forall(j, z3.Not(s.jlive(j))),
        s.sched() == 0,
        s.proc() == 0,
        s.done() == 0,
        s.tail() == 0,
        s.moved() == 0,
        z3.Not(s.building()),
        forall(x, z3.And(s.xst(x) == NEW, z3.Not(s.wr(x)), z3.Not(s.rep(x)), z3.Not(s.xq(x)))),
    ]


# ------------------------------------------------------------------ actions that both systems share


def begin(s: State) -> Action:
    return Action(
        "Begin",
        {"idle": z3.Not(s.building())},
        {"building": lambda: z3.BoolVal(True)},
        (),
        "schedule() entered",
    )


def end(s: State) -> Action:
    return Action(
        "End",
        {"in_call": s.building()},
        {"building": lambda: z3.BoolVal(False), "sched": lambda: s.sched() + 1},
        (),
        "step dispatched, with or without tokens",
    )


def device_done(s: State) -> Action:
    return Action(
        "DeviceDone",
        {"dispatched": s.done() < s.sched()},
        {"done": lambda: s.done() + 1},
        (),
        "EngineContract: the device stream is in order",
    )


def process(s: State, fenced: bool) -> Action:
    guards = {"dispatched": s.proc() < s.sched()}
    if fenced:  # P6: an output event that comes before device work (drafter, post-copies) is not enough
        guards["device_done"] = s.proc() < s.done()
    return Action("Process", guards, {"proc": lambda: s.proc() + 1}, (), "Process")


def alloc(s: State) -> Action:
    """Fresh blocks ``W`` for ``r0``; the step being built may zero them."""
    return Action(
        "Alloc",
        {
            "in_call": s.building(),
            "in_pool": forall(b, z3.Implies(W(b), s.pool(b) >= 1)),
            "no_reader": forall(b, z3.Implies(W(b), z3.Not(read(s, b)))),
        },
        {
            "pool": lambda k: s.pool(k) - ite(W(k), 1, 0),
            "own": lambda q, k: z3.Or(s.own(q, k), z3.And(q == r0, W(k))),
            "valid": lambda k: z3.And(s.valid(k), z3.Not(W(k))),
            "shared": lambda k: z3.And(s.shared(k), z3.Not(W(k))),
            "epoch": lambda k: s.epoch(k) + ite(W(k), 1, 0),
            "touch": lambda k: ite(z3.And(W(k), Z(k)), newest(s), s.touch(k)),
            "raced": lambda k: z3.Or(s.raced(k), z3.And(W(k), Z(k), racing(s, k))),
            "last": lambda q: ite(q == r0, newest(s), s.last(q)),
        },
        (r0, W, Z),
        "Grab / allocate_slots",
    )


def share(s: State) -> Action:
    """Prefix hit: ``r0`` holds ``W`` as well, whether somebody else does or the pool has them."""
    return Action(
        "Share",
        {
            "in_call": s.building(),
            "valid": forall(b, z3.Implies(W(b), s.valid(b))),
        },
        {
            "pool": lambda k: ite(W(k), 0, s.pool(k)),
            "shared": lambda k: z3.Or(s.shared(k), W(k)),
            "own": lambda q, k: z3.Or(s.own(q, k), z3.And(q == r0, W(k))),
        },
        (r0, W),
        "Share / prefix hit, touch()",
    )


def run(s: State) -> Action:
    """The step being built touches blocks ``W`` of ``r0`` (forward, drafter, zeroing, poison, stamp)."""
    return Action(
        "Run",
        {
            "in_call": s.building(),
            "owned": forall(b, z3.Implies(W(b), s.own(r0, b))),
            "not_loading": z3.Not(loading(s, r0)),
        },
        {
            "touch": lambda k: ite(W(k), newest(s), s.touch(k)),
            "raced": lambda k: z3.Or(s.raced(k), z3.And(W(k), racing(s, k))),
            "last": lambda q: ite(q == r0, newest(s), s.last(q)),
        },
        (r0, W),
        "a step schedules r",
    )


def copy(s: State) -> Action:
    """The step being built touches pinned blocks (copy-on-write) or reads them."""
    return Action(
        "Copy",
        {"in_call": s.building(), "pinned": forall(b, z3.Implies(W(b), s.pin(j0, b)))},
        {
            "touch": lambda k: ite(W(k), newest(s), s.touch(k)),
            "raced": lambda k: z3.Or(s.raced(k), z3.And(W(k), racing(s, k))),
            "jlast": lambda q: ite(q == j0, newest(s), s.jlast(q)),
        },
        (j0, W),
        "copy-on-write, both ends retained",
    )


def cache(s: State) -> Action:
    """Content of blocks ``W`` of ``r0`` is complete and may be shared from now on."""
    return Action(
        "Cache",
        {"owned": forall(b, z3.Implies(W(b), s.own(r0, b))), "not_loading": z3.Not(loading(s, r0))},
        {"valid": lambda k: z3.Or(s.valid(k), W(k))},
        (r0, W),
        "cache_blocks",
    )


def reset_cache(s: State) -> Action:
    """The prefix cache is reset: contents may not be shared any more, holders stay."""
    return Action(
        "ResetCache", {}, {"valid": lambda k: z3.And(s.valid(k), z3.Not(W(k)))}, (W,), "reset_prefix_cache"
    )


def reader_start(s: State) -> Action:
    """Unordered reader ``j0`` starts on blocks ``W`` of ``r0``; with ``flag`` it pins them."""
    return Action(
        "ReaderStart",
        {
            "new": z3.And(z3.Not(s.jlive(j0)), forall(b, z3.Not(s.pin(j0, b)))),
            "owned": forall(b, z3.Implies(W(b), s.own(r0, b))),
            "not_target": forall(b, z3.Implies(W(b), z3.Not(target(s, b)))),
        },
        {
            "jlive": lambda q: z3.Or(s.jlive(q), q == j0),
            "rd": lambda q, k: ite(q == j0, W(k), s.rd(q, k)),
            "jep": lambda q, k: ite(q == j0, s.epoch(k), s.jep(q, k)),
            "pin": lambda q, k: ite(q == j0, z3.And(W(k), flag), s.pin(q, k)),
            "jlast": lambda q: ite(q == j0, 0, s.jlast(q)),
        },
        (j0, r0, W, flag),
        "store / send submitted",
    )


def process_report(s: State) -> Action:
    """Transfer ``x0`` has written its last byte; a report that names the request, not the load, is sent."""
    return Action(
        "XferDone",
        {"writing": s.wr(x0)},
        {"wr": lambda q: z3.And(s.wr(q), q != x0), "rep": lambda q: z3.Or(s.rep(q), q == x0)},
        (x0,),
        "XferDone",
    )


def reported(s: State) -> Bool:
    """A report that names the request of ``x0`` has arrived. Reports carry no generation."""
    return exists(x2, z3.And(s.rep(x2), s.xreq(x2) == s.xreq(x0)))


def load_done(s: State) -> Action:
    """The engine accepts the completion of ``x0``; the content is valid unless the load failed (``flag``)."""
    return Action(
        "LoadDone",
        {"started": s.xst(x0) == STARTED, "reported": reported(s), "not_expired": z3.Not(s.xq(x0))},
        {
            "xst": lambda q: ite(q == x0, OVER, s.xst(q)),
            "rep": lambda q: z3.And(s.rep(q), s.xreq(q) != s.xreq(x0)),
            "valid": lambda k: z3.Or(s.valid(k), z3.And(s.xw(x0, k), z3.Not(flag))),
        },
        (x0, flag),
        "Recv / LoadFailed",
    )


def expire(s: State) -> Action:
    """Deadline: the blocks that ``x0`` may still write leave their request, into quarantine."""
    return Action(
        "Expire",
        {"started": s.xst(x0) == STARTED, "once": z3.Not(s.xq(x0))},
        {
            "own": lambda q, k: z3.And(s.own(q, k), z3.Not(z3.And(q == s.xreq(x0), s.xw(x0, k)))),
            "quar": lambda q, k: z3.Or(s.quar(q, k), z3.And(q == x0, s.xw(x0, k))),
            "xq": lambda q: z3.Or(s.xq(q), q == x0),
        },
        (x0,),
        "Expire / Quarantine",
    )


def late_report(s: State) -> Action:
    """A late report (or failure, or connector reset) releases the quarantine of ``x0``."""
    return Action(
        "LateReport",
        {"started": s.xst(x0) == STARTED, "reported": reported(s), "expired": s.xq(x0)},
        {
            "xst": lambda q: ite(q == x0, OVER, s.xst(q)),
            "rep": lambda q: z3.And(s.rep(q), s.xreq(q) != s.xreq(x0)),
            "quar": lambda q, k: z3.And(s.quar(q, k), q != x0),
            "pool": lambda k: s.pool(k) + ite(z3.And(s.quar(x0, k), z3.Not(held(s, k, no_x=x0))), 1, 0),
            "bfence": lambda k: ite(s.quar(x0, k), zmax(s.bfence(k), newest(s)), s.bfence(k)),
        },
        (x0,),
        "Unquarantine",
    )


def admit_load(s: State, gate: bool) -> Action:
    """A load of ``r0`` into fresh blocks ``W``. GateLoads: it starts later. DeferFrees: it starts now.

    Its gate ``g0`` is any step not before the fences of its blocks; with ``flag`` the step being built zeroes
    some of them (``Z``), which its gate must include.
    """
    gates = {
        "gate_fence": forall(b, z3.Implies(W(b), s.bfence(b) <= g0)),
        "gate_built": forall(b, z3.Implies(z3.And(W(b), Z(b)), newest(s) <= g0)),
        "zeroes": forall(b, z3.Implies(z3.And(W(b), Z(b)), flag)),
    }
    started = {} if gate else {"wr": lambda q: z3.Or(s.wr(q), q == x0)}
    zeroing = (lambda k: z3.And(W(k), Z(k))) if gate else (lambda k: z3.BoolVal(False))
    return Action(
        "AdmitLoad",
        {
            "in_call": s.building(),
            "new": s.xst(x0) == NEW,
            "one_load": forall(
                x, z3.Implies(s.xreq(x) == r0, z3.And(s.xst(x) != ADMITTED, s.xst(x) != STARTED))
            ),
            "in_pool": forall(b, z3.Implies(W(b), s.pool(b) >= 1)),
            "no_reader": forall(b, z3.Implies(W(b), z3.Not(read(s, b)))),
            **(gates if gate else {}),
        },
        {
            "pool": lambda k: s.pool(k) - ite(W(k), 1, 0),
            "own": lambda q, k: z3.Or(s.own(q, k), z3.And(q == r0, W(k))),
            "valid": lambda k: z3.And(s.valid(k), z3.Not(W(k))),
            "shared": lambda k: z3.And(s.shared(k), z3.Not(W(k))),
            "epoch": lambda k: s.epoch(k) + ite(W(k), 1, 0),
            "xw": lambda q, k: ite(q == x0, W(k), s.xw(q, k)),
            "xreq": lambda q: ite(q == x0, r0, s.xreq(q)),
            "xgate": lambda q: ite(q == x0, g0, s.xgate(q)),
            "moved": lambda: ite(flag, newest(s), s.moved()),
            "xst": lambda q: ite(q == x0, ADMITTED if gate else STARTED, s.xst(q)),
            "touch": lambda k: ite(zeroing(k), newest(s), s.touch(k)),
            "raced": lambda k: z3.Or(
                s.raced(k),
                z3.And(zeroing(k), racing(s, k)),
                z3.BoolVal(False) if gate else z3.And(W(k), s.touch(k) > s.done()),
            ),
            **started,
        },
        (x0, r0, W, Z, g0, flag),
        "AdmitLoad / allocate_slots for a load",
    )
