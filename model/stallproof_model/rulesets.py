"""Named rule sets: the rules to build, and what released engines do, as settings of the switches."""

from __future__ import annotations

from typing import Any

#: What the scheduler class implements: the defaults of :class:`Constants`.
ONE_ORDER: dict[str, Any] = {}

_NATIVE: dict[str, Any] = {
    "StaleOutput": "delivered",
    "Scan": "queue",
    "Requeue": "front",
    "EvictPlace": "front",
    "RunOrder": "append",
    "Refusal": "break",
    "Lateral": "none",
    "LatYounger": False,
    "VictimPick": "least",
    "RunEvict": False,
    "RuleR": False,
    "FeasibleRule": "no",
    "P": 0,
    "CloseOnWait": False,
    "Promotion": "scan",
    "TurnsYield": "no",
}

RULESETS: dict[str, dict[str, Any]] = {
    "OneOrder": ONE_ORDER,
    # plain arrival scan (R9 of the research notes): holders-first is a throughput choice, not needed
    "OneOrderPlain": {"Scan": "queue"},
    "Native023": {**_NATIVE, "FenceMode": "None"},
    "Native024": {**_NATIVE, "FenceMode": "DeferFrees"},
    "Native027": {**_NATIVE, "FenceMode": "DeferFrees", "StaleOutput": "dropped"},
    "Native030": {**_NATIVE, "FenceMode": "DeferFreesGuarded", "StaleOutput": "dropped"},
    "Native032": {
        **_NATIVE,
        "FenceMode": "DeferFreesGuarded",
        "StaleOutput": "dropped",
        "Scan": "holders",
        "Reservation": True,
    },
    # the eviction first proposed for the head-of-line wedge: least progressed, at most 16, retry the head
    "Proposal40968": {**_NATIVE, "FenceMode": "GateLoads", "Lateral": "least", "Pin": False},
}
