"""Recorded engine runs are played back on the real scheduler: each decision again, or the differing line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stallproof import engines
from stallproof.errors import BadInput
from stallproof.simulate.script import Renaming, difference, read
from stallproof.simulate.spawn import Worker
from stallproof.trace import schema as T

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
#: runs of the real engine on CPU with a connector that moves KV; stock, so that our rules may change
RECORDED = sorted((FIXTURES / "engine").glob("0.32.0-*.jsonl.gz"))
engine = [
    pytest.mark.engine, pytest.mark.slow,
    pytest.mark.skipif(not engines.is_up("0.32.0"), reason="make engines brings up 0.32.0"),
]  # fmt: skip


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker("0.32.0") as w:
        yield w


class TestEngine:
    pytestmark = engine

    @pytest.mark.parametrize("path", RECORDED, ids=lambda p: p.name.split(".jsonl")[0])
    def test_every_decision_of_a_recorded_engine_run(self, worker: Worker, path: Path) -> None:
        got = worker.follow(path)
        assert got["difference"] == "", got
        assert got["counts"]["sched"] > 100
        assert got["counts"]["events"] > 500

    def test_recordings_of_the_harness(self, worker: Worker) -> None:
        for name in ("starvation-0.32.0", "cascade-0.32.0-ok"):
            got = worker.follow(FIXTURES / "traces" / f"{name}.jsonl")
            assert got["difference"] == "", (name, got)

    @pytest.mark.parametrize("scheduler", ["stock", "stallproof"])
    def test_a_simulated_run_with_prefix_caching(
        self, worker: Worker, tmp_path: Path, scheduler: str
    ) -> None:
        """Contents are inferred from what was shared."""
        from stallproof.simulate.plan import Plan, Work

        path = tmp_path / "t.jsonl"
        worker.run(
            Plan(
                work=Work(synthetic=60, rate=40, seed=3), blocks=60, max_num_seqs=16, budget=1024,
                max_model_len=1024, scheduler=scheduler, trace=str(path),
            )
        )  # fmt: skip
        assert '"share"' in path.read_text()
        got = worker.follow(path)
        assert got["difference"] == "", got

    @pytest.mark.parametrize("what", ["tok", "victim", "blocks", "run", "lost", "out", "free", "refuse"])
    def test_a_corrupted_decision_is_noticed(self, worker: Worker, tmp_path: Path, what: str) -> None:
        path = tmp_path / "bad.jsonl"
        line = corrupt(
            RECORDED[0] if what != "run" else FIXTURES / "traces" / "starvation-0.32.0.jsonl", path, what
        )
        got = worker.follow(path)
        assert got["line"] == line, got
        assert got["difference"]


def corrupt(source: Path, target: Path, what: str) -> int:
    """Write ``source`` with one decision changed, late in it; returns its line."""
    text = (gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()).decode()
    rows = [json.loads(x) for x in text.splitlines()]
    for n in range(len(rows) // 2, len(rows)):
        if CHANGES[what](rows[n]):
            target.write_text("".join(json.dumps(r) + "\n" for r in rows))
            return n + 1
    raise AssertionError(f"nothing to corrupt: {what}")


def _first(row: dict[str, Any], kind: str, test: Callable[[list], bool] = lambda e: True) -> list | None:
    return next((e for e in row.get("ev", ()) if e[0] == kind and test(e)), None)


def _tok(row: dict[str, Any]) -> bool:
    if len(row.get("tok", {})) < 2:
        return False
    row["tok"].popitem()
    return True


def _victim(row: dict[str, Any]) -> bool:
    e = _first(row, "preempt")
    if e is not None:
        e[1] = e[1] + "x"
    return e is not None


def _blocks(row: dict[str, Any]) -> bool:
    e = _first(row, "alloc", lambda e: len(e[2]) > 1)
    if e is not None:
        e[2][0], e[2][1] = e[2][1], e[2][0]
    return e is not None


def _run(row: dict[str, Any]) -> bool:
    if len(row.get("run") or ()) < 2:
        return False
    row["run"].reverse()
    return True


def _lost(row: dict[str, Any]) -> bool:
    e = _first(row, "admit")
    if e is not None:
        row["ev"].remove(e)
    return e is not None


def _out(row: dict[str, Any]) -> bool:
    if not row.get("out"):
        return False
    row["out"].popitem()
    return True


def _free(row: dict[str, Any]) -> bool:
    if row["t"] != "sched":
        return False
    row["free"] += 1
    return True


def _refuse(row: dict[str, Any]) -> bool:
    e = _first(row, "refuse")
    if e is not None:
        e[2] += 1
    return e is not None


CHANGES: dict[str, Callable[[dict[str, Any]], bool]] = {
    "tok": _tok, "victim": _victim, "blocks": _blocks, "run": _run, "lost": _lost, "out": _out,
    "free": _free, "refuse": _refuse,
}  # fmt: skip


def test_blocks_are_renamed_one_to_one() -> None:
    names = Renaming()
    assert names.same(1, 5)
    assert names.same(1, 5)
    assert not names.same(1, 6)
    assert not names.same(2, 5)
    assert names.all_same([1, 2], [5, 7])
    assert names.all_same([2, 1], [5, 7], ordered=False)
    assert not names.all_same([2, 1], [5, 7])
    assert not names.all_same([1], [5, 7])


def test_records_of_different_kinds_differ() -> None:
    a, b = T.Sched(step=1, free=3), T.Update(step=1, free=3)
    assert "record" in difference(a, b, Renaming())
    assert difference(a, T.Sched(step=1, free=3), Renaming()) == ""


def header(**changes: Any) -> T.Header:
    config = {"pool": 9, "block_size": 4, "depth": 2} | changes
    return T.Header(
        schema=T.SCHEMA, run="x", source="harness", engine=T.Engine(name="vllm", version="0.32.0"),
        config=T.Config(**config), clock=T.Clock(wall="", mono=0.0),
    )  # fmt: skip


def write(path: Path, *rows: T.Record) -> Path:
    path.write_bytes(b"".join(T.encode(r) + b"\n" for r in rows))
    return path


def test_shared_blocks_have_equal_contents(tmp_path: Path) -> None:
    rows = [
        T.Sched(n=1, step=1, ev=[T.Alloc("a", [1, 2]), T.Share("b", [1]), T.Alloc("b", [3])]),
        T.Sched(n=2, step=2, ev=[T.Free("a", [2, 1]), T.Share("c", [1, 3])]),
        T.Sched(n=3, step=3, ev=[T.Alloc("a", [2]), T.Share("a", [3])]),
    ]
    script = read(write(tmp_path / "t.jsonl", header(), *rows))
    assert script.name(("a", 0)) == script.name(("b", 0)) == script.name(("c", 0))
    assert script.name(("b", 1)) == script.name(("c", 1)) == script.name(("a", 1))
    assert script.name(("d", 0)) != script.name(("a", 0))


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ((header(window=64), T.Sched(n=1, step=1)), "sliding window"),
        ((header(), T.Update(n=1, step=1, out={"a": 2})), "speculative"),
        ((header(),), "empty recording"),
    ],
)
def test_what_cannot_be_followed_is_said(tmp_path: Path, rows: tuple[T.Record, ...], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        read(write(tmp_path / "t.jsonl", *rows))
