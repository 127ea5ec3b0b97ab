"""Which guards of theory ``order`` the differential run can miss, and why.

A guard is noticed where it alone is false: without it the relation would take a step that the model does not
take (:attr:`stallproof_proofs.differential.Report.decisive`). A guard that is never alone false is either
*implied*: the other guards and the proved invariant entail it, so a relation without it is the same relation
(:func:`implied` proves that), or *rare*: no sampled state shows it, though the invariant allows one.
"""

from __future__ import annotations

from stallproof_proofs.runner import query

_TARGET = "a target is where the loop stands, and the loop can serve it (conjunct target)"
_SHORT = "a chunk of no tokens needs no block, so it is never short"
_RUNS = "a runner always has a token to compute (conjunct running)"
_HOLDS = "who may load holds nothing, and only a waiting candidate holds nothing"

#: action.guard -> why the others imply it
IMPLIED: dict[str, str] = {
    "Admit.budget": "a chunk of at least one token is within the budget",
    "Admit.some": "a candidate that is ready has a token to compute, and the budget is not spent",
    "LoopEnd.free_hands": _TARGET,
    "NotYet.free_hands": _TARGET,
    "NotYet.ready": _HOLDS,
    "Pass.free_hands": _TARGET,
    "Pop.in_flight": "tokens outstanding are fewer than the steps in flight, and not below 0",
    "Preempt.budget": _SHORT,
    "Preempt.mine": _TARGET,
    "Preempt.something": _RUNS,
    "Refuse.free_hands": _TARGET,
    "RunEvict.budget": _SHORT,
    "RunEvict.mine": _TARGET,
    "RunEvict.something": _RUNS,
    "SelfPreempt.budget": _SHORT,
    "SelfPreempt.mine": _TARGET,
    "SelfPreempt.something": _RUNS,
    "Serve.fits": "what is enough is within the capacity",
    "Serve.mine": _TARGET,
    "Serve.something": _RUNS,
    "StartLoad.enough": "rule R asks for no less",
    "StartLoad.free_hands": _TARGET,
    "StartLoad.ready": _HOLDS,
    "Wait.budget": _SHORT,
    "Wait.mine": "with free hands there is no target",
    "Wait.something": _RUNS,
}

#: action.guard -> what a state that shows it would need; the invariant does not exclude it
RARE: dict[str, str] = {
    "AdmEvict.budget": "the budget just used up, and a parked holder behind a candidate that is short",
    "AdmEvict.no_load": "a candidate that may load, and parked holders behind it that cover its prompt",
    "AdmEvict.not_shut": "a candidate behind a refused one, with parked holders behind both",
    "AdmEvict.not_stale": "a candidate whose late token is outstanding, and parked holders behind it",
    "AdmEvict.seat": "all seats taken, and parked holders behind a candidate that is short",
    "AdmEvict.sure": "parked holders behind a candidate that together give too little",
    "Admit.not_shut": "a refused request, and one behind it that may not load and fits",
    "Begin.budget": "a budget of 0: a constant above 0",
    "NotYet.not_shut": "a refused request, and one behind it whose connector has an answer left",
    "NotYet.not_stale": "a request that may load again, an answer left, its late token outstanding",
    "Pause.runs": "two pauses",
    "Preempt.fits": "a runner beyond the capacity, by quarantine, ahead of another runner",
    "Refuse.not_stale": "a request that is short and whose late token is outstanding",
    "RunEvict.fits": "a runner beyond the capacity, by quarantine, ahead of parked holders",
    "RunEvict.sure": "parked holders behind a runner that together give too little",
    "Serve.budget": "a budget used up by an older runner that was admitted after a younger one",
    "Skip.budget": "the same, and the younger one has all its tokens in flight",
    "Skip.free_hands": "a target with nothing to schedule: unreachable, but the invariant does not say so",
    "StartLoad.not_stale": "a request that may load again and whose late token is outstanding",
    "Wait.free_hands": "two victims of rule E, one of which has given way",
    "Wait.no_preemption": "a second preemption in one call while patience lasts",
}


def implied(name: str) -> bool:
    """Whether the invariant of theory ``order`` and the other guards of the action entail this one."""
    from stallproof_proofs.proofs.order import theory

    action, guard = name.split(".")
    s = theory.system.vocabulary.state()
    a = next(a for a in theory.system.actions(s) if a.name == action)
    hyps = {f"system {i}": h for i, h in enumerate(theory.system.hypotheses(s))}
    hyps |= {f"known {n}": g for n, g in theory.invariant(s).items()}
    hyps |= {f"guard {n}": g for n, g in a.guards.items() if n != guard}
    condition = (hyps, a.guards[guard])
    small = next(iter(theory.obligations())).small
    # a counterexample in a small universe is one, and quickly found
    if small is not None and query(small(condition))[0] == "refuted":
        return False
    return query(condition)[0] == "proved"
