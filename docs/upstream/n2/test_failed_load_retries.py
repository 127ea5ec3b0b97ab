# SPDX-License-Identifier: Apache-2.0
"""A request whose asynchronous KV load failed must be able to try again.

For `tests/v1/core/` of vLLM; fails on 0.23.0 to 0.33.0, passes with the patch beside this file.
"""

import os

import pytest
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import RequestStatus

from .utils import create_requests, create_scheduler, mock_kv

pytestmark = pytest.mark.cpu_test

MODEL = os.environ.get("VLLM_TEST_DEFER_FREE_MODEL", "facebook/opt-125m")
LOADED_TOKENS = 48  # three blocks of sixteen


def _output(scheduler, scheduler_output, kv_output):
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
        kv_connector_output=kv_output,
    )


@pytest.mark.parametrize(
    ("num_requests", "usable_blocks"),
    [
        (1, 6),  # alone in an empty pool
        (2, 8),  # the second one still holds its blocks
    ],
)
def test_request_whose_load_failed_is_scheduled_again(num_requests, usable_blocks):
    scheduler = create_scheduler(
        model=MODEL,
        use_kv_connector=mock_kv(matched_tokens=LOADED_TOKENS, is_async=True),
        num_blocks=usable_blocks + 1,  # and the null block
    )
    scheduler.recompute_kv_load_failures = True

    # Each needs four blocks, three of which are loaded.
    requests = create_requests(num_requests=num_requests, num_tokens=60, max_tokens=1)
    for request in requests:
        scheduler.add_request(request)

    reported = set()
    for _ in range(50):
        scheduler_output = scheduler.schedule()
        # The first load of each request fails as a whole, the others succeed.
        loading = {
            r.request_id
            for r in requests
            if r.status == RequestStatus.WAITING_FOR_REMOTE_KVS
            and r.request_id not in scheduler.finished_recving_kv_req_ids
        }
        invalid = set()
        for req_id in loading - reported:
            invalid.update(scheduler.kv_cache_manager.get_block_ids(req_id)[0])
        reported |= loading
        kv_output = KVConnectorOutput(finished_recving=loading, invalid_block_ids=invalid)
        scheduler.update_from_output(scheduler_output, _output(scheduler, scheduler_output, kv_output))
        if all(r.is_finished() for r in requests):
            break

    waiting = [r.request_id for r in requests if not r.is_finished()]
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    assert not waiting, f"{waiting} never scheduled again with {free} of {usable_blocks} blocks free"
