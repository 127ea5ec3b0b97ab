"""Checks that a hunt has corrected: what they accept now, and what they reject still."""

from __future__ import annotations

import msgspec
import pytest

from stallproof.trace import schema as s
from stallproof.trace.checker import Checker
from stallproof.trace.reader import Batch
from stallproof.trace.schema import Admit, Alloc, Evict, Free, Load, Park, Refuse, Start, Turn, Unpark
from tests.trace.hand import Hand, judge

OURS = ["Commit", "OneOrder", "VictimOrder"]


def rules(hand: Hand) -> list[str]:
    return [v.rule for v in judge(hand.records).violations]


def two_sessions(pool: int = 2, **config: int) -> Hand:
    """``a`` and ``b`` each hold one block of two tokens and begin their second turn."""
    hand = Hand(pool=pool, block=2, rules=OURS, fence_mode="GateLoads", **config).add(
        "a", "b", prompt=1, max_tokens=1
    )
    hand.call(Alloc("a", [1]), Admit("a", 0), Alloc("b", [2]), Admit("b", 0), tok={"a": 1, "b": 1})
    hand.upd(Park("a", "session"), Park("b", "session"), out={"a": 1, "b": 1})
    hand.out(Turn("a", 3, 1, 500.0), Unpark("a"), Turn("b", 3, 1, 501.0), Unpark("b"))
    return hand


def evicts(target: str) -> list:
    return [Refuse("a", 0, "fit"), Evict("b", target), Free("b", [2])]


def test_a_holder_is_evicted_for_blocks_of_a_later_call() -> None:
    """Full fit asks for all of the sequence, the chunk of this call needs no block."""
    hand = two_sessions().call(*evicts("a"), Admit("a", 1), Refuse("b", -1, "closed"), tok={"a": 1})
    assert rules(hand) == []


def test_another_one_is_admitted_after_an_eviction() -> None:
    hand = two_sessions().add("c", prompt=1)
    hand.call(*evicts("a"), Alloc("c", [2]), Admit("c", 0), tok={"c": 1})
    assert "Queues" in rules(hand)
    hand = two_sessions(pool=3).call(*evicts("a"), Admit("b", 0), tok={"b": 1})
    assert "Queues" in rules(hand)


def reserved(pool: int, blocks: int, lookahead: int = 0, why: str = "reserved") -> Hand:
    """An idle session is evicted for the load of ``c``; the load of ``b`` still needs ``blocks`` - 1."""
    hand = Hand(pool=pool, block=2, rules=OURS, fence_mode="GateLoads", lookahead=lookahead)
    hand.add("a", prompt=2, max_tokens=1).add("b", prompt=2 * blocks).add("c", prompt=2)
    hand.call(
        Alloc("a", [1]),
        Admit("a", 0),
        Alloc("b", [2]),
        Load("b", 1, [2], "async", 2),
        Start("b", 1),
        tok={"a": 2},
    )
    hand.upd(Park("a", "session"), out={"a": 1})
    hand.call(
        Refuse("c", 1, why), Evict("a", "c"), Free("a", [1]),
        Alloc("c", [1]), Load("c", 1, [1], "async", 2), Start("c", 1),
    )  # fmt: skip
    return hand


def test_room_is_what_reservations_leave() -> None:
    assert "Commit" not in rules(reserved(pool=4, blocks=3))
    assert "Commit" in rules(reserved(pool=8, blocks=3)), "there was room beside the reservations"
    assert "Commit" not in rules(reserved(pool=8, blocks=3, lookahead=2)), "and for a step that drafts"
    assert "Commit" in rules(reserved(pool=24, blocks=3, lookahead=2))


def test_a_load_that_no_block_is_free_for_needs_room_beside_reservations_too() -> None:
    """The refusal says ``blocks`` then, and what is kept back matters only after the first eviction."""
    assert "Commit" not in rules(reserved(pool=4, blocks=3, why="blocks"))
    assert "Commit" in rules(reserved(pool=8, blocks=3, why="blocks"))


def session_beside(first: str) -> Hand:
    """``a`` begins a turn, ``first`` holds nothing and is served before it in the same call."""
    hand = Hand(pool=4, block=2, rules=OURS).add("a", prompt=1, max_tokens=1)
    hand.call(Alloc("a", [1]), Admit("a", 0), tok={"a": 1})
    hand.upd(Park("a", "session"), out={"a": 1})
    if first == "old":
        hand.add("old", prompt=1)
    hand.out(Turn("a", 3, 1, 500.0), Unpark("a"))
    if first == "new":
        hand.out(s.Add("new", 0, 600.0, 1, 4))
    return hand.call(
        Alloc(first, [2]), Admit(first, 0), Alloc("a", [3]), Admit("a", 1), tok={first: 1, "a": 2}
    )


