"""The iterations of theory ``loops``, run on the model: list lengths and holders before and after each one.

``RunLoop`` and ``AdmLoop`` of the model call one operator first in every iteration (``Placeholders`` and
``NextCand``); it is wrapped to see the state there, so each iteration that is followed by another one is seen
whole. One iteration of the model may evict several victims in a row: each is one iteration of the theory.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from stallproof_model import sched
from stallproof_model.state import Constants, State, at
from stallproof_proofs.differential import ghosts
from stallproof_proofs.evaluate import Evaluator
from stallproof_proofs.logic import Bool
from stallproof_proofs.proofs import loops
from stallproof_proofs.reach import random_constants

#: what one iteration may do, and the evictions that may come before it
RUN = {"go_on": loops.go_on, "fcfs": loops.fcfs}
ADM = {
    "skip": loops.skip,
    "load": loops.load,
    "admit_holder": loops.admit_holder,
    "least": loops.least,
}
EVICT = {"RunLoop": loops.evict, "AdmLoop": loops.commit}


@dataclass
class Report:
    """Iterations seen by what they did; ``differences`` are those that no relation allows (first 20)."""

    seen: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    beyond: int = 0  #: calls with more iterations than the bound
    differences: list[str] = field(default_factory=list)
    found: int = 0


@dataclass
class _Watch:
    run: list[dict[str, int]] = field(default_factory=list)
    adm: list[dict[str, int]] = field(default_factory=list)


def holders(S: State) -> int:
    return sum(at(S.own, r) > 0 for r in S.wq)


@contextmanager
def _watched(c: Constants) -> Iterator[_Watch]:
    """The two operators record the numbers of the theory at the beginning of each iteration."""
    w = _Watch()
    placeholders, next_cand = sched.Placeholders, sched.NextCand

    def first_of_run(S: State, r: int) -> int:
        numbers = {"len": len(S.run), "i": S.run.index(r), "victim": len(S.run) - 1, "holders": holders(S)}
        w.run.append(numbers)
        return placeholders(S, r)

    def first_of_adm(c: Constants, x: sched.X, seen: Collection[int]) -> int:
        unseen = sum(r not in seen for r in x.S.wq)
        cap = c.LatCap - x.lat if c.Lateral == "least" else 0
        w.adm.append({"unseen": unseen, "holders": holders(x.S), "cap": cap})
        return next_cand(c, x, seen)

    sched.Placeholders, sched.NextCand = first_of_run, first_of_adm
    try:
        yield w
    finally:
        sched.Placeholders, sched.NextCand = placeholders, next_cand


def kind(
    loop: str, before: Mapping[str, int], after: Mapping[str, int], relations: Mapping[str, Bool]
) -> str:
    """What it did: a name of ``relations``, behind ``evict`` if victims gave way; empty: nothing known."""
    ev = Evaluator({})

    def holds(term: Bool, a: Mapping[str, int], b: Mapping[str, int]) -> bool:
        return bool(ev(term, {**a, **{f"{n}'": x for n, x in b.items()}}))

    now, gone = dict(before), 0
    while True:
        if gone and loop == "RunLoop" and now == dict(after):
            return "evict"
        for name, term in relations.items():
            if holds(term, now, after):
                return f"evict {name}" if gone else name
        then = {**now, "holders": now["holders"] - 1}
        if not holds(EVICT[loop], now, then):
            return ""
        now, gone = then, gone + 1


def _configuration(rng: random.Random) -> Constants:
    """OneOrder, or a least-progressed eviction with a cap."""
    if rng.random() < 0.7:
        return random_constants(rng)
    return random_constants(
        rng, Lateral="least", LatCap=rng.choice([1, 2, 16]), Pin=rng.random() < 0.5, RunEvict=False,
        LatYounger=rng.random() < 0.5,
    )  # fmt: skip


def run(
    seed: int = 0,
    iterations: int = 2000,
    run_loop: Mapping[str, Bool] = RUN,
    adm_loop: Mapping[str, Bool] = ADM,
) -> Report:
    """Watch at least ``iterations`` iterations of calls in reachable states of random configurations."""
    rng, report = random.Random(seed), Report()
    while report.seen.total() < iterations:
        c = _configuration(rng)
        nodes = {S for S, _ in ghosts(c, 600)}
        # where many run or wait, or blocks are short
        some = [
            S
            for S in sorted(nodes, key=repr)
            if len(S.infl) < c.D and (len(S.run) > 1 or len(S.wq) > 1 or S.free < 2)
        ]
        for S in rng.sample(some, min(40, len(some))):
            for NY in sched.subsets(sched.CanDefer(c, S)):
                _call(c, S, NY, run_loop, adm_loop, report)
    return report


def _call(
    c: Constants,
    S: State,
    NY: Collection[int],
    run_loop: Mapping[str, Bool],
    adm_loop: Mapping[str, Bool],
    report: Report,
) -> None:
    with _watched(c) as w:
        sched.SchedX(c, S, NY)
    report.calls += 1
    for loop, seen, relations in (("RunLoop", w.run, run_loop), ("AdmLoop", w.adm, adm_loop)):
        for before, after in pairwise(seen):
            name = kind(loop, before, after, relations)
            report.seen[f"{loop} {name or 'unknown'}"] += 1
            if not name:
                report.found += 1
                report.differences += [f"{loop}: {before} -> {after} in {S}"][: 20 - len(report.differences)]
    if w.run and len(w.run) > w.run[0]["holders"] + w.run[0]["len"]:
        report.beyond += 1
    # the last look at the queue finds nobody: it is not an iteration
    if w.adm and len(w.adm) - 1 > 3 * w.adm[0]["cap"] + 2 * w.adm[0]["unseen"] + w.adm[0]["holders"]:
        report.beyond += 1
