"""Adapters: the rule's count is the true one."""

from __future__ import annotations

import z3

from stallproof_proofs.logic import Action, Bool, State
from stallproof_proofs.result import Assumption
from stallproof_proofs.statements import adapters as stated
from stallproof_proofs.systems import adapters as m
from stallproof_proofs.theory import Inductive, Twin, substituted


def auxiliary(s: State) -> dict[str, Bool]:
    return {"counted": s.ot() == s.past()}


def _one_forgotten(s: State, a: Action) -> Action:
    """AdapterCount = step: an adapter whose requests have all their tokens in flight is not counted."""
    room = z3.Or(z3.Not(m.has(m.r0)), s.Nrun(m.ada(m.r0)) > 0, s.Nada() - 1 < m.Most)
    return Action(a.name, {**a.guards, "slot": room}, a.updates, a.params, a.source, a.actors)


def _not_counted(s: State, a: Action) -> Action:
    return substituted(a, ot=s.ot)


def _forgotten(s: State, a: Action) -> Action:
    """AdapterWatch = begin: who waits is forgotten while adapters are free."""
    return substituted(a, ot=lambda: z3.IntVal(0))


theory = Inductive(
    name="adapters",
    title="Adapters",
    theorem="For any number of requests and adapters: if a request is admitted only when its adapter runs "
    "already or fewer than MaxLoras do, counted over all running requests, there are never more. As long as "
    "one request is the first that waits for its adapter, at most AdapterBound newcomers with adapters "
    "behind it are given blocks; and it waits for somebody who runs, never for nothing.",
    system=m.system,
    statements=stated.statements,
    auxiliary=auxiliary,
    consequences=stated.consequences,
    sums=(m.RUNNERS, m.TAKEN),
    twins=[
        Twin("Admit", "slot", "AdapterShare", note="no count at all"),
        Twin(
            "Admit",
            "forgotten",
            "AdapterShare",
            _one_forgotten,
            note="adapter-too-many: in flight",
        ),
        Twin("Admit", "lets_go_first", "AdapterShare.overtaken", note="adapter-overtaken: #16876"),
        Twin("StartLoad", "lets_go_first", "AdapterShare.overtaken", note="loads overtake without end"),
        Twin("Admit", "counts", "counted", _not_counted, note="an admission that is not counted"),
        Twin("Nobody", "kept", "counted", _forgotten, note="adapter-forgotten: its count begins anew"),
        Twin("Another", "new", "counted", note="adapter-forgotten: the same one, counted anew"),
    ],
    assumptions=(
        Assumption(
            "adapters_apart",
            "model",
            "The relations of theory adapters are written by hand and know no blocks; who is taken to be the "
            "first that waits is any request that lacks its adapter. They agree with the operators of the "
            "model where its admission loop calls them. The other theories know no adapters: that who waits "
            "for one is served is checked for small instances.",
            ("adapters",),
            "tests/proofs/test_differential_adapters.py; gaps adapter-too-many and adapter-overtaken",
        ),
    ),
)
