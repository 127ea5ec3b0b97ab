"""Twins of theory order: the same relations with one rule taken out, each refuted by name."""

from __future__ import annotations

import z3

from stallproof_proofs.logic import Action, State, zmax
from stallproof_proofs.systems import order as m
from stallproof_proofs.systems.order import (
    ADMLOOP,
    HELD,
    IDLING,
    RECEIVED,
    Look,
    can_load,
    is_,
)
from stallproof_proofs.systems.order_parts import rederived
from stallproof_proofs.theory import Twin, substituted


def _chunk_fits_only(s: State, a: Action) -> Action:
    """Admission without full fit: only the first chunk has to fit."""
    grab = zmax(s.comp(m.r0) + m.n0 + Look - s.own(m.r0), 0)
    return Action(a.name, {**a.guards, "full_fit": grab <= s.free()}, a.updates, a.params)


def _any_victim(s: State, a: Action) -> Action:
    """Commit may evict any parked holder, requests ahead of the target included."""
    parked = z3.And(is_(s, m.v0, RECEIVED, HELD), s.own(m.v0) > 0, m.v0 != m.r0)
    return Action(a.name, {**a.guards, "behind": parked}, a.updates, a.params)


def _late_token_dropped(s: State, a: Action) -> Action:
    """StaleOutput = dropped: a preempted request loses the tokens of its steps in flight."""
    return rederived(s, a, m.v0, ph=lambda w: z3.If(w == m.v0, 0, s.ph(w)))


def _admissions_go_on(s: State, a: Action) -> Action:
    """A waiting request does not close the call's admissions."""
    return substituted(a, mode=lambda: z3.IntVal(ADMLOOP))


def _loads_again(s: State, a: Action) -> Action:
    """After its deadline the request may load again."""
    return substituted(a, noload=s.noload)


def _fails_for_ever(s: State, a: Action) -> Action:
    return substituted(a, fl=s.fl)


def _not_yet_for_ever(s: State, a: Action) -> Action:
    return substituted(a, ny=s.ny)


def _load_without_test(s: State, a: Action) -> Action:
    return Action(
        a.name, {n: g for n, g in a.guards.items() if n not in ("enough", "rule_R")}, a.updates, a.params
    )


def _quarantine_lost(s: State, a: Action) -> Action:
    return substituted(a, free=s.free)


def _door_stays_open(s: State, a: Action) -> Action:
    return substituted(a, hasc=s.hasc, cw=s.cw)


def _same_patience(s: State, a: Action) -> Action:
    return substituted(a, pat=s.pat)


def _load_evicts_anybody(s: State, a: Action) -> Action:
    """A load start may evict any parked holder, not only sessions that idle."""
    parked = z3.And(is_(s, m.v0, RECEIVED, HELD, IDLING), s.own(m.v0) > 0, m.v0 != m.r0)
    return Action(a.name, {**a.guards, "idles": parked}, a.updates, a.params)


def _idle_is_no_victim(s: State, a: Action) -> Action:
    """SessionEvict = never: a candidate is refused although idle sessions would cover its need."""
    r = m.r0
    short = z3.If(
        can_load(s, r),
        m.load_need(s, r) > s.free(),
        m.remaining(s, r) > s.free() + s.Sgain(r) - s.Sidle(),
    )
    return Action(a.name, {**a.guards, "short": short}, a.updates, a.params)


def _asks_again(s: State, a: Action) -> Action:
    return substituted(a, noload=s.noload)


def _begins_anew(s: State, a: Action) -> Action:
    """DeferralDeadline = anew: a load that is refused ends the deadline."""
    return Action(a.name, a.guards, {**a.updates, "late": lambda w: z3.And(s.late(w), w != m.r0)}, a.params)


def _wholly_free(s: State, a: Action) -> Action:
    """A load is given up only with the whole pool free, whoever idles."""
    alone = z3.And(can_load(s, m.r0), s.free() == m.Blocks - s.Squar())
    return Action(a.name, {**a.guards, "not_alone": z3.Not(alone)}, a.updates, a.params)


def _stays_blocked(s: State, a: Action) -> Action:
    return substituted(a, st=s.st)


