"""One request in line, where blocks are shared: theory shared with the ghosts that watch it."""

from __future__ import annotations

import z3

from stallproof_proofs.logic import Action, Bool, State, System, Vocabulary, forall
from stallproof_proofs.sums import members
from stallproof_proofs.systems import order as m
from stallproof_proofs.systems import shared
from stallproof_proofs.systems import starvation as watch

vocabulary = Vocabulary(
    *shared.vocabulary.vars.values(),
    *(v for n, v in watch.vocabulary.vars.items() if n not in m.vocabulary.vars),
)


def actions(s: State) -> list[Action]:
    return [watch.watched(s, a) for a in shared.actions(s)]


def init(s: State) -> list[Bool]:
    return [*shared.init(s), *watch.first(s)]


def facts(s: State) -> list[Bool]:
    """Those of theory shared, and of the number of holders behind."""
    nobody = forall(m.q, watch.holder_behind(s, m.q) == 0)
    return [*shared.facts(s), members(s, watch.BEHIND, m.q), z3.Implies(nobody, s.Sbeh() == 0)]


system = System("OneOrder, shared blocks, one request watched", vocabulary, init, actions, "", facts)
