"""The columns behind the page agree with what the trace itself says, and cost no more than what is in use."""

from __future__ import annotations

import json
import zlib
from array import array
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallproof.report import names, tracepage
from stallproof.report.page import Page, embed, pack
from stallproof.report.places import FREE, Places
from stallproof.report.timeline import Timeline
from stallproof.trace import schema as s
from stallproof.trace.reader import records
from tests.report import toy

FIXTURES = sorted((Path(__file__).parent.parent / "fixtures" / "traces").glob("*.jsonl"))


def all_of(path: Path) -> list[s.Record]:
    return [rec for _, _, rec in records(path)]


@pytest.mark.parametrize("path", FIXTURES, ids=lambda p: p.stem)
def test_free_blocks_are_those_the_engine_reported(path: Path) -> None:
    """An independent count: each record carries the size of the pool as the engine saw it."""
    drawn = tracepage.draw(records(path))
    free = drawn.timeline.counts[FREE]
    compared = 0
    for p, rec in enumerate(r for r in all_of(path) if not isinstance(r, s.Header)):
        if getattr(rec, "free", -1) >= 0:
            assert free[p] == rec.free, f"line {drawn.lines[p]}"
            compared += 1
    assert compared > 10
    for p in range(drawn.timeline.n):
        assert sum(column[p] for column in drawn.timeline.counts) == drawn.timeline.header.config.pool


def test_free_blocks_of_a_longer_run(tmp_path: Path) -> None:
    path = toy.write(tmp_path / "t.jsonl", 400, requests=80)
    drawn = tracepage.draw(records(path))
    recs = [r for r in all_of(path) if not isinstance(r, s.Header)]
    assert drawn.timeline.marks.code.count(names.MARK["preempt"]) >= 20, "the toy must be under pressure"
    assert [r.free for r in recs if isinstance(r, (s.Sched, s.Update))] == [
        drawn.timeline.counts[FREE][p] for p, r in enumerate(recs) if isinstance(r, (s.Sched, s.Update))
    ]


def test_moves_replay_from_any_keyframe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keyframe and moves of each chunk lead to the next chunk's keyframe: stepping relies on it."""
    monkeypatch.setattr(tracepage, "CHUNK_BYTES", 500)
    drawn = tracepage.draw(records(toy.write(tmp_path / "t.jsonl", 200, requests=50)))
    chunks = [json.loads(zlib.decompress(c)) for c in drawn.chunks]
    assert len(chunks) > 20
    triples = lambda flat: {flat[i]: (flat[i + 1], flat[i + 2]) for i in range(0, len(flat), 3)}  # noqa: E731
    for chunk, following in pairwise(chunks):
        places = triples(chunk["key"])
        for _, moved in chunk["rec"]:
            places |= triples(moved)
        assert {b: v for b, v in places.items() if v[0] != FREE} == triples(following["key"])
        assert following["from"] == chunk["from"] + len(chunk["rec"])


def test_states_of_a_lane_do_not_overlap(trace: Path) -> None:
    t = tracepage.draw(records(trace)).timeline
    by_lane: dict[int, list[tuple[int, int]]] = {}
    for lane, start, end in zip(t.states.lane, t.states.start, t.states.end, strict=True):
        assert 0 <= start < end <= t.n
        by_lane.setdefault(lane, []).append((start, end))
    assert len(by_lane) == len(t.lanes)
    for spans in by_lane.values():
        spans.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(spans))


