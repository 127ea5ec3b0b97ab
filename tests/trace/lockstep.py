"""Lock-step runs at scale: random workloads on the real schedulers of several releases, every call checked.

``python -m tests.trace.lockstep --count 2000`` prints violations and the table of exercises per clause of the
engine contract; ``--write FILE`` puts the table into the docs. Workloads come from seeds, so that a number
names one for ever; ``--seed N --count 1 --keep DIR`` runs one again and keeps its traces.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stallproof import engines
from stallproof.trace.contract import CLAUSES, UNMONITORED

CLASSES = ("stock", "stallproof")
WORKER = Path(__file__).with_name("lockstep_engine.py")
#: rules of the checker that an engine breaks only by breaking a clause of the contract
CONTRACT = {
    "Conservation", "OneOwner", "RefCount", "NoDoubleFree", "StepOrder", "Tokens", "Queues", "Requests",
    "Limits", "PrefixValid", "Snapshot", "End",
}  # fmt: skip
#: (release, class, rule): findings of ours about stock releases that break a clause, and why
KNOWN = {
    (
        "0.23.0",
        "stock",
        "Tokens",
    ): "N5: a session preempted with its last token in flight computes a part of its turn",
}
#: answers asked for ahead, so that neither side waits for the other
_AHEAD = 16


class Worker:
    """One engine process; :meth:`ask` runs workloads in it. A context manager."""

    def __init__(self, version: str) -> None:
        self.version = version
        engine = engines.get(version)
        read, write = os.pipe()
        self.noise = tempfile.TemporaryFile()  # noqa: SIM115
        self.proc = subprocess.Popen(
            [str(engine.python), str(WORKER), str(write)],
            env=engine.env(), stdin=subprocess.PIPE, stdout=self.noise, stderr=self.noise,
            pass_fds=(write,), cwd=tempfile.gettempdir(), text=True,
        )  # fmt: skip
        os.close(write)
        self.results = os.fdopen(read)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.proc.kill()
        self.proc.wait()
        self.results.close()
        self.noise.close()

    def ask(self, jobs: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """One answer per job, in order: scheduler class -> result. ``RuntimeError`` if the process ends."""
        assert self.proc.stdin is not None
        open_jobs = 0
        for job in jobs:
            self.proc.stdin.write(json.dumps(job) + "\n")
            self.proc.stdin.flush()
            open_jobs += 1
            if open_jobs > _AHEAD:
                yield self._answer()
                open_jobs -= 1
        for _ in range(open_jobs):
            yield self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self.results.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        self.noise.seek(0)
        raise RuntimeError(
            "the engine process ended:\n" + self.noise.read()[-3000:].decode("utf-8", "replace")
        )


@dataclass
class Outcome:
    """All workloads of one release on one class."""

    workloads: int = 0
    calls: int = 0
    died: int = 0
    blind: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    #: (workload, rule, layer, line, text), the first violation of each
    violations: list[tuple[str, str, str, int, str]] = field(default_factory=list)
    #: what the harness's own monitors found and the checker did not
    harness: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, name: str, result: dict[str, Any]) -> None:
        self.workloads += 1
        if "error" in result:
            self.errors.append(f"{name}: {result['error']}")
            return
        self.calls += result["calls"]
        self.died += bool(result["died"])
        self.blind += [f"{name}: {x}" for x in result["blind"]]
        self.counts.update(result["counts"])
        self.events.update(result["events"])
        self.violations += [(name, *v) for v in result["violations"][:1]]
        known = {v[0] for v in result["violations"]}
        self.harness += [(name, k, v) for k, v in result["harness"].items() if k not in known]

    def short(self, scheduler: str) -> dict[str, tuple[int, float]]:
        """Clauses exercised too little for so many workloads: seen, needed."""
        need = {name: (c.stock if scheduler == "stock" else c.ours) for name, c in CLAUSES.items()}
        scale = self.workloads / 40
        return {
            name: (self.counts[name], n * scale)
            for name, n in need.items()
            if self.counts[name] < max(1, n * scale)
        }


def run(
    worker: Worker, seeds: Sequence[int], keep: str = "", progress: bool = False, seconds: float = 0
) -> dict[str, Outcome]:
    """The workloads of these seeds on both classes of one release; ``seconds``: begin no further one then."""
    out = {c: Outcome() for c in CLASSES}
    end = time.monotonic() + seconds

    def jobs() -> Iterator[dict[str, Any]]:
        for seed in seeds:
            if seconds and time.monotonic() > end:
                return
            yield {"seed": seed, "keep": keep}

    for i, (seed, answer) in enumerate(zip(seeds, worker.ask(jobs()), strict=False), 1):
        for c in CLASSES:
            out[c].add(f"w{seed}", answer[c])
        if progress and i % 100 == 0:
            print(f"  {worker.version}: {i} of {len(seeds)}", file=sys.stderr)
    return out


def table(results: dict[str, dict[str, Outcome]]) -> str:
    """Clause, monitor, what counts, minimum, and how often each release and class exercised it."""
    head = ["clause", "monitor", "one exercise", "a trace that breaks it", "at least in 40"]
    cells = [f"{v} {'ours' if c == 'stallproof' else c}" for v in results for c in CLASSES]
    rows = [head + cells, ["---"] * 4 + ["---:"] * (1 + len(cells))]
    for name, clause in CLAUSES.items():
        need = f"{clause.stock}" + (f" / {clause.ours}" if clause.ours != clause.stock else "")
        counts = [f"{r[c].counts[name]:,}" for r in results.values() for c in CLASSES]
        rows.append([f"`{name}`", ", ".join(clause.rules), clause.counted, clause.breaks, need, *counts])
    total = [f"{r[c].workloads:,} / {r[c].calls:,}" for r in results.values() for c in CLASSES]
    rows.append(["workloads / calls", "", "", "", "", *total])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


PAGE = """# Engine contract

