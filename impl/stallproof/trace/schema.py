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
Neither prompts nor token values are ever recorded. A field that a recorder leaves out has its default.

Block ids are 1 to ``Config.pool``; the null block is never recorded. The ledger keeps a count of references
per block: one for each request that holds it, each deferred entry that keeps it out of the pool (``fence``
to ``drain``), each pin and each quarantine. A block is in the pool iff that count is zero, so neither the
order of the pool nor cached contents matter, and a prefix hit on a free, a held or a fenced block is the
same event, ``share``. The *fence* of a block is folded at release: the newest step that scheduled the
releasing request while it held the block, and every step named by a ``touch`` event (a block zeroed by the
step being built although it was taken back in the same call needs such an event).

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


class _Event(Struct, array_like=True, frozen=True, gc=False):
    pass


class Alloc(_Event, tag="alloc", frozen=True, gc=False):
    """Fresh blocks from the pool, content invalid, handed to ``r``."""

    r: Rid
    blocks: list[Block]


class Share(_Event, tag="share", frozen=True, gc=False):
    """Prefix hit: ``r`` becomes one more holder of blocks whose content stays valid."""

    r: Rid
    blocks: list[Block]


class Free(_Event, tag="free", frozen=True, gc=False):
    """``r`` stops holding ``blocks``; a block that nobody holds any more is back in the pool."""

    r: Rid
    blocks: list[Block]


class Prune(_Event, tag="prune", frozen=True, gc=False):
    """Like :class:`Free`, because the blocks fell out of the window that ends at token ``upto``.

    A step in flight that begins at or behind ``upto`` does not read them. -1: not recorded.
    """

    r: Rid
    blocks: list[Block]
    upto: int = -1


class Fence(_Event, tag="fence", frozen=True, gc=False):
    """``r`` stops holding ``blocks``; a deferred entry keeps its references until ``step`` is processed.

    DeferFrees. The blocks stay out of the pool; a prefix hit may still share them meanwhile.
    """

    r: Rid
    blocks: list[Block]
    step: int


class Drain(_Event, tag="drain", frozen=True, gc=False):
    """One deferred entry per named block is released; a block nobody else holds is back in the pool."""

    blocks: list[Block]


class Pin(_Event, tag="pin", frozen=True, gc=False):
    """Something that is no request (a connector's store, copy-on-write) takes a reference of its own."""

    who: str
    blocks: list[Block]


class Unpin(_Event, tag="unpin", frozen=True, gc=False):
    """``who`` gives its references up."""

    who: str
    blocks: list[Block]


class Touch(_Event, tag="touch", frozen=True, gc=False):
    """Work of the step being built, ordered on the device stream, that no holder's tokens imply.

    Copy-on-write copies, zeroing of blocks given back in the same call, poison and stamp kernels. ``who``
    names the writer or reader. The step becomes the blocks' fence.
    """

    who: str
    blocks: list[Block]


class Load(_Event, tag="load", frozen=True, gc=False):
    """An external load of ``r`` is admitted; it will write ``blocks``, handed to ``r`` before.

    ``gen`` counts the loads of ``r`` from 1. ``mode``: ``async`` parks the request until ``recv``; ``sync``
    runs in the step of this call and has ended once that step is processed. ``tokens``: tokens it brings.
    """

    r: Rid
    gen: int
    blocks: list[Block]
    mode: Literal["async", "sync"]
    tokens: int = -1


class Start(_Event, tag="start", frozen=True, gc=False):
    """The connector is told: from now on generation ``gen`` of ``r`` may write its blocks.

    On a stock engine it follows ``load`` at once. A load whose blocks are released before its start is
    cancelled thereby.
    """

    r: Rid
    gen: int


class Recv(_Event, tag="recv", frozen=True, gc=False):
    """The engine accepts the completion of a load."""

    r: Rid
    gen: int


class LoadFailed(_Event, tag="load_failed", frozen=True, gc=False):
    """The load has ended without filling ``blocks``."""

    r: Rid
    gen: int
    blocks: list[Block]


class Store(_Event, tag="store", frozen=True, gc=False):
    """An unordered reader (store, send) named ``job`` may read ``blocks`` from now on.

    A finished request may hold its blocks only while one of its stores or loads is unfinished.
    """

    job: str
    r: Rid
    blocks: list[Block]


class Stored(_Event, tag="stored", frozen=True, gc=False):
    """Reader ``job`` has completed, or (``flush``) is completed by the worker ahead of this step's work."""

    job: str
    how: Literal["done", "flush", "failed"] = "done"


