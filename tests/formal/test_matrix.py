"""The gap matrix: generated, complete, one switch each."""

from pathlib import Path

import pytest

from stallproof.check import matrix
from stallproof.check.config import load

ROOT = Path(__file__).resolve().parents[2]
GAPS = [c for c in load() if c.kind == "gap"]


def test_at_least_thirty_causes_of_public_bugs():
    assert matrix.causes(load()) >= 30


@pytest.mark.parametrize("cfg", GAPS, ids=lambda c: c.name)
def test_gap_and_fix_differ_in_one_switch(cfg):
    assert len(cfg.fixed) == 1
    assert matrix.setting(cfg) != dict(cfg.fixed)


def test_the_page_is_up_to_date():
    page = ROOT / "docs" / "gap-matrix.md"
    if not page.is_file():
        pytest.skip("not in a checkout")
    assert page.read_text() == matrix.markdown(), "run make artifact"


@pytest.mark.parametrize(
    ("bug", "text"),
    [
        ("vllm#1", "[vllm#1](https://github.com/vllm-project/vllm/issues/1)"),
        ("vllm-ascend#2", "[vllm-ascend#2](https://github.com/vllm-project/vllm-ascend/issues/2)"),
        ("a/b#3", "[a/b#3](https://github.com/a/b/issues/3)"),
        ("own-finding-N1", "own-finding-N1"),
    ],
)
def test_links(bug, text):
    assert matrix.link(bug) == text
