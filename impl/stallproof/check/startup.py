"""TLC's classes, read and laid out once for the many short runs of a check.

A JVM that maps them (class data sharing) needs a quarter less CPU time for a small configuration. It changes
nothing else, and a JVM that cannot make or take such an archive starts as usual.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from stallproof.check import tlc, tools
from stallproof.check.config import LIVE, Config

#: below it, the archive takes longer than it saves
FEW = 30


@contextlib.contextmanager
def shared_classes(configs: Sequence[Config], timeout: float = 60) -> Iterator[Path | None]:
    """While it lasts, runs of TLC map the classes that a first one loaded; the archive, if there is one."""
    # a liveness gap: small, and it takes TLC through nearly everything
    small = next((c for c in configs if c.has_twin and c.refutes in LIVE), None)
    if len(configs) < FEW or small is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="stallproof-classes-") as tmp:
        made = _make(small, Path(tmp), timeout)
        before, tlc.shared = tlc.shared, [f"-XX:SharedArchiveFile={made}"] if made else []
        try:
            yield made
        finally:
            tlc.shared = before


def _make(cfg: Config, folder: Path, timeout: float) -> Path | None:
    classes, archive = folder / "classes", folder / "archive"
    seen = ["-Xshare:off", f"-XX:DumpLoadedClassList={classes}"]
    tlc.run(cfg.module, cfg.tla, properties=[cfg.refutes], spec="FairSpec", timeout=timeout, jvm=seen)
    if not classes.is_file():
        return None
    lay_out = [f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={archive}"]
    cmd = [str(tools.java()), *tlc.SHORT_JVM, "-Xshare:dump", *lay_out, "-cp", str(tools.jar())]
    try:
        subprocess.run(cmd, capture_output=True, timeout=timeout, check=True)
    except (subprocess.SubprocessError, OSError):
        return None
    return archive if archive.is_file() else None
