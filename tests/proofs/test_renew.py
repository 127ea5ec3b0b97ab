"""Renewing hints loses nothing when it is stopped, and goes on where it stopped."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import z3

from stallproof_proofs import hints as store
from stallproof_proofs import renew as renewing
from stallproof_proofs import runner
from stallproof_proofs.hints import Hint
from stallproof_proofs.renew import Tally, renew
from stallproof_proofs.theory import Obligation, Variant

SOME = tuple(
    f"refcount/Hold/{n}" for n in ("footprint Hown", "RefCount.exact", "RefCount.pool", "RefCount.positive")
)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(store, "HINTS", tmp_path / "hints.json")
    store.hints.cache_clear()
    yield tmp_path / "hints.json"
    store.hints.cache_clear()


class Stopped(KeyboardInterrupt):
    """As Ctrl-C, told apart from a real one."""


def stop_after(n: int):  # type: ignore[no-untyped-def]
    def progress(tally: Tally, _: str) -> None:
        if tally.renewed == n:
            raise Stopped

    return progress


def test_a_break_loses_nothing_and_the_next_run_goes_on(file: Path) -> None:
    with pytest.raises(Stopped):
        renew(stop_after(2), SOME, every=1e9)
    assert set(store.read()) == set(SOME[:2])
    tally = renew(only=SOME)
    assert (tally.skipped, tally.renewed, tally.left) == (2, 2, 0)
    assert set(store.read()) == set(SOME)
    assert not list(file.parent.glob("*.tmp"))


def test_it_writes_while_it_goes_on(file: Path) -> None:
    seen: list[int] = []
    renew(lambda t, name: seen.append(len(store.read())), SOME, every=0)
    assert seen == [0, 1, 2, 3]


def test_a_sweep_over_known_ones_goes_on_too(file: Path) -> None:
    renew(only=SOME)
    assert renew(only=SOME).renewed == 0
    with pytest.raises(Stopped):
        renew(stop_after(3), SOME, again=True)
    assert renewing.swept().read_text(encoding="utf-8").split("\n")[:3] == list(SOME[:3])
    assert renew(only=SOME, again=True).renewed == 1
    assert not renewing.swept().exists()


def test_a_record_that_is_not_complete_is_looked_at(file: Path) -> None:
    renew(only=SOME)
    old = {SOME[0]: Hint([], None), SOME[1]: Hint(["a hypothesis that is gone"], "x"), SOME[2]: Hint([], "x")}
    store.save(old)
    assert renew(only=SOME).renewed == 3, "not looked at; names what is gone; does not suffice"
    assert store.read()[SOME[0]].fails_if is not None


def test_others_are_kept_and_a_whole_run_drops_what_is_gone(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = z3.Int("x")
    o = Obligation(
        "t/x", "t", lambda: ({"h": x > 1}, x > 0), variants=(Variant("-h", lambda: ({}, x > 0), "h"),)
    )
    monkeypatch.setattr(runner, "select", lambda only=(): [o])
    store.save({"t/gone": Hint([], "")})
    renew(only=("t",))
    assert set(store.read()) == {"t/gone", "t/x"}
    renew()
    assert store.read() == {"t/x": Hint(["h"], "-h")}


def test_what_the_solver_gave_up_on_is_no_frame(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = z3.Int("x")
    o = Obligation(
        "t/x", "t", lambda: ({"h": x > 1}, x > 0), variants=(Variant("-h", lambda: ({}, x > 0), "h"),)
    )
    monkeypatch.setattr(runner, "refute", lambda cond, small: ("unknown", "timeout"))
    assert runner.breaks(o, {"h"}) is None
    monkeypatch.setattr(runner, "refute", lambda cond, small: ("unknown", runner.SMALL))
    assert runner.breaks(o, {"h"}) == ""


def test_ctrl_c_inside_the_solver_is_not_an_answer() -> None:
    """Z3 takes the signal and says unknown; that must not be written down as one."""
    a, b, c = z3.Ints("a b c")
    hard = {"h": a * a * a + b * b * b + c * c * c == 114, "large": a > 10**6}
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            runner.query((hard, z3.BoolVal(False)), timeout_ms=1_500)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
