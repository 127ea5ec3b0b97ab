"""Block safety for GateLoads and DeferFrees: auxiliary conjuncts and twins."""

from __future__ import annotations

import z3

from stallproof_proofs.logic import Action, Bool, State, exists, forall, ite
from stallproof_proofs.result import Assumption
from stallproof_proofs.statements.blocks import statements
from stallproof_proofs.systems import blocks as m
from stallproof_proofs.systems import blocks_frees as frees
from stallproof_proofs.systems.blocks import ADMITTED, STARTED, W, b, e, j, r, x, x2
from stallproof_proofs.theory import Inductive, Twin, substituted


def unfinished(s: State, q: z3.ExprRef) -> Bool:
    return z3.Or(s.xst(q) == ADMITTED, s.xst(q) == STARTED)


def _common(s: State) -> dict[str, Bool]:
    writes = lambda q: z3.And(unfinished(s, q), s.xw(q, b))  # noqa: E731
    return {
        "touch<=newest": forall(b, s.touch(b) <= m.newest(s)),
        "writing=>started": forall(x, z3.Implies(s.wr(x), s.xst(x) == STARTED)),
        "report=>written": forall(x, z3.Implies(s.rep(x), z3.And(s.xst(x) == STARTED, z3.Not(s.wr(x))))),
        "one load per request": forall(
            x, x2, z3.Implies(z3.And(unfinished(s, x), unfinished(s, x2), s.xreq(x) == s.xreq(x2)), x == x2)
        ),
        "one load per block": forall(x, x2, b, z3.Implies(z3.And(writes(x), writes(x2)), x == x2)),
        "target not shareable": forall(
            x, b, z3.Implies(writes(x), z3.And(z3.Not(s.valid(b)), z3.Not(s.shared(b))))
        ),
        "target not pinned": forall(x, j, b, z3.Implies(writes(x), z3.Not(s.pin(j, b)))),
        "target held": forall(x, b, z3.Implies(writes(x), ite(s.xq(x), s.quar(x, b), s.own(s.xreq(x), b)))),
        "quarantine is of targets": forall(
            x, b, z3.Implies(s.quar(x, b), z3.And(s.xw(x, b), s.xst(x) == STARTED, s.xq(x)))
        ),
        "expired=>started once": forall(
            x, z3.Implies(s.xq(x), z3.And(s.xst(x) != ADMITTED, s.xst(x) != m.NEW))
        ),
    }


def _gate(s: State) -> dict[str, Bool]:
    return {
        "clocks": z3.And(s.done() <= s.sched(), s.proc() <= s.sched()),
        **_common(s),
        "touch recorded": forall(
            b,
            z3.Or(
                s.touch(b) <= s.bfence(b),
                exists(r, z3.And(s.own(r, b), z3.Or(s.touch(b) <= s.last(r), s.touch(b) <= s.moved()))),
                exists(j, s.pin(j, b)),
                exists(x, s.quar(x, b)),
            ),
        ),
        "fence recorded": forall(b, z3.Implies(s.pool(b) >= 1, s.touch(b) <= s.bfence(b))),
        "gate covers": forall(
            x, b, z3.Implies(z3.And(s.xst(x) == ADMITTED, s.xw(x, b)), s.touch(b) <= s.xgate(x))
        ),
        "target quiescent": forall(
            x, b, z3.Implies(z3.And(s.xst(x) == STARTED, s.xw(x, b)), s.touch(b) <= s.done())
        ),
    }


def _defer(s: State) -> dict[str, Bool]:
    return {
        "clocks": z3.And(s.proc() <= s.done(), s.done() <= s.sched()),
        **_common(s),
        "pool processed": forall(b, z3.Implies(s.pool(b) >= 1, s.touch(b) <= s.proc())),
        "target processed": forall(
            x, b, z3.Implies(z3.And(unfinished(s, x), s.xw(x, b)), s.touch(b) <= s.proc())
        ),
        "never admitted": forall(x, s.xst(x) != ADMITTED),
        "touch covered": forall(
            b,
            z3.Implies(
                s.touch(b) > s.proc(),
                z3.Or(
                    exists(r, z3.And(s.own(r, b), s.last(r) >= s.touch(b))),
                    exists(j, z3.And(s.pin(j, b), s.jlast(j) >= s.touch(b))),
                    exists(e, z3.And(s.live(e), s.dfd(e, b), s.fence(e) >= s.touch(b))),
                ),
            ),
        ),
    }


def _defer_without_step_being_built(s: State, a: Action) -> Action:
    return substituted(a, fence=lambda q: ite(q == m.e0, s.sched(), s.fence(q)))


def _defer_until_last_scheduled(s: State, a: Action) -> Action:
    return substituted(a, fence=lambda q: ite(q == m.e0, s.proc(), s.fence(q)))


