"""State graphs, counterexamples and the search for fair cycles (the liveness judge besides TLC)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from stallproof_model import props
from stallproof_model.sched import Init, Next
from stallproof_model.state import Constants, State, at

Edge = tuple[str, int, int]  #: action, request (0: none), index of the successor


class Graph(NamedTuple):
    """Reachable states in breadth-first order and their outgoing edges; ``parent`` gives shortest paths."""

    c: Constants
    nodes: list[State]
    edges: list[list[Edge]]
    parent: list[tuple[int, str, int]]
    depth: int


class TooBig(Exception):
    """The graph has more states than the limit: no verdict."""


def graph(c: Constants, limit: int = 200_000, next_: Callable | None = None) -> Graph:
    """All reachable states of ``c``; raises :class:`TooBig` beyond ``limit`` states."""
    step = next_ or Next
    first = Init(c)
    index = {first: 0}
    nodes, edges, parent, level = [first], [], [(-1, "", 0)], [1]
    i = 0
    while i < len(nodes):
        out: list[Edge] = []
        for name, r, T in step(c, nodes[i]):
            j = index.get(T)
            if j is None:
                j = index[T] = len(nodes)
                if j >= limit:
                    raise TooBig(f"more than {limit} states")
                nodes.append(T)
                parent.append((i, name, r))
                level.append(level[i] + 1)
            out.append((name, r, j))
        edges.append(out)
        i += 1
    return Graph(c, nodes, edges, parent, max(level))


def edge_set(g: Graph) -> set[tuple[State, str, State]]:
    """Edges as (state, action name, state), self loops included: what TLC's dump holds."""
    return {(g.nodes[i], name, g.nodes[j]) for i, es in enumerate(g.edges) for name, _, j in es}


def path(g: Graph, i: int) -> list[tuple[str, int, State]]:
    """Shortest path from the initial state to node ``i`` as (action, request, state)."""
    out: list[tuple[str, int, State]] = []
    while i >= 0:
        up, name, r = g.parent[i]
        out.append((name, r, g.nodes[i]))
        i = up
    return out[::-1]


def sccs(adj: Sequence[Sequence[int]]) -> list[list[int]]:
    """Strongly connected components (Tarjan, iterative)."""
    n = len(adj)
    idx, low, on = [0] * n, [0] * n, [False] * n
    stack: list[int] = []
    out: list[list[int]] = []
    t = 0
    for root in range(n):
        if idx[root]:
            continue
        t += 1
        idx[root] = low[root] = t
        stack.append(root)
        on[root] = True
        work = [(root, iter(adj[root]))]
        while work:
            v, it = work[-1]
            for w in it:
                if not idx[w]:
                    t += 1
                    idx[w] = low[w] = t
                    stack.append(w)
                    on[w] = True
                    work.append((w, iter(adj[w])))
                    break
                if on[w]:
                    low[v] = min(low[v], idx[w])
            else:
                work.pop()
                if work:
                    u = work[-1][0]
                    low[u] = min(low[u], low[v])
                if low[v] == idx[v]:
                    comp: list[int] = []
                    while True:
                        w = stack.pop()
                        on[w] = False
                        comp.append(w)
                        if w == v:
                            break
                    out.append(comp)
    return out


def fair_actions(c: Constants) -> list[tuple[tuple[str, ...], int]]:
    """The weakly fair actions of ``Fairness`` in ``Sched.tla``: action names and request (0: any)."""
    fair: list[tuple[tuple[str, ...], int]] = [(("Schedule",), 0), (("Process",), 0)]
    for r in range(1, c.N + 1):
        if at(c.Ext, r) > 0 and r not in c.Lost:
            fair.append((("XferDone", "XferFail", "Expire"), r))
            if c.Aborts:
                fair.append((("XferFreed",), r))
        elif at(c.Ext, r) > 0 and c.Deadlines:
            fair.append((("Expire",), r))
        if at(c.Ext, r) > 0 and c.DeferralDeadline != "no":
            fair.append((("DeferralOver",), r))
        if r in c.Late:
            fair.append((("Arrive",), r))
        if r in c.Grammar and c.GrammarFails != "never":
            fair.append((("GrammarReady",), r))
    if c.Pauses:
        fair.append((("Resume",), 0))
    return fair


