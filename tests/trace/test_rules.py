"""Each rule of the checker fires on a trace of a few lines, and only there; healthy runs conform."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallproof.cli.replay import PROMISE
from stallproof.trace.schema import (
    Add,
    Admit,
    Alloc,
    Drain,
    Evict,
    Expire,
    Fence,
    Finish,
    Free,
    Ignored,
    Load,
    LoadFailed,
    NotYet,
    Park,
    Pause,
    Pin,
    Preempt,
    Promote,
    Prune,
    Quarantine,
    Recv,
    Refuse,
    ReqState,
    Reset,
    Rewind,
    Share,
    Snapshot,
    Start,
    Store,
    Stored,
    Touch,
    Turn,
    Unpark,
    Unpin,
    Unquarantine,
    Wait,
)

from .hand import Hand, judge
from .toy import Toy, trace


def runs(h, r="a", blocks=(1,), k=4):
    """``r`` is admitted with ``blocks`` in the next call."""
    return h.call(Alloc(r, list(blocks)), Admit(r, 0), tok={r: k})


def ran(rules=(), **kw):
    return runs(Hand(rules=rules, **kw).add("a", "b"))


def load(mode="async", start=True, **kw):
    h = Hand(**kw).add("a", "b")
    ev = [Alloc("a", [1, 2]), Load("a", 1, [1, 2], mode, 8)]
    if start:
        ev.append(Start("a", 1))
    return h.call(*ev)


def three(*rules):
    """Three requests run in three blocks of four."""
    h = Hand(rules=rules).add("a", "b", "c")
    ev = [x for i, r in enumerate("abc", 1) for x in (Alloc(r, [i]), Admit(r, 0))]
    return h.call(*ev, tok=dict.fromkeys("abc", 4)).upd(out=dict.fromkeys("abc", 1))


def two_held(*rules, run="", pool=3):
    """``b`` and ``c`` have loaded a block each and do not run; ``a`` runs in the third, or waits."""
    h = Hand(rules=rules, pool=pool, patience=1, depth=3).add("a", "b", "c")
    ev = [Alloc("a", [1]), Admit("a", 0)] if run else []
    ev += [
        x for r, b in (("b", 2), ("c", 3)) for x in (Alloc(r, [b]), Load(r, 1, [b], "async", 4), Start(r, 1))
    ]
    h.call(*ev, tok={"a": 4} if run else {}).upd(Recv("b", 1), Recv("c", 1), out={"a": 1} if run else {})
    h.call(Promote("b"), Promote("c"))
    return h


def takes(victim, block):
    """``a`` is admitted in the block of an evicted holder."""
    return [Evict(victim, "a"), Free(victim, [block]), Alloc("a", [block]), Admit("a", 0)]


def quarantined():
    return load().upd(Expire("a", "load"), Quarantine("a", 1, [1, 2]))


def talks_on(idle=True, beside="", grammar=False, rules=("OneOrder", "TurnsYield"), **kw):
    """The second turn of ``a``, which holds blocks, has passed ``o``, which holds none."""
    h = runs(Hand(rules=rules, **kw).add("a", max_tokens=1)).upd(Park("a", "session"), out={"a": 1})
    h.add("o").out(Turn("a", 8, 1, 500.0), Unpark("a"))
    if grammar:
        h.out(Add("g", 0, -1.0, 4, 4), Park("g", "grammar"))
    more = [Alloc(beside, [3]), Admit(beside, 0)] if beside else []
    if beside:
        h.add(beside)
    h.call(Alloc("a", [2]), Admit("a", 4), *more, tok=dict.fromkeys(["a", beside] if beside else ["a"], 4))
    out = {"a": 1, beside: 1} if beside else {"a": 1}
    return h.upd(Park("a", "session"), out=out) if idle else h


CASES = {
    # block safety
    "free count": ("Conservation", lambda: ran().upd(out={"a": 1}, free=4)),
    "block outside the pool": ("Conservation", lambda: ran(depth=3).call(Alloc("b", [9]))),
    "finished and keeps blocks": ("Conservation", lambda: ran().upd(Finish("a", "stop", 1), out={"a": 1})),
    "preempted and keeps blocks": ("Conservation", lambda: ran().call(Preempt("a", ""))),
    "handed out twice": ("OneOwner", lambda: ran().call(Alloc("b", [1]))),
    "twice in one allocation": ("OneOwner", lambda: ran().call(Alloc("b", [2, 2]))),
    "shared twice by one": ("RefCount", lambda: ran().call(Share("a", [1]))),
    "count of the pool differs": ("RefCount", lambda: ran().upd(out={"a": 1}, refs={1: 2})),
    "freed twice": ("NoDoubleFree", lambda: ran().upd(Free("a", [1]), Free("a", [1]), out={"a": 1})),
    "frees another's block": ("NoDoubleFree", lambda: ran().upd(Free("b", [1]), out={"a": 1})),
    "drained but not deferred": ("NoDoubleFree", lambda: ran().upd(Drain([1]), out={"a": 1})),
    "unpinned but not pinned": ("NoDoubleFree", lambda: ran().upd(Unpin("c", [1]), out={"a": 1})),
    "still deferred": ("NoLeak", lambda: ran().call(Preempt("a", ""), Fence("a", [1], 1)).upd()),
    "fence below a step in flight": (
        "InFlightSafe",
        lambda: ran().call(Preempt("a", ""), Fence("a", [1], 0)),
    ),
    "drained too early": (
        "InFlightSafe",
        lambda: ran().call(Preempt("a", ""), Fence("a", [1], 1), Drain([1])),
    ),
    "load into a block in flight": (
        "InFlightSafe",
        lambda: ran().call(
            Preempt("a", ""), Free("a", [1]), Alloc("b", [1]), Load("b", 1, [1], "async"), Start("b", 1)
        ),
    ),
    "load into a block that the step zeroes": (
        "InFlightSafe",
        lambda: (
            Hand()
            .add("a")
            .call(Alloc("a", [1]), Touch("zero", [1]), Load("a", 1, [1], "async"), Start("a", 1))
        ),
    ),
    "load into a block of a synchronous load in flight": (
        "InFlightSafe",
        lambda: (
            Hand()
            .add("a", "b")
            .call(Alloc("a", [1]), Load("a", 1, [1], "sync", 3), Start("a", 1), Admit("a", 3), tok={"a": 1})
            .out(Finish("a", "abort", 0), Free("a", [1]))
            .call(Alloc("b", [1]), Load("b", 1, [1], "async"), Start("b", 1))
        ),
    ),
    "load into a pruned block": (
        "InFlightSafe",
        lambda: ran(depth=3).call(Prune("a", [1]), Alloc("b", [1]), Load("b", 1, [1], "sync"), Start("b", 1)),
    ),
    "loaded block given up": ("XferSafe", lambda: load().out(Finish("a", "abort", 0), Free("a", [1, 2]))),
    "load writes a shared block": (
        "XferSafe",
        lambda: ran().upd(out={"a": 1}).call(Share("b", [1]), Load("b", 1, [1], "async"), Start("b", 1)),
    ),
    "hit in a loading block": ("XferSafe", lambda: load().call(Share("b", [1]))),
    "runs while loading": ("XferSafe", lambda: load().call(Admit("a"), tok={"a": 1})),
    "starts twice": ("XferSafe", lambda: load().call(Start("a", 1))),
    "load of the wrong size": (
        "XferSafe",
        lambda: Hand().add("a").call(Alloc("a", [1]), Load("a", 1, [1], "async", 9)),
    ),
    "loads again in quarantine": (
        "XferSafe",
        lambda: quarantined().call(Alloc("a", [3]), Load("a", 2, [3], "async")),
    ),
    "quarantined block reused": ("XferSafe", lambda: quarantined().call(Alloc("b", [1]))),
    "store reads what it does not hold": ("StoreSafe", lambda: ran().upd(Store("j", "a", [3]), out={"a": 1})),
    "reuse under a reader": (
        "StoreSafe",
        lambda: (
            ran()
            .upd(Store("j", "a", [1]), Pin("x", [2]), out={"a": 1})
            .call(Preempt("a", ""), Free("a", [1]), Alloc("b", [1]))
        ),
    ),
    "late completion takes effect": ("BoundedWait", lambda: quarantined().call().upd(Recv("a", 1))),
    "unknown reader completes": ("BoundedWait", lambda: ran().upd(Stored("j"), out={"a": 1})),
    "awaited completion discarded": ("BoundedWait", lambda: load().upd(Ignored("a", "recv", "duplicate"))),
    "unknown failure": ("BoundedWait", lambda: ran().upd(LoadFailed("a", 1, [1]), out={"a": 1})),
    # engine contract
    "step skipped": ("StepOrder", lambda: ran().call(step=3)),
    "processed out of order": ("StepOrder", lambda: ran().upd(step=2, out={"a": 1})),
    "too many in flight": ("StepOrder", lambda: ran(depth=1).call()),
    "device done before dispatch": ("StepOrder", lambda: ran().upd(out={"a": 1}, done=5)),
    "total differs": (
        "Tokens",
        lambda: Hand().add("a").call(Alloc("a", [1]), Admit("a", 0), tok={"a": 4}, total=5),
    ),
    "sampled too early": (
        "Tokens",
        lambda: Hand().add("a").call(Alloc("a", [1]), Admit("a", 0), tok={"a": 3}).upd(out={"a": 1}),
    ),
    "not sampled": ("Tokens", lambda: ran().upd()),
    "token from another step": ("Tokens", lambda: ran().upd(out={"a": 1, "b": 1})),
    "wrong output count": ("Tokens", lambda: ran().upd(Finish("a", "stop", 2), Free("a", [1]), out={"a": 1})),
    "rewound into a block": (
        "Tokens",
        lambda: (
            Hand()
            .add("a")
            .call(Alloc("a", [1]), Load("a", 1, [1], "sync", 3), Start("a", 1), Admit("a", 3), tok={"a": 1})
            .upd(LoadFailed("a", 1, [1]), Rewind("a", 1))
        ),
    ),
    "unpinned twice": ("NoDoubleFree", lambda: ran().upd(Pin("c", [2]), Unpin("c", [2, 2]), out={"a": 1})),
    "rewound forwards": ("Tokens", lambda: ran().upd(Rewind("a", 9), out={"a": 1})),
    "runs unadmitted": ("Queues", lambda: ran().call(tok={"b": 1})),
    "admitted twice": ("Queues", lambda: ran().call(Admit("a"), tok={"a": 1})),
    "running list differs": (
        "Queues",
        lambda: Hand().add("a").call(Alloc("a", [1]), Admit("a", 0), tok={"a": 4}, run=[]),
    ),
    "preempts a waiting one": ("Queues", lambda: ran().call(Preempt("b", "a"))),
    "evicts a running one": ("Queues", lambda: ran().call(Evict("a", "b"))),
    "promoted unreceived": ("Queues", lambda: load().call(Promote("a"))),
    "waits for another's blocks": (
        "Queues",
        lambda: three().call(Refuse("a", 1, "blocks"), Wait("b")),
    ),
    "patience of a waiting one": ("Queues", lambda: ran().call(Wait("b"))),
    "unparked unparked": ("Queues", lambda: ran().out(Unpark("a"))),
    "unknown request": ("Requests", lambda: ran().call(Refuse("c", 1, "blocks"))),
    "arrives twice": ("Requests", lambda: ran().add("a")),
    "finished and is given blocks": (
        "Requests",
        lambda: ran().upd(Store("j", "a", [1]), Finish("a", "stop", 1), out={"a": 1}).call(Alloc("a", [2])),
    ),
    "over budget": (
        "Limits",
        lambda: Hand(max_num_batched_tokens=3).add("a").call(Alloc("a", [1]), Admit("a", 0), tok={"a": 4}),
    ),
    "hit after a reset": (
        "PrefixValid",
        lambda: (
            ran()
            .upd(Finish("a", "stop", 1), Free("a", [1]), out={"a": 1})
            .out(Reset(True))
            .call(Share("b", [1]))
        ),
    ),
    "fenced for a step that is done": (
        "NoLeak",
        lambda: ran().upd(out={"a": 1}).call(Preempt("a", ""), Fence("a", [1], 1)),
    ),
    "everything ended, a block is missing": ("NoLeak", lambda: _leak()),
    "quarantined without having expired": ("BoundedWait", lambda: load().upd(Quarantine("a", 1, [1, 2]))),
    "expires twice": ("BoundedWait", lambda: load().upd(Expire("a", "load"), Expire("a", "load"))),
    "quarantined before its start": (
        "XferSafe",
        lambda: load(start=False).upd(Expire("a", "load"), Quarantine("a", 1, [1, 2])),
    ),
    "runs without promotion": ("Queues", lambda: load().upd(Recv("a", 1)).call(Admit("a", 3), tok={"a": 1})),
    "victim for another than who asks": (
        "Queues",
        lambda: ran().upd(out={"a": 1}).call(Refuse("b", 1, "blocks"), Preempt("a", "a"), Free("a", [1])),
    ),
    "victim for nobody": ("Queues", lambda: ran().call(Preempt("a", "b"), Free("a", [1]))),
    "computed more than it got": (
        "Tokens",
        lambda: Hand().add("a").call(Alloc("a", [1]), Admit("a", 2), tok={"a": 2}),
    ),
    # progress
    "preempts for nothing": (
        "NoZeroPre",
        lambda: (
            runs(ran(), "b", [2, 3], 4)
            .upd(out={"a": 1})
            .call(
                Refuse("a", 1, "blocks"),
                Preempt("b", "a"),
                Fence("b", [3, 2], 2),
                Refuse("a", 1, "x"),
                tok={"a": 1},
            )
        ),
    ),
    "evicts for nobody": (
        "EvictCoupled",
        lambda: load().upd(Recv("a", 1)).call(Evict("a", "b"), Free("a", [1, 2])),
    ),
    "wedge": (
        "NoWedge",
        lambda: _repeat(
            load().upd(Recv("a", 1)).call(Promote("a"), NotYet("b")).upd(),
            8,
            lambda h: h.call(Refuse("b", 9, "blocks")).upd(),
        ),
    ),
    "starvation": ("NoStarvation", lambda: _starve()),
    "starvation without a load": ("NoStarvation", lambda: _starve_loading(False)),
    "livelock": ("Termination", lambda: _livelock()),
    # policy
    "newcomer passes a refused one": (
        "NoInversion",
        lambda: (
            Hand(rules=["NoInversion"])
            .add("a", "b")
            .call(Refuse("a", 5, "blocks"), Alloc("b", [1]), Admit("b", 0), tok={"b": 4})
        ),
    ),
    "victim ahead of its target": (
        "VictimOrder",
        lambda: runs(ran(["VictimOrder"]), "b", [2], 4).call(
            Preempt("a", "b"), Free("a", [1]), Alloc("b", [1]), tok={"b": 1}
        ),
    ),
    "running list out of order": (
        "RunningOrder",
        lambda: (
            Hand(rules=["RunningOrder"])
            .add("a", "b")
            .call(
                Alloc("a", [1]),
                Admit("a", 0),
                Alloc("b", [2]),
                Admit("b", 0),
                tok={"a": 4, "b": 4},
                run=["b", "a"],
            )
        ),
    ),
    "waits too long": (
        "Patience",
        lambda: (
            ran(["Patience"], patience=1)
            .call(Refuse("a", 1, "blocks"), Wait("a"))
            .upd(out={"a": 1})
            .call(Refuse("a", 1, "blocks"), Wait("a"))
        ),
    ),
    "waits for nothing": (
        "Patience",
        lambda: ran(["Patience"], patience=1).upd(out={"a": 1}).call(Wait("a")),
    ),
    "never starts": (
        "GateLoads",
        lambda: _repeat(load(start=False, rules=["GateLoads"]).upd(), 6, lambda h: h.call().upd()),
    ),
    "newcomers out of order": (
        "OneOrder",
        lambda: (
            Hand(rules=["OneOrder"])
            .add("a", "b")
            .call(Alloc("b", [1]), Admit("b", 0), Alloc("a", [2]), Admit("a", 0), tok={"b": 4, "a": 4})
        ),
    ),
    "a turn after a turn": ("TurnsYield", lambda: talks_on().out(Turn("a", 12, 1, 900.0), Unpark("a"))),
    "a turn after a turn beside an idle session without blocks": (
        "TurnsYield",
        lambda: talks_on().out(
            Add("s", 0, -1.0, 4, 4), Park("s", "session"), Turn("a", 12, 1, 900.0), Unpark("a")
        ),
    ),
    "a turn after a turn, the older request preempted again": (
        "TurnsYield",
        lambda: (
            talks_on(pool=6)
            .call(Alloc("o", [3]), Admit("o", 0), tok={"o": 4})
            .out(Turn("a", 12, 1, 900.0), Unpark("a"))
            .upd(out={"o": 1})
            .call(Alloc("a", [4]), Admit("a", 8), tok={"a": 4})
            .upd(Park("a", "session"), out={"a": 1})
            .call(Preempt("o", ""), Free("o", [3]))
            .out(Turn("a", 16, 1, 950.0), Unpark("a"))
        ),
    ),
    "a turn after a turn, begun as the last one ends": (
        "TurnsYield",
        lambda: talks_on(idle=False).upd(Turn("a", 12, 1, 900.0), out={"a": 1}),
    ),
    "admitted without room": (
        "FullFit",
        lambda: (
            Hand(rules=["FullFit"]).add("a", prompt=20).call(Alloc("a", [1]), Admit("a", 0), tok={"a": 4})
        ),
    ),
    "load takes what a prefill needs": (
        "RuleR",
        lambda: (
            Hand(rules=["RuleR"], pool=5)
            .add("a", "b", prompt=16)
            .call(Alloc("a", [1]), Admit("a", 0), tok={"a": 4})
            .call(Alloc("b", [2, 3]), Load("b", 1, [2, 3], "async"))
        ),
    ),
    "received and forgotten": (
        "Promotion",
        lambda: load(rules=["Promotion"]).upd(Recv("a", 1)).call(),
    ),
    "computes without a block": ("InFlightSafe", lambda: ran().call(tok={"a": 1})),
    "hands over nothing": (
        "StoreSafe",
        lambda: ran().upd(Finish("a", "length", 1), Free("a", [1]), Store("s", "a", []), out={"a": 1}),
    ),
    "victim is not the youngest": (
        "VictimOrder",
        lambda: three("VictimOrder").call(
            Refuse("a", 1, "blocks"), Preempt("b", "a"), Free("b", [2]), Alloc("a", [2]), tok={"a": 1}
        ),
    ),
    "evicts an older holder": ("VictimOrder", lambda: two_held("VictimOrder").call(*takes("b", 2))),
    "evicts for one that has room": ("Commit", lambda: two_held("Commit", pool=9).call(*takes("c", 3))),
    "preempts beside an idle holder": (
        "Commit",
        lambda: two_held("Commit", run="a").call(
            Refuse("a", 1, "blocks"), Preempt("a", "a"), Free("a", [1]), tok={}
        ),
    ),
    "waits beside an idle holder": (
        "Commit",
        lambda: two_held("Commit", run="a").call(Refuse("a", 1, "blocks"), Wait("a")),
    ),
    "preempts at once": (
        "Patience",
        lambda: (
            runs(ran(["Patience"], patience=1, pool=3), "b", [2])
            .upd(out={"a": 1})
            .call(Refuse("a", 1, "blocks"), Preempt("b", "a"), Free("b", [2]), Alloc("a", [2]), tok={"a": 1})
        ),
    ),
    "admits a holder after a wait": (
        "NoInversion",
        lambda: two_held("NoInversion", run="a").call(
            Refuse("a", 1, "blocks"), Wait("a"), Admit("b", 3), tok={"b": 1}
        ),
    ),
    "admits a holder after a victim": (
        "NoInversion",
        lambda: two_held("NoInversion", run="a").call(
            Refuse("a", 1, "blocks"), Preempt("a", "a"), Free("a", [1]), Admit("b", 3), tok={"b": 1}
        ),
    ),
    "newcomer before a holder": (
        "OneOrder",
        lambda: two_held("OneOrder").call(
            Alloc("a", [1]), Admit("a", 0), Admit("b", 3), tok={"a": 4, "b": 1}
        ),
    ),
    "holders out of order": (
        "OneOrder",
        lambda: two_held("OneOrder").call(Admit("c", 3), Admit("b", 3), tok={"c": 1, "b": 1}),
    ),
    "refused though it fits": (
        "FullFit",
        lambda: Hand(rules=["FullFit"]).add("a").call(Refuse("a", 1, "fit")),
    ),
    "refused for a reservation left behind": (
        "RuleR",
        lambda: Hand(rules=["RuleR"]).add("a").call(Refuse("a", 1, "reserved")),
    ),
    "put off after its deadline": (
        "DeferralDeadline",
        lambda: Hand(rules=["DeferralDeadline"]).add("a").call(NotYet("a"), Expire("a", "deferral")),
    ),
    "put off for ever": (
        "DeferralDeadline",
        lambda: (
            Hand(rules=["DeferralDeadline"], deferral=10.0)
            .add("a")
            .call(NotYet("a"), ts=1.0)
            .call(NotYet("a"), ts=5.0)
            .upd()
            .call(NotYet("a"), ts=50.0)
        ),
    ),
    "expires without having been put off": (
        "DeferralDeadline",
        lambda: (
            Hand(rules=["DeferralDeadline"])
            .add("a")
            .call(Expire("a", "deferral"), Alloc("a", [1]), Admit("a", 0), tok={"a": 4})
        ),
    ),
    "younger prefill takes every token": ("BudgetShare", lambda: _budget(4)),
    "outgrew the pool": (
        "Feasible",
        lambda: _repeat(
            Hand(rules=["Feasible"], pool=2)
            .add("a", prompt=8, max_tokens=1)
            .call(Alloc("a", [1, 2]), Admit("a", 0), tok={"a": 8})
            .upd(out={"a": 1}),
            6,
            lambda h: h.call(Refuse("a", 1, "blocks")).upd(),
        ),
    ),
    "can never fit": ("Feasible", lambda: Hand(rules=["Feasible"]).add("a", prompt=40).call().upd().call()),
    "waits for a send that was given up": ("NoWedge", lambda: _sending(True)),
    "can never fit with its look-ahead": ("Feasible", lambda: _ahead(slots=4, max_model_len=18)),
}


def _sending(given_up):
    """``a`` has ended and its blocks are sent for ever; ``b`` waits for them, call after call."""
    h = Hand(pool=2).add("a", prompt=8, max_tokens=1)
    h.call(Alloc("a", [1, 2]), Admit("a", 0), tok={"a": 8})
    h.upd(Finish("a", "length", 1), Store("send-a", "a", [1, 2]), out={"a": 1})
    h.add("b", prompt=8)
    if given_up:
        h.out(Pin("send-a", [1, 2]), Free("a", [1, 2]))
    return _repeat(h, 12, lambda x: x.call(Refuse("b", 2, "blocks")).upd())


def _ahead(**told):
    """A prompt of 14 in a pool of 16 tokens, look-ahead 4: where is the end of the longest sequence?"""
    return Hand(rules=["Feasible"], lookahead=4, **told).add("a", prompt=14).call().upd().call()


def _leak():
    """The fence of an idle engine: it waits for a step that nobody will dispatch."""
    h = Hand().add("a").call(Alloc("a", [1]), Admit("a", 0), tok={"a": 4})
    return h.upd(Finish("a", "stop", 1), Fence("a", [1], 2), out={"a": 1}).end()


def _budget(calls, share=0):
    """``b`` prefills with all of a budget of four, ``a``, ahead of it, is ready; ``share``: its tokens."""
    h = Hand(rules=["BudgetShare"], pool=9, max_num_batched_tokens=4, max_num_seqs=4).add("b", prompt=40)
    h.records[-1].ev[0] = Add("b", 1, 0.0, 40, 4)
    h.call(Alloc("b", [1]), Admit("b", 0), tok={"b": 4}).upd()
    h.add("a")
    for i in range(calls):
        h.call(Alloc("b", [i + 2]), tok={"b": 4}).upd()
    return h


def _repeat(h, n, more):
    for _ in range(n):
        more(h)
    return h


def _starve(calls=80, newcomers=True, why="fence"):
    """N1: an older running request waits while one-token newcomers are served, call after call."""
    h = Hand(pool=4).add("old", prompt=16)
    h.call(Alloc("old", [1, 2]), Admit("old", 0), tok={"old": 8}).upd()
    for i in range(calls):
        r = f"n{i}"
        if newcomers:
            h.add(r, prompt=2, max_tokens=1)
            h.call(Refuse("old", 2, why), Alloc(r, [3]), Admit(r, 0), tok={r: 2})
            h.upd(Finish(r, "length", 1), Free(r, [3]), out={r: 1})
        else:
            h.call(Refuse("old", 2, why))
            h.upd()
    return h


def _starve_loading(loads):
    """``old`` is refused 31 times, then loads while newcomers are served, then is refused once more."""
    h = Hand(pool=4, depth=2).add("old", "other", prompt=16)
    for _ in range(31):
        h.call(Refuse("old", 4, "blocks"), NotYet("other")).upd()
    if loads:
        h.call(Alloc("old", [1, 2]), Load("old", 1, [1, 2], "async", 8), Start("old", 1)).upd()
    for i in range(10):
        r = f"n{i}"
        h.add(r, prompt=2, max_tokens=1)
        h.call(Alloc(r, [3]), Admit(r, 0), tok={r: 2})
        h.upd(Finish(r, "length", 1), Free(r, [3]), out={r: 1})
    if loads:
        h.upd_recv()
    return h.call(Refuse("old", 2, "blocks")).upd()


def _livelock(calls=220):
    """Two requests take each other's blocks for ever."""
    h = Hand(pool=2, depth=1).add("a", "b", prompt=8)
    h.call(Alloc("a", [1, 2]), Admit("a", 0), tok={"a": 7}).upd()
    for i in range(calls):
        x, y = ("a", "b") if i % 2 == 0 else ("b", "a")
        h.call(Preempt(x, y), Free(x, [2, 1]), Alloc(y, [1, 2]), Admit(y, 0), tok={y: 7}).upd()
    return h


