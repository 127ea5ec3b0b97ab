"""Equality of TLC's state graph with the Python twin's: nodes, edges, action names, self loops."""

from __future__ import annotations

import html
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stallproof.check import tlc
from stallproof.check.tlaval import parse
from stallproof_model import explore
from stallproof_model.sched import Next
from stallproof_model.state import Constants, State, Step

_NODE = re.compile(r'^(-?\d+) \[label="(.*?)"(?:,style = filled)?\]', re.M | re.S)
_EDGE = re.compile(r'^(-?\d+) -> (-?\d+) \[label="(.*?)"', re.M)

Edges = set[tuple[State, str, State]]


def to_state(record: dict[str, Any]) -> State:
    """TLC's record ``s`` as a :class:`State`; raises KeyError if a field is missing or unknown."""
    unknown = set(record) - set(State._fields)
    if unknown:
        raise KeyError(f"fields unknown to the Python model: {sorted(unknown)}")
    fields = dict(record)
    fields["infl"] = tuple(Step(e["all"], e["out"], e["rel"]) for e in record["infl"])
    return State(**fields)


def read_dot(text: str) -> tuple[set[State], Edges]:
    """Nodes and labelled edges of a ``-dump dot,actionlabels`` file of ``Sched.tla``."""
    ids: dict[str, State] = {}
    for m in _NODE.finditer(text):
        label = html.unescape(m.group(2)).replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
        ids[m.group(1)] = to_state(parse(label.strip().removeprefix("/\\").strip().removeprefix("s =")))
    edges = {(ids[m.group(1)], m.group(3), ids[m.group(2)]) for m in _EDGE.finditer(text)}
    return set(ids.values()), edges


@dataclass
class Comparison:
    """Outcome of a graph comparison; ``difference`` is empty if the graphs are equal."""

    nodes: int
    edges: int
    depth: int
    difference: str
    seconds: float


def tlc_graph(c: Constants, timeout: float = 600) -> tuple[set[State], Edges, tlc.Result]:
    """TLC's complete graph of ``c``."""
    with tempfile.TemporaryDirectory(prefix="stallproof-dot-") as tmp:
        path = Path(tmp) / "graph.dot"
        r = tlc.run("Sched", c._asdict(), dump=path, timeout=timeout)
        nodes, edges = read_dot(path.read_text()) if r.result == tlc.OK else (set(), set())
    return nodes, edges, r


def compare(c: Constants, timeout: float = 600, next_: Callable | None = None) -> Comparison:
    """Compare both graphs of ``c``; ``next_`` replaces the twin's ``Next`` (a mutant)."""
    nodes, edges, r = tlc_graph(c, timeout)
    g = explore.graph(c, next_=next_ or Next)
    mine, mine_edges = set(g.nodes), explore.edge_set(g)
    if r.result != tlc.OK:
        what = f"TLC: {r.error or r.result}"
    elif not nodes:
        what = "TLC dumped no state"
    elif nodes != mine:
        what = f"{len(nodes - mine)} states only in TLC, {len(mine - nodes)} only in Python"
    elif edges != mine_edges:
        what = f"{len(edges - mine_edges)} edges only in TLC, {len(mine_edges - edges)} only in Python"
    elif r.distinct != len(mine):
        what = f"TLC counts {r.distinct} states, dumps {len(mine)}"
    else:
        what = ""
    return Comparison(len(mine), len(mine_edges), g.depth, what, r.seconds)
