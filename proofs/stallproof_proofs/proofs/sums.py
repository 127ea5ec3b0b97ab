"""Lemmas about exact sums, each by induction over the prefix: a base case and a step.

``S(0) = 0`` and ``S(k + 1) = S(k) + w(k)``; likewise ``T`` of ``x``. They justify how sums move in the other
theories and which facts about sums they use. Any number of terms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import z3

from stallproof_proofs.logic import Bool, Expr
from stallproof_proofs.result import Assumption
from stallproof_proofs.theory import Lemma, Lemmas

I = z3.IntSort()  # noqa: E741 - the sort of integers
w, x, S, T = (z3.Function(n, I, I) for n in ("w", "x", "S", "T"))
a, b, c, d = (z3.Function(n, I, I) for n in ("a", "b", "c", "d"))
A, B, C, D = (z3.Function(n, I, I) for n in ("A", "B", "C", "D"))
k, i, j, m = z3.Ints("k i j m")


def prefix(name: str, total: Callable[[Expr], Expr], term: Callable[[Expr], Expr]) -> dict[str, Bool]:
    """The definition of a prefix sum, at 0 and at ``k``."""
    return {f"{name} starts": total(z3.IntVal(0)) == 0, f"{name} grows": total(k + 1) == total(k) + term(k)}


def member(at: Expr, upto: Expr, term: Callable[[Expr], Expr]) -> Expr:
    return z3.If(at < upto, term(at), 0)


def _induct(
    name: str, hyps: dict[str, Bool], claim: Callable[[Expr], Bool], twins: Sequence[str]
) -> list[Lemma]:
    start = {n: h for n, h in hyps.items() if not n.endswith("grows")}
    needed = {n: h for n, h in hyps.items() if not n.endswith("starts")}
    return [
        Lemma(
            f"{name}/base",
            {**start, "index": i >= 0},
            claim(z3.IntVal(0)),
            tuple(n for n in start if n.endswith("starts"))[:1],
        ),
        Lemma(
            f"{name}/step",
            {**needed, "index": z3.And(i >= 0, k >= 0), "induction": claim(k)},
            claim(k + 1),
            (*twins, "induction"),
        ),
    ]


def lemmas() -> list[Lemma]:
    sw, sx = prefix("S", S, w), prefix("T", T, x)
    others = z3.ForAll([j], z3.Implies(j != i, w(j) == x(j)))
    natural = z3.ForAll([m], w(m) >= 0)
    place = [a, b, c, d]
    one = z3.ForAll(
        [j], z3.And(*(z3.And(f(j) >= 0, f(j) <= 1) for f in place), a(j) + b(j) + c(j) + d(j) == 1)
    )
    four = {**prefix("A", A, a), **prefix("B", B, b), **prefix("C", C, c), **prefix("D", D, d)}
    return [
        *_induct(
            "point",
            {**sw, **sx, "others equal": others},
            lambda n: T(n) - S(n) == z3.If(i < n, x(i) - w(i), 0),
            ("others equal", "T grows"),
        ),
        *_induct(
            "member",
            {**sw, "natural": natural},
            lambda n: z3.And(S(n) >= 0, member(i, n, w) <= S(n)),
            ("natural", "S grows"),
        ),
        *_induct(
            "pair",
            {**sw, "natural": natural, "two": z3.And(j >= 0, i != j)},
            lambda n: z3.And(
                S(n) >= 0,
                member(i, n, w) <= S(n),
                member(j, n, w) <= S(n),
                member(i, n, w) + member(j, n, w) <= S(n),
            ),
            ("natural", "two"),
        ),
        *_induct(
            "positive",
            {**sw, "no other": z3.ForAll([j], z3.Implies(j != i, w(j) == 0))},
            lambda n: S(n) == member(i, n, w),
            ("no other", "S grows"),
        ),
        *_induct(
            "below",
            {**sw, **sx, "others below": z3.ForAll([j], z3.Implies(j != i, w(j) <= x(j)))},
            lambda n: S(n) - member(i, n, w) <= T(n) - member(i, n, x),
            ("others below", "T grows"),
        ),
        *_induct(
            "partition",
            {**four, "one place": one},
            lambda n: A(n) + B(n) + C(n) + D(n) == n,
            ("one place", "D grows"),
        ),
        *_induct(
            "bounded",
            {**sw, "each at least": z3.ForAll([j], w(j) >= 1)},
            lambda n: S(n) >= n,
            ("each at least", "S grows"),
        ),
    ]


theory = Lemmas(
    name="sums",
    title="Exact sums",
    theorem="A sum moves by the change of its one changed term (point); no term of naturals exceeds it "
    "(member); one above the term of i has another positive term (positive); termwise <= except at i "
    "gives <= of the rests (below); blocks that are each in exactly one of pool, owned, fenced, "
    "quarantined add up to the pool size (partition: Conservation from RefCount, NoLeak and "
    "NoDoubleFree); holders that hold at least one block each are no more than the blocks they hold "
    "(bounded: the bypass bound).",
    lemmas=lemmas,
    assumptions=(
        Assumption(
            "induction",
            "glue",
            "Induction over natural numbers: base case and step are the obligations.",
            ("sums",),
        ),
    ),
)
