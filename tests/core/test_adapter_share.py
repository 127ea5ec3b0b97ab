"""AdapterShare: what may be admitted, beside what an engine without it admits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stallproof.core.adapter_share import AdapterShare

BOUND = 3


def test_an_adapter_in_flight_counts() -> None:
    share = AdapterShare(1, BOUND)
    share.begin([1], lambda: [(5, "b", 2)])
    assert not share.may(5, 2, holds=False)
    assert share.may(6, 1, holds=False)
    assert share.may(7, 0, holds=False), "no adapter is never too many"


def test_two_admissions_of_one_call_count() -> None:
    share = AdapterShare(2, BOUND)
    share.begin([1], list)
    assert share.may(5, 2, holds=False)
    share.admitted(5, 2, runs=True, holds=False)
    assert not share.may(6, 3, holds=False)


def test_a_load_does_not_run_its_adapter() -> None:
    share = AdapterShare(1, BOUND)
    share.begin([], list)
    share.admitted(5, 2, runs=False, holds=False)
    assert share.active == set()


def test_the_door_closes_behind_one_who_was_overtaken_often_enough() -> None:
    share = AdapterShare(1, BOUND)
    for i in range(BOUND):
        share.begin([1], lambda: [(5, "b", 2)])
        assert share.may(10 + i, 1, holds=False)
        share.admitted(10 + i, 1, runs=True, holds=False)
    share.begin([1], lambda: [(5, "b", 2)])
    assert not share.may(20, 1, holds=False)
    assert share.may(20, 1, holds=True), "who holds blocks goes on"
    assert share.may(4, 1, holds=False), "who is ahead of it goes on"
    share.begin([1], lambda: [(6, "c", 2)])
    assert share.may(20, 1, holds=False), "another one waits: counted anew"


def test_one_who_found_adapters_free_in_between_is_counted_on() -> None:
    """Nobody runs when the call begins; the adapter is taken within it, by one whose load is done."""
    share = AdapterShare(1, BOUND)
    for i in range(BOUND):
        share.begin([], lambda: [(5, "b", 2)])
        assert share.head is None
        share.admitted(9, 1, runs=True, holds=True)
        assert share.head == (5, "b", 2)
        assert share.may(10 + i, 1, holds=False)
        share.admitted(10 + i, 1, runs=False, holds=False)
    share.begin([], lambda: [(5, "b", 2)])
    share.admitted(9, 1, runs=True, holds=True)
    assert not share.may(20, 1, holds=False)


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=60), st.integers(1, 3))
def test_nobody_is_overtaken_more_often_than_the_bound(stream: list[tuple[int, bool]], most: int) -> None:
    """A toy engine: one request of adapter 9 waits, newcomers of others come and end at random."""
    share, running = AdapterShare(most, BOUND), list(range(1, most + 1))
    passed, key = 0, 100
    for adapter, ends in stream:
        share.begin(running, lambda: [(1, "waits", 9)])
        if share.head is None:
            return  # its adapter fits
        key += 1
        if adapter in share.active and share.may(key, adapter, holds=False):
            share.admitted(key, adapter, runs=True, holds=False)
            running.append(adapter)
            passed += 1
        if ends and running:
            running.pop(0)
        assert len(share.active) <= most
    assert passed <= BOUND
