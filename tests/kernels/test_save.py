"""Save and restore on the simulated device: content survives every interleaving that the events allow.

A small scheduler of its own: requests write their blocks, read them in later steps, are evicted with a save,
restored, forgotten; loads write blocks in no order with the stream, gated by device fences. Every read is
compared with what the request wrote. The mutants of the module are those of ``spec/SaveRestore.tla``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from stallproof.errors import BadInput  # noqa: E402
from stallproof.kernels.fences import StepFences  # noqa: E402
from stallproof.kernels.ledger import Ledger, Report  # noqa: E402
from stallproof.kernels.sanitizer import Sanitizer  # noqa: E402
from stallproof.kernels.save import RESTORING, SAVED, SAVING, SaveStore, batched_copy, copy_rows  # noqa: E402
from stallproof.kernels.segments import from_caches  # noqa: E402
from stallproof.kernels.simulated import SimulatedDevice  # noqa: E402

BLOCKS, WORDS = 5, 6


@dataclass
class World:
    """One interleaving. ``gate``: a load waits until the device is done with its blocks, saves included."""

    rng: random.Random
    store_class: type[SaveStore] = SaveStore
    gate: bool = True
    behind: bool = True  #: a restored request runs only when :meth:`SaveStore.due` says so
    wrong: list[str] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.device = SimulatedDevice(self.rng.randrange)
        self.kv = torch.zeros((2, BLOCKS, WORDS), dtype=torch.int32)
        cache = from_caches([self.kv], BLOCKS)
        self.store = self.store_class(self.device, cache, capacity=3, width=2)
        self.fences = StepFences(self.device)
        self.sanitizer, self.ledger = Sanitizer(self.device, BLOCKS), Ledger(BLOCKS)
        self.free = list(range(BLOCKS))
        self.own: dict[str, list[int]] = {}
        self.lost: dict[str, int] = {}  # request -> blocks it must compute again
        self.back: dict[str, int] = {}
        self.fence: dict[int, int] = {}
        self.loading: dict[str, Any] = {}
        self.step = self.names = 0
        self.saves = self.restores = self.reads = 0

    # ------------------------------------------------------------ content

    def value(self, r: str, i: int) -> int:
        return int(r[1:]) * 10 + i + 1

    def put(self, b: int, value: int) -> None:
        self.kv[:, b] = value

    def check(self, r: str, b: int, value: int, step: int) -> None:
        self.reads += 1
        if not bool((self.kv[:, b] == value).all()):
            self.wrong.append(f"step {step}: {r} reads {self.kv[:, b].tolist()} in block {b}, not {value}")

    # ------------------------------------------------------------ one scheduling call

    def call(self) -> None:
        """Saves and scatters first, then the step's own work, then its fence."""
        n = self.step = self.step + 1
        touched: set[int] = set()
        zero: list[int] = []
        around: list[tuple[dict[int, int], Any]] = []
        ready = [r for r in self.own if not self.store.state(r)]
        if ready and self.rng.random() < 0.5:
            r = self.rng.choice(ready)
            held = dict(self.ledger.held(r))
            around.append((held, lambda r=r: self.evict(r)))
            touched |= set(self.own[r])
        for tags, work in around:
            self.bracketed(n, tags, work)
        self.restore_some()
        for r in self.store.due():
            if r in self.back:
                self.own[r] = self.coming.pop(r)
                del self.back[r]
                zero += self.own[r]
                touched |= set(self.own[r])
        fresh = self.admit()
        runs = [r for r in self.own if r in fresh or self.rng.random() < 0.7]
        if not self.behind:
            for r in [r for r in self.back if self.rng.random() < 0.5]:
                self.own[r] = self.coming.pop(r)
                del self.back[r]
                runs.append(r)
        plan = self.ledger.plan(n, runs, zero=zero)
        self.sanitizer.jobs(plan.now)
        self.sanitizer.begin(plan)
        compute = self.device.compute()
        for r in runs:
            for i, b in enumerate(self.own[r]):
                touched.add(b)
                value = self.value(r, i)
                if r in fresh:
                    self.device.launch(compute, lambda b=b, value=value: self.put(b, value))
                else:
                    self.device.launch(compute, lambda r=r, b=b, value=value, n=n: self.check(r, b, value, n))
        self.sanitizer.end(n)
        self.fences.close(n)
        for b in touched:
            self.fence[b] = n
        self.collect()

    def bracketed(self, step: int, tags: dict[int, int], work: Any) -> None:
        self.sanitizer.around(step, tags, work)

    def evict(self, r: str) -> None:
        """The blocks are free at once; what is not saved must be computed again."""
        blocks = self.own.pop(r)
        kept = self.store.save(r, blocks)
        self.saves += bool(kept)
        if kept < len(blocks):
            self.lost[r] = len(blocks) - kept
        self.ledger.free(r)
        self.free += blocks

    def restore_some(self) -> None:
        self.coming: dict[str, list[int]] = getattr(self, "coming", {})
        self.store.poll()
        for r in [r for r in list(self.store._kept) if self.store.state(r) == SAVED]:
            n = self.store.blocks(r)
            if len(self.free) >= n and self.rng.random() < 0.9:
                got = self.take(r, n)
                if self.store.restore(r, got):
                    self.restores += 1
                    self.coming[r] = got
                    self.back[r] = n
                else:  # computed again
                    self.store.forget(r)
                    self.give(r, got)

    def admit(self) -> set[str]:
        if self.rng.random() < 0.6 and len(self.free) >= 2:
            self.names += 1
            r = f"r{self.names}"
            self.own[r] = self.take(r, self.rng.randint(1, 2))
            return {r}
        return set()

    def take(self, r: str, n: int) -> list[int]:
        got = self.rng.sample(self.free, n)
        self.free = [b for b in self.free if b not in got]
        self.ledger.alloc(r, got)
        return got

    def give(self, r: str, blocks: list[int]) -> None:
        self.ledger.free(r)
        self.free += blocks

    # ------------------------------------------------------------ outside

    def forget(self) -> None:
        """An abort, in whatever state."""
        names = [*self.store._kept]
        if names:
            r = self.rng.choice(names)
            self.store.forget(r)
            if r in self.back:
                del self.back[r]
                blocks = self.coming.pop(r)
                for b in blocks:  # its scatter may be in flight: part of the steps dispatched so far
                    self.fence[b] = self.step
                self.give(r, blocks)

    def load(self) -> None:
        """A transfer agent writes a block whenever it likes once it was started."""
        ready = [b for b in self.free if not self.gate or self.fences.done(self.fence.get(b, 0))]
        if not ready:
            return
        self.names += 1
        r, b = f"r{self.names}", self.rng.choice(ready)
        self.free.remove(b)
        self.ledger.alloc(r, [b])
        self.ledger.start(f"{r}#1", r, [b])
        self.sanitizer.jobs(self.ledger.flush()[0])
        side, value = self.device.side(), self.value(r, 0)
        self.device.launch(side, lambda: self.put(b, value))
        done = self.device.event()
        done.record(side)
        self.loading[r] = (b, done)

    def loaded(self) -> None:
        for r, (b, done) in list(self.loading.items()):
            if done.query():
                del self.loading[r]
                self.ledger.finish(f"{r}#1")
                self.sanitizer.jobs(self.ledger.flush()[0])
                self.own[r] = [b]

    def collect(self) -> None:
        self.reports += self.ledger.reports(self.sanitizer.collect())

    def play(self, actions: int) -> World:
        acts = [
            self.call,
            self.forget,
            self.load,
            self.loaded,
            lambda: self.device.advance(self.rng.randrange(9)),
        ]
        for _ in range(actions):
            self.rng.choices(acts, (8, 1, 2, 3, 8))[0]()
        for _ in range(4):  # everything ends
            self.device.finish()
            self.store.poll()
            self.loaded()
        self.collect()
        for r in list(self.store._kept):
            self.store.forget(r)
        assert self.store.idle(), "a row or a record is lost"
        return self


