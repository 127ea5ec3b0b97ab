"""TLC's counterexamples of ``Blocks.tla`` as traces: the trace checker finds the same fault, by its name."""

from __future__ import annotations

import pytest

from stallproof.check import config, story
from stallproof.check.convert_blocks import BlocksConverter
from stallproof.trace import schema as s

from .hand import judge

pytestmark = pytest.mark.slow

GAPS = {c.name: c for c in config.load() if c.kind == "gap"}


def walk(gap: str) -> list[tuple[str, dict]]:
    return [(t.action, t.values["s"]) for t in story.refute(GAPS[gap]).trace]


@pytest.mark.parametrize(
    ("gap", "rule"),
    [
        ("s4-fence-of-request", "InFlightSafe"),
        ("s17-window-pruned-early", "InFlightSafe"),
        ("expiry-frees-a-load", "XferSafe"),
        ("store-of-preempted", "StoreSafe"),
        ("pruned-block-freed-twice", "NoDoubleFree"),
        ("s9-idle-fence", "NoLeak"),
        ("shared-block-freed-early", "Conservation"),  # the pool holds what a request still holds: OneOwner
    ],
)
def test_counterexamples_are_found_by_the_same_name(gap: str, rule: str) -> None:
    cfg, states = GAPS[gap], walk(gap)
    assert rule == cfg.refutes or (cfg.refutes, rule) == ("OneOwner", "Conservation")
    records = BlocksConverter(cfg.constants, states, gap).records()
    verdict = judge(records, layers=("ledger",))
    assert verdict.violations[0].rule == rule
    # the control: without the last action nothing is wrong yet
    records = BlocksConverter(cfg.constants, states[:-1], gap).records()
    assert not judge(records, layers=("ledger",)).violations


def test_every_record_carries_the_specifications_counts() -> None:
    made = BlocksConverter(GAPS["first-rank-completes"].constants, walk("first-rank-completes"), "x")
    records = made.records()
    for reached, (_, state) in zip(made.reached, made.walk, strict=True):
        last = records[reached - 1]
        if not state["on"] and not isinstance(last, s.Header):
            assert last.free == len(state["pool"])
            assert sorted(last.refs.values()) == sorted(state["ref"].values())