def test_a_load_that_nobody_holds_is_a_hazard() -> None:
    """XferSafe made visible: the blocks of a started load were released and it still writes."""
    header = toy.Toy(pool=8).header()
    t = Timeline(header)
    t.add(s.Sched(step=1, ev=[s.Alloc("r", [1, 2]), s.Load("r", 1, [1, 2], "async"), s.Start("r", 1)]))
    t.add(s.Outside(ev=[s.Finish("r", "abort"), s.Free("r", [1, 2])]))
    hazard = t.counts[names.PLACE["hazard"]]
    assert list(hazard) == [0, 2]
    t.add(s.Update(step=1, ev=[s.Recv("r", 1)]))
    assert list(hazard) == [0, 2, 0]
    control = Timeline(header)
    control.add(s.Sched(step=1, ev=[s.Alloc("r", [1, 2]), s.Load("r", 1, [1, 2], "async")]))
    control.add(s.Outside(ev=[s.Finish("r", "abort"), s.Free("r", [1, 2])]))
    assert list(control.counts[names.PLACE["hazard"]]) == [0, 0], "a load not started is cancelled"


def test_a_second_part_restarts_from_its_snapshot() -> None:
    header = toy.Toy(pool=8).header()
    t = Timeline(header)
    t.add(s.Sched(step=1, tok={"a": 1}, ev=[s.Alloc("a", [1, 2, 3])]))
    header.state = s.Snapshot(free=6, requests=[s.ReqState("b", "held", blocks=[4, 5])])
    t.add(header)
    t.add(s.Sched(step=2))
    t.close()
    assert [c[-1] for c in t.counts][names.PLACE["parked"]] == 2
    assert t.counts[FREE][-1] == 6
    assert t.lanes == ["a", "b"]


blocks = st.lists(st.integers(-5, 12) | st.just(2**40), max_size=4)
OPS = ["hold", "release", "write", "written", "runs", "quarantine", "unquarantine", "pin", "unpin", "defer"]
ops = st.lists(st.tuples(st.sampled_from(OPS), st.integers(0, 3), blocks, st.booleans()), max_size=60)


@settings(max_examples=200, deadline=None)
@given(ops)
def test_any_nonsense_keeps_the_book_balanced(script: list) -> None:
    """Contradicting events never raise, and the book equals one made from scratch."""
    places = Places(8)
    for op, lane, ids, flag in script:
        if op == "runs":
            places.runs(lane, flag)
        elif op == "write":
            places.write(lane, ids, started=flag)
        elif op in ("hold", "release", "written"):
            getattr(places, op)(lane, ids)
        else:
            getattr(places, op)(ids)
        places.settle()
        assert sum(places.counts) == 8
        for b in list(places.at):
            assert places.at[b] == places._place(b)
    seen = [0] * len(names.PLACES)
    for place, _ in places.at.values():
        seen[place] += 1
    assert seen[:FREE] == places.counts[:FREE]


def test_a_claimed_pool_costs_nothing() -> None:
    header = toy.Toy(pool=8).header()
    header.config.pool = 2**62
    t = Timeline(header)
    t.add(s.Sched(step=1, ev=[s.Alloc("r", [2**50])]))
    assert t.counts[FREE][0] == 2**31 - 1


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.text() | st.integers() | st.booleans() | st.none(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_embedded_json_cannot_leave_its_script_element(value: object) -> None:
    text = embed({"x": value})
    assert not set(text) & set("<>&\u2028\u2029")
    assert json.loads(text) == {"x": json.loads(json.dumps(value))}


def test_pack_refuses_what_the_page_cannot_read() -> None:
    with pytest.raises(ValueError, match="type 'q'"):
        pack({"x": array("q", [1])})
    with pytest.raises(ValueError, match="no part"):
        Page("t").part("nonsense", "t")


def test_no_script_of_ours_can_end_its_element() -> None:
    import io

    out = io.StringIO()
    page = Page("t")
    for kind in ("findings", "bands", "lanes", "blocks", "records", "lines", "table", "facts"):
        page.part(kind, kind)
    page.write(out)
    assert out.getvalue().count("</script>") == 2, "one for the manifest, one for the scripts"
    assert out.getvalue().count("<script") == 2
    for forbidden in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "http://",
        "https://",
    ):
        assert forbidden not in out.getvalue()
