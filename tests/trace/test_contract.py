"""Each clause of the engine contract: named in the specification, exercised, broken by rejected traces."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from stallproof.trace.checker import Checker, Options
from stallproof.trace.contract import CLAUSES, UNMONITORED, Exercise, broken
from stallproof.trace.mutate import judge, load
from stallproof.trace.reader import Batch

from .test_rules import CASES
from .toy import Toy, trace

ROOT = Path(__file__).parents[2]
REAL = sorted((ROOT / "tests" / "fixtures" / "traces").rglob("*.jsonl"))
SPEC = (ROOT / "spec" / "EngineContract.tla").read_text()


@cache
def fixtures():
    return {p.name: load(str(p)) for p in REAL}


def named():
    """Clause -> rules, as the specification's comments and operators have them."""
    found = {}
    for rules, rest in re.findall(r"\(\* Monitor: ([\w, ]+?)\. (.*?)(?=\(\* Monitor:|\Z)", SPEC, re.S):
        operator = re.search(r"^(\w+) ==?", rest, re.M)
        if rules != "none":
            found[operator[1] if operator else rules] = tuple(rules.split(", "))
    return found


def test_the_table_is_the_specification():
    assert named() == {name: clause.rules for name, clause in CLAUSES.items()}
    unmonitored = re.findall(r"\(\* Monitor: none\. ([^:(]+)", SPEC)
    assert [x.strip() for x in unmonitored] == list(UNMONITORED)


@pytest.mark.parametrize("clause", CLAUSES)
def test_a_recorded_trace_that_breaks_it_is_rejected_by_name(clause):
    """The trace comes from a real scheduler; without the alteration it conforms."""
    seen = 0
    for name, records in fixtures().items():
        if judge(records, ("ledger",)):
            continue
        for bad in broken(clause, records):
            rule = judge(bad, ("ledger",))
            assert rule in CLAUSES[clause].rules, f"{name}: {rule or 'conforms'}"
            seen += 1
    assert seen, "no recorded trace has this clause at stake"


@pytest.mark.parametrize("clause", CLAUSES)
def test_its_monitor_fires_on_a_trace_of_a_few_lines(clause):
    assert set(CLAUSES[clause].rules) & {rule for rule, _ in CASES.values()}


def test_exercises_are_counted():
    """On the toy engine every clause it can exercise is; an empty engine exercises nothing."""
    total = {}
    for seed in range(6):
        toy = trace(Toy(seed=seed, mode="GateLoads", lost=0.3), calls=50)
        checker = Checker(Options())
        exercise = Exercise(checker.ledger)
        checker.run([Batch("toy", 1, toy, 0)])
        for k, n in exercise.counts.items():
            total[k] = total.get(k, 0) + n
    assert {k for k, n in total.items() if not n} <= {"PrefixValid", "Limits", "LoadsOnlyNewBlocks"}
    checker = Checker(Options())
    exercise = Exercise(checker.ledger)
    checker.run([Batch("toy", 1, toy[:1], 0)])
    assert not any(exercise.counts.values())
    assert set(exercise.counts) == set(CLAUSES)
