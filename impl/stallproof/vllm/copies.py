"""The recorder's eyes for copy-on-write: both ends of a copy stay out of the pool until it has run.

A prefix hit that ends inside a block gives its request a private copy of that block. The engine keeps a
reference of its own to source and copy until the step that copies is processed. Those are neither the
request's nor a deferred release of one, so a trace says ``pin`` and ``unpin``, one name per copy.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from stallproof.trace import schema as T

if TYPE_CHECKING:
    from stallproof.vllm.ledger_probe import Probe


class Copies:
    """Copies whose ends are pinned, and releases of them that wait for a step."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.pinned: dict[str, list[int]] = {}  # name -> source, copy
        self.waiting: list[list[int]] = []  # sorted ids, oldest first

    def hook(self, call: Any) -> Any:
        """Around a manager's ``_apply_cow``: from now on the pin, not the request, holds the source."""
        probe = self.probe

        def apply_cow(request_id: str, block_idx: int, source: Any, copy: Any, *a: Any, **k: Any) -> Any:
            result = call(request_id, block_idx, source, copy, *a, **k)
            pair = [source.block_id, copy.block_id]
            who = f"copy-{request_id}-{copy.block_id}"
            self.pinned[who] = pair
            probe.others.update(pair)
            probe.rec.emit(T.Pin(who, pair))
            probe.tables[request_id][source.block_id] -= 1
            probe.rec.emit(T.Free(request_id, [source.block_id]))
            return result

        return apply_cow

    def put_off(self, blocks: list[Any]) -> None:
        """The engine releases these ends once their step is processed."""
        self.waiting.append(sorted(b.block_id for b in blocks))

    def released(self, ids: list[int], now: bool) -> bool:
        """``ids`` go back to the pool: whether they are ends of copies. ``now``: they were not put off."""
        if not now:
            if not self.waiting or self.waiting[0] != sorted(ids):
                return False
            del self.waiting[0]
        left = Counter(ids)
        for who, pair in list(self.pinned.items()):
            if all(left[b] > 0 for b in pair):
                left.subtract(pair)
                del self.pinned[who]
                self.probe.others.subtract(pair)
                self.probe.rec.emit(T.Unpin(who, pair))
        return True
