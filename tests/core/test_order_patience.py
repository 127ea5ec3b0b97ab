"""Scheduling order, patience, deadlines."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from stallproof.core.deadlines import Deadlines
from stallproof.core.order import in_order, insert_from_front
from stallproof.core.patience import Patience


@given(st.lists(st.integers()), st.lists(st.integers()))
def test_inserting_keeps_order_and_loses_nothing(queue: list[int], items: list[int]) -> None:
    d = deque(sorted(queue))
    insert_from_front(d, items, key=lambda x: x)
    assert list(d) == sorted(queue + items)
    assert in_order(list(d), key=lambda x: x)


@given(st.lists(st.integers()))
def test_in_order_is_sortedness(items: list[int]) -> None:
    assert in_order(items, key=lambda x: x) == (items == sorted(items))


@given(st.integers(0, 5), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=50))
def test_an_episode_waits_for_at_most_p_processed_steps(p: int, calls: list[tuple[int, int]]) -> None:
    """However often it is asked: it waits for at most P processed steps, and never idle."""
    patience, processed, began = Patience(p), 0, None
    for advance, working in calls:
        processed += advance
        if patience.wait(processed, working):
            began = processed if began is None else began
            assert working > 0
            assert processed - began < p
        else:
            patience.settle()
            began = None


def test_patience_of_zero_never_waits() -> None:
    assert not Patience(0).wait(0, 5)


def test_a_step_that_ends_no_request_is_not_waited_for() -> None:
    """Spec ``CanFree``: with a step of prompt chunks alone in flight, an exact count is 0."""
    assert not Patience(1).wait(0, 0)
    counts_chunks_too = Patience(1)
    assert counts_chunks_too.wait(0, 1)
    assert not counts_chunks_too.wait(1, 1), "an upper bound costs at most P processed steps"


@given(st.lists(st.tuples(st.sampled_from(["begin", "end", "ask"]), st.sampled_from("abc"), st.floats(0, 5))))
def test_deadlines_against_a_plain_dictionary(moves: list[tuple[str, str, float]]) -> None:
    limit, now = 3.0, 0.0
    real, model = Deadlines(limit), dict[str, float]()
    for what, name, dt in moves:
        now += dt
        if what == "begin":
            real.begin(name, now)
            model.setdefault(name, now + limit)
        elif what == "end":
            real.end(name)
            model.pop(name, None)
        else:
            assert real.is_over(name, now) == (name in model and now >= model[name])
            late = {n for n, due in model.items() if due <= now}
            assert set(real.expired(now)) == late
            for n in late:
                del model[n]


def test_asking_again_does_not_renew_a_deadline() -> None:
    d = Deadlines(10)
    d.begin("r", 0)
    d.begin("r", 9)
    assert d.is_over("r", 10)


def test_no_limit_is_no_deadline() -> None:
    d = Deadlines(0)
    d.begin("r", 0)
    assert not d.is_over("r", 1e9)
    assert d.expired(1e9) == []
