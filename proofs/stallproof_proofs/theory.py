"""Obligations, and the two shapes of theory that produce them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import z3

from stallproof_proofs.logic import (
    Action,
    Bool,
    Changes,
    Expr,
    Grounder,
    State,
    System,
    after,
    changes,
    speaking,
)
from stallproof_proofs.result import Assumption, Kind, Status
from stallproof_proofs.sums import Sum, footprint

#: hypotheses by name, goal
Condition = tuple[Mapping[str, Bool], Bool]


class Variant(NamedTuple):
    """An obligation with one thing taken away: a guard, an update or a hypothesis.

    ``hypothesis`` is the name of the hypothesis that is left out; one that the proof does not use need
    not be tried.
    """

    label: str
    condition: Callable[[], Condition]
    hypothesis: str = ""


@dataclass(frozen=True)
class Obligation:
    """``hypotheses => goal`` for all states. ``condition`` builds it (late, so that listing is cheap).

    ``variants`` are tried in order until one is refuted: the first refuted one is what would make the
    obligation fail. An obligation with variants of which none is refuted says nothing and is reported
    as a failure.
    """

    name: str
    theory: str
    condition: Callable[[], Condition]
    kind: Kind = "obligation"
    expected: Status = "proved"
    variants: tuple[Variant, ...] = ()
    note: str = ""
    #: the condition in a small universe, without quantifiers; tried first where a counterexample is wanted
    small: Callable[[Condition], Condition] | None = None


@dataclass(frozen=True)
class Lemma:
    """One stand-alone obligation and the names of hypotheses that its twins leave out."""

    name: str
    hypotheses: Mapping[str, Bool]
    goal: Bool
    twins: tuple[str, ...] = ()  # names of hypotheses; each removal must be refuted
    note: str = ""


@dataclass(frozen=True)
class Lemmas:
    """A theory that is a list of stand-alone obligations.

    ``refuted`` are statements that are false and must stay so (a rule left out, a rank too small).
    """

    name: str
    title: str
    theorem: str
    lemmas: Callable[[], Sequence[Lemma]]
    refuted: Callable[[], Sequence[Lemma]] = field(default=list)
    assumptions: Sequence[Assumption] = ()

    def obligations(self) -> Iterator[Obligation]:
        for lem in self.lemmas():
            yield self._one(lem)
            if lem.hypotheses:
                yield Obligation(
                    f"{self.name}/{lem.name}/sanity",
                    self.name,
                    partial(_cond, lem.hypotheses, z3.BoolVal(False)),
                    "sanity",
                    "refuted",
                    note="the hypotheses have a model",
                )
            for gone in lem.twins:
                if gone not in lem.hypotheses:
                    raise KeyError(f"{lem.name} has no hypothesis {gone}")
                yield Obligation(
                    f"{self.name}/{lem.name}-{gone}",
                    self.name,
                    partial(_cond, lem.hypotheses, lem.goal, gone),
                    "twin",
                    "refuted",
                    note=f"without {gone}",
                )
        for lem in self.refuted():
            yield Obligation(
                f"{self.name}/{lem.name}",
                self.name,
                partial(_cond, lem.hypotheses, lem.goal),
                "twin",
                "refuted",
                note=lem.note,
            )

    def _one(self, lem: Lemma) -> Obligation:
        variants = tuple(
            Variant(f"-{n}", partial(_cond, lem.hypotheses, lem.goal, n), n)
            for n in (*lem.twins, *(h for h in lem.hypotheses if h not in lem.twins))
        )
        return Obligation(
            f"{self.name}/{lem.name}",
            self.name,
            partial(_cond, lem.hypotheses, lem.goal),
            variants=variants,
            note=lem.note,
        )


def _cond(hypotheses: Mapping[str, Bool], goal: Bool, gone: str = "") -> Condition:
    return without(hypotheses, gone), goal


def without(hypotheses: Mapping[str, Bool], name: str) -> dict[str, Bool]:
    return {n: h for n, h in hypotheses.items() if n != name}


@dataclass(frozen=True)
class Twin:
    """``action`` without ``guard`` (or with ``mutate`` applied) must break ``conjunct``.

    ``reachable``: the promise that then breaks in a run from the initial state, if the conjunct is only
    auxiliary; :mod:`stallproof_proofs.reach` finds the run.
    """

    action: str
    guard: str
    conjunct: str
    mutate: Callable[[State, Action], Action] | None = None
    note: str = ""


@dataclass(frozen=True)
class Inductive:
    """An inductive invariant: statements and auxiliary conjuncts, kept by every action.

    One obligation per (action, conjunct) that the action can touch; what it cannot touch does not read
    what the action changes; it is left out, and counted nowhere.
    """

    name: str
    title: str
    theorem: str
    system: System
    statements: Callable[[State], Mapping[str, Bool]]
    auxiliary: Callable[[State], Mapping[str, Bool]]
    twins: Sequence[Twin] = ()
    assumptions: Sequence[Assumption] = ()
    #: elements per sort in the models that are tried first when a counterexample is wanted (0: no limit)
    universe: int = 0
    #: exact sums among the variables; each action's footprint is an obligation
    sums: Sequence[Sum] = ()
    #: what follows from the invariant in every state; extra instances of lemmas may be used
    consequences: Callable[[State], Mapping[str, Bool]] | None = None
    action_statements: Callable[[State, State, Action], Mapping[str, Bool]] | None = None
    #: a theory whose system this one only adds ghosts to: its invariant may be used
    rests_on: Inductive | None = None

    def invariant(self, s: State) -> dict[str, Bool]:
        out = dict(self.statements(s))
        aux = self.auxiliary(s)
        clash = set(out) & set(aux)
        if clash:
            raise KeyError(f"{self.name}: stated and auxiliary: {sorted(clash)}")
        return {**out, **aux}

    def obligations(self) -> Iterator[Obligation]:
        small = self._small() if self.universe else None
        for o in self._obligations():
            yield replace(o, small=small)

    def _small(self) -> Callable[[Condition], Condition]:
        """Restrict to ``universe`` elements per sort: a counterexample there is a counterexample."""
        variables = self.system.vocabulary.vars.values()
        sorts = {d for x in variables for d in (*x.dom, x.rng) if d.kind() == z3.Z3_UNINTERPRETED_SORT}
        universe = {d: [z3.Const(f"{d}!{i}", d) for i in range(self.universe)] for d in sorts}
        grounder = Grounder(universe)
        known: dict[int, dict[str, Bool]] = {}  # hypotheses come again; the grounder keeps them alive
        inside: dict[int, tuple[str, Bool]] = {}
        below: Below = {}

        def limits(e: Expr) -> dict[str, Bool]:
            """Each subterm is one of the elements."""
            terms = list(_terms(e, sorts, below).values())
            for t in terms:
                if t.get_id() not in inside:
                    inside[t.get_id()] = (f"in universe {t}", z3.Or(*(t == c for c in universe[t.sort()])))
            return dict(inside[t.get_id()] for t in terms)

        def limits_again(e: Expr) -> dict[str, Bool]:
            if e.get_id() not in known:
                known[e.get_id()] = limits(e)
            return known[e.get_id()]

        def restrict(condition: Condition) -> Condition:
            hyps, goal = condition
            out = {n: grounder(h) for n, h in hyps.items()}
            goal = grounder(goal)
            for h in list(out.values()):
                out.update(limits_again(h))
            out.update(limits(goal))
            return out, goal

        return restrict

    def _obligations(self) -> Iterator[Obligation]:
        s = self.system.vocabulary.state()
        inv = self.invariant(s)
        base = {f"system {i}": h for i, h in enumerate(self.system.hypotheses(s))}
        start = {f"init {i}": h for i, h in enumerate(self.system.init(s))}
        for conj, goal in inv.items():
            variants = [Variant(f"-{n}", partial(_cond, {**base, **start}, goal, n), n) for n in start]
            variants.append(Variant("-Init", partial(_cond, base, goal)))
            yield Obligation(
                f"{self.name}/Init/{conj}",
                self.name,
                partial(_cond, {**base, **start}, goal),
                variants=tuple(variants),
            )
        if self.rests_on:
            base |= {f"{self.rests_on.name} {n}": g for n, g in self.rests_on.invariant(s).items()}
        known = {**base, **{f"known {n}": g for n, g in inv.items()}}
        yield Obligation(
            f"{self.name}/invariant/sanity",
            self.name,
            lambda: (known, z3.BoolVal(False)),
            "sanity",
            "refuted",
            note="the invariant has a model",
        )
        for name, goal in (self.consequences(s) if self.consequences else {}).items():
            order = [f"known {n}" for n in inv] + list(base)
            yield Obligation(
                f"{self.name}/invariant/{name}",
                self.name,
                partial(_cond, known, goal),
                variants=tuple(Variant(f"-{n}", partial(_cond, known, goal, n), n) for n in order),
            )
        actions = {a.name: a for a in self.system.actions(s)}
        goals: dict[str, dict[str, Bool]] = {}
        for act in actions.values():
            change = changes(s, act.post(s))
            goals[act.name] = self.goals(s, inv, act.post(s), act, change)
            hyps = {**known, **{f"guard {n}": g for n, g in act.guards.items()}}
            yield Obligation(
                f"{self.name}/{act.name}/sanity",
                self.name,
                partial(_cond, hyps, z3.BoolVal(False)),
                "sanity",
                "refuted",
                note="the action can be taken",
            )
            yield from self._footprints(s, hyps, act, change)
            yield from self._steps(s, hyps, inv, act, goals[act.name], change)
        for t in self.twins:
            yield self._twin(s, inv, known, actions[t.action], t, goals[t.action])

    def goals(
        self,
        s: State,
        inv: Mapping[str, Bool],
        post: State,
        act: Action,
        change: Changes | None = None,
    ) -> dict[str, Bool]:
        """What must hold in ``post``: the invariant (``inv`` is that of ``s``), and what is said of steps."""
        extra = self.action_statements(s, post, act) if self.action_statements else {}
        return {**after(changes(s, post) if change is None else change, inv), **extra}

    def _footprints(
        self, s: State, hyps: Mapping[str, Bool], act: Action, change: Changes
    ) -> Iterator[Obligation]:
        """A sum moves by the change of its actor's term: so no other term may change."""

        def broken(some: Mapping[str, Bool], t: Sum) -> Condition:
            return some, footprint(s, act, t, exempt=False, change=change)

        for t in self.sums:
            goal = footprint(s, act, t, change=change)
            if t.name in act.updates:
                wrong = Variant("-but the actor", partial(broken, hyps, t))
            elif z3.is_true(z3.simplify(goal.body())):
                continue
            else:
                wrong = Variant("any state", partial(broken, {}, t))
            yield Obligation(
                f"{self.name}/{act.name}/footprint {t.name}",
                self.name,
                partial(_cond, hyps, goal),
                variants=(wrong,),
                note="what justifies the derived update of the sum",
            )

    def _steps(
        self,
        s: State,
        hyps: Mapping[str, Bool],
        inv: Mapping[str, Bool],
        act: Action,
        goals: Mapping[str, Bool],
        change: Changes,
    ) -> Iterator[Obligation]:
        """One obligation per conjunct that ``act`` can touch."""
        cache: dict[tuple[str, str], dict[str, Bool]] = {}

        def changed(how: str, var: str) -> dict[str, Bool]:
            if (how, var) not in cache:
                post = act.post(s, [var])
                if how == "any":
                    post = post.replace({var: getattr(self.system.vocabulary.state("!any"), var)})
                cache[how, var] = self.goals(s, inv, post, act)
            return cache[how, var]

        def mutated(how: str, var: str, conj: str) -> Condition:
            return hyps, changed(how, var)[conj]

        touched = speaking(change, inv)
        for conj, goal in goals.items():
            if conj in inv and conj not in touched:
                continue
            order = [f"guard {g}" for g in act.guards] + [f"known {n}" for n in inv if n != conj]
            variants = [Variant(f"-{n}", partial(_cond, hyps, goal, n), n) for n in order]
            for how, label in (("skip", "-update"), ("any", "any value of")):
                variants += [Variant(f"{label} {u}", partial(mutated, how, u, conj)) for u in act.updates]
            before = f"known {conj}"
            variants.append(Variant("-before", partial(_cond, hyps, goal, before), before))
            yield Obligation(
                f"{self.name}/{act.name}/{conj}",
                self.name,
                partial(_cond, hyps, goal),
                variants=tuple(variants),
                note=act.source,
            )

    def _twin(
        self,
        s: State,
        inv: Mapping[str, Bool],
        known: Mapping[str, Bool],
        act: Action,
        t: Twin,
        goals: Mapping[str, Bool],
    ) -> Obligation:
        def cond() -> Condition:
            a = t.mutate(s, act) if t.mutate else act
            guards = a.guards if t.mutate else without(a.guards, t.guard)
            hyps = {**known, **{f"guard {n}": g for n, g in guards.items()}}
            return hyps, (self.goals(s, inv, a.post(s), a) if t.mutate else goals)[t.conjunct]

        if not t.mutate and t.guard not in act.guards:
            raise KeyError(f"{act.name} has no guard {t.guard}")
        return Obligation(
            f"{self.name}/{act.name}-{t.guard}/{t.conjunct}", self.name, cond, "twin", "refuted", note=t.note
        )


def substituted(act: Action, **updates: Callable[..., Expr]) -> Action:
    """``act`` with some updates replaced: the usual body of a ``Twin.mutate``."""
    return replace(act, updates={**act.updates, **updates})


Theory = Inductive | Lemmas

#: by number of a term: the term, and its subterms of some sorts
Below = dict[int, tuple[Expr, dict[int, Expr]]]


def _terms(e: Expr, sorts: set[Any], below: Below) -> dict[int, Expr]:
    """All subterms of the given sorts; ``below`` remembers those of each subterm."""
    key = e.get_id()
    if key not in below:
        parts = [p for p in (_terms(c, sorts, below) for c in e.children()) if p]
        here = e.sort() in sorts
        out = parts[0] if len(parts) == 1 and not here else {k: x for p in parts for k, x in p.items()}
        if here:
            out[key] = e
        below[key] = e, out
    return below[key][1]
