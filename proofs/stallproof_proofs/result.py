"""Results of the proofs; no solver needed to read them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["proved", "refuted", "unknown"]
Kind = Literal["obligation", "frame", "twin", "sanity"]


@dataclass(frozen=True)
class Result:
    """Outcome of one obligation.

    ``kind``: ``obligation`` must be proved; ``twin`` is an obligation with one thing removed and must be
    refuted; ``sanity`` asks for a model (hypotheses that contradict each other would prove anything), so
    it must be refuted as well; ``frame`` is proved too, but nothing could break it (a conjunct about calls
    and an action between calls, say), so it does not count as an obligation. ``seconds`` is CPU time.
    """

    name: str
    theory: str
    kind: Kind
    status: Status
    expected: Status
    seconds: float
    detail: str = ""
    fails_if: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.status == self.expected

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


@dataclass(frozen=True)
class Assumption:
    """Something a theorem rests on and no obligation proves.

    ``kind``: ``contract`` (a clause the engine or a connector must keep; checked on traces), ``model``
    (a relation written by hand and not derived from a tested transition function), ``glue`` (a step of
    ordinary mathematics outside the solver), ``scope`` (what the theorem does not speak about).
    """

    name: str
    kind: Literal["contract", "model", "glue", "scope"]
    text: str
    theories: tuple[str, ...] = ()
    checked_by: str = ""
