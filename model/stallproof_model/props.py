"""The statements of ``spec/Properties.tla`` for the Python twin, same names."""

from __future__ import annotations

from collections.abc import Callable

from stallproof_model.sched import (
    Before,
    CanDefer,
    CanFree,
    Quarantined,
    SchedR,
    SchedX,
    X,
    subsets,
)
from stallproof_model.state import Constants, State, at

PARKED = ("waiting", "preempted", "loading", "received", "held", "idle", "blocked", "stuck")


def Conservation(c: Constants, s: State) -> bool:
    total = s.free + sum(s.own) + sum(n for _, n in s.dfq) + Quarantined(s)
    clean = all(n == 0 for st, n in zip(s.st, s.own, strict=True) if st in ("new", "finished"))
    return s.free >= 0 and min(s.own) >= 0 and total == c.B and clean


def Queues(c: Constants, s: State) -> bool:
    run = [r for r in range(1, c.N + 1) if at(s.st, r) == "running"]
    parked = [r for r in range(1, c.N + 1) if at(s.st, r) in PARKED]
    return sorted(s.run) == run and sorted(s.wq) == parked


def InFlightSafe(c: Constants, s: State) -> bool:
    return not s.bad


def XferSafe(c: Constants, s: State) -> bool:
    return all(
        at(s.own, r) == at(c.Ext, r) for r in range(1, c.N + 1) if at(s.st, r) in ("loading", "zombie")
    )


def NoLeak(c: Constants, s: State) -> bool:
    over = all(x == "finished" for x in s.st) and not s.infl
    return not over or s.free + Quarantined(s) == c.B


def Seated(c: Constants, s: State) -> bool:
    return len(s.run) <= c.MaxSeqs


def AdapterShare(c: Constants, s: State) -> bool:
    return len({at(c.Adapter, r) for r in s.run} - {0}) <= c.MaxLoras


def Must(c: Constants) -> list[int]:
    return [r for r in range(1, c.N + 1) if r not in c.Recycle | c.Sessions]


def AllDone(c: Constants, s: State) -> bool:
    return all(at(s.st, r) == "finished" for r in Must(c))


def Pending(s: State) -> bool:
    outside = any(x in ("loading", "zombie", "blocked") for x in s.st)
    return bool(s.infl) or s.paused or outside or "runs" in s.due


def NoWedge(c: Constants, s: State) -> bool:
    if Pending(s) or all(x in ("new", "finished", "idle") for x in s.st):
        return True
    return all(SchedR(c, s, NY) != s for NY in subsets(CanDefer(c, s)))


def NoZeroPre(c: Constants, s: State, x: X) -> bool:
    hasty = s.pat < c.P and CanFree(s)
    return not any((gain == 0 and v != r) or hasty for v, r, gain in x.pre)


def EvictCoupled(c: Constants, s: State, x: X) -> bool:
    return all(t in x.all or (at(s.st, v) == "idle" and t in x.ld) for v, t in x.ev)


def NoInversion(c: Constants, s: State, x: X) -> bool:
    return not any(Before(x.S, r, q) for q in x.giv for r in x.ref)


def BoundedWait(c: Constants, s: State, x: X) -> bool:
    return not any(a == "received" == b for a, b in zip(s.st, x.S.st, strict=True))


#: Statements about one state.
INVARIANTS: dict[str, Callable[[Constants, State], bool]] = {
    f.__name__: f
    for f in (Conservation, Queues, InFlightSafe, XferSafe, NoLeak, Seated, AdapterShare, NoWedge)
}
#: Statements about one scheduling call and its effect.
CALLS: dict[str, Callable[[Constants, State, X], bool]] = {
    f.__name__: f for f in (NoZeroPre, EvictCoupled, NoInversion, BoundedWait)
}


def broken(c: Constants, s: State) -> list[str]:
    """Names of the statements that ``s``, or a scheduling call from ``s``, violates."""
    out = [name for name, f in INVARIANTS.items() if not f(c, s)]
    if len(s.infl) < c.D:
        for NY in subsets(CanDefer(c, s)):
            x = SchedX(c, s, NY)
            out += [name for name, f in CALLS.items() if name not in out and not f(c, s, x)]
    return out
