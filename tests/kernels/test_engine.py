"""The sanitizer in the real engine on CPU: a scheduler without a gate is caught, ours is clean."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stallproof.errors import BadInput
from stallproof.kernels.tags import LOADING, epoch_of

pytestmark = [pytest.mark.engine, pytest.mark.slow]

VERSION = "0.32.0"
DRIVER = Path(__file__).with_name("engine_driver.py")


@pytest.fixture(scope="session")
def engine():
    engines = pytest.importorskip("stallproof.engines")
    if not engines.is_up(VERSION):
        pytest.skip(f"vLLM {VERSION} is not installed; make engines")
    return engines.get(VERSION)


def drive(engine: Any, tmp: Path, **asked: Any) -> list[dict[str, Any]]:
    out = tmp / "out.json"
    run = engine.run(
        [str(DRIVER), json.dumps({**asked, "out": str(out)})], capture_output=True, text=True, timeout=900
    )
    assert out.exists(), run.stderr[-3000:]
    phases: list[dict[str, Any]] = json.loads(out.read_text())["phases"]
    return phases


@pytest.fixture(scope="session")
def stock(engine, tmp_path_factory):
    """One request fills the pool, is aborted in flight; the next one's load gets its blocks."""
    plan = {
        "requests": 2, "blocks": 8, "prompt": [200, 200], "max_tokens": [40, 40], "per_step": 1,
        "abort_every": 1, "abort_after": 5, "max_model_len": 256,
    }  # fmt: skip
    phases = [
        {"mode": "check", "no_fence": True},
        {"mode": "check"},
        {"mode": ""},
        {"mode": "check", "no_fence": True},
    ]
    return drive(engine, tmp_path_factory.mktemp("stock"), scheduler="stock", plan=plan, phases=phases)


@pytest.mark.parametrize("phase", [0, 3])
def test_a_scheduler_without_gate_or_fence_is_caught(stock, phase: int) -> None:
    reports = stock[phase]["reports"]
    assert reports
    assert {r["property"] for r in reports} == {"InFlightSafe"}
    for r in reports:
        assert "q000" in r["request"], "the request whose step was in flight"
        assert "q001" in r["job"], "the load that got the block"
        assert 1 <= r["block"] <= 8
        assert r["step"] > 0
        assert epoch_of(r["seen"]) > epoch_of(r["expected"]) > 0
        assert r["seen"] & 3 == LOADING
        for part in (r["request"], f"block {r['block']}", f"step {r['step']}", f"epoch {r['seen'] >> 2}"):
            assert part in r["line"]


def test_the_engines_own_fence_is_clean(stock) -> None:
    assert stock[1]["reports"] == []
    assert stock[1]["checks"] > 0


def test_detached_is_gone(stock) -> None:
    assert stock[2]["plans"] == 0


REQUESTS = 200


@pytest.fixture(scope="session")
def ours(engine, tmp_path_factory):
    plan = {"requests": REQUESTS, "abort_every": 5, "prefix_caching": True, "shared_prefix": 64}
    phases = [
        {"mode": ""},
        {"mode": "check"},
        {"mode": "poison", "pattern": "finite"},
        {"mode": "poison", "pattern": "nan"},
        {"mode": "poison", "pattern": "finite", "poison_in_use": True},
        {"mode": "poison", "pattern": "nan", "poison_in_use": True},
    ]
    return drive(engine, tmp_path_factory.mktemp("ours"), scheduler="stallproof", plan=plan, phases=phases)


@pytest.mark.parametrize("phase", [1, 2])
def test_ours_is_clean_and_tokens_are_unchanged(ours, phase: int) -> None:
    off, on = ours[0], ours[phase]
    assert on["reports"] == []
    assert on["checks"] >= 2 * on["steps"] * 0.5
    assert on["finished"] + on["aborted"] == REQUESTS
    both = set(off["tokens"]) & set(on["tokens"])
    assert len(both) >= REQUESTS * 3 // 4
    assert all(off["tokens"][r] == on["tokens"][r] for r in both)
    assert off["free"] == on["free"]
    assert on["mode_used"] == on["mode"]
    assert bool(on["filled"]) == (on["mode"] == "poison")


