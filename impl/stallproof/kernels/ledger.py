"""The host side of the sanitizer: which tag every access must find, and what a wrong tag means.

Pure and without torch. The engine (or the model, or a trace) tells the ledger what happens to blocks, in
order; the ledger answers with *plans*: tags to stamp, tags to check. A mismatch that the device finds comes
back as a :class:`Finding` and is explained as a :class:`Report` that names property, request, block, step and
epochs.

Two kinds of stamps. *Ordered*: a block handed to a request whose work is ordered with the device stream is
stamped at the begin of the first step that runs the request, on that stream. *Unordered*: a block handed to
a transfer agent is stamped before the agent may write, on no stream that the steps wait for. Every stamp says
which tag it must find, every step is checked at its begin *and* its end, every job (load, store) at its begin
and its end:

* a step that finds an unordered stamp was in flight when the block was given away: InFlightSafe;
* a load that finds another tag at its end lost its block: XferSafe;
* a store that finds another tag at its end was overwritten: StoreSafe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .tags import EPOCHS, LOADING, OWNED, POOL, describe, epoch_of, tag

#: holders that are no requests begin with this
_PIN = "\0pin "
#: jobs whose request is remembered, for explanations
JOBS = 65536
#: owners remembered per block, for explanations
HISTORY = 8


@dataclass(frozen=True)
class Entry:
    """One tag to stamp or to check. ``tag``: the value to stamp; for a check, the value to find.

    ``before``: the value a stamp must find, 0 for any.
    """

    block: int
    tag: int
    before: int = 0


@dataclass(frozen=True)
class Job:
    """An unordered operation. ``kind``: ``start`` and ``finish`` of a load, ``read`` and ``read_done`` of a
    store, ``pool`` for blocks that leave their owner under an unfinished load. ``after``: the newest step
    that the scheduler had processed then."""

    kind: str
    job: str
    entries: tuple[Entry, ...]
    after: int = 0


@dataclass(frozen=True)
class StepPlan:
    """What one step must do. ``now`` comes first and is not ordered with the device stream.

    On the stream: ``fill`` blocks, then ``stamps``, check ``expect``, the step's own work, check again.
    ``processed``: newest step whose output the scheduler had processed when it built this one.
    """

    step: int
    processed: int = 0
    now: tuple[Job, ...] = ()
    fill: tuple[int, ...] = ()
    stamps: tuple[Entry, ...] = ()
    #: block -> the tag that the step relies on
    expect: Mapping[int, int] = field(default_factory=dict)
    #: blocks whose checksum is taken at the step's end; block -> why it is compared, ahead of everything
    take: tuple[int, ...] = ()
    verify: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """A tag that was not as expected. ``at``: ``stamp``, ``begin`` or ``end`` of a step, or a job's kind.

    Or a checksum that was not (``hit``, ``evicted``); ``job`` then names the segment.
    """

    at: str
    block: int
    expected: int
    seen: int
    step: int = 0
    job: str = ""


@dataclass(frozen=True)
class Report:
    """An explained finding, in the vocabulary of the promise."""

    property: str
    request: str
    block: int
    step: int
    expected: int
    seen: int
    at: str
    cause: str
    job: str = ""

    def line(self) -> str:
        where = f"step {self.step}" if self.step else f"job {self.job}"
        say = _checksum if self.property == "PrefixValid" else describe
        return (
            f"{self.property}: {where} ({self.at}), request {self.request}, block {self.block}: "
            f"{say(self.expected)} expected, {say(self.seen)} found; {self.cause}"
        )


def _checksum(value: int) -> str:
    return f"checksum {value & 0xFFFFFFFF:08x}"


@dataclass
class _Block:
    tag: int = 0
    epochs: int = 0
    emitted: int = 0  # the tag that the device has when everything emitted so far is done
    holders: dict[str, int] = field(default_factory=dict)  # request -> the tag it relies on; pin -> count
    writer: str = ""  # unfinished load
    #: (tag, what happened, to whom, the job concerned)
    history: deque[tuple[int, str, str, str]] = field(default_factory=lambda: deque(maxlen=HISTORY))


class Ledger:
    """See the module. Requests and jobs are named by strings, blocks by ids below ``blocks``."""

    def __init__(self, blocks: int) -> None:
        self.blocks = [_Block() for _ in range(blocks)]
        self._held: dict[str, dict[int, int]] = {}
        self._loads: dict[str, dict[int, int]] = {}
        self._reads: dict[str, tuple[str, dict[int, int]]] = {}
        self._owner: dict[str, str] = {}  # job -> request
        #: newest step whose output the scheduler has processed; to be kept up to date
        self.processed = 0
        #: (kind, request or job, block, tag, processed then), in host order
        self._log: list[tuple[str, str, int, int, int]] = []
        self._steps: dict[int, dict[int, str]] = {}  # step -> block -> requests, until forgotten
        self._direct: list[Report] = []
        self._pins: dict[str, list[int]] = {}

    # ------------------------------------------------------------ what happens to blocks

    def alloc(self, request: str, blocks: Iterable[int]) -> None:
        """Fresh blocks, content invalid."""
        for b in blocks:
            t = self._next(b, OWNED, "handed to", request, "")
            self._hold(request, b, t)
            self._note("alloc", request, b, t)

    def share(self, request: str, blocks: Iterable[int]) -> None:
        """A prefix hit: ``request`` relies on the content as it is."""
        for b in blocks:
            self._hold(request, b, self.blocks[b].tag)

    def free(self, request: str, blocks: Iterable[int] | None = None) -> None:
        """``request`` stops holding ``blocks`` (all of its blocks if None)."""
        held = self._held.get(request, {})
        for b in list(held) if blocks is None else list(blocks):
            if held.pop(b, None) is None:
                continue
            self.blocks[b].holders.pop(request, None)
            self._left(b)
        if not held:
            self._held.pop(request, None)

    def quarantine(self, request: str, blocks: Iterable[int]) -> None:
        """``request`` stops holding ``blocks``, which stay reserved for their late writer."""
        held = self._held.get(request, {})
        for b in list(blocks):
            held.pop(b, None)
            self.blocks[b].holders.pop(request, None)
        if not held:
            self._held.pop(request, None)

    def pin(self, who: str, blocks: Iterable[int]) -> None:
        """``who``, no request (a deferred free, a store), keeps ``blocks`` out of the pool. Counts."""
        for b in blocks:
            self._pins.setdefault(who, []).append(b)
            name = f"{_PIN}{who}"
            self.blocks[b].holders[name] = self.blocks[b].holders.get(name, 0) + 1

    def unpin(self, who: str, blocks: Iterable[int]) -> None:
        for b in blocks:
            block, name = self.blocks[b], f"{_PIN}{who}"
            if b not in self._pins.get(who, ()):
                continue
            self._pins[who].remove(b)
            block.holders[name] -= 1
            if not block.holders[name]:
                del block.holders[name]
                self._left(b)

    def join(self, job: str, request: str, blocks: Iterable[int]) -> None:
        """A load that starts now and that the step being built waits for: its end is that step's end."""
        self._hand_over(job, request, blocks)

    def start(self, job: str, request: str, blocks: Iterable[int]) -> None:
        """From now on the load ``job`` of ``request`` may write ``blocks``, in no order with the stream."""
        self._loads[job] = self._hand_over(job, request, blocks)
        for b in self._loads[job]:
            self.blocks[b].writer = job

    def _hand_over(self, job: str, request: str, blocks: Iterable[int]) -> dict[int, int]:
        tags = {}
        for b in blocks:
            block = self.blocks[b]
            # the loader's own hand-out, not yet stamped, is the same ownership: one stamp, not two
            mine = ("alloc", request, b, block.tag)
            self._log = [x for x in self._log if x[:4] != mine]
            others = [h for h in block.holders if h != request and not h.startswith(_PIN)]
            t = self._next(b, LOADING, "handed to", f"load {job} of {request}", job)
            if others:
                cause = f"load {job} of {request} writes a block that it shares"
                self._direct.append(Report("XferSafe", others[0], b, 0, block.tag, t, "start", cause, job))
            if request in block.holders:
                self._hold(request, b, t)
            tags[b] = t
            self._note("start", job, b, t)
        self._own(job, request)
        return tags

    def finish(self, job: str) -> None:
        """The load has completed, failed or was reported late: it writes no more. Unknown jobs: nothing."""
        for b, t in self._loads.pop(job, {}).items():
            if self.blocks[b].writer == job:
                self.blocks[b].writer = ""
            self._note("finish", job, b, t)

    def read(self, job: str, request: str, blocks: Iterable[int]) -> None:
        """An unordered reader (store, send) of ``request``'s content starts.

        Blocks that no step has touched since their hand-out have no content to protect yet.
        """
        empty = {(b, t) for kind, _, b, t, _ in self._log if kind == "alloc"}
        tags = {b: self.blocks[b].tag for b in blocks if (b, self.blocks[b].tag) not in empty}
        self._reads[job] = (request, tags)
        self._own(job, request)
        for b, t in tags.items():
            self._note("read", job, b, t)

    def read_done(self, job: str) -> None:
        """It has completed, or was flushed ahead of a reuse."""
        _, tags = self._reads.pop(job, ("", {}))
        for b, t in tags.items():
            self._note("read_done", job, b, t)

    # ------------------------------------------------------------ plans

    def flush(
        self, zero: Iterable[int] = (), scheduled: Iterable[str] = ()
    ) -> tuple[tuple[Job, ...], tuple[Entry, ...]]:
        """(unordered jobs, ordered stamps) that are due.

        A hand-out is stamped by the first step that ``scheduled`` one of its holders: that step is the first
        to touch it. Until then it waits; taken back, it is dropped, and handed to a load, it is part of that
        load's stamp. ``zero``: blocks that the step zeroes, whoever holds them.
        """
        zeroed, runs = set(zero), set(scheduled)
        jobs: list[Job] = []
        stamps: list[Entry] = []
        waiting: list[tuple[str, str, int, int, int]] = []
        for item in self._log:
            kind, who, b, t, after = item
            block = self.blocks[b]
            if kind == "alloc":
                held = block.tag == t and bool(block.holders)
                if b in zeroed or (held and not runs.isdisjoint(block.holders)):
                    stamps.append(Entry(b, t, block.emitted))
                    block.emitted = t
                elif held:
                    waiting.append(item)
                elif block.tag == t:
                    block.tag = block.emitted
            elif kind in ("start", "pool"):
                _add(jobs, kind, who, Entry(b, t, block.emitted), after)
                block.emitted = t
            else:
                _add(jobs, kind, who, Entry(b, t), after)
        self._log = waiting
        return tuple(jobs), tuple(stamps)

    def plan(
        self,
        step: int,
        requests: Iterable[str],
        *,
        zero: Iterable[int] = (),
        fill: Iterable[int] = (),
    ) -> StepPlan:
        """The plan of ``step``, which schedules ``requests``; each is expected to own all of its blocks."""
        scheduled, zeroed = list(requests), list(zero)
        now, stamps = self.flush(zeroed, scheduled)
        expect: dict[int, tuple[int, str]] = {}
        for r in scheduled:
            for b, t in self._held.get(r, {}).items():
                if not t:
                    continue  # held since before the sanitizer looked
                other = expect.get(b)
                if other is None:
                    expect[b] = (t, r)
                elif other[0] == t:
                    expect[b] = (t, f"{other[1]}, {r}")
                else:
                    self._direct.append(
                        Report("OneOwner", r, b, step, t, other[0], "plan", f"request {other[1]} has it too")
                    )
        # a stamped block is touched even if its holder does not run: the stamp itself is a write
        for e in reversed(stamps):
            expect.setdefault(e.block, (e.tag, self._origin(e.block, e.tag)[1]))
        self._steps[step] = {b: r for b, (_, r) in expect.items()}
        for b in zeroed:
            if job := self.blocks[b].writer:
                t, cause = self.blocks[b].tag, f"load {job} may write what step {step} zeroes or copies"
                self._direct.append(
                    Report("InFlightSafe", self._owner.get(job, ""), b, step, t, t, "plan", cause, job)
                )
        return StepPlan(
            step, self.processed, now, tuple(fill), stamps, {b: t for b, (t, _) in expect.items()}
        )

    def forget(self, step: int) -> None:
        """No finding of ``step`` or of an older step can come any more."""
        for n in [n for n in self._steps if n <= step]:
            del self._steps[n]

    # ------------------------------------------------------------ explanations

    def reports(self, findings: Iterable[Finding] = ()) -> list[Report]:
        """Explained findings, and what the ledger found on its own."""
        out, self._direct = self._direct, []
        return out + [r for f in findings for r in self.explain(f)]

    def explain(self, f: Finding) -> list[Report]:
        """What a wrong tag means: decided by who looked and by how the tag that was found came about.

        A tag is the last of possibly several: a step that finds a newer one was overtaken by every hand-over
        since the tag it expected, and each gets its report.
        """
        request = self._steps.get(f.step, {}).get(f.block, "") if f.step else self._owner.get(f.job, "")
        request = request or self._origin(f.block, f.expected)[1]

        def report(name: str, seen: int, cause: str, job: str) -> Report:
            return Report(name, request, f.block, f.step, f.expected, seen, f.at, cause, job)

        if _newer(f.seen, f.expected):
            if f.job:
                what, who, _ = self._origin(f.block, f.seen)
                name = "StoreSafe" if f.at in ("read", "read_done") else "XferSafe"
                return [report(name, f.seen, f"{what} {who}", f.job)]
            out = []
            for tag_, what, who, job in self.blocks[f.block].history:
                if not _newer(tag_, f.expected) or _newer(tag_, f.seen):
                    continue
                if tag_ & 3 == LOADING:
                    cause = f"{what} {who} while step {f.step} was not device done"
                    out.append(report("InFlightSafe", tag_, cause, job))
                elif tag_ & 3 == POOL:
                    out.append(report("XferSafe", tag_, f"{what} {who}", job))
                elif tag_ == f.seen:
                    out.append(report("OneOwner", tag_, f"{what} {who}", job))
            return out or [report("OneOwner", f.seen, "handed to an owner long gone", "")]
        # Older than what must be there: a step in flight overwrote the newer tag, or had yet to run.
        what, who, job = self._origin(f.block, f.expected)
        cause = f"{what} {who}, and a step that was in flight then reached the block afterwards"
        blame = job or f.job
        reader = f.at in ("read", "read_done")
        name = "InFlightSafe" if job or (not reader and (f.job or f.at == "stamp")) else "StreamOrder"
        out = [report(name, f.seen, cause, blame)]
        if (
            f.at == "finish"
        ):  # two breaches at once: the block also left the load, but that mark is overwritten
            for tag_, what, who, left in self.blocks[f.block].history:
                if left == f.job and tag_ & 3 == POOL and _newer(tag_, f.expected):
                    out.append(report("XferSafe", f.seen, f"{what} {who}", f.job))
        return out

    def held(self, request: str) -> Mapping[int, int]:
        """block -> tag that ``request`` relies on."""
        return self._held.get(request, {})

    def holds(self, block: int) -> bool:
        """Whether anybody holds ``block``."""
        return bool(self.blocks[block].holders)

    def writing(self, block: int) -> str:
        """The unfinished load that may write ``block``, or the empty string."""
        return self.blocks[block].writer

    def handed_out(self) -> set[int]:
        """Blocks handed out since the last flush."""
        return {b for kind, _, b, _, _ in self._log if kind == "alloc"}

    def reading(self) -> set[int]:
        """Blocks that an unfinished reader reads."""
        return {b for _, tags in self._reads.values() for b in tags}

    # ------------------------------------------------------------ inside

    def _own(self, job: str, request: str) -> None:
        self._owner[job] = request
        while len(self._owner) > JOBS:
            del self._owner[next(iter(self._owner))]

    def _note(self, kind: str, who: str, b: int, t: int) -> None:
        self._log.append((kind, who, b, t, self.processed))

    def _left(self, b: int) -> None:
        """Somebody stopped holding ``b``: if it was the last and a load is unfinished, that is an epoch."""
        block = self.blocks[b]
        if block.writer and not block.holders:
            t = self._next(b, POOL, "freed under the unfinished", f"load {block.writer}", block.writer)
            self._note("pool", block.writer, b, t)
            block.writer = ""

    def _next(self, b: int, state: int, what: str, who: str, job: str) -> int:
        block = self.blocks[b]
        block.epochs += 1
        block.tag = tag(block.epochs, state)
        block.history.append((block.tag, what, who, job))
        return block.tag

    def _hold(self, request: str, b: int, t: int) -> None:
        self._held.setdefault(request, {})[b] = t
        self.blocks[b].holders[request] = t

    def _origin(self, b: int, t: int) -> tuple[str, str, str]:
        for value, what, who, job in reversed(self.blocks[b].history):
            if value == t:
                return what, who, job
        return "handed to an owner long gone", "", ""


def _add(jobs: list[Job], kind: str, job: str, entry: Entry, after: int) -> None:
    last = jobs[-1] if jobs else None
    if last and (last.kind, last.job, last.after) == (kind, job, after):
        jobs[-1] = Job(kind, job, (*last.entries, entry), after)
    else:
        jobs.append(Job(kind, job, (entry,), after))


def _newer(a: int, b: int) -> bool:
    """Whether tag ``a`` was given after ``b``, in the cyclic order of epochs."""
    return 0 < (epoch_of(a) - epoch_of(b)) % EPOCHS < EPOCHS // 2