@pytest.mark.parametrize("name", CASES)
def test_rule_fires(name):
    rule, make = CASES[name]
    verdict = judge(make().records)
    assert verdict.status == "diverges"
    assert verdict.violations[0].rule == rule, verdict.violations[0]
    v = verdict.violations[0]
    assert v.path == "hand"
    assert v.line > 1
    assert v.field
    assert v.expected
    assert v.observed
    assert verdict.waits


def test_every_rule_has_a_case():
    rules = {rule for rule, _ in CASES.values()}
    assert set(PROMISE) - rules == {"Snapshot", "End"}, "these two have tests of their own"


CONTROLS = {
    "a turn when the older request is served": lambda: (
        talks_on(pool=6)
        .call(Alloc("o", [3]), Admit("o", 0), tok={"o": 4})
        .out(Turn("a", 12, 1, 900.0), Unpark("a"))
    ),
    "a turn when the older request has ended": lambda: (
        talks_on().out(Finish("o", "abort", 0)).out(Turn("a", 12, 1, 900.0), Unpark("a"))
    ),
    "a turn after a turn without OneOrder": lambda: talks_on(rules=["TurnsYield"]).out(
        Turn("a", 12, 1, 900.0), Unpark("a")
    ),
    "turns of all seats end in one step": lambda: talks_on(idle=False, max_num_seqs=2, beside="b").upd(
        Turn("b", 12, 1, 900.0), Turn("a", 12, 1, 901.0), out={"a": 1, "b": 1}
    ),
    "a turn when the older request is a later turn": lambda: (
        talks_on().out(Turn("o", 8, 1, 700.0)).out(Turn("a", 12, 1, 900.0), Unpark("a"))
    ),
    "a turn when the oldest waited for its grammar": lambda: (
        talks_on(grammar=True).out(Unpark("g")).out(Turn("a", 12, 1, 900.0), Unpark("a"))
    ),
    "a turn of a session that has lost its blocks": lambda: (
        talks_on(beside="b", pool=3)
        .call(Refuse("b", 1, "blocks"), Evict("a", "b"), Free("a", [1, 2]), Alloc("b", [1]), tok={"b": 1})
        .out(Turn("a", 12, 1, 900.0), Unpark("a"))
    ),
    "a turn when sessions have all seats": lambda: talks_on(max_num_seqs=1).out(
        Turn("a", 12, 1, 900.0), Unpark("a")
    ),
    "a turn when the older request waits for its grammar": lambda: (
        talks_on().out(Park("o", "grammar")).out(Turn("a", 12, 1, 900.0), Unpark("a"))
    ),
    "load into quiescent blocks starts at once": lambda: load(rules=["GateLoads"]),
    "run and finish": lambda: ran().upd(
        Finish("a", "stop", 1), Free("a", [1]), out={"a": 1}, free=4, refs={1: 0}
    ),
    "load": lambda: (
        load().upd(Recv("a", 1)).call(Promote("a"), Admit("a", 3), tok={"a": 1}).upd(out={"a": 1})
    ),
    "gated load": lambda: load(start=False, rules=["GateLoads"]).upd().call(Start("a", 1)).upd(Recv("a", 1)),
    "gated load cancelled": lambda: load(start=False).out(Finish("a", "abort", 0), Free("a", [2, 1]), free=4),
    "abort while loading": lambda: (
        load().out(Finish("a", "abort", 0)).upd(Recv("a", 1), Free("a", [1, 2]), free=4)
    ),
    "failed load": lambda: load().upd(LoadFailed("a", 1, [2])),
    "sync load": lambda: (
        Hand()
        .add("a")
        .call(Alloc("a", [1]), Load("a", 1, [1], "sync", 3), Start("a", 1), Admit("a", 3), tok={"a": 1})
        .upd(out={"a": 1})
    ),
    "abort in a synchronous load": lambda: (
        Hand()
        .add("a")
        .call(Alloc("a", [1]), Load("a", 1, [1], "sync", 3), Start("a", 1), Admit("a", 3), tok={"a": 1})
        .out(Finish("a", "abort", 0), Free("a", [1]), free=4)
    ),
    "quarantine and release": lambda: (
        quarantined().call().upd(Ignored("a", "recv", "late"), Unquarantine("a", 1, [1, 2]), free=4)
    ),
    "deferred and shared": lambda: (
        ran()
        .call(Preempt("a", ""), Fence("a", [1], 1), Share("b", [1]), refs={1: 2})
        .upd(Drain([1]), free=3, refs={1: 1})
    ),
    "same call free and reuse": lambda: ran().call(
        Preempt("a", "b"), Free("a", [1]), Alloc("b", [1]), Admit("b", 0), tok={"b": 4}
    ),
    "hit on a free block": lambda: (
        ran().upd(Finish("a", "stop", 1), Free("a", [1]), out={"a": 1}).call(Share("b", [1]), free=3)
    ),
    "pin outlives its request": lambda: (
        ran().upd(Pin("x", [1]), Finish("a", "stop", 1), Free("a", [1]), out={"a": 1}, free=3).upd_unpin()
    ),
    "reader flushed before reuse": lambda: (
        ran()
        .upd(Store("j", "a", [1]), out={"a": 1})
        .call(Preempt("a", ""), Free("a", [1]), Alloc("b", [1]), Stored("j", "flush"))
    ),
    "session": lambda: ran().upd(Park("a", "session"), out={"a": 1}).out(Turn("a", 9, 9), Unpark("a")),
    "paused": lambda: _repeat(load().upd(Recv("a", 1)).out(Pause("all")), 9, lambda h: h.call().upd()),
    "waits for the connector": lambda: _repeat(Hand().add("a"), 9, lambda h: h.call(NotYet("a")).upd()),
    "refused but nobody passes": lambda: _starve(newcomers=False, calls=3),
    "touched, then loaded when done": lambda: (
        Hand()
        .add("a")
        .call(Alloc("a", [1]), Touch("zero", [1]), Load("a", 1, [1], "async"))
        .upd()
        .call(Start("a", 1))
    ),
    "device done later than processed": lambda: (
        Hand(depth=2)
        .add("a")
        .call(Alloc("a", [1]), Load("a", 1, [1], "async"), done=0)
        .upd(done=0)
        .call(done=1)
        .upd(Start("a", 1), done=1)
    ),
    "one that waits for an adapter is passed": lambda: _starve(why="adapter"),
    "the youngest is the victim": lambda: three("VictimOrder", "Commit").call(
        Refuse("a", 1, "blocks"), Preempt("c", "a"), Free("c", [3]), Alloc("a", [3]), tok={"a": 1}
    ),
    "no eviction where there is room": lambda: two_held("VictimOrder", "Commit").call(
        Alloc("a", [1]), Admit("a", 0), tok={"a": 4}
    ),
    "evicts for one that has no room": lambda: two_held("VictimOrder", "Commit", "OneOrder", run="a").call(
        Refuse("a", 1, "blocks"), Evict("c", "a"), Free("c", [3]), Alloc("a", [3]), tok={"a": 1}
    ),
    "waits for a send": lambda: _sending(False),
    "look-ahead ends where the longest sequence does": lambda: _ahead(slots=4, max_model_len=16),
    "drafts that have no slots": lambda: _ahead(slots=0, max_model_len=64),
    "the longest sequence is not told": lambda: _ahead(slots=4),
    "waits beside an ended session that is read": lambda: (
        Hand(rules=["Commit"], pool=2, depth=3)
        .add("a", "b")
        .call(Alloc("a", [1]), Admit("a", 0), Alloc("b", [2]), Admit("b", 0), tok={"a": 4, "b": 4})
        .upd(Park("b", "session"), out={"a": 1, "b": 1})
        .out(Finish("b", "abort", 1), Store("j", "b", [2]))
        .call(Refuse("a", 1, "blocks"), Wait("a"))
    ),
    "waits, then preempts": lambda: (
        runs(ran(["Patience", "NoInversion"], patience=1, pool=3, depth=3), "b", [2])
        .call(Refuse("a", 1, "blocks"), Wait("a"))
        .upd(out={"a": 1})
        .call(Refuse("a", 1, "blocks"), Preempt("b", "a"), Free("b", [2]), Alloc("a", [2]), tok={"a": 1})
    ),
    "put off, then computed": lambda: (
        Hand(rules=["DeferralDeadline"], deferral=10.0)
        .add("a")
        .call(NotYet("a"), ts=1.0)
        .upd()
        .call(NotYet("a"), Expire("a", "deferral"), Alloc("a", [1]), Admit("a", 0), tok={"a": 4}, ts=12.0)
    ),
    "put off again after an answer": lambda: (
        Hand(rules=["DeferralDeadline"], deferral=10.0)
        .add("a")
        .call(NotYet("a"), ts=1.0)
        .upd()
        .call(Refuse("a", 1, "blocks"), ts=9.0)
        .upd()
        .call(NotYet("a"), ts=50.0)
    ),
    "a failed load's request is served as the holder it was": lambda: (
        Hand(rules=["OneOrder", "NoInversion"], pool=6)
        .add("a", "b", "c")
        .call(Alloc("b", [1]), Load("b", 1, [1], "async", 4), Start("b", 1))
        .call(Alloc("c", [2]), Load("c", 1, [2], "async", 4), Start("c", 1))
        .upd(LoadFailed("b", 1, [1]), Recv("c", 1))
        .call(
            *(Free("b", [1]), Promote("b"), Alloc("b", [1]), Load("b", 2, [1], "async", 4), Start("b", 2)),
            *(Promote("c"), Admit("c", 3), Alloc("a", [3]), Admit("a", 0)),
            tok={"c": 1, "a": 4},
        )
    ),
    "a younger prefill for some calls": lambda: _budget(3),
    "refused because it does not fit": lambda: (
        Hand(rules=["FullFit", "RuleR"], pool=2).add("a", prompt=12).call(Refuse("a", 1, "fit"))
    ),
    "aborted with nothing to hand over": lambda: ran().upd(
        Finish("a", "abort", 1), Free("a", [1]), Store("s", "a", []), Stored("s"), out={"a": 1}
    ),
    "hit in a block that a synchronous load fills": lambda: load("sync").call(
        Share("b", [1, 2]), Admit("b", 3), tok={"b": 1}
    ),
    "newcomers while the refused request loads": lambda: _starve_loading(True),
    "arrival alone": lambda: Hand().out(Add("z", 0, 0.0, 1, 1)),
}