<!-- generated by `make trace-lockstep N=... WRITE=docs/engine-contract.md`; do not edit -->

What is assumed of an engine is in `spec/EngineContract.tla`. Each clause has a monitor, a rule of the trace
checker, and a monitor that never met a case proves nothing. So random workloads run on the real schedulers,
every call is checked, and the moments at which a wrong engine would have been caught are counted, clause by
clause. Too few of them is a failure of the test, zero always. Each clause also has recorded traces of real
schedulers that were altered to break it, and its monitor rejects them by name
(`tests/trace/test_contract.py`).

Workloads have prefix caching, sliding windows, chunked prefill, look-ahead, loads that fail, come late or in
part, synchronous loads, sends, "not yet" answers, aborts in every state, sessions, pauses and resets of the
cache.

{table}

{findings}

Clauses without a monitor on traces:

{unmonitored}
"""


def findings(results: dict[str, dict[str, Outcome]]) -> str:
    """What was found, release by release, in sentences."""
    out = []
    for version, r in results.items():
        for c in CLASSES:
            who = f"vLLM {version}, {'our class' if c == 'stallproof' else 'stock'}"
            rules = Counter(rule for _, rule, *_ in r[c].violations)
            text = ", ".join(f"{rule} in {n}" for rule, n in rules.most_common()) or "no violation"
            died = f"; the engine's loop died in {r[c].died}" if r[c].died else ""
            out.append(f"* {who}: {r[c].workloads:,} workloads, {r[c].calls:,} calls, {text}{died}.")
    out += [f"* Known, on vLLM {v}, {c}, {rule}: {why}." for (v, c, rule), why in KNOWN.items()]
    return "First violation of each workload, all layers:\n\n" + "\n".join(out)


def page(results: dict[str, dict[str, Outcome]]) -> str:
    unmonitored = "\n".join(f"* {name}: {why}." for name, why in UNMONITORED.items())
    return PAGE.format(table=table(results), findings=findings(results), unmonitored=unmonitored)


def failures(version: str, r: dict[str, Outcome]) -> list[str]:
    """Why the run fails: nothing stock breaks of the contract, nothing ours breaks at all, all exercised."""
    out = []
    for c in CLASSES:
        o = r[c]
        out += [f"{version} {c}: {text}" for text in (*o.errors[:3], *o.blind[:3])]
        bad = [v for v in o.violations if c == "stallproof" or v[1] in CONTRACT]
        bad = [v for v in bad if (version, c, v[1]) not in KNOWN]
        out += [f"{version} {c}: {v[0]} breaks {v[1]} ({v[2]}, line {v[3]}): {v[4]}" for v in bad]
        out += [
            f"{version} {c}: clause {name} exercised {seen} times, at least {need:g} needed"
            for name, (seen, need) in o.short(c).items()
        ]
    if r["stallproof"].died:
        out.append(f"{version} stallproof: the engine's loop died in {r['stallproof'].died} workloads")
    out += [f"{version} stallproof: {n}: harness: {k}: {t}" for n, k, t in r["stallproof"].harness]
    return out


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--count", type=int, default=1000)
    p.add_argument("--seed", type=int, default=0, help="first seed")
    p.add_argument("--versions", default=" ".join(engines.CI))
    p.add_argument("--seconds", type=float, default=0, help="per release; 0: until all are done")
    p.add_argument("--keep", default="", help="folder for the traces")
    p.add_argument("--write", default="", help="page with the table")
    a = p.parse_args(argv)
    results: dict[str, dict[str, Outcome]] = {}
    bad: list[str] = []
    for version in a.versions.split():
        t0 = time.monotonic()
        if a.keep:
            Path(a.keep, version).mkdir(parents=True, exist_ok=True)
        with Worker(version) as worker:
            seeds = range(a.seed, a.seed + a.count)
            folder = str(Path(a.keep, version)) if a.keep else ""
            results[version] = run(worker, seeds, folder, progress=True, seconds=a.seconds)
        seconds = time.monotonic() - t0
        n = results[version]["stock"].workloads
        print(f"{version}: {n} workloads on two classes in {seconds:.0f} s ({2 * n / seconds:.1f} runs/s)")
        bad += failures(version, results[version])
    print(table(results))
    print(findings(results))
    for version, r in results.items():
        for name, rule, _, line, text in r["stock"].violations:
            print(f"stock {version} {name}: {rule} line {line}: {text}"[:240])
    for text in bad:
        print(f"FAILED {text}")
    if a.write:
        Path(a.write).write_text(page(results))
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