class Ignored(_Event, tag="ignored", frozen=True, gc=False):
    """A completion report that the completion protocol discarded: unknown, late or duplicate."""

    r: Rid
    kind: Literal["recv", "sent", "failed"]
    why: str


class Admit(_Event, tag="admit", frozen=True, gc=False):
    """``r`` enters RUNNING with ``comp`` tokens computed already (hits and loads); -1: not recorded."""

    r: Rid
    comp: int = -1


class Promote(_Event, tag="promote", frozen=True, gc=False):
    """A received load is recognised: ``r`` may now be admitted."""

    r: Rid


class Refuse(_Event, tag="refuse", frozen=True, gc=False):
    """``r`` asked for blocks and did not get them. ``need``: new blocks it asked for, -1 unknown.

    ``why``: ``blocks`` (too few), ``reserved``, ``fit`` (whole sequence), ``fence``, ``closed`` (behind a
    refusal), ``budget``, ``slots``, ``adapter`` (none is left for it), or a word of the engine's own.
    """

    r: Rid
    need: int
    why: str


class NotYet(_Event, tag="not_yet", frozen=True, gc=False):
    """The connector answered "not yet": ``r`` is skipped, which closes nothing."""

    r: Rid


class Wait(_Event, tag="wait", frozen=True, gc=False):
    """Patience: refused running request ``r`` waits for steps in flight instead of preempting."""

    r: Rid


class Preempt(_Event, tag="preempt", frozen=True, gc=False):
    """Running ``r`` leaves RUNNING and gives its blocks up, in the releases that follow, for ``target``.

    ``target`` is empty where it is preempted for nobody (reset, pause).
    """

    r: Rid
    target: Rid


class Evict(_Event, tag="evict", frozen=True, gc=False):
    """Lateral eviction: holder ``r``, not running, gives its blocks up, in what follows, for ``target``."""

    r: Rid
    target: Rid


class Quarantine(_Event, tag="quarantine", frozen=True, gc=False):
    """``r`` stops holding ``blocks`` of a load past its deadline; they stay out of the pool.

    Until a report or a connector reset names generation ``gen``.
    """

    r: Rid
    gen: int
    blocks: list[Block]


class Unquarantine(_Event, tag="unquarantine", frozen=True, gc=False):
    """A report or a reset named generation ``gen`` of ``r``: its blocks go back to the pool."""

    r: Rid
    gen: int
    blocks: list[Block]


class Expire(_Event, tag="expire", frozen=True, gc=False):
    """An external wait of ``r`` passed its deadline. ``what``: ``load`` or ``deferral``."""

    r: Rid
    what: Literal["load", "deferral"]


class Add(_Event, tag="add", frozen=True, gc=False):
    """A request arrives. ``prompt`` and ``max_tokens`` are counts of tokens; ``(prio, arr)`` is its place."""

    r: Rid
    prio: int
    arr: float
    prompt: int
    max_tokens: int


class Finish(_Event, tag="finish", frozen=True, gc=False):
    """``r`` has ended: ``stop``, ``length``, ``abort``, ``error``, ``infeasible`` or the engine's own word.

    Its blocks are released by events of their own. ``out``: output tokens it got in all, -1 unknown.
    """

    r: Rid
    reason: str
    out: int = -1


class Rewind(_Event, tag="rewind", frozen=True, gc=False):
    """Computed tokens of ``r`` are set back to ``comp`` (failed load, rejected drafts)."""

    r: Rid
    comp: int


class Park(_Event, tag="park", frozen=True, gc=False):
    """``r`` waits for something outside the scheduler, until ``unpark``; it leaves RUNNING if it was there:
    the next turn of a streaming ``session``, a ``grammar`` that is being compiled, or something else."""

    r: Rid
    what: Literal["session", "grammar", "other"]


class Unpark(_Event, tag="unpark", frozen=True, gc=False):
    """What ``r`` waited for has come."""

    r: Rid


class Turn(_Event, tag="turn", frozen=True, gc=False):
    """A streaming session goes on: ``prompt`` and ``max_tokens`` now count the whole sequence.

    It leaves RUNNING if it was there, and keeps its blocks. ``arr``: its new place, -1: as before.
    """

    r: Rid
    prompt: int
    max_tokens: int
    arr: float = -1.0


class Pause(_Event, tag="pause", frozen=True, gc=False):
    """Pause state of the engine: ``none``, ``new`` (no admissions) or ``all`` (nothing is scheduled)."""

    state: Literal["none", "new", "all"]


