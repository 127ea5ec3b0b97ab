"""The Python twin: what it must hold under the rules to build, and that its checks can fail."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallproof_model import constants, first_violation, graph, lasso
from stallproof_model.explore import TooBig, edge_set
from stallproof_model.props import INVARIANTS
from stallproof_model.rulesets import RULESETS
from stallproof_model.search import instances, judge, sweep

PINGPONG = {"N": 2, "B": 5, "D": 1, "Prompt": (4, 4), "Total": (6, 6), "Ext": (2, 3)}
N1 = {
    "N": 3,
    "B": 4,
    "ChunkCap": 2,
    "Budget": 3,
    "Prompt": (4, 1, 1),
    "Total": (5, 2, 2),
    "Recycle": {2, 3},
}


def test_pingpong_is_a_four_state_cycle():
    c = constants(**{**RULESETS["Proposal40968"], **PINGPONG})
    found = lasso(graph(c))
    assert found is not None
    assert (found.kind, len(found.cycle)) == ("livelock", 4)
    assert {name for name, _, _ in found.cycle} == {"Schedule", "XferDone"}
    assert found.cycle[-1][2] == found.prefix[-1][2]
    assert lasso(graph(constants(**PINGPONG))) is None


def test_n1_starves_under_the_guard_and_not_under_gate_loads():
    for rules in ("Native030", "Native032"):
        found = lasso(graph(constants(**{**RULESETS[rules], **N1})))
        assert found is not None
        assert found.kind == "starvation"
    assert judge(constants(**N1)).prop == ""
    closed = constants(**{**RULESETS["Native030"], **N1, "CloseOnWait": True})
    assert lasso(graph(closed)) is None


def test_two_sessions_that_talk_in_turns_starve_an_older_request_unless_a_turn_is_kept():
    """Asked first once a turn, the older one needs the blocks of both, and one of them always runs."""
    two = {
        "N": 3,
        "B": 4,
        "D": 1,
        "Prompt": (1, 1, 4),
        "Total": (3, 3, 5),
        "Sessions": {1, 2},
        "TalkOn": {1, 2},
    }
    for rule in ("no", "once"):
        found = lasso(graph(constants(**two, TurnsYield=rule)))
        assert found is not None
        assert (found.kind, found.prop) == ("starvation", "NoStarvation")
    assert judge(constants(**two)).prop == ""


def test_a_cycle_of_a_lasso_is_fair():
    g = graph(constants(**{**RULESETS["Native030"], **N1}))
    found = lasso(g)
    taken = {name for name, _, _ in found.cycle}
    assert {"Schedule", "Process"} <= taken
    edges = edge_set(g)
    here = found.prefix[-1][2]
    for name, _, there in found.cycle:
        assert (here, name, there) in edges
        here = there


@given(st.integers(0, 10**6), st.booleans())
@settings(max_examples=25, deadline=None)
def test_one_order_keeps_the_promise_on_random_instances(seed, open_system):
    w = next(instances(seed, open_system=open_system, b=(3, 4)))
    v = judge(constants(**w), limit=1500)
    assert v is None or v.prop == "", w


def test_a_sweep_of_a_gap_finds_it():
    assert sweep({"Lateral": "none", "RunEvict": False}, 60, seed=1)["NoWedge"] > 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"Nope": 1}, "unknown constant"),
        ({"N": 3, "Prompt": (1,), "Total": (2,)}, "should have N = 3"),
        ({"FenceMode": "Maybe"}, "is not one of"),
        ({"P": True}, "should be a int"),
        ({"Ext": (3, 0)}, "larger than its prompt"),
        ({"Recycle": {7}}, "outside"),
        ({"Total": (2, 2)}, "must exceed"),
    ],
)
def test_wrong_constants_name_the_field(given, message):
    with pytest.raises(ValueError, match=message):
        constants(**given)


def test_a_graph_beyond_the_limit_is_no_verdict():
    with pytest.raises(TooBig):
        graph(constants(), limit=3)
    assert judge(constants(), limit=3) is None


def test_first_violation_gives_the_shortest_trace():
    w = {"N": 2, "B": 4, "D": 1, "Prompt": (3, 3), "Total": (5, 5), "Ext": (2, 2)}
    found = first_violation(graph(constants(**{**RULESETS["Native023"], **w})), ["NoWedge"])
    assert found.prop == "NoWedge"
    assert len(found.trace) == 5
    assert found.trace[0][0] == ""


def test_every_statement_about_a_state_can_fail():
    c = constants(N=2, B=3, Prompt=(2, 2), Total=(4, 3), Ext=(2, 0), MaxSeqs=1, Adapter=(1, 2))
    s = graph(c).nodes[0]
    over = s._replace(st=("finished", "finished"), wq=())
    broken = {
        "Conservation": s._replace(free=2),
        "Queues": s._replace(wq=(1, 1)),
        "InFlightSafe": s._replace(bad=True),
        "XferSafe": s._replace(st=("loading", "waiting"), own=(1, 0)),
        "NoLeak": over._replace(free=2),
        "Seated": s._replace(st=("running", "running"), run=(1, 2), wq=()),
        "AdapterShare": s._replace(st=("running", "running"), run=(1, 2), wq=()),
        "NoWedge": s._replace(st=("held", "stuck"), own=(2, 1), free=0, tok=(3, 2)),
    }
    assert set(broken) == set(INVARIANTS)
    for name, state in broken.items():
        assert INVARIANTS[name](c, s), name
        assert not INVARIANTS[name](c, state), name
