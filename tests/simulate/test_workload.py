"""Workload readers: formats, block hashes at any block size, slices, bad rows."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallproof.errors import BadInput, Exit, StallproofError
from stallproof.simulate.metrics import RunLog, percentile, ratios
from stallproof.simulate.spawn import Worker
from stallproof.simulate.worker import Latency
from stallproof.simulate.workload import (
    MOONCAKE_BLOCK,
    Job,
    azure,
    detect,
    mooncake,
    select,
    servegen,
    synthetic,
)


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


ROW = {"timestamp": 1500, "input_length": 600, "output_length": 7, "hash_ids": [3, 4]}


def test_mooncake_row(tmp_path: Path) -> None:
    path = write(tmp_path / "w.jsonl", ROW)
    assert detect(path) == "mooncake"
    assert list(mooncake(path)) == [Job("m1", 1.5, 600, 7, 0, (3, 4))]


@pytest.mark.parametrize(
    "bad", ["{", {"timestamp": 1}, {**ROW, "hash_ids": [1]}, {**ROW, "input_length": "x"}]
)
def test_bad_mooncake_row_names_its_line(tmp_path: Path, bad: object) -> None:
    with pytest.raises(BadInput, match=r"w\.jsonl:2: .*\n.*remedy"):
        list(mooncake(write(tmp_path / "w.jsonl", ROW, bad)))


def test_azure(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:17:03.9799600,4808,10", "2023-11-16 18:17:04.9799600,31,0",
    )  # fmt: skip
    assert detect(path) == "azure"
    first, second = azure(path)
    assert (first.at, first.prompt, first.output) == (0.0, 4808, 10)
    assert (second.at, second.output) == (1.0, 1)
    with pytest.raises(BadInput, match=r"a\.csv:3"):
        list(
            azure(write(path, "TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03,1,1", "x,1,1"))
        )


def test_servegen_slices_of_one_seed_agree(tmp_path: Path) -> None:
    write(
        tmp_path / "chunk-1-trace.csv", "0,0.5,1,Gamma,1.0,2.0", "600,0.5,1,Weibull,1.0,2.0", "1200,0,0,,0,0"
    )
    write(
        tmp_path / "chunk-1-dataset.json",
        {"0": {"input_tokens": "{5: 0.5, 9: 0.5}", "output_tokens": "{2: 1.0}"}},
    )
    whole = list(servegen(tmp_path, seed=4, length=1800))
    assert (
        whole
        == list(servegen(tmp_path, seed=4, length=1800))
        != list(servegen(tmp_path, seed=5, length=1800))
    )
    assert [j for j in whole if 300 <= j.at < 900] == list(servegen(tmp_path, seed=4, start=300, length=600))
    assert {j.prompt for j in whole} == {5, 9}


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"


@pytest.mark.parametrize("row", ["2023-11-16 18:17:03+00:00,1,1", "x" * 200_000 + ",1,1"])
def test_bad_azure_row_names_its_line(tmp_path: Path, row: str) -> None:
    path = write(tmp_path / "a.csv", AZURE, "2023-11-16 18:17:03,1,1", row)
    with pytest.raises(BadInput, match=r"a\.csv:3: not an Azure row"):
        list(azure(path))


@pytest.mark.parametrize("stamp", [-1, 1e308])
def test_a_time_that_is_none_names_its_line(tmp_path: Path, stamp: float) -> None:
    row = {"timestamp": stamp, "input_length": 10, "output_length": 2, "hash_ids": [1]}
    with pytest.raises(BadInput, match=r"m\.jsonl:1: timestamp"):
        list(mooncake(write(tmp_path / "m.jsonl", row)))


COUNTS = {"0": {"input_tokens": "{5: 1.0}", "output_tokens": "{2: 1.0}"}}


@pytest.mark.parametrize(
    "row",
    [
        "0,1,1,Gamma,0,0", "0,1,1,Gamma,-1,1", "0,1,1,Weibull,1,0", "0,1,1,Gamma,inf,1", "nan,1,1,Gamma,1,1",
        "0,1,1,Gamma,1e-300,1", "0,1,1,Gamma", "\udcff,1,1,Gamma,1,1",
    ],
)  # fmt: skip
def test_a_window_that_is_none_is_one_error(tmp_path: Path, row: str) -> None:
    """A scale of 0 once drew requests for ever."""
    (tmp_path / "chunk-1-trace.csv").write_text(f"0,0,1,,0,0\n\n{row}\n", errors="surrogateescape")
    write(tmp_path / "chunk-1-dataset.json", COUNTS)
    with pytest.raises(BadInput, match=r"chunk-1-trace\.csv:3: .*\n  remedy"):
        list(servegen(tmp_path))


@pytest.mark.parametrize(
    "counts",
    [
        None, "", "{bad", "[]", '{"0": []}', '{"0": {"input_tokens": 5}}', "[" * 100_000, "{5: 0.0}",
        "{5: -1.0}", "{1e999: 1.0}", "f(0)", "(" * 5000,
    ],
)  # fmt: skip
def test_token_counts_that_are_none_are_one_error(tmp_path: Path, counts: str | None) -> None:
    write(tmp_path / "chunk-1-trace.csv", "0,1,1,Gamma,1,1")
    path = tmp_path / "chunk-1-dataset.json"
    if counts is not None and counts[:2] in ("{5", "{1", "f(", "(("):
        write(path, {"0": {"input_tokens": counts, "output_tokens": "{2: 1.0}"}})
    elif counts is not None:
        path.write_text(counts)
    with pytest.raises(BadInput, match=r"chunk-1-dataset\.json: (.|\n)*remedy"):
        list(servegen(tmp_path))


def test_unknown_format_and_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="unknown workload"):
        detect(write(tmp_path / "x", "hello"))
    with pytest.raises(BadInput, match="cannot read"):
        detect(tmp_path / "none")


@given(st.integers(1, 1024), st.integers(0, 6), st.integers(1, 4000), st.integers(1, 4000))
def test_equal_hash_means_equal_prefix(block: int, shared: int, a: int, b: int) -> None:
    """Blocks of two prompts are equal exactly where the whole prefix up to their end is shared."""

    def job(rid: str, length: int, salt: int) -> Job:
        n = -(-length // MOONCAKE_BLOCK)
        return Job(
            rid, 0, length, 1, 0, tuple(range(min(shared, n))) + tuple(salt + i for i in range(n - shared))
        )

    x, y = job("x", a, 100), job("y", b, 200)
    for i in range(max(a, b) // block + 2):
        common = min(shared * MOONCAKE_BLOCK, a, b)
        assert (x.block_hash(i, block) == y.block_hash(i, block)) == ((i + 1) * block <= common)


def test_select_cuts_shifts_and_compresses() -> None:
    jobs = [Job(f"r{i}", float(i), 10, 1) for i in range(10)]
    assert [j.at for j in select(jobs, start=2, length=4, speedup=2)] == [0.0, 0.5, 1.0, 1.5]
    assert len(select(jobs, limit=3)) == 3
    assert select(jobs, max_len=10) == []


def test_same_seed_same_jobs() -> None:
    assert list(synthetic(30, seed=1)) == list(synthetic(30, seed=1)) != list(synthetic(30, seed=2))


def test_latency_is_parsed_and_checked() -> None:
    lat = Latency.parse("base=0.01,per_decode_token=0.001")
    assert lat.step(0, 2) == pytest.approx(0.012)
    assert lat.step(0, 0) == 0.0
    for bad in ("base=x", "speed=1", "base=-1", "base"):
        with pytest.raises(BadInput, match="latency"):
            Latency.parse(bad)


def test_no_ratio_against_a_stalled_run() -> None:
    log = RunLog("stock")
    s = log.summary(slo_ttft=1, slo_itl=1)
    assert ratios(s, s) is not None
    assert ratios({**s, "stranded": 1}, s) is None
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.0


def test_what_the_engine_s_process_says_keeps_its_code() -> None:
    """An unsupported recording is code 3, not 2."""
    worker = Worker.__new__(Worker)
    worker.version = "0.32.0"
    worker.proc = SimpleNamespace(stdin=io.StringIO())  # type: ignore[assignment]
    worker.lines = io.StringIO('{"error": "another schema", "code": 3}\n')
    with pytest.raises(StallproofError, match="another schema") as error:
        worker.follow(Path("x"))
    assert error.value.code == Exit.UNSUPPORTED
