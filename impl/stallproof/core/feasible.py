"""Feasible: whether the empty pool could serve a request, and what becomes of it if not.

Admission is the engine's own test on an empty pool (minus quarantine); what the sequence needs once it is
admitted, look-ahead included, is counted here, group by group. Sources: spec ``Feasible``; vLLM #39734.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

#: of a group of layers: tokens in a block, and how many of n computed tokens nobody will look at again
Group = tuple[int, Callable[[int], int]]


class Wall(StrEnum):
    """How an infeasible request ends; ``SERVE``: it does not."""

    SERVE = "serve"
    ERROR = "error"
    LENGTH = "length"


def verdict(fits: bool, output_tokens: int, on_wall: str = "length") -> Wall:
    """``output_tokens``: tokens generated so far.

    A request without output never could run: error. One that outgrew the pool while decoding has a useful
    answer: it ends as ``length`` unless ``on_wall`` is ``error``.
    """
    if fits:
        return Wall.SERVE
    return Wall.LENGTH if output_tokens > 0 and on_wall == "length" else Wall.ERROR


def need(groups: Sequence[Group], start: int, end: int) -> int:
    """Blocks that tokens up to ``end`` fill, less those out of reach once ``start`` tokens are computed."""
    return sum(max(0, -(-end // size) - reach(start) // size) for size, reach in groups)


def least(groups: Sequence[Group], tokens: int, ahead: int, longest: int) -> int:
    """Blocks that computing the last of ``tokens`` needs, however small the chunks: no run needs fewer.

    ``ahead``: look-ahead slots; ``longest``: the longest sequence there can be.
    """
    return need(groups, max(0, tokens - 1), min(tokens + ahead, longest))


def peak(groups: Sequence[Group], tokens: int, ahead: int, longest: int, chunk: int) -> int:
    """The most blocks needed at once when ``tokens`` are computed from the start, ``chunk`` by ``chunk``."""
    return max(
        need(groups, at, min(min(at + chunk, tokens) + ahead, longest))
        for at in range(0, max(1, tokens), max(1, chunk))
    )
