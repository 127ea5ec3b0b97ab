"""What makes the proofs quick changes none of them: substituted goals, kept solvers, work in processes."""

from __future__ import annotations

import pytest
import z3

import stallproof_proofs
from stallproof.errors import BadInput
from stallproof_proofs import runner
from stallproof_proofs.asking import Asker
from stallproof_proofs.logic import State, Var, Vocabulary, after, changes, speaking
from stallproof_proofs.registry import theories
from stallproof_proofs.theory import Inductive

from .test_proofs import LARGE

S = z3.DeclareSort("S")
a, b, x, y = z3.Consts("a b x y", S)
g = z3.Function("g", S, S, z3.BoolSort())
vocabulary = Vocabulary(Var("f", (S, S), z3.BoolSort()), Var("n", (), z3.IntSort()))
p = z3.Bool("p")
n = z3.Int("n")


@pytest.mark.parametrize(
    "theory",
    [
        pytest.param(t, id=t.name, marks=[pytest.mark.slow] if t.name in LARGE else [])
        for t in theories()
        if isinstance(t, Inductive)
    ],
)
def test_a_substituted_goal_is_the_goal_built_over_the_state_after(theory: Inductive) -> None:
    s = theory.system.vocabulary.state()
    inv = theory.invariant(s)
    alike = other = 0
    for act in theory.system.actions(s):
        post = act.post(s)
        built, got = theory.invariant(post), after(changes(s, post), inv)
        assert list(built) == list(got)
        for name, goal in built.items():
            if goal.eq(got[name]):
                alike += 1
                continue
            other += 1
            assert runner.query(({}, goal == got[name]))[0] == "proved", f"{act.name} {name}"
    assert alike >= 50 * other


def test_definitions_with_binders_and_swapped_arguments() -> None:
    def new(u: z3.ExprRef, w: z3.ExprRef) -> z3.BoolRef:
        return z3.Exists([a], z3.And(g(a, u), z3.Not(g(w, a))))

    def says(s: State) -> z3.BoolRef:
        return z3.ForAll([x, y], z3.Implies(s.f(x, y), z3.Exists([b], z3.And(s.f(b, x), s.n() > 0))))

    s = vocabulary.state()
    post = s.replace({"f": new, "n": lambda: s.n() + 1})
    change = changes(s, post)
    assert after(change, {"": says(s)})[""].eq(says(post))
    assert speaking(change, {"it": says(s), "not": z3.ForAll([x], g(x, x))}) == {"it"}
    assert not changes(s, s.replace({"f": lambda u, w: s.f(u, w)})), "defined as it was"
    no = s.replace({"f": lambda u, w: z3.If(z3.BoolVal(False), g(u, w), s.f(u, w))})
    assert speaking(changes(s, no), {"it": says(s)}), "an update without effect is one all the same"


def test_a_kept_solver_forgets_what_it_was_asked() -> None:
    asker = Asker()
    for ask in (asker.ask, asker.ask_on_base):
        shared = {"n": n > 1}
        for _ in range(3):
            assert ask({**shared, "more": n < 1}, z3.BoolVal(False), 1000, _answer) == "unsat"
            assert ask({**shared, "less": n < 9}, z3.BoolVal(False), 1000, _answer) == "sat"
            assert ask({}, n > 1, 1000, _answer) == "sat"
            assert ask({"n": n > 5}, n > 1, 1000, _answer) == "unsat"
            assert ask({"n": n > 0}, n > 1, 1000, _answer) == "sat", "the same name says something else"


def test_what_a_kept_solver_does_not_know_a_new_one_is_asked() -> None:
    asker = Asker()
    asker.ask({}, p, 1000, _answer)
    (kept,) = asker._kept.values()
    kept.set("rlimit", 1)
    hyps = {"a": z3.ForAll([x, y], z3.Implies(g(x, y), g(y, x))), "b": g(a, b)}
    assert asker.ask(hyps, g(b, a), 1000, _answer) == "unsat"


def _answer(_: z3.Solver, answer: z3.CheckSatResult) -> str:
    return str(answer)


def test_two_processes_find_what_one_does() -> None:
    some = ("refcount", "loops", "sums")
    seen: list[tuple[int, int]] = []
    two = stallproof_proofs.run(lambda done, total, r: seen.append((done, total)), some, jobs=2)
    one = stallproof_proofs.run(only=some)
    assert not runner._built.keys() - set(some)
    assert [(r.name, r.kind, r.status, r.fails_if) for r in one] == [
        (r.name, r.kind, r.status, r.fails_if) for r in two
    ]
    assert seen[-1] == (len(one), len(one))
    assert [d for d, _ in seen] == list(range(1, len(one) + 1))


def test_a_proof_that_gave_no_result_does_not_look_like_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def lossy(function, cases, where, *, on_tick, **_):  # type: ignore[no-untyped-def]
        for i, case in enumerate(cases):
            ticks: list[tuple[object, ...]] = []
            function(case, lambda *v, kept=ticks: kept.append(v))
            for values in ticks[:-1]:
                on_tick(i, *values)

    monkeypatch.setattr(runner.spread, "run", lossy)
    with pytest.raises(BadInput, match="refcount"):
        stallproof_proofs.run(only=("refcount",))
