"""Make a scenario small while it still fails for the same reason.

Greedy: whole parts first (requests, streams, happenings, chunks of them), then options back to their default,
then numbers down, until nothing helps or the allowance of runs is spent. ``keeps`` decides; it must be
deterministic. What the environment may not do (:func:`.space.refused`) is never tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from stallproof.hunt.space import refused
from stallproof.scenario import Scenario

Raw = dict[str, Any]

#: lists of parts that may go
_LISTS = ("request", "stream", "at", "report")
#: numbers and how small they may become; the order is that of the attempts
_FLOORS = {
    "count": 1, "blocks": 1, "prompt": 1, "max_tokens": 1, "keep": 1, "max_num_seqs": 1, "budget": 1,
    "every": 0, "arrive": 0, "start": 0, "tokens": 0, "delay": 1, "defer": 0, "defer_until": 0, "abort": 0,
    "step": 0, "prefix_tokens": 1, "window": 1, "lookahead": 1, "chunk_cap": 1, "budget_tokens": 1,
    "max_loras": 1, "priority": 0, "lora": 1, "max_model_len": 16, "block_size": 1, "depth": 1,
}  # fmt: skip


def shrink(s: Scenario, keeps: Callable[[Scenario], bool], runs: int) -> tuple[Scenario, int]:
    """The smallest scenario found and the runs used. ``s`` itself must be kept by ``keeps``."""
    best = msgspec.to_builtins(s)
    used = 0
    tried: set[bytes] = set()

    def good(raw: Raw) -> bool:
        nonlocal used
        if used >= runs:
            return False
        try:
            t = msgspec.convert(raw, Scenario)
        except msgspec.ValidationError:
            return False
        key = msgspec.json.encode(t)
        if key in tried or refused(t):
            return False
        tried.add(key)
        used += 1
        return keeps(t)

    moved = True
    while moved and used < runs:
        moved = False
        for step in (_parts, _options, _together, _numbers):
            again = True
            while again and used < runs:
                again = False
                for raw in step(best):
                    if good(raw):
                        best, again, moved = raw, True, True
                        break
    return msgspec.convert(best, Scenario), used


def _clone(raw: Raw) -> Raw:
    copy: Raw = msgspec.json.decode(msgspec.json.encode(raw))
    return copy


def _parts(raw: Raw) -> Iterator[Raw]:
    """Without a chunk of one of the lists: halves, then single parts, then turns of sessions."""
    for name in _LISTS:
        parts = raw.get(name) or []
        size = len(parts)
        while size:
            for at in range(0, len(parts), size):
                copy = _clone(raw)
                del copy[name][at : at + size]
                yield _consistent(copy)
            size //= 2
    for k, q in enumerate(raw.get("request") or []):
        for j in range(len(q.get("turns") or [])):
            copy = _clone(raw)
            del copy["request"][k]["turns"][j]
            yield copy


def _consistent(raw: Raw) -> Raw:
    """Reports of requests that are gone go, too."""
    ids = set()
    for q in raw.get("request") or []:
        n = q.get("count", 1)
        ids |= {q["id"]} if n == 1 else {f"{q['id']}{k}" for k in range(n)}
    raw["report"] = [r for r in raw.get("report") or [] if r["id"] in ids]
    return raw


def _structs(raw: Raw) -> Iterator[tuple[list[Any], Raw]]:
    """Every table of the scenario with its path; the scenario's own fields are left alone."""
    yield ["engine"], raw["engine"]
    for name in _LISTS:
        for k, part in enumerate(raw.get(name) or []):
            yield [name, k], part
            for inner in ("load", "send"):
                if isinstance(part.get(inner), dict):
                    yield [name, k, inner], part[inner]
            for j, turn in enumerate(part.get("turns") or []):
                yield [name, k, "turns", j], turn


def _at(raw: Raw, path: list[Any]) -> tuple[Raw, Any]:
    """A copy, and its table at ``path``."""
    copy = _clone(raw)
    at: Any = copy
    for p in path:
        at = at[p]
    return copy, at


def _without(raw: Raw, path: list[Any], *keys: str) -> Raw:
    copy, table = _at(raw, path)
    for key in keys:
        table.pop(key, None)
    return copy


def _with(raw: Raw, path: list[Any], key: str, value: int) -> Raw:
    copy, table = _at(raw, path)
    table[key] = value
    return copy


#: options that are no numbers to lower: removing them gives the default
_KEEP = frozenset(("id", "prompt", "step", "do", "kind", "blocks"))
#: of the engine: their defaults are larger, not simpler
_NOT_SIMPLER = ("budget", "max_model_len", "max_num_seqs", "block_size", "depth")


def _options(raw: Raw) -> Iterator[Raw]:
    """One field back to its default; whole loads and sends first."""
    found = [(path, key) for path, table in _structs(raw) for key in table if key not in _KEEP]
    found.sort(key=lambda f: f[1] not in ("load", "send"))
    for path, key in found:
        if path == ["engine"] and key in _NOT_SIMPLER:
            continue
        if key == "prefix":
            yield _without(raw, path, "prefix", "prefix_tokens")
        else:
            yield _without(raw, path, key)
    if raw["engine"].get("groups"):
        for k in range(len(raw["engine"]["groups"])):
            copy = _clone(raw)
            del copy["engine"]["groups"][k]
            yield copy


def _together(raw: Raw) -> Iterator[Raw]:
    """All sizes in tokens halved at once, and a larger budget where it is simpler than a small one."""
    block = raw["engine"].get("block_size", 16)
    if block > 1 and block % 2 == 0:
        copy = _clone(raw)
        for _, table in _structs(copy):
            for key in (
                "prompt",
                "max_tokens",
                "tokens",
                "prefix_tokens",
                "window",
                "lookahead",
                "chunk_cap",
            ):
                if table.get(key):
                    table[key] = max(_FLOORS[key], -(-table[key] // 2))
        e = copy["engine"]
        e["block_size"] = block // 2
        e["groups"] = [w // 2 for w in e.get("groups") or []]
        for key in ("budget", "budget_tokens"):
            if e.get(key):
                e[key] = max(e.get("max_num_seqs", 16) if key == "budget" else 1, -(-e[key] // 2))
        yield copy


def _numbers(raw: Raw) -> Iterator[Raw]:
    """One number lower: to its floor, half way down, one less."""
    if "depth" not in raw["engine"]:
        yield _with(raw, ["engine"], "depth", 1)  # less than the default
    for path, table in _structs(raw):
        for key, floor in _FLOORS.items():
            old = table.get(key)
            if not isinstance(old, int) or isinstance(old, bool) or old <= floor:
                continue
            for new in dict.fromkeys((floor, (floor + old) // 2, old - 1)):
                if new < old:
                    yield _with(raw, path, key, new)
