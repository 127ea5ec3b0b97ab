"""The micro-steps of a scheduling call under OneOrder, and what happens between calls."""

from __future__ import annotations

from functools import partial

import z3

from stallproof_proofs.logic import Action, Bool, State, System, forall, ite, zmax, zmin
from stallproof_proofs.sums import below, members, positive
from stallproof_proofs.systems.order import (
    ADMLOOP,
    BEHIND,
    CLOSED,
    FINISHED,
    GAIN,
    HEAD,
    HELD,
    IDLE,
    IDLERS,
    IDLING,
    LOADING,
    NEW,
    OLDER,
    OWN,
    PARKERS,
    PREFILL,
    RECEIVED,
    RESERVED,
    RUNLOOP,
    RUNNERS,
    RUNNING,
    SUMS,
    WAITING,
    Blocks,
    Cap,
    Deferral,
    Dropped,
    KeptBack,
    Look,
    Patience,
    RuleE,
    Seats,
    Spares,
    alone,
    can_load,
    candidate,
    chunk,
    component,
    ext,
    fits,
    flag,
    goal,
    is_,
    load_need,
    n0,
    need,
    next_candidate,
    next_running,
    order,
    q,
    r0,
    remaining,
    seats,
    shut,
    start_budget,
    total,
    u,
    v0,
    victim,
    vocabulary,
)
from stallproof_proofs.systems.order_outside import between_calls, next_turn
from stallproof_proofs.systems.order_parts import (
    act,
    at,
    const,
    evict,
    give_up,
    lower,
    mark,
    preempt,
    take,
    unless,
)


def run_loop(s: State) -> list[Action]:
    here = {"in_loop": s.mode() == RUNLOOP, "budget": s.budget() > 0, "next": next_running(s, r0)}
    mine = z3.Implies(s.hast(), s.tgt() == r0)
    askable = {
        "tokens_left": goal(s, r0) < s.lim(r0),
        "something": goal(s, r0) - s.comp(r0) > 0,
        "fits": fits(s, goal(s, r0)),
    }
    refused = {**here, **askable, "mine": mine, "short": need(s, r0) > s.free()}
    sure = need(s, r0) <= s.free() + s.Sgain(r0)
    alone = {**refused, "not_sure": z3.Implies(RuleE, z3.Not(sure))}
    last = z3.And(s.st(v0) == RUNNING, forall(q, z3.Implies(s.st(q) == RUNNING, order(q) <= order(v0))))
    spared = z3.And(Spares, s.ph(v0) > 0)
    past = const(ptr=order(r0) + 1)
    return [
        act(
            s,
            "Serve",
            r0,
            {**here, **askable, "mine": mine, "enough": need(s, r0) <= s.free(), "chunk": n0 == chunk(s, r0)},
            {**take(s, r0, {}), **past},
            "RunLoop: TakeStep and Grab",
            (r0, n0),
        ),
        Action(
            "Skip",
            {**here, "free_hands": z3.Not(s.hast()), "nothing": z3.Not(z3.And(*askable.values()))},
            past,
            (r0,),
            "RunLoop: nothing to schedule for r",
        ),
        act(
            s,
            "RunEvict",
            v0,
            {**refused, "rule_E": RuleE, "sure": sure, "behind": victim(s, v0, r0)},
            evict(s, v0),
            "RunLoop: CommitEvict (rule E)",
            (r0, v0),
        ),
        act(
            s,
            "Preempt",
            v0,
            {**alone, "youngest": last, "other": v0 != r0, "spared": z3.Not(spared)},
            {**preempt(s, v0), **const(pre=True)},
            "RunLoop: Preempt",
            (r0, v0),
        ),
        act(
            s,
            "SelfPreempt",
            r0,
            {
                **alone,
                "youngest": forall(q, z3.Implies(s.st(q) == RUNNING, order(q) <= order(r0))),
                "spared": z3.Not(z3.And(Spares, s.ph(r0) > 0)),
            },
            {
                **give_up(s, r0, st=z3.IntVal(WAITING), ph=ite(Dropped, 0, s.ph(r0))),
                **const(hast=False, moved=True, acted=True, mode=CLOSED),
                **lower(s, r0),
                **mark(s, "refused", r0),
            },
            "RunLoop: the last victim is the request itself",
        ),
        Action(
            "Spare",
            {**alone, "youngest": last, "in_flight": spared},
            {**const(mode=CLOSED, hast=False), **mark(s, "refused", r0)},
            (r0, v0),
            "RunLoop: SpareInFlight; the victim's late token would be dropped, so wait for it",
        ),
        Action(
            "Wait",
            {
                **alone,
                "free_hands": z3.Not(s.hast()),
                "no_preemption": z3.Not(s.pre()),
                "patience": s.pat() < Patience,
                # CanFree asks for one that yields a token; any one will do, but for the one being built
                "in_flight": s.nfls() > 0,
            },
            {**const(mode=CLOSED, patient=True), **mark(s, "refused", r0)},
            (r0,),
            "RunLoop: patience; closes the call's admissions",
        ),
        Action(
            "LoopEnd",
            {
                "in_loop": s.mode() == RUNLOOP,
                "budget": s.budget() > 0,
                "free_hands": z3.Not(s.hast()),
                "all_visited": forall(q, z3.Implies(s.st(q) == RUNNING, order(q) < s.ptr())),
                "no_preemption": z3.Not(s.pre()),
            },
            const(mode=ADMLOOP),
            (),
            "RunLoop returns, AdmLoop begins",
        ),
    ]