def worlds(count: int, **how: Any) -> list[World]:
    return [World(random.Random(seed), **how).play(60) for seed in range(count)]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_content_is_what_it_was_and_nothing_is_reported(seed: int) -> None:
    world = World(random.Random(seed)).play(60)
    assert world.wrong == []
    assert world.reports == []


def test_the_interleavings_do_save_and_restore() -> None:
    made = worlds(30)
    assert sum(w.saves for w in made) > 50
    assert sum(w.restores for w in made) > 12
    assert sum(w.reads for w in made) > 200
    assert sum(w.store.refused for w in made) > 10, "the store was never full"


def test_without_the_fence_the_sanitizer_catches_it() -> None:
    """GateSeesSaves off: a load is given a block that a gather or a scatter in flight still uses."""
    made = worlds(40, gate=False)
    assert any(w.wrong for w in made)
    named = {r.property for w in made for r in w.reports}
    assert "InFlightSafe" in named
    assert named <= {"InFlightSafe", "StreamOrder"}
    caught = [w for w in made if w.reports]
    assert all(w in caught for w in made if w.wrong), "content was lost without a report"


class CopyEarly(SaveStore):
    """CopyOutWaits off: the copy engine does not wait for the gather."""

    def _wait_for_gather(self, gathered: Any) -> None:
        pass


