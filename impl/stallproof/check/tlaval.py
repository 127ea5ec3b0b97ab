"""TLA+ values as TLC prints them, to Python and back.

Sequences and functions over 1..n become tuples, sets frozensets, records dictionaries.
"""

from __future__ import annotations

import re
from typing import Any

_ATOM = re.compile(r"-?\d+|TRUE|FALSE|[A-Za-z_]\w*")
_FIELD = re.compile(r"\s*(\w+)\s*\|->")
_PAIR = re.compile(r"\s*:>")


class TlaSyntaxError(ValueError):
    """The text is not a value of the supported kinds; says where."""


def parse(text: str) -> Any:
    """Parse one value; raises :class:`TlaSyntaxError`."""
    value, pos = _value(text, 0)
    if text[pos:].strip():
        raise TlaSyntaxError(f"text after the value: {text[pos : pos + 40]!r}")
    return value


def _skip(t: str, i: int) -> int:
    while i < len(t) and t[i] in " \n\r\t":
        i += 1
    return i


def _items(t: str, i: int, close: str) -> tuple[list[Any], int]:
    out: list[Any] = []
    i = _skip(t, i)
    while not t.startswith(close, i):
        if i >= len(t):
            raise TlaSyntaxError(f"missing {close!r}")
        v, i = _value(t, i)
        out.append(v)
        i = _skip(t, i)
        if t.startswith(",", i):
            i = _skip(t, i + 1)
        elif not t.startswith(close, i):
            raise TlaSyntaxError(f"expected ',' or {close!r} at {t[i : i + 40]!r}")
    return out, i + len(close)


def _value(t: str, i: int) -> tuple[Any, int]:
    i = _skip(t, i)
    if t.startswith("<<", i):
        items, i = _items(t, i + 2, ">>")
        return tuple(items), i
    if t.startswith("{", i):
        items, i = _items(t, i + 1, "}")
        return frozenset(items), i
    if t.startswith("[", i):
        return _record(t, i + 1)
    if t.startswith("(", i):
        return _function(t, i + 1)
    if t.startswith('"', i):
        end = t.find('"', i + 1)
        if end < 0:
            raise TlaSyntaxError("unterminated string")
        return t[i + 1 : end], end + 1
    m = _ATOM.match(t, i)
    if not m:
        raise TlaSyntaxError(f"no value at {t[i : i + 40]!r}")
    x = m.group()
    if x in ("TRUE", "FALSE"):
        return x == "TRUE", m.end()
    return (int(x) if x.lstrip("-").isdigit() else x), m.end()


def _record(t: str, i: int) -> tuple[Record, int]:
    out = Record()
    while True:
        m = _FIELD.match(t, i)
        if not m:
            raise TlaSyntaxError(f"expected a field at {t[i : i + 40]!r}")
        out[m.group(1)], i = _value(t, m.end())
        i = _skip(t, i)
        if t.startswith(",", i):
            i += 1
        elif t.startswith("]", i):
            return out, i + 1
        else:
            raise TlaSyntaxError(f"expected ',' or ']' at {t[i : i + 40]!r}")


def _function(t: str, i: int) -> tuple[Record, int]:
    out = Record()
    while True:
        key, i = _value(t, i)
        m = _PAIR.match(t, i)
        if not m:
            raise TlaSyntaxError(f"expected ':>' at {t[i : i + 40]!r}")
        out[key], i = _value(t, m.end())
        i = _skip(t, i)
        if t.startswith("@@", i):
            i += 2
        elif t.startswith(")", i):
            return out, i + 1
        else:
            raise TlaSyntaxError(f"expected '@@' or ')' at {t[i : i + 40]!r}")


class Record(dict[Any, Any]):
    """A record or function that may be an element of a set."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


class ModelSet(tuple[str, ...]):
    """Names of TLC model values; together they are the value of one constant."""


def show(v: Any) -> str:
    """A Python value as TLA+ text: str, bool, int, tuple/list (sequence), set (set)."""
    if isinstance(v, ModelSet):
        return "{" + ", ".join(v) + "}"
    if isinstance(v, bool):
        return "TRUE" if v else "FALSE"
    if isinstance(v, str):
        return f'"{v}"'
    if isinstance(v, tuple | list):
        return "<<" + ", ".join(map(show, v)) + ">>"
    if isinstance(v, set | frozenset):
        return "{" + ", ".join(map(show, sorted(v))) + "}"
    return str(v)
