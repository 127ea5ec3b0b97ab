"""One of our own traces as a workload: the same requests and the same outside world under other rules.

A recording says what arrived when, what the connector answered and how long its loads took. It does not say
what was in the prompts, so nothing is shared between requests. Recordings without a clock of their own
(harness, model) are stretched so that a scheduling call lasts as long as a step of the simulated device.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from stallproof.errors import BadInput
from stallproof.simulate.workload import Job
from stallproof.trace import schema as T
from stallproof.trace.reader import records

#: a load that did not report counts as lost if the recording went on for so many times the longest load
LOST = 10.0
#: seconds per scheduling call of a recording without a clock
CALL = 0.01


@dataclass(slots=True)
class Known:
    """What the connector did for one request. Times in virtual seconds from the first arrival."""

    tokens: int = 0  #: offered to it, from the start of the prompt; 0: nothing
    mode: str = "async"
    ready: float = 0.0  #: until then the answer is "not yet"
    #: (seconds, ok | fail | lost) of each of its loads; the last one stands for all that follow
    loads: list[tuple[float, str]] = field(default_factory=list)

    def load(self, attempt: int) -> tuple[float, str]:
        """Seconds and fate of a load, counted from 0."""
        return self.loads[min(attempt, len(self.loads) - 1)] if self.loads else (0.0, "ok")


@dataclass
class Recording:
    """A trace, read once: requests, connector, and how the engine was configured."""

    header: T.Header
    jobs: list[Job]
    known: dict[str, Known]


def header(path: Path) -> T.Header:
    """The first record of a trace."""
    for _, _, record in records(path):
        if isinstance(record, T.Header):
            return record
    raise BadInput("an empty recording", path=path, remedy="record an engine first: STALLPROOF_TRACE=FILE")


def read(path: Path) -> Recording:
    """Raises :class:`BadInput` for what is no trace, and for one without requests."""
    head: T.Header | None = None
    jobs: dict[str, Job] = {}
    made: dict[str, int] = {}
    known: dict[str, Known] = {}
    started: dict[tuple[str, int], float] = {}
    ended: dict[tuple[str, int], tuple[float, str]] = {}
    calls: list[float] = []
    last = 0.0
    for _, _, record in records(path):
        if isinstance(record, T.Header):
            if head is None:
                head = record
                for q in record.state.requests:
                    jobs[q.r] = Job(q.r, record.clock.mono, max(1, q.prompt), max(1, q.max_tokens), q.prio)
            continue
        last = record.ts
        if not isinstance(record, (T.Outside, T.Sched, T.Update)):
            continue
        if isinstance(record, T.Sched):
            calls.append(record.ts)
        if isinstance(record, T.Update):
            for r, n in record.out.items():
                made[r] = made.get(r, 0) + n
        for e in record.ev:
            if isinstance(e, T.Add):
                jobs[e.r] = Job(e.r, record.ts, max(1, e.prompt), max(1, e.max_tokens), e.prio)
            elif isinstance(e, T.NotYet):
                known.setdefault(e.r, Known()).ready = record.ts
            elif isinstance(e, T.Load):
                one = known.setdefault(e.r, Known())
                one.tokens, one.mode = max(one.tokens, e.tokens), e.mode
            elif isinstance(e, T.Start):
                started[e.r, e.gen] = record.ts
            elif isinstance(e, (T.Recv, T.LoadFailed)):
                ended[e.r, e.gen] = record.ts, "ok" if isinstance(e, T.Recv) else "fail"
    if head is None or not jobs:
        raise BadInput("no request in this recording", path=path)
    scale = 1.0
    if head.source in ("harness", "model", "tlc") and len(calls) > 1:
        between = statistics.median(b - a for a, b in pairwise(calls))
        scale = CALL / between if between > 0 else 1.0
    first = min(j.at for j in jobs.values())
    for one in known.values():
        one.ready = (one.ready - first) * scale if one.ready else 0.0
    longest = max((ended[k][0] - at for k, at in started.items() if k in ended), default=0.0)
    for (r, gen), at in sorted(started.items(), key=lambda x: x[1]):
        if (r, gen) in ended:
            when, fate = ended[r, gen]
        else:
            fate = "lost" if last - at > LOST * longest else "ok"
            when = at + longest
        known.setdefault(r, Known()).loads.append(((when - at) * scale, fate))
    out = [
        replace(j, at=(j.at - first) * scale, output=max(1, made.get(j.rid, 0) or j.output))
        for j in jobs.values()
    ]
    return Recording(head, sorted(out, key=lambda j: j.at), known)


def from_trace(path: Path) -> Iterator[Job]:
    """The requests of a trace. Output tokens: what was delivered, else the request's limit."""
    yield from read(path).jobs
