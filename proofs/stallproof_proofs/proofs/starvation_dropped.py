"""NoStarvation where late tokens are dropped: who pays for one held blocks when the window began.

Waits close the calls of a window to everybody without blocks, so what a newcomer does costs nobody his room,
and no rise among those that take part needs it as payment.
"""

from __future__ import annotations

import z3

from stallproof_proofs.logic import Bool, State
from stallproof_proofs.proofs import dropped as shown
from stallproof_proofs.proofs import starvation as delivered
from stallproof_proofs.result import Assumption
from stallproof_proofs.statements import starvation_dropped as stated
from stallproof_proofs.systems import dropped
from stallproof_proofs.systems import starvation_dropped as system
from stallproof_proofs.systems.order import IDLE
from stallproof_proofs.systems.starvation import BEHIND
from stallproof_proofs.theory import Inductive, Twin


def auxiliary(s: State) -> dict[str, Bool]:
    """As in theory starvation, and: with nothing in flight when the call began no token is lost."""
    lost = z3.Implies(z3.And(s.mode() != IDLE, s.lost()), s.nfls() > 0)
    return {**delivered.auxiliary(s), "lost in flight": lost}


TWINS = [
    Twin("StartLoad", "not_shut", "Bypass", note="a refusal closes nothing: newcomers start loads"),
    Twin("Admit", "not_shut", "Bypass", note="a refusal closes nothing: newcomers run"),
    Twin("StartLoad", "next", "Bypass", note="non-holders out of scheduling order"),
    Twin("Admit", "turn", "Bypass", note="non-holders out of scheduling order"),
    Twin("LoadEvict", "not_shut", "newcomers do nothing", note="a newcomer's load evicts a session"),
    Twin(
        "InputHere",
        "given",
        "Bypass",
        delivered.given_by(dropped.actions),
        note="turns of evicted sessions are given blocks: newcomers",
    ),
    Twin("InputHere", "kept", "turns", delivered.anew, note="a turn computes its session again"),
    Twin("Input", "yields", "OneTurn", note="N7: a session that goes on talking goes first with each turn"),
    Twin("InputAway", "yields", "one turn", note="N7 under FCFS: each turn takes the blocks over"),
    Twin("InputHere", "noted", "one turn", note="a turn that does not note whom it passes"),
    Twin("DeliverTurn", "rule_E", "NoStarvation.rank", note="a session idles: no runner may take its blocks"),
    Twin("Preempt", "youngest", "lost in flight", note="loses the token of one served in the same call"),
    Twin("SelfPreempt", "next", "lost in flight", note="preempts one that it has just served"),
    Twin(
        "Dispatch", "over", "NoStarvation.rank", note="a call ends though it evicted for one not yet served"
    ),
    Twin("Dispatch", "over", "NoStarvation.window", note="the same, of a call that loses a token"),
    Twin("Dispatch", "over", "NoStarvation.goes", note="a call ends before it has looked at everybody"),
]

ASSUMPTIONS = (
    Assumption(
        "starvation_windows",
        "glue",
        "NoStarvation where late tokens are dropped: as starvation_glue, with windows instead of calls. Let "
        "T be those ahead of o, o, those that held blocks when the window began in which o got in line, and "
        "the turns that take blocks over while o is in line (finitely many: Bypass, Turns). From one "
        "beginning of a window to the next the vector of T falls or stays: each call that loses nothing and "
        "each action between calls lowers it or leaves it (NoStarvation.rank), a window that loses a token "
        "ends below its beginning (NoStarvation.window), and whoever of T does not take part holds nothing "
        "and only goes down. The same holds of o and those ahead of it whether o is in line or not "
        "(LostPaid, Decreases.window), so its own lost tokens are finitely many.",
        ("starvation.dropped",),
    ),
)

theory = Inductive(
    name="starvation.dropped",
    title="NoStarvation where late tokens are dropped",
    theorem="Theory starvation once more over theory dropped: late tokens of who is preempted are lost, "
    "nobody is spared, at most D steps are in flight, P >= D - 1. Bypass, Turns and OneTurn hold as there, "
    "for any request o in line. On o, those ahead of it and those that held blocks when the window began, "
    "the measure falls in every call that acts and loses no token; a call that loses one ends its window, "
    "and their measure is lower then than when the window began (NoStarvation.window): who pays is one of "
    "them, however many newcomers come and go. With nothing pending outside a call acts on one of them.",
    system=system.system,
    statements=stated.statements,
    auxiliary=auxiliary,
    action_statements=stated.action_statements,
    sums=(BEHIND,),
    twins=TWINS,
    assumptions=(*delivered.ASSUMPTIONS, *ASSUMPTIONS),
    universe=3,
    rests_on=shown.theory,
)
