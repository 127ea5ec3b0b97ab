"""What keeps NoStarvation's statements: nobody behind o without blocks does anything but be rejected."""

from __future__ import annotations

import z3

from stallproof_proofs.logic import Action, Bool, State, forall
from stallproof_proofs.proofs import order as shown
from stallproof_proofs.result import Assumption
from stallproof_proofs.statements import starvation as stated
from stallproof_proofs.systems import order as m
from stallproof_proofs.systems import starvation as system
from stallproof_proofs.systems.order import (
    ADMLOOP,
    FINISHED,
    HELD,
    IDLE,
    RECEIVED,
    RUNNING,
    candidate,
    order,
    q,
)
from stallproof_proofs.systems.starvation import o
from stallproof_proofs.theory import Inductive, Twin, without


def auxiliary(s: State) -> dict[str, Bool]:
    inside = z3.And(s.mode() != IDLE, s.line())
    newcomer = z3.And(order(q) > order(o), s.owns(q) == 0)
    return {
        "line": z3.Implies(s.line(), system.ready(s)),
        "line at start": z3.Implies(inside, z3.And(s.sts(o) == m.WAITING, s.phs(o) == 0, s.owns(o) == 0)),
        "o looked at": z3.Implies(
            z3.And(inside, s.mode() == ADMLOOP, z3.Not(candidate(s, o))),
            z3.And(s.hasc(), order(s.cw()) <= order(o)),
        ),
        "newcomers do nothing": forall(
            q,
            z3.Implies(
                z3.And(inside, newcomer),
                z3.And(
                    s.own(q) == 0,
                    z3.Not(m.is_(s, q, RUNNING, RECEIVED, HELD)),
                    z3.Or(s.st(q) == s.sts(q), s.st(q) == FINISHED),
                    z3.Implies(s.hasd(), s.dw() != q),
                    z3.Implies(s.hast(), s.tgt() != q),
                ),
            ),
        ),
        "holders were holders": forall(
            q, z3.Implies(z3.And(inside, order(q) > order(o), s.own(q) > 0), s.owns(q) > 0)
        ),
        "acts": z3.Implies(z3.And(s.mode() != IDLE, s.acted()), s.moved()),
        "lowered one takes part": z3.Implies(z3.And(inside, s.hasd()), stated.takes_part(s, s.dw())),
    }


def _door_open(s: State, a: Action) -> Action:
    """A refusal closes nothing."""
    return Action(a.name, without(a.guards, "not_shut"), a.updates, a.params, a.source, a.actors)


TWINS = [
    Twin("StartLoad", "not_shut", "Bypass", note="a refusal closes nothing: newcomers start loads"),
    Twin("Admit", "not_shut", "Bypass", note="a refusal closes nothing: newcomers run"),
    Twin("StartLoad", "next", "Bypass", note="non-holders out of scheduling order"),
    Twin("Admit", "turn", "Bypass", note="non-holders out of scheduling order"),
    Twin("LoadEvict", "not_shut", "newcomers do nothing", note="a newcomer's load evicts a session"),
    Twin("Dispatch", "over", "NoStarvation.goes", note="a call ends before it has looked at everybody"),
]

ASSUMPTIONS = (
    Assumption(
        "starvation_glue",
        "glue",
        "NoStarvation from the obligations. Those ahead of o are finitely many; by induction they finish, "
        "or idle, and who idles has no work and is everybody's victim. "
        "While o is in line the set of requests that take part does not grow (Bypass), every call lowers "
        "their vector of measures or leaves it (NoStarvation.rank), and with nothing pending outside it "
        "lowers it (NoStarvation.goes); what is pending outside comes (environment), and a patient call "
        "waits only for a step in flight, at most P times (Patience.steps). Vectors of a fixed finite "
        "length are well-founded, so o leaves the line. Its own measure is never raised except below an "
        "older one that fell (Decreases), so it does so finitely often; out of line it runs, loads, or "
        "waits for its own token: finitely long.",
        ("starvation",),
    ),
    Assumption(
        "watched",
        "glue",
        "Theory starvation adds ghosts to theory order; no guard reads one, so every invariant proved there "
        "holds in its states.",
        ("starvation",),
        "tests/proofs (the actions are compared term by term)",
    ),
)

theory = Inductive(
    name="starvation",
    title="NoStarvation with patience, and the bypass bound",
    theorem="Let o be any request in line: waiting, without blocks or tokens outstanding. Bypass: until "
    "something of o changes, no request behind it that held nothing when o got in line is given a block, so "
    "at most B requests behind it are served, however many arrive. NoStarvation: on o, those ahead of it "
    "and those holders, a finite set that cannot grow, the measure falls in every call that acts, patience P "
    "and rejections of newcomers included, and a call with nothing pending outside acts on one of them.",
    system=system.system,
    statements=stated.statements,
    auxiliary=auxiliary,
    action_statements=stated.action_statements,
    sums=(system.BEHIND,),
    twins=TWINS,
    assumptions=ASSUMPTIONS,
    universe=3,
    rests_on=shown.theory,
)
