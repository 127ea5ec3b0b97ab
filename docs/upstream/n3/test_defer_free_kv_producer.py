# SPDX-License-Identifier: Apache-2.0
"""A connector loads into blocks whatever its role is called: frees must wait for steps in flight.

For `tests/v1/core/` of vLLM; fails on 0.32.0 for `kv_producer`, passes with the patch beside this file.
"""

import os
from unittest.mock import PropertyMock, patch

import pytest
from vllm.config import VllmConfig
from vllm.v1.request import RequestStatus

from .utils import create_requests, create_scheduler, mock_kv

pytestmark = pytest.mark.cpu_test

MODEL = os.environ.get("VLLM_TEST_DEFER_FREE_MODEL", "facebook/opt-125m")


@pytest.mark.parametrize("kv_role", ["kv_both", "kv_consumer", "kv_producer"])
def test_load_does_not_get_blocks_of_a_step_in_flight(kv_role):
    # Two batches in flight, which a machine without a GPU would not configure.
    with patch.object(VllmConfig, "max_concurrent_batches", new_callable=PropertyMock, return_value=2):
        scheduler = create_scheduler(
            model=MODEL,
            async_scheduling=True,
            use_kv_connector=mock_kv(matched_tokens=48, is_async=True),
            kv_role=kv_role,
            num_blocks=6,  # five and the null block
        )
    # Nothing to load for the first one; it is aborted while its step writes to its four blocks.
    with patch.object(scheduler.connector, "get_num_new_matched_tokens", return_value=(0, False)):
        [first, second] = create_requests(num_requests=2, num_tokens=60, max_tokens=4)
        scheduler.add_request(first)
        scheduler.schedule()
    written = set(scheduler.kv_cache_manager.get_block_ids(first.request_id)[0])
    scheduler.finish_requests(first.request_id, RequestStatus.FINISHED_ABORTED)

    # The connector is told at once where to put what it loads for the second one.
    scheduler.add_request(second)
    scheduler.schedule()
    loaded = set()
    if second.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
        loaded = set(scheduler.kv_cache_manager.get_block_ids(second.request_id)[0])
    both = written & loaded
    assert not both, f"a load writes to blocks {sorted(both)} while a step in flight may write to them"