def _upd_recv(self):
    return self.call().upd(Recv("old", 1)).call(Promote("old")).upd()


Hand.upd_recv = _upd_recv


def _upd_unpin(self):
    return self.call(Unpin("x", [1]), free=4)


Hand.upd_unpin = _upd_unpin


@pytest.mark.parametrize("name", CONTROLS)
def test_control_conforms(name):
    verdict = judge(CONTROLS[name]().records)
    assert not verdict.violations, verdict.violations[0]


def test_stall_in_the_making_is_undecided():
    h = _repeat(load().upd(Recv("a", 1)), 2, lambda h: h.call(Refuse("b", 9, "blocks")).upd())
    verdict = judge(h.records)
    assert verdict.status == "undecided"
    assert verdict.undecided[0].startswith("NoWedge")
    assert judge(_starve(calls=20).records).status == "undecided"
    assert judge(_livelock(calls=100).records, layers=("progress",)).status == "undecided"


def test_thresholds_are_configurable():
    from stallproof.trace.progress import Thresholds

    verdict = judge(_starve(calls=20).records, thresholds=Thresholds(starve_calls=10, starve_served=5))
    assert verdict.violations[0].rule == "NoStarvation"


def test_policy_needs_the_rule_in_force():
    quiet = Hand().add("a", "b").call(Refuse("a", 5, "blocks"), Alloc("b", [1]), Admit("b", 0), tok={"b": 4})
    assert judge(quiet.records).status == "conforms"


