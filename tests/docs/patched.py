"""pytest plug-in for an engine's interpreter: import vLLM's scheduler with a patch applied.

``PATCH`` names the files, one or several; without it nothing happens. The installed sources stay as they are.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

NAME = "vllm.v1.core.sched.scheduler"


def _import_patched(patches: list[str]) -> None:
    spec = importlib.util.find_spec(NAME)
    assert spec is not None
    assert spec.origin is not None
    folder = Path(tempfile.mkdtemp(prefix="patched-"))
    target = folder / "vllm/v1/core/sched/scheduler.py"
    target.parent.mkdir(parents=True)
    shutil.copy(spec.origin, target)
    for patch in patches:
        subprocess.run(["patch", "-s", "-p1", "-i", patch], cwd=folder, check=True)
    spec = importlib.util.spec_from_file_location(NAME, target)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    sys.modules[NAME.rpartition(".")[0]].scheduler = module  # type: ignore[attr-defined]


if os.environ.get("PATCH"):
    _import_patched(os.environ["PATCH"].split(os.pathsep))
