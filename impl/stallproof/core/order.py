"""One scheduling order, and putting queues into it with little work.

``key`` is ``(priority, arrival)``; under first come, first served the priority counts for nothing. Queues are
nearly ordered: what has to move is a few requests near the head. Source: OneOrder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableSequence, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
Key = Callable[[Any], Any]


def in_order(items: Sequence[T], key: Key) -> bool:
    """Whether ``items`` never step back in ``key``."""
    it = iter(items)
    last = next(it, None)
    if last is None:
        return True
    a = key(last)
    for x in it:
        b = key(x)
        if b < a:
            return False
        a = b
    return True


def insert_from_front(queue: MutableSequence[T], items: Iterable[T], key: Key) -> None:
    """Put ``items`` into the ordered ``queue``, each behind everything that is not younger.

    Work is proportional to how far from the head each one goes, which is little for the requests this is
    used on (deferred, preempted and evicted ones are older than the newcomers).
    """
    pos = 0
    for item in sorted(items, key=key):
        k = key(item)
        n = len(queue)
        while pos < n and key(queue[pos]) <= k:
            pos += 1
        queue.insert(pos, item)
        pos += 1
