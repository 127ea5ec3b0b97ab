"""The rules of OneOrder in counts: one micro-step per decision of a scheduling call, any number of requests.

A call is ``Begin``, ``Promote`` and ``Reject``, the running loop (``Serve``, ``Skip``, ``RunEvict``,
``Preempt``, ``SelfPreempt``, ``Wait``), the admission loop (``NotYet``, ``StartLoad``, ``Admit``,
``AdmEvict``, ``Refuse``, ``Pass``) and ``Dispatch``; the rest happens between calls. ``spec/Sched.tla`` makes
one atomic action of a call; each micro-step (:mod:`stallproof_proofs.systems.order_steps`) is one iteration
of its ``RunLoop`` or ``AdmLoop``. FenceMode is GateLoads: a release is immediate.

Counts: a block is a unit. ``ph`` counts steps in flight that will yield a token (``Placeholders``), ``nfl``
steps in flight. A request is never reused: an arrival is a new one, so ``ord`` is fixed.

Ghosts, which no guard of an engine reads: ``pf`` (running, no token committed since its admission),
``moved`` and ``acted``, ``owes`` (somebody was evicted for a target that is not served yet),
``cut`` (a request without blocks was rejected; that helps nobody else), ``given``
and ``heard`` (non-holders served or asked in the call), ``dw``/``hasd`` (a request whose measure has gone
down in the call), the state at the beginning of the call (``c1s`` to ``c4s``, ``owns``, ``sts``, ``nfls``,
and ``phs``, which ``Wait`` reads: steps in flight then, not the one being built).
"""

from __future__ import annotations

from typing import Any

import z3

from stallproof_proofs.logic import (
    Bool,
    Expr,
    State,
    Var,
    Vocabulary,
    forall,
    ite,
    zmax,
    zmin,
)
from stallproof_proofs.sums import Sum

Req = z3.DeclareSort("Request")
B, I = z3.BoolSort(), z3.IntSort()  # noqa: E741 - the sort of integers

#: st: names of spec/Sched.tla; preempted is waiting; a session between two turns idles
FINISHED, ZOMBIE, HELD, RECEIVED, LOADING, WAITING, RUNNING, NEW, BLOCKED, IDLING = range(10)
#: mode: where in the call
IDLE, HEAD, RUNLOOP, ADMLOOP, CLOSED = range(5)

# Constants of the model: B, Look, ChunkCap, P, MaxSeqs, KeptBack; per request: position in the order, Total,
# Ext, Grammar (waits for a grammar first). Switches: RunEvict (rule E), CountParked (a parked holder takes a
# seat), Dropped (StaleOutput: the late token of who is preempted is lost), SpareInFlight.
Blocks, Look, Cap, Patience, Seats = z3.Ints("B Look ChunkCap P MaxSeqs")
RuleE, CountParked, Dropped, Spares = z3.Bools("RunEvict CountParked Dropped SpareInFlight")
Deferral = z3.Bool("DeferralDeadline")  # "not yet" is said without end, and bounded by a deadline (kept)
KeptBack = z3.Int("KeptBack")  # blocks kept free beside a load that starts
order = z3.Function("ord", Req, I)
total = z3.Function("Total", Req, I)
ext = z3.Function("Ext", Req, I)
grammar = z3.Function("Grammar", Req, B)

vocabulary = Vocabulary(
    Var("st", (Req,), I),
    Var("own", (Req,), I),
    Var("comp", (Req,), I),
    Var("tok", (Req,), I),
    Var("lim", (Req,), I),
    Var("ph", (Req,), I),
    Var("pf", (Req,), B),
    Var("noload", (Req,), B),
    Var("late", (Req,), B),  # the deadline of "not yet" has passed: due is "over"
    Var("ny", (Req,), I),
    Var("fl", (Req,), I),
    Var("quar", (Req,), I),
    Var("free", (), I),
    # a session's blocks on their way from one turn to the next, and the tokens computed in them
    Var("handing", (), B),
    Var("limbo", (), I),
    Var("limboc", (), I),
    Var("nfl", (), I),
    Var("pat", (), I),
    Var("pw", (), B),
    Var("paused", (), B),
    Var("pz", (), I),
    # the call
    Var("mode", (), I),
    Var("ptr", (), I),
    Var("budget", (), I),
    Var("hast", (), B),
    Var("tgt", (), Req),
    Var("owes", (), B),
    Var("all", (), B),
    Var("seen", (Req,), B),
    Var("refused", (Req,), B),
    Var("given", (Req,), B),
    Var("hasc", (), B),
    Var("cw", (), Req),
    Var("pre", (), B),
    Var("patient", (), B),
    # ghosts of the call
    Var("moved", (), B),
    Var("acted", (), B),
    Var("asked", (), B),
    Var("heard", (Req,), B),
    Var("cut", (), B),
    Var("cutw", (), Req),
    Var("hasd", (), B),
    Var("dw", (), Req),
    Var("c1s", (Req,), I),
    Var("c2s", (Req,), I),
    Var("c3s", (Req,), I),
    Var("c4s", (Req,), I),
    Var("sts", (Req,), I),
    Var("owns", (Req,), I),
    Var("phs", (Req,), I),
    Var("nfls", (), I),
    # exact sums
    Var("Sown", (), I),
    Var("Squar", (), I),
    Var("Sres", (), I),
    Var("Nrun", (), I),
    Var("Npark", (), I),
    Var("Sidle", (), I),
    Var("Spf", (Req,), I),
    Var("Srun", (Req,), I),
    Var("Sgain", (Req,), I),
    Var("Sold", (Req,), I),
)

