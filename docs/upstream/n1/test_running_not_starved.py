# SPDX-License-Identifier: Apache-2.0
"""A running request that waits for a deferred free must not be overtaken for ever.

For `tests/v1/core/` of vLLM; fails on 0.30.0 to 0.33.0, passes with the patch beside this file.
"""

import os
from collections import deque

import pytest
from vllm.v1.outputs import ModelRunnerOutput

from .utils import create_requests, create_scheduler

pytestmark = pytest.mark.cpu_test

MODEL = os.environ.get("VLLM_TEST_DEFER_FREE_MODEL", "facebook/opt-125m")
USABLE_BLOCKS = 4


def _output(scheduler, scheduler_output):
    """What the worker will answer: a token for each request whose prompt is complete with this step."""
    req_ids = list(scheduler_output.num_scheduled_tokens)
    requests = [scheduler.requests[req_id] for req_id in req_ids]
    return ModelRunnerOutput(
        req_ids=req_ids,
        req_id_to_index={req_id: i for i, req_id in enumerate(req_ids)},
        sampled_token_ids=[[0] if r.num_computed_tokens >= r.num_tokens else [] for r in requests],
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_running_request_is_not_starved_by_newcomers(policy):
    scheduler = create_scheduler(
        model=MODEL,
        async_scheduling=True,
        scheduling_policy=policy,
        num_blocks=USABLE_BLOCKS + 1,  # and the null block
        max_num_batched_tokens=44,
        long_prefill_token_threshold=32,
    )
    scheduler.defer_block_free = True

    # The oldest request: its second chunk needs two blocks more.
    [oldest] = create_requests(num_requests=1, num_tokens=64, max_tokens=1, req_ids=["oldest"])
    scheduler.add_request(oldest)

    in_flight = deque()
    served = 0
    for step in range(200):
        # There is always a newcomer that needs one block and one step.
        while len(scheduler.waiting) < 8:
            name = f"newcomer-{step}-{len(scheduler.waiting)}"
            [request] = create_requests(num_requests=1, num_tokens=12, max_tokens=1, req_ids=[name])
            request.priority = 1
            request.arrival_time = oldest.arrival_time + 1 + step
            scheduler.add_request(request)
        scheduled = scheduler.schedule()
        in_flight.append((scheduled, _output(scheduler, scheduled)))
        if len(in_flight) == 2:  # two batches in flight
            done, output = in_flight.popleft()
            scheduler.update_from_output(done, output)
            served += sum(req_id.startswith("newcomer") for req_id in done.num_scheduled_tokens)
        if oldest.is_finished():
            break

    assert oldest.is_finished(), f"refused for {step} steps while {served} newer requests were served"
