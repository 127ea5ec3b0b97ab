"""Random scenarios for lock-step runs: everything a scheduler meets, small enough to run by the hundred."""

from __future__ import annotations

import random
from typing import Any


def scenario(seed: int) -> dict[str, Any]:
    """A scenario as plain data (see docs/scenarios.md), different for every seed."""
    rng = random.Random(seed)
    pick = rng.choice
    role = pick(["", "kv_both", "kv_both", "kv_consumer", "kv_producer"])
    block = 16
    blocks = rng.randint(6, 40)
    chunk = pick([0, 0, 24, 48])
    engine: dict[str, Any] = {
        "blocks": blocks,
        "block_size": block,
        "max_num_seqs": pick([2, 4, 8, 16]),
        "budget": pick([32, 64, 128, 512]),
        "chunk_cap": chunk,
        "max_model_len": 512,
        "policy": pick(["fcfs", "fcfs", "priority"]),
        "depth": pick([1, 2, 2]),
        "prefix_caching": rng.random() < 0.6,
        "role": role,
        "load_failure": pick(["recompute", "recompute", "fail"]),
        "window": pick([0, 0, 0, 48]),
        "lookahead": pick([0, 0, 0, 2]),
    }
    if engine["window"]:
        engine["prefix_caching"] = rng.random() < 0.3
    room = blocks * block
    requests = []
    for i in range(rng.randint(3, 14)):
        prompt = rng.randint(1, max(2, min(200, room // 2)))
        q: dict[str, Any] = {
            "id": f"q{i}",
            "prompt": prompt,
            "max_tokens": rng.randint(1, max(1, min(40, room - prompt - 4 * block))),
            "priority": rng.randint(0, 2) if engine["policy"] == "priority" else 0,
            "arrive": rng.randint(0, 25),
            "must_finish": False,
            "may_fail": True,
        }
        if rng.random() < 0.5:
            q["prefix"] = pick("xy")
            q["prefix_tokens"] = rng.randint(0, prompt)
        if rng.random() < 0.15:
            q["abort_on"] = pick(["loading", "running", "received"])
        elif rng.random() < 0.1:
            q["abort"] = q["arrive"] + rng.randint(1, 12)
        if role and rng.random() < 0.5:
            q["load"] = {
                "tokens": rng.randint(0, prompt // block) * block if rng.random() < 0.8 else prompt,
                "delay": rng.randint(0, 6),
                "defer": pick([0, 0, 1, 3]),
                "mode": pick(["async", "async", "async", "sync"]),
                "outcome": pick(["ok"] * 6 + ["fail", "partial"]),
                "again": rng.random() < 0.5,
            }
        if role in ("kv_both", "kv_producer") and rng.random() < 0.3:
            q["send"] = {"delay": rng.randint(0, 5)}
        if q.get("load", {}).get("mode") == "sync":
            q["load"]["outcome"] = "ok"  # the harness reports a failed synchronous load a step too early
        requests.append(q)
    at = []
    if rng.random() < 0.2:
        step = rng.randint(3, 20)
        at = [
            {"step": step, "do": pick(["pause_new", "pause_all"])},
            {"step": step + rng.randint(1, 6), "do": "resume"},
        ]
    elif rng.random() < 0.15:
        at = [{"step": rng.randint(5, 40), "do": "reset_cache"}]
    return {
        "id": f"w{seed}",
        "title": "random workload",
        "source": ["generated"],
        "steps": 300,
        "engine": engine,
        "request": requests,
        "at": at,
    }


def toml(value: dict[str, Any]) -> str:
    """The scenario as a file."""

    def one(v: Any) -> str:
        if isinstance(v, bool):
            return str(v).lower()
        if isinstance(v, dict):
            return "{ " + ", ".join(f"{k} = {one(x)}" for k, x in v.items()) + " }"
        if isinstance(v, list):
            return "[" + ", ".join(one(x) for x in v) + "]"
        return f'"{v}"' if isinstance(v, str) else str(v)

    lines = [f"{k} = {one(v)}" for k, v in value.items() if k not in ("engine", "request", "at")]
    lines += ["", "[engine]", *(f"{k} = {one(v)}" for k, v in value["engine"].items())]
    for name in ("request", "at"):
        for row in value[name]:
            lines += ["", f"[[{name}]]", *(f"{k} = {one(v)}" for k, v in row.items())]
    return "\n".join(lines) + "\n"
