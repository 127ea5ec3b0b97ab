"""Bring vLLM releases up on CPU and run Python in them.

>>> from stallproof import engines
>>> engines.up(["0.32.0"])                                    # doctest: +SKIP
>>> engines.get("0.28.0").run(["-c", "import vllm"])          # doctest: +SKIP
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stallproof.engines import cache
from stallproof.engines.catalogue import BASE, CI, MATRIX, SDISTS, check
from stallproof.engines.install import base_python, is_up, overlay_folder, remove, sdist, shim, up
from stallproof.errors import BadInput

__all__ = [
    "BASE", "CI", "MATRIX", "SDISTS", "Engine", "check", "get", "installed", "is_up", "remove", "sdist", "up",
]  # fmt: skip


@dataclass(frozen=True)
class Engine:
    """One release, ready to run: ``python`` with ``path`` in front of its module search path."""

    version: str
    python: Path
    path: tuple[Path, ...]
    extra_env: Mapping[str, str] = field(default_factory=dict)

    def env(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a process in this engine; the caller's own PYTHONPATH comes last."""
        env = dict(os.environ)
        env.pop("VIRTUAL_ENV", None)
        env.pop("PYTHONHOME", None)
        tail = [p for p in env.get("PYTHONPATH", "").split(os.pathsep) if p]
        env["PYTHONPATH"] = os.pathsep.join([*map(str, self.path), *tail])
        env["PYTHONUTF8"] = "1"  # an engine reads files of its own with the locale's encoding
        env.setdefault("HF_HUB_OFFLINE", "1")
        env.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        env.setdefault("VLLM_NO_USAGE_STATS", "1")
        env.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        # vLLM keeps one file per model class and looks at it anew, in a process of its own, when the file is
        # another release's: several seconds at every start where releases take turns.
        env.setdefault("VLLM_CACHE_ROOT", str(cache.root() / "vllm" / self.version))
        # A tiny model gains nothing from more threads, and on a busy machine they wait for each other.
        env.setdefault("OMP_NUM_THREADS", "1")
        env.update(self.extra_env)
        env.update(extra or {})
        return env

    def run(
        self, args: Sequence[str], extra_env: Mapping[str, str] | None = None, **kwargs: Any
    ) -> subprocess.CompletedProcess[Any]:
        """``python args``, as :func:`subprocess.run`."""
        return subprocess.run([str(self.python), *args], env=self.env(extra_env), check=False, **kwargs)


def get(version: str) -> Engine:
    """An installed release.

    Raises :class:`~stallproof.errors.Unsupported` for a release outside the table and
    :class:`~stallproof.errors.BadInput` with the command to run if it is not installed.
    """
    check(version)
    if not is_up(version):
        raise BadInput(f"vLLM {version} is not installed", remedy=f"stallproof engines up {version}")
    foreign = {} if version == BASE else {"STALLPROOF_OVERLAY": "1"}
    return Engine(version, base_python(), (overlay_folder(version), shim()), foreign)


def installed() -> list[cache.Manifest]:
    """Manifests of whole and up-to-date installations, oldest release first."""
    return [m for v in SDISTS if is_up(v) and (m := cache.read(overlay_folder(v))) is not None]
