"""Where every block is, for drawing: a tolerant book-keeper.

The checker (:mod:`stallproof.trace`) decides what is right; this one has to draw traces that are wrong, so an
event that contradicts the book is applied as far as it goes and never raises. Memory follows the blocks in
use, not the size that a trace claims for its pool.
"""

from __future__ import annotations

from collections.abc import Iterable

from stallproof.report.names import PLACE, PLACES

RUNNING, SHARED, PARKED = PLACE["running"], PLACE["shared"], PLACE["parked"]
GATED, LOADING, PINNED = PLACE["gated"], PLACE["loading"], PLACE["pinned"]
FENCED, QUARANTINED, HAZARD, FREE = PLACE["fenced"], PLACE["quarantined"], PLACE["hazard"], PLACE["free"]

NOBODY = -1


def _less(counts: dict[int, int], b: int) -> None:
    n = counts.get(b, 0) - 1
    if n > 0:
        counts[b] = n
    else:
        counts.pop(b, None)


class Places:
    """``counts[place]`` blocks in each place; requests are lane numbers.

    ``at``: block -> (place, lane that is shown for it), for blocks that are not free.
    """

    def __init__(self, pool: int) -> None:
        self.pool = pool
        self.at: dict[int, tuple[int, int]] = {}
        self.counts = [0] * len(PLACES)
        self.counts[FREE] = pool
        self.held: dict[int, dict[int, None]] = {}
        self._holders: dict[int, list[int]] = {}
        self._deferred: dict[int, int] = {}
        self._pinned: dict[int, int] = {}
        self._quarantined: dict[int, int] = {}
        self._writer: dict[int, tuple[int, bool]] = {}  # block -> (lane of the load, started)
        self._running: set[int] = set()
        self._touched: set[int] = set()

    # ------------------------------------------------------------ what events do

    def hold(self, lane: int, blocks: Iterable[int]) -> None:
        mine = self.held.setdefault(lane, {})
        for b in blocks:
            mine[b] = None
            self._holders.setdefault(b, []).append(lane)
            self._touched.add(b)

    def release(self, lane: int, blocks: Iterable[int]) -> None:
        mine = self.held.get(lane, {})
        for b in blocks:
            mine.pop(b, None)
            holders = self._holders.get(b)
            if holders and lane in holders:
                holders.remove(lane)
                if not holders:
                    del self._holders[b]
            if self._writer.get(b) == (lane, False):  # a load released before its start is cancelled
                del self._writer[b]
            self._touched.add(b)
        if not mine:
            self.held.pop(lane, None)

    def defer(self, blocks: Iterable[int]) -> None:
        self._more(self._deferred, blocks)

    def drain(self, blocks: Iterable[int]) -> None:
        self._fewer(self._deferred, blocks)

    def pin(self, blocks: Iterable[int]) -> None:
        self._more(self._pinned, blocks)

    def unpin(self, blocks: Iterable[int]) -> None:
        self._fewer(self._pinned, blocks)

    def quarantine(self, blocks: Iterable[int]) -> None:
        self._more(self._quarantined, blocks)

    def unquarantine(self, blocks: Iterable[int]) -> None:
        self._fewer(self._quarantined, blocks)

    def write(self, lane: int, blocks: Iterable[int], *, started: bool) -> None:
        """A load of ``lane`` is admitted for ``blocks``, or has started to write them."""
        for b in blocks:
            self._writer[b] = (lane, started)
            self._touched.add(b)

    def written(self, lane: int, blocks: Iterable[int]) -> None:
        """The load of ``lane`` has ended."""
        for b in blocks:
            if self._writer.get(b, (NOBODY, False))[0] == lane:
                del self._writer[b]
            self._touched.add(b)

    def runs(self, lane: int, running: bool) -> None:
        if running != (lane in self._running):
            (self._running.add if running else self._running.discard)(lane)
            self._touched.update(self.held.get(lane, ()))

    # ------------------------------------------------------------ what is drawn

    def settle(self) -> list[int]:
        """Bring ``at`` and ``counts`` up to date; changes as flat ``[block, place, lane, ...]``."""
        flat: list[int] = []
        for b in self._touched:
            new = self._place(b)
            old = self.at.get(b, (FREE, NOBODY))
            if new == old:
                continue
            self.counts[old[0]] -= 1
            self.counts[new[0]] += 1
            if new[0] == FREE:
                del self.at[b]
            else:
                self.at[b] = new
            flat += (b, *new)
        self._touched.clear()
        return flat

    def _place(self, b: int) -> tuple[int, int]:
        holders = self._holders.get(b)
        shown = holders[-1] if holders else NOBODY
        writer = self._writer.get(b)
        if b in self._quarantined:
            return QUARANTINED, shown
        if writer is not None and writer[1] and (not holders or writer[0] not in holders):
            return HAZARD, writer[0]
        if not holders:
            if b in self._deferred:
                return FENCED, NOBODY
            return (PINNED if b in self._pinned else FREE), NOBODY
        if writer is not None:
            return (LOADING if writer[1] else GATED), writer[0]
        if len(holders) > 1:
            return SHARED, shown
        return (RUNNING if shown in self._running else PARKED), shown

    def _more(self, counts: dict[int, int], blocks: Iterable[int]) -> None:
        for b in blocks:
            counts[b] = counts.get(b, 0) + 1
            self._touched.add(b)

    def _fewer(self, counts: dict[int, int], blocks: Iterable[int]) -> None:
        for b in blocks:
            _less(counts, b)
            self._touched.add(b)
