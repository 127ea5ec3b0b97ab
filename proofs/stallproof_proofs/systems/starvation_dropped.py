"""One request in line, where late tokens are dropped: theory dropped with the ghosts that watch it."""

from __future__ import annotations

import z3

from stallproof_proofs.logic import Action, Bool, State, System, Vocabulary, forall
from stallproof_proofs.sums import below, members
from stallproof_proofs.systems import dropped
from stallproof_proofs.systems import order as m
from stallproof_proofs.systems import starvation as watch

vocabulary = Vocabulary(
    *dropped.vocabulary.vars.values(),
    *(v for n, v in watch.vocabulary.vars.items() if n not in m.vocabulary.vars),
)


def actions(s: State) -> list[Action]:
    return [watch.watched(s, a) for a in dropped.actions(s)]


def init(s: State) -> list[Bool]:
    return [*dropped.init(s), *watch.first(s)]


def facts(s: State) -> list[Bool]:
    """Those of theory dropped, and of the number of holders behind."""
    nobody = forall(m.q, watch.holder_behind(s, m.q) == 0)
    return [
        *dropped.facts(s),
        members(s, watch.BEHIND, m.q),
        below(s, watch.BEHIND, m.OWN, m.q, (), ()),
        z3.Implies(nobody, s.Sbeh() == 0),
    ]


system = System("OneOrder, late tokens dropped, one request watched", vocabulary, init, actions, "", facts)
