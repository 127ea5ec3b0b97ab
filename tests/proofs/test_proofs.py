"""Every theory proves, every twin is refuted, and the machinery can say no."""

from __future__ import annotations

import os
import random
from collections import Counter
from functools import lru_cache

import pytest
import z3

import stallproof_proofs
from stallproof.errors import BadInput
from stallproof_proofs import runner
from stallproof_proofs.page import page, unneeded_guards
from stallproof_proofs.registry import theories
from stallproof_proofs.result import Result
from stallproof_proofs.theory import Lemma, Lemmas, Obligation, Variant

#: Theories that take more than a few seconds run whole only in the slow tests (and in `make check-model`).
LARGE = ("commit", "dropped", "order", "shared", "starvation", "starvation.dropped", "starvation.shared")
NAMES = [t.name for t in theories()]
BY_SIZE = [pytest.param(n, marks=[pytest.mark.slow] if n in LARGE else []) for n in NAMES]
x, y = z3.Ints("x y")


@lru_cache
def results(theory: str) -> list[Result]:
    if os.environ.get("STALLPROOF_CI") and theory in ("order", "dropped", "shared", "commit"):
        pytest.skip(
            "the largest theories: check-model, a stage of the same CI, has just run every one of them"
        )
    return stallproof_proofs.run(only=(theory,))


@pytest.mark.parametrize("theory", BY_SIZE)
def test_everything_is_as_expected(theory: str) -> None:
    bad = [f"{r.name}: {r.status} {r.detail}" for r in results(theory) if not r.ok]
    assert not bad
    kinds = Counter(r.kind for r in results(theory))
    assert kinds["obligation"]
    assert kinds["twin"]


@pytest.mark.parametrize("theory", BY_SIZE)
def test_each_obligation_names_what_would_make_it_fail(theory: str) -> None:
    missing = [r.name for r in results(theory) if r.kind == "obligation" and not r.fails_if]
    seen = {n for n, h in runner.hints().items() if h.fails_if is not None}
    unknown = [n for n in missing if theory not in LARGE or n in seen]
    assert not unknown, "run `stallproof prove --renew-hints`"


@pytest.mark.parametrize(
    "some",
    [
        "order/Dispatch/*",
        "order/*-*/*",
        "order/Admit/raised only behind",
        "dropped/Dispatch/*",
        "dropped/*Preempt/*",
        "dropped/*-*/*",
        "shared/Dispatch/*",
        "shared/Admit/*",
        "shared/*-*/*",
        "commit/Dispatch/*",
        "commit/*-*/*",
    ],
)
def test_the_heart_of_the_large_theories(some: str) -> None:
    rs = stallproof_proofs.run(only=(some,))
    assert rs
    assert not [f"{r.name}: {r.status} {r.detail}" for r in rs if not r.ok]


def test_names_are_unique_and_listed() -> None:
    names = [o.name for o in stallproof_proofs.obligations()]
    assert len(names) == len(set(names))
    assert all(n.split("/")[0] in NAMES for n in names)


#: Guards that no conjunct needs, and why they are there all the same.
SPARE = {
    "idle": "calls do not nest",
    "in_call": "says when it happens; the newest step is the same notion inside a call and outside",
    "dispatched": "implied by device_done under DeferFrees",
    "live": "a second end of a reader has no effect",
    "once": "a second expiry has no effect",
    "started": "a late report that was accepted names a started load already",
    "expired": "picks between LoadDone and LateReport",
    "head": "first in, first out is a convenience of the queue",
}
#: The same of one action only.
SPARE_THERE = {
    "Admit.waits": "who runs already asks for nothing; counted once more it would change no statement",
    "StartLoad.waits": "as above",
    "StartLoad.slot": "a load runs nothing yet; the engine asks all the same",
    "Leave.runs": "only who runs leaves; adapters do not become more by it",
    "Another.lacks": "whoever is taken to be the first that waits, the count begins anew",
    "Again.lacks": "as above: its count goes on",
    "Again.same": "a count that goes on for another one shuts the door earlier",
}


def test_every_guard_is_needed_or_listed() -> None:
    """A guard whose removal breaks nothing would be decoration."""
    for th in theories():
        if th.name in LARGE:
            continue  # their guards are those of the model; removals that matter are their twins
        spare = unneeded_guards(th, results(th.name))
        assert {g.split(".")[1] for g in set(spare) - set(SPARE_THERE)} <= set(SPARE), spare


def test_an_unknown_answer_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = z3.Ints("a b c")
    hard = a * a * a + b * b * b != c * c * c + 114
    monkeypatch.setattr(runner, "TIMEOUT_MS", 1)
    status, reason, _ = runner.query(({}, hard), timeout_ms=1)
    assert status == "unknown"
    assert reason
    o = Obligation("t/hard", "t", lambda: ({}, hard))
    assert runner.query.__defaults__ is not None
    monkeypatch.setattr(runner, "query", lambda cond, timeout_ms=0: ("unknown", "timeout", frozenset()))
    assert not runner.check(o).ok


def test_an_obligation_that_nothing_can_break_fails() -> None:
    tautology = Obligation(
        "t/true", "t", lambda: ({"h": x > 0}, x == x), variants=(Variant("-h", lambda: ({}, x == x), "h"),)
    )
    r = runner.check(tautology)
    assert (r.status, r.ok) == ("unknown", False)
    assert "nothing makes it fail" in r.detail


def test_a_false_obligation_is_refuted_and_a_true_twin_fails() -> None:
    assert runner.check(Obligation("t/false", "t", lambda: ({}, x > 0))).status == "refuted"
    twin = Obligation("t/twin", "t", lambda: ({"h": x > 1}, x > 0), "twin", "refuted")
    assert not runner.check(twin).ok


def test_contradicting_hypotheses_fail_the_sanity_check() -> None:
    th = Lemmas("t", "t", "t", lambda: [Lemma("l", {"a": x > 0, "b": x < 0}, y > 0)])
    by_kind = {o.kind: runner.check(o) for o in th.obligations()}
    assert not by_kind["sanity"].ok


def test_selection() -> None:
    some = stallproof_proofs.obligations(["blocks.gate/Start/*"])
    assert some
    assert all(o.name.startswith("blocks.gate/Start/") for o in some)
    with pytest.raises(BadInput, match="no obligation"):
        stallproof_proofs.obligations(["no such thing"])


@pytest.mark.slow
def test_hints_are_true_on_a_sample() -> None:
    """What a thorough run recorded is what breaks the obligation; most obligations have a record."""
    todo = [o for n in LARGE for o in stallproof_proofs.obligations([n]) if o.kind == "obligation"]
    known = [o for o in todo if runner.hints().get(o.name, runner.Hint()).fails_if]
    assert len(known) > 500
    for o in random.Random(0).sample(known, 25):
        label = runner.hints()[o.name].fails_if
        variant = next(v for v in o.variants if v.label == label)
        assert runner.refute(variant.condition(), o.small)[0] == "refuted", f"{o.name} {label}"


def test_a_frame_is_proved_but_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    name = next(n for n, h in runner.hints().items() if h.fails_if == "")
    (result,) = stallproof_proofs.run(only=(name,))
    assert (result.kind, result.status, result.ok) == ("frame", "proved", True)


@pytest.mark.slow
def test_the_page_names_every_theory_twin_and_assumption() -> None:
    every = [r for n in NAMES for r in results(n)]
    text = page(every, "test")
    for th in theories():
        assert th.title in text
    assert all(r.name.split("/", 1)[1] in text for r in every if r.kind == "twin")
    assert all(a.name in text for a in stallproof_proofs.assumptions())
