"""Twins of the theories in counts break a promise in a run from the initial state, and not with the guard."""

from __future__ import annotations

import pytest

from stallproof_proofs import walk_counts
from stallproof_proofs.proofs import commit, dropped, order

THEORIES = {t.name: t for t in (commit.theory, order.theory, dropped.theory)}
TWINS = [(n, t) for n, th in THEORIES.items() for t in th.twins if walk_counts.script_of(th, t)]


@pytest.mark.parametrize(
    ("name", "twin"), TWINS, ids=[f"{n}-{t.action}-{t.guard}-{t.conjunct}" for n, t in TWINS]
)
def test_a_twin_breaks_a_promise_in_a_reachable_run(name: str, twin: walk_counts.Twin) -> None:
    theory = THEORIES[name]
    run = walk_counts.find(theory, twin)
    assert run, "the script does not run, or breaks nothing"
    known = walk_counts.script_of(theory, twin)
    assert known
    assert walk_counts.play(theory, None, *known) is None, "it breaks with the guard, too"


def test_every_twin_of_commit_has_a_run() -> None:
    assert all(walk_counts.script_of(commit.theory, t) for t in commit.theory.twins)


@pytest.mark.parametrize("name", THEORIES)
def test_each_script_belongs_to_a_twin(name: str) -> None:
    assert set(walk_counts.SCRIPTS[name]) <= {f"{t.action}-{t.guard}" for t in THEORIES[name].twins}
