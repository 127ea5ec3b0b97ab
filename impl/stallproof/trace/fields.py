"""The one table of what a trace says: spec variable, trace field, engine attribute, rules that compare it.

Record fields carry their texts in :mod:`.schema`; event fields are here. The table feeds the schema page of
the documentation, the sensitivity suite and their tests: a field without an entry is a failing test.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from . import schema as s


class Field(NamedTuple):
    """One event field. ``rules``: who compares it, and so who may reject an altered one."""

    text: str
    rules: tuple[str, ...] = ()
    spec: str = ""
    engine: str = ""


class Kind(NamedTuple):
    """One kind of event: the operator of the specification it is, and where an engine shows it."""

    spec: str
    engine: str
    fields: dict[str, Field]


_OWN = ("OneOwner", "RefCount", "NoDoubleFree", "Conservation")
_WHO = ("Requests",)
#: rules that say who may be served in a call
_SERVED = ("NoInversion", "OneOrder", "FullFit", "RuleR", "DeferralDeadline")
_RID = "request id"


def _r(*rules: str) -> Field:
    return Field(_RID, (*_WHO, *rules))


def _blocks(text: str, *rules: str, spec: str = "s.own", engine: str = "Request's block table") -> Field:
    return Field(text, rules, spec, engine)


EVENTS: dict[str, Kind] = {
    "alloc": Kind("Grab", "BlockPool.get_new_blocks", {
        "r": _r("NoDoubleFree", "Conservation", "XferSafe", "StoreSafe", "Queues", "OneOwner", "InFlightSafe",
                *_SERVED),
        "blocks": _blocks("blocks handed out", *_OWN, "XferSafe", "StoreSafe", "InFlightSafe", "FullFit"),
    }),
    "share": Kind("Take", "BlockPool.touch", {
        "r": _r(*_OWN, "StoreSafe", "Tokens", "Queues", "InFlightSafe", *_SERVED),
        "blocks": _blocks("blocks hit", *_OWN, "StoreSafe", "XferSafe", "PrefixValid", "Tokens", "FullFit"),
    }),
    "free": Kind("Release", "BlockPool.free_blocks", {
        "r": _r("NoDoubleFree"), "blocks": _blocks("blocks given up", *_OWN),
    }),
    "prune": Kind("PruneOne", "KVCacheManager.remove_skipped_blocks", {
        "r": _r("NoDoubleFree", "Tokens"), "blocks": _blocks("blocks given up", *_OWN),
        "upto": Field("computed tokens at which the window ends", ("Tokens",), "s.comp"),
    }),
    "fence": Kind("Release", "Scheduler.deferred_frees", {
        "r": _r("NoDoubleFree"),
        "blocks": _blocks("blocks given up, still out of the pool", *_OWN, spec="s.dfq"),
        "step": Field("step they wait for", ("InFlightSafe", "NoLeak", "StepOrder"), "s.dfq"),
    }),
    "drain": Kind("Drain", "Scheduler._drain_deferred_frees", {
        "blocks": _blocks("blocks back from a deferred entry", *_OWN, "InFlightSafe", "NoLeak", spec="s.dfq"),
    }),
    "pin": Kind("Store", "connector: BlockPool.touch", {
        "who": Field("name of the holder", ("NoDoubleFree", "RefCount", "Conservation")),
        "blocks": _blocks("blocks pinned", *_OWN, "StoreSafe", spec="s.read"),
    }),
    "unpin": Kind("ReadDone", "connector: BlockPool.free_blocks", {
        "who": Field("name of the holder", ("NoDoubleFree",)),
        "blocks": _blocks("blocks given up", *_OWN, spec="s.read"),
    }),
    "touch": Kind("Touched", "SchedulerOutput.new_block_ids_to_zero, kv_cache_block_copies", {
        "who": Field("name of the writer or reader, for people"),
        "blocks": _blocks("blocks the step touches", "InFlightSafe", "Conservation", spec="s.touch"),
    }),
    "load": Kind("StartLoad", "KVConnector.get_num_new_matched_tokens", {
        "r": _r("XferSafe", "Queues"),
        "gen": Field("its how-manieth load", ("XferSafe",)),
        "blocks": _blocks("blocks it will write", "XferSafe", spec="s.blks"),
        "mode": Field("async or sync", ("BoundedWait", "XferSafe", "Conservation", "Queues")),
        "tokens": Field("tokens it brings", ("XferSafe", "Tokens"), "Ext"),
    }),
    "start": Kind("StartXfer", "KVConnector.update_state_after_alloc", {
        "r": _r("XferSafe", "InFlightSafe", "GateLoads"), "gen": Field("generation", ("XferSafe",), "s.gate"),
    }),
    "recv": Kind("XferDone", "KVConnectorOutput.finished_recving", {
        "r": _r("BoundedWait", "XferSafe", "Conservation", "Queues"),
        "gen": Field("generation", ("BoundedWait",)),
    }),
    "load_failed": Kind("XferFail", "KVConnectorOutput.invalid_block_ids", {
        "r": _r("BoundedWait", "XferSafe", "Queues"),
        "gen": Field("generation", ("BoundedWait",)),
        "blocks": _blocks("blocks that were not filled", "XferSafe"),
    }),
    "store": Kind("Store", "connector metadata; request_finished", {
        "job": Field("name of the reader", ("BoundedWait", "StoreSafe", "Conservation")),
        "r": _r("StoreSafe", "Conservation"),
        "blocks": _blocks("blocks it may read", "StoreSafe", spec="s.read"),
    }),
    "stored": Kind("ReadDone", "KVConnectorOutput.finished_sending", {
        "job": Field("name of the reader", ("BoundedWait",)),
        "how": Field("done, flush or failed, for people"),
    }),
    "ignored": Kind("LateDone", "KVConnectorOutput", {
        "r": Field(_RID + " the report names", ("BoundedWait",)),
        "kind": Field("which report"), "why": Field("why it was discarded"),
    }),
    "admit": Kind("Admit", "Scheduler.running", {
        "r": _r("XferSafe", "Queues", "Tokens", "InFlightSafe", *_SERVED),
        "comp": Field(
            "tokens computed already", ("Tokens", "InFlightSafe"), "s.comp", "Request.num_computed_tokens"
        ),
    }),
    "promote": Kind("Promote", "Scheduler._update_waiting_for_remote_kv", {"r": _r("Queues")}),
    "refuse": Kind("Refuse", "KVCacheManager.allocate_slots -> None", {
        "r": _r("Queues", "NoInversion"), "need": Field("new blocks it asked for"),
        "why": Field("what was too little"),
    }),
    "not_yet": Kind("CanDefer", "KVConnector.get_num_new_matched_tokens -> None", {"r": _r()}),
    "wait": Kind("CanFree", "stallproof.vllm", {"r": _r("Queues", "Patience", "Commit")}),
    "preempt": Kind("Preempt", "Scheduler._preempt_request", {
        "r": _r("Queues", "VictimOrder", "Patience", "Commit"),
        "target": Field(
            "for whom; empty: for nobody", (*_WHO, "Queues", "VictimOrder", "NoZeroPre", "Commit", "Patience")
        ),
    }),
    "evict": Kind("Evict", "stallproof.vllm", {
        "r": _r("Queues", "VictimOrder", "XferSafe", "Commit"),
        "target": Field("for whom", (*_WHO, "Queues", "VictimOrder", "EvictCoupled", "Commit")),
    }),
    "quarantine": Kind("Expire", "stallproof.vllm", {
        "r": _r("XferSafe", "BoundedWait"), "gen": Field("generation", ("XferSafe", "BoundedWait")),
        "blocks": _blocks("all blocks of the load", "XferSafe", "NoDoubleFree", spec="s.quar"),
    }),
    "unquarantine": Kind("LateDone", "stallproof.vllm", {
        "r": Field(_RID, ("NoDoubleFree",)), "gen": Field("generation", ("NoDoubleFree",)),
        "blocks": _blocks("all blocks of the quarantine", "NoDoubleFree", spec="s.quar"),
    }),
    "expire": Kind("Expire", "stallproof.vllm", {
        "r": _r("BoundedWait", "DeferralDeadline"),
        "what": Field("load or deferral", ("BoundedWait", "DeferralDeadline")),
    }),
    "add": Kind("Arrive", "Scheduler.add_request", {
        "r": _r(), "prio": Field("priority", ("RunningOrder", "NoInversion", "VictimOrder"), "s.ord"),
        "arr": Field("arrival time", ("RunningOrder", "NoInversion", "VictimOrder"), "s.ord"),
        "prompt": Field("prompt tokens", ("Tokens",), "Prompt", "Request.num_prompt_tokens"),
        "max_tokens": Field("output tokens at most", ("Tokens",), "Total", "Request.max_tokens"),
    }),
    "finish": Kind("Finish", "Scheduler._free_request", {
        "r": _r("Tokens", "Conservation", "Queues", "End"), "reason": Field("why, for people"),
        "out": Field("output tokens in all", ("Tokens",), "s.tok", "Request.num_output_tokens"),
    }),
    "reset": Kind("", "Scheduler.reset_prefix_cache", {
        "ok": Field("whether the cache was really emptied", ("PrefixValid",)),
    }),
    "rewind": Kind("XferFail", "Request.num_computed_tokens", {
        "r": _r("Tokens"), "comp": Field("tokens computed from now on", ("Tokens",), "s.comp"),
    }),
    "park": Kind("Idle", "RequestStatus.WAITING_FOR_...", {
        "r": _r("Queues"), "what": Field("for what, for people"),
    }),
    "unpark": Kind("Input", "RequestStatus.WAITING_FOR_...", {"r": _r("Queues")}),
    "turn": Kind("Input", "StreamingUpdate", {
        "r": _r("Tokens", "TurnsYield"), "prompt": Field("prompt tokens now", (), "Prompt"),
        "max_tokens": Field("output tokens at most now", (), "Total"),
        "arr": Field("its new place in scheduling order, -1: as before"),
    }),
    "pause": Kind("Pause", "Scheduler.set_pause_state", {
        "state": Field("none, new or all", ("NoWedge", "Snapshot"), "s.paused"),
    }),
}  # fmt: skip

#: Rules that compare a record's own fields, by ``record.field``.
RECORDS: dict[str, tuple[str, ...]] = {
    "sched.step": ("StepOrder",),
    "sched.tok": ("Tokens", "Queues", "Requests", "InFlightSafe"),
    "sched.total": ("Tokens",),
    "sched.done": ("StepOrder", "InFlightSafe", "GateLoads"),
    "sched.free": ("Conservation",),
    "sched.run": ("Queues", "RunningOrder"),
    "sched.refs": ("RefCount",),
    "update.step": ("StepOrder",),
    "update.out": ("Tokens", "Requests"),
    "update.done": ("StepOrder", "InFlightSafe", "GateLoads"),
    "update.free": ("Conservation",),
    "update.refs": ("RefCount",),
    "outside.free": ("Conservation",),
    "outside.refs": ("RefCount",),
    "end.calls": ("End",),
    "end.finished": ("End",),
}

#: What an altered value may get away with, by field or by field and kind of alteration, and why.
NOT_COMPARED: dict[str, str] = {
    "sched.ts": "times have only to be monotonic (the reader checks that) and are used for deadlines",
    "update.ts": "as sched.ts",
    "outside.ts": "as sched.ts",
    "end.ts": "as sched.ts",
    "end.next": "a name for people; parts are ordered by their headers",
    "end.fired": "counts of the guard's own rules, for people",
    "add.arr": "only the order it induces is compared, where our rules are in force",
    "add.prio": "only the order it induces is compared, where our rules are in force",
    "add.max_tokens: plus 1": "an upper bound; an engine may end a request earlier (model length, wall)",
    "finish.reason": "for people",
    "stored.how": "for people: a flush and a completion both end the reader",
    "ignored.kind": "a report that had no effect; only an awaited one must not be ignored",
    "ignored.why": "for people",
    "ignored.r": "a report that had no effect; only an awaited one must not be ignored",
    "refuse.need": "for people: what was asked for",
    "refuse.why": "for people",
    "refuse.r: another request": "an engine without our rules may refuse whom it likes, but after a victim",
    "not_yet.r: another request": "the connector may put off whom it likes",
    "park.r: another request": "whose chunk has ended only tokens tell: a stop token ends one early",
    "rewind.r: another request": "a request that shares the blocks of a failed load is set back, too",
    "touch.who": "for people",
    "park.what": "for people",
    "turn.prompt": "a session's new length is the client's business",
    "turn.max_tokens": "a session's new length is the client's business",
    "turn.arr": "a session's new place is the time of its client's chunk",
    "sched.run: swapped": "the order of the running list is compared only where RunningOrder is in force",
    "sched.refs: one less": "a sample of the pool's own counts may have any size",
    "update.refs: one less": "a sample of the pool's own counts may have any size",
    "outside.refs: one less": "a sample of the pool's own counts may have any size",
    "store.blocks: one less": "which of the blocks it holds a reader reads, only the reader knows",
    "store.blocks: another block": "which of the blocks it holds a reader reads, only the reader knows",
    "store.r: another request": "a block that both requests share may be read for either",
    "prune.upto": "an upper bound is compared; which of the window's ends is right, only the engine knows",
    "fence.step: minus 1": "any step from the last user of the block to the newest dispatched one is right",
    "load.tokens: plus 1": "a load that brings the whole prompt counts one token less",
    "load.tokens: minus 1": "a load that brings the whole prompt counts one token less",
    "load_failed.blocks: one less": "which blocks failed, only the connector knows",
    "load_failed.blocks: another block": "which of its blocks failed, only the connector knows",
    "touch.blocks: one less": "matters only if a load follows into the block left out",
    "touch.blocks: another block": "matters only if a load follows into the block",
    "reset.ok": "matters only if a prefix hit follows",
    "pause.state": "matters only if the engine then does nothing",
}  # fmt: skip


def compared(field: str, kind: str = "") -> bool:
    """Whether an altered ``field`` must be noticed."""
    return field not in NOT_COMPARED and f"{field}: {kind}" not in NOT_COMPARED


def rules_of(field: str) -> tuple[str, ...]:
    """Rules that may reject an altered ``field``; empty for a whole event or record."""
    tag, _, name = field.partition(".")
    if field in RECORDS:
        return RECORDS[field]
    kind = EVENTS.get(tag)
    return kind.fields[name].rules if kind and name in kind.fields else ()


def event_types() -> dict[str, type[msgspec.Struct]]:
    """All event types by tag."""
    return {str(t.__struct_config__.tag): t for t in s.Event.__args__}  # type: ignore[attr-defined]
