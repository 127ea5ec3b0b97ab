"""Download a source release by hash, from the index that pip itself is configured with.

``pip download`` of a source release runs the project's build to learn its metadata (for vLLM: a compiler
and a CUDA search). A plain file with a known hash needs none of that. pip's settings (configuration files
and environment: index, extra indexes, certificate) are asked from pip, so mirrors and proxies keep working.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
import ssl
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stallproof.errors import BadInput

_PYPI = "https://pypi.org/simple"
_JSON = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


class Settings:
    """What pip would use: index URLs in order, and a certificate bundle."""

    def __init__(self, lines: str) -> None:
        found: dict[str, str] = {}
        # global first, then install/download sections, the environment last: the later wins, as in pip
        order = {"global": 0, "install": 1, "download": 1, ":env:": 2}
        rows = []
        for line in lines.splitlines():
            key, _, value = line.partition("=")
            section, _, name = key.strip().rpartition(".")
            if section in order:
                rows.append((order[section], name.replace("_", "-"), value.strip().strip("'\"")))
        for _, name, value in sorted(rows, key=lambda r: r[0]):
            found[name] = value
        extra = found.get("extra-index-url", "").replace("\\n", " ").split()
        self.indexes = [found.get("index-url", _PYPI), *extra]
        self.cert = found.get("cert")


def settings(python: Path) -> Settings:
    """Ask the pip of ``python``."""
    run = subprocess.run(
        [str(python), "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    return Settings(run.stdout)


def _open(url: str, cert: str | None, accept: str | None = None) -> Any:
    parts = urllib.parse.urlsplit(url)
    headers = {"Accept": accept} if accept else {}
    if parts.username:  # urllib does not take credentials from the address
        secret = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(secret.encode()).decode()
        host = parts.hostname or ""
        url = parts._replace(netloc=f"{host}:{parts.port}" if parts.port else host).geturl()
    context = ssl.create_default_context(cafile=cert) if url.startswith("https") else None
    return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60, context=context)


def links(index: str, project: str, cert: str | None) -> dict[str, str]:
    """File name -> URL, from one simple index (JSON or HTML)."""
    page = f"{index.rstrip('/')}/{project}/"
    if page.startswith("file:"):
        page += "index.html"
    with _open(page, cert, _JSON) as answer:
        base, body = answer.geturl(), answer.read().decode("utf-8", "replace")
        kind = answer.headers.get("Content-Type", "")
    if "json" in kind:
        import json

        return {f["filename"]: urllib.parse.urljoin(base, f["url"]) for f in json.loads(body)["files"]}
    found = {}
    for href in re.findall(r"""<a\s[^>]*href=["']([^"']+)["']""", body):
        url = urllib.parse.urljoin(base, html.unescape(href))
        found[urllib.parse.unquote(urllib.parse.urlsplit(url).path.rsplit("/", 1)[-1])] = url
    return found


def sdist(
    version: str, sha256: str, folder: Path, python: Path, progress: Callable[[int, int], None] | None = None
) -> Path:
    """``vllm-<version>.tar.gz`` in ``folder``, verified; taken as it is if it is there already.

    ``progress(bytes so far, bytes in all)``. Raises :class:`BadInput` when no configured index has the file,
    or what it has carries another hash.
    """
    name = f"vllm-{version}.tar.gz"
    target = folder / name
    if target.exists() and _digest(target) == sha256:
        return target
    conf = settings(python)
    tried = []
    for index in conf.indexes:
        shown = re.sub(r"//[^@/]*@", "//", index)
        try:
            url = links(index, "vllm", conf.cert).get(name)
            if url is None:
                tried.append(f"{shown}: has no {name}")
                continue
            folder.mkdir(parents=True, exist_ok=True)
            part = target.with_suffix(".part")
            got = _copy(url, conf.cert, part, progress)
        except (urllib.error.URLError, OSError, ValueError, KeyError) as exc:
            tried.append(f"{shown}: {exc}")
            continue
        if got != sha256:
            part.unlink(missing_ok=True)
            tried.append(f"{shown}: {name} has SHA-256 {got}, expected {sha256}")
            continue
        part.replace(target)
        return target
    raise BadInput(
        f"cannot get {name}: " + "; ".join(tried),
        remedy="check the network and pip's index-url (pip config list)",
    )


def _copy(url: str, cert: str | None, target: Path, progress: Callable[[int, int], None] | None) -> str:
    digest = hashlib.sha256()
    with _open(url, cert) as source, target.open("wb") as out:
        total = int(source.headers.get("Content-Length") or 0)
        done = 0
        while piece := source.read(1 << 18):
            out.write(piece)
            digest.update(piece)
            done += len(piece)
            if progress:
                progress(done, total)
    return digest.hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
