"""What keeps NoStarvation's statements: nobody behind o without blocks does anything but be rejected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import z3

from stallproof_proofs.logic import Action, Bool, State, forall, ite
from stallproof_proofs.proofs import order as shown
from stallproof_proofs.result import Assumption
from stallproof_proofs.statements import starvation as stated
from stallproof_proofs.sums import moved
from stallproof_proofs.systems import order as m
from stallproof_proofs.systems import order_steps as m_steps
from stallproof_proofs.systems import starvation as system
from stallproof_proofs.systems.order import (
    ADMLOOP,
    FINISHED,
    HELD,
    IDLE,
    LOADING,
    RECEIVED,
    RUNNING,
    candidate,
    order,
    q,
)
from stallproof_proofs.systems.starvation import o
from stallproof_proofs.theory import Inductive, Twin, substituted


def auxiliary(s: State) -> dict[str, Bool]:
    inside = z3.And(s.mode() != IDLE, s.line())
    newcomer = z3.And(order(q) > order(o), s.owns(q) == 0)
    return {
        "line": z3.Implies(s.line(), system.ready(s)),
        "line at start": z3.Implies(inside, z3.And(s.sts(o) == s.st(o), s.phs(o) == 0)),
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
        "handed": z3.Implies(
            z3.And(s.line(), s.handing(), s.limbo() > 0),
            z3.And(
                z3.Or(s.limbos(), s.limboa()),
                s.Sbeh() + ite(s.limboa(), 0, 1) <= s.h0() + s.tn(),
                s.limbog() <= s.limboc(),
            ),
        ),
        "turns": z3.Implies(
            s.line(),
            z3.And(
                s.tn() >= 0,
                forall(
                    q,
                    z3.And(
                        s.gen(q) <= s.comp(q) + ite(s.st(q) == HELD, 1, 0),
                        z3.Implies(m.is_(s, q, LOADING, RECEIVED), s.gen(q) == 0),
                        z3.Implies(s.own(q) == 0, s.gen(q) == 0),
                    ),
                ),
            ),
        ),
        "alone": z3.Implies(z3.And(s.line(), s.alone()), system.oldest(s, o)),
        "one turn": z3.Implies(
            z3.And(s.line(), s.alone()),
            z3.And(
                z3.Implies(s.handing(), s.limbog() == 0),
                forall(
                    q,
                    z3.And(
                        s.gen(q) >= 0,
                        z3.Implies(s.gen(q) > 0, z3.And(s.own(q) > 0, s.passes(q), s.passed(q) == o)),
                    ),
                ),
            ),
        ),
        "lowered one takes part": z3.Implies(z3.And(inside, s.hasd()), stated.takes_part(s, s.dw())),
    }


def given_by(every: Callable[[State], Sequence[Action]]) -> Callable[[State, Action], Action]:
    """The turn of a session that was evicted is given a block between calls; ``every``: unwatched actions."""

    def given(s: State, a: Action) -> Action:
        more: dict[str, Any] = {
            "own": lambda w: ite(w == m.r0, s.limbo() + 1, s.own(w)),
            "free": lambda: s.free() - 1,
        }
        base = next(b for b in every(s) if b.name == a.name)
        updates = {n: x for n, x in base.updates.items() if not n.startswith("S")}
        return system.watched(s, moved(s, replace(base, updates={**updates, **more}), m.r0, m.SUMS))

    return given


def anew(s: State, a: Action) -> Action:
    """A turn keeps the blocks and forgets what is computed in them."""
    return substituted(a, comp=lambda w: ite(w == m.r0, 0, s.comp(w)))


def _holders_close_nothing(s: State, a: Action) -> Action:
    """Only who holds nothing closes the door when it is refused."""
    waits = s.own(m.r0) == 0
    return substituted(
        a,
        hasc=lambda: ite(waits, a.updates["hasc"](), s.hasc()),
        cw=lambda: ite(waits, a.updates["cw"](), s.cw()),
    )


def _passes_for_all(s: State, a: Action) -> Action:
    """Whom a turn passes is noted for every session, not only for its own."""
    new = a.updates["passed"](m.r0)
    return substituted(a, passed=lambda w: new)


TWINS = [
    Twin("StartLoad", "not_shut", "Bypass", note="a refusal closes nothing: newcomers start loads"),
    Twin("Admit", "not_shut", "Bypass", note="a refusal closes nothing: newcomers run"),
    Twin("StartLoad", "next", "Bypass", note="non-holders out of scheduling order"),
    Twin("Admit", "turn", "Bypass", note="non-holders out of scheduling order"),
    Twin(
        "Refuse",
        "door",
        "o looked at",
        _holders_close_nothing,
        note="a parked holder that is refused closes nothing: newcomers pass it",
    ),
    Twin("LoadEvict", "not_shut", "newcomers do nothing", note="a newcomer's load evicts a session"),
    Twin(
        "InputHere",
        "given",
        "Bypass",
        given_by(m_steps.every_action),
        note="turns of evicted sessions are given blocks: newcomers",
    ),
    Twin("InputHere", "kept", "turns", anew, note="a turn computes its session again: it passes o for ever"),
    Twin("Input", "yields", "OneTurn", note="N7: a session that goes on talking goes first with each turn"),
    Twin("InputAway", "yields", "one turn", note="N7 under FCFS: each turn takes the blocks over"),
    Twin("InputHere", "noted", "one turn", note="a turn that does not note whom it passes"),
    Twin(
        "Arrive", "new", "TurnBegins.over", note="an id is used again: whom a kept turn waits for comes back"
    ),
    Twin("Input", "whom", "TurnBegins.whom", _passes_for_all, note="one turn changes whom another waits for"),
    Twin("Dispatch", "over", "NoStarvation.goes", note="a call ends before it has looked at everybody"),
]

ASSUMPTIONS = (
    Assumption(
        "starvation_glue",
        "glue",
        "NoStarvation from the obligations. Those ahead of o are finitely many; by induction they finish, "
        "or idle, and who idles has no work and is everybody's victim. While o is in line the set of "
        "requests that take part grows only by turns of sessions that hold blocks, which are finitely many "
        "(Bypass, Turns; under FCFS a turn is a new request), every call and every action between calls "
        "lowers their vector of measures or leaves it (NoStarvation.rank), and with nothing pending outside "
        "a call lowers it (NoStarvation.goes); what is pending outside comes (environment), and a patient "
        "call waits only for a step in flight, at most P times (Patience.steps). Vectors of a fixed finite "
        "length are well-founded, so o leaves the line. Its own measure is never raised except below an "
        "older one that fell (Decreases), so it does so finitely often; out of line it runs, loads, has "
        "loaded (and is promoted by the next call), or waits for its own token: finitely long.",
        ("starvation", "starvation.shared", "starvation.dropped"),
    ),
    Assumption(
        "turn_begins",
        "glue",
        "A turn that is kept (TurnsYield) begins in the end. It waits for one request, the same all the "
        "while (TurnBegins.whom), and only while that one is the oldest that waits (guard yields). By "
        "NoStarvation that one leaves the line whenever it is in it, and comes to its end; who is over "
        "stays so (TurnBegins.over), so from then on nothing keeps the turn. That whoever gives input then "
        "does so is the engine's part.",
        ("starvation", "starvation.shared", "starvation.dropped"),
        "tests/formal/test_turns.py (fair cycles of the model)",
    ),
    Assumption(
        "watched",
        "glue",
        "Theories starvation, starvation.shared and starvation.dropped add ghosts to theories order, shared "
        "and dropped, and one rule, TurnsYield, as guards of Input; no guard reads a ghost, so every "
        "invariant proved there holds in their states.",
        ("starvation", "starvation.shared", "starvation.dropped"),
        "tests/proofs/test_starvation.py (the actions are compared term by term)",
    ),
)

theory = Inductive(
    name="starvation",
    title="NoStarvation with patience, and the bypass bound",
    theorem="Let o be any request in line: waiting, or parked with its blocks, and no token of it "
    "outstanding. Bypass: until "
    "something of o changes, no request behind it that held nothing when o got in line is given a block, so "
    "at most B requests behind it are served, however many arrive, and one more for each request ahead of it "
    "that is a session and comes back behind it. Turns: under FCFS a session's next turn is a new request "
    "that keeps the blocks; each of those goes through at most B + 1 turns meanwhile, so a session that goes "
    "on talking passes o finitely often. OneTurn: while o is the oldest that waits, each passes it with one "
    "turn at most (TurnsYield), whatever a block holds and however long a session may get. "
    "NoStarvation: on o, those ahead of it and those holders, the "
    "measure falls in every call that acts, patience P and rejections of newcomers included, and in every "
    "action between calls that changes it, and a call with nothing pending outside acts on one of them. "
    "TurnBegins: a turn that is kept waits for one request, and for nobody once that one is over.",
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
