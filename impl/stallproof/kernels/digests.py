"""Sampled checksums of immutable blocks: which to take, which to compare, and what a difference means.

A block that is full and in the prefix cache must not change until it leaves the cache. The worker takes its
checksum at the end of the step that completes it and compares it when the block is hit and when it is
evicted, on the compute stream ahead of the step's own work. A difference is a write in between, whoever made
it: a remote peer, a stray copy, a kernel. Pure and without torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .ledger import Finding, Report

#: how a comparison came about; ``Finding.at`` of one that failed
HIT, EVICTED = "hit", "evicted"


@dataclass(frozen=True)
class _Taken:
    step: int  # at whose end
    request: str  # that filled the block
    key: Any  # identity of its entry in the prefix cache


class Digests:
    """Every ``every``-th block that enters the prefix cache is watched; ``every`` 1: all.

    ``taken``, ``compared`` count; ``skipped``: evicted for a load, whose agent may write before a comparison
    could run.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.taken = self.compared = self.skipped = 0
        self._entered = 0
        self._new: dict[int, tuple[str, Any]] = {}  # completed by the step being built
        self._gone: dict[int, _Taken] = {}  # left the cache since the last plan
        self._known: dict[int, _Taken] = {}
        self._asked: dict[tuple[int, int], tuple[_Taken, str]] = {}  # (step, block) -> what is compared

    def entered(self, block: int, request: str, key: Any) -> None:
        """``block`` of ``request`` is full and has entered the prefix cache as ``key``."""
        self._known.pop(block, None)
        self._entered += 1
        if self._entered % self.every == 0:
            self._new[block] = (request, key)

    def left(self, block: int, key: Any) -> None:
        """``block``, so far cached as ``key``, leaves the prefix cache."""
        self._new.pop(block, None)
        known = self._known.pop(block, None)
        if known is not None and known.key == key:
            self._gone[block] = known

    def reset(self) -> None:
        """The whole prefix cache was dropped."""
        self._new.clear()
        self._known.clear()
        self._gone.clear()

    def plan(
        self, step: int, shared: Iterable[tuple[str, int]], handed: Iterable[int], loads: Iterable[int]
    ) -> tuple[tuple[int, ...], dict[int, str]]:
        """(blocks whose checksum to take at the end of ``step``, block -> why to compare at its begin).

        ``shared``: prefix hits of this call as (request, block); ``handed``: blocks given out in it;
        ``loads``: blocks that a load may write.
        """
        verify: dict[int, str] = {}
        busy = set(loads)
        for request, block in shared:
            if block in self._known:
                verify[block] = HIT
                self._asked[step, block] = (self._known[block], f"hit by {request}")
        for block in handed:
            known = self._gone.pop(block, None)  # one call may hand a block out twice, and fill it, too
            if known is None:
                continue
            if block in busy:
                self.skipped += 1
            else:
                verify[block] = EVICTED
                self._asked[step, block] = (known, "evicted")
        self._gone.clear()  # taken out of the cache for another reason: it may change from now on
        for block in self._new:
            self._known[block] = _Taken(step, *self._new[block])
        take = tuple(self._new)
        self._new.clear()
        self.taken += len(take)
        self.compared += len(verify)
        return take, verify

    def explain(self, f: Finding) -> Report:
        """A checksum that differs."""
        known, how = self._asked.get((f.step, f.block), (_Taken(0, "", None), f.at))
        cause = f"{f.job}, full since step {known.step}, changed before it was {how} in step {f.step}"
        return Report("PrefixValid", known.request, f.block, f.step, f.expected, f.seen, f.at, cause)

    def forget(self, step: int) -> None:
        """No finding of ``step`` or of an older step can come any more."""
        for key in [k for k in self._asked if k[0] <= step]:
            del self._asked[key]
