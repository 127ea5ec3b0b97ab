"""Mechanical mutants of every function of :mod:`stallproof_model.sched`.

A mutant is the source of ``sched.py`` with one place changed. It is *killed* by a configuration if its state
graph there differs from the model's, it raises, or it does not come to an end. Since TLC's graph equals the
model's on those configurations, the same comparison would catch the same slip in the model itself: that is
what makes graph equality evidence, and how the configurations for it are chosen.
"""

from __future__ import annotations

import ast
import copy
import json
import signal
import tomllib
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stallproof_model import explore, props, sched
from stallproof_model.state import Constants, State

Next = Callable[[Constants, State], Iterator[tuple[str, int, State]]]
Model = tuple[Next, Callable[[Constants], State], Callable[[Constants, State, Collection[int]], sched.X]]

_SOURCE = Path(sched.__file__)
_COMPARE = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_SWAP = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """``name`` is stable as long as its function does not change: function, ordinal, what was changed."""

    name: str
    function: str
    line: int
    tree: ast.FunctionDef

    def build(self) -> Model:
        """All functions of the model again, one of them changed."""
        space: dict[str, Any] = dict(sched.__dict__)
        for name, f in sched.__dict__.items():
            if isinstance(f, types.FunctionType) and f.__module__ == sched.__name__:
                space[name] = types.FunctionType(f.__code__, space, name, f.__defaults__)
        exec(compile(ast.Module([self.tree], []), "<mutant>", "exec"), space)
        for group in ("GLOBAL", "PER_REQUEST"):
            space[group] = tuple(space[f.__name__] for f in sched.__dict__[group])
        return space["Next"], space["Init"], space["SchedX"]


def _changes(node: ast.AST) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Possible single changes of one node: label, and the change on a copy (None: in place)."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        new = _COMPARE.get(type(node.ops[0]))
        if new:

            def compare(n: ast.Compare, new: type = new) -> None:
                n.ops[0] = new()

            yield f"{type(node.ops[0]).__name__}->{new.__name__}", compare
    if isinstance(node, ast.BoolOp):

        def boolop(n: ast.BoolOp) -> None:
            n.op = ast.Or() if isinstance(n.op, ast.And) else ast.And()

        yield "and<->or", boolop
        for i in range(len(node.values)):

            def drop(n: ast.BoolOp, i: int = i) -> None:
                del n.values[i]
                if len(n.values) == 1:
                    n.values.append(n.values[0])

            yield f"drop operand {i}", drop
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "drop not", lambda n: n.operand
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.BitOr):

        def arith(n: ast.BinOp) -> ast.AST | None:
            if isinstance(n.op, ast.BitOr):
                return n.left
            n.op = ast.Sub() if isinstance(n.op, ast.Add) else ast.Add()
            return None

        if isinstance(node.op, ast.BitOr) or not (
            isinstance(node.left, ast.Tuple) or isinstance(node.right, ast.Tuple)
        ):
            yield "drop union" if isinstance(node.op, ast.BitOr) else "+<->-", arith
    if isinstance(node, ast.Constant) and type(node.value) is int:

        def bump(n: ast.Constant) -> None:
            n.value = int(str(n.value)) + 1

        yield f"{node.value}->{int(node.value) + 1}", bump
    if isinstance(node, ast.Constant) and type(node.value) is bool:

        def flip(n: ast.Constant) -> None:
            n.value = not n.value

        yield f"{node.value}->{not node.value}", flip
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _SWAP:

        def swap(n: ast.Call) -> None:
            n.func.id = _SWAP[n.func.id]  # type: ignore[attr-defined]

        yield f"{node.func.id}->{_SWAP[node.func.id]}", swap
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "_replace":
        for i, kw in enumerate(node.keywords):

            def forget(n: ast.Call, i: int = i) -> None:
                del n.keywords[i]

            yield f"forget {kw.arg}", forget
    if (
        isinstance(node, ast.Tuple)
        and len(node.elts) > 1
        and all(isinstance(e, ast.Constant) for e in node.elts)
    ):
        for i, e in enumerate(node.elts):

            def shrink(n: ast.Tuple, i: int = i) -> None:
                del n.elts[i]

            yield f"without {e.value!r}", shrink  # type: ignore[attr-defined]