q, u, v = z3.Consts("q u v", Req)
r0, v0 = z3.Consts("r0 v0", Req)
n0 = z3.Int("n0")  # tokens given to r0 in this micro-step
n1 = z3.Int("n1")  # where the next turn of a session ends
flag = z3.Bool("flag")
start_budget = z3.Int("Budget")


# ------------------------------------------------------------------ operators of the model


def is_(s: State, r: Expr, *states: int) -> Bool:
    return z3.Or(*(s.st(r) == x for x in states))


def remaining(s: State, r: Expr) -> Expr:
    """``Remaining``: blocks that ``r`` needs for all its known tokens and look-ahead."""
    return zmax(s.tok(r) + Look - s.own(r), 0)


def goal(s: State, r: Expr) -> Expr:
    """Tokens known or in flight."""
    return s.tok(r) + s.ph(r)


def chunk(s: State, r: Expr) -> Expr:
    """Tokens that the running loop schedules for ``r``: the whole rest, the budget or the chunk cap."""
    return zmin(zmin(goal(s, r) - s.comp(r), s.budget()), Cap)


def need(s: State, r: Expr) -> Expr:
    return s.comp(r) + chunk(s, r) + Look - s.own(r)


def fits(s: State, n: Expr) -> Bool:
    """``Fits``: Feasible, with what quarantine leaves."""
    return n + Look <= Blocks - s.Squar()


def victim(s: State, w: Expr, r: Expr) -> Bool:
    """``Victims``: parked holders behind ``r`` in scheduling order, and every session that idles."""
    behind = z3.And(is_(s, w, RECEIVED, HELD), order(w) > order(r))
    return z3.And(s.own(w) > 0, z3.Or(behind, s.st(w) == IDLING))


def can_load(s: State, r: Expr) -> Bool:
    return z3.And(s.own(r) == 0, ext(r) > 0, z3.Not(s.noload(r)))


def load_need(s: State, r: Expr) -> Expr:
    """Blocks that a load start needs: its own, those kept back beside it, and rule R's."""
    return ext(r) + KeptBack + s.Sres()


def alone(s: State) -> Bool:
    """``Alone``: all that others hold would be given to a load, so if it is refused it fits nowhere."""
    return s.free() + s.Sidle() >= Blocks - s.Squar()


def shut(s: State, r: Expr) -> Bool:
    """``Shut``: the door is closed to non-holders behind a refused request."""
    return z3.And(s.own(r) == 0, s.hasc(), order(s.cw()) < order(r))


def candidate(s: State, r: Expr) -> Bool:
    """In the waiting queue and not looked at in this call."""
    return z3.And(is_(s, r, WAITING, LOADING, RECEIVED, HELD), z3.Not(s.seen(r)))


def next_running(s: State, r: Expr) -> Bool:
    """``r`` is where the running loop stands; the running list is in scheduling order."""
    return z3.And(
        s.st(r) == RUNNING,
        order(r) >= s.ptr(),
        forall(q, z3.Implies(z3.And(s.st(q) == RUNNING, order(q) >= s.ptr()), order(q) >= order(r))),
    )


def next_candidate(s: State, r: Expr) -> Bool:
    """``NextCand``: holders first, each class in scheduling order."""
    return z3.And(
        candidate(s, r),
        forall(
            q,
            z3.Implies(
                candidate(s, q),
                z3.Or(
                    z3.And(s.own(r) > 0, s.own(q) == 0),
                    z3.And((s.own(q) > 0) == (s.own(r) > 0), order(r) <= order(q)),
                ),
            ),
        ),
    )


# ------------------------------------------------------------------ sums


def _pf_rem(s: State, w: Expr, r: Expr) -> Expr:
    return ite(z3.And(s.st(w) == RUNNING, s.pf(w), order(w) <= order(r)), remaining(s, w), 0)


def _run_own(s: State, w: Expr, r: Expr) -> Expr:
    return ite(z3.And(s.st(w) == RUNNING, order(w) > order(r)), s.own(w), 0)


