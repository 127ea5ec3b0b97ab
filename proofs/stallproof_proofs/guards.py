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
    "StartLoad.ready": _HOLDS,
    "LoadEvict.ready": _HOLDS,
    "GiveUp.ready": _HOLDS,
    "LoneLoad.ready": _HOLDS,
    "LoneLoad.free_hands": _TARGET,
    "Spare.budget": _SHORT,
    "Spare.mine": _TARGET,
    "Spare.something": _RUNS,
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
    "Admit.not_stale": "a preempted request whose late token is outstanding, and room for it at once",
    "Admit.not_shut": "a refused request, and one behind it that may not load and fits",
    "Begin.budget": "a budget of 0: a constant above 0",
    "DeliverTurn.live": "a session aborted with a token in flight that would have been the last of its turn",
    "DeliverTurn.rule_E": "a constant: sessions without rule E are out of scope",
    "DeliverTurn.seats": "a constant: sessions where parked holders take seats are out of scope",
    "GiveUp.free_hands": "a load that has evicted a session, and its connector's deadline has passed",
    "GiveUp.load": "a deadline of who may not load: the model has none",
    "GiveUp.not_stale": "a request put off for too long, and a late token of it outstanding",
    "LoneLoad.budget": "the budget just used up, and a load that fits nowhere",
    "LoneLoad.not_stale": "a load that fits nowhere, a late token of its request outstanding",
    "LoneLoad.seat": "all seats taken, and nobody else holds a block",
    "InputHere.new": "the comparison itself makes the new request up",
    "InputHere.tokens": "the same",
    "LoadEvict.budget": "the budget just used up, and an idle session, and a load that is short",
    "LoadEvict.not_shut": "an idle session, and a load that is short behind a refused request",
    "LoadEvict.not_stale": "an idle session, and a load that is short and whose late token is outstanding",
    "LoadEvict.seat": "all seats taken, an idle session, and a load that is short",
    "LoadEvict.sure": "a load that is short by more than idle sessions hold",
    "LoadEvict.turn": "two loads that are short, and an idle session",
    "NotYet.free_hands": "a load that has evicted a session, and its connector has an answer left",
    "NotYet.not_shut": "a refused request, and one behind it whose connector has an answer left",
    "NotYet.not_stale": "a request that may load again, an answer left, its late token outstanding",
    "Pause.runs": "two pauses",
    "Preempt.fits": "a runner beyond the capacity, by quarantine, ahead of another runner",
    "Preempt.not_sure": "parked holders behind a runner that cover its need, and a younger runner",
    "Preempt.spared": "late tokens dropped: a victim in flight, and nothing else in the way",
    "Reject.not_paused": "a pause, and a request that fits no more",
    "SelfPreempt.not_sure": "parked holders behind the last runner that cover its need",
    "Spare.not_sure": "parked holders that cover the need, and a victim in flight",
    "Spare.youngest": "late tokens dropped: two runners in flight behind one that is short",
    "Wait.not_sure": "parked holders that cover the need while patience lasts",
    "Refuse.not_stale": "a request that is short and whose late token is outstanding",
    "RunEvict.fits": "a runner beyond the capacity, by quarantine, ahead of parked holders",
    "RunEvict.sure": "parked holders behind a runner that together give too little",
    "Serve.budget": "a budget used up by an older runner that was admitted after a younger one",
    "Skip.budget": "the same, and the younger one has all its tokens in flight",
    "Skip.free_hands": "a target with nothing to schedule: unreachable, but the invariant does not say so",
    "StartLoad.budget": "the budget just used up, and a load that fits",
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
