"""When a finding counts as a catalogued root cause, and when not."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from stallproof import scenario
from stallproof.hunt.causes import Answer
from stallproof.hunt.finding import Finding, size_of

ROOT = Path(__file__).resolve().parents[2]
UP = ["0.23.0", "0.28.0", "0.32.0"]


@pytest.fixture(scope="module")
def judge() -> ModuleType:
    spec = importlib.util.spec_from_file_location("judge", ROOT / "benchmarks" / "hunt_rediscovery.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


X = scenario.load(ROOT / "tests/scenarios/cascade-49674.toml")
TEXT = "R is preempted | given up by: fence"


def found(**engine: object) -> tuple[Finding, scenario.Scenario]:
    e = scenario.Engine(blocks=4, **engine)  # type: ignore[arg-type]
    s = scenario.Scenario(
        id="f", title="f", source=["hunt"], engine=e, request=[scenario.Request(id="a", prompt=4)]
    )
    f = Finding(id="f", property="NoZeroPre", cause=TEXT, text="", scheduler="stock", version="0.28.0",
                size=size_of(s, 3))  # fmt: skip
    return f, s


def answers(*broken: str, cause: str = TEXT) -> dict[str, Answer]:
    return {v: Answer({"NoZeroPre": cause} if v in broken else {}) for v in UP}


def test_it_counts_where_everything_agrees(judge: ModuleType) -> None:
    assert scenario.expected(X.expect.stock, "0.28.0") == "NoZeroPre"
    assert judge.fits(X, answers("0.28.0"), *found(), answers("0.28.0"))


def test_it_does_not_count_otherwise(judge: ModuleType) -> None:
    here = answers("0.28.0")
    assert not judge.fits(X, here, *found(), answers("0.28.0", "0.32.0")), "fails where it is fixed"
    assert not judge.fits(X, here, *found(), answers("0.23.0")), "passes where it is affected"
    assert not judge.fits(X, answers("0.28.0", cause="another"), *found(), here), "another cause"
    assert not judge.fits(X, answers(), *found(), here), "the suite's scenario shows nothing here"
    assert not judge.fits(X, here, *found(lookahead=2), here), "needs what X is not about"
    refused = here | {"0.32.0": Answer(refused=True)}
    assert not judge.fits(X, here, *found(), refused), "cannot be run where it is fixed"


def test_one_finding_stands_for_one_root_cause(judge: ModuleType) -> None:
    assert judge.distinct({"a": [0], "b": [0, 1], "c": [1]}).keys() <= {"a", "b", "c"}
    assert len(judge.distinct({"a": [0], "b": [0, 1], "c": [1]})) == 2
    assert judge.distinct({"a": [0, 1], "b": [0]}) == {"a": 1, "b": 0}


def test_releases_are_named_as_ranges(judge: ModuleType) -> None:
    assert judge.spans(UP, UP) == "0.23.0..0.32.0"
    assert judge.spans(["0.23.0", "0.32.0"], UP) == "0.23.0, 0.32.0"
    assert judge.spans([], UP) == "none"
