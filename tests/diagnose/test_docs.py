"""The documents say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from stallproof.diagnose import knowledge, parse, reader, rules

ROOT = Path(__file__).parents[2]
CODE = ROOT / "impl" / "stallproof" / "diagnose"


def test_rule_table_is_in_the_documentation() -> None:
    assert "\n".join(rules.table()) in (ROOT / "docs" / "diagnose.md").read_text()


def test_every_rule_is_listed_and_used() -> None:
    text = "\n".join(p.read_text() for p in CODE.glob("*.py") if p.name != "rules.py")
    for name in rules.RULES:
        assert f'"{name}"' in text or name.startswith("stack-"), name
    states = set(re.findall(r'\("(\w+)", "\w+", "', (CODE / "evidence.py").read_text()))
    assert {f"stack-{s}" for s in states} == {n for n in rules.RULES if n.startswith("stack-")}


def test_every_mechanism_is_complete() -> None:
    for m in knowledge.MECHANISMS.values():
        assert m.layer in ("client", "router", "transport", "scheduler", "worker or device")
        assert m.now
        assert m.why
    keys = {k for t in knowledge._T for k in t.keys.split()}
    assert keys <= set(knowledge.MECHANISMS)


def test_every_wording_passes_the_filter() -> None:
    """A line with a known wording and a vLLM file tag is a candidate line, whatever the wording."""
    assert len(parse.TABLE) > 60
    for _, literal, _, _, _ in parse.TABLE:
        line = b"(EngineCore pid=1) INFO 07-14 10:00:00 [core.py:1] " + literal + b"\n"
        assert list(reader.scan(iter([line]), reader.Control()))