def _no_refcount(s: State, a: Action) -> Action:
    return substituted(a, pool=lambda k: s.pool(k) + ite(W(k), 1, 0))


def _keep_own(s: State, a: Action) -> Action:
    return substituted(a, own=s.own)


def _no_cancel(s: State, a: Action) -> Action:
    return substituted(a, xst=s.xst)


def _free_on_expiry(s: State, a: Action) -> Action:
    """#46283 as first proposed: the blocks of a load that never answers go straight back to the pool."""
    return substituted(
        a,
        quar=s.quar,
        pool=lambda k: s.pool(k) + ite(z3.And(s.own(s.xreq(m.x0), k), s.xw(m.x0, k)), 1, 0),
    )


def _leak_on_report(s: State, a: Action) -> Action:
    return substituted(a, pool=s.pool)


_SHARED_TWINS = [
    Twin("Alloc", "in_pool", "NoDoubleFree"),
    Twin("Alloc", "no_reader", "StoreSafe"),
    Twin("AdmitLoad", "no_reader", "StoreSafe"),
    Twin("AdmitLoad", "in_pool", "one load per block"),
    Twin("AdmitLoad", "one_load", "one load per request", note="reports carry no generation"),
    Twin("Share", "valid", "target not shareable", note="a prefix hit of a block that a load still writes"),
    Twin("Run", "not_loading", "InFlightSafe.start"),
    Twin("Run", "owned", "InFlightSafe.start", note="stale block-table rows, dummy batches"),
    Twin("Cache", "not_loading", "target not shareable"),
    Twin("ReaderStart", "not_target", "target not pinned"),
    Twin("ReaderStart", "new", "NoLeak"),
    Twin("LoadDone", "reported", "BoundedWait"),
    Twin("LoadDone", "not_expired", "BoundedWait.quarantine"),
    Twin("LateReport", "reported", "BoundedWait"),
    Twin("Expire", "freed", "XferSafe", _free_on_expiry, note="#46283: reclaim without quarantine"),
    Twin("LateReport", "pool", "NoLeak", _leak_on_report),
    Twin("ReaderEnd", "pool", "NoLeak", lambda s, a: substituted(a, pool=s.pool)),
]

_GATE_TWINS = [
    *_SHARED_TWINS,
    Twin("Start", "device_done", "InFlightSafe.start", note="FenceMode None with immediate frees (0.23)"),
    Twin(
        "Start",
        "admitted",
        "BoundedWait",
        lambda s, a: Action(
            a.name,
            {"cancelled": s.xst(m.x0) == m.OVER, "device_done": a.guards["device_done"]},
            {n: u for n, u in a.updates.items() if n != "xst"},
        ),
        note="a cancelled load starts all the same",
    ),
    Twin("AdmitLoad", "gate_fence", "gate covers", note="a gate that forgets who had the blocks before"),
    Twin("AdmitLoad", "gate_built", "gate covers", note="S2: the step being built zeroes the load's blocks"),
    Twin("AdmitLoad", "zeroes", "touch recorded", note="zeroing that the fences do not hear of"),
    Twin(
        "AdmitLoad",
        "gate_device",
        "gate covers",
        lambda s, a: substituted(a, xgate=lambda q: ite(q == m.x0, s.done(), s.xgate(q))),
        note="gate on the device-done mark instead of the newest step",
    ),
    Twin("LoadSync", "quiescent", "InFlightSafe.start"),
    Twin(
        "LoadSync",
        "fence_processed",
        "InFlightSafe.start",
        lambda s, a: Action(
            a.name, {**a.guards, "quiescent": forall(b, z3.Implies(W(b), s.bfence(b) <= s.proc()))}, a.updates
        ),
        note="W1: output processed is not device done (drafter, post-copies)",
    ),
    Twin(
        "Free",
        "fence_names",
        "touch recorded",
        note="W3/S5: the fence must count the last step of the request",
    ),
    Twin(
        "Free",
        "fence_moved",
        "touch recorded",
        note="a cancelled load's blocks may be zeroed by a step in flight",
    ),
    Twin(
        "Free",
        "fence_max",
        "fence recorded",
        lambda s, a: substituted(a, bfence=lambda k: ite(W(k), m.g0, s.bfence(k))),
        note="S5: a shared block's fence is the maximum over its releases",
    ),
    Twin("Free", "not_started", "target held", note="abort or preemption under an unfinished load"),
    Twin("Free", "owned", "NoDoubleFree"),
    Twin("Free", "refcount", "RefCount.own", _no_refcount, note="a shared block freed by its first holder"),
    Twin("Free", "own", "RefCount.own", _keep_own, note="a finished request keeps its blocks"),
    Twin("Free", "cancel", "target held", _no_cancel),
]