def adm_loop(s: State) -> list[Action]:
    here = {"in_loop": s.mode() == ADMLOOP, "budget": s.budget() > 0, "seat": seats(s, r0) < Seats}
    scan = {**here, "next": next_candidate(s, r0), "free_hands": z3.Not(s.hast())}
    seen = mark(s, "seen", r0)
    given = {"given": lambda w: z3.Or(s.given(w), z3.And(w == r0, s.own(r0) == 0))}
    askable = {
        "ready": is_(s, r0, WAITING, HELD),
        "not_stale": s.ph(r0) == 0,
        "not_shut": z3.Not(shut(s, r0)),
    }
    runs = {**askable, "no_load": z3.Not(can_load(s, r0))}
    loads = {**askable, "load": can_load(s, r0)}
    turn = ite(s.hast(), s.tgt() == r0, next_candidate(s, r0))
    room_for_load = load_need(s, r0)
    refuse = {
        **seen,
        **mark(s, "refused", r0),
        "hasc": lambda: z3.BoolVal(True),
        "cw": lambda: ite(z3.And(s.hasc(), order(s.cw()) < order(r0)), s.cw(), r0),
    }
    fruitless = {
        **at(s, r0, noload=z3.BoolVal(True), late=z3.BoolVal(False)),
        **const(moved=True, acted=True),
        **lower(s, r0),
    }
    return [
        act(
            s,
            "NotYet",
            r0,
            {**scan, **loads, "answers_left": z3.Or(s.ny(r0) > 0, Deferral), "not_late": z3.Not(s.late(r0))},
            {
                **at(s, r0, ny=zmax(s.ny(r0) - 1, 0)),
                **seen,
                **mark(s, "heard", r0),
                **const(moved=z3.Or(s.moved(), s.ny(r0) > 0), asked=True),
                **{n: partial(unless, s.ny(r0) > 0, x, getattr(s, n)) for n, x in lower(s, r0).items()},
            },
            "AdmLoop: the connector says not yet",
        ),
        act(
            s,
            "GiveUp",
            r0,
            {**scan, **loads, "late": s.late(r0)},
            fruitless,
            "Asked: not yet after its deadline; the connector is asked no more",
        ),
        act(
            s,
            "StartLoad",
            r0,
            {
                **here,
                **loads,
                "next": turn,
                "enough": ext(r0) <= s.free(),
                "rule_R": room_for_load <= s.free(),
            },
            {
                **at(s, r0, own=ext(r0), comp=ext(r0), st=z3.IntVal(LOADING), late=z3.BoolVal(False)),
                **const(free=s.free() - ext(r0), moved=True, acted=True, hast=False, owes=False),
                **seen,
                **given,
                **lower(s, r0),
            },
            "AdmLoop: StartLoad",
        ),
        act(
            s,
            "LoadEvict",
            v0,
            {
                **here,
                **loads,
                "turn": turn,
                "short": room_for_load > s.free(),
                "sure": room_for_load <= s.free() + s.Sidle(),
                "idles": z3.And(s.st(v0) == IDLING, s.own(v0) > 0),
            },
            evict(s, v0),
            "AdmLoop: CommitEvict for a load start, of sessions that idle",
            (r0, v0),
        ),
        act(
            s,
            "Admit",
            r0,
            {
                **here,
                **runs,
                "turn": turn,
                "full_fit": remaining(s, r0) <= s.free(),
                "chunk": n0 == chunk(s, r0),
                "some": n0 > 0,
            },
            {
                **take(s, r0, {"st": z3.IntVal(RUNNING), "pf": z3.BoolVal(True)}),
                **at(
                    s, r0, noload=z3.Or(s.noload(r0), flag)
                ),  # flag: no load after a preemption (not Reload)
                **seen,
                **given,
            },
            "AdmLoop: Admit",
            (r0, n0, flag),
        ),
        act(
            s,
            "AdmEvict",
            v0,
            {
                **here,
                **runs,
                "turn": turn,
                "short": remaining(s, r0) > s.free(),
                "sure": remaining(s, r0) <= s.free() + s.Sgain(r0),
                "behind": victim(s, v0, r0),
            },
            evict(s, v0),
            "AdmLoop: CommitEvict",
            (r0, v0),
        ),
        Action(
            "Refuse",
            {
                **scan,
                **askable,
                "short": ite(
                    can_load(s, r0),
                    room_for_load > s.free() + s.Sidle(),
                    remaining(s, r0) > s.free() + s.Sgain(r0),
                ),
                "not_alone": z3.Not(z3.And(can_load(s, r0), alone(s))),
            },
            refuse,
            (r0,),
            "AdmLoop: Refuse",
        ),
        act(
            s,
            "LoneLoad",
            r0,
            {**scan, **loads, "short": room_for_load > s.free() + s.Sidle(), "alone": alone(s)},
            {**refuse, **fruitless},
            "AdmLoop: a refused load that fits nowhere is given up (Alone, GiveUp)",
        ),
        Action(
            "Pass",
            {**scan, "cannot": z3.Or(is_(s, r0, LOADING, RECEIVED), s.ph(r0) > 0, shut(s, r0))},
            seen,
            (r0,),
            "AdmLoop: loading, late token, or the door is shut",
        ),
    ]


