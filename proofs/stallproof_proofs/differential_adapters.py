"""The relations of theory ``adapters``, run beside the admissions of the model: guards, post-states.

The operators of the model that the theory is about (:data:`WATCHED`) are called by its own admission loop;
each such call is noted, with what the loop knew before and after it, and made once more with the Z3 relations
on that concrete state. Asking ``AdapterShut`` shows whether a request may be admitted: the relations must say
the same, yes or no. What the relations leave open on purpose: who is taken to be the first that waits. How
the running requests become fewer (ends, preemptions, sessions that idle) is compared on whole transitions.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stallproof_model import sched
from stallproof_model.state import Constants, State, at, constants
from stallproof_proofs.evaluate import Evaluator
from stallproof_proofs.logic import Action
from stallproof_proofs.systems import adapters as m

#: operators of the model whose calls are noted
WATCHED = ("WaitsForSlot", "AdapterShut", "CountOvertaken", "StartLoad", "Admit")


class Call(NamedTuple):
    """One call of a watched operator: its record, its request (0: none), and what it returned."""

    name: str
    before: Any
    request: int
    after: Any


@dataclass
class Report:
    """Counts of a run; ``differences`` says in words where relations and model disagree (first 20)."""

    calls: int = 0
    asked: Counter[bool] = field(default_factory=Counter)  # may r be admitted, as the model says
    by_action: Counter[str] = field(default_factory=Counter)
    found: int = 0
    differences: list[str] = field(default_factory=list)

    def differ(self, text: str) -> None:
        self.found += 1
        if len(self.differences) < 20:
            self.differences.append(text)


@contextmanager
def noted() -> Iterator[list[Call]]:
    """The calls of the watched operators, in order, while this lasts."""
    calls: list[Call] = []
    real = {name: getattr(sched, name) for name in WATCHED}

    def wrap(name: str) -> Callable[..., Any]:
        def call(c: Constants, x: Any, *rest: Any) -> Any:
            out = real[name](c, x, *rest)
            calls.append(Call(name, x, rest[0] if rest else 0, out))
            return out

        return call

    try:
        for name in WATCHED:
            setattr(sched, name, wrap(name))
        yield calls
    finally:
        for name, f in real.items():
            setattr(sched, name, f)


class Differ:
    """Compares the model with the relations on one configuration; ``mutate`` makes a relation wrong."""

    def __init__(
        self, c: Constants, report: Report, mutate: Callable[[Action], Action] | None = None
    ) -> None:
        self.c, self.report = c, report
        self.requests = range(1, c.N + 1)
        self.adapters = sorted({at(c.Adapter, r) for r in self.requests} | {0})
        self.ev = Evaluator({"Request": self.requests, "Adapter": self.adapters})
        change = mutate or (lambda a: a)
        self.actions = {a.name: change(a) for a in m.actions(m.vocabulary.state())}

    def env(self, S: State, hd: int) -> dict[str, Any]:
        """What the theory knows of a state of the model; ``hd``: the first that lacks an adapter now."""
        running = [at(self.c.Adapter, r) for r in S.run]
        count = {k: running.count(k) if k else 0 for k in self.adapters}
        return {
            "MaxLoras": self.c.MaxLoras,
            "AdapterBound": self.c.AdapterBound,
            "has": {r: at(self.c.Adapter, r) != 0 for r in self.requests},
            "Adapter": {r: at(self.c.Adapter, r) for r in self.requests},
            "ord": {r: S.ord.index(r) for r in self.requests},
            "run": {r: r in S.run for r in self.requests},
            "had": S.oh != 0,
            "hashd": hd != 0,
            "hd": S.oh or 1,
            "ot": S.ot,
            "past": S.ot,
            "Nrun": count,
            "Nada": sum(n > 0 for n in count.values()),
            "holds": False,
            "r0": 1,
            "h0": 1,
        }

    def enabled(self, name: str, env: dict[str, Any]) -> bool:
        return all(self.ev(g, env) for g in self.actions[name].guards.values())

    def apply(self, name: str, env: dict[str, Any]) -> dict[str, Any]:
        out = dict(env)
        for var, update in self.actions[name].updates.items():
            index = {(m.Req,): (m.q, self.requests), (m.Ada,): (m.a, self.adapters)}
            dom = m.vocabulary.vars[var].dom
            if dom:
                symbol, values = index[dom]
                code = self.ev.compile(update(symbol))
                out[var] = {x: code({**env, symbol.decl().name(): x}, ()) for x in values}
            else:
                out[var] = self.ev.compile(update())(env, ())
        return out

    def same(self, what: str, env: dict[str, Any], want: dict[str, Any]) -> None:
        seen = [v for v in m.vocabulary.vars if v != "past" and (v != "hd" or want["had"])]
        wrong = {v: (env[v], want[v]) for v in seen if env[v] != want[v]}
        if wrong:
            self.report.differ(f"{what}: relations and model differ in {wrong}")

    def step(self, name: str, here: dict[str, Any], want: dict[str, Any], what: str) -> None:
        """``name`` is enabled and leads to ``want``."""
        self.report.by_action[name] += 1
        if not self.enabled(name, here):
            self.report.differ(f"{name} is not enabled: {what}")
        else:
            self.same(f"{name}, {what}", self.apply(name, here), want)

    # -------------------------------------------------------------- one scheduling call

    def call(self, S: State, NY: Sequence[int]) -> None:
        with noted() as calls:
            sched.SchedX(self.c, S, NY)
        self.report.calls += 1
        for i, (name, x, r, after) in enumerate(calls):
            where = f"{name}({r}) in {x.S}"
            here = {**self.env(x.S, x.hd), "r0": r or 1, "holds": bool(r and at(x.S.own, r))}
            if name == "WaitsForSlot":
                for before in {here["hashd"], here["had"]}:  # the last call may have left either
                    self.waits({**here, "hashd": before}, after, where)
            elif name == "AdapterShut":
                self.report.asked[not after] += 1
                if self.enabled("Admit", here) is after or self.enabled("StartLoad", here) is after:
                    self.report.differ(f"{where}: the model says {after}")
            elif name == "CountOvertaken":  # what is counted, and what is then admitted, is one step there
                follows = next(k for k in calls[i:] if k.name in ("Admit", "StartLoad"))
                want = self.env(follows.after.S, after.hd)
                self.step(follows.name, here, want, where)

    def waits(self, here: dict[str, Any], after: Any, where: str) -> None:
        h = after.hd
        lack = [name for name in ("Another", "Again") if self.enabled(name, {**here, "h0": h or 1})]
        want = self.env(after.S, h)
        if h == 0:
            if any(self.enabled("Another", {**here, "h0": w}) for w in self.waiting(after.S)):
                self.report.differ(f"{where}: somebody lacks an adapter, and the model says nobody")
            self.step("Nobody", here, want, where)
        elif len(lack) != 1:
            self.report.differ(f"{where}: {h} is the first that waits, enabled {lack}")
        else:
            self.step(lack[0], {**here, "h0": h}, want, where)

    def waiting(self, S: State) -> list[int]:
        return [r for r in S.wq if at(S.st, r) in ("waiting", "preempted", "held")]

    # -------------------------------------------------------------- how runners become fewer

    def leave(self, name: str, S: State, T: State) -> None:
        """From ``S`` to ``T`` nobody is admitted."""
        env = self.env(S, 0)
        for r in sorted(set(S.run) - set(T.run)):
            self.report.by_action["Leave"] += 1
            if not self.enabled("Leave", {**env, "r0": r}):
                self.report.differ(f"Leave({r}) is not enabled in {S}")
            env = self.apply("Leave", {**env, "r0": r})
        want = {**self.env(T, 0), "ord": env["ord"]}
        self.same(f"{name} in {S}", env, want)

    def compare(self, S: State) -> None:
        """Every action of the model in ``S``."""
        c = self.c
        for name, _, T in sched.Next(c, S):
            if name != "Schedule":
                self.leave(name, S, T)
        if len(S.infl) < c.D:
            for NY in sched.subsets(sched.CanDefer(c, S)):
                self.call(S, NY)
                if not S.paused:
                    x = sched.RunLoop(c, sched.X0(c, sched.RejectInfeasible(c, S, self.requests)), 0)
                    self.leave("RunLoop", S, x.S)


def random_constants(rng: random.Random) -> Constants:
    """Requests that need adapters, loads, newcomers that come again, sessions, early stops."""
    n = rng.choice([3, 4])
    prompt = [rng.randint(1, 2) for _ in range(n)]
    values: dict[str, Any] = {
        "N": n,
        "B": rng.randint(4, 8),
        "D": rng.choice([1, 2]),
        "Prompt": prompt,
        "Total": [p + rng.randint(1, 2) for p in prompt],
        "Ext": [rng.choice([0, 0, 1]) for _ in range(n)],
        "Adapter": [rng.choice([0, 1, 1, 2, 3]) for _ in range(n)],
        "MaxLoras": rng.choice([1, 1, 2]),
        "AdapterBound": rng.choice([0, 1, 2]),
        "Recycle": [[], [n], [n - 1, n]][rng.randrange(3)],
        "Sessions": [[], [], [1]][rng.randrange(3)],
        "Eos": rng.random() < 0.3,
        "K": rng.choice([0, 0, 1]),
    }
    return constants(**values)


def states(c: Constants, limit: int) -> list[State]:
    """Reachable states, breadth-first."""
    first = sched.Init(c)
    seen, todo = {first}, [first]
    for S in todo:
        for _, _, T in sched.Next(c, S):
            if T not in seen and len(seen) < limit:
                seen.add(T)
                todo.append(T)
    return todo


def run(
    seed: int = 0,
    calls: int = 1_000,
    mutate: Callable[[Action], Action] | None = None,
    stop_at: int | None = None,
) -> Report:
    """Compare at least ``calls`` scheduling calls of random configurations and random reachable states."""
    rng, report = random.Random(seed), Report()
    while report.calls < calls and (stop_at is None or report.found < stop_at):
        c = random_constants(rng)
        sample = states(c, 500)
        differ = Differ(c, report, mutate)
        waits = [S for S in sample if S.oh]
        for S in rng.sample(sample, min(10, len(sample))) + rng.sample(waits, min(20, len(waits))):
            differ.compare(S)
    return report
