"""What earlier runs found out about each obligation: which hypotheses suffice, and what makes it fail.

A hint is never trusted: fewer hypotheses prove more, and a proof that fails with them is tried with all.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path

import msgspec


class Hint(msgspec.Struct, omit_defaults=True):
    """``uses``: hypotheses that suffice. ``fails_if``: what makes the obligation fail; empty if nothing does,
    None if nobody has looked yet.
    """

    uses: list[str] = []
    fails_if: str | None = ""


HINTS = Path(__file__).with_name("hints.json")


def read() -> dict[str, Hint]:
    return msgspec.json.decode(HINTS.read_bytes(), type=dict[str, Hint]) if HINTS.exists() else {}


@lru_cache
def hints() -> dict[str, Hint]:
    return read()


def save(found: Mapping[str, Hint], known: Collection[str] | None = None) -> None:
    """Lay ``found`` over the file; with ``known``, drop what is called otherwise.

    The file is read again and replaced as a whole: who is interrupted leaves the old one or the new one, and
    two runs side by side lose nothing but what both write at the same moment.
    """
    merged = {**read(), **found}
    kept = {n: h for n, h in sorted(merged.items()) if known is None or n in known}
    lines = ",\n".join(f"{json.dumps(n)}:{msgspec.json.encode(h).decode()}" for n, h in kept.items())
    new = HINTS.with_suffix(".tmp")
    new.write_text("{\n" + lines + "\n}\n", encoding="utf-8")
    new.replace(HINTS)
    hints.cache_clear()
