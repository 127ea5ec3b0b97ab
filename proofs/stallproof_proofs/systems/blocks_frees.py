"""How blocks are given up and loads are started: GateLoads, and DeferFrees."""

from __future__ import annotations

import z3

from stallproof_proofs.logic import Action, Bool, State, System, forall, ite, zmax
from stallproof_proofs.systems.blocks import (
    ADMITTED,
    OVER,
    STARTED,
    W,
    admit_load,
    alloc,
    b,
    begin,
    cache,
    copy,
    device_done,
    e,
    e0,
    end,
    expire,
    g0,
    held,
    init,
    j0,
    late_report,
    load_done,
    newest,
    process,
    process_report,
    r0,
    racing,
    read,
    reader_start,
    reset_cache,
    run,
    share,
    vocabulary,
    x,
    x0,
)

# ------------------------------------------------------------------ GateLoads


def start(s: State) -> Action:
    """The connector is told about ``x0``: from now on it may write. This is the gate."""
    return Action(
        "Start",
        {"admitted": s.xst(x0) == ADMITTED, "device_done": s.xgate(x0) <= s.done()},
        {
            "xst": lambda q: ite(q == x0, STARTED, s.xst(q)),
            "wr": lambda q: z3.Or(s.wr(q), q == x0),
            "raced": lambda k: z3.Or(s.raced(k), z3.And(s.xw(x0, k), s.touch(k) > s.done())),
        },
        (x0,),
        "Start / update_state_after_alloc, delayed",
    )


def load_sync(s: State) -> Action:
    """Synchronous load: the step being built starts to write ``W`` at once, unordered with earlier steps."""
    return Action(
        "LoadSync",
        {
            "in_call": s.building(),
            "in_pool": forall(b, z3.Implies(W(b), s.pool(b) >= 1)),
            "no_reader": forall(b, z3.Implies(W(b), z3.Not(read(s, b)))),
            "quiescent": forall(b, z3.Implies(W(b), s.bfence(b) <= s.done())),
        },
        {
            "pool": lambda k: s.pool(k) - ite(W(k), 1, 0),
            "own": lambda q, k: z3.Or(s.own(q, k), z3.And(q == r0, W(k))),
            "valid": lambda k: z3.And(s.valid(k), z3.Not(W(k))),
            "shared": lambda k: z3.And(s.shared(k), z3.Not(W(k))),
            "epoch": lambda k: s.epoch(k) + ite(W(k), 1, 0),
            "touch": lambda k: ite(W(k), newest(s), s.touch(k)),
            "raced": lambda k: z3.Or(s.raced(k), z3.And(W(k), z3.Or(s.touch(k) > s.done(), racing(s, k)))),
            "last": lambda q: ite(q == r0, newest(s), s.last(q)),
        },
        (r0, W),
        "synchronous load, quiescent blocks by selection",
    )


def free(s: State) -> Action:
    """``r0`` gives up blocks ``W`` at once: finish, abort, preemption, eviction, pruning (``W`` a part).

    A load of ``r0`` that has not started is cancelled by it: it will never start. The fence ``g0`` of its
    blocks is any step not before the last one that schedules ``r0``, nor before the last one that zeroed or
    copied blocks of anybody. The newest step is one of them; a load need not wait for it.
    """
    return Action(
        "Free",
        {
            "owned": forall(b, z3.Implies(W(b), s.own(r0, b))),
            "not_started": forall(
                x, b, z3.Implies(z3.And(W(b), s.xreq(x) == r0, s.xw(x, b)), s.xst(x) != STARTED)
            ),
            "fence_names": s.last(r0) <= g0,
            "fence_moved": s.moved() <= g0,
        },
        {
            "own": lambda q, k: z3.And(s.own(q, k), z3.Not(z3.And(q == r0, W(k)))),
            "pool": lambda k: s.pool(k) + ite(z3.And(W(k), z3.Not(held(s, k, no_r=r0))), 1, 0),
            "bfence": lambda k: ite(W(k), zmax(s.bfence(k), g0), s.bfence(k)),
            "xst": lambda q: ite(z3.And(s.xreq(q) == r0, s.xst(q) == ADMITTED), OVER, s.xst(q)),
        },
        (r0, W, g0),
        "Release / Free / Prune, immediate",
    )