class RowTooSoon(SaveStore):
    """RowUntilCopied, RowUntilScattered off: a row counts as free while it is still used."""

    def _idle_row(self) -> int:
        return 0


class ScatterEarly(SaveStore):
    """ScatterWaits off: the scatter is submitted with the copy, not behind it."""

    def restore(self, name: str, blocks: Any) -> bool:
        ok = super().restore(name, blocks)
        if ok and (kept := self._kept[name]).state == RESTORING:
            then = self.rows[kept.row].then
            self._scatter(kept.row, name, kept)
            self.rows[kept.row].then = then
            self._came_in = lambda i, name, kept: self._free.extend(kept.slots)
        return ok


class NoCancel(SaveStore):
    """Cancel off: the scatter comes although the request has given its blocks up."""

    def _came_in(self, i: int, name: str, kept: Any) -> None:
        self._free += kept.slots
        self._scatter(i, name, kept)


@pytest.mark.parametrize(
    "how",
    [{"store_class": CopyEarly}, {"store_class": RowTooSoon}, {"store_class": ScatterEarly},
     {"store_class": NoCancel}, {"behind": False}],
    ids=["CopyOutWaits", "RowUntilCopied", "ScatterWaits", "Cancel", "ReadBehindScatter"],
)  # fmt: skip
def test_each_rule_is_needed(how: dict[str, Any]) -> None:
    wrong = 0
    for seed in range(80):
        world = World(random.Random(seed), **how)
        try:
            world.play(60)
        except AssertionError:
            wrong += 1
        wrong += bool(world.wrong)
        if wrong:
            return
    raise AssertionError("the mutant survives")


def store(**sizes: int) -> tuple[SaveStore, SimulatedDevice]:
    device = SimulatedDevice(lambda n: 0)
    cache = from_caches([torch.arange(24, dtype=torch.int32).reshape(6, 4)], 6)
    return SaveStore(device, cache, **{"capacity": 4, "width": 2, **sizes}), device


def test_bounded_and_double_buffered() -> None:
    s, device = store(capacity=3)
    assert s.save("a", [0, 1, 2]) == 2, "as many leading blocks as a row takes"
    assert s.save("b", [3, 4]) == 1, "as many as the store has room for"
    assert s.save("c", [5]) == 0, "two rows, both in use: plain eviction"
    assert (s.state("a"), s.state("c"), s.refused) == (SAVING, "", 1)
    device.finish()
    s.poll()
    assert s.save("c", [5]) == 0, "the store is full"
    s.forget("b")
    assert s.save("c", [5]) == 1
    device.finish()
    assert s.restore("a", [2, 3])
    assert s.due() == [], "the copy has not come in"
    device.finish()
    assert s.due() == ["a"], "the scatter is submitted, and what follows is behind it"
    device.finish()
    assert s.cache.segments[0].words[2:4].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    s.forget("c")
    s.poll()
    assert s.idle()


def test_a_restore_that_finds_no_row_is_refused_not_awaited() -> None:
    s, device = store(capacity=6)
    s.save("a", [0])
    device.finish()
    s.save("b", [1])
    s.save("c", [2])
    assert s.state("a") == SAVED
    assert not s.restore("a", [3])
    assert s.state("a") == SAVED


def test_wrong_use_is_said() -> None:
    s, _ = store()
    with pytest.raises(BadInput, match="store of 0 blocks"):
        store(capacity=0)
    with pytest.raises(ValueError, match="not in the store"):
        s.restore("x", [1])
    s.save("a", [0])
    with pytest.raises(ValueError, match="is in the store"):
        s.save("a", [1])
    with pytest.raises(ValueError, match="saving"):
        s.restore("a", [1])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), unique_by=lambda x: x[1], max_size=8))
def test_copy_rows_in_runs(pairs: list[tuple[int, int]]) -> None:
    source, target = torch.arange(24, dtype=torch.int32).reshape(8, 3), torch.zeros((8, 3), dtype=torch.int32)
    copy_rows(source, [a for a, _ in pairs], target, [b for _, b in pairs])
    want = torch.zeros((8, 3), dtype=torch.int32)
    for a, b in pairs:
        want[b] = source[a]
    assert torch.equal(target, want)


def test_no_batched_copy_on_cpu() -> None:
    assert batched_copy("cpu") is None
