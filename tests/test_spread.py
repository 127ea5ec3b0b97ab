"""The same results however cases are spread, and one clear error when one of them is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from stallproof import spread
from stallproof.errors import BadInput, Exit, Unsupported

HERE, TWO = spread.Where(1), spread.Where(2)


def square(case: int, tick: spread.Tick) -> int:
    tick("half", case)
    return case * case


def scaled(factor: int, case: int, tick: spread.Tick) -> int:
    return factor * case


def refuses(case: int, tick: spread.Tick) -> int:
    if case == 2:
        raise Unsupported("no such release", remedy="take another")
    if case == 3:
        raise ZeroDivisionError("by three")
    return case


def dies(case: int, tick: spread.Tick) -> int:
    if case == 2:
        os._exit(9)
    return case


def endless(case: int, tick: spread.Tick) -> int:
    return case


def name(case: int) -> str:
    return f"seed {case}"


def check_all(where: spread.Where) -> None:
    """What every way of spreading must do."""
    done: list[tuple[int, int]] = []
    ticks: list[tuple] = []
    got = spread.run(
        square, [3, 1, 2], where, on_done=lambda *a: done.append(a), on_tick=lambda *a: ticks.append(a)
    )
    assert got == [9, 1, 4]
    assert sorted(done) == [(0, 9), (1, 1), (2, 4)]
    assert sorted(ticks) == [(0, "half", 3), (1, "half", 1), (2, "half", 2)]
    assert spread.run(partial(scaled, 10), [1, 2], where) == [10, 20]
    assert spread.run(square, [], where) == []


def check_refusals(where: spread.Where) -> None:
    with pytest.raises(
        spread.CaseFailed, match=r"case 1 \(seed 2\): no such release\n  remedy: take"
    ) as info:
        spread.run(refuses, [1, 2], where, label=name)
    assert info.value.code is Exit.UNSUPPORTED
    with pytest.raises(spread.CaseFailed, match=r"case 1 \(seed 3\): ZeroDivisionError: by three") as info:
        spread.run(refuses, [1, 3], where, label=name)
    assert info.value.code is Exit.BAD_INPUT
    assert "in refuses" in info.value.details


@pytest.mark.parametrize("where", [HERE, TWO], ids=["here", "processes"])
def test_results_are_those_of_a_loop(where: spread.Where) -> None:
    check_all(where)


@pytest.mark.parametrize("where", [HERE, TWO], ids=["here", "processes"])
def test_an_exception_names_its_case_and_keeps_its_exit_code(where: spread.Where) -> None:
    check_refusals(where)


def test_a_tick_is_there_before_the_results() -> None:
    ticks: list[tuple] = []
    spread.run(square, [3], HERE, on_tick=lambda *a: ticks.append(a))
    assert ticks == [(0, "half", 3)]


def waits(case: str, tick: spread.Tick) -> None:
    Path(case).write_text(str(os.getpid()))
    time.sleep(600)


def test_who_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    code = (
        "from tests.test_spread import spread, waits, TWO\n"
        "if __name__ == '__main__':\n"
        f"    spread.run(waits, {[str(f) for f in files]}, TWO)\n"
    )
    script = tmp_path / "run.py"
    script.write_text(code)
    root = Path(__file__).resolve().parents[1]
    proc = subprocess.Popen([sys.executable, str(script)], env={**os.environ, "PYTHONPATH": str(root)})
    until(lambda: all(f.exists() and f.read_text() for f in files))
    proc.kill()
    proc.wait()
    until(lambda: not any(Path(f"/proc/{f.read_text()}").exists() for f in files))


def until(done: Callable[[], bool]) -> None:
    limit = time.monotonic() + 120
    while not done():
        assert time.monotonic() < limit
        time.sleep(0.1)


def test_a_process_that_dies_is_an_error_that_names_the_case() -> None:
    with pytest.raises(spread.CaseLost, match=r"died while it ran .*1 \(seed 2\)") as info:
        spread.run(dies, [1, 2], TWO, label=name)
    assert 1 in info.value.indices
    assert "--jobs 1" in str(info.value)


def test_endless_cases_end_with_the_loop() -> None:
    """A hunt's cases never end; what has begun when the loop is left is not waited for for ever."""
    from itertools import count

    seen = []
    for i, result in spread.each(endless, count(), TWO):
        seen.append((i, result))
        if len(seen) == 8:
            break
    assert all(i == r for i, r in seen)
    assert {i for i, _ in seen} <= set(range(10)), "no further ahead than there are workers"


def test_a_lost_result_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "_here", lambda *a: iter([(0, 1)]))
    with pytest.raises(spread.CaseLost, match="1 of 2 cases gave no result"):
        spread.run(square, [1, 2], HERE)


def test_another_release_on_a_node_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "_one", lambda *a: {"is": "0.0.9", "result": 1})
    with pytest.raises(BadInput, match=r"ran with Stallproof 0\.0\.9"):
        spread.run(square, [1], HERE)


def test_without_ray_there_is_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadInput, match=r"pip install 'stallproof\[ray\]'"):
        spread.run(square, [1], spread.Where(ray="auto"))


def test_fewer_than_no_jobs() -> None:
    with pytest.raises(BadInput, match="--jobs -1"):
        spread.run(square, [1], spread.Where(-1))


# ---------------------------------------------------------------- a real Ray cluster, on this machine

CLUSTER = """
import os, sys
os.environ["RAY_USAGE_STATS_ENABLED"], os.environ["RAY_AUTH_MODE"] = "0", "disabled"
import ray
for attempt in range(4):  # a node that needs more than 30 s to start, on a busy machine, gives up
    try:
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
                 logging_level="ERROR", object_store_memory=80 << 20)
        break
    except Exception as exc:
        print(exc, file=sys.stderr)
        ray.shutdown()
print("at", ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
ray.shutdown()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster that another process started and keeps; it ends with this module."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'stallproof[ray]'")
    # its workers import this very module by name
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    keeper = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CLUSTER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    try:
        line = next((x for x in keeper.stdout if x.startswith("at ")), "")
        assert line, "the cluster did not start"
        yield line.split()[1]
    finally:
        keeper.stdin.close()
        keeper.wait(timeout=60)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_ray_cluster_gives_the_same_results_and_errors(cluster: str) -> None:
    where = spread.Where(2, cluster)
    check_all(where)
    check_refusals(where)
    with pytest.raises(spread.CaseLost, match=r"case 1 \(seed 2\) was lost on the Ray cluster") as info:
        spread.run(dies, [1, 2], where, label=name)
    assert info.value.indices == (1,)
    from itertools import count

    seen = []
    for i, result in spread.each(endless, count(), spread.Where(0, cluster)):
        seen.append((i, result))
        if len(seen) == 6:
            break
    assert all(i == r for i, r in seen)


@pytest.mark.slow
def test_no_cluster_at_the_address() -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'stallproof[ray]'")
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1"):
        with pytest.raises(BadInput, match=rf"no Ray cluster answers at '{address}'"):
            spread.run(square, [1], spread.Where(ray=address))