class Lasso(NamedTuple):
    """A fair cycle that avoids the goal: ``kind`` is wedge, livelock or starvation."""

    kind: str
    prop: str
    prefix: list[tuple[str, int, State]]
    cycle: list[tuple[str, int, State]]


def _fair(g: Graph, comp: Iterable[int], fair: list[tuple[tuple[str, ...], int]]) -> bool:
    cs = set(comp)
    for names, r in fair:

        def is_it(name: str, q: int, names: tuple[str, ...] = names, r: int = r) -> bool:
            return name in names and (r == 0 or q == r)

        taken = any(is_it(a, q) and j in cs and j != i for i in cs for a, q, j in g.edges[i])
        idle = any(not any(is_it(a, q) and j != i for a, q, j in g.edges[i]) for i in cs)
        if names == ("Schedule",) and g.c.NotYetForever:  # Acts: whatever connectors answer
            idle = idle or any(a == "Schedule" and j == i for i in cs for a, _, j in g.edges[i])
        if not (taken or idle):
            return False
    return True


def lasso(g: Graph, want_cycle: bool = True) -> Lasso | None:
    """A reachable fair cycle in which some request of ``Must`` never finishes, or None.

    Termination (no request arrives again) and NoStarvation (some do) are the same question here: the goal
    is that all of ``Must`` is finished, and a finished request of ``Must`` stays so.
    """
    c = g.c
    bad = [not props.AllDone(c, s) for s in g.nodes]
    adj = [[j for _, _, j in es if j != i and bad[j]] if bad[i] else [] for i, es in enumerate(g.edges)]
    fair = fair_actions(c)
    best: list[int] | None = None
    for comp in sccs(adj):
        if bad[comp[0]] and _fair(g, comp, fair) and (best is None or min(comp) < min(best)):
            best = comp
    if best is None:
        return None
    cs = set(best)
    arrives = any(a in ("Arrive", "Input") and j in cs for i in best for a, _, j in g.edges[i])
    kind = "starvation" if arrives else "wedge" if len(best) == 1 else "livelock"
    prop = "NoStarvation" if c.Recycle | c.TalkOn else "Termination"
    start = min(best)
    cycle = _cycle(g, start, cs, fair) if want_cycle and len(best) > 1 else []
    return Lasso(kind, prop, path(g, start), cycle)


def _cycle(g: Graph, start: int, cs: set[int], fair: list[tuple[tuple[str, ...], int]]) -> list:
    """A short closed walk from ``start`` inside ``cs`` with a witness for every fair action."""

    def walk(src: int, want: Callable[[int, Edge | None], bool]) -> list[tuple[int, Edge]]:
        seen: dict[int, tuple[int, Edge] | None] = {src: None}
        todo = deque([src])
        if want(src, None):
            return []
        while todo:
            i = todo.popleft()
            for e in g.edges[i]:
                j = e[2]
                if j not in cs or j == i:
                    continue
                if want(i, e) or want(j, None):
                    steps = [(i, e)]
                    while seen[i] is not None:
                        i, e = seen[i]  # type: ignore[misc]
                        steps.append((i, e))
                    return steps[::-1]
                if j not in seen:
                    seen[j] = (i, e)
                    todo.append(j)
        raise AssertionError("the component is strongly connected")

    here = start
    steps: list[tuple[int, Edge]] = []
    for names, r in fair:

        def serves(i: int, e: Edge | None, names: tuple[str, ...] = names, r: int = r) -> bool:
            if e is not None:
                return e[0] in names and (r == 0 or e[1] == r) and e[2] != i
            return not any(a in names and (r == 0 or q == r) and j != i for a, q, j in g.edges[i])

        if any(serves(i, None) or serves(i, e) for i, e in steps):
            continue
        more = walk(here, serves)
        steps += more
        here = more[-1][1][2] if more else here
    if here != start or not steps:
        steps += walk(here, lambda i, e: e is not None and e[2] == start)
    return [(e[0], e[1], g.nodes[e[2]]) for _, e in steps]


class Finding(NamedTuple):
    """A violated statement with the shortest trace to it."""

    prop: str
    trace: list[tuple[str, int, State]]


def first_violation(g: Graph, only: Iterable[str] | None = None) -> Finding | None:
    """The breadth-first first violation of an invariant or call statement (of ``only``, if given)."""
    names = None if only is None else set(only)
    for i, s in enumerate(g.nodes):
        for name in props.broken(g.c, s):
            if names is None or name in names:
                return Finding(name, path(g, i))
    return None
