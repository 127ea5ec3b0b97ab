"""Names of the rules, and the settings an operator may change, read from the environment.

A rule has one name everywhere: in the log, in ``stallproof_stats()``, in metrics and in the documents.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from stallproof.errors import BadInput

#: rule -> one line. The order is that of the operator's page.
RULES: dict[str, str] = {
    "GateLoads": "frees are immediate; a load starts once nothing in flight may touch its blocks",
    "DeferFrees": "fall-back: the engine's own fence on freed blocks, without its cascade",
    "Patience": "a refused running request waits up to P processed steps before it preempts",
    "NoInversion": "a refused running request closes the call's admissions",
    "Commit": "holders that do not run are evicted only if their target then runs, and are younger",
    "OneOrder": "waiting holders first, then the rest, each in scheduling order",
    "TurnsYield": "a session's next turn waits while the request that its last turn passed is the oldest",
    "RunningOrder": "the running list is kept in scheduling order, so the victim is the youngest",
    "FullFit": "a request is admitted only if its whole known sequence fits",
    "RuleR": "a load start leaves free what running prefills still need",
    "BudgetShare": "an older request that is ready gets part of a step's tokens beside younger prefills",
    "AdapterShare": "no adapter too many is admitted; one who waits for its own is overtaken finitely often",
    "Promotion": "a completed load is recognised whatever is left of budget, and while paused",
    "LoadFailure": "a failed load leaves no reservation and no output place behind",
    "Completions": "late, duplicate and unknown completion reports are ignored",
    "LoadDeadline": "a load past its deadline is given up: blocks to quarantine, request recomputes",
    "DeferralDeadline": 'a connector that answers "not yet" for too long is no longer asked',
    "WaitDeadline": "a grammar, a session's next turn or a send that never comes ends its request's wait",
    "Feasible": "a request that can never fit finishes at once with an error",
}

#: Rules that may be switched off one by one (``STALLPROOF_OFF=Patience,Commit``). The fence is not among
#: them: without GateLoads the engine's own fence is back, which is the safe choice.
SWITCHABLE = frozenset(RULES) - {"DeferFrees", "Completions"}

ENFORCE, SHADOW = "enforce", "shadow"


@dataclass(frozen=True)
class Settings:
    """What an operator may set. Times in seconds, sizes in shares of the pool.

    Attributes:
        mode: ``enforce``, or ``shadow``: decide, count and log, change nothing.
        strict: an internal error of a hook is raised instead of caught.
        allow_untested: run on an engine version outside the tested range, after self-checks.
        patience: P, processed steps a refused running request waits. None: with a connector until the steps
            in flight are processed: a victim in flight may end with nothing left to hand over; 0 without:
            there the engine itself preempts at once, a step in flight frees a block only if a request ends
            in it, and waiting costs every request behind the refused one a step (``make bench-simulate``).
        load_deadline_s: how long a load may take; 0: for ever.
        deferral_deadline_s: how long a connector may answer "not yet" to one request; 0: for ever.
        wait_deadline_s: how long a grammar may compile, and a send of a finished request take; 0: for ever.
        session_deadline_s: how long a streaming session may be silent between turns; 0: for ever.
        quarantine_cap: no new load starts while more than this share of the pool is quarantined.
        on_wall: how a lone request that outgrows the pool while decoding finishes: ``length`` or ``error``.
        off: rules switched off.
        connectors_ok: connector classes that the operator vouches for (they write newly allocated blocks
            only, and bear a delayed start).
    """

    mode: str = ENFORCE
    strict: bool = False
    allow_untested: bool = False
    patience: int | None = None
    load_deadline_s: float = 120.0
    deferral_deadline_s: float = 60.0
    wait_deadline_s: float = 600.0
    session_deadline_s: float = 3600.0
    quarantine_cap: float = 0.25
    on_wall: str = "length"
    off: frozenset[str] = field(default_factory=frozenset)
    connectors_ok: frozenset[str] = field(default_factory=frozenset)

    def active(self, rule: str) -> bool:
        """Whether ``rule`` is not switched off."""
        return rule not in self.off

    @classmethod
    def from_environment(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Read ``STALLPROOF_*``.

        Raises:
            BadInput: a value is not usable; the message names the variable and what it accepts.
        """
        env = os.environ if env is None else env

        def number(name: str, default: float, low: float, high: float) -> float:
            text = env.get(name, "").strip()
            if not text:
                return default
            try:
                value = float(text)
            except ValueError:
                value = float("nan")
            if not low <= value <= high:
                raise BadInput(f"{name}={text!r}", remedy=f"give a number from {low:g} to {high:g}")
            return value

        def names(name: str) -> frozenset[str]:
            return frozenset(x.strip() for x in env.get(name, "").split(",") if x.strip())

        mode = env.get("STALLPROOF_MODE", ENFORCE).strip().lower() or ENFORCE
        if mode not in (ENFORCE, SHADOW):
            raise BadInput(f"STALLPROOF_MODE={mode!r}", remedy=f"use {ENFORCE} or {SHADOW}")
        on_wall = env.get("STALLPROOF_ON_WALL", "length").strip().lower() or "length"
        if on_wall not in ("length", "error"):
            raise BadInput(f"STALLPROOF_ON_WALL={on_wall!r}", remedy="use length or error")
        off = names("STALLPROOF_OFF")
        if unknown := off - SWITCHABLE:
            raise BadInput(
                f"STALLPROOF_OFF names {', '.join(sorted(unknown))}",
                remedy=f"rules that can be switched off: {', '.join(sorted(SWITCHABLE))}",
            )
        return cls(
            mode=mode,
            strict=_flag(env, "STALLPROOF_STRICT"),
            allow_untested=_flag(env, "STALLPROOF_ALLOW_UNTESTED"),
            patience=int(given) if (given := number("STALLPROOF_PATIENCE", -1, 0, 64)) >= 0 else None,
            load_deadline_s=number("STALLPROOF_LOAD_DEADLINE_S", 120.0, 0, 1e9),
            deferral_deadline_s=number("STALLPROOF_DEFERRAL_DEADLINE_S", 60.0, 0, 1e9),
            wait_deadline_s=number("STALLPROOF_WAIT_DEADLINE_S", 600.0, 0, 1e9),
            session_deadline_s=number("STALLPROOF_SESSION_DEADLINE_S", 3600.0, 0, 1e9),
            quarantine_cap=number("STALLPROOF_QUARANTINE_CAP", 0.25, 0, 1),
            on_wall=on_wall,
            off=off,
            connectors_ok=names("STALLPROOF_CONNECTORS_OK"),
        )


def _flag(env: Mapping[str, str], name: str) -> bool:
    text = env.get(name, "").strip().lower()
    if text in ("", "0", "false", "no", "off"):
        return False
    if text in ("1", "true", "yes", "on"):
        return True
    raise BadInput(f"{name}={text!r}", remedy="use 1 or 0")
