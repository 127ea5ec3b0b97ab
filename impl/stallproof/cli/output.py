"""Files that a command writes: complete or not there at all, and never in the place of what is no file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from stallproof.errors import BadInput


def printable(text: str) -> str:
    """``text`` with everything that could move a terminal's cursor or turn its line spelled out.

    Names come from traces and logs, and whoever sends requests may choose them.
    """
    if text.isprintable():
        return text
    plain = (c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
    return "".join(plain)


def apart(output: str | Path, inputs: Iterable[str | Path]) -> None:
    """Refuse an ``output`` that is one of the ``inputs``; raises :class:`BadInput`."""
    for given in inputs:
        # what is no file (a terminal, /dev/null) may be both
        if Path(output).is_file() and Path(given).exists() and Path(output).samefile(given):
            raise BadInput(
                "would be overwritten: it is an input, too", path=output, remedy="name another output file"
            )


@contextmanager
def whole(output: str | Path) -> Iterator[IO[str]]:
    """Write ``output``, which appears under its name only when it is complete.

    A link stays a link, and what is there and no regular file (a device, a pipe) is written to, not replaced:
    a rename over ``/dev/null`` would take it from everybody. Raises ``OSError``.
    """
    final = Path(os.path.realpath(output))
    if final.is_dir():
        raise IsADirectoryError(None, "it is a folder", str(output))
    if final.exists() and not final.is_file():
        with final.open("w", encoding="utf-8", errors="backslashreplace") as out:
            yield out
        return
    part = final.with_name(f"{final.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8", errors="backslashreplace") as out:
            yield out
        part.replace(final)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def result(output: str, inputs: Iterable[str | Path] = ()) -> Iterator[IO[str]]:
    """:func:`whole` for an option of the command: ``-`` is standard output, trouble is :class:`BadInput`."""
    if output == "-":
        yield sys.stdout
        return
    apart(output, inputs)
    try:
        with whole(output) as out:
            yield out
    except OSError as exc:
        raise BadInput(
            f"cannot be written: {exc.strerror or exc}",
            path=output or "''",
            remedy="name a file in a folder that exists and may be written",
        ) from exc
