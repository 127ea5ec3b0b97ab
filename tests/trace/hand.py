"""Hand-written traces: a few lines each, for one rule each."""

from __future__ import annotations

from stallproof.trace import schema as s
from stallproof.trace.checker import Checker, Options, Verdict
from stallproof.trace.reader import Batch


class Hand:
    """Build a trace record by record; steps are numbered by themselves."""

    def __init__(self, pool=4, block=4, depth=2, rules=(), state=None, **config):
        self.step = 0
        self.records: list = [
            s.Header(
                schema=s.SCHEMA,
                run="hand",
                source="harness",
                engine=s.Engine("toy", "1"),
                config=s.Config(pool=pool, block_size=block, depth=depth, **config),
                clock=s.Clock("2026-01-01T00:00:00+00:00", 0.0),
                rules=list(rules),
                state=state or s.Snapshot(free=pool),
            )
        ]
        self.done = 0

    def put(self, record):
        record.n = len(self.records)
        self.records.append(record)
        return self

    def add(self, *names, prompt=4, max_tokens=4, prio=0):
        ev = [s.Add(r, prio, float(i), prompt, max_tokens) for i, r in enumerate(names, self.step * 100)]
        return self.put(s.Outside(ev=ev))

    def out(self, *ev, **kw):
        return self.put(s.Outside(ev=list(ev), **kw))

    def call(self, *ev, **kw):
        tok = kw.pop("tok", {})
        self.step += 1
        return self.put(s.Sched(step=kw.pop("step", self.step), tok=tok, ev=list(ev), **kw))

    def upd(self, *ev, **kw):
        self.done += 1
        return self.put(s.Update(step=kw.pop("step", self.done), ev=list(ev), **kw))

    def end(self):
        calls = sum(type(r) is s.Sched for r in self.records)
        done = sum(type(e) is s.Finish for r in self.records for e in getattr(r, "ev", ()))
        return self.put(s.End(calls=calls, finished=done))

    def lines(self) -> bytes:
        return b"".join(s.encode(r) + b"\n" for r in self.records)


def judge(records, **options) -> Verdict:
    """The verdict on records of one part."""
    checker = Checker(Options(**options))
    records = s_round(records)
    checker.run([Batch("hand", 1, records, 0)])
    return checker.verdict()


def s_round(records):
    """Through the text and back, as a file would."""
    return [s.decoder.decode(s.encode(r)) for r in records]
