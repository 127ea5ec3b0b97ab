"""TLC's counterexamples become traces: the blocks drawn are those that the specification counts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from stallproof.check import config, story
from stallproof.check.convert import Converter
from stallproof.cli.report import counterexample
from stallproof.errors import BadInput
from stallproof.report import names, tracepage
from stallproof.trace import reader
from stallproof.trace import schema as s
from stallproof_model.sched import Init, Next
from stallproof_model.state import State, at

GAPS = [c for c in config.load() if c.kind == "gap" and c.has_twin]
FREE, FENCED = names.PLACE["free"], names.PLACE["fenced"]


def drawn(recs: list[s.Record]) -> tracepage.Drawn:
    return tracepage.draw(("gap", i, rec) for i, rec in enumerate(recs, 1))


def walk(cfg: config.Config, seed: int, steps: int = 40) -> list[tuple[str, State]]:
    rng = random.Random(seed)
    taken = [("", Init(cfg.c))]
    for _ in range(steps):
        nexts = [(name, t) for name, _, t in Next(cfg.c, taken[-1][1]) if t != taken[-1][1]]
        if not nexts:
            break
        taken.append(rng.choice(nexts))
    return taken


@pytest.mark.parametrize("cfg", GAPS, ids=lambda c: c.name)
def test_walks_of_the_model_are_drawn_block_by_block(cfg: config.Config) -> None:
    """Random behaviours of every gap's own constants: free, fenced and held blocks are the model's counts."""
    for seed in range(4):
        made = Converter(cfg.c, walk(cfg, seed), "model")
        recs, states = made.records(), [state for _, state in made.walk]
        t = drawn(recs).timeline
        for reached, state in zip(made.reached, states, strict=True):
            if reached == 1:
                continue  # the header alone: nobody has arrived yet
            free, fenced = t.counts[FREE][reached - 2], t.counts[FENCED][reached - 2]
            assert (free, fenced) == (state.free, sum(n for _, n in state.dfq))
        held = {t.lanes[lane]: len(blocks) for lane, blocks in t.places.held.items()}
        for r in range(1, cfg.c.N + 1):
            assert held.get(story.who(r), 0) == at(states[-1].own, r)
        assert sum(column[-1] for column in t.counts) == cfg.c.B


def test_a_counterexample_can_be_saved_and_read_as_a_trace(tmp_path: Path) -> None:
    recs = Converter(GAPS[0].c, walk(GAPS[0], 1), "model", loop_to=2).records()
    path = tmp_path / "walk.jsonl"
    path.write_bytes(b"".join(s.encode(r) + b"\n" for r in recs))
    assert len(list(reader.records(path))) == len(recs)
    assert [r.text for r in recs if isinstance(r, s.Note)] == ["from here it repeats for ever"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gap", "rule", "shows"),
    [
        ("zero-progress-cascade", "NoZeroPre", "preempt"),
        ("ping-pong", "Termination", "evict"),
        ("n1-starvation", "NoStarvation", "refuse"),
        ("head-of-line-wedge", "NoWedge", "load"),
        ("abort-frees-a-load", "XferSafe", "finish"),
    ],
)
def test_tlc_s_own_counterexample(gap: str, rule: str, shows: str) -> None:
    d, marks = counterexample(gap, ())
    assert marks[0].rule == rule
    assert d.timeline.events[shows] > 0
    page = tracepage.page(d, marks)
    assert page.verdict == f"{rule} violated"


@pytest.mark.parametrize(
    ("gap", "traces", "what"),
    [(None, (), "no trace named"), ("x", (), "no gap 'x'"), ("x", ("t",), "at once")],
)
def test_wrong_use_is_one_error(gap: str | None, traces: tuple[str, ...], what: str) -> None:
    with pytest.raises(BadInput, match=what):
        counterexample(gap, traces)
