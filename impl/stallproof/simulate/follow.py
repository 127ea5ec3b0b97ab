"""Fidelity: play a recorded engine run back on the same release's scheduler and compare every call.

The arrivals, completions, aborts and pauses of the recording are given to a new scheduler in the recorded
order; the scheduler decides, a recorder listens, and each of its records must be the recorded one, up to the
names of blocks. Nothing is simulated here but the engine's loop, in the recorded order.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)

from stallproof.errors import BadInput
from stallproof.simulate.engine import STOP, model_output, sampled_tokens
from stallproof.simulate.script import Item, Renaming, Script, difference, endings, read
from stallproof.trace import schema as T

#: settings of our class that a header tells
_OPTIONS = {
    "STALLPROOF_PATIENCE": "patience",
    "STALLPROOF_LOAD_DEADLINE_S": "deadline",
    "STALLPROOF_DEFERRAL_DEADLINE_S": "deferral",
}


class FollowConnector(KVConnectorBase_V1, SupportsHMA):
    """Answers as the recorded connector did."""

    stallproof_new_blocks_only = True
    script: Script  #: set by :class:`Follower`
    at = 0

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self.script.answer(request.request_id, FollowConnector.at)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        return

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        record, job = self.script.items[FollowConnector.at].record, f"send-{request.request_id}"
        return any(type(e) is T.Store and e.job == job for e in record.ev), None

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, block_ids)

    # There is no worker half.
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        return

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        return


@dataclass(slots=True)
class Contents:
    """A request for :func:`stallproof.simulate.engine.make_request`; contents are named by the script."""

    script: Script
    rid: str
    at: float
    prompt: int
    output: int
    prio: int

    def block_hashes(self, first: int, last: int, block_size: int) -> list[bytes]:
        named = (self.script.name((self.rid, i)) for i in range(first, last))
        return [f"{r}/{i}".encode() for r, i in named]


def _config(script: Script) -> Any:
    from stallproof.scenario import Engine

    c, header = script.header.config, script.header
    return Engine(
        blocks=c.pool, block_size=c.block_size, max_num_seqs=c.max_num_seqs or 256,
        budget=max(c.max_num_batched_tokens, c.max_num_seqs) or 8192,
        budget_tokens=c.max_num_batched_tokens, chunk_cap=c.chunk_cap, policy=c.policy, depth=c.depth,
        prefix_caching=c.prefix_caching, full_fit=c.full_fit, lookahead=c.lookahead,
        max_model_len=c.max_model_len or max(
            (e.prompt + e.max_tokens for i in script.items for e in i.record.ev if type(e) is T.Add),
            default=1,
        ) + 1,
        role=header.engine.role or "",  # type: ignore[arg-type]
    )  # fmt: skip


class Follower:
    """One recording on one new scheduler."""

    def __init__(self, script: Script) -> None:
        from stallproof.harness.config import make_scheduler, scheduler_class
        from stallproof.vllm.describe import config_of
        from stallproof.vllm.recording import attach, recorded

        # What a refused request would have shared is not recorded, so neither is what it needed.
        self.script, self.names = script, Renaming(needs=not script.header.config.prefix_caching)
        self.now = 0.0
        self.steps: dict[int, tuple[Any, list[list[int]]]] = {}
        header = script.header
        kind = "stallproof" if header.rules else "stock"
        if header.rules:
            for name, key in _OPTIONS.items():
                os.environ[name] = str(getattr(header.config, key))
        transfer = None
        if header.engine.connectors:
            transfer = {
                "kv_connector": "FollowConnector", "kv_connector_module_path": "stallproof.simulate.follow",
                "kv_role": header.engine.role or "kv_both", "kv_load_failure_policy": "recompute",
            }  # fmt: skip
        FollowConnector.script, FollowConnector.at = script, 0
        cls = recorded(scheduler_class(kind, header.config.depth))
        self.sched = make_scheduler(cls, _config(script), transfer)
        if hasattr(self.sched, "_sp_now"):
            self.sched._sp_now = lambda: self.now
        have, want = config_of(self.sched), header.config
        unknown = {"slots": -1, "max_model_len": 0}  # of recordings from before these fields
        for f in want.__struct_fields__:
            if getattr(have, f) != getattr(want, f) and getattr(want, f) != unknown.get(f):
                raise BadInput(
                    f"the recorded engine has {f} = {getattr(want, f)}, this one {getattr(have, f)}",
                    path=script.path, line=1, remedy="such a recording cannot be followed; report it",
                )  # fmt: skip
        self.made: list[T.Record] = []
        attach(self.sched, self.made.append, clock=lambda: self.now)

    def run(self) -> dict[str, Any]:
        """Counts of what was compared, and the first difference with its line."""
        counts = {"sched": 0, "update": 0, "outside": 0, "events": 0}
        for at, item in enumerate(self.script.items):
            FollowConnector.at, self.now = at, item.record.ts
            self.made.clear()
            self._play(item)
            made = [r for r in self.made if not isinstance(r, T.Note)]
            kind = str(type(item.record).__struct_config__.tag)
            what = (
                difference(item.record, made[0], self.names)
                if len(made) == 1
                else f"{len(made)} records were made where one was"
            )
            if what:
                return {"counts": counts, "line": item.line, "difference": f"{kind}: {what}"}
            counts[kind] += 1
            counts["events"] += len(item.record.ev)
        return {"counts": counts, "line": 0, "difference": ""}

    # ------------------------------------------------------------ the recorded outside world

    def _play(self, item: Item) -> None:
        record = item.record
        if isinstance(record, T.Sched):
            output = self.sched.schedule()
            live = self.sched.requests
            self.steps[record.step] = output, sampled_tokens(output, live)
        elif isinstance(record, T.Update):
            self._process(item, record)
        else:
            self._outside(item)

    def _outside(self, item: Item) -> None:
        from vllm.v1.request import RequestStatus

        from stallproof.simulate.engine import make_request

        size = self.script.header.config.block_size if self.script.header.config.prefix_caching else 0
        for e in item.record.ev:
            if type(e) is T.Add:
                job = Contents(self.script, e.r, e.arr, e.prompt, e.max_tokens, e.prio)
                self.sched.add_request(make_request(job, size))
            elif type(e) is T.Finish and e.reason == "abort":
                self.sched.finish_requests(e.r, RequestStatus.FINISHED_ABORTED)
            elif type(e) is T.Pause:
                from vllm.v1.core.sched.interface import PauseState

                state = {"none": "UNPAUSED", "new": "PAUSED_NEW", "all": "PAUSED_ALL"}[e.state]
                self.sched.set_pause_state(PauseState[state])
            elif type(e) is T.Reset:
                self.sched.reset_prefix_cache()

    def _process(self, item: Item, record: T.Update) -> None:
        if record.step not in self.steps:
            raise BadInput(
                f"step {record.step} is processed and was not dispatched",
                path=self.script.path,
                line=item.line,
            )
        output, sampled = self.steps.pop(record.step)
        stopped = {r for r, how in endings(item) if how == "stop"}
        for rid, tokens in zip(output.num_scheduled_tokens, sampled, strict=True):
            if tokens and rid in stopped:
                tokens[0] = STOP
        self.sched.update_from_output(output, model_output(output, sampled, self._reports(record)))

    def _reports(self, record: T.Update) -> Any:
        if not self.script.header.engine.connectors:
            return None
        from vllm.v1.outputs import KVConnectorOutput

        received: set[str] = set()
        sent: set[str] = set()
        bad: set[int] = set()
        for e in record.ev:
            if type(e) is T.Recv or (type(e) is T.Ignored and e.kind in ("recv", "failed")):
                received.add(e.r)
            elif type(e) is T.LoadFailed:
                received.add(e.r)
                bad.update(self.names.there.get(b, -1) for b in e.blocks)
            elif type(e) is T.Ignored:
                sent.add(e.r)
            elif type(e) is T.Stored and e.job.startswith("send-"):
                sent.add(e.job.removeprefix("send-"))
        if not received and not sent and not bad:
            return None
        return KVConnectorOutput(finished_recving=received, finished_sending=sent, invalid_block_ids=bad)


def follow(path: Any) -> dict[str, Any]:
    """Play the recording ``path`` back; see :meth:`Follower.run`."""
    return Follower(read(path)).run()
