"""Prometheus text to scrapes: only the ``vllm:`` samples, several scrapes in one input allowed.

Names by release: research production_evidence 1.7 (vLLM v1/metrics/loggers.py). A scrape ends where a sample
repeats, or where the input does.
"""

from __future__ import annotations

import math
import re

import msgspec

from .observe import NAN, Ref, Stats

_SAMPLE = re.compile(r"vllm:([A-Za-z_0-9]+)(?:\{(.*?)\})?\s+([-+0-9.eEnaNIif]+)(?:\s+(\d{10,}))?")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

#: counters whose growth is progress
TOKENS = ("prompt_tokens_total", "generation_tokens_total", "iteration_tokens_total_count")


class Scrape(msgspec.Struct, kw_only=True):
    """One engine's samples of one scrape: name, or name|label value, to number."""

    engine: int
    ref: Ref
    t: float = NAN
    values: dict[str, float] = {}
    refs: dict[str, Ref] = {}
    model: str = ""

    def get(self, *names: str) -> float:
        """The first of ``names`` that was scraped, nan otherwise; an infinity tells nothing."""
        for n in names:
            if math.isfinite(self.values.get(n, NAN)):
                return self.values[n]
        return NAN

    @property
    def asleep(self) -> bool:
        return self.get("engine_sleep_state|awake") == 0.0

    @property
    def progress(self) -> float:
        """Tokens and steps so far; nan if no counter was scraped."""
        known = [self.values[n] for n in TOKENS if n in self.values]
        return sum(known) if known else NAN

    def stats(self) -> Stats:
        """As statistics, without rates."""
        running, waiting = self.get("num_requests_running"), self.get("num_requests_waiting")
        cap, deferred = (self.get(f"num_requests_waiting_by_reason|{r}") for r in ("capacity", "deferred"))
        fetch = tuple(
            self.get(f"num_requests_kv_fetch_by_stage|{s}")
            for s in ("waiting_to_start", "in_progress", "completed_waiting")
        )
        if math.isnan(waiting) and not math.isnan(cap):
            waiting = cap + (0.0 if math.isnan(deferred) else deferred)
        kv = self.get("kv_cache_usage_perc", "gpu_cache_usage_perc")
        return Stats(
            ref=self.ref,
            t=self.t,
            engine=self.engine,
            running=-1 if math.isnan(running) else int(running),
            waiting=-1 if math.isnan(waiting) else int(waiting),
            deferred=None if math.isnan(deferred) else int(deferred),
            fetch=None
            if any(math.isnan(f) for f in fetch)
            else (int(fetch[0]), int(fetch[1]), int(fetch[2])),
            kv=kv * 100 if not math.isnan(kv) else NAN,
            level="METRICS",
        )


class Scrapes:
    """Collects samples; :meth:`feed` returns the finished scrapes when a new one begins."""

    def __init__(self) -> None:
        self.current: dict[int, Scrape] = {}
        self.seen: set[tuple[int, str]] = set()
        self.stamp = NAN  # of a "vllm:scraped_at SECONDS" line, which the suggested commands write

    def feed(self, text: str, ref: Ref, t: float) -> list[Scrape]:
        m = _SAMPLE.match(text)
        if m is None:
            return []
        labels = dict(_LABEL.findall(m[2] or ""))
        try:
            value = float(m[3])
            engine = int(labels.get("engine", labels.get("engine_index", "0")) or 0)
        except ValueError:
            return []
        key = m[1]
        if key == "scraped_at":
            done = self.flush()
            self.stamp = value
            return done
        if key.endswith(("_bucket", "_created")):
            return []
        for label in ("reason", "stage", "sleep_state", "finished_reason", "source"):
            if label in labels:
                key += "|" + labels[label]
                break
        if math.isnan(value):
            return []
        out: list[Scrape] = []
        mark = (
            engine,
            key + "|" + labels.get("model_name", "") + labels.get("pod", "") + labels.get("instance", ""),
        )
        if mark in self.seen:
            out = self.flush()
        self.seen.add(mark)
        scrape = self.current.get(engine)
        if scrape is None:
            scrape = self.current[engine] = Scrape(
                engine=engine, ref=ref, t=self.stamp if t != t else t, model=labels.get("model_name", "")
            )
        if m[4]:
            scrape.t = int(m[4]) / 1000
        if key == "cache_config_info":
            for name in ("num_gpu_blocks", "block_size", "kv_cache_size_tokens"):
                if labels.get(name, "").replace(".", "").isdigit():
                    scrape.values[name] = float(labels[name])
        elif len(scrape.values) < 2000:
            scrape.values[key] = value
            if key.startswith(("num_requests", "kv_cache_usage", "gpu_cache_usage", "engine_sleep")):
                scrape.refs[key] = ref
        return out

    def flush(self) -> list[Scrape]:
        """The scrapes collected so far."""
        out = list(self.current.values())
        self.current, self.seen = {}, set()
        return out


def version_hints(scrape: Scrape) -> tuple[tuple[int, int, int], str] | None:
    """The oldest release that has this metric set."""
    if any(k.startswith("num_requests_kv_fetch_by_stage") for k in scrape.values):
        return (0, 32, 0), "metric num_requests_kv_fetch_by_stage"
    if any(k.startswith("num_requests_waiting_by_reason") for k in scrape.values):
        return (0, 20, 0), "metric num_requests_waiting_by_reason"
    if any(k.startswith("engine_sleep_state") for k in scrape.values):
        return (0, 11, 2), "metric engine_sleep_state"
    if "kv_cache_usage_perc" in scrape.values:
        return (0, 9, 2), "metric kv_cache_usage_perc"
    return None
