"""The scheduler classes of vllm-ascend 0.23.0, from its wheel, under the guard, on vLLM 0.23 without an NPU.

Its scheduler files import nothing of the NPU but a version helper, which is stood in for.
"""

# ruff: noqa: PT018 - plain asserts, run outside pytest

from __future__ import annotations

import importlib.util
import os
import sys
import types
from pathlib import Path
from typing import Any

from rig import Rig, T

FOLDER = Path(os.environ["STALLPROOF_ASCEND_FILES"])


def load(path: str) -> Any:
    """A module of vllm-ascend by its path in the wheel."""
    for name in ("vllm_ascend", "vllm_ascend.utils", "vllm_ascend.core"):
        if name not in sys.modules:
            module = types.ModuleType(name)
            module.__path__ = []  # type: ignore[attr-defined]
            sys.modules[name] = module
    sys.modules["vllm_ascend.utils"].vllm_version_is = lambda v: v == "0.23.0"  # type: ignore[attr-defined]
    name = path.removesuffix(".py").replace("/", ".")
    spec = importlib.util.spec_from_file_location(name, FOLDER / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def balance() -> Any:
    os.environ["VLLM_ASCEND_BALANCE_SCHEDULING"] = "1"
    return load("vllm_ascend/patch/platform/patch_balance_schedule.py").BalanceScheduler


def _wedge(cls: Any) -> Rig:
    rig = Rig(cls, blocks=40, depth=1, role="kv_both", budget=2048)
    rig.add("H", 30 * 16, defer=1)
    rig.add("L", 22 * 16, tokens=21 * 16)
    rig.add("W", 16)
    return rig.run(100)


def case_balance_scheduling_does_not_wedge(series: str) -> None:
    from vllm.v1.core.sched import scheduler as vllm_scheduler

    import stallproof.vllm as sv

    before = vllm_scheduler.Scheduler
    cls = balance()
    try:
        assert set(_wedge(cls).s.requests) == {"H", "L"}, "vllm-ascend's own class no longer wedges here"
        ours = _wedge(sv.guarded(cls))
        ours.all_done()
        assert ours.fired.get("OneOrder")
        assert ours.s._balance_enabled
        # it replaces the module's attribute; ours is then built on it
        vllm_scheduler.Scheduler = cls
        assert issubclass(sv.Scheduler, cls)
    finally:
        vllm_scheduler.Scheduler = before


def case_balance_scheduling_stays_active(series: str) -> None:
    """Another rank is full: its rule admits nobody here, under the guard too."""
    import stallproof.vllm as sv

    rig = Rig(sv.guarded(balance()), blocks=40, depth=1, role="kv_both")
    rig.s.balance_queue[0][0] = rig.s.max_num_running_reqs
    rig.add("A", 16)
    for _ in range(5):
        rig.step()
    assert not rig.s.running and not rig.of(T.Admit)
    rig.s.balance_queue[0][0] = 0
    rig.run()
    rig.all_done()


def case_balance_copy_gets_the_admission_tests(series: str) -> None:
    """Its copy of ``schedule()`` asks for neither full fit nor the reservation of rule R: the guard does."""
    import stallproof.vllm as sv

    rig = Rig(sv.guarded(balance()), blocks=24, depth=1, role="kv_both", chunk_cap=32, budget=64)
    for i in range(6):
        rig.add(f"r{i}", 100, 8, **({"tokens": 64} if i % 2 else {}))
    rig.run(300)
    rig.all_done()
    assert rig.fired.get("FullFit") and rig.fired.get("RuleR")


def case_recompute_scheduler_runs(series: str) -> None:
    """Preempts by freeing inline on consumers: the loads, the order and the completions are still guarded."""
    import stallproof.vllm as sv

    load("vllm_ascend/patch/platform/patch_async_swa_kv_lifetime.py")
    module = load("vllm_ascend/core/recompute_scheduler.py")
    for cls, depth in ((module.RecomputeScheduler, 1), (module.AsyncRecomputeScheduler, 2)):
        for role in ("kv_consumer", "kv_both"):
            rig = Rig(sv.guarded(cls), blocks=24, depth=depth, role=role, record=False)
            for i in range(8):
                rig.add(f"r{i}", 60, 30, **({"tokens": 48} if i % 2 else {}))
            rig.run(600)
            assert rig.free == 24, (role, rig.free)
            assert not rig.s.running and not rig.s.stallproof_stats()["faults"]


def case_unknown_reports_under_recompute(series: str) -> None:
    import stallproof.vllm as sv

    load("vllm_ascend/patch/platform/patch_async_swa_kv_lifetime.py")
    module = load("vllm_ascend/core/recompute_scheduler.py")
    rig = Rig(sv.guarded(module.RecomputeScheduler), blocks=24, depth=1, role="kv_both", record=False)
    rig.add("A", 40, 8)
    rig.step(recv=["nobody", "A"])
    rig.run()
    rig.all_done()
    assert rig.s.stallproof_stats()["ignored"] == {"recv": 2}
