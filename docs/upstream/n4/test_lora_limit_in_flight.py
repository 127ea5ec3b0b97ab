# SPDX-License-Identifier: Apache-2.0
"""The adapters of requests whose step is in flight count against `max_loras`, too.

For `tests/v1/core/` of vLLM; fails on 0.32.0, passes with the patch beside this file.
"""

import os
from collections import deque
from types import SimpleNamespace

import pytest
from vllm.lora.request import LoRARequest
from vllm.v1.outputs import ModelRunnerOutput

from .utils import create_requests, create_scheduler

pytestmark = pytest.mark.cpu_test

MODEL = os.environ.get("VLLM_TEST_DEFER_FREE_MODEL", "facebook/opt-125m")
STAGES = 2


def _output(scheduler, scheduler_output):
    """A token for each request whose prompt is complete with this step."""
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


def test_max_loras_counts_requests_in_flight():
    scheduler = create_scheduler(
        model=MODEL,
        max_num_batched_tokens=64,
        long_prefill_token_threshold=16,
        pipeline_parallel_size=STAGES,
    )
    scheduler.lora_config = SimpleNamespace(max_loras=1)

    # The first one decodes, the second one, of another adapter, has a prompt of several chunks.
    [first] = create_requests(num_requests=1, num_tokens=16, max_tokens=8, req_ids=["first"])
    [second] = create_requests(num_requests=1, num_tokens=60, max_tokens=1, req_ids=["second"])
    for number, request in enumerate((first, second), 1):
        request.lora_request = LoRARequest(f"adapter{number}", number, "none")
        scheduler.add_request(request)

    in_flight = deque()
    for _ in range(40):
        scheduled = scheduler.schedule()
        in_flight.append((scheduled, _output(scheduler, scheduled)))
        if len(in_flight) == STAGES:
            scheduler.update_from_output(*in_flight.popleft())
        if first.is_finished() and second.is_finished():
            break

    assert first.is_finished()
    assert second.is_finished()
