"""The simulated device: how long a step takes. Coefficients are stated and can be overridden."""

from __future__ import annotations

from dataclasses import dataclass, fields

from stallproof.errors import BadInput


@dataclass(frozen=True, slots=True)
class Latency:
    """Duration of a step in seconds: ``base + prefill * p + decode * d + moved * b``.

    The defaults are round figures in the range of an 8B model on one data-centre accelerator; they set a
    scale, they are not a claim about any device. ``idle`` is the pause of an engine with nothing to run.
    """

    base: float = 0.006
    per_prefill_token: float = 0.00006
    per_decode_token: float = 0.00004
    per_block_moved: float = 0.0
    idle: float = 0.001

    def step(self, prefill: int, decode: int, moved: int = 0) -> float:
        """Seconds that a step with these token and block counts occupies the device."""
        if not prefill and not decode and not moved:
            return 0.0
        return (
            self.base
            + prefill * self.per_prefill_token
            + decode * self.per_decode_token
            + moved * self.per_block_moved
        )

    @classmethod
    def parse(cls, text: str) -> Latency:
        """``name=seconds,...``; raises :class:`BadInput` for an unknown name or a bad number."""
        known = {f.name for f in fields(cls)}
        values: dict[str, float] = {}
        for part in filter(None, text.split(",")):
            name, _, number = part.partition("=")
            try:
                value = float(number)
            except ValueError:
                value = -1.0
            if name not in known or not 0 <= value < float("inf"):
                raise BadInput(
                    f"bad latency coefficient {part!r}",
                    remedy="use name=seconds with name in " + ", ".join(sorted(known)),
                )
            values[name] = value
        return cls(**values)
