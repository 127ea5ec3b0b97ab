"""One self-contained HTML file out of parts and data.

Reusable: a page is a title, facts, and a list of *parts* (``bands``, ``lanes``, ``blocks``, ``records``,
``findings``, ``lines``, ``table``, ``facts``; each a script of the same name in ``assets/``), with data given
as JSON or as columns of numbers.

Security: the file loads nothing (Content-Security-Policy ``default-src 'none'``; scripts and styles are
allowed by hash alone), and data never becomes markup: JSON is embedded with every ``<``, ``>`` and ``&``
escaped, columns are compressed base64, and the scripts write text with ``textContent`` only.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import sys
import zlib
from array import array
from collections.abc import Mapping
from importlib.resources import files
from typing import IO, Any

from stallproof import __version__

#: Scripts in the order in which they are put into the page; `page.js` starts it and comes last.
CORE_SCRIPTS = ("core.js", "view.js", "trace.js")
PART_SCRIPTS = {
    "findings": "findings.js",
    "bands": "bands.js",
    "lanes": "lanes.js",
    "blocks": "blocks.js",
    "records": "records.js",
    "lines": "lines.js",
    "table": "table.js",
    "facts": "table.js",
}


def _asset(name: str) -> str:
    return files("stallproof.report").joinpath("assets", name).read_text(encoding="utf-8")


def embed(value: Any) -> str:
    """JSON that may stand inside a script element: no ``<``, ``>``, ``&``, U+2028 or U+2029."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def pack(columns: Mapping[str, array[Any]]) -> bytes:
    """Columns as one zlib stream: little-endian, a JSON directory first, each column 8-byte aligned.

    Type codes: ``B`` uint8, ``i`` int32, ``d`` float64.
    """
    names: list[list[Any]] = []
    body = bytearray()
    for name, column in columns.items():
        if column.typecode not in "Bid":
            raise ValueError(f"column {name}: type {column.typecode!r} is not one of B, i, d")
        body += b"\0" * (-len(body) % 8)
        names.append([name, column.typecode, len(body), len(column)])
        little = array(column.typecode, column)
        if sys.byteorder == "big":
            little.byteswap()
        body += little.tobytes()
    directory = json.dumps(names).encode()
    directory += b" " * (-(len(directory) + 4) % 8)
    return zlib.compress(len(directory).to_bytes(4, "little") + directory + bytes(body), 6)


class Page:
    """Collects parts and data, then writes the file."""

    def __init__(self, title: str, subtitle: str = "", *, verdict: str = "", tone: str = "plain") -> None:
        """``tone`` colours the verdict: ``good``, ``bad`` or ``plain``."""
        self.title, self.subtitle, self.verdict, self.tone = title, subtitle, verdict, tone
        self._parts: list[dict[str, Any]] = []
        self._json: dict[str, Any] = {}
        self._blobs: list[tuple[str, bytes]] = []

    def data(self, name: str, value: Any) -> None:
        """JSON data under ``name``; read in the page with ``SP.data(name)``."""
        self._json[name] = value

    def columns(self, name: str, columns: Mapping[str, array[Any]]) -> None:
        """Columns of numbers under ``name``; read in the page with ``await SP.columns(name)``."""
        self.blob(name, pack(columns))

    def blob(self, name: str, compressed: bytes) -> None:
        """A zlib stream under ``name``, decompressed in the page when it is first asked for."""
        self._blobs.append((name, compressed))

    def part(self, kind: str, title: str, *, area: str = "main", **options: Any) -> None:
        """Add a part; ``area``: ``wide`` (full width), ``main`` or ``side``. Options must be JSON."""
        if kind not in PART_SCRIPTS:
            raise ValueError(f"no part {kind!r}; parts: {', '.join(PART_SCRIPTS)}")
        self._parts.append({"kind": kind, "title": title, "area": area, "options": options})

    def write(self, out: IO[str]) -> None:
        """Write the page, piece by piece, so that a large one is not held twice."""
        names = [*CORE_SCRIPTS]
        for part in self._parts:
            script = PART_SCRIPTS[part["kind"]]
            if script not in names:
                names.append(script)
        script = "\n".join(_asset(name) for name in [*names, "page.js"])
        style = _asset("page.css")
        out.write(self._head(script, style))
        out.write(self._body())
        manifest = {"parts": self._parts, "title": self.title, "version": __version__}
        for name, value in {"page": manifest, **self._json}.items():
            out.write(f'<script type="application/json" id="{_id("json", name)}">{embed(value)}</script>\n')
        for name, blob in self._blobs:
            out.write(f'<script type="text/plain" id="{_id("blob", name)}">')
            out.write(base64.b64encode(blob).decode("ascii"))
            out.write("</script>\n")
        out.write(f"<script>{script}</script>\n</body></html>\n")

    def _head(self, script: str, style: str) -> str:
        policy = (
            f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
            "img-src data:; base-uri 'none'; form-action 'none'"
        )
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="color-scheme" content="light dark">\n'
            '<link rel="icon" href="data:,">\n'
            f"<title>{html.escape(self.title)}</title>\n<style>{style}</style></head>\n"
        )

    def _body(self) -> str:
        esc = html.escape
        chip = f'<span class="chip {esc(self.tone)}">{esc(self.verdict)}</span>' if self.verdict else ""
        return (
            '<body><a class="skip" href="#main">Skip to the charts</a>\n'
            f"<header><div><h1>{esc(self.title)}</h1>"
            f'<p class="sub">{esc(self.subtitle)}</p></div>{chip}</header>\n'
            '<main id="main" tabindex="-1"></main>\n'
            f"<footer>stallproof {esc(__version__)} · self-contained: this file loads nothing</footer>\n"
            "<noscript>This report draws its charts with JavaScript, which is off.</noscript>\n"
        )


def _id(kind: str, name: str) -> str:
    return html.escape(f"{kind}-{name}", quote=True)


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
