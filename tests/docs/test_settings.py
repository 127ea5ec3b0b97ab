"""Every setting that the package reads from the environment is on the operator's page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: read by our own tools and tests only, never by an engine in production
TOOLS = {
    "STALLPROOF_CACHE",  # where engines are kept
    "STALLPROOF_COMPLETE",  # click's own, for shell completion
    "STALLPROOF_CPU_ASYNC",  # engine runs on CPU
    "STALLPROOF_KERNELS_IR",  # a kernel lane
    "STALLPROOF_OVERLAY",  # engines made of one release's sources over another's build
    "STALLPROOF_RESULT",  # engine runs
}


def read_in(text: str) -> set[str]:
    """Names of variables, without the leading underscore of click's."""
    return {name.rstrip("_") for name in re.findall(r"STALLPROOF_[A-Z_]+", text)}


def settings() -> set[str]:
    found: set[str] = set()
    for path in (ROOT / "impl" / "stallproof").rglob("*.py"):
        found |= read_in(path.read_text())
    return {n for n in found - TOOLS if not n.startswith("STALLPROOF_STALL")}


@pytest.mark.parametrize("name", sorted(settings()))
def test_is_on_the_operators_page(name: str) -> None:
    assert name in read_in((ROOT / "docs" / "operator.md").read_text())


def test_the_pages_settings_exist() -> None:
    table = (ROOT / "docs" / "operator.md").read_text().split("## Settings")[1].split("## ")[0]
    unknown = read_in(table) - settings() - {"STALLPROOF_STALL"}
    assert not unknown, "a row for a setting that nothing reads"


def test_the_search_sees_a_new_setting() -> None:
    assert read_in('environ.get("STALLPROOF_NEW_THING", "")') == {"STALLPROOF_NEW_THING"}
