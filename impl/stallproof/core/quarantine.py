"""Quarantine: blocks of a load that never answered stay out of the pool until something names the load.

The same request id must not load meanwhile: below the scheduler, completions are counted by id alone, so two
generations could add up to a false completion. Sources: vLLM #46283; spec ``Quarantine``.
"""

from __future__ import annotations

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
    """Lots by request id. ``pool``: usable blocks; ``cap``: share of it above which no load may start."""

    __slots__ = ("_lots", "blocks", "cap", "pool")

    def __init__(self, pool: int, cap: float) -> None:
        self.pool, self.cap = pool, cap
        self.blocks = 0
        self._lots: dict[str, Lot] = {}

    def put(self, lot: Lot) -> None:
        """Raises ValueError if the id is quarantined already, which the load ban excludes."""
        if lot.rid in self._lots:
            raise ValueError(f"{lot.rid} is quarantined already")
        self._lots[lot.rid] = lot
        self.blocks += len(lot.blocks)

    def waits_for(self, rid: str, kind: str) -> bool:
        """Whether a report of ``kind`` (a failure counts as a receive) ends the quarantine of ``rid``."""
        lot = self._lots.get(rid)
        return lot is not None and lot.kind == ("sent" if kind == "sent" else "recv")

    def release(self, rid: str) -> Lot | None:
        lot = self._lots.pop(rid, None)
        if lot is not None:
            self.blocks -= len(lot.blocks)
        return lot

    def release_all(self) -> list[Lot]:
        """A connector reset: no transfer of the past can still write."""
        lots, self._lots, self.blocks = list(self._lots.values()), {}, 0
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
        return iter(self._lots.values())

    def __len__(self) -> int:
        return len(self._lots)
