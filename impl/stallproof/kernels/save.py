"""Save and restore: an evicted holder's blocks to a bounded host store, and back without recomputation.

``spec/SaveRestore.tla`` says what must hold; the names are the same. The order that makes it safe:

* *save*: a gather on the compute stream, ahead of everything that may reuse the blocks there, into a staging
  row; a copy engine takes the row to the host behind the gather's event. The blocks are free at once. For an
  unordered writer (a load) the gather belongs to the step that carries it: close that step's fence behind it.
* *restore*: the copy engine fills a row; when that is done, and not before, a scatter into fresh blocks is
  submitted to the compute stream, so the stream never waits for the host. Steps submitted later read behind
  it.
* a row is busy until the last operation that uses it has passed. No row, or no room: the save is refused,
  which is a plain eviction; the restore is refused, and the caller computes again or asks later.

Not wired into the scheduler class: see ``docs/kernels/save-restore.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import BadInput
from . import ops
from .device import Device, Event
from .segments import WORD, Segments

SAVING, SAVED, RESTORING, RESIDENT = "saving", "saved", "restoring", "resident"

#: copies rows: (source, its rows, target, its rows), enqueued on the stream that is current
Copy = Callable[[torch.Tensor, Sequence[int], torch.Tensor, Sequence[int]], None]


def copy_rows(
    source: torch.Tensor, source_rows: Sequence[int], target: torch.Tensor, target_rows: Sequence[int]
) -> None:
    """One copy per run of rows that are neighbours on both sides."""
    first = 0
    for i in range(1, len(source_rows) + 1):
        a, b = source_rows[first], target_rows[first]
        n = i - first
        if i == len(source_rows) or source_rows[i] != a + n or target_rows[i] != b + n:
            target[b : b + n].copy_(source[a : a + n], non_blocking=True)
            first = i


def batched_copy(kind: str) -> Copy | None:
    """The platform's own batched copy between device and host, if this process has one.

    vLLM's ``swap_blocks_batch`` (CUDA, ROCm) or vllm-ascend's (CANN 8.5 and later). Never run here: there is
    neither device on the machines that test this. None: use :func:`copy_rows`.
    """
    space = {"cuda": "_C_cache_ops", "npu": "_C_ascend"}.get(kind, "")
    op = getattr(getattr(torch.ops, space), "swap_blocks_batch", None) if space else None
    if op is None:
        return None
    if kind == "npu":
        return lambda *rows: op(*_pointers(*rows))
    return lambda *rows: op(*_pointers(*rows), False)


def _pointers(
    source: torch.Tensor, source_rows: Sequence[int], target: torch.Tensor, target_rows: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Addresses and sizes in bytes, int64 on the host."""
    size = source.shape[1] * WORD

    def addresses(t: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
        return torch.tensor([t.data_ptr() + r * size for r in rows], dtype=torch.int64)

    return (
        addresses(source, source_rows),
        addresses(target, target_rows),
        torch.full((len(source_rows),), size, dtype=torch.int64),
    )


@dataclass
class _Row:
    """One staging buffer. ``event``: behind its last operation; None: it is free."""

    staging: torch.Tensor
    name: str = ""
    event: Event | None = None
    then: Callable[[], None] = lambda: None


@dataclass
class _Kept:
    """What the store has of one request. ``slots``: its records on the host, in the order of its blocks."""

    state: str
    slots: list[int]
    row: int = -1
    blocks: list[int] = field(default_factory=list)


class SaveStore:
    """``capacity`` blocks on the host, ``buffers`` staging rows of ``width`` blocks each on the device.

    One block is one record: all its segments, as in :func:`~stallproof.kernels.ops.gather_blocks`. ``copy``
    moves records between staging and host; by default the platform's batched copy, else :func:`copy_rows`.
    Not for several threads. Raises BadInput for sizes below 1.
    """

    def __init__(
        self,
        device: Device,
        cache: Segments,
        *,
        capacity: int,
        width: int,
        buffers: int = 2,
        copy: Copy | None = None,
        backend: str | None = None,
    ) -> None:
        if min(capacity, width, buffers) < 1:
            raise BadInput(f"store of {capacity} blocks, {buffers} rows of {width}", remedy="1 or more each")
        self.device, self.cache, self.backend = device, cache, backend
        self.capacity, self.width = capacity, width
        self.host = torch.zeros((capacity, cache.total), dtype=torch.int32)
        if cache.device.type != "cpu":
            self.host = self.host.pin_memory()
        self.copy = copy or batched_copy(cache.device.type) or copy_rows
        self.rows = [_Row(cache.staging(width)) for _ in range(buffers)]
        self._engine = device.side()  # the copy engine: ordered with nothing but itself
        self._free = list(range(capacity))
        self._kept: dict[str, _Kept] = {}
        self.saved_blocks = self.restored_blocks = self.refused = 0

    # ------------------------------------------------------------ what the caller does

    def save(self, name: str, blocks: Sequence[int]) -> int:
        """Save leading ``blocks`` of ``name``; how many: 0 is a plain eviction.

        Call it while the step is built that may hand the blocks on, ahead of that step's own work; the
        step's fence covers the gather. Raises ValueError if ``name`` is in the store already.
        """
        if name in self._kept:
            raise ValueError(f"{name} is in the store")
        self.poll()
        i = self._idle_row()
        n = min(len(blocks), self.width, len(self._free))
        if i < 0 or n == 0:
            self.refused += 1
            return 0
        row, listed = self.rows[i], list(blocks[:n])
        slots = [self._free.pop() for _ in range(n)]
        kept = self._kept[name] = _Kept(SAVING, slots, i)
        compute = self.device.compute()
        self.device.launch(compute, lambda: self._gather(row, listed))
        gathered = self.device.event()
        gathered.record(compute)
        self._wait_for_gather(gathered)
        self.device.launch(
            self._engine, lambda: self.copy(row.staging, range(n), self.host, slots)
        )  # behind the gather, and ahead of the next use of the row
        self._use(i, name, self._engine, lambda: self._saved(name, kept))
        self.saved_blocks += n
        return n

    def restore(self, name: str, blocks: Sequence[int]) -> bool:
        """Bring ``name`` back into fresh ``blocks``, as many as were saved; False: no row is free now.

        :meth:`due` says when steps may read them. Raises ValueError if ``name`` is not saved.
        """
        self.poll()
        kept = self._kept.get(name)
        if kept is None or kept.state != SAVED or len(blocks) != len(kept.slots):
            raise ValueError(f"{name}: {self.state(name) or 'not in the store'}, {len(blocks)} blocks")
        i = self._idle_row()
        if i < 0:
            self.refused += 1
            return False
        row, slots = self.rows[i], kept.slots
        kept.state, kept.row, kept.blocks = RESTORING, i, list(blocks)
        self.device.launch(self._engine, lambda: self.copy(self.host, slots, row.staging, range(len(slots))))
        self._use(i, name, self._engine, lambda: self._came_in(i, name, kept))
        return True

    def due(self) -> list[str]:
        """Restored requests: their scatters are submitted, so steps submitted from now on may read.

        Call it while a step is built, ahead of its own work; the step's fence covers the scatters.
        """
        self.poll()
        out = [n for n, k in self._kept.items() if k.state == RESIDENT]
        for n in out:
            del self._kept[n]
        return out

    def forget(self, name: str) -> None:
        """``name`` ends or is computed again. Blocks of a restore must be given back after this call."""
        kept = self._kept.pop(name, None)
        if kept is not None and kept.state == SAVED:
            self._free += kept.slots
        # else what runs on the row ends by itself; its continuation sees that the request is gone

    def state(self, name: str) -> str:
        """saving, saved, restoring; empty: resident, dropped or unknown."""
        return self._kept[name].state if name in self._kept else ""

    def blocks(self, name: str) -> int:
        """How many blocks of ``name`` the store keeps."""
        return len(self._kept[name].slots) if name in self._kept else 0

    def poll(self) -> None:
        """Go on with what has passed: may submit scatters, so call it while a step is built. Never blocks."""
        for row in self.rows:
            while row.event is not None and row.event.query():
                row.event, then = None, row.then
                then()

    def idle(self) -> bool:
        """No row is in use and every record belongs to a saved request."""
        return all(r.event is None for r in self.rows) and len(self._free) == self.capacity - sum(
            len(k.slots) for k in self._kept.values()
        )

    # ------------------------------------------------------------ inside

    def _idle_row(self) -> int:
        return next((i for i, r in enumerate(self.rows) if r.event is None), -1)

    def _use(self, i: int, name: str, stream: Any, then: Callable[[], None]) -> None:
        row = self.rows[i]
        row.name, row.event, row.then = name, self.device.event(), then
        row.event.record(stream)

    def _wait_for_gather(self, gathered: Event) -> None:
        self.device.wait(self._engine, gathered)

    def _saved(self, name: str, kept: _Kept) -> None:
        if self._kept.get(name) is kept:
            kept.state, kept.row = SAVED, -1
        else:
            self._free += kept.slots

    def _came_in(self, i: int, name: str, kept: _Kept) -> None:
        """The row has the content: the records are free, and the scatter may be submitted."""
        self._free += kept.slots
        if self._kept.get(name) is kept:
            self._scatter(i, name, kept)

    def _scatter(self, i: int, name: str, kept: _Kept) -> None:
        row, compute, blocks = self.rows[i], self.device.compute(), kept.blocks
        self.device.launch(compute, lambda: self._put(row, blocks))
        self._use(i, name, compute, lambda: None)
        kept.state = RESIDENT
        self.restored_blocks += len(blocks)

    # Uploads happen inside the work, hence on the stream that runs it.

    def _gather(self, row: _Row, blocks: Sequence[int]) -> None:
        ids = self.device.upload(blocks)
        ops.gather_blocks(self.cache, ids, row.staging, backend=self.backend, cores=self.device.cores)

    def _put(self, row: _Row, blocks: Sequence[int]) -> None:
        ids = self.device.upload(blocks)
        ops.scatter_blocks(self.cache, ids, row.staging, backend=self.backend, cores=self.device.cores)
