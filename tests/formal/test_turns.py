"""A turn that is kept (``TurnsYield = kept``) begins in the end, on the Python twin."""

from typing import Any

import pytest

from stallproof_model import constants, graph
from stallproof_model.explore import _fair, fair_actions, sccs
from stallproof_model.state import Constants, at

ONE: dict[str, Any] = {
    "N": 2,
    "B": 3,
    "D": 1,
    "Prompt": (1, 3),
    "Total": (3, 4),
    "Sessions": {1},
    "TalkOn": {1},
    "TurnsYield": "kept",
}
TWO = {"N": 3, "B": 4, "Prompt": (1, 1, 3), "Total": (3, 3, 4), "Sessions": {1, 2}, "TalkOn": {1, 2}}
LOADS = {"Ext": (0, 3), "K": 1, "NotYetForever": True}


def kept_for_ever(c: Constants, r: int) -> tuple[int, bool]:
    """In how many states the turn of ``r`` is kept, and whether a fair run keeps it again and again."""
    g = graph(c)
    idle = [at(s.st, r) == "idle" for s in g.nodes]
    begins = [any(name == "Input" and q == r for name, q, _ in es) for es in g.edges]
    kept = {i for i, here in enumerate(idle) if here and not begins[i]}
    adj = [[j for _, _, j in es if j != i and idle[j]] if idle[i] else [] for i, es in enumerate(g.edges)]
    fair = fair_actions(c)
    return len(kept), any(kept & set(comp) and _fair(g, comp, fair) for comp in sccs(adj))


@pytest.mark.parametrize(
    ("more", "who"),
    [
        ({}, 1),
        ({"D": 2}, 1),
        ({"Ext": (0, 3)}, 1),
        ({**LOADS, "DeferralDeadline": "kept"}, 1),
        ({"N": 3, "Prompt": (1, 3, 1), "Total": (3, 4, 2), "Recycle": {3}}, 1),
        (TWO, 1),
        (TWO, 2),
    ],
)
def test_a_kept_turn_begins(more: dict[str, Any], who: int) -> None:
    states, for_ever = kept_for_ever(constants(**{**ONE, **more}), who)
    assert states > 0, "it is kept somewhere"
    assert not for_ever


def test_it_waits_for_ever_for_who_is_never_served() -> None:
    assert kept_for_ever(constants(**{**ONE, **LOADS}), 1)[1]
