"""The ledger: which tags are expected, and what a wrong one means. No torch needed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallproof.kernels.ledger import Entry, Finding, Ledger
from stallproof.kernels.tags import EPOCHS, LOADING, OWNED, POOL, describe, epoch_of, tag


@given(epoch=st.integers(1, 3 * EPOCHS), state=st.sampled_from([OWNED, LOADING, POOL]))
def test_tags_fit_a_float_and_are_never_zero(epoch: int, state: int) -> None:
    t = tag(epoch, state)
    assert 4 < t < 2**24
    assert t & 3 == state
    assert (epoch_of(t) - epoch) % EPOCHS == 0


def test_describe() -> None:
    assert describe(tag(7, LOADING)) == "epoch 7 (loading)"
    assert describe(0) == "no epoch"


def test_a_fresh_block_is_stamped_and_expected_in_the_same_step() -> None:
    ledger = Ledger(4)
    ledger.alloc("a", [1, 2])
    plan = ledger.plan(1, ["a"])
    assert plan.stamps == (Entry(1, tag(1, OWNED)), Entry(2, tag(1, OWNED)))
    assert set(plan.expect) == {1, 2}
    assert ledger.plan(2, ["a"]).stamps == ()


def test_a_hand_out_is_stamped_by_the_first_step_that_runs_its_holder() -> None:
    ledger = Ledger(4)
    ledger.alloc("a", [1])
    assert ledger.plan(1, []).stamps == ()
    ledger.share("b", [1])
    assert ledger.plan(2, ["b"]).stamps == (Entry(1, tag(1, OWNED)),)
    assert ledger.plan(3, ["a"]).stamps == ()


def test_a_load_that_starts_calls_later_still_has_one_stamp() -> None:
    ledger = Ledger(4)
    ledger.alloc("a", [1])
    ledger.plan(1, [])
    ledger.start("a#1", "a", [1])
    plan = ledger.plan(2, [])
    assert plan.stamps == ()
    assert [(j.kind, j.entries) for j in plan.now] == [("start", (Entry(1, tag(2, LOADING)),))]


def test_a_stamp_says_what_it_must_find() -> None:
    ledger = Ledger(4)
    ledger.alloc("a", [1])
    ledger.plan(1, ["a"])
    ledger.free("a")
    ledger.alloc("b", [1])
    assert ledger.plan(2, ["b"]).stamps == (Entry(1, tag(2, OWNED), tag(1, OWNED)),)


def test_sharing_changes_no_epoch() -> None:
    ledger = Ledger(4)
    ledger.alloc("a", [1])
    ledger.plan(1, ["a"])
    ledger.share("b", [1])
    ledger.free("a")
    plan = ledger.plan(2, ["b"])
    assert plan.stamps == ()
    assert plan.expect == {1: tag(1, OWNED)}


def test_a_block_handed_out_and_taken_back_in_one_call_is_not_stamped() -> None:
    ledger = Ledger(4)
    ledger.alloc("a", [1])
    ledger.free("a")
    assert ledger.plan(1, []).stamps == ()
    ledger.share("b", [1])
    assert ledger.held("b") == {1: 0}, "the content, and so the tag, is what it was before"


def test_unless_the_step_zeroes_it() -> None:
    ledger = Ledger(4)
    ledger.alloc("a", [1])
    ledger.free("a")
    plan = ledger.plan(1, [], zero=[1])
    assert [e.block for e in plan.stamps] == list(plan.expect) == [1]


def test_a_load_that_starts_in_the_call_that_allocates_has_one_stamp() -> None:
    ledger = Ledger(4)
    ledger.alloc("a", [1])
    ledger.start("a#1", "a", [1])
    plan = ledger.plan(1, [])
    assert plan.stamps == ()
    assert [(j.kind, j.entries) for j in plan.now] == [("start", (Entry(1, tag(2, LOADING)),))]


def test_leaving_under_an_unfinished_load_is_an_epoch_unless_quarantined() -> None:
    for quarantined in (False, True):
        ledger = Ledger(4)
        ledger.alloc("a", [1])
        ledger.start("a#1", "a", [1])
        ledger.plan(1, [])
        if quarantined:
            ledger.quarantine("a", [1])
        ledger.free("a")
        kinds = [j.kind for j in ledger.flush()[0]]
        assert kinds == ([] if quarantined else ["pool"])
        ledger.finish("a#1")
        assert [j.kind for j in ledger.flush()[0]] == ["finish"]


@pytest.mark.parametrize("call", ["finish", "read_done"])
def test_unknown_jobs_are_ignored(call: str) -> None:
    ledger = Ledger(4)
    getattr(ledger, call)("nobody")
    assert ledger.flush() == ((), ())


def test_two_owners_in_one_step_are_found_without_a_device() -> None:
    ledger = Ledger(4)
    ledger.alloc("a", [1])
    ledger.plan(1, ["a"])
    ledger.alloc("b", [1])
    ledger.plan(2, ["a", "b"])
    (report,) = ledger.reports()
    assert (report.property, report.block, report.step) == ("OneOwner", 1, 2)


def explained(at: str, seen: int, expected: int, *, step: int = 0, job: str = "") -> list[tuple[str, str]]:
    ledger = Ledger(4)
    ledger.alloc("a", [1])  # epoch 1
    ledger.plan(1, ["a"])
    ledger.read("s", "a", [1])
    ledger.free("a")
    ledger.alloc("b", [1])  # epoch 2
    ledger.plan(2, ["b"])
    ledger.start("b#1", "b", [1])  # epoch 3
    ledger.free("b")  # epoch 4
    ledger.flush()
    return [(r.property, r.job) for r in ledger.explain(Finding(at, 1, expected, seen, step, job))]


@pytest.mark.parametrize(
    ("at", "expected", "seen", "where", "want"),
    [
        ("end", tag(1, OWNED), tag(3, LOADING), {"step": 1}, [("InFlightSafe", "b#1")]),
        ("end", tag(1, OWNED), tag(4, POOL), {"step": 1}, [("InFlightSafe", "b#1"), ("XferSafe", "b#1")]),
        ("begin", tag(1, OWNED), tag(2, OWNED), {"step": 1}, [("OneOwner", "")]),
        ("finish", tag(3, LOADING), tag(4, POOL), {"job": "b#1"}, [("XferSafe", "b#1")]),
        (
            "finish",
            tag(3, LOADING),
            tag(2, OWNED),
            {"job": "b#1"},
            [("InFlightSafe", "b#1"), ("XferSafe", "b#1")],
        ),
        ("start", tag(2, OWNED), tag(1, OWNED), {"job": "b#1"}, [("InFlightSafe", "b#1")]),
        ("begin", tag(3, LOADING), tag(2, OWNED), {"step": 2}, [("InFlightSafe", "b#1")]),
        ("read_done", tag(1, OWNED), tag(2, OWNED), {"job": "s"}, [("StoreSafe", "s")]),
        ("read", tag(1, OWNED), 0, {"job": "s"}, [("StreamOrder", "s")]),
        ("end", tag(1, OWNED), 0, {"step": 1}, [("StreamOrder", "")]),
    ],
)
def test_explanations(at: str, expected: int, seen: int, where: dict, want: list) -> None:
    assert explained(at, seen, expected, **where) == want
