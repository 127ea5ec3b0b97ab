"""OneOrder: the inductive invariant behind Decreases, NoWedge, NoInversion and Drain."""

from __future__ import annotations

import z3

from stallproof_proofs.logic import Bool, State, forall
from stallproof_proofs.proofs.order_twins import TWINS
from stallproof_proofs.result import Assumption
from stallproof_proofs.statements import order as stated
from stallproof_proofs.systems import order as m
from stallproof_proofs.systems import order_steps as steps
from stallproof_proofs.systems.order import (
    ADMLOOP,
    BLOCKED,
    CLOSED,
    FINISHED,
    HEAD,
    HELD,
    IDLE,
    IDLING,
    LOADING,
    NEW,
    RECEIVED,
    RUNLOOP,
    RUNNING,
    WAITING,
    ZOMBIE,
    Look,
    at_start,
    can_load,
    candidate,
    component,
    fits,
    is_,
    less,
    order,
    q,
    same,
    total,
    u,
    v,
)
from stallproof_proofs.theory import Inductive


def is_in(s: State, *modes: int) -> Bool:
    return z3.Or(*(s.mode() == x for x in modes))


def shape(s: State) -> dict[str, Bool]:
    live = is_(s, q, WAITING, LOADING, RECEIVED, HELD, RUNNING)
    run = s.st(q) == RUNNING
    return {
        "numbers": forall(
            q,
            z3.And(
                s.st(q) >= 0,
                s.st(q) <= IDLING,
                s.comp(q) >= 0,
                s.ph(q) >= 0,
                s.ny(q) >= 0,
                s.fl(q) >= 0,
                s.tok(q) >= 1,
                m.ext(q) <= s.tok(q),
            ),
        ),
        "in flight": z3.And(
            s.nfl() >= 0,
            forall(
                q,
                z3.Or(
                    s.ph(q) <= s.nfl(),
                    z3.And(
                        s.all(),
                        s.mode() > HEAD,
                        s.ph(q) <= s.nfl() + 1,
                        run,
                        z3.Or(s.mode() != RUNLOOP, order(q) < s.ptr()),
                    ),
                ),
            ),
        ),
        "tokens": forall(
            q,
            z3.And(
                z3.Implies(
                    z3.Or(live, is_(s, q, NEW, BLOCKED)),
                    z3.And(s.tok(q) < s.lim(q), m.goal(s, q) <= s.lim(q)),
                ),
                s.lim(q) <= total(q),
                z3.Implies(is_(s, q, NEW, BLOCKED, IDLING), s.ph(q) == 0),
                z3.Implies(s.st(q) == IDLING, z3.And(s.tok(q) == s.lim(q), s.lim(q) < total(q))),
            ),
        ),
        "waiting owns nothing": forall(
            q, z3.Implies(is_(s, q, WAITING, NEW, BLOCKED), z3.And(s.own(q) == 0, s.comp(q) == 0))
        ),
        "parked": forall(
            q,
            z3.Implies(
                is_(s, q, LOADING, RECEIVED, HELD),
                z3.And(
                    s.own(q) > 0,
                    s.ph(q) == 0,
                    s.comp(q) <= s.tok(q),
                    z3.Implies(s.st(q) == LOADING, z3.Not(s.noload(q))),
                    z3.Implies(is_(s, q, LOADING, RECEIVED), s.own(q) == s.comp(q)),
                    s.own(q) <= s.comp(q) + Look + 1,
                    z3.Implies(s.st(q) == HELD, s.comp(q) < s.tok(q)),
                ),
            ),
        ),
        "idling": forall(
            q,
            z3.Implies(
                s.st(q) == IDLING,
                z3.And(m.RuleE, z3.Not(m.CountParked)),
            ),
        ),
        "handing": z3.And(
            z3.Implies(
                s.handing(),
                z3.And(
                    s.mode() == IDLE,
                    m.RuleE,
                    z3.Not(m.CountParked),
                    z3.Or(
                        z3.And(s.limbo() == 0, s.limboc() == 0),
                        z3.And(s.limbo() == s.limboc() + Look, s.limboc() >= 1),
                    ),
                ),
            ),
            z3.Implies(z3.Not(s.handing()), s.limbo() == 0),
        ),
        "idle holds": forall(
            q,
            z3.Implies(
                s.st(q) == IDLING,
                z3.Or(
                    z3.And(s.own(q) == 0, s.comp(q) == 0),
                    z3.And(s.own(q) == s.comp(q) + Look, s.comp(q) == s.tok(q) - 1, s.comp(q) >= 1),
                ),
            ),
        ),
        "running": forall(
            q,
            z3.Implies(
                run,
                z3.And(
                    s.comp(q) >= 1,
                    s.own(q) == s.comp(q) + Look,
                    z3.Or(s.pf(q), s.comp(q) == m.goal(s, q) - 1),
                ),
            ),
        ),
        "prefill": forall(q, z3.Implies(s.pf(q), z3.And(run, s.ph(q) == 0, s.comp(q) < s.tok(q)))),
        "room": forall(q, z3.Implies(s.pf(q), m.remaining(s, q) <= m.room(s, q) + s.Sold(q))),
        "paused call": z3.Implies(s.paused(), is_in(s, IDLE, HEAD, CLOSED)),
        "mode": z3.And(s.mode() >= IDLE, s.mode() <= CLOSED),
    }


