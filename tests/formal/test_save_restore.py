"""``SaveRestore.tla`` and its Python twin have the same state graph, mutants of the rules included."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest

from stallproof.check import tlc
from stallproof.check.tlaval import parse
from stallproof_model import save_restore as m

pytestmark = pytest.mark.slow

#: sizes (blocks, requests) and the rules that are switched off; together every rule and every action
CASES = {
    "the rules": ((1, 2), ()),
    "restore": ((1, 2), ("Cancel", "ScatterWaits", "ReadBehindScatter", "RowUntilScattered", "OrphansEnd")),
    "save": ((1, 2), ("GateSeesSaves", "FreeAtOnce", "FullDrops", "Fallback")),
    "rows": ((2, 1), ("RowUntilCopied", "CopyOutWaits")),
}
NODE = re.compile(r'^(-?\d+) \[label="(.*?)"(?:,style = filled)?\]', re.M | re.S)
EDGE = re.compile(r'^(-?\d+) -> (-?\d+) \[label="(.*?)"', re.M)


def state(label: str) -> m.State:
    text = html.unescape(label).replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
    f: dict[str, Any] = dict(parse(text.strip().removeprefix("/\\").strip().removeprefix("s =")))
    f["q"] = tuple(m.Op(**o) for o in f["q"])
    f["row"] = tuple(m.Row(**w) for w in f["row"])
    return m.State(**f)


def of_tlc(c: m.Constants, tmp: Path) -> tuple[set[m.State], set[tuple[m.State, str, m.State]]]:
    found = tlc.run("SaveRestore", c._asdict(), dump=tmp / "graph.dot", timeout=300)
    assert found.result == tlc.OK, found.error
    text = (tmp / "graph.dot").read_text()
    ids = {x.group(1): state(x.group(2)) for x in NODE.finditer(text)}
    return set(ids.values()), {(ids[x.group(1)], x.group(3), ids[x.group(2)]) for x in EDGE.finditer(text)}


@pytest.mark.parametrize("case", CASES)
def test_equal_graphs(case: str, tmp_path: Path) -> None:
    (blocks, requests), off = CASES[case]
    c = m.Constants(B=blocks, N=requests, R=1, Cap=1, D=1, **dict.fromkeys(off, False))
    nodes, edges = of_tlc(c, tmp_path)
    mine, mine_edges = m.graph(c)
    assert len(nodes) > 100
    assert nodes == mine
    assert edges == mine_edges
    assert edges != m.graph(c._replace(OrphansEnd=not c.OrphansEnd))[1], "a twin with one rule wrong"


def test_the_cases_reach_every_action_and_switch_off_every_rule() -> None:
    flags = {f for f in m.Constants._fields if isinstance(getattr(m.Constants(), f), bool)}
    assert {f for _, off in CASES.values() for f in off} == flags
    reached: set[str] = set()
    for (blocks, requests), off in CASES.values():
        c = m.Constants(B=blocks, N=requests, R=1, Cap=1, D=1, **dict.fromkeys(off, False))
        reached |= {name for _, name, _ in m.graph(c)[1]}
    assert reached == {a.__name__ for a in (*m.OF_REQUESTS, *m.OF_ROWS, m.Exec, m.LateCopy)}
