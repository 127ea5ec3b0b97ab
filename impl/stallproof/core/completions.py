"""Completion protocol: which report from a connector the engine may see.

A report that the engine does not expect stops it (an assertion on the request's state) or frees blocks that
another transfer still uses (vLLM #46240, #43226: receives and sends of one request are counted apart). So a
report is accepted only if it answers something that is outstanding. Spec: ``Recv`` needs ``started[r]``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Verdict(StrEnum):
    """What to do with a report."""

    ACCEPT = "accept"  #: the engine sees it
    IGNORE = "ignore"  #: nothing answers to it
    HOLD = "hold"  #: noted; another transfer of the request still uses its blocks
    RELEASE = "release"  #: it ends a quarantine; the engine must not see it


class Life(StrEnum):
    """What the engine knows of the request when the report arrives."""

    UNKNOWN = "unknown"
    LOADING = "loading"  #: parked for a load
    LIVE = "live"  #: waiting or running
    FINISHED = "finished"  #: finished, blocks held for a transfer


@dataclass(slots=True)
class Completions:
    """Transfers of finished requests that still hold blocks: id -> outstanding ``recv`` and ``sent``."""

    outstanding: dict[str, set[str]] = field(default_factory=dict)

    def expect(self, rid: str, kind: str) -> None:
        """Finished ``rid`` keeps its blocks until ``kind`` is reported."""
        self.outstanding.setdefault(rid, set()).add(kind)

    def forget(self, rid: str) -> None:
        self.outstanding.pop(rid, None)

    def judge(
        self,
        rid: str,
        kind: str,
        life: Life,
        *,
        started: bool = True,
        received: bool = False,
        quarantined: bool = False,
    ) -> tuple[Verdict, str]:
        """Verdict and, unless accepted, the reason.

        ``started``: the load of a LOADING request has been handed to the connector. ``received``: its
        completion has been accepted before. ``quarantined``: an expired transfer of this id that such a
        report ends is outstanding; of loads one at most, since the id does not load again meanwhile.
        """
        if quarantined:
            return Verdict.RELEASE, "late"
        if life is Life.UNKNOWN:
            return Verdict.IGNORE, "unknown request"
        if life is Life.LIVE:
            return Verdict.IGNORE, "no transfer outstanding"
        if life is Life.LOADING:
            if kind == "sent":
                return Verdict.IGNORE, "nothing was sent"
            if not started:
                return Verdict.IGNORE, "the load has not started"
            if received:
                return Verdict.IGNORE, "duplicate"
            return Verdict.ACCEPT, ""
        open_kinds = self.outstanding.get(rid)
        if open_kinds is None:  # held for a reason we did not see: leave it to the engine
            return Verdict.ACCEPT, ""
        if kind not in open_kinds:
            return Verdict.IGNORE, "duplicate"
        open_kinds.discard(kind)
        if open_kinds:
            return Verdict.HOLD, f"waits for {', '.join(sorted(open_kinds))}"
        del self.outstanding[rid]
        return Verdict.ACCEPT, ""
