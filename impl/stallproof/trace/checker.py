"""Check a trace: drive the layers over the records, stop at the first divergence or go on, give a verdict."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from msgspec import Struct, field

from stallproof.errors import BadInput

from . import reader
from . import schema as s
from .explain import events_of, waits
from .ledger import Ledger, Violation
from .policy import Policy
from .progress import Progress, Thresholds

LAYERS = ("ledger", "progress", "policy")
#: violations kept unless all are wanted
_KEEP = 200


class Options(Struct, frozen=True):
    """What to check. ``first``, ``last``: report these lines only (counted on through several files)."""

    layers: tuple[str, ...] = LAYERS
    thresholds: Thresholds = field(default_factory=Thresholds)
    all: bool = False
    first: int = 1
    last: int = 0
    limit: int = 1000  #: violations kept
    ignore: frozenset[str] = frozenset()  #: rules whose violations are not reported


class Verdict(Struct):
    """The outcome. ``status`` decides the exit code: 0 conforms, 1 diverges, 2 undecided."""

    status: Literal["conforms", "diverges", "undecided"] = "conforms"
    violations: list[Violation] = []
    counts: dict[str, int] = {}
    undecided: list[str] = []
    remedy: str = ""  #: what to do about what is undecided
    notes: list[str] = []
    waits: list[str] = []  #: who waits for what, who holds it, when the first violation was found
    history: list[str] = []  #: the last events of the requests and blocks concerned
    header: s.Header | None = None
    files: list[str] = []
    records: int = 0
    events: int = 0
    calls: int = 0
    size: int = 0
    totals: dict[str, int] = {}
    unfinished: list[str] = []
    ended: bool = False  #: the recording ended in order


class _Stop(Exception):
    pass


class Checker:
    """Feed records, then :meth:`verdict`. Memory is bounded by live requests, blocks and steps in flight."""

    def __init__(self, options: Options | None = None) -> None:
        self.opt = options or Options()
        self.out = Verdict(violations=[], counts={}, undecided=[], notes=[], waits=[], history=[], files=[])
        self._counts: Counter[str] = Counter()
        self._recent: deque[tuple[str, int, s.Record]] = deque(maxlen=256)
        self._offset = 0
        self._lines = 0
        self.ledger = Ledger(self._report)
        layers = self.opt.layers
        self.progress = (
            Progress(self.ledger, self._report, self.opt.thresholds) if "progress" in layers else None
        )
        self.policy = Policy(self.ledger, self._report) if "policy" in layers else None
        self._recent_on = self.progress is not None or self.policy is not None

    # ------------------------------------------------------------------ violations

    def _report(self, v: Violation) -> None:
        if v.layer not in self.opt.layers or v.rule in self.opt.ignore:
            return
        where = self._offset + v.line
        if where < self.opt.first or (self.opt.last and where > self.opt.last):
            return
        self._counts[v.rule] += 1
        if not self.out.violations:
            self.out.waits = waits(self.ledger, self.progress.asked() if self.progress else None)
        if len(self.out.violations) < (self.opt.limit if self.opt.all else _KEEP):
            self.out.violations.append(v)
        if v.layer == "ledger" and not self.opt.all:
            raise _Stop  # the state is not to be trusted any more

    # ------------------------------------------------------------------ records

    def batch(self, b: reader.Batch) -> None:
        """Check consecutive records of one file; raises nothing but what :mod:`.reader` documents."""
        ledger, progress, policy = self.ledger, self.progress, self.policy
        line, record = b.line, ledger.record
        out = self.out
        out.records += len(b.records)
        out.size += b.size
        for rec in b.records:
            if type(rec) is s.Header:
                self._header(b.path, line, rec)
            else:
                if self._recent_on:
                    self._recent.append((b.path, line, rec))
                record(line, rec)
                if progress is not None:
                    progress.after(rec)
                if policy is not None:
                    policy.after(rec)
                if type(rec) is s.End:
                    out.ended = not rec.next
            line += 1
        self._lines = line - 1

    def _header(self, path: str, line: int, h: s.Header) -> None:
        out = self.out
        first = out.header is None
        if out.header is None:
            out.header = h
            unknown = self.policy.header(h) if self.policy else []
            if unknown:
                out.notes.append(f"rules without a check in this build: {', '.join(unknown)}")
        elif h.run != out.header.run:
            raise BadInput("another recording begins", path=path, line=line)
        out.ended = False
        if self.policy:
            self.policy.header(h)
        carried = self.ledger.header(path, line, h)
        if not carried and not first:
            out.notes.append(
                f"{path}:{line}: {h.lost or 'some'} records are missing before this part; "
                "checked on from its snapshot"
            )
            if self.progress:
                self.progress.forget()
            if self.policy:
                self.policy.forget()

    def run(self, batches: Iterable[reader.Batch]) -> bool:
        """Check batches until the end or the first ledger violation; returns whether to go on."""
        try:
            for b in batches:
                if b.path not in self.out.files:
                    self._offset += self._lines if self.out.files else 0
                    self.out.files.append(b.path)
                self.batch(b)
        except _Stop:
            return False
        return True

    def verdict(self) -> Verdict:
        """The verdict on everything fed so far."""
        out, led = self.out, self.ledger
        out.counts = dict(self._counts)
        out.events, out.calls = led.events, led.step
        out.unfinished = [q.r for q in led.reqs.values() if q.st != s.FINISHED]
        if self.progress:
            p = self.progress
            out.undecided = p.undecided()
            out.totals = {
                "output tokens": p.tokens,
                "preemptions": p.preempts,
                "evictions": p.evicts,
                "loads": p.loads,
            }
        if out.violations:
            out.status = "diverges"
        elif out.undecided:
            out.status = "undecided"
            out.remedy = "record for longer, or lower the threshold named above"
        return out


def check(
    paths: Sequence[str],
    options: Options | None = None,
    *,
    history: bool = True,
    progress: Callable[[int], None] | None = None,
) -> Verdict:
    """Check one recording given as one or several files (``-``: standard input).

    ``progress`` gets the bytes of text read after each batch. Raises ``BadInput`` and ``Unsupported``.
    """
    checker = Checker(options)
    sources = reader.order_parts([reader.source(p) for p in paths])
    notes = checker.out.notes
    for src in sources:
        batches: Iterable[reader.Batch] = reader.read(src, notes.append)
        if progress is not None:
            batches = _counted(batches, progress)
        if not checker.run(batches):
            break
    verdict = checker.verdict()
    if verdict.status == "conforms" and verdict.records <= len(verdict.files):
        verdict.undecided.append("no record follows the header: there is nothing to check")
        verdict.remedy = "let the engine work while it records"
        verdict.status = "undecided"
    if verdict.status == "conforms" and checker.opt.first > verdict.records:
        led, h, last = checker.ledger, verdict.header, verdict.records
        after = f", {led.ts - h.clock.mono:.1f} s after the recording began" if h and led.ts else ""
        verdict.undecided.append(
            f"nothing was checked: the trace ends with line {last} (step {led.step}{after}), "
            f"before line {checker.opt.first}"
        )
        verdict.remedy = f"give --from {last} or less, or a longer recording"
        verdict.status = "undecided"
    if verdict.violations and history:
        first = verdict.violations[0]
        stdin = any(x.name == "standard input" for x in sources)
        verdict.history = events_of(
            checker._recent if stdin else _again(sources, first),
            first.requests,
            first.blocks,
            first.path,
            first.line,
        )
    return verdict


def _counted(batches: Iterable[reader.Batch], progress: Callable[[int], None]) -> Iterable[reader.Batch]:
    for b in batches:
        progress(b.size)
        yield b


def _again(sources: Sequence[reader.Source], until: Violation) -> Iterable[tuple[str, int, s.Record]]:
    for src in sources:
        for b in reader.read(src):
            for i, rec in enumerate(b.records):
                yield b.path, b.line + i, rec
                if b.path == until.path and b.line + i >= until.line:
                    return