def reader_end(s: State, fenced: bool) -> Action:
    """Reader ``j0`` has completed, or was flushed ahead of a reuse; its pins go."""
    guards = {"live": s.jlive(j0)}
    if fenced:
        guards["pin_fence"] = s.jlast(j0) <= s.proc()
    return Action(
        "ReaderEnd",
        guards,
        {
            "jlive": lambda q: z3.And(s.jlive(q), q != j0),
            "pin": lambda q, k: z3.And(s.pin(q, k), q != j0),
            "pool": lambda k: s.pool(k) + ite(z3.And(s.pin(j0, k), z3.Not(held(s, k, no_j=j0))), 1, 0),
            "bfence": lambda k: ite(s.pin(j0, k), zmax(s.bfence(k), newest(s)), s.bfence(k)),
        },
        (j0,),
        "Stored / Unpin",
    )


# ------------------------------------------------------------------ DeferFrees


def _unfenced(s: State) -> Action:
    """``Free`` without the fence that only a gate reads."""
    a = free(s)
    return Action(a.name, {n: g for n, g in a.guards.items() if not n.startswith("fence_")}, a.updates)


def free_now(s: State) -> Action:
    """``r0`` gives up ``W`` at once, because no unprocessed step schedules it (prunings included)."""
    a = _unfenced(s)
    guards = {**a.guards, "fence_passed": s.last(r0) <= s.proc()}
    updates = {n: u for n, u in a.updates.items() if n not in ("xst", "bfence")}
    return Action("FreeNow", guards, updates, (r0, W), "Release, nothing in flight")


def defer(s: State) -> Action:
    """``r0`` gives up ``W``; entry ``e0`` holds them until the newest step is processed."""
    a = _unfenced(s)
    return Action(
        "Defer",
        {**a.guards, "new": z3.Not(s.live(e0))},
        {
            "own": a.updates["own"],
            "live": lambda q: z3.Or(s.live(q), q == e0),
            "dfd": lambda q, k: ite(q == e0, W(k), s.dfd(q, k)),
            "fence": lambda q: ite(q == e0, newest(s), s.fence(q)),
            "pos": lambda q: ite(q == e0, s.tail(), s.pos(q)),
            "tail": lambda: s.tail() + 1,
        },
        (r0, e0, W),
        "Release, deferred (#45357)",
    )


def drain(s: State) -> Action:
    """The oldest entry ``e0`` goes back to the pool, once its fence is processed."""
    return Action(
        "Drain",
        {
            "live": s.live(e0),
            "fence_passed": s.fence(e0) <= s.proc(),
            "head": forall(e, z3.Implies(s.live(e), s.pos(e0) <= s.pos(e))),
        },
        {
            "live": lambda q: z3.And(s.live(q), q != e0),
            "pool": lambda k: s.pool(k) + ite(z3.And(s.dfd(e0, k), z3.Not(held(s, k, no_e=e0))), 1, 0),
            "bfence": lambda k: ite(s.dfd(e0, k), zmax(s.bfence(k), newest(s)), s.bfence(k)),
        },
        (e0,),
        "Drain",
    )


def gate_loads_actions(s: State) -> list[Action]:
    return [
        begin(s),
        end(s),
        device_done(s),
        process(s, fenced=False),
        alloc(s),
        share(s),
        run(s),
        copy(s),
        cache(s),
        reset_cache(s),
        reader_start(s),
        reader_end(s, fenced=False),
        admit_load(s, gate=True),
        start(s),
        load_sync(s),
        process_report(s),
        load_done(s),
        expire(s),
        late_report(s),
        free(s),
    ]


def defer_frees_actions(s: State) -> list[Action]:
    return [
        begin(s),
        end(s),
        device_done(s),
        process(s, fenced=True),
        alloc(s),
        share(s),
        run(s),
        copy(s),
        cache(s),
        reset_cache(s),
        reader_start(s),
        reader_end(s, fenced=True),
        admit_load(s, gate=False),
        process_report(s),
        load_done(s),
        expire(s),
        late_report(s),
        free_now(s),
        defer(s),
        drain(s),
    ]


def no_entries(s: State) -> list[Bool]:
    """GateLoads has no deferred queue."""
    return [forall(e, z3.Not(s.live(e)))]


gate_loads = System(
    "GateLoads", vocabulary, init, gate_loads_actions, "frees immediate, load starts gated", no_entries
)
defer_frees = System("DeferFrees", vocabulary, init, defer_frees_actions, "frees fenced, loads start at once")
