"""What the ledger knows: requests, references per block, steps in flight, transfers; and how it reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from . import schema as s
from .schema import WAITING


class Violation(Struct, omit_defaults=True):
    """One divergence. ``line`` counts from 1 in ``path``; ``event`` counts from 0 in the record."""

    rule: str
    layer: str
    text: str
    path: str = ""
    line: int = 0
    step: int = 0
    field: str = ""
    expected: str = ""
    observed: str = ""
    event: int = -1
    requests: list[str] = []
    blocks: list[int] = []
    evidence: list[str] = []  #: further lines of explanation


Report = Callable[[Violation], None]


class Req:
    """A request as the ledger sees it."""

    __slots__ = (
        "arr",
        "awaits",
        "blocks",
        "comp",
        "exact",
        "gen",
        "hits",
        "how",
        "jobs",
        "last",
        "loaded",
        "max_tokens",
        "out",
        "pcomp",
        "prio",
        "prompt",
        "r",
        "since",
        "st",
    )

    def __init__(self, r: str, prio: int, arr: float, prompt: int, max_tokens: int) -> None:
        self.r, self.prio, self.arr, self.prompt, self.max_tokens = r, prio, arr, prompt, max_tokens
        self.st: str = WAITING
        self.blocks: set[int] = set()
        self.last = 0  # newest step that schedules it
        self.gen = 0  # its latest load
        self.hits = 0  # blocks it got by prefix hits since it last held none; -1 unknown
        self.loaded = 0  # tokens its load has brought since then; -1 unknown
        self.jobs = 0  # unfinished unordered readers
        self.out = 0  # output tokens
        self.comp = self.pcomp = 0  # tokens computed: as scheduled, as processed
        self.since = 0  # first step of its current stay in RUNNING
        self.exact = False  # comp is known exactly
        self.awaits = ""
        self.how = ""  # why it finished

    @property
    def place(self) -> tuple[int, float]:
        """Its place in the scheduling order."""
        return (self.prio, self.arr)


class LoadRec:
    __slots__ = ("blocks", "gen", "mode", "r", "started", "step", "ts")

    def __init__(self, r: str, gen: int, blocks: Iterable[int], mode: str, step: int, ts: float) -> None:
        self.r, self.gen, self.blocks, self.mode, self.step, self.ts = r, gen, set(blocks), mode, step, ts
        self.started = False


def least(config: s.Config, tokens: int, unknown: int = 0) -> int:
    """Blocks without which a sequence of ``tokens`` cannot be computed, its look-ahead included.

    Look-ahead ends where the longest sequence does. Where a trace does not tell it, ``unknown`` tokens count.
    """
    told = config.slots >= 0 and config.max_model_len > 0
    most = min(tokens + config.slots, config.max_model_len) if told else tokens + unknown
    return -(-most // config.block_size)


def some(items: Iterable[Any], limit: int = 6) -> str:
    """A short list for a message."""
    seq = list(items)
    head = ", ".join(str(x) for x in seq[:limit])
    return head + (f" and {len(seq) - limit} more" if len(seq) > limit else "") if seq else "none"


class State:
    """The state of a ledger. ``report`` gets each violation; the state is then repaired as well as can be."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.path, self.line, self.event = "", 0, -1
        self.config = s.Config(pool=0, block_size=1, depth=1)
        self.events = 0  #: block-state changes and decisions, as benchmarks count them
        self.calls = self.finished = 0
        self._started = False
        self._clear()
        self._on: dict[type, Callable[[Any], None]] = {}

    def _clear(self) -> None:
        self.pool: set[int] = set()
        self.extra: dict[int, int] = {}  # references beyond the first
        self.reqs: dict[str, Req] = {}
        self.running: dict[str, Req] = {}
        self.zombies: dict[str, Req] = {}  # finished, still holding blocks
        self.step = self.processed = 0
        self.done = -1
        self.quiet = 0
        self.in_flight: dict[int, dict[str, int]] = {}
        self.touched: list[tuple[int, Iterable[int], str]] = []  # step, blocks, who
        self.deferred: list[tuple[int, set[int]]] = []
        self.loads: dict[str, LoadRec] = {}
        self.ended: dict[str, LoadRec] = {}  # synchronous loads that ended in this record
        self.stores: dict[str, tuple[str, list[int]]] = {}
        self.reading: dict[int, int] = {}
        self.reused: list[tuple[int, str, str, str]] = []  # block, its reader, new user, how
        self.pins: dict[str, set[int]] = {}
        self.quar: dict[tuple[str, int], set[int]] = {}
        self.given: list[s.Alloc] = []
        self.victims: list[Req] = []
        self.beneficiary = ""  # whom the latest victim made room for, until that one asks again
        self.lateral = False  # that victim was evicted (EvictCoupled then sees to it)
        self.last_refused = ""  # in this record
        self.refusals: set[str] = set()  # refused in this record
        self.failing: set[str] = set()  # whose load failed in this record
        self.expired: set[str] = set()  # loads that expired in this record
        self.since_reset: set[int] | None = None
        self.pause = "none"
        self.ts = 0.0

    # ------------------------------------------------------------------ hooks of the other layers

    def before(self, kind: type, hook: Callable[[Any], None]) -> None:
        """Call ``hook(event)`` before each event of this kind is applied."""
        apply = self._on[kind]

        def both(e: Any) -> None:
            hook(e)
            apply(e)

        self._on[kind] = both

    def after(self, kind: type, hook: Callable[[Any], None]) -> None:
        """Call ``hook(event)`` after each event of this kind was applied."""
        apply = self._on[kind]

        def both(e: Any) -> None:
            apply(e)
            hook(e)

        self._on[kind] = both

    # ------------------------------------------------------------------ reporting

    def bad(self, rule: str, text: str, **kw: Any) -> None:
        for name in ("expected", "observed"):
            if name in kw and not isinstance(kw[name], str):
                kw[name] = str(kw[name])
        self.report(
            Violation(
                rule=rule,
                layer="ledger",
                text=text,
                path=self.path,
                line=self.line,
                step=self.step,
                event=self.event,
                **kw,
            )
        )

    def holders(self, block: int) -> list[str]:
        """Who holds a reference to ``block``, in words."""
        who = [q.r for q in self.reqs.values() if block in q.blocks]
        who += [f"pin {name}" for name, blocks in self.pins.items() if block in blocks]
        who += [f"deferred until step {step}" for step, blocks in self.deferred if block in blocks]
        who += [f"quarantine of {r} load {gen}" for (r, gen), blocks in self.quar.items() if block in blocks]
        return who

    def req(self, r: str, what: str) -> Req | None:
        q = self.reqs.get(r)
        if q is None:
            self.bad(
                "Requests",
                f"{what} names {r!r}, which is not a live request",
                field="r",
                expected="a request that has arrived and holds blocks or is unfinished",
                observed=r,
                requests=[r],
            )
        return q
