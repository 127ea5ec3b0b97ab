"""What a simulated run measures, per request and for the engine, and how two runs are compared.

Times are virtual seconds. *Stranded*: unfinished when the run ended. *Recomputed* tokens: scheduled again
after a preemption or an eviction took the blocks that held them.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


def percentile(values: Sequence[float], q: float) -> float:
    """Nearest-rank percentile, ``q`` in [0, 100]; NaN for no values."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(q / 100 * len(ordered)) - 1))]


@dataclass(slots=True)
class RequestLog:
    """One request's life, in virtual seconds (-1: has not happened)."""

    rid: str
    at: float
    prompt: int
    output: int
    first: float = -1.0
    done: float = -1.0
    last: float = -1.0
    tokens: int = 0
    longest_wait: float = 0.0
    error: str = ""

    def progress(self, now: float, tokens: int, gaps: array[float]) -> None:
        """``tokens`` new output tokens at ``now``; inter-token gaps go to ``gaps``."""
        since = self.last if self.last >= 0 else self.at
        self.longest_wait = max(self.longest_wait, now - since)
        if self.first < 0:
            self.first = now
            tokens -= 1
            self.tokens += 1
            since = now
        if tokens > 0:
            gap = (now - since) / tokens
            gaps.extend([gap] * tokens)
            self.tokens += tokens
        self.last = now


@dataclass
class RunLog:
    """Everything one run measured; :meth:`summary` is what reports and comparisons use."""

    scheduler: str
    requests: dict[str, RequestLog] = field(default_factory=dict)
    gaps: array[float] = field(default_factory=lambda: array("d"))
    steps: int = 0
    calls: int = 0
    scheduled_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0
    evictions: int = 0
    zero_progress_calls: int = 0
    longest_engine_gap: float = 0.0
    load_starts_delayed: int = 0
    loads: int = 0
    fenced_block_seconds: float = 0.0
    virtual: float = 0.0
    wall: float = 0.0
    cpu: float = 0.0
    ended: str = ""
    fired: dict[str, int] = field(default_factory=dict)

    def summary(self, *, slo_ttft: float, slo_itl: float) -> dict[str, Any]:
        """Figures of the run. Goodput: finished requests per virtual second that kept both objectives."""
        done = [r for r in self.requests.values() if r.done >= 0 and not r.error]
        ttft = [r.first - r.at for r in done if r.first >= 0]
        good = sum(
            r.first - r.at <= slo_ttft
            and (r.tokens < 2 or (r.done - r.first) / max(1, r.tokens - 1) <= slo_itl)
            for r in done
            if r.first >= 0
        )
        out: dict[str, Any] = {
            "scheduler": self.scheduler,
            "requests": len(self.requests),
            "completed": len(done),
            "rejected": sum(bool(r.error) for r in self.requests.values()),
            "stranded": sum(r.done < 0 for r in self.requests.values()),
            "goodput_rps": good / self.virtual if self.virtual else 0.0,
        }
        for name, values in (("ttft", ttft), ("itl", self.gaps)):
            out[f"{name}_mean_s"] = sum(values) / len(values) if values else math.nan
            for q in (50, 95, 99):
                out[f"{name}_p{q}_s"] = percentile(values, q)
        out |= {
            "preemptions": self.preemptions,
            "evictions": self.evictions,
            "scheduled_tokens": self.scheduled_tokens,
            "recomputed_tokens": self.recomputed_tokens,
            "zero_progress_calls": self.zero_progress_calls,
            "longest_request_wait_s": max((r.longest_wait for r in self.requests.values()), default=0.0),
            "longest_engine_gap_s": self.longest_engine_gap,
            "fenced_block_seconds": self.fenced_block_seconds,
            "loads": self.loads,
            "load_starts_delayed": self.load_starts_delayed,
            "steps": self.steps,
            "virtual_s": self.virtual,
            "wall_s": self.wall,
            "cpu_s": self.cpu,
            "ended": self.ended,
            "fired": dict(self.fired),
        }
        return out

    def to_json(self) -> dict[str, Any]:
        """The raw log as plain data (for pages and tests)."""
        return {"scheduler": self.scheduler, "requests": [asdict(r) for r in self.requests.values()]}


#: Figures where smaller is better; the rest of the compared ones are better when larger.
COMPARED = (
    "completed", "goodput_rps", "ttft_p50_s", "ttft_p95_s", "ttft_p99_s", "itl_mean_s", "itl_p50_s",
    "itl_p95_s", "itl_p99_s", "preemptions", "scheduled_tokens", "recomputed_tokens", "virtual_s",
)  # fmt: skip


def ratios(base: dict[str, Any], other: dict[str, Any]) -> dict[str, float] | None:
    """``other / base`` for each compared figure; None where the base run stranded requests.

    A run that stalled has no meaningful latency, so no ratio is reported against it.
    """
    if base["stranded"]:
        return None
    out = {}
    for key in COMPARED:
        a, b = base[key], other[key]
        out[key] = b / a if a else (1.0 if not b else math.inf)
    return out
