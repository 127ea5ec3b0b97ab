"""Each clause of the engine contract names a monitor that the trace checker really has."""

import re
from pathlib import Path

import stallproof.trace
from stallproof.check import tools

TEXT = (tools.spec_dir() / "EngineContract.tla").read_text()
SOURCES = "\n".join(p.read_text() for p in Path(stallproof.trace.__file__).parent.glob("*.py"))


def test_every_clause_has_a_monitor_or_says_why_not():
    names = re.findall(r"Monitor: (\w+)", TEXT)
    assert len(names) >= 15
    for name in set(names) - {"none"}:
        assert f'"{name}"' in SOURCES, f"the trace checker has no rule {name}"


def test_every_clause_is_checked_on_the_model_engine():
    from stallproof.check import config

    clauses = set(re.findall(r"^(\w+) ==", TEXT, re.M)) - {"Owned", "Held"}
    kept = next(c for c in config.load() if c.name == "contract-kept")
    assert clauses == {*kept.invariants, *kept.properties}
