"""OneOrder with shared blocks: the invariant of theory order holds with joint gains."""

from __future__ import annotations

import z3

from stallproof_proofs.logic import Action, Bool, State, forall
from stallproof_proofs.proofs import order as unshared
from stallproof_proofs.result import Assumption
from stallproof_proofs.statements import shared as stated
from stallproof_proofs.systems import order as m
from stallproof_proofs.systems import shared as system
from stallproof_proofs.systems.order import ADMLOOP, HELD, RUNLOOP, WAITING, can_load, is_, q
from stallproof_proofs.theory import Inductive, Twin


def auxiliary(s: State) -> dict[str, Bool]:
    t = s.tgt()
    target = z3.Implies(
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
                    m.remaining(s, t) <= s.free() + s.Sgain(t) + s.hth(),
                ),
                m.next_candidate(s, t),
            ),
        ),
    )
    room = forall(q, z3.Implies(s.pf(q), m.remaining(s, q) <= s.free() + s.Sall(q)))
    return {**unshared.auxiliary(s), "target": target, "room": room}


def _sole_gain(s: State, a: Action) -> Action:
    """Refused although all victims together would cover the need."""
    short = z3.If(
        can_load(s, m.r0),
        m.load_need(s, m.r0) > s.free() + s.Sidle(),
        z3.And(m.remaining(s, m.r0) > s.free(), s.Sgain(m.r0) > 0),
    )
    return Action(a.name, {**a.guards, "short": short}, a.updates, a.params)


ASSUMPTIONS = (
    Assumption(
        "joint_gains",
        "glue",
        "The joint gains of theory shared are numbers of blocks: a larger set gives no less, an empty one "
        "nothing, and they move at each step by what theory sharing proves of each block. The relations are "
        "written by hand; no transition function of the model shares blocks.",
        ("shared",),
        "tests/proofs/test_shared.py (random block tables), test_sharing.py (gain_of of the core)",
    ),
)

TWINS = [
    Twin("AdmEvict", "sure", "target", note="eviction that does not make its target run"),
    Twin("AdmEvict", "let_go", "target", note="a victim whose blocks others hold, too, counted as if alone"),
    Twin("AdmEvict", "let_go", "raised only behind"),
    Twin("RunEvict", "let_go", "owed"),
    Twin("LoadEvict", "let_go", "target"),
    Twin("Preempt", "let_go", "raised only behind"),
    Twin("Serve", "takes", "raised only behind"),
    Twin("Admit", "takes", "raised only behind", note="hits that cost requests ahead their room"),
    Twin(
        "Admit", "full_fit", "raised only behind", note="full fit, hits on blocks in the pool counted twice"
    ),
    Twin("StartLoad", "rule_R", "raised only behind", note="rule R"),
    Twin("StartLoad", "takes", "Conservation"),
    Twin("Refuse", "short", "idle call runs nothing"),
    Twin(
        "Refuse",
        "sole",
        "idle call runs nothing",
        _sole_gain,
        note="sharing/NoWedge.sole: two parked holders of one prefix",
    ),
    Twin("DeliverTurn", "grows", "Decreases"),
    Twin("Input", "moves", "Decreases"),
    Twin("Expire", "lost", "room"),
    Twin("XferDone", "grows", "Decreases"),
]

theory = Inductive(
    name="shared",
    title="OneOrder with shared blocks",
    theorem="Theory order once more, where a block may stand in any number of tables: prefix hits at "
    "admission and at load starts, victims that give only what nobody else holds, gain counted for all "
    "victims together. Decreases, NoWedge, NoInversion, Drain, EvictCoupled, PreemptPaid and Seated hold as "
    "there, with the same measure. Joint gains are state variables that move as theory sharing says; with "
    "rule E.",
    system=system.system,
    statements=stated.statements,
    auxiliary=auxiliary,
    action_statements=stated.action_statements,
    consequences=stated.consequences,
    sums=system.EXACT,
    twins=TWINS,
    assumptions=ASSUMPTIONS,
    universe=3,
)
