"""Kinds of option values that click lacks."""

from __future__ import annotations

import math
from typing import Any

import click


class Finite(click.FloatRange):
    """A number within a range; click takes ``nan`` for any, and ``inf`` for what has no upper end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        got = float(super().convert(value, param, ctx))
        if not math.isfinite(got):
            self.fail(f"{got} is not a finite number", param, ctx)
        return got
