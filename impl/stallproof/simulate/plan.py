"""What to simulate: plain data that travels from the command to the engine's process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from stallproof.errors import BadInput
from stallproof.simulate import retrace
from stallproof.simulate import workload as w

Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0)]


class Store(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The simulated connector; times in seconds, ``bandwidth`` in blocks per second."""

    kind: Literal["none", "pd", "store", "offload", "recorded"] = "none"
    latency: Seconds = 0.02
    bandwidth: Annotated[float, Meta(gt=0)] = 20000.0
    lookup: Seconds = 0.0  #: for so long after its first question a request is told "not yet"
    capacity: Annotated[int, Meta(ge=0)] = 0  #: blocks kept, 0: unlimited
    p_fail: Annotated[float, Meta(ge=0, le=1)] = 0.0
    p_lost: Annotated[float, Meta(ge=0, le=1)] = 0.0


class Work(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which requests: a path and a slice of it, or ``synthetic`` with a count."""

    path: str = ""
    synthetic: int = 0
    start: Seconds = 0.0
    length: Seconds = 0.0  #: 0: to the end
    speedup: Annotated[float, Meta(gt=0)] = 1.0
    limit: int = 0
    share: Annotated[float, Meta(gt=0, le=1)] = 1.0  #: share of the conversations, drawn by ``seed``
    jitter: Seconds = 0.0  #: arrivals move by up to so many seconds, drawn by ``seed``
    seed: int = 0
    rate: float = 2.0  #: requests per second of ``synthetic``

    def jobs(self, max_len: int) -> list[w.Job]:
        """The requests; raises :class:`BadInput` if there are none."""
        length = self.length or None
        cut: dict[str, Any] = {"speedup": self.speedup, "limit": self.limit or None, "max_len": max_len}
        cut |= {"share": self.share, "jitter": self.jitter, "seed": self.seed}
        if self.synthetic:
            out = w.select(w.synthetic(self.synthetic, seed=self.seed, rate=self.rate), length=length, **cut)
        else:
            path = Path(self.path)
            kind = w.detect(path)
            if kind == "servegen":
                span = length or 3600.0
                drawn = w.servegen(path, seed=self.seed, start=self.start, length=span)
                out = w.select(drawn, start=self.start, length=span, **cut)
            elif kind == "trace":
                out = w.select(retrace.from_trace(path), start=self.start, length=length, **cut)
            else:
                read = w.mooncake if kind == "mooncake" else w.azure
                out = w.select(read(path), start=self.start, length=length, **cut)
        if not out:
            raise BadInput(
                "no request in this slice", path=self.path or None,
                remedy="widen --from/--length, or raise --max-model-len",
            )  # fmt: skip
        return out


class Plan(Struct, forbid_unknown_fields=True, kw_only=True):
    """One run. Same plan, same bytes out."""

    work: Work
    scheduler: str = "stock"
    blocks: Positive = 4096
    block_size: Positive = 16
    depth: Annotated[int, Meta(ge=1, le=3)] = 2
    max_num_seqs: Positive = 256
    budget: Positive = 8192
    chunk_cap: Annotated[int, Meta(ge=0)] = 0
    max_model_len: Positive = 131072
    policy: Literal["fcfs", "priority"] = "fcfs"
    prefix_caching: bool = True
    store: Store = msgspec.field(default_factory=Store)
    latency: str = ""
    seed: int = 0
    horizon: Seconds = 600.0  #: H: virtual seconds after the last arrival
    patience_calls: Positive = 200  #: K: zero-progress calls in a row that end a run
    slo_ttft: Seconds = 5.0
    slo_itl: Seconds = 0.1
    options: dict[str, Any] = {}  #: rule settings of our class, by environment variable name
    trace: str = ""
    save_restore: Annotated[int, Meta(ge=0)] = 0  #: what-if: blocks that a store of evicted ones keeps
    move_cost: Seconds = 0.0001  #: of one saved or restored block, each way