_DEFER_TWINS = [
    *_SHARED_TWINS,
    Twin("Process", "device_done", "clocks", note="W1/P6: output processed is not device done"),
    Twin(
        "FreeNow", "fence_passed", "pool processed", note="no fence (0.23); pruning on scheduled basis (S17)"
    ),
    Twin("FreeNow", "refcount", "RefCount.own", _no_refcount),
    Twin("FreeNow", "owned", "NoDoubleFree"),
    Twin("FreeNow", "not_started", "target held"),
    Twin(
        "Defer",
        "fence_built",
        "touch covered",
        _defer_without_step_being_built,
        note="S2/W3: stock 0.32.0 has this hole",
    ),
    Twin("Defer", "fence_processed", "touch covered", _defer_until_last_scheduled),
    Twin("Defer", "new", "NoLeak"),
    Twin("Drain", "fence_passed", "pool processed"),
    Twin("Drain", "live", "NoDoubleFree"),
    Twin("Drain", "pool", "NoLeak", _leak_on_report, note="drained blocks are lost"),
    Twin("ReaderEnd", "pin_fence", "pool processed", note="S21: a copy-on-write pin released too early"),
]

_CONTRACT = (
    Assumption(
        "owned_only",
        "contract",
        "A step touches only blocks that one of its requests owns, blocks that a "
        "live pin holds, or the null block; dummy batches touch the null block only.",
        ("blocks.gate", "blocks.defer"),
        "trace rule Touch",
    ),
    Assumption(
        "stream_order",
        "contract",
        "Steps finish on the device in dispatch order; side streams join before their step ends.",
        ("blocks.gate", "blocks.defer"),
    ),
    Assumption(
        "loads_only_new_blocks",
        "contract",
        "A connector writes only into blocks that the allocation of "
        "that load handed out fresh (predicate P2 of the gate).",
        ("blocks.gate", "blocks.defer"),
    ),
    Assumption(
        "one_report",
        "contract",
        "A transfer reports at most once that it is over (completed, failed, or "
        "reset) and writes nothing afterwards. Reports name a request id, not a load.",
        ("blocks.gate", "blocks.defer"),
        "trace rule XferSafe",
    ),
    Assumption(
        "processed_is_done",
        "contract",
        "DeferFrees only: an output is processed only after all device work "
        "of its step (predicate P6); false on the V2 model runner with a drafter.",
        ("blocks.defer",),
    ),
    Assumption(
        "no_zeroing_under_load",
        "contract",
        "DeferFrees only: blocks of an asynchronous load are not zeroed by the step being built.",
        ("blocks.defer",),
    ),
    Assumption(
        "block_relations",
        "model",
        "The actions of theories blocks.gate and blocks.defer are written by hand; their twins are run from "
        "the initial state, and spec/Blocks.tla states the same rules for TLC, but no transition function of "
        "the model is compared with them.",
        ("blocks.gate", "blocks.defer", "refcount"),
        "spec/Blocks.tla, trace ledger",
    ),
    Assumption(
        "cow_and_side_pools",
        "scope",
        "One pool of blocks; no second pool (HiSparse), no reads of blocks that are in the pool.",
        ("blocks.gate", "blocks.defer"),
    ),
    Assumption(
        "readers_listed",
        "contract",
        "Every unordered reader is known, and is pinned, delays the free, or is "
        "flushed ahead of a reuse in the same step (predicates P3, P4).",
        ("blocks.gate", "blocks.defer"),
    ),
)


def _gate_statements(s: State) -> dict[str, Bool]:
    """GateLoads has no deferred queue, so nothing is said about it."""
    return {n: g for n, g in statements(s).items() if n != "RefCount.fenced"}


gate = Inductive(
    name="blocks.gate",
    title="Block safety, GateLoads",
    theorem="Immediate frees are safe if an asynchronous load starts only when every step dispatched at its "
    "admission, the one being built included, is device done, and a synchronous load takes quiescent blocks. "
    "Any number of blocks, holders, pins, transfers, readers and steps in flight; with prefix sharing, "
    "pruning, same-call frees, aborts, failed loads, deadlines with quarantine, reports without generation.",
    system=frees.gate_loads,
    statements=_gate_statements,
    auxiliary=_gate,
    twins=_GATE_TWINS,
    assumptions=_CONTRACT,
)

defer = Inductive(
    name="blocks.defer",
    title="Block safety, DeferFrees",
    theorem="Fenced frees are safe for loads that start at once, if a block waits for the newest step, the "
    "one being built included, and an output is processed only after its device work is done.",
    system=frees.defer_frees,
    statements=statements,
    auxiliary=_defer,
    twins=_DEFER_TWINS,
    assumptions=_CONTRACT,
)
