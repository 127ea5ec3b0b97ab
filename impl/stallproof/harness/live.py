"""The second judge without a file: the trace checker is fed each record as the engine makes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stallproof.trace import schema as T
from stallproof.trace.checker import Checker, Options
from stallproof.trace.reader import Batch

_PATH = "run"


class Second:
    """A :class:`Checker` that sees what a trace file would hold, header and end included."""

    def __init__(self, header: T.Header) -> None:
        self.checker = Checker(Options(all=True))
        self.line = 0
        self.calls = self.finished = 0
        self.broken = ""
        self._feed(header)

    def __call__(self, record: Any) -> None:
        if isinstance(record, T.Sched):
            self.calls += 1
        if isinstance(record, (T.Sched, T.Update, T.Outside)):
            self.finished += sum(1 for e in record.ev if type(e) is T.Finish)
        self._feed(record)

    def _feed(self, record: Any) -> None:
        self.line += 1
        self.checker.run([Batch(_PATH, self.line, [record], 0)])

    def end(self, fired: dict[str, int]) -> None:
        """The recording ends here, in order."""
        self._feed(T.End(ts=0.0, calls=self.calls, finished=self.finished, fired=fired, next=""))

    @property
    def violations(self) -> list[Any]:
        """Violations so far, in order (:class:`stallproof.trace.ledger.Violation`)."""
        return self.checker.out.violations

    def found(self) -> dict[str, str]:
        """Property -> what was seen first."""
        seen: dict[str, str] = {}
        for v in self.violations:
            seen.setdefault(v.rule, f"trace line {v.line}: {v.text}")
        return seen


class _Writer:
    """What :func:`close_recording` closes."""

    def __init__(self, second: Second) -> None:
        self.second = second

    def close(self, fired: dict[str, int]) -> None:
        self.second.end(fired)


def attach_live(sched: Any, *, every: int, clock: Callable[[], float], run: str) -> tuple[Any, Second]:
    """Turn recording on; the records go to the :class:`Second` that is returned with the recorder."""
    from stallproof.vllm.describe import config_of, engine_of, rules_of
    from stallproof.vllm.recording import attach

    rec = attach(sched, lambda record: second(record), every=every, clock=clock)
    second = Second(
        T.Header(
            schema=T.SCHEMA, run=run, source="harness", engine=engine_of(sched), config=config_of(sched),
            clock=T.Clock(wall="", mono=clock()), rules=rules_of(sched), state=rec.probe.snapshot(),
        )
    )  # fmt: skip
    sched._sp_writer = _Writer(second)
    return rec, second
