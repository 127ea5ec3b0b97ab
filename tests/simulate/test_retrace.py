"""Our own traces as workloads: would it have stalled under other rules?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stallproof import engines
from stallproof.errors import BadInput, Exit
from stallproof.simulate import retrace
from stallproof.trace import schema as T
from tests.simulate.test_follow import header, write

WEDGE = Path(__file__).resolve().parents[1] / "fixtures" / "traces" / "wedge-0.23.0.jsonl"


def test_what_a_recording_says() -> None:
    got = retrace.read(WEDGE)
    assert [(j.rid, j.prompt, j.output) for j in got.jobs] == [("H", 960, 8), ("L", 704, 8), ("W", 32, 8)]
    assert got.jobs[0].at == 0.0 < got.jobs[1].at < got.jobs[2].at
    assert got.known["L"].tokens == 672
    assert [fate for _, fate in got.known["L"].loads] == ["ok"]
    assert got.known["L"].loads[0][0] > 0
    assert got.jobs[2].at < got.known["H"].ready, "H is told 'not yet' until all are there"


def test_a_load_that_never_reports_is_lost_and_a_late_one_is_not(tmp_path: Path) -> None:
    def load(r: str) -> list[T.Event]:
        return [T.Alloc(r, [1]), T.Load(r, 1, [1], "async", 4), T.Start(r, 1)]

    rows: list[T.Record] = [T.Outside(n=1, ts=0.0, ev=[T.Add(r, 0, 0.0, 8, 2) for r in "abc"])]
    rows += [T.Sched(n=2, step=1, ts=1.0, ev=load("a")), T.Sched(n=3, step=2, ts=1.0, ev=load("b"))]
    rows += [T.Update(n=4, step=1, ts=2.0, ev=[T.Recv("a", 1)])]
    rows += [T.Sched(n=5, step=3, ts=19.5, ev=load("c")), T.Update(n=6, step=2, ts=20.0)]
    head = header()
    head.source = "engine"
    known = retrace.read(write(tmp_path / "t.jsonl", head, *rows)).known
    assert {r: k.loads for r, k in known.items()} == {
        "a": [(1.0, "ok")], "b": [(1.0, "lost")], "c": [(1.0, "ok")],
    }  # fmt: skip
    assert known["a"].load(5) == (1.0, "ok")


def test_a_recording_without_requests(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no request"):
        retrace.read(write(tmp_path / "t.jsonl", header(), T.Sched(n=1, step=1)))


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.skipif(not engines.is_up("0.23.0"), reason="make engines brings up 0.23.0")
def test_the_wedge_stalls_again_with_stock_and_finishes_with_ours() -> None:
    """Release, pool, depth and connector are taken from the recording."""
    args = ["simulate", str(WEDGE), "--json", "--horizon", "60"]
    run = subprocess.run([sys.executable, "-m", "stallproof", *args], capture_output=True, text=True)
    assert run.returncode == Exit.FINDING, run.stderr
    stock, ours = json.loads(run.stdout)["runs"]
    assert stock["vllm"] == ours["vllm"] == "0.23.0"
    assert (stock["stranded"], stock["completed"]) == (2, 1)
    assert "horizon" in stock["ended"], "nothing moves; the pauses between calls grow to a second"
    assert (ours["stranded"], ours["completed"]) == (0, 3)
    assert json.loads(run.stdout)["ratios"] == [None]
