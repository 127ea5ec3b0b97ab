"""Feasible: what becomes of a request that the empty pool could not serve.

``fits`` comes from the engine's own allocation test on an empty pool (minus quarantine). Sources: spec
``Feasible``; vLLM #39734.
"""

from __future__ import annotations

from enum import StrEnum


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
