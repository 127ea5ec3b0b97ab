"""The core counts what victims give as theory ``sharing`` says, on random holders of shared blocks."""

from __future__ import annotations

from collections import Counter

import z3
from hypothesis import given
from hypothesis import strategies as st

from stallproof.core.commit import Holder, gain_of
from stallproof_proofs.evaluate import Evaluator
from stallproof_proofs.proofs import sharing

BLOCKS, REQUESTS = range(6), range(4)
TABLES = st.lists(st.sets(st.sampled_from(BLOCKS)), min_size=len(REQUESTS), max_size=len(REQUESTS))


@given(TABLES, st.sets(st.sampled_from(REQUESTS)))
def test_gain_of_the_core_is_the_gain_of_the_theory(tables: list[set[int]], w: set[int]) -> None:
    ev = Evaluator({"Block": BLOCKS, "Request": REQUESTS})
    holds = {(r, b): b in tables[r] for r in REQUESTS for b in BLOCKS}
    env = {"holds": holds, "W": {r: r in w for r in REQUESTS}}
    refs = Counter(b for t in tables for b in t)
    victims = [Holder(str(r), r, tuple(sorted(tables[r]))) for r in w]
    some = z3.And(
        sharing.only_w(sharing.holds, sharing.c), z3.Exists([sharing.r], sharing.holds(sharing.r, sharing.c))
    )
    ours = sum(bool(ev(some, {**env, "c": b})) for b in BLOCKS)
    assert gain_of(victims, refs) == ours


@given(TABLES, st.permutations(REQUESTS))
def test_what_victims_give_one_by_one_is_what_they_give_together(
    tables: list[set[int]], order: list[int]
) -> None:
    refs = Counter(b for t in tables for b in t)
    victims = [Holder(str(r), r, tuple(sorted(tables[r]))) for r in order]
    together, one_by_one = gain_of(victims, refs), 0
    for v in victims:
        one_by_one += gain_of([v], refs)
        refs.subtract(v.blocks)
    assert one_by_one == together == len({b for t in tables for b in t})
