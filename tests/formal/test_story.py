"""Stories: what the twin says about a call is what TLC's states show."""

import subprocess
import sys

import pytest

from stallproof.check import story
from stallproof.check.config import load
from stallproof.errors import StallproofError
from stallproof_model import constants, graph
from stallproof_model.explore import path

GAPS = {c.name: c for c in load() if c.kind == "gap"}


@pytest.mark.parametrize("name", [n for n, c in GAPS.items() if c.has_twin])
def test_every_transition_of_a_gap_has_words(name):
    c = GAPS[name].c
    g = graph(c)
    for i in range(min(len(g.nodes), 60)):
        steps = path(g, i)
        if len(steps) > 1:
            (_, _, s), (action, _, t) = steps[-2], steps[-1]
            lines = story.describe(c, action, s, t)
            assert lines
            assert all(lines)
        assert len(story.pool(c, steps[-1][2])) == c.B + 2


def test_a_transition_that_the_model_does_not_know_is_an_error():
    g = graph(constants())
    with pytest.raises(StallproofError, match="disagree"):
        story.describe(g.c, "Schedule", g.nodes[1], g.nodes[0])


def test_unknown_gap():
    p = subprocess.run(
        [sys.executable, "-m", "stallproof", "explain", "no-such-gap"], capture_output=True, text=True
    )
    assert p.returncode == 2
    assert "no gap" in p.stderr
    assert "Traceback" not in p.stderr


@pytest.mark.slow
def test_the_ping_pong_is_told():
    told = story.tell(GAPS["ping-pong"])
    text = story.text(told)
    assert told.loop_to
    assert "takes the blocks of the parked" in text
    assert "for ever" in text
    assert "Lateral = commit" in text


@pytest.mark.slow
def test_a_story_without_a_twin():
    text = story.text(story.tell(GAPS["s2-step-being-built"]))
    assert "InFlightSafe is violated" in text
