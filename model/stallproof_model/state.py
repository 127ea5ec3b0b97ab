"""Constants and state of the model: the same names, the same values as ``spec/Sched.tla``.

A state is an immutable tuple, so it is its own key in a graph. Requests are numbered from 1 as in TLA+;
per-request tuples are indexed by ``r - 1`` through :func:`at` and :func:`put`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
Order = tuple[int, ...]


class Step(NamedTuple):
    """A dispatched, unprocessed step.

    ``all``: requests it names; ``out``: those for which it yields a token; ``rel``: one of them has given
    blocks back since, without a fence.
    """

    all: frozenset[int]
    out: frozenset[int]
    rel: bool


class State(NamedTuple):
    """The record ``s`` of ``Sched.tla``; see there for each field."""

    st: tuple[str, ...]
    own: tuple[int, ...]
    comp: tuple[int, ...]
    tok: tuple[int, ...]
    noload: tuple[bool, ...]
    inp: tuple[bool, ...]
    gate: tuple[int, ...]
    quar: tuple[int, ...]
    ny: tuple[int, ...]
    fl: tuple[int, ...]
    due: tuple[str, ...]
    run: Order
    wq: Order
    ord: Order
    oh: int
    ot: int
    turns: frozenset[int]
    passed: Order
    infl: tuple[Step, ...]
    dfq: tuple[tuple[int, int], ...]
    free: int
    pat: int
    pw: bool
    paused: bool
    pz: int
    bad: bool


class Constants(NamedTuple):
    """The CONSTANTS of ``Sched.tla``. The defaults are *OneOrder* under ``GateLoads``: the rules to build."""

    N: int = 2
    B: int = 4
    D: int = 2
    Budget: int = 99
    ChunkCap: int = 99
    Prompt: Order = (2, 2)
    Total: Order = (4, 4)
    Ext: Order = (0, 0)
    Look: int = 0
    LookCounted: bool = True
    Align: int = 1
    FenceMode: str = "GateLoads"
    StaleOutput: str = "delivered"
    SpareInFlight: bool = False
    Fcfs: bool = True
    Scan: str = "holders"
    Requeue: str = "order"
    EvictPlace: str = "keep"
    RunOrder: str = "order"
    Refusal: str = "closes"
    LoadCounts: bool = True
    Lateral: str = "commit"
    LatYounger: bool = True
    VictimPick: str = "youngest"
    LatCap: int = 16
    EvictTo: str = "waiting"
    MayPreempt: bool = True
    Pin: bool = True
    RunEvict: bool = True
    FullFit: bool = True
    Reservation: bool = False
    RuleR: bool = True
    FeasibleRule: str = "always"
    KeptBack: int = 0
    MaxSeqs: int = 99
    CountParked: bool = False
    CountIdle: bool = False
    Adapter: Order = (0, 0)
    MaxLoras: int = 1
    AdapterCount: str = "running"
    AdapterBound: int = 1
    AdapterWatch: str = "always"
    P: int = 1
    CloseOnWait: bool = True
    K: int = 0
    NotYetForever: bool = False
    DeferralDeadline: str = "no"
    NotYetCloses: bool = False
    Promotion: str = "always"
    Reload: bool = True
    Fails: int = 0
    FailWakes: bool = True
    Lost: frozenset[int] = frozenset()
    Deadlines: bool = False
    ReapNeedsWork: bool = False
    PollIdle: bool = True
    AbortSilent: bool = False
    Grammar: frozenset[int] = frozenset()
    GrammarFails: str = "no"
    Sessions: frozenset[int] = frozenset()
    InputEarly: bool = False
    SessionEvict: str = "any"
    TalkOn: frozenset[int] = frozenset()
    TurnsYield: str = "kept"
    Pauses: int = 0
    Eos: bool = False
    Aborts: bool = False
    Late: frozenset[int] = frozenset()
    Recycle: frozenset[int] = frozenset()


#: Legal values of the switches that are not numbers, booleans or sets of requests.
CHOICES: dict[str, tuple[str, ...]] = {
    "FenceMode": ("None", "DeferFrees", "DeferFreesGuarded", "GateLoads"),
    "StaleOutput": ("delivered", "dropped"),
    "Scan": ("queue", "holders"),
    "Requeue": ("front", "order", "back"),
    "EvictPlace": ("front", "keep"),
    "RunOrder": ("append", "order"),
    "Refusal": ("break", "continue", "closes"),
    "Lateral": ("none", "least", "commit"),
    "GrammarFails": ("no", "wakes", "lost", "never"),
    "VictimPick": ("least", "youngest"),
    "EvictTo": ("waiting", "stuck"),
    "FeasibleRule": ("no", "admission", "computing", "always"),
    "AdapterCount": ("step", "running"),
    "AdapterWatch": ("begin", "always"),
    "DeferralDeadline": ("no", "anew", "kept"),
    "Promotion": ("scan", "calls", "always"),
    "SessionEvict": ("never", "younger", "any"),
    "TurnsYield": ("no", "once", "kept"),
}


def constants(**given: Any) -> Constants:
    """Constants from keywords: lists become tuples or sets; raises ValueError with the field's name."""
    fields = Constants._field_defaults
    out: dict[str, Any] = {}
    for name, value in given.items():
        if name not in fields:
            raise ValueError(f"unknown constant {name!r}")
        default = fields[name]
        if isinstance(default, frozenset):
            value = frozenset(value)
        elif isinstance(default, tuple):
            value = tuple(value)
        elif type(value) is not type(default):
            raise ValueError(f"{name} = {value!r} should be a {type(default).__name__}")
        if name in CHOICES and value not in CHOICES[name]:
            raise ValueError(f"{name} = {value!r} is not one of {', '.join(CHOICES[name])}")
        out[name] = value
    for name in ("Ext", "Adapter"):
        out.setdefault(name, (0,) * out.get("N", Constants().N))
    c = Constants(**out)
    for name in ("Prompt", "Total", "Ext", "Adapter"):
        if len(getattr(c, name)) != c.N:
            raise ValueError(f"{name} = {getattr(c, name)!r} should have N = {c.N} entries")
    for name in ("Lost", "Grammar", "Sessions", "TalkOn", "Late", "Recycle"):
        if not getattr(c, name) <= set(range(1, c.N + 1)):
            raise ValueError(f"{name} = {sorted(getattr(c, name))} names a request outside 1..{c.N}")
    for r in range(c.N):
        if c.Ext[r] and c.Ext[r] > c.Prompt[r]:
            raise ValueError(f"Ext of request {r + 1} is larger than its prompt")
        if c.Prompt[r] >= c.Total[r]:
            raise ValueError(f"Total of request {r + 1} must exceed its prompt")
    return c


def at(t: tuple[T, ...], r: int) -> T:
    """``t[r]`` of TLA+."""
    return t[r - 1]


def put(t: tuple[T, ...], r: int, v: T) -> tuple[T, ...]:
    """``[t EXCEPT ![r] = v]`` of TLA+."""
    return t[: r - 1] + (v,) + t[r:]


def without(q: Iterable[int], r: int) -> Order:
    """``RemoveQ`` of TLA+."""
    return tuple(x for x in q if x != r)
