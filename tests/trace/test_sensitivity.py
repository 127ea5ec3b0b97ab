"""Every field that is declared as compared is noticed when it is altered, for the right reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallproof.trace import schema as s
from stallproof.trace.fields import EVENTS, NOT_COMPARED, RECORDS, compared, event_types, rules_of
from stallproof.trace.mutate import failures, load, main, mutants, sensitivity, table

from .toy import Toy, trace

REAL = sorted((Path(__file__).parents[1] / "fixtures" / "traces").rglob("*.jsonl"))


def toys():
    """Traces of the toy engine: they hold the events that a stock engine does not produce."""
    return {
        f"{mode}-{seed}": trace(Toy(seed=seed, mode=mode, lost=0.3), calls=50)
        for seed in range(3)
        for mode in ("GateLoads", "DeferFrees")
    }


def test_real_traces():
    assert REAL
    rows, broken = sensitivity({p.name: load(str(p)) for p in REAL}, per_site=6)
    assert not broken
    assert not failures(rows)
    need = [r for r in rows if "." in r.field and compared(r.field, r.kind)]
    assert len({r.field for r in need}) >= 45
    assert sum(r.mutants for r in need) >= 1000


@pytest.mark.slow
def test_toy_traces():
    rows, broken = sensitivity(toys(), per_site=6)
    assert not broken
    assert not failures(rows), failures(rows)
    assert {"quarantine.blocks", "unquarantine.gen", "expire.what", "fence.step"} <= {r.field for r in rows}


def test_the_suite_can_fail(monkeypatch):
    """A checker that does not look at the totals is found out."""
    from stallproof.trace.ledger import Ledger

    monkeypatch.setattr(Ledger, "_end", lambda self, rec: None)
    rows, _ = sensitivity({"t": trace(Toy(seed=1, loads=False), calls=20)}, per_site=2)
    assert {text.split(",")[0] for text in failures(rows)} == {"end.calls", "end.finished"}


def test_a_broken_control_is_reported():
    rows, broken = sensitivity({"bad": trace(Toy(seed=1, bug="doublefree"))})
    assert broken == ["bad"]
    assert rows == []


@pytest.mark.parametrize("tag", sorted(event_types()))
def test_table_has_every_event_field(tag):
    kind = event_types()[tag]
    assert list(EVENTS[tag].fields) == list(kind.__struct_fields__)
    for name, field in EVENTS[tag].fields.items():
        assert field.text
        assert field.rules or f"{tag}.{name}" in NOT_COMPARED, "compared by a rule, or listed with a reason"


def test_table_has_no_unknown_name():
    fields = {f"{tag}.{name}" for tag, t in event_types().items() for name in t.__struct_fields__}
    for tag, t in {"sched": s.Sched, "update": s.Update, "outside": s.Outside, "end": s.End}.items():
        own = {f"{tag}.{name}" for name in t.__struct_fields__ if name not in ("n", "ev")}
        assert own <= set(RECORDS) | set(NOT_COMPARED), own
        fields |= own
    assert set(RECORDS) <= fields
    assert {key.split(":")[0] for key in NOT_COMPARED} <= fields
    assert rules_of("alloc") == ()


def test_mutants_differ_from_their_trace_in_one_place():
    records = trace(Toy(seed=2))
    for m in mutants(records, per_site=2):
        changed = [i for i, (a, b) in enumerate(zip(records, m.records, strict=False)) if a is not b]
        assert changed
        assert changed[0] == m.at or m.kind in ("doubled", "swapped with the next")


def test_command_prints_the_table(capsys):
    small = [str(p) for p in REAL if p.name.startswith("wedge")]
    assert main(small) == 0
    out = capsys.readouterr().out
    assert "(100.0 %)" in out
    assert "not compared" in out
    assert table([])
