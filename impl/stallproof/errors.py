"""Exit codes and the few exceptions that every part of Stallproof shares.

The codes are a contract with scripts and probes:

====  =====================================================================
code  meaning
====  =====================================================================
0     fine: conforms, holds, progressing, or idle
1     a finding: a property is violated, a check was not refuted as expected
2     bad input, or the evidence does not decide
3     unsupported: an engine version, platform or tool outside the tested range
====  =====================================================================
"""

from __future__ import annotations

from enum import IntEnum
from os import PathLike


class Exit(IntEnum):
    """Process exit codes of every ``stallproof`` command."""

    OK = 0
    FINDING = 1
    BAD_INPUT = 2
    UNSUPPORTED = 3


class StallproofError(Exception):
    """An error that a person can act on; the command line prints it without a traceback."""

    code: Exit = Exit.BAD_INPUT


class BadInput(StallproofError):
    """Unreadable, truncated, foreign or contradictory input.

    ``line`` counts from 1; ``remedy`` says what the reader can do about it.
    """

    code = Exit.BAD_INPUT

    def __init__(
        self,
        what: str,
        *,
        path: str | PathLike[str] | None = None,
        line: int | None = None,
        remedy: str | None = None,
    ) -> None:
        where = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(f"{where}{what}" + (f"\n  remedy: {remedy}" if remedy else ""))
        self.what, self.path, self.line, self.remedy = what, path, line, remedy


class Unsupported(StallproofError):
    """A version, platform or tool outside the tested range."""

    code = Exit.UNSUPPORTED

    def __init__(self, what: str, *, remedy: str | None = None) -> None:
        super().__init__(what + (f"\n  remedy: {remedy}" if remedy else ""))
        self.what, self.remedy = what, remedy