def _call(s: State) -> dict[str, Bool]:
    inside = s.mode() != IDLE
    t = s.tgt()
    return {
        "target": z3.Implies(
            s.hast(),
            z3.Or(
                z3.And(s.mode() == RUNLOOP, s.budget() > 0, m.next_running(s, t)),
                z3.And(
                    s.mode() == ADMLOOP,
                    s.budget() > 0,
                    m.seats(s, t) < m.Seats,
                    is_(s, t, WAITING, HELD),
                    z3.Not(s.seen(t)),
                    s.ph(t) == 0,
                    z3.Not(m.shut(s, t)),
                    z3.If(
                        can_load(s, t),
                        m.load_need(s, t) <= s.free() + s.Sidle(),
                        m.remaining(s, t) <= s.free() + s.Sgain(t),
                    ),
                    m.next_candidate(s, t),
                ),
            ),
        ),
        # an eviction was sure, so its target needs no other victims
        "owed": z3.Implies(
            s.owes(),
            z3.And(
                s.hast(),
                z3.Implies(s.mode() == RUNLOOP, z3.And(m.RuleE, m.need(s, t) <= s.free() + s.Sgain(t))),
            ),
        ),
        "snapshot": forall(
            q,
            z3.Implies(
                inside,
                z3.And(
                    s.owns(q) >= 0,
                    s.phs(q) >= 0,
                    s.phs(q) <= s.nfls(),
                    *((s.sts(q) == x) == (s.c3s(q) == rank) for x, rank in m.PHASES.items()),
                    (s.sts(q) == RUNNING) == z3.Or(s.c3s(q) == 3, s.c3s(q) == 8),
                ),
            ),
        ),
        "head": z3.Implies(s.mode() == HEAD, z3.And(s.ptr() == 0, z3.Not(s.hast()), z3.Not(s.pre()))),
        "spent": forall(
            q, z3.Implies(inside, z3.And(component(s, q)[0] <= s.c1s(q), component(s, q)[1] <= s.c2s(q)))
        ),
        "unvisited": forall(
            q,
            z3.Implies(
                z3.And(
                    z3.Or(s.mode() == HEAD, z3.And(s.mode() == RUNLOOP, order(q) >= s.ptr())),
                    s.st(q) == RUNNING,
                ),
                z3.And(
                    s.sts(q) == RUNNING,
                    s.c1s(q) == component(s, q)[0],
                    s.c4s(q) == component(s, q)[3],
                    s.ph(q) == s.phs(q),
                ),
            ),
        ),
        "where from": forall(
            q,
            z3.Implies(
                inside,
                z3.And(
                    z3.Implies(s.st(q) == HELD, z3.Or(s.sts(q) == HELD, s.sts(q) == RECEIVED)),
                    z3.Implies(s.st(q) == RECEIVED, s.sts(q) == RECEIVED),
                    z3.Implies(z3.And(s.mode() == HEAD, s.st(q) == WAITING), s.sts(q) == WAITING),
                    z3.Implies(z3.And(s.st(q) == LOADING, z3.Not(s.seen(q))), s.sts(q) == LOADING),
                    z3.Implies(
                        z3.And(s.sts(q) == RUNNING, z3.Not(s.pre()), s.mode() != CLOSED),
                        z3.Or(s.st(q) == RUNNING, s.st(q) == FINISHED),
                    ),
                    z3.Implies(candidate(s, q), z3.Or(s.ph(q) == s.phs(q), s.sts(q) == RUNNING)),
                ),
            ),
        ),
        "no admission after a preemption": z3.Implies(s.mode() == ADMLOOP, z3.Not(s.pre())),
        "promoted": forall(
            q,
            z3.Implies(
                s.mode() > HEAD,
                z3.And(
                    s.st(q) != RECEIVED,
                    z3.Implies(
                        z3.And(z3.Not(s.paused()), is_(s, q, WAITING, HELD, RUNNING)), fits(s, s.tok(q))
                    ),
                ),
            ),
        ),
        # the measure inside a call
        "lowered": z3.Implies(z3.And(inside, s.hasd()), less(component(s, s.dw()), at_start(s, s.dw()))),
        "raised only behind": forall(
            v,
            z3.Implies(
                z3.And(inside, less(at_start(s, v), component(s, v))),
                z3.Or(z3.And(s.hasd(), order(s.dw()) < order(v)), z3.And(s.owes(), order(t) < order(v))),
            ),
        ),
        "cut": z3.Implies(
            z3.And(inside, s.cut()), z3.And(s.st(s.cutw()) == FINISHED, s.sts(s.cutw()) == WAITING)
        ),
        "moved": z3.Implies(z3.And(inside, z3.Or(s.moved(), s.all())), z3.Or(s.hasd(), s.owes())),
        "visited prefills lowered": forall(
            q,
            z3.Implies(
                z3.And(s.pf(q), z3.Or(s.mode() == ADMLOOP, z3.And(s.mode() == RUNLOOP, order(q) < s.ptr()))),
                z3.Or(z3.And(s.hasd(), order(s.dw()) <= order(q)), z3.And(s.owes(), order(t) < order(q))),
            ),
        ),
    }