TWINS = [
    Twin(
        "StartLoad",
        "rule_R",
        "raised only behind",
        note="rule R: with a chunk cap, loads starve a running prefill",
    ),
    Twin("StartLoad", "not_shut", "NoInversion", note="a refusal closes nothing"),
    Twin("StartLoad", "next", "scan is ahead", note="non-holders out of scheduling order"),
    Twin("StartLoad", "any_blocks", "Conservation", _load_without_test),
    Twin("NotYet", "finite", "lowered", _not_yet_for_ever, note="endless not-yet: needs a deadline"),
    Twin(
        "Admit", "full_fit", "raised only behind", _chunk_fits_only, note="chunked prefill without full fit"
    ),
    Twin("Admit", "room", "room", _chunk_fits_only, note="full fit is what makes a self-preemption paid for"),
    Twin("Admit", "not_shut", "NoInversion"),
    Twin("Admit", "not_stale", "prefill", note="re-admitted before its late token arrived"),
    Twin(
        "AdmEvict", "sure", "target", note="eviction that does not make its target run (#40968 as proposed)"
    ),
    Twin("AdmEvict", "any_victim", "raised only behind", _any_victim, note="victims ahead of their target"),
    Twin("RunEvict", "any_victim", "raised only behind", _any_victim),
    Twin(
        "Preempt",
        "youngest",
        "raised only behind",
        note="running list in order of admission: the victim is not the youngest",
    ),
    Twin("Preempt", "dropped", "spent", _late_token_dropped, note="late tokens dropped"),
    Twin("SelfPreempt", "short", "PreemptPaid"),
    Twin("SelfPreempt", "youngest", "PreemptPaid", note="preempts itself although a runner behind could go"),
    Twin("Preempt", "youngest", "PreemptPaid", note="the victim is ahead of its target"),
    Twin("StartLoad", "not_shut", "Drain"),
    Twin("SelfPreempt", "youngest", "raised only behind"),
    Twin("SelfPreempt", "short", "raised only behind"),
    Twin("Wait", "in_flight", "idle call runs nothing", note="patience with nothing in flight: a wedge"),
    Twin("Wait", "patience", "Patience.steps", note="waits without end"),
    Twin(
        "Pop", "counted", "Patience.steps", _same_patience, note="a processed step that uses no patience up"
    ),
    Twin("Dispatch", "anew", "Patience.steps", _same_patience, note="patience once used up never comes back"),
    Twin("Admit", "seat", "Seated", note="max_num_seqs exceeded"),
    Twin("AdmEvict", "seat", "target", note="evicts for a request that has no seat"),
    Twin("Paused", "paused", "idle call runs nothing", note="a call that does nothing without a pause"),
    Twin("GrammarReady", "wakes", "Decreases.strict", _stays_blocked, note="a grammar that wakes nobody"),
    Twin("Wait", "closes", "visited prefills lowered", _admissions_go_on),
    Twin("Skip", "nothing", "runner visited"),
    Twin("Serve", "enough", "Conservation"),
    Twin("Serve", "next", "visited prefills lowered"),
    Twin("LoopEnd", "all_visited", "visited prefills lowered"),
    Twin("LoopEnd", "no_preemption", "no admission after a preemption"),
    Twin("HeadEnd", "rejected", "promoted", note="Feasible is not tested again"),
    Twin("Refuse", "door", "refused seen", _door_stays_open, note="NoInversion removed"),
    Twin("Refuse", "short", "idle call runs nothing", note="refused although it fits"),
    Twin("Dispatch", "over", "NoWedge"),
    Twin("Dispatch", "over", "EvictCoupled"),
    Twin("XferFail", "finite", "Decreases", _fails_for_ever, note="a load that fails for ever"),
    Twin("Expire", "no_second_load", "Decreases", _loads_again, note="loads again after its deadline"),
    Twin("LateDone", "free", "Conservation", _quarantine_lost, note="quarantine is never released"),
    Twin("Deliver", "goes_on", "tokens"),
    Twin("Preempt", "spared", "NothingLost", note="late tokens dropped, and a victim in flight is taken"),
    Twin("Preempt", "spared", "spent", note="late-token-dropped: its token is computed again, for ever"),
    Twin("SelfPreempt", "spared", "NothingLost"),
    Twin("Spare", "in_flight", "idle call runs nothing", note="spares a victim that has nothing in flight"),
    Twin("Spare", "not_sure", "owed", note="waits although somebody was evicted for it"),
    Twin("Preempt", "not_sure", "raised only behind", note="preempts although an eviction would do (rule E)"),
    Twin("SelfPreempt", "not_sure", "PreemptPaid"),
    Twin("RunEvict", "rule_E", "owed"),
    Twin("StartLoad", "seat", "Seated", note="loads-beyond-the-seats: a load takes a seat that nobody has"),
    Twin("LoadEvict", "sure", "target", note="evicts a session for a load that cannot start"),
    Twin("LoadEvict", "seat", "target"),
    Twin("LoadEvict", "turn", "target"),
    Twin("LoadEvict", "load", "target"),
    Twin(
        "LoadEvict",
        "any_victim",
        "PreemptPaid",
        _load_evicts_anybody,
        note="a load start evicts whoever is parked",
    ),
    Twin(
        "Refuse",
        "idle",
        "idle call runs nothing",
        _idle_is_no_victim,
        note="sessions-hold-the-pool: who idles is never evicted",
    ),
    Twin("DeliverTurn", "rule_E", "Decreases", note="a session idles, and no runner may take its blocks"),
    Twin("DeliverTurn", "seats", "idling", note="parked-sessions-beyond-the-seats: input makes it a holder"),
    Twin("DeliverTurn", "turn", "tokens"),
    Twin("DeliverTurn", "goes_on", "tokens"),
    Twin("InputHere", "tokens", "parked"),
    Twin("GiveUp", "decides", "lowered", _asks_again, note="a deadline that decides nothing"),
    Twin("GiveUp", "load", "lowered", note="gives a load up that was given up before"),
    Twin("NotYet", "not_late", "Deferral.ends", note="put off for ever, whatever the deadline"),
    Twin("Refuse", "anew", "Deferral.kept", _begins_anew, note="deferral-begins-anew"),
    Twin("Refuse", "not_alone", "idle call runs nothing", note="lone-load: refused for ever"),
    Twin(
        "Refuse",
        "wholly_free",
        "idle call runs nothing",
        _wholly_free,
        note="a lone load beside a session that idles: refused for ever",
    ),
    Twin("LoneLoad", "gives_up", "lowered", _asks_again, note="says that it gives up, and does not"),
    Twin("InputAway", "idling", "Decreases.strict"),
    Twin("Input", "turn", "tokens", note="a turn without end"),
    Twin("Input", "tokens", "Decreases", note="input that takes tokens away"),
    Twin("Input", "idling", "parked", note="InputEarly: input for a session that still runs"),
    Twin("Pop", "delivered", "in flight"),
]
