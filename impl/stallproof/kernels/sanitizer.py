"""The device side of the sanitizer: carries out plans with the kernels and collects what they found.

Nothing here blocks the compute stream or waits for it; results are read when their event has passed. The tags
are one int32 per block: a pool of 20 GB in blocks of 128 tokens has about two thousand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from . import ops
from .device import Device, Event
from .digests import EVICTED
from .ledger import Entry, Finding, Job, StepPlan
from .segments import Segments

#: 32-bit words that fill a poisoned block. NaN in every element, or a finite value far from any real one.
NAN = {"bfloat16": 0x7FC07FC0, "float16": 0x7E007E00, "float32": 0x7FC07FC0, "float8": 0x7F7F7F7F}
FINITE = {"bfloat16": 0x47004700, "float16": 0x78007800, "float32": 0x47000000, "float8": 0x70707070}


def pattern(dtype: torch.dtype, kind: str) -> int:
    """The word that poisons a cache of ``dtype``: ``zero``, ``nan`` or ``finite``.

    An int8 cache has no NaN; both kinds give 0x80 in every byte.
    """
    if kind == "zero":
        return 0
    name = str(dtype).removeprefix("torch.")
    name = "float8" if name.startswith("float8") else name
    return (NAN if kind == "nan" else FINITE).get(name, 0x80808080)


@dataclass
class _Check:
    """One kernel run whose result is still on the device."""

    at: str
    step: int
    job: str
    entries: Sequence[Entry] = ()
    expect: Mapping[int, int] = field(default_factory=dict)  # of a dense check
    event: Event | None = None  # None: done when it was submitted
    result: torch.Tensor | None = None
    seen: torch.Tensor | None = None

    def findings(self) -> list[Finding]:
        assert self.result is not None
        assert self.seen is not None
        if not int(self.result.sum()):
            return []
        seen = self.seen.tolist()
        out = [
            Finding(self.at, b, want, seen[b], self.step)
            for b, want in self.expect.items()
            if want and seen[b] != want
        ]
        for i, e in enumerate(self.entries):
            want = e.before if self.at in ("stamp", "start", "pool") else e.tag
            if want and seen[i] != want:
                out.append(Finding(self.at, e.block, want, seen[i], self.step, self.job))
        return out


@dataclass
class _Comparison:
    """Checksums of one step's listed blocks, and where their earlier ones are: (tensor, row) each."""

    step: int
    why: Mapping[int, str]
    before: Sequence[tuple[torch.Tensor, int]]
    now: torch.Tensor
    event: Event
    segments: Segments

    def findings(self) -> list[Finding]:
        out, now = [], self.now.tolist()
        for (block, why), (old, row), seen in zip(self.why.items(), self.before, now, strict=True):
            for s, (want, got) in enumerate(zip(old[row].tolist(), seen, strict=True)):
                if want != got:
                    where = f"segment {self.segments.segments[s].name}"
                    out.append(Finding(why, block, want, got, self.step, where))
                    break
        return out


