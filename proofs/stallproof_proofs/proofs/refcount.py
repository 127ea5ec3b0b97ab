"""Reference counts equal holders: no auxiliary conjunct is needed."""

from __future__ import annotations

from stallproof_proofs.logic import Action, State, ite
from stallproof_proofs.result import Assumption
from stallproof_proofs.statements import refcount as stated
from stallproof_proofs.systems import refcount as m
from stallproof_proofs.theory import Inductive, Twin, substituted


def _decrement_twice(s: State, a: Action) -> Action:
    return substituted(a, ref=lambda k: s.ref(k) - ite(m.W(k), 1, 0))


def _no_increment(s: State, a: Action) -> Action:
    return substituted(a, ref=s.ref)


def _always_to_pool(s: State, a: Action) -> Action:
    return substituted(a, pool=lambda k: s.pool(k) + ite(m.W(k), 1, 0))


theory = Inductive(
    name="refcount",
    title="Exact reference counts",
    theorem="An implementation that adds one per new holder, subtracts one per holder that leaves, moves "
    "references into the deferred queue unchanged, and frees at zero keeps count = number of holders;"
    " a block is in the pool, once, iff its count is zero. Any number of holders, entries and blocks;"
    " the number of holders is an exact sum.",
    system=m.system,
    statements=stated.statements,
    auxiliary=lambda s: {},
    action_statements=stated.action_statements,
    sums=(m.OWN, m.DEFERRED),
    twins=[
        Twin("Hold", "not_holding", "RefCount.exact", note="a second touch by the same holder"),
        Twin("Hold", "increment", "RefCount.exact", _no_increment, note="a prefix hit that does not count"),
        Twin("Drop", "holding", "RefCount.exact", note="freed by somebody who does not hold it"),
        Twin("Drop", "refcount", "RefCount.pool", _always_to_pool, note="freed by its first holder"),
        Twin(
            "Defer",
            "once",
            "RefCount.exact",
            _decrement_twice,
            note="decremented when deferred and when drained",
        ),
        Twin("Defer", "holding", "RefCount.exact"),
        Twin("Defer", "new", "RefCount.exact", note="one entry takes the same block twice"),
        Twin("Drain", "decrement", "RefCount.exact", _no_increment),
    ],
    assumptions=(
        Assumption(
            "sum_facts",
            "glue",
            "Sums over requests, entries and blocks obey the lemmas of theory sums (they are sums "
            "over finitely many terms).",
            ("refcount", "order"),
        ),
    ),
)