@pytest.mark.parametrize(("first", "expected"), [("old", []), ("new", ["OneOrder"])])
def test_a_turn_may_begin_behind_an_older_request_only(first: str, expected: list[str]) -> None:
    assert rules(session_beside(first)) == expected


def overlapping(first: str, second: str) -> Hand:
    """``a`` is preempted with its load's step in flight, and loads again."""
    hand = Hand(pool=4, block=2).add("a", prompt=4)
    hand.call(Alloc("a", [1, 2]), Load("a", 1, [1], first, 2), Admit("a", 2), Start("a", 1), tok={"a": 2})
    hand.out(s.Preempt("a", ""), Free("a", [1, 2]))
    hand.call(Alloc("a", [3, 4]), Load("a", 2, [3], second, 2), Admit("a", 2), Start("a", 2), tok={"a": 2})
    return hand


def test_loads_of_one_request_overlap_only_as_parts_of_their_steps() -> None:
    assert "XferSafe" not in rules(overlapping("sync", "sync"))
    assert "XferSafe" in rules(overlapping("async", "sync"))


@pytest.mark.parametrize(("more", "expected"), [([], ["BudgetShare"]), (["AdapterShare"], [])])
def test_budget_shares_are_not_told_where_adapters_are(more: list[str], expected: list[str]) -> None:
    """One who waits for an adapter looks like one who is ready."""
    hand = Hand(rules=["BudgetShare", *more], pool=9, max_num_batched_tokens=4, max_num_seqs=4)
    hand.out(s.Add("b", 1, 0.0, 40, 4)).call(Alloc("b", [1]), Admit("b", 0), tok={"b": 4}).upd().add("a")
    for i in range(5):
        hand.call(Alloc("b", [i + 2]), tok={"b": 4}).upd()
    assert rules(hand) == expected


def passed_by(newcomers: int, enforced: list[str]) -> Hand:
    """``old`` is refused in 40 calls while one-token newcomers are served in the last of them; 5 slots."""
    hand = Hand(pool=4, rules=enforced, max_num_seqs=5).add("old", prompt=16)
    for i in range(40):
        if i < 40 - newcomers:
            hand.call(Refuse("old", 2, "fit")).upd()
            continue
        r = f"n{i}"
        hand.add(r, prompt=2, max_tokens=1)
        hand.call(Refuse("old", 2, "fit"), Alloc(r, [3]), Admit(r, 0), tok={r: 2})
        hand.upd(s.Finish(r, "length", 1), Free(r, [3]), out={r: 1})
    return hand


def test_one_that_waits_for_an_adapter_is_passed_by_a_turnover_and_no_more() -> None:
    """A trace names no adapters: where AdapterShare is in force, all slots may turn over first."""
    assert "NoStarvation" in rules(passed_by(8, []))
    assert "NoStarvation" not in rules(passed_by(8, ["AdapterShare"]))
    assert "NoStarvation" not in rules(passed_by(12, ["AdapterShare"]))
    assert "NoStarvation" in rules(passed_by(13, ["AdapterShare"]))


def second_part(hand: Hand, checker: Checker) -> None:
    """A further part begins; its snapshot is the state that ``checker`` has reached."""
    led, head = checker.ledger, hand.records[0]
    state = s.Snapshot(
        step=led.step,
        processed=led.processed,
        free=len(led.pool),
        run=list(led.running),
        requests=[
            s.ReqState(q.r, q.st, q.prio, q.arr, q.prompt, q.max_tokens, blocks=sorted(q.blocks), out=q.out)
            for q in led.reqs.values()
        ],
    )
    hand.records.append(msgspec.structs.replace(head, part=1, state=state))


@pytest.mark.parametrize(("served", "expected"), [("o", []), ("", ["TurnsYield"])])
def test_whom_a_turn_passes_is_settled_before_the_first_call_of_a_part(
    served: str, expected: list[str]
) -> None:
    """It is ``o``, though that call serves ``o`` first; ``p`` has been passed by no turn."""
    hand = Hand(rules=["OneOrder", "TurnsYield"], pool=6).add("a", max_tokens=1)
    hand.call(Alloc("a", [1]), Admit("a", 0), tok={"a": 4}).upd(Park("a", "session"), out={"a": 1})
    hand.add("o", "p").out(Turn("a", 8, 1, 500.0), Unpark("a"))
    checker = Checker()
    checker.run([Batch("hand", 1, hand.records, 0)])
    done = len(hand.records)
    second_part(hand, checker)
    first = [Alloc("o", [2]), Admit("o", 0)] if served else []
    hand.call(*first, Alloc("a", [3]), Admit("a", 4), tok={"o": 4, "a": 4} if served else {"a": 4})
    hand.upd(Park("a", "session"), out={"o": 1, "a": 1} if served else {"a": 1})
    hand.out(Turn("a", 12, 1, 900.0), Unpark("a"))
    checker.run([Batch("hand", done + 1, hand.records[done:], 0)])
    assert [v.rule for v in checker.verdict().violations] == expected
