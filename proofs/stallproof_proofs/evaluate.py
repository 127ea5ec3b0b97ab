"""Evaluate Z3 terms on concrete states: the same relations, run instead of proved.

A term is compiled once into Python closures; a quantifier runs over a finite universe.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import z3

from stallproof_proofs.logic import Expr

#: values of the free symbols by name: a value for a constant, a mapping or callable for a function
Env = Mapping[str, Any]
Code = Callable[[Env, tuple[Any, ...]], Any]

_ARITH = {
    z3.Z3_OP_ADD: sum,
    z3.Z3_OP_MUL: lambda xs: __import__("math").prod(xs),
}
_COMPARE = {
    z3.Z3_OP_LE: operator.le,
    z3.Z3_OP_GE: operator.ge,
    z3.Z3_OP_LT: operator.lt,
    z3.Z3_OP_GT: operator.gt,
    z3.Z3_OP_EQ: operator.eq,
    z3.Z3_OP_IFF: operator.eq,
}


class Evaluator:
    """Compiles terms; ``universe`` maps names of sorts to their elements."""

    def __init__(self, universe: Mapping[str, Sequence[Any]]) -> None:
        self.universe = universe
        self._code: dict[int, Code] = {}
        self._keep: list[Expr] = []

    def __call__(self, term: Expr, env: Env) -> Any:
        return self.compile(term)(env, ())

    def compile(self, e: Expr) -> Code:
        key = e.get_id()
        if key not in self._code:
            self._keep.append(e)
            self._code[key] = self._compile(e)
        return self._code[key]

    def _compile(self, e: Expr) -> Code:
        if z3.is_var(e):
            index = z3.get_var_index(e)
            return lambda env, bound: bound[-1 - index]
        if z3.is_quantifier(e):
            return self._quantifier(e)
        kind = e.decl().kind()
        if z3.is_int_value(e):
            value = e.as_long()
            return lambda env, bound: value
        args = [self.compile(a) for a in e.children()]
        match kind:
            case z3.Z3_OP_TRUE:
                return lambda env, bound: True
            case z3.Z3_OP_FALSE:
                return lambda env, bound: False
            case z3.Z3_OP_AND:
                return lambda env, bound: all(a(env, bound) for a in args)
            case z3.Z3_OP_OR:
                return lambda env, bound: any(a(env, bound) for a in args)
            case z3.Z3_OP_NOT:
                return lambda env, bound: not args[0](env, bound)
            case z3.Z3_OP_IMPLIES:
                return lambda env, bound: not args[0](env, bound) or args[1](env, bound)
            case z3.Z3_OP_ITE:
                return lambda env, bound: args[1](env, bound) if args[0](env, bound) else args[2](env, bound)
            case z3.Z3_OP_DISTINCT:
                return lambda env, bound: len({a(env, bound) for a in args}) == len(args)
            case z3.Z3_OP_SUB:
                return lambda env, bound: args[0](env, bound) - sum(a(env, bound) for a in args[1:])
            case z3.Z3_OP_UMINUS:
                return lambda env, bound: -args[0](env, bound)
            case z3.Z3_OP_UNINTERPRETED:
                return self._symbol(e.decl().name(), args)
        if kind in _COMPARE:
            op, left, right = _COMPARE[kind], *args
            return lambda env, bound: op(left(env, bound), right(env, bound))
        if kind in _ARITH:
            fold = _ARITH[kind]
            return lambda env, bound: fold([a(env, bound) for a in args])
        raise NotImplementedError(f"{e.decl()} in {e}")

    def _symbol(self, name: str, args: Sequence[Code]) -> Code:
        if not args:
            return lambda env, bound: env[name]
        if len(args) == 1:
            only = args[0]
            return lambda env, bound: env[name][only(env, bound)]
        return lambda env, bound: env[name][tuple(a(env, bound) for a in args)]

    def _quantifier(self, e: Expr) -> Code:
        body = self.compile(e.body())
        domains = [self.universe[str(e.var_sort(i))] for i in range(e.num_vars())]
        want = not e.is_forall()

        def run(env: Env, bound: tuple[Any, ...], depth: int = 0) -> bool:
            if depth == len(domains):
                return bool(body(env, bound))
            for x in domains[depth]:
                if run(env, (*bound, x), depth + 1) is want:
                    return want
            return not want

        return run
