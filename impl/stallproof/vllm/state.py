"""What the guard remembers: for one engine, and for one scheduling call."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Call:
    """One scheduling call, from before ``super().schedule()`` to after it."""

    closed: bool = False  #: a running request was refused: nobody is admitted
    closed_new: bool = False  #: holders gave their blocks up: no non-holder gets any
    waited: bool = False  #: patience, or the engine's fence, kept the victims
    keeping: bool = False  #: 0.23 to 0.29: victims popped from now on are put back
    full: bool = False  #: the call used its whole token budget while requests wait
    preempted: int = 0
    running_before: int = 0
    target: Any = None  #: request refused last, if known
    loading: bool = False  #: it asked for blocks of a load, too
    fenced: str = ""  #: request whose load waits for steps in flight, if it cannot start later
    kept: list[Any] = field(default_factory=list)
    evicted: list[Any] = field(default_factory=list)

    def used(self) -> bool:
        """Whether anything but ``running_before`` was set; if not, the next call takes the same object."""
        return bool(
            self.closed or self.closed_new or self.waited or self.keeping or self.full or self.preempted
            or self.target is not None or self.kept or self.evicted or self.fenced
        )  # fmt: skip


@dataclass(slots=True)
class Load:
    """An external load that has its blocks. ``held``: its start is gated."""

    gen: int
    request: Any
    held: bool = False


@dataclass(slots=True)
class Counts:
    """How often each rule fired, and in shadow mode would have fired."""

    fired: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    loads: int = 0
    held: int = 0
    evictions: int = 0
    preemptions_avoided: int = 0
