"""A finding on disk is read back as it was written; what is no finding is refused with a reason."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stallproof import scenario
from stallproof.errors import BadInput, Unsupported
from stallproof.hunt import finding
from stallproof.scenario.writing import dumps

ROOT = Path(__file__).resolve().parents[2]
ALL = scenario.load_all(ROOT / "tests" / "scenarios")


@pytest.mark.parametrize("s", ALL, ids=lambda s: s.id)
def test_a_scenario_is_read_back_as_written(s: scenario.Scenario, tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text(dumps(s))
    again = scenario.load(file)
    again.path = s.path
    assert again == s


def made() -> finding.Finding:
    return finding.Finding(
        id="NoWedge-123456", property="NoWedge", cause="refuse", text="stuck", scheduler="stock",
        version="0.28.0", size=finding.size_of(ALL[0], 7),
    )  # fmt: skip


def test_a_finding_is_read_back(tmp_path: Path) -> None:
    here = finding.write(tmp_path, made(), ALL[0])
    for name in ("", "finding.json", "scenario.toml"):
        found, s = finding.read(here / name)
        assert found == made()
        assert (s.id, s.engine, s.request) == (ALL[0].id, ALL[0].engine, ALL[0].request)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, BadInput),
        (b"", BadInput),
        (b"[]", BadInput),
        (b'{"schema": 1}', BadInput),
        (b"\xff", BadInput),
        (b'{"schema": "stallproof-finding/1", "id": "x"}', BadInput),
        (b'{"schema": "stallproof-finding/9"}', Unsupported),
    ],
)
def test_what_is_no_finding_is_refused(content: bytes | None, error: type, tmp_path: Path) -> None:
    here = finding.write(tmp_path, made(), ALL[0])
    if content is None:
        (here / "finding.json").unlink()
    else:
        (here / "finding.json").write_bytes(content)
    with pytest.raises(error, match=r"finding\.json"):
        finding.read(here)


def test_size_counts_requests_and_said_values() -> None:
    s = msgspec.convert(
        {
            "id": "x", "title": "x", "source": [], "engine": {"blocks": 5},
            "request": [{"id": "a", "prompt": 4, "count": 3}], "stream": [{"id": "s", "prompt": 1}],
        },
        scenario.Scenario,
    )  # fmt: skip
    assert finding.size_of(s, 9) == finding.Size(requests=4, blocks=5, steps=9, fields=6)
