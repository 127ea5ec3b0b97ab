"""The loop without an engine: causes are told apart, scenarios get small, a killed hunt goes on."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from stallproof import scenario
from stallproof.errors import BadInput, Unsupported
from stallproof.hunt import space
from stallproof.hunt.corpus import Corpus
from stallproof.hunt.run import Hunt, identity
from stallproof.hunt.search import Hunter, Job, within
from stallproof.hunt.shrink import shrink


class Showed(msgspec.Struct):
    """What :class:`Toy` says of a case, as ``case.Outcome``."""

    causes: dict[str, str]
    texts: dict[str, str]
    coverage: set[int]
    when: dict[str, int]
    steps: int = 9


class Toy:
    """A rule instead of an engine: two faults, one of which a longer run mends."""

    runs = 0

    def run(self, s: scenario.Scenario) -> Showed | None:
        self.runs += 1
        if s.engine.blocks == 3:
            return None
        causes = {}
        lost = [q for q in s.request if q.load and q.load.outcome == "lost"]
        if len(lost) > 1:
            causes["BoundedWait"] = "waits for: loading (lost)"
        if s.engine.window and s.engine.blocks < 9 and any(q.prompt > 5 for q in s.request):
            causes["InFlightSafe"] = "written | given up by: prune" + (", free" if s.engine.role else "")
        if s.engine.lookahead and s.steps < 301:
            causes["Termination"] = "slow"
        seen = {hash((s.engine.block_size, s.engine.depth, len(s.request), bool(s.stream)))}
        return Showed(causes, {p: p for p in causes}, {x % 2**31 for x in seen}, dict.fromkeys(causes, 8))


def hunted(toy: Any = None, **job: Any) -> tuple[Hunter, list[tuple[str, dict]]]:
    said: list[tuple[str, dict]] = []
    hunter = Hunter(toy or Toy(), Job(scheduler="x", **job), lambda k, d: said.append((k, d)))
    hunter.go()
    return hunter, said


def without_time(said: list[tuple[str, dict]]) -> list[Any]:
    return [(k, {n: v for n, v in d.items() if n not in ("seconds", "cpu")}) for k, d in said]


def test_a_hunt_is_a_function_of_its_seed() -> None:
    a, b, c = (without_time(hunted(seed=s, cases=300)[1]) for s in (1, 1, 2))
    assert a == b
    assert a != c


def test_without_changes_a_case_depends_on_its_number_only() -> None:
    h, _ = hunted(seed=5, cases=10, changes=False)
    again, _ = hunted(seed=5, first=7, cases=3, changes=False)
    assert [h.make(k) for k in (7, 8, 9)] == [again.make(k) for k in (7, 8, 9)]


def test_findings_are_distinct_and_small_and_slow_ones_do_not_count() -> None:
    hunter, said = hunted(seed=1, cases=2500)
    found = [d for k, d in said if k == "finding"]
    assert {d["property"] for d in found} == {"BoundedWait", "InFlightSafe"}
    keys = [(d["property"], d["cause"], tuple(d["needs"])) for d in found]
    assert len(keys) == len(set(keys))
    assert hunter.dropped > 0  # Termination, mended by a longer run
    again = [d for k, d in said if k == "again"]
    assert {d["property"] for d in again} >= {"BoundedWait", "InFlightSafe"}
    lost = msgspec.convert(
        next(d["scenario"] for d in found if d["property"] == "BoundedWait"), scenario.Scenario
    )
    assert len(lost.request) == 2
    assert (lost.engine.window, lost.engine.prefix_caching, lost.stream) == (0, False, [])
    pruned = msgspec.convert(
        next(d["scenario"] for d in found if d["property"] == "InFlightSafe"), scenario.Scenario
    )
    assert pruned.engine.window == 1
    assert len(pruned.request) == 1
    assert pruned.request[0].prompt == 6
    assert pruned.request[0].load is None


def test_an_unrepeatable_failure_is_no_finding() -> None:
    class Once(Toy):
        def run(self, s: scenario.Scenario) -> Showed | None:
            got = super().run(s)
            if got and self.runs % 7 == 0:
                got.causes["NoWedge"], got.texts["NoWedge"], got.when["NoWedge"] = "once", "once", 1
            return got

    hunter, said = hunted(Once(), seed=1, cases=60)
    assert "NoWedge" not in {d["property"] for k, d in said if k == "finding"}
    assert hunter.dropped > 0


def test_shrinking_never_leaves_the_cause_nor_the_contract() -> None:
    tried: list[scenario.Scenario] = []
    s = next(
        s for k in range(500)
        if len((s := space.fresh(Random(f"x{k}"), "x")).request) > 3 and s.at and s.engine.role
    )  # fmt: skip

    def keeps(t: scenario.Scenario) -> bool:
        tried.append(t)
        return bool(t.at) and len(t.request) >= 2

    small, used = shrink(s, keeps, 2000)
    assert used == len(tried)
    assert all(not space.refused(t) for t in tried)
    assert (len(small.request), len(small.at), small.engine.role) == (2, 1, "")
    assert all((q.prompt, q.max_tokens, q.load, q.send) == (1, 1, None, None) for q in small.request)
    assert shrink(s, lambda t: False, 50) == (s, 50)


def test_a_signature_may_lose_kinds_but_not_gain_any() -> None:
    full = "stuck: received, waiting | free: none | refused: blocks"
    assert within(full, full)
    assert within("stuck: received | free: none", full)
    assert not within("stuck: loading | free: none", full)
    assert not within(full + " | held besides: nobody", full)
    assert not within("stuck: received | free: some", full)
    assert not within("another", "one")


def test_needed_grows_with_the_work() -> None:
    s = space.fresh(Random(1), "x")
    before = space.needed(s)
    s.request[0].max_tokens += 10
    assert space.needed(s) > before


# ------------------------------------------------------------ the folder


def scenario_raw(k: int) -> dict[str, Any]:
    return {"scenario": msgspec.to_builtins(space.fresh(Random(k), f"c{k}")), "coverage": [k, k + 1]}


def test_a_torn_line_costs_that_line_only(tmp_path: Path) -> None:
    c = Corpus(tmp_path, "stock", "0.32.0", 1)
    for k in range(3):
        c.add(scenario_raw(k))
    c.state.next["0"] = 17
    c.close()
    file = tmp_path / "corpus.jsonl"
    os.truncate(file, file.stat().st_size - 5)
    again = Corpus(tmp_path, "stock", "0.32.0", 1)
    assert [s.id for s in again.scenarios] == ["c0", "c1"]
    assert again.features == {0, 1, 2}
    assert again.state.next == {"0": 17}
    again.add(scenario_raw(7))
    again.close()
    assert [s.id for s in Corpus(tmp_path, "stock", "0.32.0", 1).scenarios] == ["c0", "c1", "c7"]


@pytest.mark.parametrize(
    ("file", "content", "error"),
    [
        ("hunt.json", b"{", BadInput),
        ("hunt.json", b"{}", BadInput),
        ("hunt.json", b'{"schema": "stallproof-hunt/9"}', Unsupported),
        (
            "hunt.json",
            b'{"schema": "other/1", "scheduler": "stock", "version": "0.32.0", "seed": 1}',
            BadInput,
        ),
        ("hunt.json", b"[" * 100_000, BadInput),
        ("corpus.jsonl", b"{}\n", BadInput),
        ("corpus.jsonl", b"\xff\n", BadInput),
    ],
)
def test_what_is_no_hunt_is_refused(file: str, content: bytes, error: type, tmp_path: Path) -> None:
    (tmp_path / file).write_bytes(content)
    with pytest.raises(error, match=file.replace(".", r"\.")):
        Corpus(tmp_path, "stock", "0.32.0", 1)


@pytest.mark.parametrize("damage", [b"{}\n", b"[" * 100_000 + b"\n", b'"\\ud800"\n', None])
def test_a_damaged_corpus_is_one_error_naming_the_line(damage: bytes | None, tmp_path: Path) -> None:
    c = Corpus(tmp_path, "stock", "0.32.0", 1)
    c.add(scenario_raw(1))
    c.close()
    file = tmp_path / "corpus.jsonl"
    if damage is None:
        file.unlink()
        file.mkdir()
    else:
        file.write_bytes(file.read_bytes() + damage)
    with pytest.raises(BadInput, match=r"corpus\.jsonl:(2:)? .*\n  remedy"):
        Corpus(tmp_path, "stock", "0.32.0", 1)


def test_a_corpus_without_its_hunt_is_neither_cut_nor_gone_on_with(tmp_path: Path) -> None:
    """A file of that name may be anybody's: its last line without an end is not a torn one of ours."""
    (tmp_path / "corpus.jsonl").write_bytes(b"somebody's")
    with pytest.raises(BadInput, match=r"hunt\.json.*is missing"):
        Corpus(tmp_path, "stock", "0.32.0", 1)
    assert (tmp_path / "corpus.jsonl").read_bytes() == b"somebody's"


