"""Commit eviction: only if it suffices, only younger ones, and what they give is counted right."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from stallproof.core.commit import Holder, gain_of, plan


@st.composite
def pools(draw: st.DrawFn) -> tuple[list[Holder], dict[int, int], set[int], int, int]:
    """Holders with shared blocks, references of others, the target's hits, its place, its need."""
    n = draw(st.integers(0, 6))
    holders = [
        Holder(f"h{i}", draw(st.integers(0, 9)), draw(st.lists(st.integers(1, 12), max_size=5, unique=True)))
        for i in range(n)
    ]
    counts = Counter(b for h in holders for b in h.blocks)
    refs = {b: c + draw(st.sampled_from([0, 0, 0, 1])) for b, c in counts.items()}
    keep = draw(st.sets(st.integers(1, 12), max_size=3))
    return holders, refs, keep, draw(st.integers(0, 9)), draw(st.integers(1, 10))


def really_freed(victims: list[Holder], refs: dict[int, int]) -> set[int]:
    left = dict(refs)
    for v in victims:
        for b in v.blocks:
            left[b] -= 1
    return {b for b, n in left.items() if n == 0}


@given(pools())
def test_a_plan_suffices_and_takes_only_younger(
    case: tuple[list[Holder], dict[int, int], set[int], int, int],
) -> None:
    holders, refs, keep, key, need = case
    found = plan(key, holders, refs, lambda gain: gain >= need, keep)
    younger = [h for h in holders if h.key > key]
    if found is None:
        assert len(really_freed(younger, refs) - keep) < need
        return
    victims = [h for h in holders if h.rid in found.victims]
    assert all(h.key > key for h in victims)
    assert len(really_freed(victims, refs) - keep) == found.gain >= need
    spared = [h for h in younger if h.rid not in found.victims]
    assert all(s.key <= v.key for s in spared for v in victims), "a younger holder was spared"
    shorter = [h for h in victims if h.rid != found.victims[-1]]
    assert len(really_freed(shorter, refs) - keep) < need or not shorter, "one victim too many"


@given(pools())
def test_gain_grows_with_the_set(case: tuple[list[Holder], dict[int, int], set[int], int, int]) -> None:
    holders, refs, keep, _, _ = case
    gains = [gain_of(holders[:i], refs, keep) for i in range(len(holders) + 1)]
    assert gains == sorted(gains)


def test_a_shared_prefix_gives_nothing_until_its_last_holder_goes() -> None:
    a, b = Holder("a", 2, [1, 2]), Holder("b", 3, [1, 3])
    refs = {1: 2, 2: 1, 3: 1}
    assert gain_of([b], refs) == 1
    assert gain_of([a, b], refs) == 3
    assert gain_of([a, b], {**refs, 1: 3}) == 2  # a pin holds it too


def test_two_that_need_each_others_blocks_do_not_alternate() -> None:
    """The ping-pong of least-progressed eviction (vLLM #40968): the younger never takes the older's."""
    a, b = Holder("a", 1, [1, 2, 3]), Holder("b", 2, [4, 5])
    refs = dict.fromkeys(range(1, 6), 1)
    assert plan(1, [b], refs, lambda g: g >= 2) is not None
    assert plan(2, [a], refs, lambda g: g >= 2) is None
