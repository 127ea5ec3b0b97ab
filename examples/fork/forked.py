"""A fork of vLLM's scheduler that lost a fence when it was re-synced with upstream.

The lost line is the kind of thing that really happens (vllm-rbln#903): blocks of a request that a step in
flight may still write go straight back to the pool. All of the fork's functional tests still pass.
"""

from vllm.v1.core.sched.async_scheduler import AsyncScheduler


class ForkedScheduler(AsyncScheduler):
    """Stock, but for one method."""

    def _free_request_blocks(self, request):
        self.kv_cache_manager.free(request)  # upstream: only if no step in flight names the request
