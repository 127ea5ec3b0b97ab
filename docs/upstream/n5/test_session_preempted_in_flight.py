# SPDX-License-Identifier: Apache-2.0
"""A session preempted while the last token of its turn is in flight must run its next turn.

For `tests/v1/core/` of vLLM; fails on 0.32.0, passes with the patch beside this file.
"""

import os
from collections import deque

import pytest
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import RequestStatus

from .utils import create_requests, create_scheduler

pytestmark = pytest.mark.cpu_test

MODEL = os.environ.get("VLLM_TEST_DEFER_FREE_MODEL", "facebook/opt-125m")
BATCHES = 2


def _output(scheduler_output):
    req_ids = list(scheduler_output.num_scheduled_tokens)
    return ModelRunnerOutput(
        req_ids=req_ids,
        req_id_to_index={req_id: i for i, req_id in enumerate(req_ids)},
        sampled_token_ids=[[0] for _ in req_ids],
    )


@pytest.mark.parametrize("next_turn_is_queued", [True, False])
def test_session_preempted_with_its_last_token_in_flight(next_turn_is_queued):
    # Three blocks of sixteen tokens, and the null block.
    scheduler = create_scheduler(model=MODEL, async_scheduling=True, num_blocks=4)
    [older] = create_requests(num_requests=1, num_tokens=31, max_tokens=8, req_ids=["older"])
    [session] = create_requests(num_requests=1, num_tokens=15, max_tokens=2, req_ids=["session"])
    [turn] = create_requests(num_requests=1, num_tokens=4, max_tokens=2, req_ids=["session"])
    session.resumable = turn.resumable = True

    scheduler.add_request(older)
    scheduler.add_request(session)
    if next_turn_is_queued:
        scheduler.add_request(turn)
    in_flight = deque()
    was_preempted = False
    tokens = 0
    for _ in range(40):
        scheduled = scheduler.schedule()
        # `older` grows into a third block: the session goes, while its second and last token is computed.
        was_preempted |= session.status == RequestStatus.PREEMPTED
        in_flight.append(scheduled)
        if len(in_flight) == BATCHES:
            done = in_flight.popleft()
            for outputs in scheduler.update_from_output(done, _output(done)).values():
                mine = [out for out in outputs.outputs if out.request_id == "session"]
                tokens += sum(len(out.new_token_ids) for out in mine)
        if older.is_finished() and not next_turn_is_queued:
            scheduler.add_request(turn)
            next_turn_is_queued = True

    assert was_preempted
    assert older.is_finished()
    assert tokens == 4, f"the second turn never ran: {tokens} of 4 tokens, status {session.status.name}"
