"""A scenario as one Python script that runs on an engine without Stallproof.

:mod:`~stallproof.hunt.standalone_engine` and :mod:`~stallproof.hunt.standalone_loop` are the script with
every feature; what a scenario or its property does not need is left out (sections between ``# @if FEATURE``
and ``# @end``), and the data is filled in. The script drives, watches and judges by itself: a third judge,
beside the harness's monitors and the trace checker.
"""

from __future__ import annotations

import pprint
import re
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from stallproof.errors import BadInput, Unsupported
from stallproof.scenario import Scenario

#: what each property that the script can judge says, in a few words
MEANINGS = {
    "RefCount": "a shared block's count equals its holders",
    "OneOwner": "an unshared block has exactly one place",
    "InFlightSafe": "a transfer writes no block that a step in flight may touch",
    "XferSafe": "a block that an unfinished load writes belongs to that load's request",
    "StoreSafe": "a block that is being read is not reused, and what is handed over is there",
    "NoDoubleFree": "a block is freed exactly once",
    "NoLeak": "when all have ended, all blocks are back",
    "NoZeroPre": "a preemption frees blocks in the same call",
    "NoInversion": "while a request is refused, nobody behind it that holds no block is given any",
    "NoWedge": "with unfinished work and nothing pending outside, a call does something",
    "Termination": "every request finishes",
    "NoStarvation": "a request finishes however many requests arrive behind it",
    "BoundedWait": "every wait for something outside ends",
    "EngineDies": "the engine's loop raises no exception",
}  # fmt: skip


def features(s: Scenario, prop: str, form: str = "script") -> set[str]:
    """The optional sections that ``s`` needs, what judges ``prop``, and ``form`` (``script`` or ``test``)."""
    e = s.engine
    need = {
        "connector": bool(e.role),
        "lookahead": bool(e.lookahead),
        "loras": bool(e.max_loras),
        "grammar": any(q.grammar for q in s.request),
        "sessions": any(q.turns or q.abandoned for q in s.request),
        "streams": bool(s.stream),
        "aborts": any(q.abort_on for q in s.request),
        "at": bool(s.at),
    }
    return {name for name, yes in need.items() if yes} | {prop, form}


def data(s: Scenario) -> dict[str, Any]:
    """What the script runs: the scenario without text, expectations and values at their defaults."""
    plain = {
        "engine": _plain(s.engine),
        "request": [_plain(q) for q in s.request],
        "stream": [_plain(q) for q in s.stream],
        "at": [_plain(x) for x in s.at],
        "report": [_plain(x) for x in s.report],
        "steps": s.steps,
        "death": s.expect.death,
    }
    return {k: v for k, v in plain.items() if v not in ([], "EngineDies")}


def _plain(x: Any) -> Any:
    if isinstance(x, msgspec.Struct):
        out = {}
        for f in msgspec.structs.fields(x):
            value = getattr(x, f.name)
            default = [] if f.default_factory is list else f.default
            if value != default:
                out[f.name] = _plain(value)
        return out
    return [_plain(v) for v in x] if isinstance(x, list) else x


def sections(template: str, wanted: set[str]) -> str:
    """``template`` without the sections that name nothing in ``wanted``; sections may hold others.

    Raises :class:`ValueError` for a section that is not closed, or an end too many.
    """
    out: list[str] = []
    inside: list[bool] = []
    for number, line in enumerate(template.splitlines(), 1):
        mark = line.strip()
        if mark.startswith("# @if "):
            inside.append(not wanted.isdisjoint(mark.split()[2:]))
        elif mark == "# @end":
            if not inside:
                raise ValueError(f"line {number} ends a section that never began")
            inside.pop()
        elif all(inside):
            out.append(re.sub(r"  # noqa: .*", "", line))
    if inside:
        raise ValueError("a section has no end")
    return "\n".join(out) + "\n"


def check(s: Scenario, prop: str) -> None:
    """Raises :class:`Unsupported` for what no stand-alone script can show."""
    if prop not in MEANINGS and prop != s.expect.death:
        raise Unsupported(
            f"no stand-alone script can judge {prop}", remedy=f"one can judge {', '.join(MEANINGS)}"
        )
    if s.engine.base:
        raise Unsupported(
            f"engine.base = {s.engine.base!r} changes the stock class",
            remedy="give the fork's own class with --scheduler-cls",
        )


def text(
    s: Scenario, prop: str, *, version: str = "", scheduler: str = "stock", wanted: str = "script"
) -> str:
    """The script. ``version``: where it was found; ``scheduler``: ``stock`` or a dotted class name;
    ``wanted``: ``script``, or ``test`` for one without a main program.

    Raises :class:`Unsupported` for a property that only a trace shows, and for our own class, which is no
    part of the stock engine.
    """
    check(s, prop)
    if scheduler == "stallproof":
        raise Unsupported("a reproducer for the stock engine cannot use our class", remedy="stallproof run")
    return filled(_template(), s, prop, version, scheduler, wanted)


def write(path: Path | str, s: Scenario, prop: str, *, version: str = "", scheduler: str = "stock") -> Path:
    """Write :func:`text` to ``path``. Raises :class:`BadInput` if that is not possible, and as there."""
    path = Path(path)
    content = text(s, prop, version=version, scheduler=scheduler)
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as exc:
        raise BadInput(exc.strerror or str(exc), path=path) from exc
    return path


def _template() -> str:
    folder = resources.files("stallproof.hunt")
    first, second = (folder / f"standalone_{x}.py" for x in ("engine", "loop"))
    rest = second.read_text(encoding="utf-8").split('"""', 2)[2]  # its own docstring is about the two halves
    return first.read_text(encoding="utf-8") + "\n\n" + rest.lstrip()


def filled(template: str, s: Scenario, prop: str, version: str, scheduler: str, form: str = "script") -> str:
    """Sections chosen, words and data filled in."""
    body = sections(template, features(s, prop, form))
    story = s.story.strip()
    words = {
        "title": _words(s.title),
        "story": _words(story),
        "property": prop,
        "meaning": MEANINGS.get(prop, "the engine's loop raises no exception"),
        "version": version or "a release that its finding names",
    }
    body = body.replace("@story@\n\n", "") if not story else body
    body = re.sub(r"@(title|story|property|meaning|version)@", lambda m: words[m[1]], body)
    values = "SCENARIO = " + pprint.pformat(data(s), width=98, sort_dicts=False)
    body = re.sub(r"^SCENARIO: dict = \{\}", lambda m: values, body, flags=re.M)
    body = re.sub(r'^SCHEDULER = "stock"', lambda m: f"SCHEDULER = {scheduler!r}", body, flags=re.M)
    return "#!/usr/bin/env python3\n" + re.sub(r"\n{4,}", "\n\n\n", body)


def _words(x: str) -> str:
    return x.replace("\\", "/").replace('"""', "'''")
