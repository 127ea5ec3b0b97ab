"""Random scenarios for lock-step runs: everything a scheduler meets, small enough to run by the hundred."""

from __future__ import annotations

import random
from typing import Any

#: a load whose report takes longer than this is late: the runs set our deadlines to this many steps
DEADLINE = 24


def scenario(source: int | random.Random) -> dict[str, Any]:
    """A scenario as plain data (see docs/scenarios.md): a seed names one, any source of choices makes one.

    Short on purpose: a few requests of a few blocks each on a pool that holds some of them, so that thousands
    fit into minutes. What has to end ends: a load that fails is offered again at most now and then.
    """
    rng = random.Random(source) if isinstance(source, int) else source
    pick = rng.choice
    role = pick(["", "", "kv_both", "kv_both", "kv_consumer", "kv_producer"])
    block = 16
    blocks = rng.randint(5, 16)
    engine: dict[str, Any] = {
        "blocks": blocks,
        "block_size": block,
        "max_num_seqs": pick([2, 4, 8, 16]),
        "budget": pick([32, 64, 128, 512]),
        "chunk_cap": pick([0, 0, 24, 48]),
        "max_model_len": 512,
        "policy": pick(["fcfs", "fcfs", "priority"]),
        "depth": pick([1, 2, 2]),
        "prefix_caching": rng.random() < 0.75,
        "role": role,
        "load_failure": pick(["recompute", "recompute", "fail"]),
        "window": pick([0, 0, 0, 48]),
        "lookahead": pick([0, 0, 0, 2]),
        "zeroing": rng.random() < 0.2,
    }
    if engine["window"]:
        engine["prefix_caching"] = rng.random() < 0.3
    if role == "kv_consumer":  # transfers without end need a pool that is not always full
        blocks = engine["blocks"] = blocks + 4
    requests = [_request(rng, i, engine) for i in range(rng.randint(3, 8))]
    return {
        "id": f"w{source}" if isinstance(source, int) else "drawn",
        "title": "random workload",
        "source": ["generated"],
        "steps": 140,
        "engine": engine,
        "request": requests,
        "at": _happenings(rng, bool(role)),
    }


def _request(rng: random.Random, i: int, engine: dict[str, Any]) -> dict[str, Any]:
    pick, block, role = rng.choice, engine["block_size"], engine["role"]
    room = engine["blocks"] * block
    prompt = rng.randint(2, max(2, min(120, room // 2)))
    q: dict[str, Any] = {
        "id": f"q{i}",
        "prompt": prompt,
        "max_tokens": rng.randint(1, max(1, min(12, room - prompt - 4 * block))),
        "priority": rng.randint(0, 2) if engine["policy"] == "priority" else 0,
        "arrive": rng.randint(0, 12),
        "must_finish": False,
        "may_fail": True,
    }
    if rng.random() < 0.6:
        q["prefix"] = pick("xxy")
        q["prefix_tokens"] = rng.randint(prompt // 3, prompt)
    if rng.random() < 0.15:
        q["abort_on"] = pick(["loading", "running", "received"])
    elif rng.random() < 0.1:
        q["abort"] = q["arrive"] + rng.randint(1, 12)
    elif not role and rng.random() < 0.15:
        q["turns"] = [{"prompt": rng.randint(1, 24), "max_tokens": rng.randint(1, 3)}]
    if role and rng.random() < 0.6:
        outcome = pick(["ok"] * 7 + ["fail", "partial", "late"])
        q["load"] = {
            "tokens": rng.randint(0, prompt // block) * block if rng.random() < 0.8 else prompt,
            "delay": rng.randint(1, 6) if outcome != "late" else rng.randint(DEADLINE + 1, DEADLINE + 12),
            "defer": pick([0, 0, 1, 3]) if rng.random() < 0.97 else DEADLINE + 6,
            "mode": pick(["async", "async", "async", "sync"]),
            "outcome": outcome if outcome != "late" else "ok",
            "again": rng.random() < (0.5 if outcome in ("ok", "late") else 0.1),
        }
    if role in ("kv_both", "kv_producer") and rng.random() < 0.4:
        late = rng.random() < 0.06
        q["send"] = {"delay": rng.randint(DEADLINE + 1, DEADLINE + 12) if late else rng.randint(0, 5)}
    return q


def _happenings(rng: random.Random, transfers: bool) -> list[dict[str, Any]]:
    chance = rng.random()
    step = rng.randint(3, 14)
    if chance < 0.15:
        return [
            {"step": step, "do": rng.choice(["pause_new", "pause_all"])},
            {"step": step + rng.randint(1, 6), "do": "resume"},
        ]
    if chance < (0.3 if transfers else 0.5):
        # with a load under way the engine refuses to reset what runs, loudly
        return [{"step": step, "do": "reset_cache" if transfers else "reset_running"}]
    return []


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
