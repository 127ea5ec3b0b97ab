"""Ledger: begin from a snapshot, or compare one with the state that the records before it lead to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from . import schema as s
from .ledger_requests import Requests
from .ledger_state import LoadRec, Req, some
from .schema import FINISHED, RUNNING


class Snapshots(Requests):
    _next_part = 0
    _run = ""

    def _restore(self, snap: s.Snapshot) -> None:
        self.pool = set(range(1, self.config.pool + 1))
        for state in snap.requests:
            q = Req(state.r, state.prio, state.arr, state.prompt, state.max_tokens)
            q.st, q.last, q.gen, q.out, q.awaits = state.st, state.last, state.gen, state.out, state.awaits
            q.comp = state.comp
            if not state.max_tokens:
                q.max_tokens = -1  # not recorded
            if q.r in self.reqs:
                self.bad(
                    "Requests", f"{q.r} is twice in the snapshot", field="state.requests.r", requests=[q.r]
                )
            self.reqs[q.r] = q
            self._hold(q.r, state.blocks, q.blocks, "state.requests.blocks")
            q.hits = q.loaded = -1 if q.blocks else 0
            if q.st == RUNNING:
                self.running[q.r] = q
            elif q.st == FINISHED:
                self.zombies[q.r] = q
        if set(snap.run) != set(self.running) or len(snap.run) != len(self.running):
            self.bad(
                "Queues",
                "the running list of the snapshot differs from its requests",
                field="state.run",
                expected=some(self.running),
                observed=some(snap.run),
            )
        for who, blocks in snap.pins.items():
            self._hold(who, blocks, self.pins.setdefault(who, set()), "state.pins")
        for d in snap.deferred:
            mine: set[int] = set()
            self._hold(f"step {d.step}", d.blocks, mine, "state.deferred")
            self.deferred.append((d.step, mine))
        for h in snap.quarantined:
            mine = self.quar.setdefault((h.r, h.gen), set())
            self._hold(f"quarantine of {h.r}", h.blocks, mine, "state.quarantined")
        self.step, self.processed, self.done = snap.step, snap.processed, snap.done
        self.quiet = snap.done if snap.done >= 0 else snap.processed
        self.in_flight = {i.step: i.tok for i in snap.in_flight}
        if sorted(self.in_flight) != list(range(snap.processed + 1, snap.step + 1)):
            self.bad(
                "StepOrder",
                "the snapshot's steps in flight are not those between processed and dispatched",
                field="state.in_flight",
                expected=f"{snap.processed + 1} to {snap.step}",
                observed=some(sorted(self.in_flight)),
            )
        self.touched = [(step, (b,), "") for b, step in snap.fences.items()]
        for x in snap.loads:
            load = LoadRec(x.r, x.gen, x.blocks, x.mode, x.step, 0.0)
            load.started = x.started
            self.loads[x.r] = load
            q0 = self.reqs.get(x.r)
            if q0 is None or not q0.blocks.issuperset(load.blocks):
                self.bad(
                    "XferSafe",
                    f"the unfinished load of {x.r} writes blocks its request does not hold",
                    field="state.loads.blocks",
                    requests=[x.r],
                    blocks=x.blocks[:8],
                )
        for j in snap.stores:
            self.stores[j.job] = (j.r, j.blocks)
            for b in j.blocks:
                self.reading[b] = self.reading.get(b, 0) + 1
            if j.r in self.reqs:
                self.reqs[j.r].jobs += 1
        self.pause = snap.pause
        if len(self.pool) != snap.free:
            self.bad(
                "Conservation",
                "free and held blocks of the snapshot do not add up to the pool",
                field="state.free",
                expected=len(self.pool),
                observed=snap.free,
            )

    def _compare(self, snap: s.Snapshot) -> None:
        """The snapshot of the next part must be the state that the records before it lead to."""

        def same(field: str, mine: Any, theirs: Any) -> None:
            if mine != theirs:
                self.bad(
                    "Snapshot",
                    f"the next part begins with another state than this one ends with: {field}",
                    field=f"state.{field}",
                    expected=some(_flat(mine)),
                    observed=some(_flat(theirs)),
                )

        live = {q.r: q for q in self.reqs.values() if q.blocks or q.st != FINISHED}
        same("requests", sorted(live), sorted(q.r for q in snap.requests))
        for q in snap.requests:
            m = live.get(q.r)
            if m is not None:
                same(f"requests.blocks of {q.r}", sorted(m.blocks), sorted(q.blocks))
                same(
                    f"requests of {q.r}",
                    (m.prio, m.arr, m.prompt, max(m.max_tokens, 0), m.out, m.gen, m.awaits),
                    (q.prio, q.arr, q.prompt, q.max_tokens, q.out, q.gen, q.awaits),
                )
        same("run", sorted(self.running), sorted(snap.run))
        same("step", self.step, snap.step)
        same("processed", self.processed, snap.processed)
        same("free", len(self.pool), snap.free)
        same("in_flight", self.in_flight, {i.step: i.tok for i in snap.in_flight})
        same("deferred", _entries(self.deferred), _entries((d.step, set(d.blocks)) for d in snap.deferred))
        same("pins", self.pins, {k: set(v) for k, v in snap.pins.items()})
        same("quarantined", self.quar, {(h.r, h.gen): set(h.blocks) for h in snap.quarantined})
        same(
            "loads",
            {r: (x.gen, sorted(x.blocks), x.mode, x.started) for r, x in self.loads.items()},
            {x.r: (x.gen, sorted(x.blocks), x.mode, x.started) for x in snap.loads},
        )
        same(
            "stores",
            {j: sorted(b) for j, (_, b) in self.stores.items()},
            {j.job: sorted(j.blocks) for j in snap.stores},
        )
        mine: dict[int, int] = {}
        for step, blocks, _ in self.touched:
            for b in blocks:
                mine[b] = max(step, mine.get(b, 0))
        quiet = self.quiet
        same(
            "fences",
            {b: n for b, n in mine.items() if n > quiet},
            {b: n for b, n in snap.fences.items() if n > quiet},
        )
        same("pause", self.pause, snap.pause)


def _entries(deferred: Iterable[tuple[int, set[int]]]) -> dict[int, list[int]]:
    merged: dict[int, list[int]] = {}
    for step, blocks in deferred:
        merged.setdefault(step, []).extend(blocks)
    return {step: sorted(blocks) for step, blocks in merged.items()}


def _flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [f"{k}: {v}" for k, v in value.items()]
    return list(value) if isinstance(value, list | tuple | set) else [value]
