"""A control: the blocks of one aborted request are forgotten."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from stallproof.vllm.recording import recorded


class _LeakOnce(AsyncScheduler):
    aborts = 0

    def _free_blocks(self, request: Any) -> None:
        if (
            request.status.name == "FINISHED_ABORTED"
            and self.kv_cache_manager.get_block_ids(request.request_id)[0]
        ):
            self.aborts += 1
            if self.aborts == 3:
                del self.requests[request.request_id]
                return
        super()._free_blocks(request)


LeakOnce = recorded(_LeakOnce)
