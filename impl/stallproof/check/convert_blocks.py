"""TLC's behaviours of ``Blocks.tla`` as traces: the module names its blocks, so they keep their identity.

The specification takes one request at a time; a trace has one record per call. What the actions between
``BeginCall`` and ``EndCall`` did is therefore gathered into one ``sched`` record; a behaviour that ends
inside a call ends with what the call had done by then. A call that dispatches nothing is a step of the
trace like every other, and is processed as soon as it is the oldest. The specification uses a request's id
again once it has ended; here every life has a name of its own: A, A2, A3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stallproof.check.story import who
from stallproof.trace import schema as s

Values = Mapping[str, Any]
Walk = Sequence[tuple[str, Values]]
_FENCE_MODES = ("None", "DeferFrees", "GateLoads")


class BlocksConverter:
    """Turn one walk ``(action, state)``, the first action empty, into records; :meth:`records` does it all.

    ``constants``: of ``Blocks.tla``, by name; ``run``: the trace's name.
    """

    def __init__(self, constants: Mapping[str, Any], walk: Walk, run: str) -> None:
        self.c, self.walk, self.run = constants, walk, run
        names = sorted(walk[0][1]["ref"])
        self.number = {b: i for i, b in enumerate(names, 1)}
        self.requests = range(len(walk[0][1]["own"]))
        self.step = self.processed = 0
        #: steps in flight, oldest first: does the specification have the step?
        self.steps: list[bool] = []
        self.gen = [0 for _ in self.requests]
        self.lives = [0 for _ in self.requests]
        self.names = ["" for _ in self.requests]
        #: who lost a load, by request of the specification: its life may be over when the report comes
        self.lost = ["" for _ in self.requests]
        self.lost_gen = [0 for _ in self.requests]
        self.jobs = ["" for _ in self.requests]
        #: touched by the step being built, as far as events say so
        self.touched: set[str] = set()
        self.ev: list[Any] = []
        self.out: list[Any] = []
        #: how many records there are once ``walk[i]`` is reached; inside a call, without it
        self.reached: list[int] = []

    def records(self) -> list[s.Record]:
        c, first = self.c, self.walk[0][1]
        self.out.append(
            s.Header(
                schema=s.SCHEMA, run=self.run, source="tlc",
                engine=s.Engine("tlc", "1", "Blocks"),
                config=s.Config(
                    pool=len(self.number), block_size=1, depth=c["D"] + 1, prefix_caching=bool(c["Share"]),
                    fence_mode=c["FenceMode"] if c["FenceMode"] in _FENCE_MODES else "None", full_fit=False,
                ),
                clock=s.Clock("", 0.0), state=s.Snapshot(free=len(first["pool"])),
            )
        )  # fmt: skip
        for r in self.requests:
            self.arrive(r)
        self.put(s.Outside(), first)
        self.reached.append(len(self.out))
        for (_, a), (action, b) in zip(self.walk, self.walk[1:], strict=False):
            self.transition(action, a, b)
            self.reached.append(len(self.out))
        last = self.walk[-1][1]
        if last["on"]:
            self.close_call(last)
        return self.out

    def put(self, record: Any, state: Values) -> None:
        record.ev, self.ev = self.ev, []
        record.n, record.free = len(self.out), len(state["pool"])
        record.refs = {self.number[b]: n for b, n in state["ref"].items()}
        if record.ev or not isinstance(record, s.Outside):
            self.out.append(record)

    def arrive(self, r: int) -> None:
        self.gen[r], self.lives[r] = 0, self.lives[r] + 1
        self.names[r] = who(r + 1) + (str(self.lives[r]) if self.lives[r] > 1 else "")
        self.ev.append(s.Add(self.names[r], 0, float(sum(self.lives)), 1, self.c["MaxOwn"]))

    def touch(self, names: Any) -> None:
        """What a request was given and gives back within the call is touched by its step all the same."""
        if more := names - self.touched:
            self.ev.append(s.Touch("given back", self.blocks(more)))
            self.touched |= more

    def blocks(self, names: Any) -> list[int]:
        return sorted(self.number[b] for b in names)

    # ------------------------------------------------------------------ transitions

    def transition(self, action: str, a: Values, b: Values) -> None:
        if action == "BeginCall":
            return
        if action == "EndCall":
            self.drained(a, b)
            self.close_call(b)
            return
        if action == "Process":
            self.drained(a, b)
            self.close_step(b)
            return
        if action == "LateDone_":
            return
        self.happened(action, a, b, self.actor(action, a, b))
        if not b["on"]:
            self.put(s.Outside(), b)

    def actor(self, action: str, a: Values, b: Values) -> int:
        """The request that acted: TLC names the action only."""
        if new := b["names"] - a["names"]:
            return next(iter(new)) - 1
        per_request = ("st", "own", "xf", "blks", "lost", "quar")
        for r in self.requests:
            if any(a[f][r] != b[f][r] for f in per_request):
                return r
        if action == "PruneOne":  # it keeps in its table what it gives up
            return next(r for r in self.requests if b["pool"] - a["pool"] <= a["own"][r])
        return next(r for r in self.requests if a["read"][r] != b["read"][r])

    def happened(self, action: str, a: Values, b: Values, r: int) -> None:
        """One action of request ``r``, as events."""
        rid, ev = self.names[r], self.ev
        for q in self.requests:  # ended ahead of the reuse
            if action != "ReadDone" and a["read"][q] and not b["read"][q]:
                ev.append(s.Stored(self.jobs[q], "flush"))
        if action == "Resume":
            ev += [s.Promote(rid), s.Admit(rid)]
        elif action == "Preempt":
            self.touch(a["own"][r] & a["touch"])
            ev.append(s.Preempt(rid, ""))
        elif action == "XferDone":
            ev.append(s.Recv(rid, self.gen[r]))
        elif action == "Expire":
            ev.append(s.Expire(rid, "load"))
        elif action == "LateReport":
            if b["st"][r] != a["st"][r]:  # taken for the report of the load that is running now
                ev.append(s.Recv(rid, self.gen[r]))
            else:
                ev.append(s.Ignored(self.lost[r], "recv", "late"))
            if a["quar"][r]:
                ev.append(s.Unquarantine(self.lost[r], self.lost_gen[r], self.blocks(a["quar"][r])))
        elif action == "Store":
            self.jobs[r] = f"read {rid} {len(self.out)}"
            ev.append(s.Store(self.jobs[r], rid, self.blocks(b["read"][r])))
            if self.c["StoreMode"] == "pin":
                ev.append(s.Pin(self.jobs[r], self.blocks(b["read"][r])))
        elif action == "ReadDone":
            ev.append(s.Stored(self.jobs[r]))
            if self.c["StoreMode"] == "pin" and a["ref"] != b["ref"]:
                ev.append(s.Unpin(self.jobs[r], self.blocks(a["read"][r])))
        if action in ("Finish", "AbortLoad"):
            ev.append(s.Finish(rid, "abort" if action == "AbortLoad" else "stop"))
        if b["lost"][r] and not a["lost"][r]:
            self.lost[r], self.lost_gen[r] = rid, self.gen[r]
        self.releases(action, a, b, r)
        self.grants(action, a, b, r)
        over = a["st"][r] in ("run", "held", "load", "zombie", "sending") and b["st"][r] == "new"
        if over and action not in ("Preempt", "Expire"):
            self.arrive(r)

    def releases(self, action: str, a: Values, b: Values, r: int) -> None:
        rid, lost = self.names[r], a["own"][r] - b["own"][r]
        if action == "PruneOne" and not lost:  # it went to the pool and is still in the table
            lost = b["pool"] - a["pool"]
        fresh = {e["b"] for e in b["dfq"]} - {e["b"] for e in a["dfq"]}
        if kept := lost & b["quar"][r]:
            self.ev.append(s.Quarantine(rid, self.gen[r], self.blocks(kept)))
        if fenced := lost & fresh:
            k = max(e["k"] for e in b["dfq"] if e["b"] in fenced)
            self.ev.append(s.Fence(rid, self.blocks(fenced), self.number_of(k)))
        if freed := lost - kept - fenced:
            kind = s.Prune if action == "PruneOne" else s.Free
            self.ev.append(kind(rid, self.blocks(freed)))

    def number_of(self, k: int) -> int:
        """The step of the trace that is the ``k``-th oldest of the specification."""
        real = [i for i, spec in enumerate([*self.steps, True], 1) if spec]
        return self.processed + real[min(k, len(real)) - 1]

    def grants(self, action: str, a: Values, b: Values, r: int) -> None:
        rid, got = self.names[r], b["own"][r] - a["own"][r]
        written = b["blks"][r] if action == "Load" and self.c["OnlyNewBlocks"] else set()
        hits = {x for x in got if x not in a["pool"]}
        if action in ("Admit", "Load") and not hits and len(got) > 1:  # a hit in the pool
            hits = set(sorted(got - written)[:1])
        if hits:
            self.ev.append(s.Share(rid, self.blocks(hits)))
        if got - hits:
            self.ev.append(s.Alloc(rid, self.blocks(got - hits)))
        if action in ("Load", "SyncLoad"):
            self.gen[r] += 1
            blocks = self.blocks(b["blks"][r] or got - hits)
            mode = "async" if action == "Load" else "sync"
            self.ev.append(s.Load(rid, self.gen[r], blocks, mode))  # type: ignore[arg-type]
            if action == "SyncLoad":
                self.ev.append(s.Start(rid, self.gen[r]))
        if b["xf"][r] == "writing" != a["xf"][r]:
            self.ev.append(s.Start(rid, self.gen[r]))
        if action in ("Admit", "SyncLoad"):
            self.ev.append(s.Admit(rid))

    # ------------------------------------------------------------------ records

    def close_call(self, state: Values) -> None:
        """``state``: after the call, or inside it where the behaviour ends there."""
        inside = state if state["on"] else self.walk[len(self.reached) - 1][1]
        self.step += 1
        running = [r for r in self.requests if inside["st"][r] == "run"]
        tok = {self.names[r]: 1 for r in running if r + 1 in inside["names"]}
        implied = set().union(*(inside["own"][r] for r in running if r + 1 in inside["names"]))
        self.touch(inside["touch"] - implied)
        self.touched = set()
        self.put(
            s.Sched(step=self.step, tok=tok, total=len(tok), run=[self.names[r] for r in running]), state
        )
        self.steps.append(bool(inside["touch"]))
        self.empty(state)

    def close_step(self, state: Values) -> None:
        del self.steps[0]
        self.processed += 1
        self.put(s.Update(step=self.processed), state)
        self.empty(state)

    def empty(self, state: Values) -> None:
        while self.steps and not self.steps[0]:
            del self.steps[0]
            self.processed += 1
            self.put(s.Update(step=self.processed), state)

    def drained(self, a: Values, b: Values) -> None:
        if gone := {e["b"] for e in a["dfq"]} - {e["b"] for e in b["dfq"]}:
            self.ev.append(s.Drain(self.blocks(gone)))
