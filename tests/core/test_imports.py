"""The core imports no engine and nothing of the command line; asking the package for a class imports vLLM."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import pkgutil, sys, importlib, stallproof.core as core, stallproof.vllm
for m in pkgutil.iter_modules(core.__path__):
    importlib.import_module(f"stallproof.core.{m.name}")
bad = [m for m in sys.modules if m.split(".")[0] in ("vllm", "torch", "click", "rich")]
assert not bad, bad
try:
    stallproof.vllm.AsyncScheduler
except ModuleNotFoundError as exc:
    print(exc.name)
"""


def test_core_and_the_lazy_package() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("vllm", "vllm.v1", "")
