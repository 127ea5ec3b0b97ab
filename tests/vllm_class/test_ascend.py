"""The guard around vllm-ascend's own scheduler classes: its released wheel, vLLM 0.23, no NPU."""

from __future__ import annotations

import functools
import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from stallproof import engines
from stallproof.engines import cache
from tests.vllm_class.test_class import run_cases

HERE = Path(__file__).resolve().parent
NAMES = re.findall(r"^def (case_\w+)\(", (HERE / "ascend_cases.py").read_text(), re.M)
WHEEL = "vllm_ascend-0.23.0-cp311-cp311-manylinux_2_34_x86_64.whl"
SHA256 = "4f0d25d3b6d8ae85753b53d4bd8d910418865baf413fa779b87012ad1a4a3f87"

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@functools.cache
def files() -> Path:
    """The Python files of the wheel's schedulers and patches, below the cache."""
    folder = cache.root() / "ascend" / "0.23.0"
    wheel = folder / WHEEL
    if not wheel.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:",
            "--python-version", "3.11", "--platform", "manylinux_2_34_x86_64", "-d", str(folder),
            "vllm-ascend==0.23.0",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert wheel.exists(), f"cannot get vllm-ascend: {done.stderr.strip()[-300:]}"
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == SHA256, f"{WHEEL} is not the known release"
    with zipfile.ZipFile(wheel) as z:
        for name in z.namelist():
            if re.match(r"vllm_ascend/(core|patch/platform)/[^/]+\.py$", name):
                z.extract(name, folder)
    return folder


@functools.cache
def results() -> dict[str, str]:
    assert engines.is_up("0.23.0"), "run: make engines VLLM=0.23.0"
    return run_cases("0.23.0", "ascend_cases", {"STALLPROOF_ASCEND_FILES": str(files())})


@pytest.mark.parametrize("name", NAMES)
def test_case(name: str) -> None:
    found = results()
    assert name in found, found.get("", "the case did not run")
    assert not found[name], found[name]
