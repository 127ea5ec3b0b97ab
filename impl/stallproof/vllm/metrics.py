"""Prometheus metrics of one scheduler, served from the engine process.

Off unless ``STALLPROOF_METRICS_PORT`` is set. Each data-parallel rank is its own process and serves its own
port, ``STALLPROOF_METRICS_PORT + rank``; ``STALLPROOF_METRICS_HOST`` (default ``0.0.0.0``, as vLLM's own
server) is the address. Labels ``engine`` and ``model_name`` are those of vLLM's metrics, so that the two can
be joined in one query.

The scheduling thread only keeps plain numbers; a scrape reads them through ``source`` in the server's thread
and builds the families then, so a scrape costs the engine nothing but the GIL. Nothing here can stop the
engine once it runs: a missing package or a port in use is one warning.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stallproof.errors import BadInput

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

log = logging.getLogger("stallproof")

PORT_VARIABLE = "STALLPROOF_METRICS_PORT"
HOST_VARIABLE = "STALLPROOF_METRICS_HOST"
LABELS = ("model_name", "engine")
_NONE: Mapping[str, float] = {}


@dataclass(slots=True)
class Reading:
    """Values at one moment; totals since the engine started. Mappings may be live: they are copied here.

    Attributes:
        stall_seconds: kind of stall (``StallWatch.seconds``) to seconds.
        stalled: kinds of stall that are open now (``StallWatch.stalled()``).
        oldest_waiting_s: age in seconds of the oldest request that has not begun to run; 0 without one.
        oldest_refused_s: for how many seconds the longest-refused request has been refused; 0 without one.
        load_starts_delayed: loads whose start was gated at least one call.
        quarantined_blocks, fenced_blocks: blocks out of the pool now.
        evictions: lateral evictions (commit).
        preemptions_avoided: calls in which patience waited, or a victim was kept, instead of a preemption.
        completions_ignored: report kind (``recv``, ``sent``, ``failed``) to reports discarded.
        rule_fired: rule to firings.
        fallbacks: reason to number of fall-backs.
        guard_faults: hook to internal errors caught.
        recorder_drops: trace records not written.
        rules: names of the rules in force, ``mode``: enforce or shadow.
    """

    stall_seconds: Mapping[str, float] = field(default_factory=dict)
    stalled: list[str] = field(default_factory=list)
    oldest_waiting_s: float = 0.0
    oldest_refused_s: float = 0.0
    load_starts_delayed: int = 0
    quarantined_blocks: int = 0
    fenced_blocks: int = 0
    evictions: int = 0
    preemptions_avoided: int = 0
    completions_ignored: Mapping[str, float] = field(default_factory=dict)
    rule_fired: Mapping[str, float] = field(default_factory=dict)
    fallbacks: Mapping[str, float] = field(default_factory=dict)
    guard_faults: Mapping[str, float] = field(default_factory=dict)
    recorder_drops: int = 0
    rules: tuple[str, ...] = ()
    mode: str = "enforce"


#: (name without prefix, type, help, attribute of Reading, label of a mapping or "")
FAMILIES: tuple[tuple[str, str, str, str, str], ...] = (
    ("stall_seconds", "counter", "Seconds spent in a stall of this kind.", "stall_seconds", "kind"),
    (
        "oldest_waiting_age_seconds",
        "gauge",
        "Age of the oldest request that does not run yet.",
        "oldest_waiting_s",
        "",
    ),
    (
        "oldest_refused_age_seconds",
        "gauge",
        "Seconds since the longest-refused request was first refused.",
        "oldest_refused_s",
        "",
    ),
    (
        "load_starts_delayed",
        "counter",
        "Loads whose start waited for steps in flight (GateLoads).",
        "load_starts_delayed",
        "",
    ),
    (
        "quarantined_blocks",
        "gauge",
        "Blocks out of the pool because their load never answered.",
        "quarantined_blocks",
        "",
    ),
    (
        "fenced_blocks",
        "gauge",
        "Freed blocks that wait for a step in flight (DeferFrees).",
        "fenced_blocks",
        "",
    ),
    ("evictions", "counter", "Lateral evictions of holders that did not run (commit).", "evictions", ""),
    (
        "preemptions_avoided",
        "counter",
        "Times a refused running request waited instead of preempting.",
        "preemptions_avoided",
        "",
    ),
    (
        "completions_ignored",
        "counter",
        "Late, duplicate or unknown completion reports discarded.",
        "completions_ignored",
        "kind",
    ),
    ("rule_fired", "counter", "Times a rule changed what the engine would have done.", "rule_fired", "rule"),
    ("fallbacks", "counter", "Fall-backs to the engine's own fence, by reason.", "fallbacks", "reason"),
    (
        "guard_faults",
        "counter",
        "Internal errors of a hook that were caught; the call went on safely.",
        "guard_faults",
        "hook",
    ),
    ("recorder_drops", "counter", "Trace records that were not written.", "recorder_drops", ""),
)

#: Always present as series, at zero, so that an alert on a rate works before the first occurrence.
KNOWN_LABELS: Mapping[str, tuple[str, ...]] = {
    "stall_seconds": ("wedge", "livelock", "external_wait"),
    "completions_ignored": ("recv", "sent", "failed"),
}


class Collector:
    """Custom prometheus_client collector over ``source``, called once a scrape."""

    def __init__(self, source: Callable[[], Reading], *, model_name: str, engine: str) -> None:
        self.source, self.labels = source, (model_name, engine)

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        now = self.source()
        for name, kind, text, attribute, label in FAMILIES:
            family = (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(
                f"stallproof_{name}", text, labels=[*LABELS, label] if label else LABELS
            )
            value = getattr(now, attribute)
            if label:
                for key, number in {**dict.fromkeys(KNOWN_LABELS.get(name, ()), 0), **_copy(value)}.items():
                    family.add_metric((*self.labels, str(key)), number)
            else:
                family.add_metric(self.labels, value)
            yield family
        stalled = GaugeMetricFamily(
            "stallproof_stalled", "1 while a stall of this kind lasts.", labels=[*LABELS, "kind"]
        )
        for key in KNOWN_LABELS["stall_seconds"]:
            stalled.add_metric((*self.labels, key), float(key in now.stalled))
        yield stalled
        from stallproof import __version__

        info = GaugeMetricFamily(
            "stallproof_info",
            "1; which Stallproof, in which mode, with which rules.",
            labels=[*LABELS, "version", "mode", "rules"],
        )
        info.add_metric((*self.labels, __version__, now.mode, ",".join(now.rules)), 1)
        yield info


def _copy(live: Mapping[str, float]) -> dict[str, float]:
    """A copy of a mapping that another thread may be extending."""
    for _ in range(8):
        try:
            return dict(live)
        except RuntimeError:  # changed size during iteration
            continue
    return {}


class Server:
    """A running endpoint; ``port`` is the one in use, ``close()`` stops it."""

    def __init__(self, httpd: Any, thread: Any, registry: CollectorRegistry) -> None:
        self.httpd, self.thread, self.registry = httpd, thread, registry
        self.port: int = httpd.server_port

    def close(self) -> None:
        self.httpd.shutdown()
        self.httpd.server_close()
        self.thread.join(timeout=5)


def port_of(rank: int, environ: Mapping[str, str] | None = None) -> int | None:
    """Port for data-parallel rank ``rank``, None if metrics are off; ``BadInput`` if it is no port."""
    text = (os.environ if environ is None else environ).get(PORT_VARIABLE, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) + rank < 65536:
        raise BadInput(
            f"{PORT_VARIABLE}={text!r} with data-parallel rank {rank}", remedy="give a port from 1 to 65535"
        )
    return int(text) + rank


def start(
    source: Callable[[], Reading],
    *,
    model_name: str,
    rank: int = 0,
    engine: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Server | None:
    """Serve ``source`` if the environment asks for it. A failure to is one warning, never an error.

    Raises ``BadInput`` if the variable is no port, like every other setting of Stallproof.

    ``rank``: index of the data-parallel rank. ``engine``: vLLM's engine label, the rank unless given.
    """
    env = os.environ if environ is None else environ
    port = port_of(rank, env)
    if port is None:
        return None
    try:
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry(auto_describe=False)
        registry.register(
            Collector(source, model_name=model_name, engine=str(rank) if engine is None else engine)
        )
        host = env.get(HOST_VARIABLE, "") or "0.0.0.0"
        server = Server(*start_http_server(port, addr=host, registry=registry), registry)
    except ModuleNotFoundError as exc:
        log.warning("stallproof: no metrics: Python package %s is not installed", exc.name)
    except (OSError, OverflowError, ValueError) as exc:
        log.warning("stallproof: no metrics: %s", exc)
    except Exception:  # a fault in the metrics must not reach the engine
        log.exception("stallproof: no metrics")
    else:
        log.info("stallproof: metrics on http://%s:%d/metrics (engine %s)", host, port, engine or rank)
        return server
    return None
