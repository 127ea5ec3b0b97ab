"""Names and colours of block places, request states and marks: one table for every page and export."""

from __future__ import annotations

from typing import NamedTuple

from stallproof.trace import schema


class Style(NamedTuple):
    """``key`` is the name in data, ``label`` what people read; ``shape`` is the swatch's."""

    key: str
    label: str
    light: str
    dark: str
    help: str = ""
    hatch: bool = False
    shape: str = ""


#: Where a block can be, in drawing order from the bottom of the occupancy chart.
PLACES: tuple[Style, ...] = (
    Style("running", "running", "#2b6cb0", "#5aa0e6", "held by one running request"),
    Style("shared", "shared", "#7fb2df", "#2f5f92", "held by two or more requests (prefix sharing)"),
    Style("parked", "parked", "#e8a33d", "#d9962f", "held by one request that does not run"),
    Style("gated", "load waits", "#cdb4e8", "#6f569b", "held for a load whose start is delayed", True),
    Style("loading", "loading", "#8b5fbf", "#a884e0", "a started load may be writing it"),
    Style("pinned", "pinned", "#1f9e89", "#35b79f", "kept by a connector alone (store, send, copy)"),
    Style(
        "fenced",
        "fenced",
        "#8a6d5b",
        "#b3937d",
        "freed, but a step in flight may touch it (DeferFrees)",
        True,
    ),
    Style("quarantined", "quarantined", "#5c5f66", "#8d929b", "its load never answered", True),
    Style(
        "hazard",
        "written while not held",
        "#d7191c",
        "#ff5a5f",
        "XferSafe: a load writes it, nobody holds it",
    ),
    Style("free", "free", "#eef1f5", "#232a33", "in the pool"),
)
PLACE = {style.key: i for i, style in enumerate(PLACES)}

#: Request states of a swim-lane: the schema's, ``outside`` (parked), ``ending`` (finished, still holds).
STATES: tuple[Style, ...] = (
    Style(schema.WAITING, "waiting", "#c9d0d9", "#47515e", "holds no block, has not run"),
    Style(schema.LOADING, "loading", "#8b5fbf", "#a884e0", "parked until its load completes"),
    Style(schema.RECEIVED, "received", "#b79ae0", "#7d62ad", "its load has completed, not yet promoted"),
    Style(schema.HELD, "held", "#e8a33d", "#d9962f", "holds blocks, not yet running"),
    Style(schema.RUNNING, "running", "#2b6cb0", "#5aa0e6", "running"),
    Style(schema.PREEMPTED, "preempted", "#f3cbb0", "#7a4a30", "lost its blocks, waits to run again"),
    Style("outside", "parked outside", "#9cc5bd", "#2d6158", "waits for a session turn or a grammar"),
    Style("ending", "ending", "#1f9e89", "#35b79f", "finished, a transfer still keeps its blocks"),
    Style(schema.FINISHED, "finished", "#ffffff", "#000000", "finished"),
)
STATE = {style.key: i for i, style in enumerate(STATES)}

#: Stretches drawn over a lane.
OVERLAYS: tuple[Style, ...] = (
    Style("refused", "refused", "#c2410c", "#fb923c", "asked for blocks and got none", shape="thin"),
    Style("not_yet", "not yet", "#64748b", "#94a3b8", "the connector answers “not yet”", shape="thin"),
    Style("patience", "patience", "#0e7490", "#22b8cf", "waits instead of preempting", shape="thin"),
    Style("fence", "fence", "#8a6d5b", "#b3937d", "its freed blocks wait for a step (DeferFrees)", True),
)
OVERLAY = {style.key: i for i, style in enumerate(OVERLAYS)}

#: Moments drawn on a lane.
MARKS: tuple[Style, ...] = (
    Style("preempt", "preemption", "#d9480f", "#ff8f5c", "lost its blocks to another request", shape="down"),
    Style("evict", "eviction", "#9c36b5", "#da77f2", "a lateral eviction took its blocks", shape="diamond"),
    Style("expire", "deadline passed", "#495057", "#adb5bd", "an outside wait expired", shape="round"),
    Style(
        "ignored",
        "report ignored",
        "#868e96",
        "#868e96",
        "a late, duplicate or unknown report",
        shape="round",
    ),
    Style(
        "failed",
        "load failed",
        "#c92a2a",
        "#ff8787",
        "a load ended without filling its blocks",
        shape="round",
    ),
)
MARK = {style.key: i for i, style in enumerate(MARKS)}

#: How a transfer ended.
OUTCOMES = ("open", "received", "failed", "expired", "cancelled", "stored", "flushed")
OUTCOME = {name: i for i, name in enumerate(OUTCOMES)}


def table(styles: tuple[Style, ...]) -> list[dict[str, object]]:
    """The rows as the page's scripts read them."""
    return [style._asdict() for style in styles]
