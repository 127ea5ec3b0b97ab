"""Each twin of the block theories breaks a stated property in a run from the initial state."""

from __future__ import annotations

import pytest

from stallproof_proofs import walk
from stallproof_proofs.proofs import blocks

THEORIES = {t.name: t for t in (blocks.gate, blocks.defer)}
TWINS = [(n, t) for n, th in THEORIES.items() for t in th.twins]


@pytest.mark.parametrize(("name", "twin"), TWINS, ids=[f"{n}-{t.action}-{t.guard}" for n, t in TWINS])
def test_a_twin_breaks_a_promise_in_a_reachable_run(name: str, twin: walk.Twin) -> None:
    run = walk.find(THEORIES[name], twin)
    assert run, "no run found"
    assert run.broken


@pytest.mark.parametrize("name", THEORIES)
def test_the_unmodified_system_breaks_nothing(name: str) -> None:
    assert walk.control(THEORIES[name], walks=60) > 600


@pytest.mark.parametrize("name", THEORIES)
def test_each_script_belongs_to_a_twin(name: str) -> None:
    assert set(walk.SCRIPTS[name]) == {f"{t.action}-{t.guard}" for t in THEORIES[name].twins}
