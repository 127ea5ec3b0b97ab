"""The executable twin of ``spec/Sched.tla``: one function per operator, same names, same order of rules.

Nothing here decides anything on its own: the TLA+ file is the authority, and ``stallproof check`` compares
the two state graphs node by node and edge by edge.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import combinations
from typing import NamedTuple

from stallproof_model.state import Constants, Order, State, Step, at, put, without

DEFERRED = ("DeferFrees", "DeferFreesGuarded")


class X(NamedTuple):
    """A scheduling call so far (the record ``X`` of ``Sched.tla``), its effect included."""

    S: State
    budget: int
    all: frozenset[int] = frozenset()
    out: frozenset[int] = frozenset()
    pre: frozenset[tuple[int, int, int]] = frozenset()
    ev: frozenset[tuple[int, int]] = frozenset()
    ref: frozenset[int] = frozenset()
    cls: frozenset[int] = frozenset()
    giv: frozenset[int] = frozenset()
    deferred: frozenset[int] = frozenset()
    asked: frozenset[int] = frozenset()
    ld: frozenset[int] = frozenset()
    lat: int = 0
    pin: int = 0
    hd: int = 0
    yld: frozenset[int] = frozenset()
    wait: bool = False
    patient: bool = False


# ------------------------------------------------------------------ helpers


def Before(S: State, a: int, b: int) -> bool:
    return S.ord.index(a) < S.ord.index(b)


def InsOrd(S: State, q: Order, r: int) -> Order:
    i = sum(Before(S, x, r) for x in q)
    return q[:i] + (r,) + q[i:]


def Fenced(S: State, r: int) -> bool:
    return any(r in e.all for e in S.infl)


def StaleOut(S: State, r: int) -> bool:
    return any(r in e.out for e in S.infl)


def Placeholders(S: State, r: int) -> int:
    return sum(r in e.out for e in S.infl)


def Quarantined(S: State) -> int:
    return sum(S.quar)


def Capacity(c: Constants, S: State) -> int:
    return c.B - Quarantined(S)


def Limit(c: Constants, S: State, r: int) -> int:
    return at(c.Prompt, r) + 1 if r in c.Sessions and not at(S.inp, r) else at(c.Total, r)


def Fits(c: Constants, S: State, n: int) -> bool:
    return c.FeasibleRule == "no" or n + c.Look <= Capacity(c, S)


# ------------------------------------------------------------------ requests and blocks


def Release(c: Constants, S: State, r: int) -> State:
    n = at(S.own, r)
    if n == 0:
        return S
    if c.FenceMode in DEFERRED and Fenced(S, r):
        return S._replace(dfq=S.dfq + ((len(S.infl), n),), own=put(S.own, r, 0))
    infl = tuple(e._replace(rel=e.rel or r in e.all) for e in S.infl)
    return S._replace(free=S.free + n, own=put(S.own, r, 0), infl=infl)


def DropStale(c: Constants, S: State, r: int) -> State:
    if c.StaleOutput == "delivered":
        return S
    return S._replace(infl=tuple(e._replace(out=e.out - {r}) for e in S.infl))


def Preempt(c: Constants, S: State, r: int) -> State:
    S = DropStale(c, Release(c, S, r), r)
    if c.Requeue == "front":
        wq = (r,) + S.wq
    elif c.Requeue == "order":
        wq = InsOrd(S, S.wq, r)
    else:
        wq = S.wq + (r,)
    return S._replace(st=put(S.st, r, "preempted"), comp=put(S.comp, r, 0), run=without(S.run, r), wq=wq)


def Evict(c: Constants, S: State, v: int) -> State:
    S = Release(c, S, v)
    st = "idle" if at(S.st, v) == "idle" else c.EvictTo
    wq = (v,) + without(S.wq, v) if c.EvictPlace == "front" else S.wq
    return S._replace(st=put(S.st, v, st), comp=put(S.comp, v, 0), wq=wq)


def Finish(c: Constants, S: State, r: int) -> State:
    S = Release(c, S, r)
    return S._replace(
        turns=S.turns - {r},
        passed=tuple(0 if r in (q, p) else p for q, p in enumerate(S.passed, 1)),
        st=put(S.st, r, "finished"),
        comp=put(S.comp, r, 0),
        gate=put(S.gate, r, 0),
        due=put(S.due, r, "no"),
        run=without(S.run, r),
        wq=without(S.wq, r),
    )


def GiveUp(S: State, r: int) -> State:
    return S._replace(noload=put(S.noload, r, True), due=put(S.due, r, "no"))


# ------------------------------------------------------------------ parked holders as victims


def Victims(c: Constants, S: State, r: int) -> list[int]:
    def may(q: int) -> bool:
        if at(S.st, q) in ("received", "held"):
            return not c.LatYounger or Before(S, r, q)
        if at(S.st, q) == "idle":
            return c.SessionEvict == "any" or (c.SessionEvict == "younger" and Before(S, r, q))
        return False

    return [q for q in S.wq if q != r and at(S.own, q) > 0 and may(q)]


def Gain(c: Constants, S: State, q: int) -> int:
    return 0 if c.FenceMode in DEFERRED and Fenced(S, q) else at(S.own, q)


def Rank(c: Constants, S: State, q: int) -> int:
    if at(S.st, q) == "idle":
        return -1
    return at(S.comp, q) if c.VictimPick == "least" else 0


def PickVictim(c: Constants, S: State, E: Iterable[int]) -> int:
    return min(E, key=lambda q: (Rank(c, S, q), -S.ord.index(q)))


def CommitVictims(c: Constants, S: State, r: int, is_load: bool) -> list[int]:
    def may(q: int) -> bool:
        return not is_load or (at(S.st, q) == "idle" and c.SessionEvict == "any")

    return [q for q in Victims(c, S, r) if Gain(c, S, q) > 0 and may(q)]


def Sure(c: Constants, S: State, r: int, is_load: bool, need: int) -> bool:
    gain = sum(Gain(c, S, q) for q in CommitVictims(c, S, r, is_load))
    return c.Lateral == "commit" and S.free + gain >= need


def CommitEvict(c: Constants, x: X, r: int, is_load: bool, need: int) -> X:
    while need > x.S.free:
        v = PickVictim(c, x.S, CommitVictims(c, x.S, r, is_load))
        x = x._replace(S=Evict(c, x.S, v), ev=x.ev | {(v, r)})
    return x


# ------------------------------------------------------------------ one scheduling call


def X0(c: Constants, S: State) -> X:
    return X(S=S._replace(turns=frozenset()), yld=S.turns, budget=c.Budget)


def Grab(c: Constants, S: State, r: int, n: int) -> State:
    need = max(at(S.comp, r) + n + c.Look - at(S.own, r), 0)
    return S._replace(
        own=put(S.own, r, at(S.own, r) + need), free=S.free - need, comp=put(S.comp, r, at(S.comp, r) + n)
    )


def TakeStep(x: X, r: int, n: int, full: bool) -> X:
    return x._replace(all=x.all | {r}, out=x.out | {r} if full else x.out, budget=x.budget - n)


def Refuse(x: X, r: int) -> X:
    return x._replace(ref=x.ref | {r}, cls=x.cls | {r})


def Chunk(c: Constants, n0: int, budget: int) -> int:
    n = min(n0, budget, c.ChunkCap)
    return n // c.Align * c.Align if n < n0 else n


def CanFree(S: State) -> bool:
    return any(e.out for e in S.infl)


def RunLoop(c: Constants, x: X, i: int) -> X:
    while i < len(x.S.run) and x.budget != 0:
        S = x.S
        r = S.run[i]
        tgt = at(S.tok, r) + Placeholders(S, r)
        n0 = tgt - at(S.comp, r)
        n = Chunk(c, n0, x.budget)
        need = at(S.comp, r) + n + c.Look - at(S.own, r)
        v = S.run[-1]
        if tgt >= Limit(c, S, r) or n <= 0 or (c.FeasibleRule != "admission" and not Fits(c, S, tgt)):
            i += 1
        elif need <= S.free:
            x = TakeStep(x, r, n, n == n0)._replace(S=Grab(c, S, r, n))
            i += 1
        elif c.RunEvict and Sure(c, S, r, False, need):
            x = CommitEvict(c, x, r, False, need)
        elif (c.FenceMode == "DeferFreesGuarded" and Fenced(S, v)) or (c.SpareInFlight and StaleOut(S, v)):
            return Refuse(x, r)._replace(wait=True)
        elif not x.pre and S.pat < c.P and CanFree(S):
            return Refuse(x, r)._replace(wait=True, patient=True)
        elif not c.MayPreempt:
            return Refuse(x, r)._replace(wait=True)
        else:
            S1 = Preempt(c, S, v)
            x = x._replace(S=S1, pre=x.pre | {(v, r, S1.free - S.free)})
            if v == r:
                return Refuse(x, r)
    return x


def LookNeed(c: Constants) -> int:
    return c.Look if c.LookCounted else 0


def Remaining(c: Constants, S: State, r: int) -> int:
    return max(at(S.tok, r) + LookNeed(c) - at(S.own, r), 0)


def RunReserved(c: Constants, S: State) -> int:
    return sum(Remaining(c, S, q) for q in S.run if at(S.comp, q) < at(S.tok, q))


def AllReserved(c: Constants, S: State, r: int) -> int:
    parked = (q for q in S.wq if q != r and at(S.st, q) in ("loading", "received", "held"))
    return RunReserved(c, S) + sum(Remaining(c, S, q) for q in parked)


def Promote(S: State, r: int) -> State:
    if at(S.st, r) != "received":
        return S
    return S._replace(st=put(S.st, r, "held"), comp=put(S.comp, r, min(at(S.comp, r), at(S.tok, r) - 1)))


def PromoteAll(S: State, R: Iterable[int]) -> State:
    for r in R:
        S = Promote(S, r)
    return S


def NextCand(c: Constants, x: X, seen: Collection[int]) -> int:
    if x.pin:
        return x.pin
    cand = [r for r in x.S.wq if r not in seen]
    if c.Scan == "holders":
        for r in cand:
            if at(x.S.own, r) > 0 and r not in x.yld:
                return r
    return cand[0] if cand else 0


def CanLoad(c: Constants, S: State, r: int) -> bool:
    return at(S.own, r) == 0 and at(c.Ext, r) > 0 and not at(S.noload, r)


def Asked(S: State, r: int, NY: Collection[int]) -> State:
    return GiveUp(S, r) if r in NY and at(S.due, r) == "over" else S


def Alone(c: Constants, S: State, r: int) -> bool:
    return S.free + sum(Gain(c, S, q) for q in CommitVictims(c, S, r, True)) == Capacity(c, S)


def Seats(c: Constants, S: State, r: int) -> int:
    n = len(S.run)
    if c.CountParked:
        n += sum(at(S.st, q) in ("loading", "received", "held") for q in S.wq if q != r)
    if c.CountIdle:
        n += sum(at(S.st, q) == "idle" for q in S.wq)
    return n


def Shut(c: Constants, x: X, r: int) -> bool:
    if at(x.S.own, r) != 0 and r not in x.yld:
        return False
    if c.Refusal == "closes" and any(Before(x.S, q, r) for q in x.cls):
        return True
    return c.NotYetCloses and any(Before(x.S, q, r) for q in x.deferred)


def Taken(c: Constants, x: X) -> set[int]:
    return {at(c.Adapter, q) for q in (x.S.run if c.AdapterCount == "running" else x.all)} - {0}


def NoSlot(c: Constants, x: X, r: int) -> bool:
    return at(c.Adapter, r) not in Taken(c, x) | {0} and len(Taken(c, x)) >= c.MaxLoras


def WaitsForSlot(c: Constants, x: X) -> X:
    S = x.S
    W = [r for r in S.wq if at(S.st, r) in ("waiting", "preempted", "held") and NoSlot(c, x, r)]
    h = min(W, key=S.ord.index, default=0)
    kept = h == S.oh or (h == 0 and c.AdapterWatch == "always")
    return x._replace(hd=h, S=S._replace(oh=S.oh if kept else h, ot=S.ot if kept else 0))


def SlotTaken(c: Constants, x: X, r: int) -> X:
    return WaitsForSlot(c, x) if c.AdapterWatch == "always" and at(c.Adapter, r) != 0 else x


def Overtakes(c: Constants, x: X, r: int) -> bool:
    return x.hd != 0 and at(c.Adapter, r) != 0 and at(x.S.own, r) == 0 and Before(x.S, x.hd, r)


def CountOvertaken(c: Constants, x: X, r: int) -> X:
    if not Overtakes(c, x, r):
        return x
    return x._replace(S=x.S._replace(ot=min(x.S.ot + 1, max(c.AdapterBound, 0))))


def AdapterShut(c: Constants, x: X, r: int) -> bool:
    return NoSlot(c, x, r) or (0 <= c.AdapterBound <= x.S.ot and Overtakes(c, x, r))


def StartLoad(c: Constants, x: X, r: int) -> X:
    S, n = x.S, at(c.Ext, r)
    S = S._replace(own=put(S.own, r, n), free=S.free - n, comp=put(S.comp, r, n), st=put(S.st, r, "loading"))
    return x._replace(S=S, ld=x.ld | {r}, giv=x.giv | {r}, pin=0)


def Admit(c: Constants, x: X, r: int, n: int, full: bool) -> X:
    S = Grab(c, x.S, r, n)
    S = S._replace(
        st=put(S.st, r, "running"),
        noload=put(S.noload, r, at(S.noload, r) or not c.Reload),
        wq=without(S.wq, r),
        run=InsOrd(S, S.run, r) if c.RunOrder == "order" else S.run + (r,),
    )
    giv = x.giv | {r} if at(x.S.own, r) == 0 else x.giv
    return TakeStep(x, r, n, full)._replace(S=S, giv=giv, pin=0)


def AdmLoop(c: Constants, x: X, NY: Collection[int]) -> X:
    seen: set[int] = set()
    while True:
        r = NextCand(c, x, seen)
        if r == 0 or x.budget == 0:
            return x
        if Seats(c, x.S, r) >= c.MaxSeqs:
            return x
        if at(x.S.st, r) in ("loading", "idle", "blocked", "stuck"):
            seen.add(r)
            continue
        if StaleOut(x.S, r):
            if at(x.S.own, r) == 0:
                x = x._replace(deferred=x.deferred | {r})
            seen.add(r)
            continue
        if Shut(c, x, r) or AdapterShut(c, x, r):
            seen.add(r)
            continue
        S = Asked(Promote(x.S, r), r, NY)
        x = x._replace(S=S)
        is_load = CanLoad(c, S, r)
        n0 = at(S.tok, r) - at(S.comp, r)
        n = Chunk(c, n0, x.budget)
        take = max(at(S.comp, r) + n + c.Look - at(S.own, r), 0)
        if is_load:
            need = at(c.Ext, r)
            if c.Reservation:
                need = max(need, at(S.tok, r) + LookNeed(c)) + AllReserved(c, S, r)
            elif c.RuleR:
                need += RunReserved(c, S)
            need += c.KeptBack
        else:
            need = max(Remaining(c, S, r), take) if c.FullFit else take
        if is_load and r in NY:
            x = x._replace(asked=x.asked | {r}, deferred=x.deferred | {r})
            seen.add(r)
        elif not is_load and n == 0:
            seen.add(r)
        elif need <= S.free or Sure(c, S, r, is_load, need):
            x = CountOvertaken(c, CommitEvict(c, x, r, is_load, need), r)
            x = StartLoad(c, x, r) if is_load else SlotTaken(c, Admit(c, x, r, n, n == n0), r)
            seen.add(r)
        elif c.Lateral == "least" and x.lat < c.LatCap and Victims(c, S, r):
            v = PickVictim(c, S, Victims(c, S, r))
            x = x._replace(S=Evict(c, S, v), lat=x.lat + 1, ev=x.ev | {(v, r)}, pin=r if c.Pin else 0)
        else:
            if is_load and c.FeasibleRule == "always" and Alone(c, S, r):
                x = x._replace(S=GiveUp(S, r))
            x = Refuse(x, r)._replace(cls=x.cls) if is_load and not c.LoadCounts else Refuse(x, r)
            x = x._replace(pin=0)
            if c.Refusal == "break":
                return x
            seen.add(r)


def RejectInfeasible(c: Constants, S: State, R: Iterable[int]) -> State:
    live = ("waiting", "preempted", "received", "held", "running")
    for r in sorted(R):
        tested = c.FeasibleRule != "admission" or at(S.tok, r) == at(c.Prompt, r)
        if at(S.st, r) in live and not Fits(c, S, at(S.tok, r)) and tested:
            S = Finish(c, S, r)
    return S


def SchedX(c: Constants, S: State, NY: Collection[int]) -> X:
    reqs = range(1, c.N + 1)
    if c.Promotion == "always" or (c.Promotion == "calls" and not S.paused):
        S = PromoteAll(S, reqs)
    if S.paused:
        return X0(c, S)
    x = RunLoop(c, X0(c, RejectInfeasible(c, S, reqs)), 0)
    if x.pre or (x.wait and c.CloseOnWait):
        return x
    return AdmLoop(c, WaitsForSlot(c, x), NY)


def Due(c: Constants, x: X, r: int) -> str:
    if r in x.asked and c.DeferralDeadline != "no":
        return "runs" if at(x.S.due, r) == "no" else at(x.S.due, r)
    over = r in x.ld or (c.DeferralDeadline == "anew" and r in x.ref)
    return "no" if over else at(x.S.due, r)


def Dispatch(c: Constants, x: X) -> State:
    S = x.S
    infl = S.infl + (Step(x.all, x.out, False),) if x.all else S.infl
    g = len(infl) if c.FenceMode == "GateLoads" else 0
    reqs = range(1, c.N + 1)
    return S._replace(
        infl=infl,
        gate=tuple(g if r in x.ld else at(S.gate, r) for r in reqs),
        ny=tuple(at(S.ny, r) - (r in x.asked and not c.NotYetForever) for r in reqs),
        due=tuple(Due(c, x, r) for r in reqs),
        bad=S.bad or (bool(x.ld) and any(e.rel for e in infl[g:])),
        pat=S.pat if x.patient else 0,
        pw=x.patient,
    )


def SchedR(c: Constants, S: State, NY: Collection[int]) -> State:
    return Dispatch(c, SchedX(c, S, NY))


def CanDefer(c: Constants, S: State) -> list[int]:
    return [r for r in S.wq if at(S.ny, r) > 0 and CanLoad(c, S, r)]


# ------------------------------------------------------------------ processing of the oldest step


def Drain(S: State) -> State:
    while S.dfq and S.dfq[0][0] <= 0:
        S = S._replace(free=S.free + S.dfq[0][1], dfq=S.dfq[1:])
    return S


def Idle(S: State, r: int) -> State:
    return S._replace(st=put(S.st, r, "idle"), run=without(S.run, r), wq=InsOrd(S, without(S.wq, r), r))


def TurnOver(c: Constants, S: State, r: int) -> State:
    p = at(c.Prompt, r)
    return S._replace(
        tok=put(S.tok, r, p + 1), comp=put(S.comp, r, min(at(S.comp, r), p)), inp=put(S.inp, r, False)
    )


def Deliver(c: Constants, S: State, R: Iterable[int], E: Collection[int]) -> State:
    for r in sorted(R):
        if at(S.st, r) in ("finished", "zombie"):
            continue
        S = S._replace(tok=put(S.tok, r, at(S.tok, r) + 1))
        if r in E or (at(S.tok, r) >= at(c.Total, r) and r not in c.TalkOn):
            S = Finish(c, S, r)
        elif at(S.tok, r) >= at(c.Total, r):
            S = TurnOver(c, Idle(S, r), r)
        elif at(S.tok, r) >= Limit(c, S, r):
            S = Idle(S, r)
    return S


def ProcR(c: Constants, S: State, E: Collection[int]) -> State:
    head = S.infl[0]
    S = S._replace(
        infl=S.infl[1:],
        dfq=tuple((f - 1, n) for f, n in S.dfq),
        gate=tuple(max(g - 1, 0) for g in S.gate),
        pat=min(c.P, S.pat + 1) if S.pw else S.pat,
    )
    return Deliver(c, Drain(S), head.out, E)


# ------------------------------------------------------------------ actions: each yields successors


def subsets(items: Iterable[int]) -> Iterator[tuple[int, ...]]:
    """``SUBSET items`` of TLA+, in a fixed order."""
    xs = sorted(items)
    for k in range(len(xs) + 1):
        yield from combinations(xs, k)


def Init(c: Constants) -> State:
    reqs = range(1, c.N + 1)
    q = tuple(r for r in reqs if r not in c.Late)
    late = tuple(r for r in reqs if r in c.Late)
    zero, no = (0,) * c.N, (False,) * c.N
    return State(
        st=tuple("new" if r in c.Late else "blocked" if r in c.Grammar else "waiting" for r in reqs),
        own=zero, comp=zero, tok=c.Prompt, noload=no, inp=no, gate=zero, quar=zero,
        ny=tuple(c.K if e > 0 else 0 for e in c.Ext),
        fl=tuple(c.Fails if e > 0 else 0 for e in c.Ext),
        due=("no",) * c.N, run=(), wq=q, ord=q + late if c.Fcfs else tuple(reqs),
        oh=0, ot=0, turns=frozenset(), passed=zero, infl=(), dfq=(), free=c.B,
        pat=0, pw=False, paused=False, pz=c.Pauses, bad=False,
    )  # fmt: skip


def Schedule(c: Constants, S: State) -> Iterator[State]:
    if len(S.infl) < c.D:
        for NY in subsets(CanDefer(c, S)):
            yield SchedR(c, S, NY)


def Process(c: Constants, S: State) -> Iterator[State]:
    if S.infl:
        for E in subsets(S.infl[0].out) if c.Eos else ((),):
            yield ProcR(c, S, E)


def Started(S: State, r: int) -> bool:
    return at(S.st, r) == "loading" and at(S.gate, r) == 0


def XferDone(c: Constants, S: State, r: int) -> Iterator[State]:
    if Started(S, r):
        yield S._replace(st=put(S.st, r, "received"))


def XferFail(c: Constants, S: State, r: int) -> Iterator[State]:
    if Started(S, r) and at(S.fl, r) > 0:
        S = Release(c, S, r)
        st = put(S.st, r, "waiting" if c.FailWakes else "stuck")
        yield S._replace(st=st, comp=put(S.comp, r, 0), fl=put(S.fl, r, at(S.fl, r) - 1))


def Expire(c: Constants, S: State, r: int) -> Iterator[State]:
    zombie = at(S.st, r) == "zombie"
    if c.Deadlines and (Started(S, r) or zombie) and not (c.ReapNeedsWork and not S.run):
        yield S._replace(
            st=put(S.st, r, "finished" if zombie else "waiting"),
            comp=put(S.comp, r, 0),
            own=put(S.own, r, 0),
            quar=put(S.quar, r, at(S.own, r)),
            noload=put(S.noload, r, True),
        )


def DeferralOver(c: Constants, S: State, r: int) -> Iterator[State]:
    if at(S.due, r) == "runs":
        yield S._replace(due=put(S.due, r, "over"))


def LateDone(c: Constants, S: State, r: int) -> Iterator[State]:
    if at(S.quar, r) > 0:
        yield S._replace(free=S.free + at(S.quar, r), quar=put(S.quar, r, 0))


def XferFreed(c: Constants, S: State, r: int) -> Iterator[State]:
    polled = c.PollIdle or any(x not in ("new", "finished", "zombie") for x in S.st)
    if at(S.st, r) == "zombie" and not c.AbortSilent and polled:
        yield Finish(c, S, r)


def Abort(c: Constants, S: State, r: int) -> Iterator[State]:
    if c.Aborts and at(S.st, r) not in ("new", "finished", "zombie"):
        if Started(S, r):
            yield S._replace(st=put(S.st, r, "zombie"), wq=without(S.wq, r))
        else:
            yield Finish(c, S, r)


def Arrive(c: Constants, S: State, r: int) -> Iterator[State]:
    again = r in c.Recycle and at(S.st, r) == "finished" and not Fenced(S, r) and at(S.quar, r) == 0
    if at(S.st, r) == "new" or again:
        load = at(c.Ext, r) > 0
        if c.Fcfs:
            S = S._replace(ord=without(S.ord, r) + (r,))
        yield S._replace(
            st=put(S.st, r, "blocked" if r in c.Grammar else "waiting"),
            tok=put(S.tok, r, at(c.Prompt, r)),
            noload=put(S.noload, r, False),
            inp=put(S.inp, r, False),
            ny=put(S.ny, r, c.K if load else 0),
            fl=put(S.fl, r, c.Fails if load else 0),
            wq=InsOrd(S, S.wq, r) if c.Requeue == "order" else S.wq + (r,),
        )


def GrammarReady(c: Constants, S: State, r: int) -> Iterator[State]:
    if at(S.st, r) == "blocked":
        yield S._replace(st=put(S.st, r, "waiting"))
        if c.GrammarFails == "wakes":
            yield Finish(c, S, r)
        elif c.GrammarFails == "lost":
            yield S._replace(st=put(S.st, r, "stuck"))


def Older(S: State, r: int) -> int:
    W = [q for q in S.wq if at(S.st, q) in ("waiting", "preempted") and Before(S, q, r)]
    return min(W, key=S.ord.index, default=0)


def Input(c: Constants, S: State, r: int) -> Iterator[State]:
    S1 = S._replace(ord=without(S.ord, r) + (r,)) if c.Fcfs else S
    older = Older(S1, r) if c.TurnsYield != "no" and at(S.own, r) > 0 else 0
    again = older != 0 and at(S.passed, r) == older
    if at(S.st, r) == "idle" and not (again and c.TurnsYield == "kept"):
        yield S1._replace(
            turns=S.turns | {r} if again else S.turns,
            passed=put(S.passed, r, older) if older != 0 else S.passed,
            wq=InsOrd(S1, without(S.wq, r), r),
            st=put(S.st, r, "held" if at(S.own, r) > 0 else "waiting"),
            inp=put(S.inp, r, True),
            noload=put(S.noload, r, True),
        )
    if c.InputEarly and r in c.Sessions and not at(S.inp, r) and at(S.st, r) == "running":
        yield S._replace(wq=S.wq + (r,), inp=put(S.inp, r, True))


def Pause(c: Constants, S: State) -> Iterator[State]:
    if S.pz > 0 and not S.paused:
        yield S._replace(paused=True, pz=S.pz - 1)


def Resume(c: Constants, S: State) -> Iterator[State]:
    if S.paused:
        yield S._replace(paused=False)


#: Actions of the whole engine, and of one request.
GLOBAL = (Schedule, Process, Pause, Resume)
PER_REQUEST = (
    XferDone, XferFail, Expire, LateDone, XferFreed, Abort, Arrive, GrammarReady, Input, DeferralOver,
)  # fmt: skip


def Next(c: Constants, S: State) -> Iterator[tuple[str, int, State]]:
    """All successors of ``S`` as (action, request or 0, state)."""
    for act in GLOBAL:
        for T in act(c, S):
            yield act.__name__, 0, T
    for r in range(1, c.N + 1):
        for per in PER_REQUEST:
            for T in per(c, S, r):
                yield per.__name__, r, T
