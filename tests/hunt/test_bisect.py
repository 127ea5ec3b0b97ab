"""Since which release a finding fails: words, ranges, and the releases that CI has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stallproof import engines, scenario, spread
from stallproof.errors import BadInput, Unsupported
from stallproof.hunt import bisect as b
from stallproof.hunt import finding as findings

SCENARIOS = Path(__file__).parents[1] / "scenarios"


def answers(**outcomes: str) -> list[b.Answer]:
    return [b.Answer(version=v.replace("_", ".")[1:], outcome=o) for v, o in outcomes.items()]


W = "NoWedge"


@pytest.mark.parametrize(
    ("outcomes", "ranges", "words"),
    [
        ({"v0_23": "ok", "v0_24": W, "v0_25": W, "v0_26": "ok"}, [("0.24", "0.25")],
         "NoWedge fails since 0.24 (not in 0.23), fixed in 0.26"),
        ({"v0_23": W, "v0_24": W}, [("0.23", "0.24")],
         "NoWedge fails since 0.23 or earlier (the oldest run), still in 0.24 (the newest run)"),
        ({"v0_23": "ok", "v0_24": "ok"}, [], "NoWedge holds on every release from 0.23 to 0.24"),
        ({"v0_23": W, "v0_24": "other", "v0_25": W, "v0_26": "ok"}, [("0.23", "0.23"), ("0.25", "0.25")],
         "NoWedge fails since 0.23 or earlier (the oldest run), fixed in 0.24; and again since 0.25 "
         "(not in 0.24), fixed in 0.26; not one range: it came back 1 time(s)"),
        ({"v0_23": W, "v0_24": b.CANNOT, "v0_25": W}, [("0.23", "0.25")],
         "NoWedge fails since 0.23 or earlier (the oldest run), still in 0.25 (the newest run)"),
        ({"v0_23": b.CANNOT}, [], "no release can run it"),
    ],
)  # fmt: skip
def test_words(outcomes: dict[str, str], ranges: list, words: str) -> None:
    got = answers(**outcomes)
    assert b.ranges(got, W) == ranges
    assert b.sentence(got, W) == words


def test_what_a_run_says() -> None:
    assert b.answer("0.23.0", W, {"violated": {W: "stuck", "NoLeak": "x"}}).outcome == W
    assert b.answer("0.23.0", W, {"violated": {"NoLeak": "x"}}).outcome == b.OTHER
    assert b.answer("0.23.0", W, {"violated": {"NoInversion": "x"}}).outcome == "ok"
    assert b.answer("0.23.0", W, {"error": "no such class\nremedy"}).text == "no such class"


def test_a_scenario_file_must_say_what_to_look_for(tmp_path: Path) -> None:
    assert b.subject(SCENARIOS / "wedge-57841.toml")[1:] == ("NoWedge", "stock", None)
    with pytest.raises(BadInput, match="NoZeroPre and NoStarvation: which one"):
        b.subject(SCENARIOS / "starvation-n1.toml")
    with pytest.raises(BadInput, match="expects no property to fail"):
        b.subject(SCENARIOS / "late-write-s16.toml")
    with pytest.raises(BadInput, match="No such file"):
        b.subject(tmp_path)
    with pytest.raises(Unsupported, match=r"0\.99\.0"):
        b.bisect(scenario.load(SCENARIOS / "wedge-57841.toml"), W, versions=["0.99.0"])


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_on_the_releases_of_ci(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that came and went, with two processes; the finding remembers it, and says so as JSON."""
    s = scenario.load(SCENARIOS / "cascade-49674.toml")
    s.expect.stock = {}
    made = findings.Finding(
        id="NoZeroPre-1", property="NoZeroPre", cause="x", text="x", scheduler="stock", version="0.28.0",
        size=findings.size_of(s, 9),
    )  # fmt: skip
    here = findings.write(tmp_path, made, s)
    assert b.command(here, True, engines.CI, jobs=2) == 1
    out = json.loads(capsys.readouterr().out)
    assert [a["outcome"] for a in out["answers"]] == ["ok", "NoZeroPre", "ok"]
    assert out["ranges"] == [["0.28.0", "0.28.0"]]
    assert out["sentence"] == "NoZeroPre fails since 0.28.0 (not in 0.23.0), fixed in 0.32.0"
    again, _ = findings.read(here)
    assert again.versions == {"0.23.0": "ok", "0.28.0": "NoZeroPre", "0.32.0": "ok"}
    one = b.bisect(scenario.load(here / "scenario.toml"), "NoZeroPre", versions=engines.CI,
                   where=spread.Where(1))  # fmt: skip
    assert one.ranges == [("0.28.0", "0.28.0")], "however it is spread"


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_command_on_a_scenario_file() -> None:
    """Releases by a list; what is refused is one line."""
    wedge = str(SCENARIOS / "wedge-57841.toml")

    def hunt(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "stallproof", "hunt", "--bisect", *args], capture_output=True, text=True
        )

    done = hunt(wedge, "--vllm", "0.28.0,0.32.0")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0].split()[:2] == ["0.28.0", "NoWedge"]
    assert lines[1].split() == ["0.32.0", "ok"]
    assert lines[-1] == "NoWedge fails since 0.28.0 or earlier (the oldest run), fixed in 0.32.0"
    done = hunt(wedge, "--vllm", "0.99.0")
    assert done.returncode == 3
    assert "0.99.0" in done.stderr
    assert "Traceback" not in done.stderr
