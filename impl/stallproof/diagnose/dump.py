"""Parser of the engine's crash dump (``Dumping scheduler output for model execution: SchedulerOutput(...)``).

The text is no language: ``Name(field=value,...)`` mixed with lists, sets, JSON words (``null``) and
unquoted ids. Shapes: 0.9 a list of ``CachedRequestData(req_id=...)``; 0.10 on, one
``CachedRequestData(req_ids=[...])`` with per-group block lists or ``None``; 0.12 on, ``resumed_req_ids`` as a
set (vLLM logging_utils/dump_input.py, v1/core/sched/output.py). A cut dump gives what came before the cut.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

_TOKEN = re.compile(
    r"\s*(?:(?P<str>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<num>-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?=[\s,)\]}]|$))"
    r"|(?P<punct>[()\[\]{},=:])|(?P<word>[^\s()\[\]{},=:'\"]+))"
)
_DEPTH = 60
_MAX_TOKENS = 4_000_000


class Node(dict[str, Any]):
    """``Name(field=value, ...)``: a mapping with the name in :attr:`kind`."""

    kind = ""


class _Cut(Exception):
    pass


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens = _TOKEN.finditer(text)
        self.held: list[tuple[str, str]] = []
        self.cut = False
        self.count = 0

    def next(self) -> tuple[str, str]:
        if self.held:
            return self.held.pop()
        m = next(self.tokens, None)
        self.count += 1
        if m is None or m.lastgroup is None or self.count > _MAX_TOKENS:
            raise _Cut
        return m.lastgroup, m[m.lastgroup]

    def peek(self) -> tuple[str, str]:
        token = self.next()
        self.held.append(token)
        return token

    def value(self, depth: int = 0) -> Any:
        if depth > _DEPTH:
            raise _Cut
        kind, tok = self.next()
        if kind == "str":
            return tok[1:-1]
        if kind == "num":
            return float(tok) if "." in tok or "e" in tok.lower() else int(tok)
        if kind == "punct":
            if tok in "[({":
                return self.items({"[": "]", "(": ")", "{": "}"}[tok], depth)
            raise _Cut
        name = tok
        try:
            while True:
                k, t = self.peek()
                if k == "punct" and t == "(":
                    self.next()
                    return self.call(name, depth)
                if k in ("word", "num", "str") or (k == "punct" and t in "=:"):
                    # unquoted text such as an id with odd characters, or <Enum.X: 1>
                    name += self.next()[1]
                    continue
                break
        except _Cut:
            self.cut = True
        return {"null": None, "None": None, "true": True, "True": True, "false": False, "False": False}.get(
            name, name
        )

    def items(self, close: str, depth: int) -> list[Any] | dict[str, Any]:
        out: list[Any] = []
        mapping: dict[str, Any] = {}
        try:
            while True:
                k, t = self.peek()
                if k == "punct" and t == close:
                    self.next()
                    break
                if k == "punct" and t == ",":
                    self.next()
                    continue
                if close == "}":
                    key = self.key()
                    k, t = self.peek()
                    if k == "punct" and t == ":":
                        self.next()
                        mapping[key] = self.value(depth + 1)
                    else:
                        out.append(key)
                    continue
                out.append(self.value(depth + 1))
        except _Cut:
            self.cut = True
        return mapping if mapping else out

    def key(self) -> str:
        parts: list[str] = []
        while True:
            k, t = self.peek()
            if k == "punct" and t in ":,}])":
                return "".join(parts)
            if k == "punct":
                raise _Cut
            self.next()
            parts.append(t[1:-1] if k == "str" else t)

    def call(self, name: str, depth: int) -> Node:
        node = Node()
        node.kind = name
        extra: list[Any] = []
        try:
            while True:
                k, t = self.next()
                if k == "punct" and t == ")":
                    break
                if k == "punct" and t == ",":
                    continue
                nk, nt = self.peek()
                if k == "word" and nk == "punct" and nt == "=":
                    self.next()
                    node[t] = None
                    node[t] = self.value(depth + 1)
                else:
                    self.held.append((k, t))
                    extra.append(self.value(depth + 1))
        except _Cut:
            self.cut = True
        if extra:
            node["*"] = extra
        return node


class DumpRequest(msgspec.Struct, kw_only=True):
    """One request of the step. ``blocks``: ids per group; exact for new requests, else a lower bound."""

    id: str
    new: bool
    prompt: int | None = None
    computed: int | None = None
    output: int | None = None
    scheduled: int = 0
    blocks: list[list[int]] = []
    exact: bool = False
    resumed: bool = False


class Dump(msgspec.Struct, kw_only=True):
    """A parsed dump. ``cut``: the text ended early or was not understood to its end."""

    requests: list[DumpRequest] = []
    scheduled_tokens: int = 0
    finished: list[str] = []
    preempted: list[str] = []
    common_prefix_blocks: list[int] = []
    stats: dict[str, Any] = {}
    cut: bool = False
    shape: str = ""


def _groups(value: Any) -> list[list[int]]:
    if not isinstance(value, list):
        return []
    if value and all(isinstance(v, int) for v in value):
        return [value]
    return [[b for b in g if isinstance(b, int)] for g in value if isinstance(g, list)]


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def parse(text: str) -> Dump:
    """Parse the text from ``SchedulerOutput(`` on. Never raises."""
    at = text.find("SchedulerOutput(")
    parser = _Parser(text[at:] if at >= 0 else text)
    try:
        root = parser.value()
    except _Cut:
        return Dump(cut=True)
    if not isinstance(root, dict):
        return Dump(cut=True)
    d = Dump(cut=parser.cut)
    per = root.get("num_scheduled_tokens")
    tokens = per if isinstance(per, dict) else {}
    d.scheduled_tokens = _int(root.get("total_num_scheduled_tokens")) or sum(
        v for v in tokens.values() if isinstance(v, int)
    )
    for n in _list(root.get("scheduled_new_reqs")):
        if isinstance(n, dict) and "req_id" in n:
            ids = n.get("prompt_token_ids")
            prompt = _int(n.get("prompt_token_ids_len"))
            if prompt is None and isinstance(ids, list):
                prompt = len(ids)
            d.requests.append(
                DumpRequest(
                    id=str(n["req_id"]),
                    new=True,
                    prompt=prompt,
                    computed=_int(n.get("num_computed_tokens")),
                    blocks=_groups(n.get("block_ids")),
                    exact=True,
                )
            )
    cached = root.get("scheduled_cached_reqs")
    if isinstance(cached, list):
        d.shape = "0.9 list"
        for n in cached:
            if isinstance(n, dict) and "req_id" in n:
                d.requests.append(
                    DumpRequest(
                        id=str(n["req_id"]),
                        new=False,
                        computed=_int(n.get("num_computed_tokens")),
                        blocks=_groups(n.get("new_block_ids")),
                        resumed=n.get("resumed_from_preemption") is True,
                    )
                )
    elif isinstance(cached, dict):
        d.shape = "0.12+ set" if "resumed_req_ids" in cached else "0.10 list"
        resumed = cached.get("resumed_req_ids")
        back = {str(r) for r in resumed} if isinstance(resumed, list) else set()
        flags = _list(cached.get("resumed_from_preemption"))
        ids = _list(cached.get("req_ids"))
        new, comp, out = (
            _list(cached.get(k)) for k in ("new_block_ids", "num_computed_tokens", "num_output_tokens")
        )
        for i, rid in enumerate(ids):
            d.requests.append(
                DumpRequest(
                    id=str(rid),
                    new=False,
                    computed=_int(comp[i]) if i < len(comp) else None,
                    output=_int(out[i]) if i < len(out) else None,
                    blocks=_groups(new[i]) if i < len(new) else [],
                    resumed=str(rid) in back or (i < len(flags) and flags[i] is True),
                )
            )
    for r in d.requests:
        n = tokens.get(r.id)
        r.scheduled = n if isinstance(n, int) else 0
    d.finished = [str(x) for x in _list(root.get("finished_req_ids"))]
    d.preempted = [str(x) for x in _list(root.get("preempted_req_ids"))]
    d.common_prefix_blocks = [x for x in _list(root.get("num_common_prefix_blocks")) if isinstance(x, int)]
    return d


_STAT = re.compile(
    r"\b(num_running_reqs|num_waiting_reqs|num_skipped_waiting_reqs|kv_cache_usage|gpu_cache_usage)=([\d.eE+-]+)"
)


def parse_stats(text: str) -> dict[str, float]:
    """The counts of ``SchedulerStats(...)``; only what is stated."""
    out: dict[str, float] = {}
    for m in _STAT.finditer(text):
        try:
            out[m[1]] = float(m[2])
        except ValueError:
            continue
    return out
