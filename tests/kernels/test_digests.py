"""Sampled checksums: what is taken and compared, on the host, on the simulated device, in the real engine."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from stallproof.errors import BadInput
from stallproof.kernels.digests import EVICTED, HIT, Digests
from stallproof.kernels.ledger import Finding, StepPlan

VERSION = "0.32.0"
DRIVER = Path(__file__).with_name("engine_driver.py")


def test_taken_when_full_compared_when_hit_and_before_reuse() -> None:
    d = Digests(1)
    d.entered(4, "a", "k4")
    assert d.plan(1, [], [4], []) == ((4,), {})
    assert d.plan(2, [("b", 4)], [], []) == ((), {4: HIT})
    assert d.plan(3, [("c", 4)], [], []) == ((), {4: HIT})
    d.left(4, "k4")
    assert d.plan(4, [], [4, 4], []) == ((), {4: EVICTED}), "handed out twice in one call"
    assert d.plan(5, [("d", 4)], [], []) == ((), {})
    assert (d.taken, d.compared, d.skipped) == (1, 3, 0)


def test_evicted_handed_out_and_full_again_in_one_call() -> None:
    d = Digests(1)
    d.entered(4, "a", "k4")
    d.plan(1, [], [], [])
    d.left(4, "k4")
    d.entered(4, "b", "k9")
    assert d.plan(2, [], [4], []) == ((4,), {4: EVICTED})
    assert "request a" in d.explain(Finding(EVICTED, 4, 1, 2, 2)).line()
    assert d.plan(3, [("c", 4)], [], []) == ((), {4: HIT})
    assert "request b" in d.explain(Finding(HIT, 4, 1, 2, 3)).line()


def test_a_hit_in_the_call_that_completes_the_block_has_nothing_to_compare() -> None:
    d = Digests(1)
    d.entered(4, "a", "k4")
    assert d.plan(1, [("b", 4)], [], []) == ((4,), {})


def test_a_block_evicted_for_a_load_is_not_compared() -> None:
    """The load's agent may write before the step's comparison runs."""
    d = Digests(1)
    d.entered(4, "a", "k4")
    d.plan(1, [], [], [])
    d.left(4, "k4")
    assert d.plan(2, [], [4], [4]) == ((), {})
    assert d.skipped == 1


def test_a_block_taken_out_of_the_cache_may_change() -> None:
    """A failed load is computed again in place: its blocks leave the cache first."""
    d = Digests(1)
    d.entered(4, "a", "k4")
    d.plan(1, [], [], [])
    d.left(4, "k4")
    assert d.plan(2, [], [], []) == ((), {})
    d.entered(4, "a", "k4")
    assert d.plan(3, [], [], []) == ((4,), {})
    d.reset()
    assert d.plan(4, [("b", 4)], [], []) == ((), {})


def test_every_nth() -> None:
    d = Digests(3)
    for b in range(9):
        d.entered(b, "a", b)
    assert d.plan(1, [], [], [])[0] == (2, 5, 8)


def test_a_difference_names_property_request_block_and_steps() -> None:
    d = Digests(1)
    d.entered(4, "a", "k4")
    d.plan(7, [], [], [])
    d.plan(9, [("b", 4)], [], [])
    report = d.explain(Finding(HIT, 4, -1, 2, 9, "segment 1"))
    assert report.property == "PrefixValid"
    assert report.line() == (
        "PrefixValid: step 9 (hit), request a, block 4: checksum ffffffff expected, checksum 00000002 found; "
        "segment 1, full since step 7, changed before it was hit by b in step 9"
    )


@pytest.mark.parametrize("value", ["x", "-1", "1.5"])
def test_a_sample_rate_that_is_no_number_is_one_clear_error(value: str) -> None:
    pytest.importorskip("msgspec")
    from stallproof.kernels.engine import SanitizeSettings

    with pytest.raises(BadInput, match="STALLPROOF_SANITIZE_CHECKSUM"):
        SanitizeSettings.from_environment({"STALLPROOF_SANITIZE_CHECKSUM": value})
    env = {"STALLPROOF_SANITIZE": "check", "STALLPROOF_SANITIZE_CHECKSUM": "8"}
    assert SanitizeSettings.from_environment(env).checksum == 8
    assert SanitizeSettings.from_environment({}).checksum == 0


@pytest.mark.parametrize("seed", range(20))
def test_on_the_simulated_device_only_writes_in_between_are_found(seed: int) -> None:
    """A block is written late; the comparison is ordered behind that, and ahead of the reuse."""
    torch = pytest.importorskip("torch")
    from stallproof.kernels.sanitizer import Sanitizer
    from stallproof.kernels.segments import from_caches
    from stallproof.kernels.simulated import SimulatedDevice

    rng = random.Random(seed)
    device = SimulatedDevice(rng.randrange)
    kv = torch.zeros(2, 8, 64, dtype=torch.int32)
    sanitizer = Sanitizer(device, 8, cache=from_caches([kv], 8), fill=1)
    full = rng.sample(range(8), 3)
    stray = rng.choice([None, *full])
    reused = rng.choice(full)

    def write(blocks: list[int], value: int) -> None:
        device.launch(device.compute(), lambda: kv[:, blocks].fill_(value))

    sanitizer.begin(StepPlan(1, take=tuple(full)))
    write(full, 3)
    sanitizer.end(1)
    device.advance(rng.randrange(4))
    if stray is not None:
        kept = device.event()
        kept.record()
        other = device.side()
        device.wait(other, kept)
        device.launch(other, lambda: kv[1, stray, 5].add_(1))
        done = device.event()
        done.record(other)
        device.wait(device.compute(), done)
    sanitizer.begin(StepPlan(2, verify={b: EVICTED if b == reused else HIT for b in full}, fill=(reused,)))
    write([reused], 9)
    sanitizer.end(2)
    sanitizer.begin(StepPlan(3, verify={reused: HIT}))  # evicted: no longer watched
    sanitizer.end(3)
    device.finish()
    found = sanitizer.collect()
    assert [(f.block, f.step) for f in found] == ([] if stray is None else [(stray, 2)])
    assert all(f.at == (EVICTED if f.block == reused else HIT) and f.job == "segment 0[1]" for f in found)


@pytest.fixture(scope="module")
def phases(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    engines = pytest.importorskip("stallproof.engines")
    if not engines.is_up(VERSION):
        pytest.skip(f"vLLM {VERSION} is not installed; make engines")
    out = tmp_path_factory.mktemp("sums") / "out.json"
    asked = {
        "scheduler": "stallproof",
        "plan": {"requests": 40, "abort_every": 5, "prefix_caching": True, "shared_prefix": 64},
        "phases": [
            {"mode": ""},
            {"mode": "check", "checksum": 1},
            {"mode": "poison", "checksum": 3},
            {"mode": "check", "checksum": 1, "corrupt": True},
        ],
        "out": str(out),
    }
    run = engines.get(VERSION).run(
        [str(DRIVER), json.dumps(asked)], capture_output=True, text=True, timeout=900
    )
    assert out.exists(), run.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(out.read_text())["phases"]
    return found


@pytest.mark.engine
@pytest.mark.slow
class TestEngine:
    @pytest.mark.parametrize("phase", [1, 2])
    def test_a_clean_run_reports_nothing(self, phases, phase: int) -> None:
        off, on = phases[0], phases[phase]
        taken, compared, _ = on["sums"]
        assert on["reports"] == []
        assert taken > 10
        assert compared > 10
        both = set(off["tokens"]) & set(on["tokens"])
        assert both
        assert all(off["tokens"][r] == on["tokens"][r] for r in both)

    def test_one_bit_in_one_block_is_reported(self, phases) -> None:
        block, request = phases[3]["corrupted"]
        reports = phases[3]["reports"]
        assert reports
        for r in reports:
            assert (r["property"], r["block"], r["request"]) == ("PrefixValid", block, request)
            assert r["at"] in (HIT, EVICTED)
            assert f"step {r['step']}" in r["line"]