def _gain(s: State, w: Expr, r: Expr) -> Expr:
    return ite(victim(s, w, r), s.own(w), 0)


def _reserved(s: State, w: Expr) -> Expr:
    return ite(z3.And(s.st(w) == RUNNING, s.comp(w) < s.tok(w)), remaining(s, w), 0)


def _seat(s: State, w: Expr) -> Expr:
    return ite(s.st(w) == RUNNING, 1, 0)


def _parked(s: State, w: Expr) -> Expr:
    return ite(is_(s, w, LOADING, RECEIVED, HELD), 1, 0)


def _idle(s: State, w: Expr) -> Expr:
    return ite(s.st(w) == IDLING, s.own(w), 0)


def _older(s: State, w: Expr, r: Expr) -> Expr:
    return ite(order(w) < order(r), ite(s.st(w) == IDLING, 0, s.own(w)) + s.quar(w), 0)


OWN = Sum("Sown", lambda s, w: s.own(w), over=Req)
QUAR = Sum("Squar", lambda s, w: s.quar(w), over=Req)
RESERVED = Sum("Sres", _reserved, over=Req)  # RunReserved
RUNNERS = Sum("Nrun", _seat, over=Req)  # Seats: how many run
PARKERS = Sum("Npark", _parked, over=Req)  # Seats: how many are parked
IDLERS = Sum("Sidle", _idle, over=Req)  # what sessions that idle hold
PREFILL = Sum("Spf", _pf_rem, (Req,), Req)  # what prefills up to r still need
BEHIND = Sum("Srun", _run_own, (Req,), Req)  # what runners behind r hold
GAIN = Sum("Sgain", _gain, (Req,), Req)  # what committing for r could free
OLDER = Sum(
    "Sold", _older, (Req,), Req
)  # what requests ahead of r hold (idle sessions do not count) or have in quarantine
SUMS = (OWN, QUAR, RESERVED, RUNNERS, PARKERS, IDLERS, PREFILL, BEHIND, GAIN, OLDER)


def seats(s: State, r: Expr) -> Expr:
    """``Seats``: how many are taken by others, before ``r`` is admitted."""
    return s.Nrun() + ite(CountParked, s.Npark() - _parked(s, r), 0)


# ------------------------------------------------------------------ the measure of one request


def room(s: State, r: Expr) -> Expr:
    """What is free, on its way to the next turn of a session, held by runners behind ``r``, or (rule E) by
    those whom it may evict."""
    return s.free() + s.limbo() + s.Srun(r) + ite(RuleE, s.Sgain(r), 0)


def secure(s: State, r: Expr) -> Bool:
    """All prefills up to ``r`` fit into what it has room for."""
    return s.Spf(r) <= room(s, r)


#: phase of a request that does not run
PHASES = {
    FINISHED: 0, ZOMBIE: 1, IDLING: 2, HELD: 4, RECEIVED: 5, LOADING: 6, WAITING: 7, BLOCKED: 9, NEW: 10,
}  # fmt: skip


def component(s: State, r: Expr) -> tuple[Expr, Expr, Expr, Expr]:
    """The measure of ``r``, compared lexicographically: tokens not committed, answers and loads left (and
    tokens of later turns), phase, prefill left.

    Phase: 0 finished, 1 zombie, 2 idling between turns, 3 running a prefill for which there is room
    (``secure``), 4 held, 5 received, 6 loading, 7 waiting, 8 running otherwise, 9 waiting for a grammar, 10
    not arrived.
    """
    over = is_(s, r, FINISHED, ZOMBIE)
    left = ite(over, 0, total(r) - goal(s, r))
    tries = ite(over, 0, s.ny(r) + s.fl(r) + ite(s.noload(r), 0, 1) + total(r) - s.lim(r))
    phase: Any = ite(z3.And(s.pf(r), secure(s, r)), 3, 8)
    for code, rank in PHASES.items():
        phase = ite(s.st(r) == code, rank, phase)
    return left, tries, phase, ite(z3.And(s.st(r) == RUNNING, s.pf(r)), s.tok(r) - s.comp(r), 0)


def less(a: tuple[Expr, ...], b: tuple[Expr, ...]) -> Bool:
    """Lexicographic ``a < b``."""
    out: Any = z3.BoolVal(False)
    for x, y in reversed(list(zip(a, b, strict=True))):
        out = z3.Or(x < y, z3.And(x == y, out))
    return out


def same(a: tuple[Expr, ...], b: tuple[Expr, ...]) -> Bool:
    return z3.And(*(x == y for x, y in zip(a, b, strict=True)))


def at_start(s: State, r: Expr) -> tuple[Expr, Expr, Expr, Expr]:
    """The measure of ``r`` when the call began."""
    return s.c1s(r), s.c2s(r), s.c3s(r), s.c4s(r)
