"""The table of planted faults says what was run, what was not, and what was not found."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from stallproof.hunt import planted_run as run
from stallproof.hunt.planted import MUTANTS


def row(name: str, found: bool = True, **more: object) -> run.Row:
    return run.Row(
        name=name, version="0.32.0", found=found, seconds=12.34, cases=56, limit=300.0, **more  # type: ignore[arg-type]
    )  # fmt: skip


def test_the_page_hides_nothing() -> None:
    first, second = MUTANTS[0].name, MUTANTS[1].name
    rows = {
        first: row(first, property="InFlightSafe", requests=2, blocks=3, steps=9),
        second: row(second, found=False),
        "control 0.32.0": row(run.CONTROL, found=False),
    }
    text = run.page(rows)
    assert f"1 of 2 were found ({len(MUTANTS) - 2} more were not run), the median after 12.3 s." in text
    lines = {x.split(" | ")[0].strip("| "): x for x in text.splitlines() if x.startswith("| ")}
    assert lines[first].endswith("| 0.32.0 | 12.3 s | 56 | InFlightSafe | 2 | 3 | 9 |")
    assert "**not found** in 12 s" in lines[second]
    assert "not run" in lines[MUTANTS[2].name]
    assert "vLLM 0.32.0, 12 s of CPU time, 56 cases: nothing found." in text
    assert "**NoWedge: x** found" in run.page(
        {"control 0.32.0": row("control", property="NoWedge", cause="x")}
    )
    assert {len(re.findall(r"(?<!\\)\|", x)) for x in lines.values()} == {12}, "a cell for every column"


def test_the_newest_row_of_a_fault_counts(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    assert run.read_rows(file) == {}
    name = MUTANTS[0].name
    lines = [
        msgspec.json.encode(r) for r in (row(name, found=False), row(name), row(run.CONTROL, found=False))
    ]
    file.write_bytes(b"\n".join(lines) + b"\n")
    got = run.read_rows(file)
    assert set(got) == {name, "control 0.32.0"}
    assert got[name].found


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_of_them_are_found_and_the_class_as_it_is_passes() -> None:
    """The scenario that shows a fault passes without it, or it would not count."""
    names = ["held_load_kept", "endless_patience", run.CONTROL]
    first, second, control = run.hunt("0.32.0", names, seed=0, limit=6.0)
    assert (first.name, first.found, first.property) == ("held_load_kept", True, "BoundedWait")
    assert (second.name, second.found, second.property) == ("endless_patience", True, "Patience")
    assert first.requests <= 4
    assert control.cases > 3
    assert not control.found, control
