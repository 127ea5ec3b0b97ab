"""Completion protocol, quarantine, feasibility, settings, faults."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallproof.core.completions import Completions, Life, Verdict
from stallproof.core.faults import Faults
from stallproof.core.feasible import Wall, least, need, peak, verdict
from stallproof.core.quarantine import Lot, Quarantine
from stallproof.core.rules import RULES, SWITCHABLE, Settings
from stallproof.errors import BadInput

KINDS = ("recv", "sent", "failed")


def test_what_the_engine_may_see() -> None:
    """The whole table: a report is accepted iff it answers something outstanding."""
    for kind, life, started, received in itertools.product(KINDS, Life, (True, False), (True, False)):
        got, why = Completions().judge("r", kind, life, started=started, received=received)
        accept = (
            life is Life.LOADING and kind != "sent" and started and not received
        ) or life is Life.FINISHED
        assert (got is Verdict.ACCEPT) == accept, (kind, life, started, received)
        assert (why == "") == accept


@given(
    st.lists(st.sampled_from(["recv", "sent"]), max_size=8),
    st.sets(st.sampled_from(["recv", "sent"]), min_size=1),
)
def test_blocks_of_a_finished_request_are_freed_once_and_by_the_last_report(
    reports: list[str], owed: set[str]
) -> None:
    book = Completions()
    for kind in owed:
        book.expect("r", kind)
    life, seen, freed = Life.FINISHED, set[str](), 0
    for kind in reports:
        got, _ = book.judge("r", kind, life)
        if got is Verdict.ACCEPT:
            freed += 1
            seen.add(kind)
            life = Life.UNKNOWN  # the engine has forgotten the request
            assert seen == owed
        elif got is Verdict.HOLD:
            seen.add(kind)
            assert seen < owed
    assert freed == (1 if set(reports) >= owed else 0)


def test_a_late_report_only_ends_the_quarantine() -> None:
    for life in Life:
        assert Completions().judge("r", "recv", life, quarantined=True)[0] is Verdict.RELEASE


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"), st.sampled_from(KINDS[:2]), st.sets(st.integers(0, 19)), st.booleans()
        ),
        max_size=20,
    )
)
def test_quarantine_conserves_blocks(moves: list[tuple[str, str, set[int], bool]]) -> None:
    """One load of an id at most, any number of its sends; a report ends the oldest of its kind only."""
    pool, things = 40, [object() for _ in range(20)]
    q, out = Quarantine(pool, 0.25), list[Lot]()
    for gen, (rid, kind, which, put) in enumerate(moves):
        mine = [x for x in out if (x.rid, x.kind) == (rid, kind)]
        assert q.waits_for(rid, kind) == bool(mine)
        lot = Lot(rid, gen, [things[i] for i in which], kind)
        if not put:
            assert q.release(rid, kind) is (mine[0] if mine else None)
            out = [x for x in out if x is not (mine[0] if mine else None)]
        elif kind == "recv" and mine:
            with pytest.raises(ValueError, match="already"):
                q.put(lot)
        else:
            q.put(lot)
            out.append(lot)
        assert q.blocks == len({id(x) for lot in out for x in lot.blocks}), "a block of two lots counts once"
        assert q.over_cap == (q.blocks > pool * 0.25)
        assert not any(q.may_load(x.rid) for x in out)
        assert len(q) == len(list(q)) == len(out)
        assert {x.rid for x in out} == {r for r in "abc" if r in q}
    assert sorted(x.gen for x in q.release_all()) == sorted(x.gen for x in out)
    assert q.blocks == len(q) == 0


def test_a_failure_ends_the_quarantine_of_a_load_and_of_no_send() -> None:
    q = Quarantine(8, 1.0)
    q.put(Lot("a", 1, [object()], "sent"))
    assert not q.waits_for("a", "failed")
    assert q.release("a", "failed") is None
    q.put(Lot("a", 1, [object()]))
    assert q.release("a", "failed") is not None
    assert q.waits_for("a", "sent")
    assert q.blocks == 1


@pytest.mark.parametrize(
    ("fits", "out", "on_wall", "end"),
    [
        (True, 0, "length", Wall.SERVE),
        (True, 5, "error", Wall.SERVE),
        (False, 0, "length", Wall.ERROR),
        (False, 5, "length", Wall.LENGTH),
        (False, 5, "error", Wall.ERROR),
    ],
)
def test_how_an_infeasible_request_ends(fits: bool, out: int, on_wall: str, end: Wall) -> None:
    assert verdict(fits, out, on_wall) is end


def whole(_: int) -> int:
    return 0


def window(n: int) -> int:
    """Of three tokens."""
    return max(0, n - 2)


def test_blocks_of_a_sequence_group_by_group() -> None:
    assert need([(2, whole)], 3, 5) == 3
    assert need([(2, whole), (2, window)], 6, 9) == 5 + (5 - 2)
    # look-ahead counts, but not beyond the longest sequence
    assert least([(1, whole)], 15, 3, 32) == 18
    assert least([(1, whole)], 15, 3, 16) == 16
    # the last token alone: the window keeps two before it
    assert least([(1, whole), (1, window)], 12, 2, 32) == 14 + (14 - 9)
    # chunks of four: the third needs most, four more tokens beside the window
    assert peak([(1, whole), (1, window)], 12, 2, 32, 4) == 14 + (14 - 6)


@pytest.mark.parametrize("tokens", range(1, 14))
@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_chunk_size_needs_less_than_the_least(tokens: int, size: int) -> None:
    groups = [(size, whole), (size, window)]
    peaks = [peak(groups, tokens, 1, 99, chunk) for chunk in range(1, 15)]
    bound = least(groups, tokens, 1, 99)
    assert all(p >= bound for p in peaks)
    assert size > 1 or min(peaks) == bound
    assert peak([(size, whole)], tokens, 1, 99, 4) == least([(size, whole)], tokens, 1, 99)


def test_settings_default_to_all_rules_enforced() -> None:
    s = Settings.from_environment({})
    assert s == Settings()
    assert all(s.active(r) for r in RULES)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STALLPROOF_MODE", "loud"),
        ("STALLPROOF_STRICT", "maybe"),
        ("STALLPROOF_PATIENCE", "-1"),
        ("STALLPROOF_PATIENCE", "many"),
        ("STALLPROOF_PATIENCE", "nan"),
        ("STALLPROOF_QUARANTINE_CAP", "2"),
        ("STALLPROOF_ON_WALL", "abort"),
        ("STALLPROOF_OFF", "Patience,Gravity"),
        ("STALLPROOF_OFF", "DeferFrees"),
    ],
)
def test_a_bad_setting_is_one_clear_error(name: str, value: str) -> None:
    with pytest.raises(BadInput) as found:
        Settings.from_environment({name: value})
    assert name in str(found.value)
    assert "remedy" in str(found.value)


def test_patience_is_chosen_by_the_guard_unless_it_is_set() -> None:
    assert Settings.from_environment({}).patience is None
    assert Settings.from_environment({"STALLPROOF_PATIENCE": "0"}).patience == 0


def test_rules_can_be_switched_off() -> None:
    s = Settings.from_environment({"STALLPROOF_OFF": " Patience , Commit "})
    assert not s.active("Patience")
    assert not s.active("Commit")
    assert s.active("GateLoads")
    assert set(RULES) >= SWITCHABLE


def test_a_fault_is_logged_once_per_hook() -> None:
    f = Faults()
    assert [f.note("a"), f.note("a"), f.note("b")] == [True, False, True]
    assert f.count == {"a": 2, "b": 1}
