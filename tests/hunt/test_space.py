"""Scenarios that hunt makes: valid, repeatable, of every kind, made from a random generator alone."""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from random import Random

import msgspec
import pytest

from stallproof import scenario
from stallproof.hunt import space

HERE = Path(space.__file__).parent
ROOT = Path(__file__).resolve().parents[2]
#: modules that decide what is tried
MAKERS = ("space.py", "search.py", "shrink.py", "case.py", "worker.py")


def made(n: int, seed: int = 3) -> list[scenario.Scenario]:
    return [space.fresh(Random(f"{seed}/{k}"), f"c{k}") for k in range(n)]


def test_every_scenario_is_one_that_a_file_may_hold() -> None:
    for s in made(300):
        scenario.model.check(s, "x")
        assert not space.refused(s)


def test_changes_are_valid_and_change_something() -> None:
    some = made(40)
    same = 0
    for k in range(300):
        rng = Random(k)
        old = rng.choice(some)
        new = space.mutate(rng, old, rng.choice(some), old.id)
        assert not space.refused(new)
        same += new == old
    assert same < 60


def test_the_same_seed_makes_the_same_scenario_in_every_process() -> None:
    code = (
        "from random import Random; from stallproof.hunt import space; import msgspec;"
        "print([msgspec.json.encode(space.fresh(Random(f'3/{k}'), f'c{k}')) for k in range(20)])"
    )
    out = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env={"PYTHONHASHSEED": seed, "PATH": ""},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(out) == 1


@cache
def defaults(kind: type) -> list[tuple[str, object]]:
    return [(f.name, f.default) for f in msgspec.structs.fields(kind)]


def test_every_field_of_the_format_is_tried() -> None:
    """But for what is not about the engine's own code: forks, and steps, which the hunt sets."""
    seen: set[str] = set()

    def walk(x: object, name: str) -> None:
        if isinstance(x, list):
            for y in x:
                walk(y, name)
        elif hasattr(x, "__struct_fields__"):
            for f, default in defaults(type(x)):
                value = getattr(x, f)
                if value not in (default, []):
                    seen.add(f"{name}.{f}")
                walk(value, f)

    for s in made(1500):
        walk(s, "scenario")
    fields = {
        f"{name}.{f}"
        for name, kind in (
            ("engine", scenario.Engine), ("load", scenario.Load), ("send", scenario.Send),
            ("request", scenario.Request), ("stream", scenario.Stream), ("at", scenario.At),
            ("report", scenario.Report),
        )
        for f in kind.__struct_fields__
    }  # fmt: skip
    assert fields - seen == {"engine.base", "request.stop"}  # the harness does not read `stop`


def test_no_facet_has_a_weight_of_its_own() -> None:
    drawn = [space.draw(Random(k)) for k in range(6000)]
    counts = [sum(f in d for d in drawn) for f in space.FACETS]
    assert max(counts) < 1.25 * min(counts)


@pytest.mark.parametrize("name", MAKERS)
def test_it_knows_no_bug(name: str) -> None:
    """No reading of files, and no name of the test suite's scenarios, the catalogue or a release."""
    text = (HERE / name).read_text()
    catalogue = (ROOT / "tests/scenarios/catalogue.csv").read_text().splitlines()[1:]
    for row in catalogue:
        number = row.partition(",")[0].rpartition("#")[2]
        assert not (number.isdigit() and len(number) > 3 and number in text), number
    for word in ("tests/", "catalogue", "load_all"):
        assert word not in text, word
    assert not re.search(r"\b0\.\d\d\.\d", text)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "open"
        if isinstance(node, ast.Attribute):
            assert node.attr not in ("read_text", "read_bytes", "rglob", "glob"), node.attr


def test_making_scenarios_opens_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*a: object, **k: object) -> None:
        raise AssertionError(f"opens {a}")

    monkeypatch.setattr(builtins, "open", refuse)
    monkeypatch.setattr(Path, "open", refuse)
    some = made(20, seed=9)
    for k in range(20):
        space.mutate(Random(k), some[k], some[0], "x")


def plain(**engine: object) -> scenario.Scenario:
    e = scenario.Engine(blocks=8, block_size=4, max_num_seqs=4, budget=64, role="kv_both", **engine)  # type: ignore[arg-type]
    q = scenario.Request(id="a", prompt=8, max_tokens=4)
    return scenario.Scenario(id="x", title="x", source=["x"], engine=e, request=[q], steps=300)


def test_an_environment_that_breaks_its_side_is_refused() -> None:
    assert space.refused(plain()) == ""

    s = plain()
    s.at = [scenario.At(step=3, do="pause_all")]
    assert "paused" in space.refused(s)
    s.at.append(scenario.At(step=9, do="resume"))
    assert space.refused(s) == ""

    s = plain(policy="priority")
    s.request[0].priority = 2
    s.stream = [scenario.Stream(id="n", prompt=4, priority=1)]
    assert "priority" in space.refused(s)
    s.stream[0].priority = 2
    assert space.refused(s) == ""

    s = plain()
    s.report = [scenario.Report(step=3, kind="recv", id="a")]
    assert "report" in space.refused(s)
    s.request[0].load = scenario.Load(tokens=4)
    assert space.refused(s) == ""
    s.request[0].load.mode = "sync"
    assert "report" in space.refused(s)

    s = plain()
    s.request[0].load = scenario.Load(tokens=7, again=True)
    assert space.refused(s) == ""
    s.request[0].load.tokens = 8
    assert "had again" in space.refused(s)
    s.request[0].load = scenario.Load(tokens=4, again=True, outcome="fail")
    assert "had again" in space.refused(s)

    s = plain()
    s.request[0].send = scenario.Send(outcome="with_recv")
    assert "nobody asked" in space.refused(s)

    s = plain()
    s.stream = [scenario.Stream(id="n", prompt=400)]
    assert "fit" in space.refused(s)

    s = plain()
    s.request[0].lora = 1
    assert "adapters" in space.refused(s)

    s = plain(chunked_prefill=False)
    assert "configuration" in space.refused(s)


def test_what_never_fits_is_named() -> None:
    s = plain()
    assert space.oversize(s) == ""
    s.request[0].max_tokens = 24
    assert space.oversize(s) == ""
    s.request[0].max_tokens = 25
    assert space.oversize(s) == "total"
    s.request[0].prompt = 33
    assert space.oversize(s) == "prompt"
