"""Quarantine: blocks of a transfer that never answered stay out of the pool until something names it.

The same request id must not load meanwhile: below the scheduler, completions are counted by id alone, so two
generations could add up to a false completion. Sources: vLLM #46283; spec ``Quarantine``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Lot:
    """Blocks out of the pool because of generation ``gen`` of ``rid``. ``blocks`` belong to the caller.

    ``kind``: the report that ends it, ``recv`` for a load, ``sent`` for a send.
    """

    rid: str
    gen: int
    blocks: list[Any]
    kind: str = "recv"


class Quarantine:
    """Lots by request id. ``pool``: usable blocks; ``cap``: share of it above which no load may start.

    An id has one lot of a load at most. Its sends may have several: each later request of that name may send.
    A report ends the oldest. Sends may read the same blocks, which count once.
    """

    __slots__ = ("_lots", "_uses", "cap", "pool")

    def __init__(self, pool: int, cap: float) -> None:
        self.pool, self.cap = pool, cap
        self._lots: dict[str, list[Lot]] = {}
        self._uses: Counter[int] = Counter()  #: lots by block, as ``id``: the lots keep the objects alive

    @property
    def blocks(self) -> int:
        return len(self._uses)

    def put(self, lot: Lot) -> None:
        """Raises ValueError if a load of the id is quarantined already, which the load ban excludes."""
        if lot.kind != "sent" and self.waits_for(lot.rid, lot.kind):
            raise ValueError(f"{lot.rid} is quarantined already")
        self._lots.setdefault(lot.rid, []).append(lot)
        self._uses.update(map(id, lot.blocks))

    def _find(self, rid: str, kind: str) -> Lot | None:
        """``kind`` of the report: a failure counts as a receive."""
        kind = "sent" if kind == "sent" else "recv"
        return next((lot for lot in self._lots.get(rid, ()) if lot.kind == kind), None)

    def waits_for(self, rid: str, kind: str) -> bool:
        """Whether a report of ``kind`` ends a quarantine of ``rid``."""
        return self._find(rid, kind) is not None

    def release(self, rid: str, kind: str) -> Lot | None:
        """The lot that a report of ``kind`` ends."""
        lot = self._find(rid, kind)
        if lot is None:
            return None
        self._lots[rid].remove(lot)
        if not self._lots[rid]:
            del self._lots[rid]
        self._uses -= Counter(map(id, lot.blocks))  # drops what no lot has any more
        return lot

    def release_all(self) -> list[Lot]:
        """A connector reset: no transfer of the past can still write."""
        lots = list(self)
        self._lots.clear()
        self._uses.clear()
        return lots

    def may_load(self, rid: str) -> bool:
        return rid not in self._lots and not self.over_cap

    @property
    def over_cap(self) -> bool:
        """The engine is unhealthy: too many blocks wait for reports that may never come."""
        return self.blocks > self.cap * self.pool

    def __contains__(self, rid: str) -> bool:
        return rid in self._lots

    def __iter__(self) -> Iterator[Lot]:
        return (lot for lots in self._lots.values() for lot in lots)

    def __len__(self) -> int:
        return sum(map(len, self._lots.values()))
