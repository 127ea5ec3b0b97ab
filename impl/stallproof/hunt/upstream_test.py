"""A scenario as a test in the style of vLLM's suite: fails while the fault is there.

The same code as :mod:`~stallproof.hunt.reproducer`, with one pytest function at its end. It stands by itself
(no fixtures, no model from a hub), so it can be dropped into ``tests/v1/core``. Where vLLM's own helpers
suffice, a test written by hand over them is shorter: see ``docs/upstream``.
"""

from __future__ import annotations

import re
from pathlib import Path

from stallproof.errors import BadInput
from stallproof.hunt import reproducer
from stallproof.scenario import Scenario

_HEAD = "# SPDX-License-Identifier: Apache-2.0\n"

_TEST = """
pytestmark = pytest.mark.cpu_test


def test_{name}():
    run = Run(SCENARIO)
    run.go()
    assert PROPERTY not in run.bugs, run.bugs[PROPERTY]
"""


def name(s: Scenario) -> str:
    """``s.id`` as the name of a function."""
    return re.sub(r"\W+", "_", s.id.lower()).strip("_") or "scenario"


def text(s: Scenario, prop: str, *, version: str = "", scheduler: str = "stock") -> str:
    """The test file. Raises as :func:`reproducer.text`."""
    body = reproducer.text(s, prop, version=version, scheduler=scheduler, wanted="test")
    body = body.split("\n", 1)[1]  # a test is not executable
    body = body.replace(
        "from types import SimpleNamespace\n", "from types import SimpleNamespace\n\nimport pytest\n", 1
    )
    return _HEAD + body.rstrip() + "\n\n" + _TEST.format(name=name(s))


def write(path: Path | str, s: Scenario, prop: str, *, version: str = "", scheduler: str = "stock") -> Path:
    """Write :func:`text` to ``path``. Raises :class:`BadInput` if that is not possible, and as there."""
    path = Path(path)
    content = text(s, prop, version=version, scheduler=scheduler)
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as exc:
        raise BadInput(exc.strerror or str(exc), path=path) from exc
    return path
