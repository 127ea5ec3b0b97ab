"""The stall watch: what opens an episode, how often it speaks, what closes it, and what a line may carry."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallproof.core.stall_watch import (
    MAX_LINE,
    MAX_WAITERS,
    PREFIX,
    PROPERTY,
    Act,
    Due,
    Kind,
    Limits,
    OnStall,
    Situation,
    StallWatch,
    Waiter,
    line,
    parse,
)

FAST = Limits(
    wedge_s=2, wedge_calls=3, livelock_s=5, livelock_calls=4, external_s=20, repeat_s=4, repeat_max_s=16
)

IDLE = {"unfinished": 0, "moved": False, "pending": False}
WELL = {"unfinished": 2, "moved": True, "pending": False}
WEDGED = {"unfinished": 2, "moved": False, "pending": False}
WAITING = {"unfinished": 2, "moved": False, "pending": True}
THRASH = {"unfinished": 2, "moved": True, "pending": False, "advanced": False}


def run(watch: StallWatch, fact: dict, seconds: float, start: float = 0.0, step: float = 1.0) -> list[Due]:
    out: list[Due] = []
    for i in range(int(seconds / step)):
        out += watch.observe(start + i * step, **fact)
    return out


@pytest.mark.parametrize("fact", [IDLE, WELL, WAITING, WAITING | {"oldest_wait": 19.0}], ids=str)
def test_no_line_while_all_is_well(fact: dict) -> None:
    watch = StallWatch(FAST)
    assert run(watch, fact, 500) == []
    assert sum(watch.seconds.values()) == 0
    assert watch.stalled() == []


@pytest.mark.parametrize(
    ("fact", "kind", "opens_after"),
    [
        (WEDGED, Kind.WEDGE, 2),
        (THRASH, Kind.LIVELOCK, 5),
        (WAITING | {"oldest_wait": 20}, Kind.EXTERNAL_WAIT, 20),
    ],
)
def test_each_kind_opens_backs_off_and_closes(fact: dict, kind: Kind, opens_after: float) -> None:
    watch = StallWatch(FAST)
    due = run(watch, fact, 60)
    assert {d.kind for d in due} == {kind}
    assert [d.event for d in due] == ["stall"] + ["still"] * (len(due) - 1)
    assert due[0].seconds == opens_after
    gaps = [b.seconds - a.seconds for a, b in pairwise(due) if "oldest_wait" not in fact]
    assert gaps == [4, 8, 16, 16][: len(gaps)]
    assert watch.stalled() == [kind.value]
    [closing] = watch.observe(60, **WELL)
    assert (closing.event, closing.kind, closing.report) == ("resumed", kind, len(due))
    assert watch.stalled() == []
    assert watch.seconds[kind.value] > 0
    assert run(watch, WELL, 100, 61) == []


def test_a_fast_loop_or_a_slow_clock_alone_opens_nothing() -> None:
    assert run(StallWatch(FAST), WEDGED, 1.9, step=0.001) == []
    watch = StallWatch(FAST)
    assert [d for t in (0, 100) for d in watch.observe(t, **WEDGED)] == []
    assert [d.event for d in watch.observe(101, **WEDGED)] == ["stall"]


def test_one_good_call_restarts_the_count() -> None:
    watch = StallWatch(FAST)
    for i in range(200):
        assert not watch.observe(i, **(WELL if i % 2 else WEDGED))
    assert watch.opened["wedge"] == 0


def test_a_step_in_flight_does_not_hide_a_livelock() -> None:
    """vLLM #49674 with two batches in flight: every other call schedules nothing and waits for a step."""
    watch = StallWatch(FAST)
    due = [
        d
        for i in range(40)
        for d in watch.observe(i, unfinished=6, moved=i % 2 == 0, pending=True, advanced=False)
    ]
    assert due
    assert {d.kind for d in due} == {Kind.LIVELOCK}


@pytest.mark.parametrize("mode", list(OnStall))
def test_what_follows_the_line(mode: OnStall) -> None:
    limits = Limits(wedge_s=1, wedge_calls=1, act_after_s=3, repeat_s=4, repeat_max_s=4)
    acts = [(d.seconds, d.act) for d in run(StallWatch(limits, mode), WEDGED, 12)]
    assert acts[0] == (1, Act.NONE), "nothing is done to a request before act_after_s"
    later = [a for _, a in acts[1:]]
    if mode is OnStall.LOG:
        assert set(later) == {Act.NONE}
    elif mode is OnStall.DUMP:
        assert later.count(Act.DUMP) == 1
        assert acts[1] == (3, Act.DUMP)
    else:
        assert acts[1][0] == 3, "the action comes on time, not with the next repeat"
        assert set(later) == {Act(mode.value)}


