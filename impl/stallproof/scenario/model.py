"""The scenario format, its validation, and the expectation per release."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from stallproof.errors import BadInput

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]

#: requests of a scenario, and newcomers that wait at a time; characters of its id
MAX_REQUESTS, MAX_ID = 100_000, 120
#: characters of a line: the parser's time grows with the square of the parts of a dotted key
MAX_LINE = 8_000

#: what a run can violate: the promise by name, and the death of the engine where a file gives it no name
PROPERTIES = (
    "Conservation", "OneOwner", "RefCount", "InFlightSafe", "XferSafe", "StoreSafe", "NoDoubleFree",
    "NoLeak", "NoZeroPre", "EvictCoupled", "NoInversion", "NoWedge", "LoopRank", "Termination",
    "NoStarvation", "BoundedWait", "Feasible", "EngineDies",
)  # fmt: skip


class Engine(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The engine in miniature. Counts of tokens, blocks, steps."""

    blocks: Annotated[int, Meta(ge=1, le=1_000_000)]  #: usable blocks, the null block excluded
    block_size: Positive = 16
    max_num_seqs: Positive = 16
    budget: Positive = 512  #: tokens per step (max_num_batched_tokens)
    budget_tokens: Count = 0  #: 0: as ``budget``; else what the scheduler may give out (less than ``budget``)
    chunk_cap: Count = 0  #: long_prefill_token_threshold
    max_model_len: Positive = 1024
    policy: Literal["fcfs", "priority"] = "fcfs"
    depth: Annotated[int, Meta(ge=1, le=4)] = 2  #: batches in flight (D)
    prefix_caching: bool = False
    chunked_prefill: bool = True
    full_fit: bool = True  #: scheduler_reserve_full_isl
    window: Count = 0  #: sliding window in tokens; 0: full attention
    groups: list[Count] = []  #: sliding windows of several KV cache groups (0: full); empty: one group
    max_loras: Count = 0  #: adapters that may run together; 0: no adapters
    #: stock class as a fork has it
    base: Literal["", "lost_fence", "no_preemption", "no_reservation", "one_queue"] = ""
    lookahead: Count = 0  #: speculative look-ahead slots per request
    role: Literal["", "kv_both", "kv_consumer", "kv_producer"] = ""  #: empty: no connector
    load_failure: Literal["recompute", "fail"] = "recompute"
    delivers: bool = True  #: requires_kv_delivery (0.27 on): a victim's tokens in flight are dropped
    zeroing: bool = False  #: new blocks are zeroed by the step that gets them


