"""Z3 proofs, unbounded in requests, blocks, tokens and depth.

Layers, each importing only the ones above it (a test keeps it so):

* :mod:`stallproof_proofs.logic`       states, guarded actions, verification conditions
* :mod:`stallproof_proofs.systems`     transition relations: what the scheduler, the engine and connectors do
* :mod:`stallproof_proofs.statements`  what is claimed, and nothing else
* :mod:`stallproof_proofs.proofs`      auxiliary invariants, measures, twins

A reader who wants to know *what* is proved reads ``systems`` and ``statements``; ``proofs`` needs no trust.
Importing this package loads no solver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stallproof_proofs.result import Assumption, Result
    from stallproof_proofs.theory import Obligation

__all__ = ["assumptions", "obligations", "run"]


def run(
    progress: Callable[[int, int, Result], None] | None = None,
    only: Sequence[str] = (),
    thorough: bool = False,
    jobs: int = 1,
) -> list[Result]:
    """Check every obligation and every guard-removed twin.

    ``progress(done, total, result)`` is called after each one (``total`` is about right until every theory
    has begun). ``only`` selects by exact name, by
    theory, or by shell pattern (``*/InFlightSafe*``). ``thorough``
    looks again, for every obligation, for something that makes it fail, instead of naming what the last
    thorough run found. ``jobs`` processes share the work; results keep their order, ``progress`` tells them
    as they come. A result is in order iff ``result.ok``; ``unknown`` never is. Raises
    :class:`stallproof.errors.BadInput` if ``only`` selects nothing.
    """
    from stallproof_proofs.runner import run as _run

    return _run(progress, only, thorough, jobs)


def obligations(only: Sequence[str] = ()) -> list[Obligation]:
    """Every obligation and twin, with its stable name, unchecked."""
    from stallproof_proofs.runner import select

    return select(only)


def assumptions() -> list[Assumption]:
    """Everything the theorems rest on that no obligation proves."""
    from stallproof_proofs.registry import assumptions as _assumptions

    return _assumptions()
