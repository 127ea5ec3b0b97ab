"""Commit eviction: take blocks from holders that do not run only if the target then runs for certain.

What a set of victims gives is the number of blocks whose last reference it drops: shared prefixes and pins
give nothing. Victims are strictly younger than their target. There is no cap but the number of holders.
Sources: spec operator ``Commit``; vLLM #40968 (least-progressed eviction, which can ping-pong for ever).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Holder:
    """A request that owns blocks and does not run. ``key``: its place in scheduling order."""

    rid: str
    key: Any
    blocks: Sequence[int]


@dataclass(frozen=True, slots=True)
class Plan:
    """``victims``, youngest first, give ``gain`` blocks, which suffices."""

    victims: tuple[str, ...]
    gain: int


def gain_of(victims: Collection[Holder], refs: Mapping[int, int], keep: Collection[int] = ()) -> int:
    """Blocks that return to the pool if all ``victims`` let go.

    ``refs``: reference count of each of their blocks. ``keep``: blocks the target takes over as prefix hits;
    they come back only to be taken again.
    """
    dropped = Counter(b for v in victims for b in v.blocks)
    return sum(1 for b, n in dropped.items() if n >= refs[b] and b not in keep)


def plan(
    target_key: Any,
    holders: Collection[Holder],
    refs: Mapping[int, int],
    fits: Callable[[int], bool],
    keep: Collection[int] = (),
) -> Plan | None:
    """The shortest run of youngest holders that makes the target fit, or None.

    ``fits(gain)`` answers whether the engine's own allocation test passes with ``gain`` more blocks free.
    None means that nothing must be evicted: no set of younger holders suffices.
    """
    younger = sorted((h for h in holders if h.key > target_key), key=lambda h: h.key, reverse=True)
    if not younger:
        return None
    total = gain_of(younger, refs, keep)
    if total <= 0 or not fits(total):
        return None
    low, high = 1, len(younger)  # fits is monotone in the gain, the gain in the length of the run
    while low < high:
        mid = (low + high) // 2
        g = gain_of(younger[:mid], refs, keep)
        if g > 0 and fits(g):
            high = mid
        else:
            low = mid + 1
    chosen = younger[:low]
    return Plan(tuple(v.rid for v in chosen), gain_of(chosen, refs, keep))
