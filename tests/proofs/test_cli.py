"""``stallproof prove``: table, JSON, list, assumptions, page, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stallproof.cli import main
from stallproof.errors import Exit

SOME = ["--only", "blocks.gate/Start/*"]


def call(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["prove", *args])
    out = capsys.readouterr()
    return int(stop.value.code or 0), out.out, out.err


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, *SOME, "--json")
    doc = json.loads(out)
    assert code == Exit.OK
    assert doc["ok"] is True
    assert all(r["status"] == r["expected"] for r in doc["results"])
    assert any(r["fails_if"] for r in doc["results"])


def test_table_says_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, *SOME)
    assert code == Exit.OK
    assert "blocks.gate" in out
    assert "all as expected" in out


def test_a_failure_is_a_finding(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from stallproof_proofs import runner

    monkeypatch.setattr(runner, "query", lambda cond, timeout_ms=0: ("unknown", "timeout", frozenset()))
    code, out, _ = call(capsys, *SOME)
    assert code == Exit.FINDING
    assert "FAIL" in out
    assert "unknown" in out


def test_list_and_assumptions(capsys: pytest.CaptureFixture[str]) -> None:
    assert "blocks.gate/Start/InFlightSafe.start" in call(capsys, "--list")[1]
    assert "owned_only" in call(capsys, "--assumptions")[1]
    assert json.loads(call(capsys, "--assumptions", "--json")[1])


def test_a_pattern_needs_no_theory(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "--list", "--only", "*Bypass")
    assert code == 0
    theories = {line.split()[1].split("/")[0] for line in out.splitlines()}
    assert theories == {"starvation", "starvation.dropped", "starvation.shared"}


def test_an_unknown_name_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "--only", "nope")
    assert code == Exit.BAD_INPUT
    assert "nope" in err
    assert "Traceback" not in err


def test_renewing_says_what_it_did(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from stallproof_proofs import hints as store

    monkeypatch.setattr(store, "HINTS", tmp_path / "hints.json")
    store.hints.cache_clear()
    code, out, _ = call(capsys, "--renew-hints", *SOME)
    assert code == Exit.OK
    assert "renewed" in out
    assert "0 known" in out
    code, out, _ = call(capsys, "--renew-hints", *SOME)
    assert out.startswith("0 renewed")
    store.hints.cache_clear()
