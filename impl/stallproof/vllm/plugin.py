"""Guard whatever scheduler class the configuration names, without ``--scheduler-cls``.

vLLM loads this through its ``vllm.general_plugins`` entry point in every engine process. It does nothing
unless ``STALLPROOF_GUARD=1``. Then the class that the configuration resolves to, one that a platform has put
there included (vllm-ascend's recompute and dynamic-batch schedulers), is wrapped by ``guarded``.
"""

from __future__ import annotations

import functools
import os
from typing import Any


def register() -> None:
    """Entry point. Idempotent."""
    if os.environ.get("STALLPROOF_GUARD", "").strip().lower() not in ("1", "true", "yes", "on"):
        return
    from vllm.config import SchedulerConfig

    before = SchedulerConfig.get_scheduler_cls
    if getattr(before, "_sp_wrapped", False):
        return

    @functools.wraps(before)
    def get_scheduler_cls(self: Any) -> Any:
        from stallproof.vllm import guarded

        return guarded(before(self))

    get_scheduler_cls._sp_wrapped = True  # type: ignore[attr-defined]
    SchedulerConfig.get_scheduler_cls = get_scheduler_cls
