"""One request watched: the ghosts change nothing, and turns of a session do pass it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import z3

from stallproof_proofs.systems import (
    dropped,
    order_steps,
    shared,
    starvation,
    starvation_dropped,
    starvation_shared,
)
from stallproof_proofs.systems import order as m

PAIRS = {
    "order": (order_steps.every_action, starvation.actions, m.vocabulary, starvation.vocabulary),
    "shared": (shared.actions, starvation_shared.actions, shared.vocabulary, starvation_shared.vocabulary),
    "dropped": (
        dropped.actions,
        starvation_dropped.actions,
        dropped.vocabulary,
        starvation_dropped.vocabulary,
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_ghosts_leave_the_actions_as_they_are(name: str) -> None:
    base, watched, before, after = PAIRS[name]
    s = after.state()
    assert starvation.same_actions(base(s), watched(s), before.vars)


def test_the_comparison_can_fail() -> None:
    s = starvation.vocabulary.state()
    base, mine = order_steps.every_action(s), starvation.actions(s)
    i = next(i for i, a in enumerate(mine) if a.name == "Admit")
    fewer = {n: g for n, g in mine[i].guards.items() if n != "seat"}
    other = {**mine[i].updates, "budget": lambda: z3.IntVal(0)}
    for wrong in (replace(mine[i], guards=fewer), replace(mine[i], updates=other)):
        changed = [*mine[:i], wrong, *mine[i + 1 :]]
        assert not starvation.same_actions(base, changed, m.vocabulary.vars)
    assert not starvation.same_actions(base, base, m.vocabulary.vars)  # TurnsYield is left out
