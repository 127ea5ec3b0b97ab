"""Device fences in the real engine on CPU: the mark decides, a trace records it, a lie is caught."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stallproof.errors import BadInput

VERSION = "0.32.0"
DRIVER = Path(__file__).with_name("engine_driver.py")
REQUESTS = 30

PHASES: dict[str, dict[str, Any]] = {
    "outputs": {"mode": "check"},
    "outputs, device behind": {"mode": "check", "behind": 1},
    "fences, device behind": {"mode": "check", "behind": 1, "fences": True},
    "fences, device ahead": {"mode": "check", "adversary": 5, "fences": True},
    "fences, both": {"mode": "check", "adversary": 7, "behind": 1, "fences": True},
    "a lying fence": {"mode": "check", "behind": 1, "fences": True, "lie": True},
    "fences alone": {"mode": "", "fences": True},
}
HONEST = [n for n, p in PHASES.items() if p.get("fences") and not p.get("lie")]


@pytest.fixture(scope="module")
def phases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    engines = pytest.importorskip("stallproof.engines")
    if not engines.is_up(VERSION):
        pytest.skip(f"vLLM {VERSION} is not installed; make engines")
    tmp = tmp_path_factory.mktemp("fences")
    asked = {
        "scheduler": "stallproof",
        "plan": {"requests": REQUESTS, "abort_every": 2, "abort_after": 3, "blocks": 16},
        "phases": [
            {**p, **({"trace": str(tmp / f"{i}.jsonl")} if p.get("fences") else {})}
            for i, p in enumerate(PHASES.values())
        ],
        "out": str(tmp / "out.json"),
    }
    run = engines.get(VERSION).run(
        [str(DRIVER), json.dumps(asked)], capture_output=True, text=True, timeout=900
    )
    assert (tmp / "out.json").exists(), run.stderr[-3000:]
    return dict(zip(PHASES, json.loads((tmp / "out.json").read_text())["phases"], strict=True))


def marks(path: str) -> set[int]:
    """How far the mark was ahead of the processed step when an output was processed."""
    from stallproof.trace import schema as T

    records = [T.decoder.decode(line) for line in Path(path).read_bytes().splitlines()]
    return {r.done - r.step for r in records if isinstance(r, T.Update)}


@pytest.mark.engine
@pytest.mark.slow
class TestEngine:
    def test_outputs_alone_are_enough_where_the_device_is_not_behind(self, phases) -> None:
        assert phases["outputs"]["reports"] == []

    def test_outputs_alone_are_not_enough_where_it_is(self, phases) -> None:
        reports = phases["outputs, device behind"]["reports"]
        assert reports
        assert {r["property"] for r in reports} == {"InFlightSafe"}

    @pytest.mark.parametrize("name", HONEST)
    def test_the_mark_is_enough(self, phases, name: str) -> None:
        on, off = phases[name], phases["outputs"]
        assert on["fenced"]
        assert on["reports"] == []
        assert on["finished"] + on["aborted"] == REQUESTS
        assert on["free"] == off["free"]
        both = set(on["tokens"]) & set(off["tokens"])
        assert len(both) >= REQUESTS // 3
        assert all(on["tokens"][r] == off["tokens"][r] for r in both)

    @pytest.mark.parametrize("name", HONEST)
    def test_the_trace_conforms_and_has_the_mark(self, phases, name: str) -> None:
        from stallproof.trace import checker

        path = phases[name]["trace"]
        found = checker.check([path])
        assert not found.violations, found.violations[:1]
        ahead = marks(path)
        if "behind" in PHASES[name]:
            assert min(ahead) < 0, "never later than the output"
        if "behind" not in PHASES[name] or "adversary" in PHASES[name]:
            assert max(ahead) > 0, "never earlier than the output"

    def test_a_fence_that_lies_is_caught(self, phases) -> None:
        lying = phases["a lying fence"]
        assert {r["property"] for r in lying["reports"]} == {"InFlightSafe"}
        assert all("was not device done" in r["line"] for r in lying["reports"])


def test_off_unless_asked() -> None:
    pytest.importorskip("msgspec")
    from stallproof.kernels.device_done import wanted

    assert not wanted({})
    assert not wanted({"STALLPROOF_DEVICE_FENCES": "off"})
    assert wanted({"STALLPROOF_DEVICE_FENCES": "1"})
    with pytest.raises(BadInput, match="STALLPROOF_DEVICE_FENCES='maybe'"):
        wanted({"STALLPROOF_DEVICE_FENCES": "maybe"})


@pytest.mark.engine
@pytest.mark.slow
def test_as_a_plugin_over_the_usual_processes(tmp_path: Path) -> None:
    """The step's number and the mark cross the processes; nothing but the environment asks for it."""
    engines = pytest.importorskip("stallproof.engines")
    if not engines.is_up(VERSION):
        pytest.skip(f"vLLM {VERSION} is not installed; make engines")
    from stallproof.trace import checker

    trace, log = tmp_path / "run.jsonl", tmp_path / "log"
    script = str(DRIVER.with_name("engine_processes.py"))
    with log.open("w") as out:  # not a pipe: the engine's processes would keep it open
        engines.get(VERSION).run(
            [script, "stallproof.vllm.recording.GuardedAsyncScheduler"],
            extra_env={"STALLPROOF_DEVICE_FENCES": "1", "STALLPROOF_TRACE": str(trace)},
            stdout=out, stderr=out, timeout=300,
        )  # fmt: skip
    assert "TOKENS {'first': 5, 'second': 30}" in log.read_text(), log.read_text()[-3000:]
    found = checker.check([str(trace)])
    assert not found.violations, found.violations[:1]
    assert min(marks(str(trace))) >= 0, "on CPU a step is over before its output"
