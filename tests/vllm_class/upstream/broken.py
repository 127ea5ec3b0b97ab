"""Controls: schedulers with one fault each, which the comparison must tell from vLLM's own."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler


class Leaky:
    """Keeps the blocks of a request that has finished."""

    def _free_blocks(self, request: Any) -> None:
        del self.requests[request.request_id]  # type: ignore[attr-defined]


class Deaf:
    """Takes no notice of a load that failed."""

    def _handle_invalid_blocks(self, invalid_block_ids: Any, *args: Any, **kwargs: Any) -> Any:
        return super()._handle_invalid_blocks(set(), *args, **kwargs)  # type: ignore[misc]


_FAULTS: dict[str, tuple[type, ...]] = {
    "leaky": (Leaky,), "deaf": (Deaf,), "leaky-deaf": (Leaky, Deaf),
}  # fmt: skip


def pair(name: str) -> tuple[type, type]:
    """The synchronous and the asynchronous class with fault ``name``."""
    faults = _FAULTS[name]
    return (
        type("Scheduler", (*faults, Scheduler), {}),
        type("AsyncScheduler", (*faults, AsyncScheduler), {}),
    )
