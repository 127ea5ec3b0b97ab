"""States, guarded actions and weakest preconditions on top of Z3.

An action is a set of *named* guards and a set of functional updates, one per variable it changes; its
choices (which request, which blocks) are parameters, i.e. free symbols. So the post-state is a term over
the pre-state: a verification condition needs no frame axioms, and the same action runs on concrete states
(:mod:`stallproof_proofs.evaluate`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, ItemsView, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import z3

#: Z3 carries no types; these names only say what is meant.
Expr: TypeAlias = Any
Bool: TypeAlias = Any


@dataclass(frozen=True)
class Var:
    """A state variable: a function from ``dom`` to ``rng`` (a constant if ``dom`` is empty)."""

    name: str
    dom: tuple[z3.SortRef, ...]
    rng: z3.SortRef


class State:
    """Variables by name. Each is callable with its indices: ``s.own(r, b)``, ``s.sched()``."""

    def __init__(self, values: Mapping[str, Callable[..., Expr]]) -> None:
        self._values = dict(values)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(name) from None

    def items(self) -> ItemsView[str, Callable[..., Expr]]:
        return self._values.items()

    def replace(self, updates: Mapping[str, Callable[..., Expr]]) -> State:
        unknown = set(updates) - set(self._values)
        if unknown:
            raise KeyError(f"not variables of this state: {sorted(unknown)}")
        return State({**self._values, **updates})


class Vocabulary:
    """The variables of one system and their symbolic pre-state."""

    def __init__(self, *variables: Var) -> None:
        self.vars = {v.name: v for v in variables}

    def state(self, suffix: str = "") -> State:
        out: dict[str, Callable[..., Expr]] = {}
        for v in self.vars.values():
            if v.dom:
                out[v.name] = z3.Function(v.name + suffix, *v.dom, v.rng)
            else:
                const = z3.Const(v.name + suffix, v.rng)
                out[v.name] = lambda c=const: c
        return State(out)


#: functions of a symbolic state and what they are in another; ``Var(i)`` is argument ``i``
Changes: TypeAlias = Sequence[tuple[z3.FuncDeclRef, Expr]]


def changes(s: State, post: State) -> Changes:
    """What ``post`` defines anew of the symbolic state ``s``."""
    out = []
    for name, new in post.items():
        old = getattr(s, name)
        if new is old:
            continue
        decl = old if isinstance(old, z3.FuncDeclRef) else old().decl()
        args = [z3.Const(f"{name} {i}!", decl.domain(i)) for i in range(decl.arity())]
        value = new(*args)
        if not value.eq(decl(*args)):
            # a binder numbers its last argument 0
            out.append((decl, z3.Lambda(args[::-1], value).body() if args else value))
    return out


def after(change: Changes, over: Mapping[str, Bool]) -> dict[str, Bool]:
    """Formulas over the state before ``change``, read in the one after it.

    The solver substitutes: to build them again over the other state takes ten times as long.
    """
    return {n: z3.substitute_funs(e, *change) for n, e in over.items()} if change else dict(over)


def speaking(change: Changes, over: Mapping[str, Bool]) -> set[str]:
    """Names of the formulas that read what changes."""
    other = after([(f, _other(f)) for f, _ in change], over)
    return {n for n, e in over.items() if not e.eq(other[n])}


def _other(f: z3.FuncDeclRef) -> Expr:
    """A function that is like ``f`` and occurs nowhere, as a definition."""
    sorts = [f.domain(i) for i in range(f.arity())]
    if not sorts:
        return z3.Const(f"other {f.name()}!", f.range())
    return z3.Function(f"other {f.name()}!", *sorts, f.range())(*(z3.Var(i, d) for i, d in enumerate(sorts)))


@dataclass(frozen=True)
class Action:
    """One transition. ``guards`` and ``updates`` are over the pre-state handed to the builder."""

    name: str
    guards: Mapping[str, Bool]
    updates: Mapping[str, Callable[..., Expr]]
    params: tuple[Any, ...] = ()
    source: str = ""  # operator of the specification or of the engine that it stands for
    #: for each sum among the variables: the one element whose term changes
    actors: Mapping[str, Any] = field(default_factory=dict)

    def enabled(self, drop: Iterable[str] = ()) -> list[Bool]:
        gone = set(drop)
        missing = gone - set(self.guards)
        if missing:
            raise KeyError(f"{self.name} has no guard {sorted(missing)}")
        return [g for n, g in self.guards.items() if n not in gone]

    def post(self, s: State, skip: Iterable[str] = ()) -> State:
        """The state after the action; updates named in ``skip`` are left out."""
        gone = set(skip)
        missing = gone - set(self.updates)
        if missing:
            raise KeyError(f"{self.name} has no update {sorted(missing)}")
        return s.replace({n: u for n, u in self.updates.items() if n not in gone})


@dataclass(frozen=True)
class System:
    """A vocabulary, its initial states and its actions."""

    name: str
    vocabulary: Vocabulary
    init: Callable[[State], list[Bool]]
    actions: Callable[[State], list[Action]]
    note: str = ""
    hypotheses: Callable[[State], list[Bool]] = field(default=lambda s: [])


def implies(*parts: Bool) -> Bool:
    """``implies(a, b, c)`` is ``a and b => c``."""
    return z3.Implies(z3.And(*parts[:-1]), parts[-1])


def forall(*args: Any) -> Bool:
    """``forall(x, y, body)``."""
    return z3.ForAll(list(args[:-1]), args[-1])


def exists(*args: Any) -> Bool:
    """``exists(x, y, body)``."""
    return z3.Exists(list(args[:-1]), args[-1])


def ite(cond: Bool, then: Any, other: Any) -> Any:
    return z3.If(cond, then, other)


def zmax(a: Any, b: Any) -> Any:
    return z3.If(a >= b, a, b)


def zmin(a: Any, b: Any) -> Any:
    return z3.If(a <= b, a, b)


class Grounder:
    """Terms in a finite universe: each quantifier becomes a conjunction or disjunction over its elements.

    ``universe`` maps a sort to its elements. Quantifiers over other sorts raise KeyError.
    """

    def __init__(self, universe: Mapping[Any, Sequence[Expr]]) -> None:
        self.universe = universe
        self._done: dict[int, Expr] = {}
        self._keep: list[Expr] = []  # ids are reused once a term is gone

    def __call__(self, e: Expr) -> Expr:
        key = e.get_id()
        if key not in self._done:
            self._keep.append(e)
            self._done[key] = self._ground(e)
        return self._done[key]

    def _ground(self, e: Expr) -> Expr:
        if z3.is_quantifier(e):
            elements = [self.universe[e.var_sort(i)] for i in range(e.num_vars())]
            parts = [
                self(z3.substitute_vars(e.body(), *reversed(choice)))
                for choice in itertools.product(*elements)
            ]
            return z3.And(*parts) if e.is_forall() else z3.Or(*parts)
        if not e.num_args():
            return e
        args = [self(a) for a in e.children()]
        if all(a.eq(b) for a, b in zip(args, e.children(), strict=True)):
            return e
        if z3.is_and(e):
            return z3.And(*args)
        if z3.is_or(e):
            return z3.Or(*args)
        return e.decl()(*args)
