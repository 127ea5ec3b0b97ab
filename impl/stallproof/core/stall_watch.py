"""When to speak about a stall, how often, and what to do: a pure state machine.

The caller reports every scheduling call with :meth:`StallWatch.observe` (a few comparisons while all is
well) and acts on the :class:`Due` items that come back; nothing here reads a clock, logs, or touches a
request. Three kinds of episode are told apart, each with the promise that it breaks (design, section 1):

``wedge``
    NoWedge. Unfinished work, nothing pending outside, and the call did nothing: no token, no load start,
    no eviction towards a run, no request finished.
``livelock``
    Termination. Calls schedule tokens, but no request advances (vLLM #49674: every step preempts what the
    step before it computed).
``external_wait``
    BoundedWait. A load, a deferral or another outside wait is older than its threshold.

A report is due when an episode opens, then with exponential back-off, then once more when it closes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

#: Every line starts with this, whatever the logging format in front of it.
PREFIX = "STALLPROOF STALL "
#: Version of the JSON behind the prefix.
LINE_VERSION = 1
#: Longest JSON text of a line, in bytes.
MAX_LINE = 4096
#: Requests named in a line, and characters of an id, at most.
MAX_WAITERS = 8
MAX_TEXT = 64
#: Rules listed, at most.
MAX_RULES = 24
#: Items of `Situation.extra`, at most.
MAX_EXTRA = 4


class Kind(StrEnum):
    """Kinds of episode; the value is what lines and metrics carry."""

    WEDGE = "wedge"
    LIVELOCK = "livelock"
    EXTERNAL_WAIT = "external_wait"


#: The promise that an episode of this kind breaks.
PROPERTY: Mapping[Kind, str] = {
    Kind.WEDGE: "NoWedge",
    Kind.LIVELOCK: "Termination",
    Kind.EXTERNAL_WAIT: "BoundedWait",
}


class OnStall(StrEnum):
    """``on_stall``: what follows the warning line.

    ``log`` nothing; ``dump`` once an episode, the recorder's ring and a Python stack of all threads;
    ``fail_oldest`` the oldest blocked request is finished with an error, again at every repeat;
    ``raise`` :class:`StallError` leaves the scheduling call, which ends the engine.
    """

    LOG = "log"
    DUMP = "dump"
    FAIL_OLDEST = "fail_oldest"
    RAISE = "raise"


class StallError(RuntimeError):
    """Raised by the caller under ``on_stall = raise``; the message is the warning line."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Thresholds in seconds of the caller's clock; ``calls`` counts scheduling calls.

    An episode opens when it has lasted ``wedge_s`` *and* ``wedge_calls`` calls, so that neither a slow
    clock nor a fast loop opens one alone. ``act_after_s`` is how long an episode lasts before ``on_stall``
    acts; 0 acts with the first line. Repeats come after ``repeat_s``, then twice as long each time, at most
    ``repeat_max_s``.
    """

    wedge_s: float = 1.0
    wedge_calls: int = 3
    livelock_s: float = 30.0
    livelock_calls: int = 100
    external_s: float = 120.0
    repeat_s: float = 10.0
    repeat_max_s: float = 600.0
    act_after_s: float = 5.0

    def __post_init__(self) -> None:
        for name in ("wedge_s", "livelock_s", "external_s", "act_after_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative")
        if not 0 < self.repeat_s <= self.repeat_max_s:
            raise ValueError("repeat_s must be positive and not above repeat_max_s")
        if self.wedge_calls < 1 or self.livelock_calls < 1:
            raise ValueError("wedge_calls and livelock_calls must be at least 1")


class Act(StrEnum):
    """What the caller has to do besides writing the line."""

    NONE = "none"
    DUMP = "dump"
    FAIL_OLDEST = "fail_oldest"
    RAISE = "raise"


@dataclass(frozen=True, slots=True)
class Due:
    """One line to write. ``event``: ``stall`` (opens), ``still`` (repeat), ``resumed`` (closes)."""

    kind: Kind
    event: str
    seconds: float
    calls: int
    report: int
    act: Act = Act.NONE


@dataclass(frozen=True, slots=True)
class Waiter:
    """One blocked request as the line shows it; never its prompt.

    ``need``: blocks that it lacks, -1 unknown; ``holds``: blocks that it holds; ``age_s``: seconds since it
    arrived, or since its outside wait began.
    """

    r: str
    state: str
    age_s: float = 0.0
    need: int = -1
    holds: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Situation:
    """What the engine looks like while a line is due; built only then. Counts are of requests or blocks."""

    running: int = 0
    waiting: int = 0
    parked: int = 0
    free: int = 0
    pool: int = 0
    fenced: int = 0
    quarantined: int = 0
    steps_in_flight: int = 0
    waiters: Iterable[Waiter] = ()
    trace: str = ""
    extra: Mapping[str, str | int | float | bool] = field(default_factory=dict)


@dataclass(slots=True)
class _Episode:
    since: float
    calls: int = 0
    opened: bool = False
    accounted: float = 0.0  # clock up to which `StallWatch.seconds` holds this episode
    reports: int = 0
    next_report: float = 0.0
    interval: float = 0.0
    dumped: bool = False
    acted_late: bool = False


class StallWatch:
    """One per engine. ``seconds`` maps each kind to the seconds spent in opened episodes, for the metrics."""

    def __init__(self, limits: Limits | None = None, on_stall: OnStall = OnStall.LOG) -> None:
        self.limits = limits or Limits()
        self.on_stall = on_stall
        self.seconds: dict[str, float] = {kind.value: 0.0 for kind in Kind}
        self.opened: dict[str, int] = {kind.value: 0 for kind in Kind}
        self.episodes: dict[Kind, _Episode] = {}

    def stalled(self) -> list[str]:
        """Kinds of the episodes that are open now."""
        if not self.episodes:  # asked after every scheduling call
            return []
        return [kind.value for kind, ep in list(self.episodes.items()) if ep.opened]

    def observe(
        self,
        now: float,
        *,
        unfinished: int,
        moved: bool,
        pending: bool,
        advanced: bool = True,
        oldest_wait: float | None = None,
    ) -> Sequence[Due]:
        """Take note of one scheduling call; returns the lines that are due, mostly none.

        ``now``: seconds, never going back. ``unfinished``: requests in the engine. ``moved``: the call
        scheduled a token, started a load, evicted towards a run, or finished a request. ``pending``: it may
        still be moved from outside: a step in flight, a load or grammar not yet reported, a pause.
        ``advanced``: since the last call some request reached a token count it had never had, or finished;
        leave it out if unknown. ``oldest_wait``: age in seconds of the oldest outside wait.
        """
        if moved and advanced and oldest_wait is None and not self.episodes:
            return _NOTHING
        due: list[Due] = []
        busy, lim = unfinished > 0, self.limits
        self._track(
            due, Kind.WEDGE, now, busy and not moved and not pending, now, lim.wedge_s, lim.wedge_calls
        )
        # A wait that is legitimate (pending) neither confirms nor ends a livelock: only an advance ends it.
        live = Kind.LIVELOCK
        if busy and not advanced and (moved or live in self.episodes):
            self._track(due, live, now, True, now, lim.livelock_s, lim.livelock_calls, count=moved)
        else:
            self._track(due, live, now, False, now, lim.livelock_s, lim.livelock_calls)
        late = busy and oldest_wait is not None and oldest_wait >= lim.external_s
        began = now - oldest_wait if oldest_wait is not None else now
        self._track(due, Kind.EXTERNAL_WAIT, now, late, began, 0.0, 1)
        return due

    def _track(
        self,
        due: list[Due],
        kind: Kind,
        now: float,
        bad: bool,
        began: float,
        after_s: float,
        after_calls: int,
        *,
        count: bool = True,
    ) -> None:
        ep = self.episodes.get(kind)
        if not bad:
            if ep is not None:
                del self.episodes[kind]
                if ep.opened:
                    self._account(kind, ep, now)
                    due.append(Due(kind, "resumed", now - ep.since, ep.calls, ep.reports))
            return
        if ep is None:
            ep = self.episodes[kind] = _Episode(since=began, accounted=now)
        ep.calls += count
        if not ep.opened:
            if now - ep.since < after_s or ep.calls < after_calls:
                return
            ep.opened, ep.interval = True, self.limits.repeat_s
            self.opened[kind.value] += 1
            self._account(kind, ep, now)
            self._report(due, kind, ep, now, "stall")
        else:
            self._account(kind, ep, now)
            # `on_stall` acts on time, even when the back-off would keep silent for longer.
            late_act = not ep.acted_late and self.on_stall is not OnStall.LOG and self._may_act(ep, now)
            if now >= ep.next_report or late_act:
                self._report(due, kind, ep, now, "still")

    def _account(self, kind: Kind, ep: _Episode, now: float) -> None:
        self.seconds[kind.value] += max(0.0, now - ep.accounted)
        ep.accounted = max(ep.accounted, now)

    def _may_act(self, ep: _Episode, now: float) -> bool:
        return now - ep.since >= self.limits.act_after_s

    def _report(self, due: list[Due], kind: Kind, ep: _Episode, now: float, event: str) -> None:
        ep.reports += 1
        ep.next_report = now + ep.interval
        ep.interval = min(2 * ep.interval, self.limits.repeat_max_s)
        act = Act.NONE
        if self.on_stall is not OnStall.LOG and self._may_act(ep, now):
            ep.acted_late = True
            act = Act(self.on_stall.value)
            if act is Act.DUMP:
                act, ep.dumped = (Act.NONE if ep.dumped else act), True
        due.append(Due(kind, event, now - ep.since, ep.calls, ep.reports, act))


_NOTHING: tuple[Due, ...] = ()


def _clip(text: object, size: int = MAX_TEXT) -> str:
    """Printable ASCII, so that a character costs two bytes of JSON at most."""
    s = "".join(c if " " <= c <= "~" else "?" for c in str(text)[: size + 1])
    return s if len(s) <= size else s[: size - 3] + "..."


def _number(x: float) -> float | str:
    """JSON has no infinity, and a count of 400 digits is not one."""
    if isinstance(x, int):
        return x if abs(x) < 1 << 63 else _clip(x)
    return round(x, 3) if math.isfinite(x) else str(x)


def line(due: Due, situation: Situation, *, engine: str = "", rules: Iterable[str] = ()) -> str:
    """``PREFIX`` and one JSON object, at most ``MAX_LINE`` bytes; escapes keep it on one line.

    What does not fit is dropped from the end of ``waiters``; ``more`` says how many are not shown.
    """
    waiters = list(situation.waiters)
    head: dict[str, object] = {
        "v": LINE_VERSION,
        "event": due.event,
        "kind": due.kind.value,
        "property": PROPERTY[due.kind],
        "seconds": _number(due.seconds),
        "calls": due.calls,
        "report": due.report,
        "act": due.act.value,
        "engine": _clip(engine),
        "running": situation.running,
        "waiting": situation.waiting,
        "parked": situation.parked,
        "free": situation.free,
        "pool": situation.pool,
        "fenced": situation.fenced,
        "quarantined": situation.quarantined,
        "in_flight": situation.steps_in_flight,
        "rules": [_clip(r, 32) for r in list(rules)[:MAX_RULES]],
    }
    if situation.trace:
        head["trace"] = _clip(situation.trace, 256)
    for key, value in list(situation.extra.items())[:MAX_EXTRA]:
        head.setdefault(_clip(key), _clip(value) if isinstance(value, str) else _number(value))
    shown = [
        {
            "r": _clip(w.r),
            "state": _clip(w.state),
            "age_s": _number(w.age_s),
            "need": _number(w.need),
            "holds": _number(w.holds),
            "why": _clip(w.why),
        }
        for w in waiters[:MAX_WAITERS]
    ]
    while True:
        head["waiters"], head["more"] = shown, len(waiters) - len(shown)
        text = json.dumps(head, separators=(",", ":"))
        if len(text) <= MAX_LINE or not shown:
            return PREFIX + text
        shown.pop()


def parse(text: str) -> dict[str, object] | None:
    """The JSON object of a log line that carries one, else None (foreign or cut off)."""
    at = text.find(PREFIX)
    if at < 0:
        return None
    try:
        value = json.loads(text[at + len(PREFIX) :])
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and value.get("v") == LINE_VERSION else None