def test_nan_spreads_through_slots_that_nobody_wrote(ours) -> None:
    """Why ``finite`` is the default: this kernel weighs unwritten slots with 0, and 0 * NaN is NaN."""
    off, on = ours[0], ours[3]
    assert on["reports"] == []
    assert any(off["tokens"][r] != on["tokens"][r] for r in set(off["tokens"]) & set(on["tokens"]))


@pytest.mark.parametrize("phase", [4, 5])
def test_control_poison_that_is_read_changes_tokens(ours, phase: int) -> None:
    off, on = ours[0], ours[phase]
    assert any(off["tokens"][r] != on["tokens"][r] for r in set(off["tokens"]) & set(on["tokens"]))


PLUGIN = """
import os, sys, logging
import stallproof.kernels.engine as E
E.plugin()
from vllm.v1.engine.core import EngineCore
print(getattr(EngineCore.step, "_stallproof", False))
"""


@pytest.mark.parametrize(("value", "hooked"), [("", "False"), ("off", "False"), ("check", "True")])
def test_plugin_touches_nothing_unless_asked(engine, value: str, hooked: str) -> None:
    run = engine.run(["-c", PLUGIN], extra_env={"STALLPROOF_SANITIZE": value}, capture_output=True, text=True)
    assert run.stdout.split()[-1:] == [hooked], run.stderr[-2000:]


@pytest.mark.parametrize(
    ("scheduler", "caught"),
    [("no_fence.NoFence", True), ("stallproof.vllm.AsyncScheduler", False)],
)
def test_as_a_plugin_over_the_usual_processes(engine, tmp_path: Path, scheduler: str, caught: bool) -> None:
    log = tmp_path / "log"
    with log.open("w") as out:  # not a pipe: the engine's processes would keep it open
        engine.run(
            [str(DRIVER.with_name("engine_processes.py")), scheduler],
            extra_env={
                "STALLPROOF_SANITIZE": "check",
                "PYTHONPATH": os.pathsep.join([engine.env()["PYTHONPATH"], str(DRIVER.parent)]),
            },
            stdout=out, stderr=out, timeout=300,
        )  # fmt: skip
    text = log.read_text()
    assert "TOKENS {'first': 5, 'second': 30}" in text, text[-3000:]
    assert ("stallproof sanitizer: InFlightSafe: step" in text) == caught


def test_no_poison_under_a_connector_that_stores_silently() -> None:
    from stallproof.kernels.engine import silent_store

    class Config:
        kv_role = "kv_both"

    class Vllm:
        kv_transfer_config = Config()

    class Offload:
        _vllm_config = Vllm()

    assert "Offload may store" in silent_store(Offload())
    assert silent_store(None) == ""
    Config.kv_role = "kv_consumer"
    assert silent_store(Offload()) == ""
    Config.kv_role, Offload.stallproof_reports_stores = "kv_both", True
    assert silent_store(Offload()) == ""


def test_unknown_mode_is_one_clear_error() -> None:
    pytest.importorskip("msgspec")
    from stallproof.kernels.engine import SanitizeSettings

    with pytest.raises(BadInput, match="STALLPROOF_SANITIZE='loud'"):
        SanitizeSettings.from_environment({"STALLPROOF_SANITIZE": "loud"})
    with pytest.raises(BadInput, match="PATTERN"):
        SanitizeSettings.from_environment({"STALLPROOF_SANITIZE_PATTERN": "pink"})
    assert SanitizeSettings.from_environment({}).mode == ""


def test_off_imports_nothing() -> None:
    code = (
        "import sys, stallproof.kernels.engine as e; e.plugin(); "
        "print('torch' in sys.modules, 'vllm' in sys.modules)"
    )
    env = {k: v for k, v in os.environ.items() if k != "STALLPROOF_SANITIZE"}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "False"]