@pytest.mark.parametrize(
    "bad", [{"wedge_s": -1}, {"repeat_s": 0}, {"repeat_s": 5, "repeat_max_s": 1}, {"wedge_calls": 0}]
)
def test_senseless_limits_are_refused(bad: dict) -> None:
    with pytest.raises(ValueError):
        Limits(**bad)


facts = st.fixed_dictionaries(
    {
        "unfinished": st.integers(0, 2),
        "moved": st.booleans(),
        "pending": st.booleans(),
        "advanced": st.booleans(),
        "oldest_wait": st.none() | st.floats(0, 60),
    }
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 30), facts, st.integers(1, 8)), max_size=40),
    st.sampled_from(list(OnStall)),
)
def test_order_bounds_and_accounts(script: list, mode: OnStall) -> None:
    """Lines of a kind come as stall, still*, resumed; their number is logarithmic; seconds add up."""
    watch, now, lines, open_ = StallWatch(FAST, mode), 0.0, [], {}
    for dt, fact, times in script:
        for _ in range(times):
            now += dt
            due = watch.observe(now, **fact)
            assert len({d.kind for d in due}) == len(due)
            for d in due:
                assert (d.event == "stall") == (d.kind not in open_)
                assert d.seconds >= 0
                if d.event == "resumed":
                    assert d.act is Act.NONE
                    del open_[d.kind]
                else:
                    open_.setdefault(d.kind, now)
                lines.append(d)
            assert set(watch.stalled()) == {k.value for k in open_}
            for d in due:
                if d.kind is Kind.WEDGE and d.event != "resumed":
                    assert fact["unfinished"]
                    assert not fact["moved"]
                    assert not fact["pending"]
    for kind in Kind:
        assert 0 <= watch.seconds[kind.value] <= now + 1e-6
        opened = sum(d.kind is kind and d.event == "stall" for d in lines)
        assert watch.opened[kind.value] == opened
        stills = sum(d.kind is kind and d.event == "still" for d in lines)
        # the intervals are 4, 8, 16, 16, ... seconds, and one more line an episode for an action on time
        assert stills <= 4 * opened + now / 16


text = st.text(max_size=200) | st.sampled_from(['"\\' * 90, "a\nb\r\x1b[31m", "\U0001f600" * 80, PREFIX])
number = st.floats() | st.integers(-(10**30), 10**30)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.builds(
            Waiter, r=text, state=text, age_s=number, need=st.integers(), holds=st.integers(), why=text
        ),
        max_size=40,
    ),
    text,
    st.lists(text, max_size=20),
    st.dictionaries(text, text | number | st.booleans(), max_size=10),
    text,
)
def test_a_line_is_one_bounded_line_of_json(waiters, engine, rules, extra, trace) -> None:
    due = Due(Kind.WEDGE, "stall", math.pi, 7, 1)
    out = line(due, Situation(waiters=waiters, extra=extra, trace=trace), engine=engine, rules=rules)
    assert out.startswith(PREFIX)
    assert len(out.encode()) <= MAX_LINE + len(PREFIX)
    assert out.isascii()
    assert out.isprintable()

    def strict(_: str) -> None:
        raise AssertionError("not JSON")

    value = json.loads(out[len(PREFIX) :], parse_constant=strict)
    assert value == parse("2026-01-01 WARNING [x.py:1] " + out)
    assert value["property"] == PROPERTY[due.kind]
    assert len(value["waiters"]) <= MAX_WAITERS
    assert len(value["waiters"]) + value["more"] == len(waiters)
    if waiters and len(engine) < 30 and not extra and not rules:
        assert value["waiters"], "an ordinary line names at least the first waiter"


@pytest.mark.parametrize("cut", ["", "nothing here", PREFIX + '{"v":1,', PREFIX + '{"v":99}', PREFIX + "[1]"])
def test_foreign_or_cut_lines_are_not_parsed(cut: str) -> None:
    assert parse(cut) is None
