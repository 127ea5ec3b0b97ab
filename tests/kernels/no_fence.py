"""A scheduler class that is broken on purpose: vLLM's own without its fence. For ``--scheduler-cls``."""

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler


class NoFence(AsyncScheduler):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.defer_block_free = False
