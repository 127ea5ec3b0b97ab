"""Fences per block: the newest step that may touch it, over all its past users.

``raise_to`` is called for every release, whoever releases (a request, a pin, a copy, a pruned window), so a
block that is freed and handed out twice within one call keeps the highest step. Spec: ``fence``.
"""

from __future__ import annotations

from collections.abc import Iterable

from stallproof.core.steps import Steps


class BlockFences:
    """Block id -> step. A block that is not listed is quiescent."""

    __slots__ = ("_fence", "_steps")

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._fence: dict[int, int] = {}

    def raise_to(self, blocks: Iterable[int], step: int) -> None:
        fence = self._fence
        for block in blocks:
            if fence.get(block, 0) < step:
                fence[block] = step

    def newest(self, blocks: Iterable[int]) -> int:
        """Highest fence over ``blocks``; 0 if all are quiescent."""
        fence = self._fence
        return max((fence.get(b, 0) for b in blocks), default=0)

    def quiescent(self, blocks: Iterable[int]) -> bool:
        return self._steps.passed(self.newest(blocks))

    def prune(self) -> None:
        """Forget fences that have passed, so that memory stays bounded by the blocks released in flight."""
        passed = self._steps.passed
        self._fence = {b: s for b, s in self._fence.items() if not passed(s)}

    def __len__(self) -> int:
        return len(self._fence)
