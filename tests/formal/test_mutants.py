"""Mutants of the model: made of every function, caught by graphs, the control is not."""

import pytest

from stallproof_model import constants, graph, mutants
from stallproof_model.sched import GLOBAL, PER_REQUEST

ALL = mutants.mutants()
SMALL = graph(constants(N=2, B=3, Prompt=(2, 2), Total=(4, 3), Ext=(2, 0), K=1))


def test_every_action_and_most_operators_have_mutants():
    functions = {m.function for m in ALL}
    assert len(ALL) > 400
    assert {f.__name__ for f in (*GLOBAL, *PER_REQUEST)} - {"XferDone"} <= functions
    assert len({m.name for m in ALL}) == len(ALL)


def test_the_control_differs_nowhere():
    assert not mutants.differs(mutants.unmodified(), SMALL)


@pytest.mark.parametrize("function", ["Grab", "RunLoop", "Promote", "ProcR", "Init", "Dispatch"])
def test_some_mutant_of_the_function_is_caught(function):
    assert any(mutants.differs(m.build(), SMALL) for m in ALL if m.function == function)


def test_a_mutant_that_never_ends_is_caught():
    def forever(c, s):
        while True:
            pass
        yield

    _, init, call = mutants.unmodified()
    assert mutants.differs((forever, init, call), SMALL, seconds=0.2)


def test_listed_equivalents_exist_and_have_a_reason():
    names = {m.name for m in ALL}
    for name, reason in mutants.equivalents().items():
        assert name in names, f"{name} is stale"
        assert len(reason) > 20
