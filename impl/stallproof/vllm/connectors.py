"""Whether GateLoads is sound for a configuration, decided from its connector classes.

The table lists connector classes whose code was audited; everything else falls back to the engine's own
fence. Names are compared exactly: a subclass may write elsewhere. A class outside vLLM may declare
``stallproof_new_blocks_only = True`` (asynchronous loads write only blocks newly allocated for them, a start
delayed by a few steps is harmless, stores survive a preemption), or the operator vouches for it by
``STALLPROOF_CONNECTORS_OK``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: How a load may be kept from blocks that are not quiescent.
DELAY = "delay"  #: tell the connector later
ORDERED = "ordered"  #: its loads are ordered with the device stream; nothing to do
REFUSE = "refuse"  #: answer "not yet" until the blocks it would get are quiescent


@dataclass(frozen=True)
class Class:
    """One audited connector class. Series are (major, minor).

    ``start``: see above. ``ordered_from``: series from which its loads are ordered. ``stores_from``: series
    from which its stores survive a preemption (pins, synchronous or flush); None: never, False cannot store.
    """

    start: str
    stores_from: tuple[int, int] | None = (0, 0)
    ordered_from: tuple[int, int] | None = None


AUDITED: dict[str, Class] = {
    "NixlConnector": Class(DELAY),
    "NixlPullConnector": Class(DELAY),
    "NixlPushConnector": Class(DELAY),
    "MooncakeConnector": Class(DELAY),
    "MooncakeStoreConnector": Class(DELAY, stores_from=(0, 28)),
    "OffloadingConnector": Class(REFUSE, ordered_from=(0, 28)),
    "SimpleCPUOffloadConnector": Class(DELAY),
    "ExampleConnector": Class(ORDERED),
    "SharedStorageConnector": Class(ORDERED),
    "DecodeBenchConnector": Class(ORDERED),
    "LMCacheMPConnector": Class(DELAY, stores_from=None),
    "AscendStoreConnector": Class(DELAY),
}
#: audited, and excluded whatever the mode: they write blocks that were not allocated for the load
WRITES_ELSEWHERE = frozenset(
    {"LMCacheConnectorV1", "MooncakeLayerwiseConnector", "MoRIIOConnector", "FlexKVConnectorV1"}
)


@dataclass(frozen=True)
class Choice:
    """FenceMode of a configuration. ``why`` explains a fall-back; ``warn``: no mode helps, said once."""

    mode: str  # GateLoads, DeferFrees, None
    start: str = DELAY
    why: str = ""
    warn: str = ""
    names: tuple[str, ...] = ()


def leaves(connector: Any) -> list[Any]:
    """The connectors behind ``connector``; a MultiConnector's children, recursively."""
    children = getattr(connector, "_connectors", None)
    if type(connector).__name__ == "MultiConnector" and isinstance(children, (list, tuple)):
        return [leaf for child in children for leaf in leaves(child)]
    return [] if connector is None else [connector]


def choose(
    *,
    connector: Any,
    depth: int,
    series: str,
    can_store: bool,
    v2_runner: bool,
    zeroing: bool,
    hisparse: bool,
    fence: bool,
    vouched: frozenset[str] = frozenset(),
    wanted: bool = True,
) -> Choice:
    """FenceMode for a configuration: the predicate ``GateLoads_ok``.

    ``depth``: batches in flight; with one, every earlier step is done before a load starts. ``fence``: the
    engine has a fence to fall back to; where it has none, load starts are gated whatever the predicate says.
    """
    all_leaves = leaves(connector)
    names = tuple(type(x).__name__ for x in all_leaves)
    if not all_leaves:
        return Choice("None", why="no connector: all writers are ordered", names=names)
    if depth <= 1:
        return Choice("None", why="one batch in flight", names=names)
    version = tuple(map(int, series.split(".")))

    def back(why: str, warn: str = "") -> Choice:
        if fence:
            return Choice("DeferFrees", why=why, warn=warn, names=names)
        return Choice("GateLoads", start=REFUSE, why=why, warn=warn, names=names)

    elsewhere = sorted(set(names) & WRITES_ELSEWHERE)
    if elsewhere:
        return back(
            f"{elsewhere[0]} writes blocks that were not allocated for the load",
            f"{elsewhere[0]}: no fence covers blocks it did not get in this call; not made worse",
        )
    if not wanted:
        return back("GateLoads is switched off")
    if hisparse:
        return back("a second block pool (HiSparse)")
    start = ORDERED
    for leaf, name in zip(all_leaves, names, strict=True):
        entry = AUDITED.get(name)
        if name in vouched or getattr(type(leaf), "stallproof_new_blocks_only", False) is True:
            entry = Class(DELAY)
        if entry is None:
            return back(f"{name} is not an audited connector")
        if can_store and (entry.stores_from is None or version < entry.stores_from):
            return back(f"stores of {name} do not survive a preemption")
        if entry.ordered_from is not None and version >= entry.ordered_from:
            continue
        if entry.start == REFUSE or (entry.start == DELAY and start == ORDERED):
            start = entry.start
    if "OffloadingConnector" in names:
        if len(names) > 1:
            return back(
                "OffloadingConnector beside another connector",
                "MultiConnector with OffloadingConnector: a load of one child can overwrite blocks that the "
                "other still stores, in every mode; not made worse",
            )
        if v2_runner and zeroing:
            return back("OffloadingConnector with zeroed blocks on model runner V2")
    if start == REFUSE and fence:
        return back("its loads cannot start later")
    return Choice("GateLoads", start=start, names=names)
