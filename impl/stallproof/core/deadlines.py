"""Deadlines of external waits; the caller owns the clock. Spec: BoundedWait."""

from __future__ import annotations


class Deadlines:
    """Name -> moment by which the wait must have ended; ``limit`` <= 0 means there is no deadline.

    A wait that is begun again keeps its first moment, so that repeated answers cannot renew it. Names are
    kept in order of expiry, so ``expired`` looks at one name while nothing is late.
    """

    __slots__ = ("due", "limit")

    def __init__(self, limit: float) -> None:
        self.limit = limit
        #: the same object for good, so that "anything waiting?" costs its caller no call
        self.due: dict[str, float] = {}

    def begin(self, name: str, now: float) -> None:
        if self.limit > 0:
            self.due.setdefault(name, now + self.limit)

    def end(self, name: str) -> None:
        self.due.pop(name, None)

    def is_over(self, name: str, now: float) -> bool:
        due = self.due.get(name)
        return due is not None and now >= due

    def expired(self, now: float) -> list[str]:
        """Names whose deadline has passed, removed."""
        late: list[str] = []
        for name, due in self.due.items():  # one limit: insertion order is order of expiry
            if due > now:
                break
            late.append(name)
        for name in late:
            del self.due[name]
        return late

    def __len__(self) -> int:
        return len(self.due)

    def __contains__(self, name: str) -> bool:
        return name in self.due