class Sanitizer:
    """Stamps, checks and poisons ``blocks`` blocks on ``device``.

    ``cache``: needed only by plans that fill blocks or take checksums; ``fill``: the word they are filled
    with; ``fill_device``: where fills and checksums run, if not on ``device`` (they must keep their place
    among the step's real work even where ``device`` is a simulation that lags).
    """

    def __init__(
        self,
        device: Device,
        blocks: int,
        *,
        where: torch.device | str = "cpu",
        cache: Segments | None = None,
        fill: int = 0,
        backend: str | None = None,
        fill_device: Device | None = None,
    ) -> None:
        self.fill_device = fill_device or device
        self.device, self.cache, self.fill, self.backend = device, cache, fill, backend
        self.blocks = blocks
        self.tags = ops.new_tags(blocks, where)
        self._pending: deque[_Check] = deque()
        self._open: dict[int, Mapping[int, int]] = {}  # step -> what it expects, between begin and end
        self._readers: dict[str, Event] = {}
        self._take: dict[int, Sequence[int]] = {}  # step -> blocks, between begin and end
        self._sums: dict[int, tuple[torch.Tensor, int]] = {}  # block -> its checksums, one per segment
        self._compared: deque[_Comparison] = deque()
        self.checks = 0

    def jobs(self, jobs: Iterable[Job]) -> None:
        """Unordered stamps and checks, done when this returns: no agent may write before its stamp.

        Only the first check of a reader is ordered with the compute stream, as its start is.
        """
        for job in jobs:
            check = self._check(job.kind, 0, job.job, job.entries)
            if job.kind == "read":
                # a reader starts behind the steps dispatched before it; that it is done says they are, too
                self._launch(check, lambda check=check: self._pairs(check))  # type: ignore[misc]
                assert check.event is not None
                self._readers[job.job] = check.event
                continue
            if job.kind == "read_done" and (event := self._readers.pop(job.job, None)) is not None:
                event.synchronize()
            work = self._stamp if job.kind in ("start", "pool") else self._pairs
            self.device.immediately(lambda work=work, check=check: work(check))  # type: ignore[misc]

    def begin(self, plan: StepPlan) -> None:
        """The begin of a step, on the compute stream: comparisons, fills, ordered stamps, first check."""
        if plan.verify:
            self._verify(plan.step, plan.verify)
        if plan.take:
            self._take[plan.step] = plan.take
        self._fill(plan.fill)
        if plan.stamps:
            check = self._check("stamp", plan.step, "", plan.stamps)
            self._launch(check, lambda: self._stamp(check))
        if plan.expect:
            self._open[plan.step] = plan.expect
            self._bracket("begin", plan.step)

    def end(self, step: int) -> None:
        """The end of a step, on the compute stream after its last KV write: second check, checksums."""
        if step in self._open:
            self._bracket("end", step)
            del self._open[step]
        if blocks := self._take.pop(step, ()):
            sums, _ = self._checksums(blocks)
            for row, b in enumerate(blocks):
                self._sums[b] = (sums, row)

    def around(self, step: int, tags: Mapping[int, int], work: Callable[[], object]) -> None:
        """Check ``tags`` on the compute stream right ahead of and right behind what ``work`` submits there.

        For a reader or writer that a step carries for blocks of nobody it schedules: the gather of a save.
        """
        entries = [Entry(b, t) for b, t in tags.items() if t]
        for at in ("begin", "end"):
            check = self._check(at, step, "", entries)
            self._launch(check, lambda check=check: self._pairs(check))  # type: ignore[misc]
            if at == "begin":
                work()

    def collect(self) -> list[Finding]:
        """Findings of the checks whose event has passed, in order. Never blocks."""
        out: list[Finding] = []
        for check in [c for c in self._pending if c.event is None or c.event.query()]:
            self._pending.remove(check)
            out += check.findings()
        while self._compared and self._compared[0].event.query():
            out += self._compared.popleft().findings()
        return out

    # ------------------------------------------------------------ inside

    def _check(self, at: str, step: int, job: str, entries: Sequence[Entry]) -> _Check:
        check = _Check(at, step, job, entries)
        self._pending.append(check)
        self.checks += 1
        return check

    def _launch(self, check: _Check, work: Callable[[], object]) -> None:
        stream = self.device.compute()
        self.device.launch(stream, work)
        check.event = self.device.event()
        check.event.record(stream)

    def _bracket(self, at: str, step: int) -> None:
        check = self._check(at, step, "", ())
        check.expect = self._open[step]
        self._launch(check, lambda: self._dense(check))

    def _checksums(self, blocks: Sequence[int]) -> tuple[torch.Tensor, Event]:
        """int32 [blocks, segments], and the event behind the launch."""
        assert self.cache is not None, "a plan that takes checksums needs a cache"
        device, cache = self.fill_device, self.cache
        out = torch.zeros((len(blocks), len(cache)), dtype=torch.int32, device=cache.device)

        def work() -> None:
            ids = device.upload(blocks)
            out.copy_(ops.checksum_blocks(cache, ids, backend=self.backend, cores=device.cores))

        stream = device.compute()
        device.launch(stream, work)
        event = device.event()
        event.record(stream)
        return out, event

    def _verify(self, step: int, why: Mapping[int, str]) -> None:
        known = {b: w for b, w in why.items() if b in self._sums}
        if known:
            now, event = self._checksums(list(known))
            before = [self._sums[b] for b in known]
            assert self.cache is not None
            self._compared.append(_Comparison(step, known, before, now, event, self.cache))
        for b, w in why.items():
            if w == EVICTED:
                self._sums.pop(b, None)

    def _fill(self, blocks: Sequence[int]) -> None:
        if not blocks:
            return
        assert self.cache is not None, "a plan that fills needs a cache"
        cache = self.cache

        def work() -> None:
            ids = self.fill_device.upload(blocks)
            ops.fill_blocks(cache, ids, self.fill, backend=self.backend, cores=self.fill_device.cores)

        self.fill_device.launch(self.fill_device.compute(), work)

    # Uploads happen inside the work, hence on the stream that runs it: they need no order of their own.

    def _stamp(self, check: _Check) -> None:
        upload, entries = self.device.upload, check.entries
        check.result, check.seen = ops.tag_stamp(
            self.tags,
            upload([e.block for e in entries]),
            upload([e.before for e in entries]),
            upload([e.tag for e in entries]),
            backend=self.backend,
        )

    def _pairs(self, check: _Check) -> None:
        upload, entries = self.device.upload, check.entries
        check.result, check.seen = ops.tag_check_pairs(
            self.tags,
            upload([e.block for e in entries]),
            upload([e.tag for e in entries]),
            backend=self.backend,
            cores=self.device.cores,
        )

    def _dense(self, check: _Check) -> None:
        row = [0] * self.blocks
        for b, t in check.expect.items():
            row[b] = t
        check.result, check.seen = ops.tag_check_dense(
            self.tags, self.device.upload(row), backend=self.backend, cores=self.device.cores
        )
