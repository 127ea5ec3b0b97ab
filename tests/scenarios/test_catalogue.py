"""Every catalogued bug has a status, and the committed page is the generated one."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallproof import scenario
from stallproof.errors import BadInput
from stallproof.scenario import status

ROOT = Path(__file__).parents[2]
HERE, CONFIGS = ROOT / "tests" / "scenarios", ROOT / "spec" / "configs.toml"


def test_every_bug_has_a_status() -> None:
    table = status.rows(HERE, CONFIGS)
    assert len(table) > 180
    assert all(r.detail for r in table if r.status != "other engine")


def test_committed_page_is_the_generated_one() -> None:
    committed = (ROOT / "docs" / "catalogue-status.md").read_text(encoding="utf-8")
    assert committed == status.page(HERE, CONFIGS), "run make catalogue-status"


def test_distinct_root_causes_that_fail_on_stock() -> None:
    """A floor, so that the collection cannot shrink; the audit's cases share causes and are not counted."""
    failing = [s for s in scenario.load_all(HERE) if set(s.expect.stock.values()) - {"ok"}]
    causes = {s.source[0] for s in failing if not s.source[0].startswith("gate-audit#S")}
    assert len(failing) >= 41
    assert len(causes) >= 33


def test_a_bug_without_a_status_is_refused(tmp_path: Path) -> None:
    (tmp_path / "catalogue.csv").write_text(
        "id,class,title,v0.23,v0.30+,status,why\nvllm#1,live,t,yes,yes,,\n"
    )
    with pytest.raises(BadInput, match=r"catalogue.csv:2: vllm#1 has no status"):
        status.rows(tmp_path, CONFIGS)