def call_frame(s: State) -> list[Action]:
    c = component
    holds = s.own(r0) > 0
    head = {"head": s.mode() == HEAD}
    return [
        Action(
            "Begin",
            {"idle": z3.And(s.mode() == IDLE, z3.Not(s.handing())), "budget": start_budget > 0},
            {
                **const(
                    mode=HEAD,
                    ptr=0,
                    budget=start_budget,
                    hast=False,
                    owes=False,
                    moved=False,
                    acted=False,
                    asked=False,
                    cut=False,
                    hasd=False,
                    hasc=False,
                    all=False,
                    pre=False,
                    patient=False,
                    nfls=s.nfl(),
                ),
                "heard": lambda w: z3.BoolVal(False),
                "seen": lambda w: z3.BoolVal(False),
                "refused": lambda w: z3.BoolVal(False),
                "given": lambda w: z3.BoolVal(False),
                "c1s": lambda w: c(s, w)[0],
                "c2s": lambda w: c(s, w)[1],
                "c3s": lambda w: c(s, w)[2],
                "c4s": lambda w: c(s, w)[3],
                "sts": lambda w: s.st(w),
                "owns": lambda w: s.own(w),
                "phs": lambda w: s.ph(w),
            },
            (start_budget,),
            "schedule() entered",
        ),
        act(
            s,
            "Promote",
            r0,
            {**head, "received": s.st(r0) == RECEIVED},
            {
                **at(s, r0, st=z3.IntVal(HELD), comp=zmin(s.comp(r0), s.tok(r0) - 1)),
                **const(moved=True),
                **lower(s, r0),
            },
            "PromoteAll: before the loops, whatever the budget",
        ),
        act(
            s,
            "Reject",
            r0,
            {
                **head,
                "not_paused": z3.Not(s.paused()),
                "live": is_(s, r0, WAITING, RECEIVED, HELD, RUNNING),
                "infeasible": z3.Not(fits(s, s.tok(r0))),
            },
            {
                **give_up(s, r0, st=z3.IntVal(FINISHED)),
                **const(moved=z3.Or(s.moved(), holds), acted=z3.Or(s.acted(), holds)),
                "cut": lambda: z3.Or(s.cut(), z3.Not(holds)),
                "cutw": lambda: ite(holds, s.cutw(), r0),
                **{n: partial(unless, holds, x, getattr(s, n)) for n, x in lower(s, r0).items()},
            },
            "RejectInfeasible",
        ),
        Action(
            "HeadEnd",
            {
                **head,
                "not_paused": z3.Not(s.paused()),
                "promoted": forall(q, s.st(q) != RECEIVED),
                "rejected": forall(q, z3.Implies(is_(s, q, WAITING, HELD, RUNNING), fits(s, s.tok(q)))),
            },
            const(mode=RUNLOOP),
            (),
            "PromoteAll and RejectInfeasible are through",
        ),
        Action(
            "Paused",
            {**head, "paused": s.paused(), "promoted": forall(q, s.st(q) != RECEIVED)},
            const(mode=CLOSED),
            (),
            "a paused engine promotes and does nothing else",
        ),
        Action(
            "Dispatch",
            {
                "in_call": z3.And(s.mode() != IDLE, s.mode() != HEAD),
                "over": z3.Or(
                    s.mode() == CLOSED,
                    s.budget() <= 0,
                    z3.And(
                        s.mode() == RUNLOOP,
                        s.pre(),
                        forall(q, z3.Implies(s.st(q) == RUNNING, order(q) < s.ptr())),
                    ),
                    z3.And(s.mode() == ADMLOOP, forall(q, z3.Not(candidate(s, q)))),
                    z3.And(s.mode() == ADMLOOP, next_candidate(s, r0), seats(s, r0) >= Seats),
                ),
            },
            const(
                mode=IDLE,
                nfl=s.nfl() + ite(s.all(), 1, 0),
                pat=ite(s.patient(), s.pat(), 0),
                pw=s.patient(),
            ),
            (r0,),
            "Dispatch",
        ),
    ]


