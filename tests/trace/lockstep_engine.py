"""Runs inside an engine's interpreter: random workloads on the real scheduler, each call checked at once.

Reads one JSON object per line from standard input: ``{"seed": n}`` or ``{"toml": text}``; ``"engine"``
changes fields of the seed's engine, ``"partial"`` makes prefix hits end inside a block, ``"keep"`` names a
folder for the traces of this workload. Answers each on the file descriptor given as the first argument, with
one result per scheduler class. One process per release: an engine takes seconds to import, a workload
milliseconds.
"""

from __future__ import annotations

import atexit
import copy
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from workloads import scenario, toml


def cache_models() -> None:
    """The tiny model's configuration is the same every time, and costs as much as the workload."""
    import vllm.config as config

    make, made = config.ModelConfig, {}  # type: ignore[var-annotated]

    class Cached:
        """In the place of the class; modules that are imported later may put its name into an annotation."""

        def __call__(self, **kwargs: Any) -> Any:
            key = repr(sorted(kwargs.items()))
            if key not in made:
                made[key] = make(**kwargs)
            return copy.copy(made[key])

        def __getattr__(self, name: str) -> Any:
            return getattr(make, name)

        def __or__(self, other: Any) -> Any:
            return make | other

        def __ror__(self, other: Any) -> Any:
            return other | make

    config.ModelConfig = Cached()  # type: ignore[assignment,misc]


def judged(path: str) -> dict[str, Any]:
    """Violations by all layers, exercises per clause and blind notes of one recording."""
    from stallproof.trace import reader
    from stallproof.trace.checker import Checker, Options
    from stallproof.trace.contract import Exercise

    checker = Checker(Options())
    exercise = Exercise(checker.ledger)
    blind: list[str] = []

    def watched(batches: Any) -> Any:
        for b in batches:
            blind.extend(x.text for x in b.records if getattr(x, "kind", "") == "blind")
            yield b

    checker.run(watched(reader.read(reader.source(path))))
    v = checker.verdict()
    return {
        "violations": [[x.rule, x.layer, x.line, x.text] for x in v.violations],
        "counts": dict(exercise.counts), "blind": blind[:3], "calls": v.calls, "records": v.records,
    }  # fmt: skip


def hit_in_part(sched: Any) -> None:
    """Prefix hits end inside a block, as in hybrid models: the engine then copies the block."""
    manager = sched.kv_cache_manager
    call = manager.get_computed_blocks

    def get_computed_blocks(*args: Any, **kwargs: Any) -> Any:
        blocks, tokens, *rest = call(*args, **kwargs)
        return (blocks, max(tokens - 5, 0), *rest)

    if any(hasattr(m, "_apply_cow") for m in manager.coordinator.single_type_managers):
        manager.get_computed_blocks = get_computed_blocks


def one(
    folder: Path, text: str, name: str, scheduler: str, version: str, partial: bool = False
) -> dict[str, Any]:
    from stallproof.harness.config import scheduler_class
    from stallproof.harness.drive import Run
    from stallproof.scenario import load
    from stallproof.vllm.recording import close_recording

    path = folder / f"{name}.toml"
    path.write_text(text)
    sc = load(path)
    trace = str(folder / f"{scheduler}-{name}.jsonl")
    run = Run(sc, scheduler_class(scheduler, sc.engine.depth, sc.engine.base), version, scheduler, trace)
    if partial:
        hit_in_part(run.sched)
    try:
        result = run.go()
    finally:
        close_recording(run.sched)
        atexit.unregister(close_recording)  # thousands of schedulers per process: let them go
    out = judged(trace)
    return out | {"events": result.events, "died": result.died, "harness": result.violated}


def main() -> int:
    os.environ.setdefault("STALLPROOF_LOAD_DEADLINE_S", "24")
    os.environ.setdefault("STALLPROOF_DEFERRAL_DEADLINE_S", "24")
    os.environ.setdefault("STALLPROOF_WAIT_DEADLINE_S", "24")
    os.environ.setdefault("STALLPROOF_SESSION_DEADLINE_S", "24")
    os.environ.setdefault("STALLPROOF_STRICT", "1")
    out = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    import vllm

    version = str(vllm.__version__)
    cache_models()
    with tempfile.TemporaryDirectory() as spare:
        for line in sys.stdin:
            job = json.loads(line)
            if not (text := job.get("toml", "")):
                made = scenario(job["seed"])
                made["engine"] |= job.get("engine", {})
                if job.get("partial"):  # what a load does to half a block is another matter
                    made["engine"] |= {"role": "kv_both", "prefix_caching": True, "window": 0}
                    for q in made["request"]:
                        for name in ("load", "send", "turns"):
                            q.pop(name, None)
                text = toml(made)
            name = f"w{job.get('seed', 0)}"
            answer: dict[str, Any] = {}
            for scheduler in job.get("schedulers", ("stock", "stallproof")):
                try:
                    folder, partial = Path(job.get("keep") or spare), job.get("partial", False)
                    answer[scheduler] = one(folder, text, name, scheduler, version, partial)
                except Exception:
                    answer[scheduler] = {"error": traceback.format_exc()}
            print(json.dumps(answer), file=out, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
