"""Scheduler classes of the shape that forks ship: vLLM's own, with one invariant lost on the way.

They stand in for platform schedulers that cannot be imported here, and show what :func:`guarded` does over a
base class that is not stock. ``guarded(base)`` must keep the promise over each of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def base(depth: int) -> type:
    """The stock class for ``depth`` batches in flight."""
    name = ("async_scheduler", "AsyncScheduler") if depth == 2 else ("scheduler", "Scheduler")
    return getattr(import_module(f"vllm.v1.core.sched.{name[0]}"), name[1])


def lost_fence(stock: type) -> type:
    """A copied schedule() that was synchronised again without the deferred frees (vllm-rbln#903)."""

    def _free_request_blocks(self: Any, request: Any) -> None:
        self.kv_cache_manager.free(request)

    return type("LostFence", (stock,), {"_free_request_blocks": _free_request_blocks})


def no_preemption(stock: type) -> type:
    """Preemption switched off on prefill nodes (vllm-ascend#14233), by the engine's own test, from 0.30."""

    def _request_blocks_can_be_freed(self: Any, request: Any) -> bool:
        return request.is_finished()

    return type("NoPreemption", (stock,), {"_request_blocks_can_be_freed": _request_blocks_can_be_freed})


def one_queue(stock: type) -> type:
    """A copied loop that never looks at the second queue of skipped requests (vllm-ascend#10699), to 0.30."""

    def schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        from vllm.v1.core.sched.request_queue import create_request_queue

        unseen, self.skipped_waiting = self.skipped_waiting, create_request_queue(self.policy)
        try:
            return stock.schedule(self, *args, **kwargs)  # type: ignore[attr-defined]
        finally:
            for request in list(self.skipped_waiting):
                unseen.add_request(request)
            self.skipped_waiting = unseen

    return type("OneQueue", (stock,), {"schedule": schedule})


def no_reservation(stock: type) -> type:
    """A copied loop from before load admission left room for those before it (vllm#44560).

    Like vllm-ascend 0.23's balance scheduling, it asks for neither the reservation nor full fit.
    """

    def schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        manager = self.kv_cache_manager
        before = manager.allocate_slots

        def allocate_slots(*a: Any, **k: Any) -> Any:
            for test in ("reserved_blocks", "full_sequence_must_fit"):
                k.pop(test, None)
            return before(*a, **k)

        hooked = manager.__dict__.get("allocate_slots")
        manager.allocate_slots = allocate_slots
        try:
            return stock.schedule(self, *args, **kwargs)  # type: ignore[attr-defined]
        finally:
            if hooked is None:
                del manager.allocate_slots
            else:
                manager.allocate_slots = hooked

    return type("NoReservation", (stock,), {"schedule": schedule})


VARIANTS = {
    "lost_fence": lost_fence,
    "no_preemption": no_preemption,
    "no_reservation": no_reservation,
    "one_queue": one_queue,
}
_made: dict[tuple[str, int], type] = {}


def variant(name: str, depth: int) -> type:
    """The variant ``name`` over the stock class; the same class object every time."""
    key = (name, depth)
    if key not in _made:
        _made[key] = VARIANTS[name](base(depth))
    return _made[key]