def test_end_totals():
    h = ran().upd(out={"a": 1}).end()
    assert judge(h.records).status == "conforms"
    h.records[-1].calls += 1
    assert judge(h.records).violations[0].rule == "End"


def test_all_goes_on():
    h = ran().call(Alloc("b", [1]), Share("b", [1]), Free("b", [2])).upd(out={"a": 1}, refs={3: 5})
    assert [v.rule for v in judge(h.records, all=True).violations[:3]] == [
        "OneOwner",
        "RefCount",
        "NoDoubleFree",
    ]
    assert len(judge(h.records).violations) == 1
    late = judge(h.records, all=True, first=5)
    assert {v.line for v in late.violations} == {5}
    assert judge(h.records, all=True, last=2).status == "conforms"


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    depth=st.sampled_from([1, 2, 3]),
    pool=st.integers(8, 24),
    lost=st.sampled_from([0, 0.2]),
    mode=st.sampled_from(["GateLoads", "DeferFrees", "DeferFreesGuarded", "None"]),
    ordered=st.booleans(),
    sharing=st.booleans(),
)
def test_healthy_runs_conform(seed, depth, pool, lost, mode, ordered, sharing):
    """Sharing, gates, deferred frees, readers, aborts, quarantine: no false alarm of ledger or policy."""
    depth = 1 if mode == "None" else depth
    toy = Toy(pool=pool, depth=depth, seed=seed, lost=lost, mode=mode, ordered=ordered, sharing=sharing)
    verdict = judge(trace(toy, calls=40), layers=("ledger", "policy"))
    assert not verdict.violations, verdict.violations[0]
    if mode in ("GateLoads", "None") and ordered:  # parked loads of this engine may wedge for real
        toy = Toy(pool=pool, depth=depth, seed=seed, mode=mode, loads=False)
        assert judge(trace(toy, calls=40)).status == "conforms"


