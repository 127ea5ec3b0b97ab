"""Write a scenario as a TOML file that :func:`stallproof.scenario.load` reads back as the same scenario."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from stallproof.scenario.model import Scenario


def dumps(scenario: Scenario) -> str:
    """The text of a scenario file; fields that have their default are left out.

    Needs the package ``tomli-w`` (extra ``hunt``).
    """
    import tomli_w

    raw: dict[str, Any] = msgspec.to_builtins(scenario)
    raw.pop("path", None)
    if not raw.get("expect"):
        raw.pop("expect", None)
    return tomli_w.dumps(raw, multiline_strings=True)


def dump(scenario: Scenario, path: Path | str) -> None:
    """Write the file at ``path``."""
    Path(path).write_text(dumps(scenario), encoding="utf-8")