class Reset(_Event, tag="reset", frozen=True, gc=False):
    """The prefix cache was reset: cached contents are invalid, holders are unchanged."""

    ok: bool


Event = Union[  # noqa: UP007 - msgspec wants one alias for all tagged structs
    Alloc, Share, Free, Prune, Fence, Drain, Pin, Unpin, Touch, Load, Start, Recv, LoadFailed, Store, Stored,
    Ignored, Admit, Promote, Refuse, NotYet, Wait, Preempt, Evict, Quarantine, Unquarantine, Expire, Add,
    Finish, Reset, Rewind, Park, Unpark, Turn, Pause,
]  # fmt: skip


# ---------------------------------------------------------------- records


class Engine(Struct, omit_defaults=True):
    """What was recorded."""

    name: Annotated[str, F("engine family: vllm, vllm-ascend, model, tlc")]
    version: Annotated[str, F("engine release", engine="vllm.__version__")]
    scheduler: Annotated[str, F("dotted name of the scheduler class")] = ""
    connectors: Annotated[list[str], F("leaf connector classes")] = []
    role: Annotated[str, F("kv_role of the connector", engine="kv_transfer_config.kv_role")] = ""


class Config(Struct, omit_defaults=True):
    """Sizes and switches."""

    pool: Annotated[int, F("usable blocks, the null block excluded", spec="B", compared="Conservation")]
    block_size: Annotated[int, F("tokens per block", engine="cache_config.block_size")]
    depth: Annotated[
        int,
        F("batches that may be in flight", spec="D", engine="max_concurrent_batches", compared="StepOrder"),
    ]
    policy: Annotated[Literal["fcfs", "priority"], F("queue policy")] = "fcfs"
    max_num_seqs: Annotated[int, F("running requests at most", spec="MaxSeqs", compared="Limits")] = 0
    max_num_batched_tokens: Annotated[int, F("token budget of a step", spec="Budget", compared="Limits")] = 0
    chunk_cap: Annotated[int, F("chunk cap in tokens, 0: none", spec="ChunkCap")] = 0
    prefix_caching: Annotated[bool, F("prefix sharing on")] = False
    fence_mode: Annotated[
        Literal["None", "DeferFrees", "DeferFreesGuarded", "GateLoads"],
        F("how freed blocks are kept from unordered writers", spec="FenceMode"),
    ] = "None"
    stale_output: Annotated[
        Literal["delivered", "dropped"], F("late output of a preempted request", spec="StaleOutput")
    ] = "delivered"
    patience: Annotated[int, F("processed steps a refused request waits", spec="P", compared="Patience")] = 0
    full_fit: Annotated[bool, F("admission needs room for the whole sequence", spec="FullFit")] = True
    lookahead: Annotated[int, F("look-ahead slots or drafts per request, the larger", spec="Look")] = 0
    slots: Annotated[int, F("look-ahead slots of an allocation, -1: unknown", compared="Feasible")] = -1
    max_model_len: Annotated[int, F("longest sequence in tokens, 0: unknown", compared="Feasible")] = 0
    groups: Annotated[int, F("KV cache groups; block counts follow from tokens only if 1")] = 1
    window: Annotated[int, F("sliding window in tokens; 0: full attention, so that tokens tell blocks")] = 0
    deadline: Annotated[float, F("seconds a load may last, 0: no deadline", compared="BoundedWait")] = 0.0
    deferral: Annotated[float, F('seconds of "not yet", 0: no deadline', compared="DeferralDeadline")] = 0.0
    watermark: Annotated[int, F("blocks that an admission leaves free")] = 0

    @property
    def plain(self) -> bool:
        """One group that keeps everything: counts of blocks follow from counts of tokens."""
        return self.groups == 1 and not self.window


class Clock(Struct):
    """The two clocks at the head of a part."""

    wall: Annotated[str, F("UTC wall time of this header, ISO 8601")]
    mono: Annotated[float, F("monotonic seconds at the same moment; record times `ts` use this clock")]