BUGS = {
    "double": "OneOwner",
    "leak": "Conservation",
    "doublefree": "NoDoubleFree",
    "gate": "InFlightSafe",
    "noflush": "StoreSafe",
    "freeload": "XferSafe",
    "inversion": "NoInversion",
    "lowfence": "InFlightSafe",
    "earlydrain": "InFlightSafe",
}


@pytest.mark.parametrize("bug", BUGS)
def test_seeded_engine_bug_is_found_by_name(bug):
    mode = "DeferFrees" if bug in ("lowfence", "earlydrain") else "GateLoads"
    found = {}
    for seed in range(40):
        verdict = judge(trace(Toy(bug=bug, seed=seed, mode=mode)), layers=("ledger", "policy"))
        if verdict.violations:
            found[verdict.violations[0].rule] = found.get(verdict.violations[0].rule, 0) + 1
    assert set(found) == {BUGS[bug]}, found
    assert found[BUGS[bug]] >= (2 if bug == "gate" else 10)


def test_snapshot_state_counts_as_history():
    """A part can be checked alone: what the snapshot says is in flight protects its blocks."""
    state = Snapshot(
        step=5,
        processed=4,
        free=2,
        run=["b"],
        in_flight=[(5, {"b": 1})],
        fences={1: 5},
        requests=[
            ReqState(r="a", st="waiting", prompt=4),
            ReqState(r="b", st="running", prompt=4, comp=4, blocks=[2, 3], last=5),
        ],
    )
    from stallproof.trace.schema import InFlight

    state.in_flight = [InFlight(5, {"b": 1})]
    h = Hand(state=state)
    h.step, h.done = 5, 4
    h.call(Alloc("a", [1]), Load("a", 1, [1], "async"), Start("a", 1))
    assert judge(h.records).violations[0].rule == "InFlightSafe"


def test_every_monitor_of_the_contract_is_a_rule_that_fires():
    """Each clause of the engine contract names its monitor; a trace of a few lines violates each of them."""
    text = (Path(__file__).parents[2] / "spec" / "EngineContract.tla").read_text()
    named = set(re.findall(r"Monitor: (\w+)", text)) - {"none"}
    assert len(named) >= 10
    assert named <= {rule for rule, _ in CASES.values()}


def test_every_rule_of_ours_is_checked_or_listed_as_unchecked():
    from stallproof.core import rules
    from stallproof.trace import policy

    known = set(policy.RULES) | set(policy.ELSEWHERE) | set(policy.UNCHECKED)
    assert known == set(rules.RULES) | {"VictimOrder"}
    assert set(policy.RULES) <= {rule for rule, _ in CASES.values()}
    text = (Path(__file__).parents[2] / "docs" / "replay.md").read_text()
    assert not [rule for rule in known if rule not in text]
    quiet = Hand(rules=["Unheard"]).add("a").call()
    assert judge(quiet.records).notes == ["rules without a check in this build: Unheard"]
