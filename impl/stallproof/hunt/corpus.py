"""The folder of a hunt: what it needs to go on where it was, and what it has found.

==================  =====================================================================
file                content
==================  =====================================================================
``hunt.json``       class, release, seed, next case per process, seconds so far, known causes
``corpus.jsonl``    scenarios that showed behaviour not seen before, one per line, only ever added to
``findings/<id>/``  see :mod:`.finding`
==================  =====================================================================

A hunt that is killed loses the case it was in: every line is written when it is known, ``hunt.json`` in one
move, and a torn last line is left out when the folder is read again.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from stallproof.errors import BadInput, Unsupported
from stallproof.scenario import Scenario

SCHEMA = "stallproof-hunt/1"
#: scenarios that a process starts with
_KEPT = 600


class State(Struct, kw_only=True):
    schema: str = SCHEMA
    scheduler: str
    version: str
    seed: int
    seconds: float = 0.0
    cpu: dict[str, float] = {}  #: process -> its CPU time in seconds
    next: dict[str, int] = {}  #: process -> number of its next case
    known: list[list[str]] = []  #: property, signature, and what the shrunk scenario needs
    seen: dict[str, int] = {}  #: property and signature -> further cases that showed it
    cases: int = 0
    coverage: int = 0
    lost: int = 0  #: cases in which the engine's process died
    invalid: int = 0  #: cases whose configuration the engine refuses
    dropped: int = 0  #: failures that a longer or second run did not confirm


class _Line(Struct):
    scenario: Scenario
    coverage: list[int]


class Corpus:
    """Opens or begins the hunt in ``folder``. Raises :class:`BadInput` if another hunt's is there."""

    def __init__(self, folder: Path, scheduler: str, version: str, seed: int) -> None:
        self.folder = folder
        try:
            (folder / "findings").mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise BadInput(exc.strerror or str(exc), path=folder, remedy="give a folder to write to") from exc
        known = self._read()
        self.state = known or State(scheduler=scheduler, version=version, seed=seed)
        old = (self.state.scheduler, self.state.version, self.state.seed)
        if old != (scheduler, version, seed):
            raise BadInput(
                f"holds a hunt on {old[0]} of vLLM {old[1]} with seed {old[2]}", path=folder,
                remedy="give another --corpus, or the same class, --vllm and --seed to go on with it",
            )  # fmt: skip
        self.scenarios: list[Scenario] = []
        self.features: set[int] = set()
        file = folder / "corpus.jsonl"
        if known is None and file.exists() and (not file.is_file() or file.stat().st_size):
            raise BadInput(
                "whose corpus is this? hunt.json, which says so, is missing", path=file,
                remedy="give another --corpus, or bring hunt.json back",
            )  # fmt: skip
        try:
            self._load()
            self._lines = file.open("ab")
            self.save()  # from now on it says whose corpus this is
        except OSError as exc:
            raise BadInput(
                f"cannot be used: {exc.strerror or exc}", path=file, remedy="give a folder to write to"
            ) from exc

    def _read(self) -> State | None:
        file = self.folder / "hunt.json"
        if not file.exists():
            return None
        try:
            raw = msgspec.json.decode(file.read_bytes())
            schema = raw.get("schema") if isinstance(raw, dict) else None
            if isinstance(schema, str) and schema.startswith("stallproof-hunt/") and schema != SCHEMA:
                raise Unsupported(
                    f"{file}: schema {schema}, this build reads {SCHEMA}",
                    remedy="give another --corpus, or use the Stallproof release that wrote it",
                )
            if isinstance(raw, dict) and schema != SCHEMA:
                raise BadInput(f"is no hunt: schema {schema!r}", path=file, remedy="give another --corpus")
            return msgspec.convert(raw, State)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OSError) as exc:
            raise BadInput(f"is no hunt: {exc}", path=file, remedy="give another --corpus") from exc

    def _load(self) -> None:
        file = self.folder / "corpus.jsonl"
        if not file.exists():
            return
        good = 0
        with file.open("rb") as lines:
            for n, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    break  # it was killed here
                try:
                    got = msgspec.json.decode(line, type=_Line)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
                    raise BadInput(
                        f"is no corpus: {exc}", path=file, line=n,
                        remedy="take this line out, or give another --corpus",
                    ) from exc  # fmt: skip
                self.scenarios.append(got.scenario)
                self.features |= set(got.coverage)
                good += len(line)
        if good < file.stat().st_size:
            os.truncate(file, good)
        del self.scenarios[:-_KEPT]

    # ------------------------------------------------------------ while it hunts

    def add(self, raw: dict[str, Any]) -> None:
        """A scenario that showed something new."""
        self._lines.write(
            msgspec.json.encode({"scenario": raw["scenario"], "coverage": raw["coverage"]}) + b"\n"
        )
        self._lines.flush()
        self.features |= set(raw["coverage"])

    def save(self) -> None:
        """Write ``hunt.json`` in one move."""
        self.state.coverage = len(self.features)
        part = self.folder / "hunt.json.part"
        part.write_bytes(msgspec.json.format(msgspec.json.encode(self.state), indent=1) + b"\n")
        part.replace(self.folder / "hunt.json")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.save()
        self._lines.close()
