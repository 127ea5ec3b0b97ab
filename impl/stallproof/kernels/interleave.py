"""Random interleavings of host, device and transfers, judged by the promise itself, run by the kernels.

A small scheduler world of its own: requests, a pool, asynchronous loads, stores that read, steps in flight on
a simulated device whose progress an adversary chooses. Each rule can be switched off (``Rules``); the judge
applies the definitions of InFlightSafe, XferSafe and StoreSafe to what really happened, with full knowledge
of the device, and knows nothing of tags. The sanitizer sees only what an engine would tell it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from .device import Event
from .fences import StepFences
from .ledger import Finding, Ledger, Report, StepPlan
from .sanitizer import Sanitizer
from .simulated import SimulatedDevice


@dataclass(frozen=True)
class Rules:
    """``gate``: a load starts only when the fences of its blocks are device done (GateLoads).

    ``quarantine``: blocks of an unfinished load whose request leaves stay out of the pool.
    ``keep``: blocks that an unfinished store reads are not handed out. ``bracket``: check the end of steps
    too. ``late``: the end check comes after the drafter, not after the output.
    """

    gate: bool = True
    quarantine: bool = True
    keep: bool = True
    bracket: bool = True
    late: bool = True


@dataclass(frozen=True)
class Violation:
    """``InFlightSafe``: ``job`` got ``block`` while ``step`` might touch it; ``XferSafe``: ``block`` left its
    request under ``job``; ``StoreSafe``: ``block`` was written while ``job`` read it.

    It is an *access* if the other party's last use was still to come, a *breach* of the rule already if its
    fence had not passed. So the accesses are a subset of the breaches; the difference is the moment between a
    last use and the event behind it.
    """

    property: str
    block: int
    job: str
    step: int = 0


@dataclass
class _Load:
    job: str
    request: str
    blocks: list[int]
    waits: int  # newest step dispatched at allocation
    started: bool = False


@dataclass
class World:
    """One interleaving: ``play(actions)``, then compare ``accesses``, ``breaches`` and ``reports``."""

    rules: Rules
    rng: random.Random
    blocks: int
    sanitizer: Sanitizer
    device: SimulatedDevice
    depth: int = 2
    accesses: set[Violation] = field(default_factory=set)
    breaches: set[Violation] = field(default_factory=set)
    reports: list[Report] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.blocks)
        self.fences = StepFences(self.device)
        self.free = list(range(self.blocks))
        self.own: dict[str, list[int]] = {}
        self.loads: dict[str, _Load] = {}
        self.parked: set[str] = set()
        self.orphans: dict[str, _Load] = {}  # request gone, load unfinished
        self.reads: dict[str, list[int]] = {}
        self.touched: dict[int, set[int]] = {}  # step -> blocks it may touch
        # true knowledge of the device: steps whose last KV write has happened, whose event has passed
        self.written: set[int] = set()
        self.done: set[int] = set()
        self.outputs: dict[int, Event] = {}
        self.content: dict[str, set[int]] = {}  # request -> blocks that a step or a load has filled
        self.calling = False
        self.step = self.processed = self.names = 0

    # ------------------------------------------------------------ what the host may do

    def play(self, actions: int) -> None:
        choices: list[tuple[Callable[[], None], int]] = [
            (self.schedule, 6), (self.process, 4), (self.leave, 2), (self.complete, 3),
            (self.store, 3), (self.stored, 2), (self.progress, 6), (self.start_loads, 3),
        ]  # fmt: skip
        acts, weights = zip(*choices, strict=True)
        for _ in range(actions):
            self.rng.choices(acts, weights)[0]()
        self.settle()

    def settle(self) -> None:
        """Let everything finish, so that every check has run."""
        self.start_loads(force=True)
        for job in [*self.loads, *self.orphans]:
            self.complete(job)
        for job in list(self.reads):
            self.stored(job)
        self.sanitizer.jobs(self.ledger.flush()[0])
        self.device.finish()
        self._collect()

    def schedule(self) -> None:
        """One scheduling call: admissions, growth, a load, then the step is dispatched."""
        if self.step - self.processed >= self.depth:
            return
        n, self.calling = self.step + 1, True
        if self.rng.random() < 0.5:
            self._admit(load=self.rng.random() < 0.5)
        running = [r for r in self.own if r not in self.parked]
        for r in running:
            if self.rng.random() < 0.4:
                self._take(r, 1)
        zero: list[int] = []
        if running and self.rng.random() < 0.15:  # preempted in the call that gave it a block to zero
            victim = self.rng.choice(running)
            got = self._take(victim, 1)
            zero += got
            self._release(victim)
        if self.rng.random() < 0.3:
            self._admit(load=True)
        self.start_loads(building=n, zero=zero)
        self.step = n
        scheduled = [r for r in self.own if r not in self.parked and self.rng.random() < 0.8]
        for r in scheduled:
            self.content.setdefault(r, set()).update(self.own[r])
        plan = self.ledger.plan(n, scheduled, zero=zero)
        self.touched[n] = {e.block for e in plan.stamps} | set(plan.expect)
        self._dispatch(plan)
        self.calling = False

    def process(self) -> None:
        """The output of the oldest step reaches the scheduler; the device may still run its drafter."""
        if self.processed < self.step:
            self.processed += 1
            self.outputs[self.processed].synchronize()
            self._collect()

    def leave(self) -> None:
        """A request finishes, is aborted or preempted."""
        if self.own:
            self._release(self.rng.choice(list(self.own)))

    def complete(self, job: str = "") -> None:
        """A load's completion is accepted."""
        started = [j for j, x in {**self.loads, **self.orphans}.items() if x.started]
        if not started:
            return
        job = job or self.rng.choice(started)
        self.ledger.finish(job)
        self.sanitizer.jobs(self.ledger.flush()[0])
        load = self.loads.pop(job, None)
        if load:
            self.parked.discard(load.request)
            self.content.setdefault(load.request, set()).update(load.blocks)
        elif self.rules.quarantine:
            self.free += self.orphans.pop(job).blocks
        else:
            del self.orphans[job]
        self._collect()

    def store(self) -> None:
        """A store of some request's blocks starts; it is ordered behind the steps dispatched so far."""
        ready = [r for r in self.own if r not in self.parked and self.content.get(r)]
        if not ready or (self.step and not self.fences.done(self.step)):
            return
        r, job = self.rng.choice(ready), self._name("s")
        self.reads[job] = sorted(self.content[r])
        self.ledger.read(job, r, self.reads[job])
        self.sanitizer.jobs(self.ledger.flush()[0])

    def stored(self, job: str = "") -> None:
        if self.reads:
            job = job or self.rng.choice(list(self.reads))
            del self.reads[job]
            self.ledger.read_done(job)
            self.sanitizer.jobs(self.ledger.flush()[0])

    def progress(self) -> None:
        self.device.advance(self.rng.randrange(1, 6))
        self._collect()

    def start_loads(self, *, building: int = 0, zero: list[int] | None = None, force: bool = False) -> None:
        """Connectors are told about loads: those that pass the gate, or all of them."""
        if force:
            self.device.finish()
        for load in self.loads.values():
            if load.started or (self.rules.gate and not (load.waits <= self.fences.poll())):
                continue
            load.started = True
            for b in load.blocks:
                for n, blocks in self.touched.items():
                    if b in blocks and n not in self.done:
                        self._violated("InFlightSafe", b, load.job, n, access=n not in self.written)
                if b in (zero or ()):
                    self._violated("InFlightSafe", b, load.job, building)
            self._overwrites(load.blocks)
            self.ledger.start(load.job, load.request, load.blocks)
        if not building:
            self.sanitizer.jobs(self.ledger.flush()[0])

    # ------------------------------------------------------------ inside

    def _admit(self, *, load: bool) -> None:
        r = self._name("r")
        got = self._take(r, self.rng.randint(1, 2))
        if load and got:
            job = self._name("l")
            # the step being built counts: a same-call victim's blocks may be among ours
            self.loads[job] = _Load(job, r, got, self.step + 1)
            self.parked.add(r)

    def _take(self, r: str, n: int) -> list[int]:
        usable = [b for b in self.free if not (self.rules.keep and self._read(b))]
        got = self.rng.sample(usable, n) if len(usable) >= n else []
        if got:
            self.free = [b for b in self.free if b not in got]
            self.own.setdefault(r, []).extend(got)
            self.ledger.alloc(r, got)
        return got

    def _release(self, r: str) -> None:
        blocks = self.own.pop(r)
        self.content.pop(r, None)
        self.parked.discard(r)
        load = next((x for x in self.loads.values() if x.request == r), None)
        if load is not None:
            del self.loads[load.job]
        if load is not None and load.started:
            self.orphans[load.job] = load
            if self.rules.quarantine:
                self.ledger.quarantine(r, load.blocks)
            else:
                for b in load.blocks:
                    self._violated("XferSafe", b, load.job)
                self.free += blocks
        else:
            self.free += blocks
        self.ledger.free(r)
        if not self.calling:
            self.sanitizer.jobs(self.ledger.flush()[0])

    def _dispatch(self, plan: StepPlan) -> None:
        n, compute = plan.step, self.device.compute()
        fresh = [e.block for e in plan.stamps]
        self.device.launch(compute, lambda: self._overwrites(fresh, access=False))
        self.sanitizer.jobs(plan.now)
        self.sanitizer.begin(plan)
        self.device.launch(compute, lambda: self._overwrites(fresh))  # the model's first write
        if self.rules.bracket and not self.rules.late:
            self.sanitizer.end(n)
        self.outputs[n] = self.device.event()
        self.outputs[n].record(compute)
        self.device.launch(compute, lambda: self.written.add(n))  # the drafter's last write
        if self.rules.bracket and self.rules.late:
            self.sanitizer.end(n)
        self.device.launch(compute, lambda: self.done.add(n))
        self.fences.close(n)

    def _violated(self, name: str, b: int, job: str, step: int = 0, *, access: bool = True) -> None:
        self.breaches.add(Violation(name, b, job, step))
        if access:
            self.accesses.add(Violation(name, b, job, step))

    def _overwrites(self, blocks: list[int], *, access: bool = True) -> None:
        for job, read in self.reads.items():
            for b in set(blocks) & set(read):
                self._violated("StoreSafe", b, job, access=access)

    def _read(self, b: int) -> bool:
        return any(b in blocks for blocks in self.reads.values())

    def _collect(self) -> None:
        found: list[Finding] = self.sanitizer.collect()
        self.reports += self.ledger.reports(found)

    def _name(self, kind: str) -> str:
        self.names += 1
        return f"{kind}{self.names}"

    # ------------------------------------------------------------ comparison

    def missed(self) -> set[tuple[str, int, str]]:
        """Accesses (property, block, job) without a report that names property and block and fits the job."""
        wanted = {(v.property, v.block, v.job) for v in self.accesses}
        return {w for w in wanted if not any(self._fits(r, *w) for r in self.reports)}

    def unexplained(self) -> list[Report]:
        """Reports that no breach explains."""
        wanted = {(v.property, v.block, v.job) for v in self.breaches}
        return [r for r in self.reports if not any(self._fits(r, *w) for w in wanted)]

    @staticmethod
    def _fits(report: Report, name: str, block: int, job: str) -> bool:
        return (report.property, report.block, report.job) == (name, block, job)


def play(seed: int, rules: Rules, *, actions: int = 60, backend: str = "torch") -> World:
    """One random interleaving; ``backend`` as in :mod:`stallproof.kernels.ops`."""
    rng = random.Random(seed)
    device = SimulatedDevice(rng.randrange)
    blocks = rng.randint(2, 7)
    world = World(rules, rng, blocks, Sanitizer(device, blocks, backend=backend), device)
    world.play(actions)
    return world
