"""Trace schema v1: one JSON object per line, complete enough that checking needs no search.

A trace is one :class:`Header` followed by records in the order in which things happened in the engine:

* :class:`Outside`  something between calls: a request arrives, is aborted, the cache is reset, ...
* :class:`Sched`    one scheduling call; it dispatches step ``step`` (steps without tokens included)
* :class:`Update`   one output-processing call: step ``step`` is processed
* :class:`Note`     a message of the recorder or the guard
* :class:`End`      the last record of an orderly recording, with totals

Each record carries an *ordered* list of events ``ev``. An event is a JSON array whose first element is its
name, e.g. ``["alloc", "r1", [7, 8]]``; the order inside a record is the order of occurrence, so a block that
is freed and handed out again within one call needs no guessing. A plain decode token is not an event.

Neither prompts nor token values are ever recorded.

Vocabulary (the same in ``spec/``, ``model/``, ``proofs/`` and the command line):

* *scheduling order*: ``(prio, arr)``, smaller first.
* *holder*: a request that holds blocks. *Fence* of a block: the newest step that may touch it.
* *step*: every scheduling call dispatches one, numbered from 1 by ``Sched.step``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union

import msgspec
from msgspec import Meta, Struct

SCHEMA = "stallproof-trace/1"

#: Request states, with the names of ``spec/Sched.tla``.
WAITING = "waiting"  #: holds no block, has not run
LOADING = "loading"  #: parked; its load has not completed
RECEIVED = "received"  #: parked; its load has completed, not yet promoted
HELD = "held"  #: promoted, holds blocks, not yet running
RUNNING = "running"
PREEMPTED = "preempted"
FINISHED = "finished"
State = Literal["waiting", "loading", "received", "held", "running", "preempted", "finished"]

Rid = str  #: request id, possibly a keyed hash
Block = int  #: block id; the null block is never recorded


def F(text: str, *, spec: str = "", engine: str = "", compared: str = "") -> Meta:
    """Field documentation, the source of the generated field table.

    ``spec`` names the TLA+ variable, ``engine`` the attribute it is read from, ``compared`` the checker
    rule that compares it (empty: recorded for people, not compared).
    """
    return Meta(description=text, extra={"spec": spec, "engine": engine, "compared": compared})


# ---------------------------------------------------------------- events


class _Event(Struct, array_like=True, frozen=True):
    pass


class Alloc(_Event, tag="alloc", frozen=True):
    """Fresh blocks from the pool, content invalid, handed to ``r``."""

    r: Rid
    blocks: list[Block]


class Share(_Event, tag="share", frozen=True):
    """Prefix hit: ``r`` becomes one more holder of blocks whose content stays valid."""

    r: Rid
    blocks: list[Block]


class Free(_Event, tag="free", frozen=True):
    """``r`` stops holding ``blocks``; a block that nobody holds any more is back in the pool."""

    r: Rid
    blocks: list[Block]


class Prune(_Event, tag="prune", frozen=True):
    """Like :class:`Free`, because the blocks fell out of a sliding window."""

    r: Rid
    blocks: list[Block]


class Fence(_Event, tag="fence", frozen=True):
    """``r`` stops holding ``blocks``, which stay out of the pool until ``step`` is processed (DeferFrees)."""

    r: Rid
    blocks: list[Block]
    step: int


class Drain(_Event, tag="drain", frozen=True):
    """Fenced blocks come back to the pool."""

    blocks: list[Block]


class Pin(_Event, tag="pin", frozen=True):
    """A connector (store, send, copy-on-write) takes a reference of its own."""

    who: str
    blocks: list[Block]


class Unpin(_Event, tag="unpin", frozen=True):
    who: str
    blocks: list[Block]


class Load(_Event, tag="load", frozen=True):
    """An external load of ``r``, generation ``gen``, is admitted; it will write ``blocks``.

    ``mode``: ``async`` (parks the request) or ``sync`` (same step).
    """

    r: Rid
    gen: int
    blocks: list[Block]
    mode: Literal["async", "sync"]


class Start(_Event, tag="start", frozen=True):
    """The connector is told: from now on generation ``gen`` of ``r`` may write its blocks."""

    r: Rid
    gen: int


class Recv(_Event, tag="recv", frozen=True):
    """The engine accepts the completion of a load."""

    r: Rid
    gen: int


class LoadFailed(_Event, tag="load_failed", frozen=True):
    r: Rid
    gen: int
    blocks: list[Block]


class Store(_Event, tag="store", frozen=True):
    """An unordered reader (store, send) named ``job`` starts to read ``blocks``."""

    job: str
    r: Rid
    blocks: list[Block]


class Stored(_Event, tag="stored", frozen=True):
    """Reader ``job`` has completed, or was flushed ahead of a reuse."""

    job: str


class Ignored(_Event, tag="ignored", frozen=True):
    """A completion report that the completion protocol discarded: unknown, late or duplicate."""

    r: Rid
    kind: Literal["recv", "sent", "failed"]
    why: str


class Admit(_Event, tag="admit", frozen=True):
    """``r`` enters RUNNING."""

    r: Rid


class Promote(_Event, tag="promote", frozen=True):
    """A received load is recognised: ``r`` may now be admitted."""

    r: Rid


class Refuse(_Event, tag="refuse", frozen=True):
    """``r`` asked for blocks and is not given them in this call. ``need``: blocks missing or -1."""

    r: Rid
    need: int
    why: str


class NotYet(_Event, tag="not_yet", frozen=True):
    """The connector answered "not yet": ``r`` is skipped, which closes nothing."""

    r: Rid


class Wait(_Event, tag="wait", frozen=True):
    """Patience: refused running request ``r`` waits for steps in flight instead of preempting."""

    r: Rid


class Preempt(_Event, tag="preempt", frozen=True):
    """Running ``r`` loses its blocks for ``target``."""

    r: Rid
    target: Rid


class Evict(_Event, tag="evict", frozen=True):
    """Lateral eviction: holder ``r``, not running, gives its blocks up for ``target``."""

    r: Rid
    target: Rid


class Quarantine(_Event, tag="quarantine", frozen=True):
    """Blocks of a load past its deadline leave the pool until a report names the load."""

    r: Rid
    gen: int
    blocks: list[Block]


class Unquarantine(_Event, tag="unquarantine", frozen=True):
    r: Rid
    gen: int
    blocks: list[Block]


class Expire(_Event, tag="expire", frozen=True):
    """An external wait of ``r`` passed its deadline. ``what``: ``load`` or ``deferral``."""

    r: Rid
    what: Literal["load", "deferral"]


class Add(_Event, tag="add", frozen=True):
    """A request arrives. ``prompt`` and ``max_tokens`` are counts of tokens."""

    r: Rid
    prio: int
    arr: float
    prompt: int
    max_tokens: int


class Finish(_Event, tag="finish", frozen=True):
    r: Rid
    reason: str


class Reset(_Event, tag="reset", frozen=True):
    """The prefix cache was reset: cached contents are invalid, holders are unchanged."""

    ok: bool


Event = Union[  # noqa: UP007 - msgspec wants one alias for all tagged structs
    Alloc, Share, Free, Prune, Fence, Drain, Pin, Unpin, Load, Start, Recv, LoadFailed, Store, Stored,
    Ignored, Admit, Promote, Refuse, NotYet, Wait, Preempt, Evict, Quarantine, Unquarantine, Expire, Add,
    Finish, Reset,
]  # fmt: skip


# ---------------------------------------------------------------- records


class Engine(Struct, omit_defaults=True):
    name: Annotated[str, F("engine family: vllm, vllm-ascend, model, tlc")]
    version: Annotated[str, F("engine release", engine="vllm.__version__")]
    scheduler: Annotated[str, F("dotted name of the scheduler class")] = ""
    connectors: Annotated[list[str], F("leaf connector classes")] = []
    role: Annotated[str, F("kv_role of the connector", engine="kv_transfer_config.kv_role")] = ""


class Config(Struct, omit_defaults=True):
    pool: Annotated[int, F("usable blocks, the null block excluded", spec="B", compared="Conservation")]
    block_size: Annotated[int, F("tokens per block", engine="cache_config.block_size")]
    depth: Annotated[int, F("batches that may be in flight", spec="D", engine="max_concurrent_batches")]
    policy: Annotated[Literal["fcfs", "priority"], F("queue policy")] = "fcfs"
    max_num_seqs: Annotated[int, F("running requests at most")] = 0
    max_num_batched_tokens: Annotated[int, F("token budget of a step", spec="Budget")] = 0
    chunk_cap: Annotated[int, F("chunk cap in tokens, 0: none", spec="ChunkCap")] = 0
    prefix_caching: Annotated[bool, F("prefix sharing on")] = False
    fence_mode: Annotated[
        Literal["None", "DeferFrees", "DeferFreesGuarded", "GateLoads"],
        F("how freed blocks are kept from unordered writers", spec="FenceMode"),
    ] = "None"
    stale_output: Annotated[
        Literal["delivered", "dropped"], F("late output of a preempted request", spec="StaleOutput")
    ] = "delivered"
    patience: Annotated[int, F("processed steps a refused running request waits", spec="P")] = 0
    full_fit: Annotated[bool, F("admission needs room for the whole sequence", spec="FullFit")] = True
    lookahead: Annotated[int, F("look-ahead slots per request", spec="Lookahead")] = 0


class Clock(Struct):
    wall: Annotated[str, F("UTC wall time of this header, ISO 8601")]
    mono: Annotated[float, F("monotonic seconds at the same moment; record times `ts` use this clock")]


class ReqState(Struct, omit_defaults=True):
    """One live request inside a snapshot."""

    r: Annotated[Rid, F("request id")]
    st: Annotated[State, F("state", spec="st", engine="Request.status")]
    prio: Annotated[int, F("priority, smaller first")] = 0
    arr: Annotated[float, F("arrival time")] = 0.0
    prompt: Annotated[int, F("prompt tokens")] = 0
    max_tokens: Annotated[int, F("output tokens at most")] = 0
    tok: Annotated[int, F("tokens known: prompt + output", spec="tok", engine="Request.num_tokens")] = 0
    comp: Annotated[
        int, F("tokens computed or scheduled", spec="comp", engine="Request.num_computed_tokens")
    ] = 0
    blocks: Annotated[list[Block], F("blocks held, in order", spec="own")] = []
    gen: Annotated[int, F("generation of its latest load")] = 0
    last: Annotated[int, F("newest step that schedules it", engine="Request.last_sched_seq")] = 0


class Snapshot(Struct, omit_defaults=True):
    """The whole state at the head of a part, so that the part can be checked alone."""

    call: Annotated[int, F("scheduling calls so far")] = 0
    processed: Annotated[int, F("newest processed step")] = 0
    requests: Annotated[list[ReqState], F("live requests")] = []
    fences: Annotated[dict[int, int], F("block -> newest step that may touch it, unprocessed only")] = {}
    fenced: Annotated[dict[int, int], F("block -> step it waits for, out of the pool (DeferFrees)")] = {}
    quarantined: Annotated[list[Block], F("blocks out of the pool until a late report")] = []
    pins: Annotated[dict[str, list[Block]], F("connector name -> blocks it pins")] = {}
    started: Annotated[dict[str, int], F("request -> generation of a load that may be writing")] = {}
    free: Annotated[int, F("blocks in the pool", spec="free")] = 0


class Header(Struct, tag_field="t", tag="header", omit_defaults=True, kw_only=True):
    schema: Annotated[str, F("schema name and version", compared="schema")]
    run: Annotated[
        str, F("random id of the recording; equal in all its parts", compared="one engine per trace")
    ]
    source: Annotated[Literal["engine", "harness", "simulate", "model", "tlc"], F("what recorded the trace")]
    engine: Engine
    config: Config
    clock: Clock
    part: Annotated[int, F("index of this part in the ring, from 0")] = 0
    rules: Annotated[list[str], F("our rules in force; empty for a stock scheduler")] = []
    state: Annotated[Snapshot, F("full state at the head of this part")] = msgspec.field(
        default_factory=Snapshot
    )


class Sched(Struct, tag_field="t", tag="sched", omit_defaults=True, kw_only=True):
    """One scheduling call."""

    step: Annotated[int, F("number of the step this call dispatches", spec="Schedule", compared="StepOrder")]
    ts: Annotated[float, F("monotonic seconds")] = 0.0
    tok: Annotated[
        dict[Rid, int],
        F("tokens scheduled per request", engine="SchedulerOutput.num_scheduled_tokens", compared="Touch"),
    ] = {}
    ev: list[Event] = []
    free: Annotated[int, F("blocks in the pool after the call", spec="free", compared="Conservation")] = -1
    run: Annotated[
        list[Rid] | None,
        F("running list after the call, where it changed", spec="run", compared="RunningOrder"),
    ] = None


class Update(Struct, tag_field="t", tag="update", omit_defaults=True, kw_only=True):
    """One output-processing call."""

    step: Annotated[int, F("the step that is processed", spec="Process", compared="StepOrder")]
    ts: Annotated[float, F("monotonic seconds")] = 0.0
    out: Annotated[dict[Rid, int], F("new tokens per request, counts only", spec="out")] = {}
    done: Annotated[int, F("device-done high-water mark, -1: unknown")] = -1
    ev: list[Event] = []
    free: Annotated[int, F("blocks in the pool after the call", spec="free", compared="Conservation")] = -1


class Outside(Struct, tag_field="t", tag="outside", omit_defaults=True, kw_only=True):
    """Something that happened between calls."""

    ts: Annotated[float, F("monotonic seconds")] = 0.0
    ev: list[Event] = []
    free: Annotated[int, F("blocks in the pool afterwards", spec="free", compared="Conservation")] = -1


class Note(Struct, tag_field="t", tag="note", omit_defaults=True, kw_only=True):
    """A message for people: a guard fault, a fall-back, recorder drops."""

    ts: float = 0.0
    kind: str = ""
    text: str = ""
    data: dict[str, Any] = {}


class End(Struct, tag_field="t", tag="end", omit_defaults=True, kw_only=True):
    """Last record of an orderly recording. ``next`` names the next part, if the recording goes on there."""

    ts: float = 0.0
    calls: int = 0
    finished: int = 0
    fired: Annotated[dict[str, int], F("how often each rule fired")] = {}
    next: str = ""


Record = Union[Header, Sched, Update, Outside, Note, End]  # noqa: UP007

#: shared encoder; records are written as ``encode(record) + b"\n"``
encoder = msgspec.json.Encoder()
decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def encode(record: Record) -> bytes:
    """One JSON line without its line feed."""
    return encoder.encode(record)
