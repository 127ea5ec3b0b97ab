"""The cache folder: where engines live, how a half-made one is told from a whole one, one writer."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stallproof.errors import BadInput

MANIFEST = "stallproof-engine.json"


class Manifest(msgspec.Struct):
    """Written last, by an atomic rename: a folder without it is an interrupted installation."""

    version: str
    kind: str  #: ``full`` or ``overlay``
    digest: str  #: of everything that went in; another digest means out of date
    python: str
    torch: str = ""
    bytes: int = 0
    seconds: float = 0.0


def root() -> Path:
    """``$STALLPROOF_CACHE``, else ``$XDG_CACHE_HOME/stallproof``, else ``~/.cache/stallproof``."""
    if own := os.environ.get("STALLPROOF_CACHE"):
        return Path(own).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "stallproof"


def engines() -> Path:
    return root() / "engines"


def read(folder: Path) -> Manifest | None:
    """The manifest of a finished installation, ``None`` if there is none or it cannot be read."""
    try:
        return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.MsgspecError):
        return None


def seal(folder: Path, manifest: Manifest) -> None:
    """Declare ``folder`` whole."""
    part = folder / (MANIFEST + ".part")
    with part.open("wb") as f:
        f.write(msgspec.json.format(msgspec.json.encode(manifest)))
        f.flush()
        os.fsync(f.fileno())
    part.replace(folder / MANIFEST)


def size(folder: Path) -> int:
    """Bytes on disk below ``folder``; links are not followed."""
    return sum(p.lstat().st_blocks * 512 for p in folder.rglob("*"))


def discard(folder: Path) -> None:
    """Remove a folder; its manifest goes first, so that an interruption leaves nothing that looks whole."""
    with contextlib.suppress(FileNotFoundError):
        (folder / MANIFEST).unlink()
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """One installer at a time; others wait. The lock dies with its process."""
    base = engines()
    try:
        base.mkdir(parents=True, exist_ok=True)
        f = (base / ".lock").open("w")
    except OSError as exc:
        raise BadInput(
            f"cannot write the cache: {exc}", remedy="set STALLPROOF_CACHE to a writable folder"
        ) from exc
    with f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield
