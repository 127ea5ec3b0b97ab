"""A toy engine that records: real schema, honest block book, no scheduling worth the name.

Only for looking at pages: loads whose start is delayed, preemptions, refusals, fences, stores, and, on
demand, a wedge at the end.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from stallproof.trace import schema as s


class Toy:
    def __init__(
        self,
        *,
        seed: int = 1,
        pool: int = 48,
        requests: int = 24,
        wedge: bool = True,
        name: str = "r{}",
        seats: int = 12,
        rate: float = 0.5,
    ):
        self.rng, self.pool, self.wedge, self.name = random.Random(seed), pool, wedge, name
        self.seats, self.rate = seats, rate
        self.free = list(range(pool, 0, -1))
        self.own: dict[str, list[int]] = {}
        self.left: dict[str, int] = {}
        self.running: list[str] = []
        self.waiting: deque[str] = deque()
        self.loads: dict[str, tuple[int, int]] = {}  # r -> (step of start, step of arrival)
        self.gen: dict[str, int] = {}
        self.fenced: deque[tuple[int, list[int]]] = deque()
        self.stores: deque[tuple[int, str]] = deque()
        self.total, self.born, self.step, self.now, self.n = requests, 0, 0, 100.0, 0
        self.done = 0

    def header(self) -> s.Header:
        return s.Header(
            schema=s.SCHEMA, run="toy", source="model",
            engine=s.Engine("model", "toy", "toy.Scheduler", ["ToyConnector"], "kv_both"),
            config=s.Config(pool=self.pool, block_size=16, depth=2, fence_mode="DeferFrees"),
            clock=s.Clock("2026-01-01T00:00:00Z", 100.0), state=s.Snapshot(free=self.pool),
        )  # fmt: skip

    def _rec(self, record: s.Record) -> s.Record:
        self.n += 1
        self.now += 0.011
        record.n, record.ts = self.n, self.now
        return record

    def _take(self, r: str, k: int, ev: list[s.Event]) -> bool:
        if len(self.free) < k:
            return False
        blocks = [self.free.pop() for _ in range(k)]
        self.own.setdefault(r, []).extend(blocks)
        ev.append(s.Alloc(r, sorted(blocks)))
        return True

    def _drop(self, r: str, ev: list[s.Event], fence: bool) -> None:
        blocks = self.own.pop(r, [])
        if not blocks:
            return
        if fence:
            ev.append(s.Fence(r, blocks, self.step))
            self.fenced.append((self.step, blocks))
        else:
            ev.append(s.Free(r, blocks))
            self.free += blocks

    def records(self, steps: int) -> Iterator[s.Record]:
        yield self.header()
        for _ in range(steps):
            yield from self._arrivals()
            yield self._rec(self._schedule())
            yield self._rec(self._update())
        if self.wedge:
            yield from self._stuck()
        yield self._rec(s.End(calls=self.step, finished=self.done))

    def _arrivals(self) -> Iterator[s.Record]:
        if self.born < self.total and self.rng.random() < self.rate:
            r = self.name.format(self.born)
            self.born += 1
            self.waiting.append(r)
            self.left[r] = self.rng.randint(6, 40)
            add = s.Add(r, 0, float(self.born), self.rng.randint(16, 160), self.left[r])
            yield self._rec(s.Outside(ev=[add], free=len(self.free)))

    def _schedule(self) -> s.Sched:
        self.step += 1
        ev: list[s.Event] = []
        for r, (start, _) in self.loads.items():
            if start == self.step:
                ev.append(s.Start(r, self.gen[r]))
        tok: dict[str, int] = {}
        for r in list(self.running):
            if r not in self.running:
                continue
            if self.rng.random() < 0.2:
                while not self._take(r, 1, ev):
                    ev.append(s.Refuse(r, 1, "blocks"))
                    victim = self.running.pop()
                    ev.append(s.Preempt(victim, r if victim != r else ""))
                    tok.pop(victim, None)
                    self._drop(victim, ev, fence=True)
                    self.waiting.appendleft(victim)
                    if victim == r:
                        break
            if r in self.running:
                tok[r] = 1
        while self.waiting and len(self.running) < self.seats:
            r = self.waiting[0]
            need = self.rng.randint(2, 8)
            if not self._take(r, need, ev):
                ev.append(s.Refuse(r, need, "blocks"))
                break
            self.waiting.popleft()
            if r not in self.gen and self.rng.random() < 0.4:
                self.gen[r] = 1
                ev.append(s.Load(r, 1, list(self.own[r]), "async", 32))
                self.loads[r] = (self.step + 3, self.step + 3 + self.rng.randint(2, 25))
            else:
                ev.append(s.Admit(r, 0))
                self.running.append(r)
                tok[r] = 16
        return s.Sched(step=self.step, tok=tok, total=sum(tok.values()), ev=ev, free=len(self.free))

    def _update(self) -> s.Update:
        ev: list[s.Event] = []
        out: dict[str, int] = {}
        while self.fenced and self.fenced[0][0] <= self.step - 2:
            blocks = self.fenced.popleft()[1]
            ev.append(s.Drain(blocks))
            self.free += blocks
        while self.stores and self.stores[0][0] <= self.step:
            ev.append(s.Stored(self.stores.popleft()[1]))
        for r in [r for r, (_, end) in self.loads.items() if end <= self.step]:
            del self.loads[r]
            ev += [s.Recv(r, 1), s.Promote(r), s.Admit(r, 32)]
            self.running.append(r)
        for r in list(self.running):
            self.left[r] -= 1
            out[r] = 1
            if self.left[r] <= 0:
                self.running.remove(r)
                self.done += 1
                ev.append(s.Finish(r, "length", 1))
                if self.rng.random() < 0.3:
                    job = f"store-{r}"
                    ev.append(s.Store(job, r, list(self.own[r])))
                    self.stores.append((self.step + 6, job))
                self._drop(r, ev, fence=False)
        return s.Update(step=self.step, out=out, ev=ev, free=len(self.free))

    def _stuck(self) -> Iterator[s.Record]:
        """Two holders that each want what the other has, over and over."""
        for _ in range(30):
            self.step += 1
            ev: list[s.Event] = [s.Refuse(r, 4, "blocks") for r in list(self.waiting)[:2]]
            yield self._rec(s.Sched(step=self.step, ev=ev, free=len(self.free)))
            yield self._rec(s.Update(step=self.step, free=len(self.free)))


def write(path: Path, steps: int = 120, **kwargs: object) -> Path:
    toy = Toy(**kwargs)  # type: ignore[arg-type]
    with path.open("wb") as out:
        for record in toy.records(steps):
            out.write(s.encode(record) + b"\n")
    return path