def _doors(s: State) -> dict[str, Bool]:
    inside = s.mode() != IDLE
    early = z3.Or(s.mode() == HEAD, s.mode() == RUNLOOP)
    passed = z3.Or(s.given(u), s.heard(u))
    adm = s.mode() == ADMLOOP
    kept = z3.And(s.c1s(q) == component(s, q)[0], s.c4s(q) == component(s, q)[3])
    return {
        "nothing looked at yet": z3.And(
            z3.Implies(early, z3.And(z3.Not(s.hasc()), z3.Not(s.asked()))),
            forall(
                q,
                z3.And(
                    z3.Implies(early, z3.And(z3.Not(s.seen(q)), z3.Not(s.refused(q)))),
                    z3.Implies(
                        z3.And(inside, s.mode() != ADMLOOP), z3.And(z3.Not(s.given(q)), z3.Not(s.heard(q)))
                    ),
                ),
            ),
        ),
        "refused seen": forall(
            q, z3.Implies(z3.And(adm, s.refused(q)), z3.And(s.seen(q), s.hasc(), order(s.cw()) <= order(q)))
        ),
        "scan is ahead": forall(
            u,
            v,
            z3.Implies(z3.And(inside, passed, candidate(s, v)), z3.And(s.own(v) == 0, order(u) < order(v))),
        ),
        "refuser seen": z3.Implies(z3.And(adm, s.hasc()), s.seen(s.cw())),
        "passed seen": forall(u, z3.Implies(z3.And(inside, passed), s.seen(u))),
        "door behind passed": forall(
            u, z3.Implies(z3.And(inside, passed, s.hasc()), order(u) < order(s.cw()))
        ),
        "runner visited": forall(
            q,
            z3.Implies(
                z3.And(
                    z3.Or(adm, z3.And(s.mode() == RUNLOOP, order(q) < s.ptr())),
                    s.st(q) == RUNNING,
                    s.sts(q) == RUNNING,
                    s.phs(q) == 0,
                ),
                z3.Not(kept),
            ),
        ),
        "looked at": forall(
            q,
            z3.Implies(
                z3.And(adm, stated.live_at_start(s, q), z3.Not(candidate(s, q))),
                z3.Or(
                    z3.Not(same(component(s, q), at_start(s, q))),
                    s.phs(q) > 0,
                    s.sts(q) == LOADING,
                    s.heard(q),
                    s.refused(q),
                    z3.And(s.hasc(), order(s.cw()) < order(q)),
                ),
            ),
        ),
    }


def wedge(s: State) -> dict[str, Bool]:
    inside = s.mode() != IDLE
    quiet = z3.And(inside, z3.Not(s.acted()))
    idle = z3.And(
        s.nfls() == 0,
        forall(q, z3.And(s.sts(q) != LOADING, s.sts(q) != ZOMBIE, s.sts(q) != BLOCKED)),
        z3.Not(s.asked()),
        z3.Not(s.paused()),
    )
    return {
        "quiet": z3.Implies(
            quiet, z3.And(s.budget() > 0, z3.Not(s.hast()), z3.Not(s.all()), z3.Not(s.pre()))
        ),
        "quiet keeps": forall(
            q,
            z3.Implies(
                quiet,
                z3.And(
                    s.own(q) == s.owns(q),
                    z3.Or(
                        s.st(q) == s.sts(q),
                        z3.And(s.sts(q) == RECEIVED, s.st(q) == HELD),
                        z3.And(s.sts(q) == WAITING, s.st(q) == FINISHED),
                    ),
                ),
            ),
        ),
        "call keeps flight": z3.Implies(inside, z3.And(s.nfl() == s.nfls(), forall(q, s.ph(q) >= s.phs(q)))),
        "quiet in flight": forall(q, z3.Implies(quiet, s.ph(q) == s.phs(q))),
        "idle call runs nothing": z3.Implies(
            z3.And(quiet, idle),
            z3.And(
                s.mode() != CLOSED,
                z3.Not(s.hasc()),
                forall(q, z3.Implies(z3.And(s.st(q) == RUNNING, s.mode() == RUNLOOP), order(q) >= s.ptr())),
                forall(q, z3.Implies(s.mode() == ADMLOOP, z3.And(s.st(q) != RUNNING, z3.Not(s.seen(q))))),
            ),
        ),
    }