def test_a_hunt_killed_at_once_still_says_whose_it_is(tmp_path: Path) -> None:
    Corpus(tmp_path, "stock", "0.32.0", 1).add(scenario_raw(1))
    assert [s.id for s in Corpus(tmp_path, "stock", "0.32.0", 1).scenarios] == ["c1"]


def test_another_hunt_is_not_gone_on_with(tmp_path: Path) -> None:
    Corpus(tmp_path, "stock", "0.32.0", 1).close()
    with pytest.raises(BadInput, match="seed 1"):
        Corpus(tmp_path, "stock", "0.32.0", 2)
    with pytest.raises(BadInput, match=r"0\.32\.0"):
        Corpus(tmp_path, "stock", "0.23.0", 1)


def finding_raw(cause: str) -> dict[str, Any]:
    s = msgspec.to_builtins(space.fresh(Random(1), "c"))
    return {
        "property": "NoWedge", "cause": cause, "raw": "raw " + cause, "needs": ["a load"],
        "text": "stuck", "violated": {}, "case": 3, "seconds": 1.5, "runs": 9,
        "scenario": s, "before": s, "steps": 4, "steps_before": 8,
    }  # fmt: skip


def test_findings_are_kept_at_once_and_told_apart(tmp_path: Path) -> None:
    hunt = Hunt(tmp_path, "stock", "0.32.0", seed=1)
    for cause in ("one", "two", "one"):
        hunt._heard(0, "finding", finding_raw(cause))
    hunt._heard(0, "again", {"property": "NoWedge", "cause": "two"})
    hunt._heard(0, "state", {"case": 40, "seconds": 7.0, "invalid": 0, "dropped": 0})
    # killed here: nothing is closed
    again = Hunt(tmp_path, "stock", "0.32.0", seed=1)
    assert {f.id for f in again.found} == {identity("NoWedge", c, ["a load"]) for c in ("one", "two")}
    assert again.corpus.state.next == {"0": 40}
    assert again.corpus.state.seen["NoWedge: two"] == 1
    job = again._job(0)["job"]
    assert job["first"] == 40
    assert ["NoWedge", "raw one", "a load"] in job["known"]
    assert again.before == 7.0