def every_action(s: State) -> list[Action]:
    return [*actions(s), *next_turn(s)]


def actions(s: State) -> list[Action]:
    return [*call_frame(s), *run_loop(s), *adm_loop(s), *between_calls(s)]


def init(s: State) -> list[Bool]:
    """Nothing has arrived; everything is in the pool."""
    return [
        forall(
            q,
            z3.And(
                s.st(q) == NEW,
                s.own(q) == 0,
                s.comp(q) == 0,
                s.ph(q) == 0,
                s.quar(q) == 0,
                z3.Not(s.pf(q)),
                z3.Not(s.late(q)),
                s.tok(q) >= 1,
                s.tok(q) < s.lim(q),
                s.lim(q) <= total(q),
                s.ny(q) >= 0,
                s.fl(q) >= 0,
            ),
        ),
        s.pat() == 0,
        z3.Not(s.pw()),
        z3.Not(s.paused()),
        s.pz() >= 0,
        s.free() == Blocks,
        s.mode() == IDLE,
        s.nfl() == 0,
        z3.Not(s.handing()),
        s.limbo() == 0,
        z3.Not(s.hast()),
        z3.Not(s.owes()),
        s.Sown() == 0,
        s.Squar() == 0,
        s.Sres() == 0,
        s.Nrun() == 0,
        s.Npark() == 0,
        s.Sidle() == 0,
        forall(q, z3.And(s.Spf(q) == 0, s.Srun(q) == 0, s.Sgain(q) == 0, s.Sold(q) == 0, ext(q) <= s.tok(q))),
    ]


def constants() -> list[Bool]:
    """What is assumed of the constants."""
    return [
        Blocks >= 1,
        Look >= 0,
        KeptBack >= 0,
        Cap >= 1,
        Patience >= 0,
        Seats >= 1,
        z3.Implies(Dropped, Spares),
        forall(q, u, z3.Implies(order(q) == order(u), q == u)),
        forall(q, z3.And(order(q) >= 0, ext(q) >= 0, ext(q) < total(q))),
    ]


def facts(s: State) -> list[Bool]:
    """What holds in every state: about constants, and of exact sums (proved in theory ``sums``)."""
    no_prefill_left_out = forall(q, z3.Implies(z3.And(s.st(q) == RUNNING, s.pf(q)), s.comp(q) < s.tok(q)))
    return [
        *constants(),
        *(members(s, t, q) for t in SUMS),
        z3.Implies(no_prefill_left_out, forall(u, s.Spf(u) <= s.Sres())),
        positive(s, OWN, q),
        positive(s, RESERVED, q),
        positive(s, RUNNERS, q),
        positive(s, PARKERS, q),
        positive(s, PREFILL, q, r0, but=r0),
        positive(s, BEHIND, q, r0),
        positive(s, BEHIND, q, v0),
        positive(s, OLDER, q, r0),
        positive(s, GAIN, q, s.tgt()),
        positive(s, GAIN, q, r0),
        below(s, OWN, GAIN, q, (), (r0,), but=r0),
        below(s, OWN, IDLERS, q, (), (), but=r0),
        below(s, IDLERS, GAIN, q, (), (r0,)),
        below(s, GAIN, GAIN, q, (v0,), (r0,)),
        positive(s, IDLERS, q),
    ]


system = System("OneOrder", vocabulary, init, every_action, "counts, GateLoads", facts)
