"""Typed observations: what one line of evidence says, with the place it was read from.

Times are seconds on the clock of one emitter (see :mod:`.clock`); ``nan`` means that the line has no time.
"""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

NAN = math.nan

#: Evidence tiers, best first. A finding carries the weakest tier it rests on.
TIERS = {
    "A": "recorder or own trace: every decision",
    "B": "crash dump or stack of the process",
    "C": "DEBUG log",
    "D": "metrics, iteration details",
    "E": "INFO log",
}


#: longest quotation in a report, and the longest piece of a line kept for it
QUOTE, KEEP = 240, 2048
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_PROMPT = re.compile(r"(prompt: |prompt_token_ids: |output: ).*")


class Ref(msgspec.Struct, frozen=True):
    """A place in the input. ``line`` counts from 1; ``raw`` is the start of the line as it was read."""

    file: str
    line: int
    raw: bytes = b""

    @property
    def quote(self) -> str:
        """A bounded, printable quotation; the prompt or output that a request line carries is cut out."""
        text = _ANSI.sub("", self.raw.decode("utf-8", "replace"))
        if "Received request" in text or "Generated response" in text:
            text = _PROMPT.sub(r"\1...", text)
        text = "".join(c if c.isprintable() else " " for c in text.strip("\r\n"))
        return text if len(text) <= QUOTE else text[: QUOTE - 3] + "..."


class Obs(msgspec.Struct, kw_only=True):
    """One observation. ``engine``: index of the engine, -1 where the line does not say."""

    kind: str
    ref: Ref
    t: float = NAN
    engine: int = -1
    data: dict[str, Any] = {}
    tier: str = "E"


class Stats(msgspec.Struct, kw_only=True):
    """The periodic statistics of one engine, from a log line or a metrics scrape.

    ``prompt``/``gen`` are tokens per second (log) or, in a scrape, ``nan``. ``kv`` is percent of the pool.
    ``deferred`` is None where this version does not report it.
    """

    ref: Ref
    t: float = NAN
    engine: int = 0
    prompt: float = NAN
    gen: float = NAN
    running: int = -1
    waiting: int = -1
    deferred: int | None = None
    fetch: tuple[int, int, int] | None = None
    preempt: int = 0
    kv: float = NAN
    hit: float = NAN
    ext_hit: float = NAN
    level: str = ""
    legacy: bool = False

    @property
    def tokens(self) -> float:
        """Tokens per second, prompt and generation together; nan where neither was read."""
        p = 0.0 if math.isnan(self.prompt) else self.prompt
        g = 0.0 if math.isnan(self.gen) else self.gen
        return math.nan if math.isnan(self.prompt) and math.isnan(self.gen) else p + g

    @property
    def zero(self) -> bool:
        """No token in this interval, as printed (one digit: a tiny rate may print as 0.0)."""
        return self.tokens == 0.0

    @property
    def capacity(self) -> int | None:
        """Requests that wait plainly (not deferred); None where the version does not tell."""
        return None if self.deferred is None else max(0, self.waiting - self.deferred)