class ReqState(Struct, omit_defaults=True):
    """One live request inside a snapshot."""

    r: Annotated[Rid, F("request id")]
    st: Annotated[State, F("state", spec="s.st", engine="Request.status")]
    prio: Annotated[int, F("priority, smaller first")] = 0
    arr: Annotated[float, F("arrival time")] = 0.0
    prompt: Annotated[int, F("prompt tokens")] = 0
    max_tokens: Annotated[int, F("output tokens at most")] = 0
    tok: Annotated[int, F("tokens known: prompt + output", spec="s.tok", engine="Request.num_tokens")] = 0
    comp: Annotated[
        int, F("tokens computed or scheduled", spec="s.comp", engine="Request.num_computed_tokens")
    ] = 0
    blocks: Annotated[list[Block], F("blocks held, in order", spec="s.own")] = []
    gen: Annotated[int, F("generation of its latest load")] = 0
    last: Annotated[int, F("newest step that schedules it", engine="Request.last_sched_seq")] = 0
    out: Annotated[int, F("output tokens so far", engine="Request.num_output_tokens")] = 0
    awaits: Annotated[str, F("what it is parked for: session, grammar, other; empty: nothing")] = ""


class LoadState(Struct, omit_defaults=True):
    """A load that has not ended, inside a snapshot."""

    r: Annotated[Rid, F("request id")]
    gen: Annotated[int, F("generation", spec="s.gate")]
    blocks: Annotated[list[Block], F("blocks it will write or is writing", spec="s.blks")]
    mode: Annotated[Literal["async", "sync"], F("see the load event")] = "async"
    step: Annotated[int, F("step of the call that admitted it")] = 0
    started: Annotated[bool, F("the connector has been told")] = False


class Deferred(Struct, array_like=True):
    """A deferred entry inside a snapshot: ``blocks`` wait for ``step`` (DeferFrees)."""

    step: int
    blocks: list[Block]


class Held(Struct, array_like=True):
    """Blocks of quarantined generation ``gen`` of ``r`` inside a snapshot."""

    r: Rid
    gen: int
    blocks: list[Block]


class Job(Struct, array_like=True):
    """An unfinished unordered reader inside a snapshot."""

    job: str
    r: Rid
    blocks: list[Block]


class InFlight(Struct, array_like=True):
    """A dispatched, unprocessed step inside a snapshot, with its tokens per request."""

    step: int
    tok: dict[Rid, int]


class Snapshot(Struct, omit_defaults=True):
    """The whole state at the head of a part, so that the part can be checked alone."""

    step: Annotated[int, F("newest dispatched step", spec="Dispatch")] = 0
    processed: Annotated[int, F("newest processed step", spec="Process")] = 0
    done: Annotated[int, F("device-done high-water mark, -1: unknown")] = -1
    free: Annotated[int, F("blocks in the pool", spec="s.free", compared="Conservation")] = 0
    requests: Annotated[list[ReqState], F("live requests, and finished ones that still hold blocks")] = []
    run: Annotated[list[Rid], F("running list", spec="s.run")] = []
    in_flight: Annotated[list[InFlight], F("dispatched, unprocessed steps", spec="s.infl")] = []
    fences: Annotated[dict[int, int], F("block -> newest step that may touch it, unprocessed only")] = {}
    deferred: Annotated[list[Deferred], F("deferred entries, oldest first", spec="s.dfq")] = []
    loads: Annotated[list[LoadState], F("loads that have not ended")] = []
    stores: Annotated[list[Job], F("unordered readers that have not ended")] = []
    pins: Annotated[dict[str, list[Block]], F("who -> blocks it pins")] = {}
    quarantined: Annotated[list[Held], F("blocks out of the pool until a late report")] = []
    pause: Annotated[Literal["none", "new", "all"], F("pause state of the engine")] = "none"


class Header(Struct, tag_field="t", tag="header", omit_defaults=True, kw_only=True):
    """First record of every part: what was recorded, how it is configured, and its whole state here."""

    schema: Annotated[str, F("schema name and version", compared="schema")]
    run: Annotated[
        str, F("random id of the recording; equal in all its parts", compared="one engine per trace")
    ]
    source: Annotated[Literal["engine", "harness", "simulate", "model", "tlc"], F("what recorded the trace")]
    engine: Annotated[Engine, F("what was recorded")]
    config: Annotated[Config, F("sizes and switches; the rules of the checker depend on them")]
    clock: Annotated[Clock, F("clocks at the head of this part")]
    part: Annotated[int, F("index of this part in the ring, from 0", compared="order of parts")] = 0
    lost: Annotated[int, F("records lost just before this part, which restarts from its snapshot")] = 0
    rules: Annotated[
        list[str], F("our rules in force; empty for a stock scheduler", compared="the policy layer")
    ] = []
    state: Annotated[Snapshot, F("full state at the head of this part", compared="Snapshot")] = msgspec.field(
        default_factory=Snapshot
    )


