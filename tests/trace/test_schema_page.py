"""The schema page is generated; its spec names exist in the specification; a header cannot lose a field."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stallproof.trace import docs
from stallproof.trace import schema as s
from stallproof.trace.fields import EVENTS

ROOT = Path(__file__).parents[2]
SPEC = "\n".join(p.read_text() for p in sorted((ROOT / "spec").glob("*.tla")))


def test_committed_page_is_the_generated_one():
    assert (ROOT / "docs" / "trace-schema.md").read_text() == docs.page(), "run `make trace-docs`"


def names():
    found = {k.spec for k in EVENTS.values()} | {f.spec for k in EVENTS.values() for f in k.fields.values()}
    for cls in docs._RECORDS + docs._PARTS:
        for _, _, meta in docs.fields(cls):
            found.add((meta.extra or {}).get("spec", "") if meta else "")
    return sorted(found - {""})


@pytest.mark.parametrize("name", names())
def test_spec_name_exists(name):
    if name.startswith("s."):
        assert re.search(rf"\b{name[2:]}\s*\|->", SPEC), f"no field {name} in the state of the specification"
    else:
        assert re.search(rf"^\s*{name}(\(.*\))?\s*==|^\s+.*\b{name}\b", SPEC, re.M), (
            f"no {name} in the specification"
        )


@pytest.mark.parametrize("cls", docs._RECORDS + docs._PARTS)
def test_every_field_has_a_text(cls):
    for name, _, meta in docs.fields(cls):
        assert meta is not None, name
        assert meta.description, name


def test_events_are_decoded_by_their_own_type():
    for e in (s.Alloc("a", [1]), s.Pause("all"), s.Turn("a", 1, 2)):
        record = s.Outside(ev=[e])
        assert s.decoder.decode(s.encode(record)) == record
