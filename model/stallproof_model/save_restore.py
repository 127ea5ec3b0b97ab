"""The executable twin of ``spec/SaveRestore.tla``: one function per operator, same names.

A test compares the complete state graphs (nodes, edges, action names) of both. Requests, rows and blocks
count from 1; 0 is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Constants(NamedTuple):
    """As in the module; the defaults are the rules to keep."""

    B: int = 2
    N: int = 2
    R: int = 1
    Cap: int = 2
    D: int = 2
    GateSeesSaves: bool = True
    CopyOutWaits: bool = True
    RowUntilCopied: bool = True
    ReadBehindScatter: bool = True
    ScatterWaits: bool = True
    RowUntilScattered: bool = True
    Cancel: bool = True
    FreeAtOnce: bool = True
    FullDrops: bool = True
    Fallback: bool = True
    OrphansEnd: bool = True


class Op(NamedTuple):
    op: str
    r: int
    b: int
    i: int


class Row(NamedTuple):
    use: str
    r: int
    b: int
    got: bool


class State(NamedTuple):
    pool: frozenset[int]
    own: tuple[int, ...]
    st: tuple[str, ...]
    q: tuple[Op, ...]
    row: tuple[Row, ...]
    rdata: tuple[int, ...]
    host: tuple[int, ...]
    data: tuple[int, ...]
    late: frozenset[tuple[int, int]]
    bad: frozenset[str]


FreeRow = Row("free", 0, 0, False)
Successors = Iterator[tuple[str, State]]


def Init(c: Constants) -> State:
    none = (0,) * c.N
    return State(
        frozenset(range(1, c.B + 1)), none, ("new",) * c.N, (), (FreeRow,) * c.R, (0,) * c.R, none,
        (0,) * c.B, frozenset(), frozenset(),
    )  # fmt: skip


def put(t: tuple[T, ...], k: int, value: T) -> tuple[T, ...]:
    return (*t[: k - 1], value, *t[k:])


def Pending(s: State, b: int) -> list[Op]:
    return [o for o in s.q if o.b == b]


def Fenced(c: Constants, s: State, b: int) -> list[Op]:
    return [o for o in Pending(s, b) if c.GateSeesSaves or o.op in ("write", "use")]


def Scattering(s: State, i: int) -> bool:
    return any(o.op == "scatter" and o.i == i for o in s.q)


def Room(c: Constants, s: State) -> bool:
    return len(s.q) < c.D


def Submit(s: State, op: str, r: int, b: int, i: int) -> State:
    return s._replace(q=(*s.q, Op(op, r, b, i)))


def FreeRows(s: State) -> list[int]:
    return [i for i, w in enumerate(s.row, 1) if w.use == "free"]


def Kept(s: State) -> set[int]:
    saved = {r for r, st in enumerate(s.st, 1) if st == "saved"}
    return saved | {w.r for w in s.row if w.use == "out" or (w.use == "in" and not w.got)}


def Gone(s: State, r: int) -> State:
    b = s.own[r - 1]
    return s._replace(st=put(s.st, r, "new"), own=put(s.own, r, 0), pool=s.pool | {b} if b else s.pool)


def Take(s: State, r: int, b: int, st: str) -> State:
    """``b`` from the pool to ``r``, which is ``st`` then."""
    return s._replace(st=put(s.st, r, st), own=put(s.own, r, b), pool=s.pool - {b})


# ------------------------------------------------------------ requests


def Admit(c: Constants, s: State, r: int) -> Successors:
    if s.st[r - 1] == "new" and Room(c, s):
        for b in s.pool:
            yield "Admit", Submit(Take(s, r, b, "run"), "write", r, b, 0)


def StepOn(c: Constants, s: State, r: int) -> Successors:
    if s.st[r - 1] == "run" and Room(c, s):
        yield "StepOn", Submit(s, "use", r, s.own[r - 1], 0)


def StartLoad(c: Constants, s: State, r: int) -> Successors:
    if s.st[r - 1] == "new":
        for b in s.pool:
            if not Fenced(c, s, b):
                bad = s.bad | {"load"} if Pending(s, b) else s.bad
                yield "StartLoad", Take(s, r, b, "run")._replace(data=put(s.data, b, r), bad=bad)


def Finish(c: Constants, s: State, r: int) -> Successors:
    if s.st[r - 1] == "run":
        yield "Finish", Gone(s, r)


def Abort(c: Constants, s: State, r: int) -> Successors:
    if s.st[r - 1] not in ("saving", "saved", "restoring"):
        return

    def row(i: int, w: Row) -> Row:
        if w.r != r:
            return w
        if w.use == "out":
            return w._replace(r=0) if c.OrphansEnd else w._replace(r=0, b=-1)
        if w.use == "in" and c.Cancel and not Scattering(s, i):
            return FreeRow if w.got else w._replace(r=0, b=0)
        return w

    yield "Abort", Gone(s, r)._replace(row=tuple(row(i, w) for i, w in enumerate(s.row, 1)))


# ------------------------------------------------------------ save


def EvictPlain(c: Constants, s: State, r: int) -> Successors:
    if s.st[r - 1] == "run" and (not FreeRows(s) or len(Kept(s)) >= c.Cap or not Room(c, s)):
        yield "EvictPlain", Gone(s, r)


def EvictSave(c: Constants, s: State, r: int) -> Successors:
    if s.st[r - 1] == "run" and Room(c, s) and (not c.FullDrops or len(Kept(s)) < c.Cap):
        b = s.own[r - 1]
        for i in FreeRows(s):
            t = Submit(s, "gather", r, b, i)
            t = t._replace(st=put(s.st, r, "saving"), row=put(s.row, i, Row("out", r, b, False)))
            yield "EvictSave", t._replace(own=put(s.own, r, 0), pool=s.pool | {b}) if c.FreeAtOnce else t


def CopyOut(c: Constants, s: State, i: int) -> Successors:
    w = s.row[i - 1]
    if w.use == "out" and w.b >= 0 and (w.got or not c.CopyOutWaits):
        t = s._replace(row=put(s.row, i, FreeRow))
        if w.r:
            t = Gone(t, w.r)._replace(host=put(s.host, w.r, s.rdata[i - 1]))
            t = t._replace(st=put(t.st, w.r, "saved"))
        yield "CopyOut", t


# ------------------------------------------------------------ restore


def Restore(c: Constants, s: State, r: int) -> Successors:
    if s.st[r - 1] == "saved":
        for b in s.pool:
            for i in FreeRows(s):
                t = Take(s, r, b, "restoring")
                yield "Restore", t._replace(row=put(s.row, i, Row("in", r, b, False)))


def Forget(c: Constants, s: State, r: int) -> Successors:
    if c.Fallback and s.st[r - 1] == "saved":
        yield "Forget", Gone(s, r)


def CopyIn(c: Constants, s: State, i: int) -> Successors:
    w = s.row[i - 1]
    if w.use == "in" and not w.got:
        if w.r:
            row, got = w._replace(got=True), s.host[w.r - 1]
        else:
            row, got = FreeRow, 0
        yield "CopyIn", s._replace(row=put(s.row, i, row), rdata=put(s.rdata, i, got))


def Scatter(c: Constants, s: State, i: int) -> Successors:
    w = s.row[i - 1]
    if w.use == "in" and w.r and not Scattering(s, i) and Room(c, s) and (w.got or not c.ScatterWaits):
        t = Submit(s, "scatter", w.r, w.b, i)
        if s.st[w.r - 1] == "restoring" and s.own[w.r - 1] == w.b:
            t = t._replace(st=put(t.st, w.r, "run"))
        yield "Scatter", t if c.RowUntilScattered else t._replace(row=put(t.row, i, FreeRow))


def ReadEarly(c: Constants, s: State, r: int) -> Successors:
    if not c.ReadBehindScatter and s.st[r - 1] == "restoring" and Room(c, s):
        yield "ReadEarly", Submit(s, "use", r, s.own[r - 1], 0)


# ------------------------------------------------------------ the device


def Exec(c: Constants, s: State) -> Successors:
    if not s.q:
        return
    o, t = s.q[0], s._replace(q=s.q[1:])
    if o.op == "write":
        t = t._replace(data=put(s.data, o.b, o.r))
    elif o.op == "use" and s.data[o.b - 1] != o.r:
        t = t._replace(bad=s.bad | {"read"})
    elif o.op == "gather":
        w = s.row[o.i - 1]
        if w.use == "out":
            w = w._replace(got=True) if c.RowUntilCopied else FreeRow
        late = s.late if c.RowUntilCopied else s.late | {(o.r, o.i)}
        t = t._replace(rdata=put(s.rdata, o.i, s.data[o.b - 1]), row=put(s.row, o.i, w), late=late)
    elif o.op == "scatter":
        row = put(s.row, o.i, FreeRow) if c.RowUntilScattered else s.row
        t = t._replace(data=put(s.data, o.b, s.rdata[o.i - 1]), row=row)
    yield "Exec", t


def LateCopy(c: Constants, s: State) -> Successors:
    for r, i in s.late:
        st = put(s.st, r, "saved") if s.st[r - 1] == "saving" else s.st
        yield "LateCopy", s._replace(late=s.late - {(r, i)}, host=put(s.host, r, s.rdata[i - 1]), st=st)


OF_REQUESTS = (Admit, StepOn, StartLoad, Finish, Abort, EvictPlain, EvictSave, Restore, Forget, ReadEarly)
OF_ROWS = (CopyOut, CopyIn, Scatter)


def Next(c: Constants, s: State) -> Successors:
    yield from Exec(c, s)
    yield from LateCopy(c, s)
    for r in range(1, c.N + 1):
        for action in OF_REQUESTS:
            yield from action(c, s, r)
    for i in range(1, c.R + 1):
        for move in OF_ROWS:
            yield from move(c, s, i)


def graph(c: Constants) -> tuple[set[State], set[tuple[State, str, State]]]:
    """All states, and all steps with their action."""
    todo, seen, edges = [Init(c)], {Init(c)}, set()
    while todo:
        s = todo.pop()
        for name, t in Next(c, s):
            edges.add((s, name, t))
            if t not in seen:
                seen.add(t)
                todo.append(t)
    return seen, edges
