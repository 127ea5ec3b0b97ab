"""A whole hunt: processes, the folder, findings with everything that belongs to them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from stallproof import spread
from stallproof.harness.spawn import Job, run_jobs
from stallproof.hunt import finding as findings
from stallproof.hunt.corpus import Corpus
from stallproof.hunt.finding import Finding, size_of
from stallproof.hunt.limits import limit
from stallproof.hunt.slices import hunt_slice
from stallproof.scenario import Scenario


@dataclass
class Hunt:
    """``go`` hunts; ``found`` lists the findings of this folder, oldest first.

    ``on_state`` and ``on_finding`` are told as things happen.
    """

    folder: Path
    scheduler: str
    version: str
    seed: int = 0
    jobs: int = 1
    ray: str | None = None
    seconds: float = 60.0
    cpu_seconds: float = 0.0
    cases: int = 0
    changes: bool = True
    on_state: Callable[[Hunt], None] = lambda h: None
    on_finding: Callable[[Finding], None] = lambda f: None
    found: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.corpus = Corpus(self.folder, self.scheduler, self.version, self.seed)
        self.before = self.corpus.state.seconds
        self.cpu_before = max(self.corpus.state.cpu.values(), default=0.0)
        self.states: dict[int, dict[str, Any]] = {}
        self.base = (self.corpus.state.cases, self.corpus.state.invalid, self.corpus.state.dropped)
        self.started = dict(self.corpus.state.next)
        for file in sorted((self.folder / "findings").glob("*/finding.json")):
            self.found.append(findings.read(file)[0])
        self.found.sort(key=lambda f: f.seconds)

    def go(self) -> None:
        """Hunt until the time or the cases are used up. Raises what :func:`hunt_slice` raises."""
        try:
            where = spread.Where(jobs=self.jobs, ray=self.ray)
            spread.run(hunt_slice, [self._job(k) for k in range(max(1, self.jobs))], where,
                       label=lambda c: f"process {c['job']['job']}", on_tick=self._heard)  # fmt: skip
        finally:
            self._count()
            self.corpus.close()
        self._complete()

    def _job(self, k: int) -> dict[str, Any]:
        state = self.corpus.state
        job = {
            "scheduler": self.scheduler, "seed": self.seed, "job": k, "first": state.next.get(str(k), 0),
            "cases": self.cases, "seconds": self.seconds, "cpu_seconds": self.cpu_seconds,
            "changes": self.changes,
            "corpus": msgspec.to_builtins(self.corpus.scenarios), "coverage": sorted(self.corpus.features),
            "known": state.known, "elapsed": self.before,
            "cpu": state.cpu.get(str(k), 0.0),
        }  # fmt: skip
        return {"version": self.version, "job": job}

    # ------------------------------------------------------------ what the processes say

    def _heard(self, k: int, kind: str, data: dict[str, Any]) -> None:
        state = self.corpus.state
        if kind == "state" and data:
            self.states[k] = data
            state.next[str(k)] = data["case"]
            self._count()
            self.corpus.save()
            self.on_state(self)
        elif kind == "corpus":
            self.corpus.add(data)
        elif kind == "again":
            self._again(data["property"], data["cause"])
        elif kind == "lost":
            state.lost += 1
        elif kind == "finding":
            self._finding(data)

    def _again(self, prop: str, cause: str) -> None:
        key = f"{prop}: {cause}"
        self.corpus.state.seen[key] = self.corpus.state.seen.get(key, 0) + 1

    def _count(self) -> None:
        state = self.corpus.state
        ran = sum(s["case"] - self.started.get(str(k), 0) for k, s in self.states.items())
        state.cases = self.base[0] + ran
        state.invalid = self.base[1] + sum(s["invalid"] for s in self.states.values())
        state.dropped = self.base[2] + sum(s["dropped"] for s in self.states.values())
        if self.states:
            state.seconds = max(s["seconds"] for s in self.states.values())
            state.cpu |= {str(k): s.get("cpu", 0.0) for k, s in self.states.items()}

    def _finding(self, data: dict[str, Any]) -> None:
        prop, cause = data["property"], data["cause"]
        state = self.corpus.state
        uses = data["needs"]
        for key in ([prop, data["raw"], *uses], [prop, cause, *uses]):
            if key not in state.known:
                state.known.append(key)
        fid = identity(prop, cause, uses)
        if any(f.id == fid for f in self.found):
            self._again(prop, cause)
            return
        small = msgspec.convert(data["scenario"], Scenario)
        large = msgspec.convert(data["before"], Scenario)
        small.id, small.title, small.story = fid.lower(), f"{prop}: {cause}"[:120], data["text"]
        small.expect.stock = {self.version: prop} if self.scheduler == "stock" else {}
        made = Finding(
            id=fid, property=prop, cause=cause, needs=uses, text=data["text"], scheduler=self.scheduler,
            version=self.version, violated=data["violated"], seed=self.seed, case=data["case"],
            seconds=data["seconds"], cpu=data.get("cpu", 0.0), size=size_of(small, data["steps"]),
            before=size_of(large, data["steps_before"]),
        )  # fmt: skip
        made.limit = limit(made)
        findings.write(self.folder / "findings", made, small)
        self.found.append(made)
        self.corpus.save()
        self.on_finding(made)

    # ------------------------------------------------------------ afterwards

    def _complete(self) -> None:
        """Run each finding once more in a process of its own, with a trace, and write what belongs to it."""
        todo = [f for f in self.found if not (self._folder(f) / "explanation.txt").exists()]
        for f in self.found:
            f.seen = 1 + self.corpus.state.seen.get(f"{f.property}: {f.cause}", 0)
            findings.save(self._folder(f), f)
        if not todo:
            return
        jobs = [
            Job(self._folder(f) / "scenario.toml", self.scheduler, self._folder(f) / "trace.jsonl")
            for f in todo
        ]
        for f, got in zip(todo, run_jobs(self.version, jobs, timeout=600), strict=True):
            from stallproof.hunt.explain import write_all

            write_all(self._folder(f), f, got)

    def _folder(self, f: Finding) -> Path:
        return self.folder / "findings" / f.id


def identity(prop: str, cause: str, uses: Iterable[str]) -> str:
    """Name of a finding: its property and the first digits of a hash of its cause and of what it needs."""
    text = "\n".join((cause, *sorted(uses)))
    return f"{prop}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
