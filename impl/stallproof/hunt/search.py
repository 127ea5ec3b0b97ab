"""The loop of a hunt: cases, the corpus by coverage, findings by property and cause, shrinking.

Everything is a function of the seed, the number of the case and the corpus at that moment; no clock decides
anything but when to stop. Knows no engine: ``bench`` runs a scenario and says what it showed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

import msgspec

from stallproof.hunt import space
from stallproof.hunt.shrink import shrink
from stallproof.scenario import Scenario

#: properties that a longer run could mend: confirmed with a longer run before they count
SLOW = frozenset(("Termination", "NoStarvation", "BoundedWait"))
#: share of cases made by changing a scenario of the corpus, once there are some
_CHANGED = 0.6
_CORPUS = 600
#: how often a signature must have been seen for a case of it to be made small: two causes may look alike
_LOOKED = (0, 12, 150)
#: unconfirmed failures of one signature after which it is not looked at any more
_FAILS = 6


class Bench(Protocol):
    runs: int

    def run(self, s: Scenario) -> Any: ...


class Job(msgspec.Struct, kw_only=True):
    """What one process of a hunt is asked to do."""

    scheduler: str
    seed: int = 0
    job: int = 0
    first: int = 0  #: number of the first case
    cases: int = 0  #: stop after so many; 0: no limit
    seconds: float = 0.0  #: stop after so long; 0: no limit
    cpu_seconds: float = 0.0  #: stop after so much CPU time of this process; 0: no limit
    changes: bool = True  #: change scenarios of the corpus; without, a case depends on seed and number only
    shrink_runs: int = 300
    shrink_steps: int = 5_000  #: scheduling calls that shrinking one finding may take
    corpus: list[Scenario] = []
    coverage: list[int] = []
    known: list[list[str]] = []  #: property, signature and needs of what was found before
    elapsed: float = 0.0  #: seconds of the hunt so far
    cpu: float = 0.0  #: seconds of CPU time of this process's part so far


class Hunter:
    """``tell(kind, data)`` gets ``corpus``, ``finding``, ``again`` and ``state`` as they happen."""

    def __init__(self, bench: Bench, job: Job, tell: Callable[[str, dict[str, Any]], None]) -> None:
        self.bench, self.job, self.tell = bench, job, tell
        self.corpus = list(job.corpus)
        self.coverage = set(job.coverage)
        self.seen: Counter[tuple[str, str]] = Counter()
        self.fails: Counter[tuple[str, str]] = Counter()
        #: property and signature -> what their shrunk scenarios need, of each finding
        self.known: dict[tuple[str, str], list[frozenset[str]]] = {}
        for prop, cause, *uses in job.known:
            self.known.setdefault(_key(prop, cause), []).append(frozenset(uses))
            self.seen[_key(prop, cause)] = 1
        self.case = job.first
        self.started, self.cpu_started = time.monotonic(), time.process_time()
        self.dropped = self.invalid = 0
        self.steps = 0  # what is left of the allowance of the finding at hand

    def seconds(self) -> float:
        return self.job.elapsed + time.monotonic() - self.started

    def cpu(self) -> float:
        return self.job.cpu + time.process_time() - self.cpu_started

    def go(self) -> None:
        job = self.job
        while not (job.cases and self.case >= job.first + job.cases):
            if job.seconds and time.monotonic() - self.started >= job.seconds:
                break
            if job.cpu_seconds and self.cpu() - job.cpu >= job.cpu_seconds:
                break
            self.one(self.case)
            self.case += 1
            self._state()

    def _state(self) -> None:
        self.tell("state", {
            "case": self.case, "seconds": round(self.seconds(), 3), "cpu": round(self.cpu(), 3),
            "corpus": len(self.corpus), "coverage": len(self.coverage), "runs": self.bench.runs,
            "dropped": self.dropped, "invalid": self.invalid,
        })  # fmt: skip

    def make(self, number: int) -> Scenario:
        """The scenario of case ``number``."""
        rng = Random(f"{self.job.seed}/{self.job.job}/{number}")
        cid = f"hunt-{self.job.seed}-{self.job.job}-{number}"
        if self.job.changes and len(self.corpus) > 8 and rng.random() < _CHANGED:
            # the newest are changed more often than the oldest
            k = int(len(self.corpus) * rng.random() ** 0.5)
            return space.mutate(rng, self.corpus[k], rng.choice(self.corpus), cid)
        return space.fresh(rng, cid)

    def one(self, number: int) -> None:
        s = self.make(number)
        got = self.bench.run(s)
        if got is None:
            self.invalid += 1
            return
        new = got.coverage - self.coverage
        if new:
            self.coverage |= new
            self.corpus.append(s)
            if len(self.corpus) > _CORPUS:
                del self.corpus[: len(self.corpus) - _CORPUS]
            self.tell("corpus", {"scenario": msgspec.to_builtins(s), "coverage": sorted(new)})
        for prop, cause in sorted(got.causes.items()):
            key = _key(prop, cause)
            if self.fails[key] < _FAILS and self.seen[key] in _LOOKED:
                self._finding(s, prop, cause, got, number)
            else:
                self.tell("again", {"property": prop, "cause": cause})
            self.seen[key] += 1

    # ------------------------------------------------------------ findings

    def _finding(self, s: Scenario, prop: str, cause: str, got: Any, number: int) -> None:
        first, cpu = self.seconds(), self.cpu()
        if not self.confirmed(s, prop, cause):
            self._unconfirmed(prop, cause)
            return
        self.steps = self.job.shrink_steps
        s = self._early(s, prop, got)
        small, used = shrink(s, lambda t: self._same(t, prop, cause), self.job.shrink_runs)
        if prop in SLOW and not self._lasting(small, prop):  # it was small, not stalled: more care
            self.steps = self.job.shrink_steps
            small, used = shrink(
                s, lambda t: self._same(t, prop, cause) and self._lasting(t, prop), self.job.shrink_runs
            )
        final = self.bench.run(small)
        if final is None or prop not in final.causes:
            self._unconfirmed(prop, cause)
            return
        small, final = self._shorter(small, prop, final)
        key, uses = _key(prop, final.causes[prop]), frozenset(space.needs(small))
        if key[0] != prop:
            uses = frozenset()  # whatever it needs besides
        before = self.known.setdefault(key, [])
        if any(uses >= b for b in before):  # the same in more words
            self.tell("again", {"property": prop, "cause": key[1]})
            return
        before.append(uses)
        self.seen[key] += key != _key(prop, cause)
        self.tell("finding", {
            "property": prop, "cause": key[1], "raw": cause, "needs": sorted(uses),
            "text": final.texts[prop], "violated": dict(final.texts), "case": number,
            "seconds": round(first, 3), "cpu": round(cpu, 3), "runs": used, "steps": final.steps,
            "scenario": msgspec.to_builtins(small), "before": msgspec.to_builtins(s),
            "steps_before": got.steps,
        })  # fmt: skip

    def _unconfirmed(self, prop: str, cause: str) -> None:
        """Another case with this signature gets another chance, a few times."""
        self.dropped += 1
        self.fails[_key(prop, cause)] += 1
        self.seen[_key(prop, cause)] -= 1

    def confirmed(self, s: Scenario, prop: str, cause: str) -> bool:
        """It shows again, and a much longer run does not mend it."""
        again = self.bench.run(s)
        if again is None or again.causes.get(prop) != cause:
            return False
        return prop not in SLOW or self._lasting(s, prop)

    def _lasting(self, s: Scenario, prop: str) -> bool:
        longer = space.copy(s)
        longer.steps = s.steps + space.needed(s) + space.silence(s)
        got = self.bench.run(longer)
        self.steps -= got.steps if got else 1
        return got is not None and prop in got.causes

    def _same(self, t: Scenario, prop: str, cause: str) -> bool:
        if self.steps <= 0:
            return False
        got = self.bench.run(t)
        self.steps -= got.steps if got else 1
        return got is not None and prop in got.causes and within(got.causes[prop], cause)

    def _early(self, s: Scenario, prop: str, got: Any) -> Scenario:
        """No longer than it takes to show: candidates of the shrinker that do not fail end soon."""
        if prop in SLOW:
            return s
        short = space.copy(s)
        short.steps = min(s.steps, max([2 * got.when[prop], *(a.step + 100 for a in s.at)]) + 40)
        again = self.bench.run(short)
        return short if again is not None and again.causes.get(prop) == got.causes[prop] else s

    def _shorter(self, s: Scenario, prop: str, got: Any) -> tuple[Scenario, Any]:
        """As many steps as it takes, where more could not mend it."""
        if prop in SLOW:
            return s, got
        for steps in (got.when[prop] + 1, got.when[prop] + 8, got.steps):
            short = space.copy(s)
            short.steps = max(1, min(s.steps, steps))
            again = self.bench.run(short)
            if again is not None and again.causes.get(prop) == got.causes[prop]:
                return short, again
        return s, got


def _key(prop: str, cause: str) -> tuple[str, str]:
    """What is one finding: a request that never fits stalls in whatever way, it is the same."""
    return ("liveness" if cause.startswith("a request that never fits") else prop, cause)


def within(now: str, before: str) -> bool:
    """Whether signature ``now`` names nothing that ``before`` did not: the same parts with fewer kinds."""
    if now == before:
        return True
    a, b = _parts(now), _parts(before)
    return a.keys() <= b.keys() and all(a[k] and a[k] <= b[k] for k in a)


def _parts(signature: str) -> dict[str, frozenset[str]]:
    out: dict[str, frozenset[str]] = {}
    for part in signature.split(" | "):
        name, colon, rest = part.partition(": ")
        out[name if colon else part] = frozenset(rest.split(", ")) if colon else frozenset((part,))
    return out
