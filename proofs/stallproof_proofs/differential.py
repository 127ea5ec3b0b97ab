"""The relations of theory ``order``, run on states of the model: guards and post-states must agree.

For each sampled reachable state of the model and each of its actions the same step is made with the Z3
relations, evaluated on that concrete state. A scheduling call is a path of micro-steps: at each of them the
guards of *all* micro-steps are evaluated for all requests (both polarities), and exactly one may be enabled,
after the choices that the relations leave open on purpose are made as the model makes them:

* which answer the connector gives, and which victim a commit takes first,
* whether patience, while it lasts, waits, and for which steps (the theorems hold for every choice),
* when a started load completes (the relations have no gate: they allow it earlier).

The state after the path must be the state after the model's call. Sums are compared with the sums themselves.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from stallproof_model import sched
from stallproof_model.state import Constants, State, at
from stallproof_proofs.evaluate import Evaluator
from stallproof_proofs.logic import Action
from stallproof_proofs.reach import follow, random_constants
from stallproof_proofs.systems import order as m
from stallproof_proofs.systems import order_steps as steps

CODES = {
    "finished": m.FINISHED,
    "zombie": m.ZOMBIE,
    "held": m.HELD,
    "received": m.RECEIVED,
    "loading": m.LOADING,
    "waiting": m.WAITING,
    "preempted": m.WAITING,
    "running": m.RUNNING,
    "new": m.NEW,
    "blocked": m.BLOCKED,
    "idle": m.IDLING,
}
NAMES = {code: name for name, code in CODES.items() if name != "preempted"}
PER_REQUEST = ("st", "own", "comp", "tok", "lim", "ph", "pf", "noload", "late", "ny", "fl", "quar")
ENGINE = ("free", "nfl", "pat", "pw", "paused", "pz")
CALL = {
    m.HEAD: ("Promote", "Reject", "HeadEnd", "Paused"),
    m.RUNLOOP: (
        "Serve",
        "Skip",
        "RunEvict",
        "Preempt",
        "SelfPreempt",
        "Spare",
        "Wait",
        "LoopEnd",
        "Dispatch",
    ),
    m.ADMLOOP: (
        "NotYet",
        "GiveUp",
        "StartLoad",
        "LoadEvict",
        "Admit",
        "AdmEvict",
        "Refuse",
        "LoneLoad",
        "Pass",
        "Dispatch",
    ),
    m.CLOSED: ("Dispatch",),
}
#: actions between calls that have the same name in the model
DELIVER = ("Deliver", "DeliverTurn", "DeliverLast", "DeliverLate")
BETWEEN = ("XferDone", "XferFail", "Expire", "DeferralOver", "LateDone", "XferFreed", "Arrive", "Input")


@dataclass
class Report:
    """Counts of a differential run; ``differences`` says in words where the two disagree (first 20)."""

    transitions: int = 0
    micro: int = 0
    enabled: int = 0
    disabled: int = 0
    by_action: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)
    #: "action.guard" that was the only false guard of its action somewhere: removing it shows there
    decisive: set[str] = field(default_factory=set)
    found: int = 0

    def differ(self, text: str) -> None:
        self.found += 1
        if len(self.differences) < 20:
            self.differences.append(text)


class Relations:
    """The actions of theory ``order``, runnable on concrete states of a model with ``n`` requests.

    ``mutate`` changes an action before it is used: a relation that is wrong must show differences.
    """

    def __init__(self, n: int, mutate: Callable[[Action], Action] | None = None) -> None:
        self.s = m.vocabulary.state()
        self.requests = range(1, n + 1)
        self.evaluate = Evaluator({"Request": self.requests})
        change = mutate or (lambda a: a)
        self.actions = {a.name: change(a) for a in steps.every_action(self.s)}
        self.terms: dict[str, dict[str, tuple[Any, Any]]] = {}
        q = m.q
        for name, a in self.actions.items():
            self.terms[name] = {}
            for var, update in a.updates.items():
                indexed = bool(m.vocabulary.vars[var].dom)
                self.terms[name][var] = (indexed, update(q) if indexed else update())

    def enabled(self, name: str, env: dict[str, Any], decisive: set[str] | None = None) -> bool:
        """Whether all guards hold; one that alone does not is added to ``decisive``."""
        first = ""
        for guard, g in self.actions[name].guards.items():
            if not self.evaluate(g, env):
                if first or decisive is None:
                    return False
                first = guard
        if first and decisive is not None:
            decisive.add(f"{name}.{first}")
        return not first

    def apply(self, name: str, env: dict[str, Any]) -> dict[str, Any]:
        out = dict(env)
        for var, (indexed, term) in self.terms[name].items():
            code = self.evaluate.compile(term)
            if indexed:
                out[var] = {r: code({**env, "q": r}, ()) for r in self.requests}
            else:
                out[var] = code(env, ())
        return out


def environment(c: Constants, S: State, pf: Sequence[bool]) -> dict[str, Any]:
    """The model's state as values of the relations' variables, with exact sums."""
    reqs = range(1, c.N + 1)
    env: dict[str, Any] = {
        "B": c.B,
        "Look": c.Look,
        "ChunkCap": c.ChunkCap,
        "P": c.P,
        "MaxSeqs": c.MaxSeqs,
        "RunEvict": c.RunEvict,
        "CountParked": c.CountParked,
        "KeptBack": c.KeptBack,
        "DeferralDeadline": c.DeferralDeadline == "kept",
        "Dropped": c.StaleOutput == "dropped",
        "SpareInFlight": c.SpareInFlight,
        "Grammar": {r: r in c.Grammar for r in reqs},
        "paused": S.paused,
        "pz": S.pz,
        "patient": False,
        "Budget": c.Budget,
        "flag": False,
        "n0": 0,
        "n1": 0,
        "limbo": 0,
        "limboc": 0,
        "r0": 1,
        "v0": 1,
        "ord": {r: S.ord.index(r) for r in reqs},
        "Total": {r: at(c.Total, r) for r in reqs},
        "Ext": {r: at(c.Ext, r) for r in reqs},
        "lim": {r: sched.Limit(c, S, r) for r in reqs},
        "st": {r: CODES[at(S.st, r)] for r in reqs},
        "ph": {r: sched.Placeholders(S, r) for r in reqs},
        "pf": {r: pf[r - 1] for r in reqs},
        "free": S.free,
        "nfl": len(S.infl),
        "pat": S.pat,
        "pw": S.pw,
        "mode": m.IDLE,
        "ptr": 0,
        "budget": 0,
        "hast": False,
        "tgt": 1,
        "dw": 1,
        "cw": 1,
        "cutw": 1,
        "nfls": 0,
    }
    env["late"] = {r: at(S.due, r) == "over" for r in reqs}
    for name in ("own", "comp", "tok", "noload", "ny", "fl", "quar"):
        env[name] = {r: at(getattr(S, name), r) for r in reqs}
    if c.NotYetForever:  # the relations do not count it: its deadline bounds it
        env["ny"] = dict.fromkeys(reqs, 0)
    for name in ("cut", "handing", "owes", "hasd", "hasc", "moved", "acted", "asked", "all", "pre"):
        env[name] = False
    for name in ("seen", "refused", "given", "heard"):
        env[name] = dict.fromkeys(reqs, False)
    for name in ("c1s", "c2s", "c3s", "c4s", "sts", "owns", "phs"):
        env[name] = dict.fromkeys(reqs, 0)
    return env


class Differ:
    """Compares the model with the relations on one configuration."""

    def __init__(
        self, c: Constants, report: Report, mutate: Callable[[Action], Action] | None = None
    ) -> None:
        self.c, self.report, self.rel = c, report, Relations(c.N, mutate)
        # one request more: under FCFS the next turn of a session is a new one
        self.more = Relations(c.N + 1, mutate) if c.Fcfs and c.Sessions else None
        s, ev = self.rel.s, self.rel.evaluate
        self.sums = [
            (t.name, bool(t.index), ev.compile(t.term(s, m.q, *([m.u] if t.index else [])))) for t in m.SUMS
        ]

    def start(self, S: State, pf: Sequence[bool]) -> dict[str, Any]:
        env = environment(self.c, S, pf)
        return {**env, **self.totals(env)}

    def totals(self, env: dict[str, Any]) -> dict[str, Any]:
        reqs = self.rel.requests
        out: dict[str, Any] = {}
        for name, indexed, term in self.sums:
            at_u = {
                u: sum(term({**env, "q": q, "u": u}, ()) for q in reqs) for u in (reqs if indexed else (1,))
            }
            out[name] = at_u if indexed else at_u[1]
        return out

    # -------------------------------------------------------------- one scheduling call

    def options(self, env: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        """Every enabled micro-step with its choices. Guards that are false are counted too."""
        out = []
        here_now = CALL[env["mode"]]
        for name in self.rel.actions:
            params = {p.decl().name() for p in self.rel.actions[name].params if hasattr(p, "decl")}
            for r in self.rel.requests if "r0" in params or "v0" in params else (1,):
                for v in self.rel.requests if "v0" in params else (1,):
                    here = {**env, "r0": r, "v0": v, "flag": not self.c.Reload, "n1": at(self.c.Total, r)}
                    rest = env["tok"][r] + env["ph"][r] - env["comp"][r]
                    right = min(rest, env["budget"], self.c.ChunkCap)
                    for n in (right, right - 1, right + 1) if "n0" in params else (0,):
                        here = {**here, "n0": n}
                        if not self.rel.enabled(name, here, self.report.decisive):
                            self.report.disabled += 1
                        elif name not in here_now:
                            self.report.differ(f"{name}({r}) is enabled in mode {env['mode']}")
                        else:
                            self.report.enabled += 1
                            out.append((name, here))
        return out

    def choose(
        self, options: list[tuple[str, dict[str, Any]]], S: State, NY: Sequence[int]
    ) -> list[tuple[str, dict[str, Any]]]:
        """Make the choices that the relations leave open, as the model makes them."""
        names = {n for n, _ in options}
        if names & {"Promote", "Reject"} and "HeadEnd" not in names:
            return options[:1]  # any order: the steps commute
        if names & {"NotYet", "GiveUp"}:
            r = next(e["r0"] for n, e in options if n in ("NotYet", "GiveUp"))
            options = [(n, e) for n, e in options if (n in ("NotYet", "GiveUp")) == (r in NY)]
        evict = [(n, e) for n, e in options if n in ("RunEvict", "AdmEvict", "LoadEvict")]
        if evict:
            here = evict[0][1]
            now = S._replace(
                comp=tuple(here["comp"].values()),
                own=tuple(here["own"].values()),
                st=tuple(NAMES[x] for x in here["st"].values()),
            )
            may = set(sched.CommitVictims(self.c, now, here["r0"], evict[0][0] == "LoadEvict"))
            if {e["v0"] for _, e in evict} != may:
                return []
            picked = sched.PickVictim(self.c, now, [e["v0"] for _, e in evict])
            return [o for o in evict if o[1]["v0"] == picked]
        if "Spare" in names:  # the relations may be patient first
            options = [(n, e) for n, e in options if n != "Wait"]
        elif "Wait" in names:  # or preempt at once, and wait for steps that yield no token
            options = [(n, e) for n, e in options if (n == "Wait") == sched.CanFree(S)]
        # a call may be over for every candidate at once
        return options[:1] if names == {"Dispatch"} else options

    def call(self, S: State, pf: Sequence[bool], NY: Sequence[int]) -> None:
        env = self.start(S, pf)
        env = self.rel.apply("Begin", {**env})
        for _ in range(200):
            if env["mode"] == m.IDLE:
                break
            options = self.choose(self.options(env), S, NY)
            if len(options) != 1:
                self.report.differ(f"mode {env['mode']}: enabled {[(n, e['r0']) for n, e in options]} in {S}")
                return
            name, here = options[0]
            env = self.rel.apply(name, here)
            self.report.micro += 1
            self.report.by_action[name] += 1
        T = sched.SchedR(self.c, S, NY)
        self.same("Schedule", env, T, None)

    # -------------------------------------------------------------- between calls

    def between(self, S: State, pf: Sequence[bool]) -> None:
        base = self.start(S, pf)
        for name in ("Pause", "Resume"):
            found = list(getattr(sched, name)(self.c, S))
            if self.rel.enabled(name, base, self.report.decisive) != bool(found):
                self.report.differ(f"{name}, model {bool(found)} in {S}")
            elif found:
                self.step(name, base, found[0])
        for name in self.rel.actions:  # no step of a call happens between calls, and the other way round
            for r in self.rel.requests:
                self.rel.enabled(name, {**base, "r0": r}, self.report.decisive)
        for r in self.rel.requests:
            env = {**base, "r0": r, "flag": False, "n1": at(self.c.Total, r)}
            for action in BETWEEN:
                if action == "Input":
                    self.rel.enabled("Input", {**env, "n0": -1}, self.report.decisive)
                    if self.more is not None:
                        continue
                model = list(getattr(sched, action)(self.c, S, r))
                zombie = action == "Expire" and at(S.st, r) == "zombie"
                name = "ExpireZombie" if zombie else action
                ours = self.rel.enabled(name, env, self.report.decisive)
                self.report.enabled += ours
                self.report.disabled += not ours
                gated = name in ("XferDone", "XferFail", "Expire") and at(S.gate, r) > 0
                off = action == "Expire" and not self.c.Deadlines
                off = off or action == "DeferralOver"  # the relations do not ask whether it was put off
                # nor whether the turn has to wait (TurnsYield, in theory starvation)
                off = off or (action == "Input" and 0 != at(S.passed, r) == sched.Older(S, r))
                if bool(model) != ours and not ((gated or off) and ours):
                    self.report.differ(f"{name}({r}) enabled {ours}, model {bool(model)} in {S}")
                elif model and ours:
                    self.step(name, env, model[0])
            for T in sched.GrammarReady(self.c, S, r):
                name = "GrammarFails" if at(T.st, r) == "finished" else "GrammarReady"
                if self.rel.enabled(name, env, self.report.decisive):
                    self.step(name, env, T)
                else:
                    self.report.differ(f"{name}({r}) is not enabled in {S}")
            if self.more is not None:
                for T in sched.Input(self.c, S, r):
                    self.next_turn(self.more, base, r, T)
            for T in sched.Abort(self.c, S, r):
                name = "AbortLoading" if at(T.st, r) == "zombie" else "Abort"
                if self.rel.enabled(name, env, self.report.decisive):
                    self.step(name, env, T)
                else:
                    self.report.differ(f"{name}({r}) is not enabled in {S}")

    def step(self, name: str, env: dict[str, Any], T: State) -> None:
        self.report.micro += 1
        self.report.by_action[name] += 1
        self.same(name, self.rel.apply(name, env), T, None)

    def next_turn(self, rel: Relations, base: dict[str, Any], r: int, T: State) -> None:
        """``Input`` of ``r`` under FCFS: request N + 1 of the relations is the ``r`` of the model then."""
        new = self.c.N + 1
        env = {
            k: {**v, new: v.get(r, 0)} if isinstance(v, dict) and k not in {t.name for t in m.SUMS} else v
            for k, v in base.items()
        }
        for name, value in (("st", m.NEW), ("own", 0), ("comp", 0), ("quar", 0), ("ord", new)):
            env[name][new] = value
        env["lim"][new] = env["Total"][new]
        for t in m.SUMS:  # what a request that is new adds to each sum is nothing
            if t.index:
                env[t.name] = {**base[t.name], new: 0}
        for name, actor in (("InputAway", r), ("InputHere", new)):
            here = {**env, "r0": actor}
            if not rel.enabled(name, here, self.report.decisive):
                self.report.differ(f"{name}({actor}) is not enabled before {T}")
                return
            env = rel.apply(name, here)
            self.report.micro += 1
            self.report.by_action[name] += 1
        self.report.transitions += 1
        want = environment(self.c, T, [env["pf"][q] for q in self.rel.requests])
        # a load that the turn before left in quarantine stays with it
        got = {v: {**env[v], r: env[v][r if v == "quar" else new]} for v in PER_REQUEST}
        wrong = [v for v in PER_REQUEST if {q: got[v][q] for q in self.rel.requests} != want[v]]
        wrong += [v for v in ENGINE if env[v] != want[v]]
        wrong += [t.name for t in m.SUMS if not t.index and env[t.name] != self.totals(want)[t.name]]
        if env["st"][r] != m.FINISHED or env["own"][r] or env["handing"] or wrong:
            self.report.differ(f"Input({r}), the next turn a new request: {wrong} in {T}")

    def process(self, S: State, pf: Sequence[bool], E: Sequence[int], T: State) -> None:
        env = self.start(S, pf)
        for r in sorted(S.infl[0].out):
            here = {**env, "r0": r, "flag": r in E}
            can = [n for n in DELIVER if self.rel.enabled(n, here, self.report.decisive)]
            self.report.enabled += len(can)
            self.report.disabled += len(DELIVER) - len(can)
            if len(can) != 1:
                self.report.differ(f"delivery to {r}: enabled {can} in {S}")
                return
            env = self.rel.apply(can[0], here)
            self.report.micro += 1
            self.report.by_action[can[0]] += 1
        if not self.rel.enabled("Pop", env, self.report.decisive):
            self.report.differ(f"Pop is not enabled after {S}")
            return
        env = self.rel.apply("Pop", env)
        self.report.by_action["Pop"] += 1
        self.same("Process", env, T, None)

    # -------------------------------------------------------------- comparison

    def same(self, what: str, env: dict[str, Any], T: State, pf: Sequence[bool] | None) -> None:
        self.report.transitions += 1
        want = environment(self.c, T, [env["pf"][r] for r in self.rel.requests])
        over = [r for r in self.rel.requests if want["st"][r] == m.FINISHED]
        mine = {**env, "late": {**env["late"], **dict.fromkeys(over, False)}}  # of no account any more
        wrong = [v for v in (*PER_REQUEST, *ENGINE) if mine[v] != want[v]]
        totals = self.totals(env)
        wrong += [name for name in totals if env[name] != totals[name]]
        if wrong:
            got = {v: (env[v], want.get(v, totals.get(v))) for v in wrong}
            self.report.differ(f"{what}: relations and model differ in {got} after {T}")

    def compare(self, S: State, pf: Sequence[bool]) -> None:
        """Every action of the model in ``S``."""
        c = self.c
        if len(S.infl) < c.D:
            for NY in sched.subsets(sched.CanDefer(c, S)):
                self.call(S, pf, NY)
        if S.infl:
            for E in sched.subsets(S.infl[0].out) if c.Eos else ((),):
                self.process(S, pf, E, sched.ProcR(c, S, E))
        self.between(S, pf)


def ghosts(c: Constants, limit: int) -> Iterator[tuple[State, tuple[bool, ...]]]:
    """Reachable states with the ghost ``pf``: running, no token committed since its admission."""
    first = (sched.Init(c), (False,) * c.N)
    seen, todo = {first}, [first]
    while todo:
        S, pf = todo.pop()
        yield S, pf
        for name, _, T in sched.Next(c, S):
            after = (T, follow(S, name, T, pf))
            if after not in seen and len(seen) < limit:
                seen.add(after)
                todo.append(after)


#: what a configuration is given; the rest of it is random
_BARE = {"Fcfs": False, "Aborts": False, "Pauses": 0, "Grammar": [], "MaxSeqs": 99}
FOCUS: tuple[dict[str, Any], ...] = (
    {"Fcfs": True},
    {"Fcfs": False},
    {**_BARE, "StaleOutput": "dropped", "SpareInFlight": True, "D": 3, "Sessions": []},
    {"Aborts": False, "K": 1, "NotYetForever": True, "DeferralDeadline": "kept", "KeptBack": 4},
    {**_BARE, "Sessions": [1], "RunEvict": True, "CountParked": False},
    {**_BARE, "Sessions": [1], "RunEvict": True, "CountParked": False, "Fcfs": True},
)


def run(
    seed: int = 0,
    transitions: int = 2000,
    mutate: Callable[[Action], Action] | None = None,
    progress: Callable[[Report], None] | None = None,
    stop_at: int | None = None,
) -> Report:
    """Compare at least ``transitions`` transitions, from random configurations and random reachable states.

    ``stop_at``: stop after so many differences.
    """
    rng, report = random.Random(seed), Report()
    while report.transitions < transitions and (stop_at is None or report.found < stop_at):
        c = random_constants(rng, **rng.choice(FOCUS))
        sample = list(ghosts(c, 600))
        differ = Differ(c, report, mutate)
        # at random; where blocks are short: refusals, evictions, preemptions; where several compete
        picked = rng.sample(sample, min(8, len(sample)))
        tight = [x for x in sample if x[0].run and x[0].wq and x[0].free <= 1]
        many = [x for x in sample if len(x[0].run) > 1 or "held" in x[0].st or "received" in x[0].st]
        # a session idles; so much so where somebody is short
        idle = [x for x in sample if "idle" in x[0].st]
        idle += [x for x in idle if x[0].free <= 1 and {"waiting", "running", "held"} & set(x[0].st)] * 2
        picked += rng.sample(idle, min(12, len(idle)))
        loads = [
            x for x in idle if any(x[0].free < at(c.Ext, r) and sched.CanLoad(c, x[0], r) for r in x[0].wq)
        ]
        picked += rng.sample(loads, min(6, len(loads)))
        alone = [x for x in sample if any(sched.CanLoad(c, x[0], r) for r in x[0].wq) and x[0].free == c.B]
        picked += rng.sample(alone, min(4, len(alone))) if c.KeptBack else []
        short = [x for x in sample if len(x[0].run) > 1 and x[0].free == 0]
        picked += rng.sample(short, min(8, len(short)))
        picked += rng.sample(tight, min(8, len(tight))) + rng.sample(many, min(8, len(many)))
        for S, pf in picked:
            differ.compare(S, pf)
        if progress:
            progress(report)
    return report


__all__ = ["Report", "run"]