def _strip(tree: ast.Module) -> ast.Module:
    """Without annotations of functions and docstrings: they decide nothing."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            for a in node.args.args:
                a.annotation = None
    return tree


def _body(f: ast.FunctionDef) -> list[ast.AST]:
    return [node for stmt in f.body for node in ast.walk(stmt)]


def mutants() -> list[Mutant]:
    """All mutants of all functions of the model, in source order."""
    tree = _strip(ast.parse(_SOURCE.read_text()))
    out: list[Mutant] = []
    for f in tree.body:
        if not isinstance(f, ast.FunctionDef):
            continue
        nodes = _body(f)
        ordinal = 0
        for i, node in enumerate(nodes):
            for label, _ in list(_changes(node)):
                g = copy.deepcopy(f)
                target = _body(g)[i]
                change = next(c for lab, c in _changes(target) if lab == label)
                other = change(target)
                if other is not None:
                    g = _Swap(target, other).visit(g)
                ast.fix_missing_locations(g)
                ordinal += 1
                line = getattr(node, "lineno", f.lineno)
                out.append(Mutant(f"{f.name}/{ordinal}: {label}", f.name, line, g))
    return out


def unmodified() -> Model:
    """The control: every function compiled again from source, none of them changed."""
    tree = _strip(ast.parse(_SOURCE.read_text()))
    first, *rest = [f for f in tree.body if isinstance(f, ast.FunctionDef)]
    space: dict[str, Any] = Mutant("control", first.name, first.lineno, first).build()[0].__globals__
    exec(compile(ast.Module(list(rest), []), "<control>", "exec"), space)
    for group in ("GLOBAL", "PER_REQUEST"):
        space[group] = tuple(space[f.__name__] for f in sched.__dict__[group])
    return space["Next"], space["Init"], space["SchedX"]


class _Swap(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self.new if node is self.old else self.generic_visit(node)


class _TooLong(Exception):
    pass


def differs(model: Model, g: explore.Graph, seconds: float = 10.0) -> bool:
    """Whether ``model``, a mutant, differs from the model whose graph is ``g``."""

    def alarm(*_: Any) -> None:
        raise _TooLong

    old = signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return _compare(model, g)
    except Exception:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def _compare(model: Model, g: explore.Graph) -> bool:
    """Same initial state, same successors of every state, and the same verdict on every call.

    That is the same reachable graph; the effect of a call is not part of a state, TLC compares it through
    the verdicts of the statements about calls.
    """
    step, init, call = model
    if init(g.c) != g.nodes[0]:
        return True
    for s, es in zip(g.nodes, g.edges, strict=True):
        mine = {(name, g.nodes[j]) for name, _, j in es}
        if {(name, T) for name, _, T in step(g.c, s)} != mine:
            return True
        if len(s.infl) < g.c.D:
            for NY in sched.subsets(sched.CanDefer(g.c, s)):
                x, y = sched.SchedX(g.c, s, NY), call(g.c, s, NY)
                for holds in props.CALLS.values():
                    if holds(g.c, s, x) != holds(g.c, s, y):
                        return True
    return False


def equivalents() -> dict[str, str]:
    """Mutants that no configuration can kill, with the reason."""
    path = Path(__file__).parent / "equivalents.toml"
    return tomllib.loads(path.read_text()) if path.is_file() else {}


def killers() -> dict[str, str]:
    """The configuration that killed each mutant when it was last searched for: where to look first."""
    path = Path(__file__).parent / "killers.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def record(outcomes: Sequence[Outcome]) -> Path:
    """Write the killers of ``outcomes`` for :func:`killers`; returns the path."""
    path = Path(__file__).parent / "killers.json"
    found = {o.mutant.name: o.by for o in outcomes if o.by}
    path.write_text(json.dumps(dict(sorted(found.items())), indent=0) + "\n")
    return path


@dataclass(frozen=True)
class Outcome:
    """``by`` names the configuration that killed the mutant; empty: it survived."""

    mutant: Mutant
    by: str


def kill(
    todo: Sequence[Mutant],
    graphs: Mapping[str, explore.Graph],
    first: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Outcome]:
    """Try every mutant on the graphs until one differs.

    ``first`` (mutant name to graph name) only says which graph to try first: a mutant that differs nowhere
    survives, whatever it says. The others are tried from the smallest on.
    """
    out = []
    order = sorted(graphs, key=lambda name: len(graphs[name].nodes))
    for i, m in enumerate(todo, 1):
        model = m.build()
        hint = (first or {}).get(m.name, "")
        names = [hint] * (hint in graphs) + [name for name in order if name != hint]
        out.append(Outcome(m, next((name for name in names if differs(model, graphs[name])), "")))
        if progress:
            progress(i, len(todo))
    return out