def auxiliary(s: State) -> dict[str, Bool]:
    return {**shape(s), **_call(s), **_doors(s), **wedge(s)}


ASSUMPTIONS = (
    Assumption(
        "late_tokens",
        "contract",
        "The late output of a preempted request is delivered (StaleOutput = delivered), or no request whose "
        "late output would be dropped is taken as a victim (SpareInFlight; theory order has both).",
        ("order",),
        "gap configurations of the model",
    ),
    Assumption(
        "finite_answers",
        "contract",
        "A connector fails a load finitely often per request, and says not yet finitely often, or until the "
        "deadline of its first one has passed (action DeferralOver), when the load is given up (GiveUp).",
        ("order",),
    ),
    Assumption(
        "order_scope",
        "scope",
        "Not in theory order: adapters (theory adapters), shared blocks (theory shared), sessions without "
        "rule E or where parked holders take seats (gap turns-beyond-the-seats), idle sessions that take "
        "seats (gap sessions-take-the-seats), input for a session that still runs (gap "
        "session-in-two-queues). A session has finitely many tokens in all; under FCFS each turn is a "
        "request of its own. Theories shared and starvation.shared are about sessions that keep their "
        "place, and late tokens delivered or their victims spared; dropped ones (theories dropped and "
        "starvation.dropped) are about blocks that nobody shares. Theory commit leaves out sessions, shared "
        "blocks, dropped late tokens, grammar wait, pause and max_num_seqs.",
        ("order",),
    ),
    Assumption(
        "wider_relations",
        "model",
        "The relations allow more than the model: whether to wait while patience lasts, for which step in "
        "flight, and the first victim are free choices, input may bring tokens and any next end, a started "
        "load may complete before its gate opens, a request may be aborted any time. Every theorem holds for "
        "the wider behaviours; NoWedge counts a load that is not over as pending outside.",
        ("order", "commit"),
        "stallproof prove --differential",
    ),
    Assumption(
        "lexicographic",
        "glue",
        "The lexicographic order on vectors of natural numbers of a fixed finite length is well-founded. With"
        " Decreases: a closed system takes finitely many actions that change more than patience, quarantine "
        "and deadlines; with NoWedge and fair steps and transfers it stops only when all are finished, or "
        "are sessions that idle (Termination).",
        ("order",),
    ),
    Assumption(
        "finite_requests",
        "glue",
        "At any time finitely many requests have arrived, so sums over requests exist.",
        ("order",),
    ),
)

theory = Inductive(
    name="order",
    title="OneOrder: measure, wedge freedom, fairness",
    theorem="One scheduling order everywhere, commit with victims behind their target, full fit, rule R, "
    "patience P, chunk cap and budget of any size, failed loads, deadlines with quarantine, aborts, "
    "not-yet answers (bounded, or without end until a deadline, after which the load is given up), blocks "
    "kept back beside a load (a load that fits nowhere is given up), sessions that idle between turns and "
    "hold blocks, parked holders in the seats or not, late tokens delivered, or dropped and their victims "
    "spared. "
    "Decreases: the vector of components "
    "(tokens not committed, answers, loads and tokens of later turns left, phase, prefill left), in "
    "scheduling order, goes down lexicographically in every call that acts and in every action between "
    "calls, or stays and steps in flight, quarantine or deadlines that run go down. So Termination holds "
    "with chunked prefill, and the component of a request never rises because of requests behind it, however "
    "many arrive. "
    "NoWedge, NoInversion, Drain and PreemptPaid are what theory starvation rests on.",
    system=steps.system,
    statements=stated.statements,
    auxiliary=auxiliary,
    action_statements=stated.action_statements,
    consequences=stated.consequences,
    sums=m.SUMS,
    twins=TWINS,
    assumptions=ASSUMPTIONS,
    universe=3,
)
