"""A finding on disk: a folder with the shrunk scenario, and beside it who broke which property, and when.

==================  ===================================================================
file                content
==================  ===================================================================
``scenario.toml``   the shrunk scenario (:mod:`stallproof.scenario`); ``stallproof run`` takes it
``finding.json``    :class:`Finding`
``reproducer.py``   runs the scenario with nothing but vLLM installed
``test_upstream.py``  a test that fails while the fault is there
``trace.jsonl``     recording of the run; ``stallproof report`` and ``replay`` read it
``explanation.txt``  what happened, for people
==================  ===================================================================
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from stallproof import scenario as scenarios
from stallproof.errors import BadInput, Unsupported
from stallproof.scenario import Scenario

SCHEMA = "stallproof-finding/1"


class Size(Struct, forbid_unknown_fields=True, kw_only=True):
    """How large a scenario is."""

    requests: int  #: requests and streams of newcomers
    blocks: int  #: usable blocks of the pool
    steps: int  #: scheduling calls until the run ended
    fields: int = 0  #: values that differ from the format's defaults


class Finding(Struct, forbid_unknown_fields=True, kw_only=True):
    """One property broken in one way. ``property``, ``cause`` and ``needs`` make it distinct."""

    schema: str = SCHEMA
    id: str  #: property and the first digits of a hash of cause and needs; name of the folder
    property: str
    cause: str  #: signature of the last change before the property broke, without names and numbers
    needs: list[str] = []  #: what the shrunk scenario uses beyond plain requests on a plain pool
    text: str  #: what the judge said of the shrunk scenario
    scheduler: str  #: as given: ``stock``, ``stallproof`` or a dotted class name
    version: str  #: vLLM release it was found on
    violated: dict[str, str] = {}  #: every property that the shrunk scenario breaks there
    versions: dict[str, str] = {}  #: release -> ``ok`` or the property; filled in by ``--bisect``
    seed: int = 0
    case: int = 0  #: number of the case in the hunt
    seconds: float = 0.0  #: from the start of the hunt until it was first seen
    cpu: float = 0.0  #: CPU time of the process that found it, until then
    size: Size
    before: Size | None = None  #: before shrinking
    limit: str = ""  #: the listed limit of our class that it shows, if any
    seen: int = 1  #: how many cases of this hunt showed it


def size_of(s: Scenario, steps: int) -> Size:
    """Size of ``s``; ``steps`` is what its run took."""

    def count(x: object) -> int:
        if isinstance(x, dict):
            return sum(count(v) for v in x.values())
        return sum(count(v) for v in x) if isinstance(x, list) else 1

    said = msgspec.to_builtins(
        [s.engine, s.request, s.stream, s.at, s.report],
    )
    return Size(
        requests=sum(q.count for q in s.request) + len(s.stream),
        blocks=s.engine.blocks,
        steps=steps,
        fields=count(said),
    )


def write(folder: Path, finding: Finding, s: Scenario) -> Path:
    """Write ``folder``/<id>/scenario.toml and finding.json; returns that folder. Other files are left."""
    from stallproof.scenario.writing import dump

    here = folder / finding.id
    here.mkdir(parents=True, exist_ok=True)
    dump(s, here / "scenario.toml")
    save(here, finding)
    return here


def save(here: Path, finding: Finding) -> None:
    """Write ``here``/finding.json alone, in one move."""
    text = msgspec.json.format(msgspec.json.encode(finding), indent=2)
    part = here / "finding.json.part"
    part.write_bytes(text + b"\n")
    part.replace(here / "finding.json")


def read(path: Path | str) -> tuple[Finding, Scenario]:
    """The finding in a folder, or of a ``finding.json`` or ``scenario.toml`` in it.

    Raises :class:`BadInput` if a file is missing or not what it should be, :class:`Unsupported` for another
    schema.
    """
    here = Path(path)
    if here.is_file():
        here = here.parent
    file = here / "finding.json"
    try:
        raw = file.read_bytes()
    except OSError as exc:
        raise BadInput(
            exc.strerror or str(exc), path=file, remedy="give the folder of a finding that hunt has written"
        ) from exc
    try:
        head = msgspec.json.decode(raw)
        schema = head.get("schema") if isinstance(head, dict) else None
        if isinstance(schema, str) and schema != SCHEMA and schema.startswith("stallproof-finding/"):
            raise Unsupported(
                f"{file}: schema {schema}, this build reads {SCHEMA}",
                remedy="use the Stallproof release that wrote it",
            )
        found = msgspec.convert(head, Finding)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as exc:
        raise BadInput(
            f"is no finding: {exc}", path=file, remedy="take its folder out of findings/, or give another"
        ) from exc
    return found, scenarios.load(here / "scenario.toml")