class Load(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What the connector does for a request: answers, then a load and how it ends."""

    defer: Count = 0  #: answers "not yet" so many times first
    defer_until: Count = 0  #: answers "not yet" before this step
    tokens: Count = 0  #: tokens available outside, counted from the start of the prompt
    mode: Literal["async", "sync"] = "async"
    delay: Count = 2  #: steps from start to report
    outcome: Literal["ok", "fail", "partial", "fail_silent", "lost", "duplicate"] = "ok"
    again: bool = False  #: available again after a preemption


class Send(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The connector keeps the blocks of a finished request until it reports them sent."""

    delay: Count = 2
    outcome: Literal["ok", "lost", "duplicate", "with_recv"] = "ok"


class Turn(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A further chunk of a streaming session, given when the one before has ended, or at step ``at``."""

    prompt: Positive
    max_tokens: Positive = 1
    at: int = -1


class Request(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One request, or ``count`` of them (``id0``, ``id1``, ...), ``every`` steps apart."""

    id: str
    prompt: Positive
    max_tokens: Positive = 1
    priority: int = 0
    arrive: Count = 0  #: the step before which it arrives
    abort: int = -1  #: the step before which its client goes away
    abort_on: Literal["", "loading", "running", "received"] = ""  #: abort when first seen in this state
    count: Positive = 1
    every: Count = 0
    prefix: str = ""  #: requests with the same prefix share their first ``prefix_tokens`` tokens
    prefix_tokens: Count = 0
    stop: bool = False  #: its last token is an ordinary stop, not the length limit
    load: Load | None = None
    send: Send | None = None
    lora: Count = 0  #: its adapter
    turns: list[Turn] = []  #: it is a streaming session, and these are its further chunks
    abandoned: bool = False  #: a session whose client never sends another chunk, nor closes it
    grammar: Literal["", "never", "error"] = ""  #: structured output: its compilation hangs or fails
    must_finish: bool = True  #: Termination and NoStarvation speak about it
    may_fail: bool = False  #: finishing with an error is right (infeasible, failed load)


class Stream(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Newcomers without end: ``keep`` of them are always waiting."""

    id: str
    prompt: Positive
    max_tokens: Positive = 1
    priority: int = 0
    keep: Positive = 4
    start: Count = 0
    lora: Count = 0
    load: Load | None = None


class At(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Something that happens to the engine before step ``step``."""

    step: Count
    do: Literal["pause_new", "pause_all", "resume", "reset_cache", "reset_running", "must_reset_running"]


class Report(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A raw completion report, whatever the state of the request."""

    step: Count
    kind: Literal["recv", "sent", "failed"]
    id: str


class Expect(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What must happen.

    ``stock``: release or range (``"0.24.0..0.29.0"``) -> ``ok`` or the property that is violated; releases
    not named are ``ok``. ``ours``: the same for our class; almost always empty. ``death``: the property that
    an exception in the engine's loop violates.
    """

    stock: dict[str, str] = {}
    ours: dict[str, str] = {}
    death: str = "EngineDies"


class Scenario(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    id: str
    title: str
    story: str = ""
    source: list[str]  #: catalogue ids; the first one is the root cause
    engine: Engine
    request: list[Request] = []
    stream: list[Stream] = []
    at: list[At] = []
    report: list[Report] = []
    steps: Positive = 400
    versions: list[str] = []  #: releases it can run on; empty: all
    expect: Expect = msgspec.field(default_factory=Expect)
    path: str = ""


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(x) for x in version.split("."))


def expected(table: dict[str, str], version: str) -> str:
    """The entry for ``version``: exact release first, then the first range that holds it, else ``ok``."""
    if version in table:
        return table[version]
    for name, what in table.items():
        low, dots, high = name.partition("..")
        if dots and (not low or _key(low) <= _key(version)) and (not high or _key(version) <= _key(high)):
            return what
    return "ok"


def load(path: Path | str) -> Scenario:
    """Read and validate one file. Raises :class:`BadInput` naming file, line or field."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        for number, content in enumerate(text.splitlines(), 1):
            if len(content) > MAX_LINE:
                raise BadInput(
                    f"a line of {len(content):,} characters; {MAX_LINE:,} are allowed",
                    path=path, line=number, remedy="break it into several lines",
                )  # fmt: skip
        raw = tomllib.loads(text)
    except OSError as exc:
        raise BadInput(
            exc.strerror or str(exc), path=path, remedy="name a scenario file, or a folder of them"
        ) from exc
    except UnicodeDecodeError as exc:
        raise BadInput("is not UTF-8 text", path=path, remedy="save it as UTF-8") from exc
    except (ValueError, RecursionError) as exc:  # a number of 5,000 digits is a ValueError
        raise BadInput(f"is not TOML: {exc}", path=path, remedy="see docs/scenarios.md") from exc
    try:
        s = msgspec.convert(raw, Scenario)
    except msgspec.ValidationError as exc:
        line = _line(text, str(exc))
        raise BadInput(
            str(exc), path=path, line=line, remedy="the fields are listed in docs/scenarios.md"
        ) from exc
    s.path = str(path)
    check(s, path)
    return s


def _line(text: str, message: str) -> int | None:
    """The line of the key that ``message`` is about: msgspec knows its path only. None if it is not found."""
    where = re.search(r"at `\$\.?(.*)`", message)
    keys = re.findall(r"([\w-]+)(?:\[(\d+)\])?", where[1]) if where else []
    if unknown := re.search(r"unknown field `(.+?)`", message):
        keys.append((unknown[1], ""))
    lines, at = text.splitlines(), -1
    for name, index in keys:
        key = re.compile(rf"\s*\[+(?:[\w.]+\.)?{re.escape(name)}\]|(?:[^#]*[{{,\s])?{re.escape(name)}\s*=")
        hits = [i for i in range(max(at, 0), len(lines)) if key.match(lines[i])]
        if len(hits) <= int(index or 0):
            return None
        at = hits[int(index or 0)]
    return at + 1 if keys else None


def check(s: Scenario, path: Path | str) -> None:
    """What the types do not say; raises :class:`BadInput` naming ``path`` and the field."""

    def bad(field: str, what: str) -> BadInput:
        return BadInput(f"{field}: {what}", path=path, remedy="see docs/scenarios.md")

    # the id becomes the name of a trace and of a finding's folder
    if not s.id or s.id.startswith(".") or len(s.id) > MAX_ID or not s.id.isprintable() or "/" in s.id:
        raise bad("id", f"{s.id[:MAX_ID]!r} cannot be part of a file name")
    if sum(r.count for r in s.request) > MAX_REQUESTS or sum(q.keep for q in s.stream) > MAX_REQUESTS:
        raise bad("request", f"more than {MAX_REQUESTS:,} of them")
    seen: set[str] = set()
    for i, r in enumerate(s.request):
        at = f"request[{i}] ({r.id})"
        if not r.id:  # in a trace an empty name means nobody
            raise bad(f"{at}.id", "is empty")
        names = [r.id] if r.count == 1 else [f"{r.id}{k}" for k in range(r.count)]
        if dup := seen.intersection(names):
            raise bad(f"{at}.id", f"{sorted(dup)[0]} is there twice")
        seen.update(names)
        if r.prompt + r.max_tokens > s.engine.max_model_len:
            raise bad(f"{at}.prompt", f"prompt + max_tokens exceed max_model_len {s.engine.max_model_len}")
        if r.prefix_tokens > r.prompt:
            raise bad(f"{at}.prefix_tokens", "longer than the prompt")
        if (r.load or r.send) and not s.engine.role:
            raise bad(f"{at}", "load and send need engine.role")
        if r.send and not s.engine.delivers:
            raise bad(f"{at}.send", "needs a connector that delivers")
        if r.load and r.load.tokens > r.prompt:
            raise bad(f"{at}.load.tokens", "more than the prompt")
    if not s.request:
        raise bad("request", "there is none")
    if s.engine.budget_tokens > s.engine.budget:
        raise bad("engine.budget_tokens", "more than engine.budget")
    for table in (s.expect.stock, s.expect.ours):
        for version, what in table.items():
            try:
                parts = version.split("..")
                if len(parts) > 2:
                    raise ValueError
                for part in parts:
                    if part:
                        _key(part)
            except ValueError:
                raise bad("expect", f"{version!r} is no release and no range") from None
            if what != "ok" and what not in PROPERTIES:
                raise bad(f"expect.{version}", f"{what!r} is no property; known: {', '.join(PROPERTIES)}")
    if s.expect.death not in PROPERTIES:
        raise bad("expect.death", f"{s.expect.death!r} is no property")


def load_all(folder: Path | str) -> list[Scenario]:
    """All scenarios below ``folder``, by id; ids are unique."""
    found: dict[str, Scenario] = {}
    for path in sorted(Path(folder).rglob("*.toml")):
        s = load(path)
        if s.id in found:
            raise BadInput(f"id {s.id!r} is also that of {found[s.id].path}", path=path)
        found[s.id] = s
    return [found[k] for k in sorted(found)]