class Sched(Struct, tag_field="t", tag="sched", omit_defaults=True, kw_only=True):
    """One scheduling call."""

    n: Annotated[int, F("record number in this part from 1, set by the writer", compared="RecordOrder")] = 0
    step: Annotated[int, F("number of the step this call dispatches", spec="Schedule", compared="StepOrder")]
    ts: Annotated[float, F("monotonic seconds")] = 0.0
    tok: Annotated[
        dict[Rid, int],
        F("tokens scheduled per request", engine="SchedulerOutput.num_scheduled_tokens", compared="Tokens"),
    ] = {}
    total: Annotated[
        int,
        F(
            "tokens of the step in all, -1: not recorded",
            engine="SchedulerOutput.total_num_scheduled_tokens",
            compared="Tokens",
        ),
    ] = -1
    done: Annotated[int, F("device-done high-water mark when the call began, -1: unknown")] = -1
    ev: Annotated[list[Event], F("what happened, in order")] = []
    free: Annotated[int, F("blocks in the pool after the call", spec="s.free", compared="Conservation")] = -1
    run: Annotated[
        list[Rid] | None,
        F("running list after the call, where it changed", spec="s.run", compared="Queues"),
    ] = None
    refs: Annotated[
        dict[int, int], F("reference counts of the pool's own blocks, a sample", compared="RefCount")
    ] = {}


class Update(Struct, tag_field="t", tag="update", omit_defaults=True, kw_only=True):
    """One output-processing call."""

    n: Annotated[int, F("record number in this part from 1, set by the writer", compared="RecordOrder")] = 0
    step: Annotated[int, F("the step that is processed", spec="Process", compared="StepOrder")]
    ts: Annotated[float, F("monotonic seconds")] = 0.0
    out: Annotated[dict[Rid, int], F("new tokens per request, counts only", spec="Deliver")] = {}
    done: Annotated[int, F("device-done high-water mark, -1: unknown")] = -1
    ev: Annotated[list[Event], F("what happened, in order")] = []
    free: Annotated[int, F("blocks in the pool after the call", spec="s.free", compared="Conservation")] = -1
    refs: Annotated[
        dict[int, int], F("reference counts of the pool's own blocks, a sample", compared="RefCount")
    ] = {}


class Outside(Struct, tag_field="t", tag="outside", omit_defaults=True, kw_only=True):
    """Something that happened between calls."""

    n: Annotated[int, F("record number in this part from 1, set by the writer", compared="RecordOrder")] = 0
    ts: Annotated[float, F("monotonic seconds")] = 0.0
    ev: Annotated[list[Event], F("what happened, in order")] = []
    free: Annotated[int, F("blocks in the pool afterwards", spec="s.free", compared="Conservation")] = -1
    refs: Annotated[
        dict[int, int], F("reference counts of the pool's own blocks, a sample", compared="RefCount")
    ] = {}


class Note(Struct, tag_field="t", tag="note", omit_defaults=True, kw_only=True):
    """A message for people: a guard fault, a fall-back, recorder drops."""

    n: Annotated[int, F("record number in this part from 1, set by the writer", compared="RecordOrder")] = 0
    ts: Annotated[float, F("monotonic seconds")] = 0.0
    kind: Annotated[str, F("what the note is about")] = ""
    text: Annotated[str, F("the message; empty where ids are hashed")] = ""
    data: Annotated[dict[str, Any], F("details; empty where ids are hashed")] = {}


class End(Struct, tag_field="t", tag="end", omit_defaults=True, kw_only=True):
    """Last record of an orderly recording. ``next`` names the next part, if the recording goes on there."""

    n: Annotated[int, F("record number in this part from 1, set by the writer", compared="RecordOrder")] = 0
    ts: Annotated[float, F("monotonic seconds")] = 0.0
    calls: Annotated[int, F("scheduling calls in this part", compared="End")] = 0
    finished: Annotated[int, F("requests finished in this part", compared="End")] = 0
    fired: Annotated[dict[str, int], F("how often each rule fired")] = {}
    next: Annotated[str, F("name of the next part; empty: the recording ends here")] = ""


Record = Union[Header, Sched, Update, Outside, Note, End]  # noqa: UP007

#: shared encoder; records are written as ``encode(record) + b"\n"``
encoder = msgspec.json.Encoder()
decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def encode(record: Record) -> bytes:
    """One JSON line without its line feed."""
    return encoder.encode(record)
