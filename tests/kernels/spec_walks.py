"""Behaviours of ``spec/Blocks.tla`` as events for the kernels: ``python -m tests.kernels.spec_walks``.

TLC walks at random through every configuration of the block model (those that hold and those that must
fail), and gives its shortest counterexample to each gap. Each behaviour is written to ``walks.jsonl`` as the
events that an engine would report, with the properties that the specification calls violated in any of its
states. Needs Java (the development environment); the kernels replay the file where torch is.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("walks.jsonl")
NAMES = ("InFlightSafe", "XferSafe", "StoreSafe")
WALKS, LENGTH = 3, 45
#: false completions: the engine itself believes that the writer has ended
INVISIBLE = {"false-completion", "first-rank-completes"}


def digest() -> str:
    """Of the statements that :func:`violated` repeats; other parts of the specification may move on."""
    from stallproof.check import tools

    text = (tools.spec_dir() / "Blocks.tla").read_text()
    parts = [
        re.search(rf"^{name}.*? ==.*?(?=^\(\*|^\\\*|^\w+(\(.*\))? ==|\Z)", text, re.M | re.S)
        for name in ("Touched", "Writing", "Deferred", *NAMES)
    ]
    assert all(parts), "a statement of Blocks.tla has another name"
    joined = "".join(" ".join(p.group().split()) for p in parts if p)
    return hashlib.sha256(joined.encode()).hexdigest()[:16]


def violated(s: dict[str, Any]) -> set[str]:
    """The three statements of the specification, for one state."""
    n = range(len(s["own"]))
    touched = s["tail"] | s["touch"] | {b for step in s["infl"] for b in step["touch"]}
    running = [s["blks"][r] if s["xf"][r] == "writing" else frozenset() for r in n]
    writing = [running[r] | s["lost"][r] for r in n]
    deferred = {e["b"] for e in s["dfq"]}
    out = set()
    if any(w & touched for w in running) or "sync" in s["bad"]:
        out.add("InFlightSafe")
    for r in n:
        if (
            (s["xf"][r] != "none" and not s["blks"][r] <= s["own"][r])
            or writing[r] & s["pool"]
            or writing[r] & deferred
            or any(writing[r] & s["own"][q] for q in n if q != r)
            or s["lost"][r] & s["own"][r]
        ):
            out.add("XferSafe")
    if "store" in s["bad"]:
        out.add("StoreSafe")
    return out


class Translator:
    """Turns transitions into events. Blocks are numbered from 0."""

    def __init__(self) -> None:
        self.count = self.step = self.processed = 0
        self.job: dict[int, str] = {}
        self.lost: dict[int, str] = {}
        self.reader: dict[int, str] = {}
        self.taken_back: set[Any] = set()
        self.unfilled = False  # a store read blocks that nothing had filled: the sanitizer does not care

    def name(self, kind: str, r: int) -> str:
        self.count += 1
        return f"{kind}{self.count} of r{r}"

    def events(self, action: str, s: dict[str, Any], t: dict[str, Any], late: bool) -> Iterator[list[Any]]:
        n = range(len(s["own"]))
        if s["on"]:  # touched, and taken back in the same call: the step being built may zero them still
            self.taken_back |= {b for r in n for b in s["own"][r] - t["own"][r]} & s["touch"]
        gained_by = {r: t["own"][r] - s["own"][r] for r in n}
        for r in n:  # what ends
            if s["xf"][r] == "writing" and t["xf"][r] != "writing":
                if t["lost"][r] and t["lost"][r] == s["blks"][r]:
                    self.lost[r] = self.job.pop(r)
                else:
                    yield ["finish", self.job.pop(r)]
            if s["lost"][r] and not t["lost"][r]:
                yield ["finish", self.lost.pop(r)]
            if s["read"][r] and not t["read"][r]:
                yield ["read_done", self.reader.pop(r)]
        for r in n:  # who leaves
            gone, kept = s["own"][r] - t["own"][r], t["quar"][r] - s["quar"][r]
            if gone & kept:
                yield ["quarantine", f"r{r}", ids(gone & kept)]
            if gone - kept:
                yield ["free", f"r{r}", ids(gone - kept)]
        for r in n:  # who comes
            shared = {b for b in gained_by[r] if any(b in s["own"][q] for q in n if q != r)}
            # a hit on a block in the pool looks like a fresh block from outside; taken as one, it is stricter
            if gained_by[r] - shared:
                yield ["alloc", f"r{r}", ids(gained_by[r] - shared)]
            if shared:
                yield ["share", f"r{r}", ids(shared)]
        for r in n:
            if t["xf"][r] == "writing" and s["xf"][r] != "writing":
                self.job[r] = self.name("load", r)
                yield ["start", self.job[r], f"r{r}", ids(t["blks"][r])]
            if action == "SyncLoad" and gained_by[r]:
                yield ["join", self.name("sync", r), f"r{r}", ids(gained_by[r])]
            if t["read"][r] and not s["read"][r]:
                self.unfilled |= s["st"][r] == "load"
                self.reader[r] = self.name("store", r)
                yield ["read", self.reader[r], f"r{r}", ids(t["read"][r])]
        if action == "BeginCall":
            yield ["begin"]
        if action == "EndCall":
            yield self.end_call(s)
        if action == "Process":
            self.processed += 1
            yield ["done", self.processed - 1 if late else self.processed]
        if action == "LateDone_":
            yield ["done", self.processed]

    def end_call(self, s: dict[str, Any]) -> list[Any]:
        taken_back, self.taken_back = self.taken_back, set()
        if not s["touch"]:
            return ["empty"]
        self.step += 1
        names = [r for r in sorted(s["names"]) if s["st"][r - 1] == "run"]
        owned = {b for r in names for b in s["own"][r - 1]}
        runs = [f"r{r - 1}" for r in names if s["own"][r - 1]]
        return ["step", self.step, runs, ids((s["touch"] - owned) | taken_back)]

    def rest(self, s: dict[str, Any]) -> Iterator[list[Any]]:
        """Everything that is outstanding ends, so that every check has run."""
        if s["on"]:
            yield self.end_call(s)
        yield ["done", self.step]
        for r, xf in enumerate(s["xf"]):
            if xf == "gated":
                self.job[r] = self.name("load", r)
                yield ["start", self.job[r], f"r{r}", ids(s["blks"][r])]
        for job in [*self.job.values(), *self.lost.values()]:
            yield ["finish", job]
        for job in self.reader.values():
            yield ["read_done", job]


def ids(blocks: Any) -> list[int]:
    return sorted(int(str(b).removeprefix("b")) - 1 for b in blocks)


def walk(name: str, constants: dict[str, Any], trace: list[Any]) -> dict[str, Any]:
    """One behaviour as a record of the file."""
    translator, events = Translator(), []
    states = [x.values["s"] for x in trace]
    for x, s, t in zip(trace[1:], states, states[1:], strict=False):
        events += translator.events(x.action, s, t, constants["LateWork"])
    events += translator.rest(states[-1])
    wrong = sorted(set().union(*map(violated, states)))
    return {
        "config": name, "blocks": len(constants["Blk"]), "violated": wrong, "unfilled": translator.unfilled,
        "events": events,
    }  # fmt: skip


def behaviours(only: str = "") -> Iterator[dict[str, Any]]:
    from stallproof.check import config, tlc

    for c in config.load():
        if c.module != "Blocks" or c.name in INVISIBLE or c.kind not in ("ok", "gap") or only not in c.name:
            continue
        constants = dict(c.tla)
        if c.kind == "gap" and c.refutes in NAMES:
            found = tlc.run("Blocks", constants, invariants=[c.refutes], symmetry="", timeout=300)
            assert found.result == c.refutes, (c.name, found.result, found.error)
            record = walk(f"{c.name} (counterexample)", constants, found.trace)
            assert c.refutes in record["violated"], c.name
            yield record
        for seed in range(WALKS):
            found = tlc.run(
                "Blocks", constants, invariants=["Walking"], timeout=120,
                definitions=f'Walking == TLCGet("level") < {LENGTH}',
                options=["-simulate", "num=100", "-depth", str(LENGTH + 1), "-seed", str(seed + 1)],
            )  # fmt: skip
            if len(found.trace) > 5:
                yield walk(f"{c.name} (walk {seed})", constants, found.trace)


def main() -> None:
    seen, records = set(), []
    for record in behaviours():
        key = json.dumps(record["events"])
        if key not in seen:
            seen.add(key)
            records.append(record)
            print(
                f"{record['config']}: {len(record['events'])} events, violated {record['violated']}",
                flush=True,
            )
    lines = [json.dumps({"spec": digest(), "walks": len(records)})] + [json.dumps(r) for r in records]
    FILE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
