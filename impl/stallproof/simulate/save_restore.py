"""What saving an evicted holder's blocks would bring, under the same scheduler and the same decisions.

A what-if on the device's time, not a feature of the scheduler: whoever gives its blocks up before its end
has them saved, as many leading ones as the store has room for, and pays per block moved instead of computing
their tokens again. The scheduler knows nothing of it: restored tokens still count in the budget of a step,
and a restore is never ahead of the request's turn. A block is charged to the device's time twice, out and in,
though a copy engine would move it beside the model's work: both make the figure a pessimistic one.
"""

from __future__ import annotations

from typing import Any

from stallproof.simulate.worker import Latency


class SaveRestore:
    """Stands in for the :class:`~stallproof.simulate.worker.Latency` of ``simulation`` (``latency``).

    ``capacity``: blocks that the store keeps; ``cost``: seconds per block and direction.
    """

    def __init__(self, simulation: Any, capacity: int, cost: float) -> None:
        self.base: Latency = simulation.latency
        self.idle = self.base.idle
        self.capacity, self.cost, self.size = capacity, cost, simulation.plan.block_size
        self.kept: dict[str, int] = {}  # request -> blocks
        self.saved = self.restored = self.dropped = self.restored_tokens = self.peak = 0
        self._tokens = self._moved = 0  # of the step being built
        self._live = simulation.live
        scheduler, manager = simulation.sched, simulation.sched.kv_cache_manager
        schedule, free = scheduler.schedule, manager.free

        def watched_free(request: Any, *args: Any, **kwargs: Any) -> Any:
            self._released(request)
            return free(request, *args, **kwargs)

        def watched_schedule(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            for rid, n in output.num_scheduled_tokens.items():
                if rid in self.kept:
                    self._scheduled(rid, self._live[rid].num_computed_tokens, n)
            return output

        manager.free, scheduler.schedule = watched_free, watched_schedule

    def _released(self, request: Any) -> None:
        rid = request.request_id
        self.kept.pop(rid, None)
        if request.is_finished():
            return
        blocks = request.num_computed_tokens // self.size
        n = min(blocks, self.capacity - sum(self.kept.values()))
        self.dropped += blocks - max(n, 0)
        if n > 0:
            self.kept[rid] = n
            self.saved += n
            self._moved += n
            self.peak = max(self.peak, sum(self.kept.values()))

    def _scheduled(self, rid: str, end: int, n: int) -> None:
        """``n`` tokens up to ``end`` run in this step; those that were saved come back instead."""
        upto = self.kept[rid] * self.size
        tokens = max(0, min(end, upto) - (end - n))
        self._tokens += tokens
        self.restored_tokens += tokens
        blocks = -(-tokens // self.size)
        self._moved += blocks
        self.restored += blocks
        if end >= upto:
            del self.kept[rid]

    def step(self, prefill: int, decode: int, moved: int = 0) -> float:
        """Seconds of a step in which the restored tokens are moved, not computed."""
        tokens, blocks = self._tokens, self._moved
        self._tokens = self._moved = 0
        seconds = self.base.step(max(prefill - tokens, 0), decode, moved)
        if tokens and not seconds:
            seconds = self.base.base
        return seconds + blocks * self.cost

    def summary(self) -> dict[str, int]:
        """Blocks saved, brought back and not saved (no room); tokens that were moved, not computed again.

        The scheduler's own ``recomputed_tokens`` stay as they are: it schedules restored tokens, too.
        """
        return {
            "saved_blocks": self.saved,
            "restored_blocks": self.restored,
            "unsaved_blocks": self.dropped,
            "restored_tokens": self.restored_tokens,
            "store_peak_blocks": self.peak,
        }
