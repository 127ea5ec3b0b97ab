"""Runs inside an engine's interpreter: a live scheduler, the engine's loop in miniature, and small checks."""

from __future__ import annotations

import os
import random
from typing import Any

os.environ.setdefault("STALLPROOF_STRICT", "1")

from stallproof.harness.config import make_scheduler, scheduler_class
from stallproof.scenario import Engine
from stallproof.trace import schema as T
from stallproof.vllm.recording import attach, recorded


def tokens(seed: str, n: int) -> list[int]:
    """``n`` token ids that depend on ``seed`` only, so that equal seeds share a prefix."""
    rng = random.Random(seed)
    return [rng.randrange(3, 500) for _ in range(n)]


class Rig:
    """One scheduler of class ``cls`` (``stock``, ``stallproof`` or a class) and its loop.

    ``events``: every trace event so far, if ``record``. A worker is simulated: it samples token 7, and a load
    that was started is reported after ``delay`` steps unless its id is in ``mute``.
    """

    def __init__(self, cls: Any, *, record: bool = True, env: dict[str, str] | None = None, **engine: Any):
        self.config = Engine(**engine)
        base = scheduler_class(cls, self.config.depth) if isinstance(cls, str) else cls
        before = dict(os.environ)
        os.environ.update(env or {})
        try:
            self.s: Any = make_scheduler(recorded(base) if record else base, self.config)
        finally:
            os.environ.clear()
            os.environ.update(before)
        self.events: list[Any] = []
        self.records: list[Any] = []
        self.rec = attach(self.s, self._take, strict=True) if record else None
        self.flight: list[Any] = []
        self.steps = self.arrivals = 0
        self.delay, self.mute = 2, set[str]()
        self.loading: dict[str, int] = {}
        self.started: list[tuple[int, str, list[int]]] = []  # (step of the metadata, id, blocks)
        self.finished: dict[str, Any] = {}
        self.outputs: dict[str, int] = {}
        self.now = 0.0
        if hasattr(self.s, "_sp_now"):
            self.s._sp_now = lambda: self.now

    def _take(self, record: Any) -> None:
        self.records.append(record)
        self.events += getattr(record, "ev", [])

    def add(
        self,
        rid: str,
        prompt: int,
        max_tokens: int = 4,
        *,
        priority: int = 0,
        salt: str = "",
        resumable: bool = False,
        **script: Any,
    ):
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.request import Request

        if not self.arrivals:  # older releases draw a new one each time: no request would share a prefix
            init_none_hash(sha256)
        self.arrivals += 1
        request = Request(
            request_id=rid,
            prompt_token_ids=tokens(salt or rid, prompt),
            sampling_params=SamplingParams(
                max_tokens=max_tokens,
                ignore_eos=True,
                temperature=0.0,
                extra_args={"kv_transfer_params": {"script": script}} if script else None,
            ),
            pooling_params=None,
            priority=priority,
            arrival_time=float(self.arrivals),
            block_hasher=get_request_block_hasher(self.config.block_size, sha256),
            resumable=resumable,
        )
        self.s.add_request(request)
        return request

    def abort(self, rid: str) -> None:
        from vllm.v1.request import RequestStatus

        self.s.finish_requests(rid, RequestStatus.FINISHED_ABORTED)

    def schedule(self) -> Any:
        out = self.s.schedule()
        self.steps += 1
        out.samples = {
            r: not self.s.requests[r].is_prefill_chunk
            for r in out.num_scheduled_tokens
            if r in self.s.requests
        }
        for x in getattr(out.kv_connector_metadata, "loads", ()):
            self.started.append((self.steps, x.r, x.blocks))
            self.loading[x.r] = self.delay
        self.flight.append(out)
        return out

    def process(self, **reports: Any) -> Any:
        from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

        out = self.flight.pop(0)
        recv = set(reports.pop("recv", ()))
        for r in list(self.loading):
            self.loading[r] -= 1
            if self.loading[r] <= 0 and r not in self.mute:
                del self.loading[r]
                recv.add(r)
        sent, bad = set(reports.pop("sent", ())), set(reports.pop("invalid", ()))
        ids = list(out.num_scheduled_tokens)
        kv = None
        if recv or sent or bad:
            kv = KVConnectorOutput(
                finished_recving=recv or None, finished_sending=sent or None, invalid_block_ids=bad
            )
        result = self.s.update_from_output(
            out,
            ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={r: i for i, r in enumerate(ids)},
                sampled_token_ids=[[7] if out.samples.get(r) else [] for r in ids],
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
                kv_connector_output=kv,
            ),
        )
        for client in result.values():
            for o in client.outputs:
                self.outputs[o.request_id] = self.outputs.get(o.request_id, 0) + len(o.new_token_ids)
                if o.finish_reason is not None:
                    self.finished[o.request_id] = o
        return result

    def step(self, **reports: Any) -> Any:
        out = self.schedule()
        if len(self.flight) >= self.config.depth:
            self.process(**reports)
        return out

    def run(self, limit: int = 400) -> Rig:
        """Until nothing is left to do, or ``limit`` steps."""
        for _ in range(limit):
            if not self.s.has_unfinished_requests() and not self.s.has_finished_requests():
                break
            self.step()
        self.drain()
        return self

    def drain(self) -> None:
        while self.flight:
            self.process()

    @property
    def free(self) -> int:
        return self.s.kv_cache_manager.block_pool.get_num_free_blocks()

    @property
    def fired(self) -> dict[str, int]:
        return self.s.stallproof_stats()["fired"]

    def of(self, kind: Any) -> list[Any]:
        return [e for e in self.events if type(e) is kind]

    def all_done(self) -> None:
        left = sorted(self.s.requests)
        assert not left, f"not finished after {self.steps} steps: {left}"
        assert self.free == self.config.blocks, f"{self.config.blocks - self.free} blocks missing"


__all__ = ["Rig", "T"]
