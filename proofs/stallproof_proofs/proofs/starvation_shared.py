"""NoStarvation where blocks are shared: who hits is a newcomer, too, while somebody is in line."""

from __future__ import annotations

import z3

from stallproof_proofs.logic import Action, Bool, State
from stallproof_proofs.proofs import shared as shown
from stallproof_proofs.proofs import starvation as unshared
from stallproof_proofs.statements import starvation_shared as stated
from stallproof_proofs.systems import starvation_shared as system
from stallproof_proofs.systems.shared import moves
from stallproof_proofs.systems.starvation import BEHIND
from stallproof_proofs.theory import Inductive, Twin


def auxiliary(s: State) -> dict[str, Bool]:
    """As in theory starvation, without the turns that are new requests."""
    return {n: g for n, g in unshared.auxiliary(s).items() if n not in ("handed", "turns")}


def _hits_pass(s: State, a: Action) -> Action:
    """A prefix hit takes nothing from the pool, so who hits passes a refused one."""
    return Action(
        a.name, {**a.guards, "not_shut": z3.Or(a.guards["not_shut"], moves == 0)}, a.updates, a.params
    )


TWINS = [
    Twin("Admit", "not_shut", "Bypass", note="a refusal closes nothing: newcomers run"),
    Twin(
        "Admit",
        "hits",
        "Bypass",
        _hits_pass,
        note="newcomers that hit enter past a refusal: what is free stays",
    ),
    Twin("StartLoad", "not_shut", "Bypass", note="newcomers start loads"),
    Twin("StartLoad", "next", "Bypass", note="non-holders out of scheduling order"),
    Twin("LoadEvict", "not_shut", "newcomers do nothing", note="a newcomer's load evicts a session"),
    Twin("Input", "yields", "OneTurn", note="N7: a session that goes on talking goes first with each turn"),
    Twin("Dispatch", "over", "NoStarvation.goes", note="a call ends before it has looked at everybody"),
]

theory = Inductive(
    name="starvation.shared",
    title="NoStarvation where blocks are shared",
    theorem="Theory starvation once more over theory shared, with sessions that keep their place: for any "
    "request o in line, nobody behind it that held nothing when o got in line is given a block, a hit "
    "included; on o, those ahead of it and the holders behind it, as many as then, the measure falls in "
    "every call that acts, and with nothing pending outside a call acts on one of them. The bound by the "
    "size of the pool is gone: any number may hold one block. OneTurn: while o is the oldest that waits, a "
    "session that holds blocks begins one turn ahead of it at most.",
    system=system.system,
    statements=stated.statements,
    auxiliary=auxiliary,
    action_statements=stated.action_statements,
    sums=(BEHIND,),
    twins=TWINS,
    assumptions=unshared.ASSUMPTIONS,
    universe=3,
    rests_on=shown.theory,
)
