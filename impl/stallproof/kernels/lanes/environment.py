"""The two environments of the lanes, hash-locked, below the user's cache.

``interpret``: torch, upstream Triton. ``ascend``: triton-ascend and AscendNPU-IR. They cannot be one: both
Tritons own the same package. They are apart from the engine environments too: a Triton inside one would
change which kernels and which model runner vLLM chooses.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

from stallproof.engines import cache
from stallproof.errors import Unsupported

Say = Callable[[str], None]

#: environment -> lock files as (package, file); the first of a tuple that can be installed is taken
LOCKS: dict[str, tuple[tuple[tuple[str, str], ...], ...]] = {
    "interpret": (
        (("stallproof.engines", "torch-local.txt"), ("stallproof.engines", "torch-public.txt")),
        (("stallproof.kernels.lanes", "interpret.txt"),),
    ),
    "ascend": ((("stallproof.kernels.lanes", "ascend.txt"),),),
}
_DONE = "stallproof-lane"


class Skip(Exception):
    """The lane cannot run here; the text says why, in one line."""


def _text(package: str, name: str) -> str:
    return resources.files(package).joinpath("locks", name).read_text()


def folder(name: str) -> Path:
    digest = hashlib.sha256()
    for choice in LOCKS[name]:
        for lock in choice:
            digest.update(_text(*lock).encode())
    return cache.root() / "kernels" / f"{name}-{digest.hexdigest()[:12]}"


def python(name: str, say: Say) -> Path:
    """The interpreter of environment ``name``, installed if need be.

    Raises Skip where a locked wheel cannot be had, Unsupported without a CPython 3.11 on Linux x86_64.
    """
    where = folder(name)
    exe = where / "bin" / "python"
    if (where / _DONE).exists() and exe.exists():
        return exe
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise Unsupported("kernel lanes run on Linux x86_64", remedy="use a Linux x86_64 container")
    with cache.exclusive():
        if (where / _DONE).exists():  # another process was faster
            return exe
        _install(name, where, say)
    return exe


def _install(name: str, where: Path, say: Say) -> None:
    say(f"== environment {name}: {where}")
    shutil.rmtree(where, ignore_errors=True)
    subprocess.run([_python311(), "-m", "venv", str(where)], check=True)
    exe = str(where / "bin" / "python")
    for choice in LOCKS[name]:
        failed = ""
        for package, lock in choice:
            path = where / lock
            path.write_text(_text(package, lock))
            run = subprocess.run(
                [exe, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-input", "--no-deps"]
                + ["--require-hashes", "--only-binary", ":all:", "-r", str(path)],
                capture_output=True,
                text=True,
            )
            if run.returncode == 0:
                say(f"   {lock}, hashes verified")
                failed = ""
                break
            failed = next((x for x in run.stderr.splitlines() if x.startswith("ERROR")), "pip failed")
        if failed:
            raise Skip(f"{choice[-1][1]} cannot be installed: {failed}")
    (where / _DONE).write_text("whole\n")


def _python311() -> str:
    if sys.version_info[:2] == (3, 11):
        return sys.executable
    if found := shutil.which("python3.11"):
        return found
    raise Unsupported("kernel lanes need Python 3.11", remedy="install Python 3.11")


def run(name: str, args: Sequence[str], say: Say, **env: str) -> int:
    """Run the interpreter of ``name`` with this checkout's or wheel's ``stallproof`` importable."""
    import stallproof

    exe = python(name, say)
    paths = [str(Path(stallproof.__file__).parent.parent), env.pop("PYTHONPATH", "")]
    full = {**os.environ, **env, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}
    full["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    return subprocess.run([str(exe), *args], env=full).returncode
