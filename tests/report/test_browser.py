"""The page in a real headless Chromium: no errors, both widths, the keyboard, hostile names, a big trace."""

from __future__ import annotations

import json
import math
from array import array
from pathlib import Path

import pytest

from stallproof.report import names, tracepage
from stallproof.report.page import Page
from stallproof.report.tracepage import Mark
from stallproof.trace import schema as s
from stallproof.trace.reader import records
from tests.report import toy

pytestmark = pytest.mark.slow

WIDTHS = [(1280, 900), (390, 844)]


def build(trace: Path, out: Path, marks: list[Mark] | None = None, **kwargs: object) -> Path:
    with out.open("w", encoding="utf-8") as f:
        tracepage.write([trace], f, marks or [], **kwargs)
    return out


def records_of(trace: Path) -> list[tuple[int, s.Record]]:
    return [(line, r) for _, line, r in records(trace) if not isinstance(r, s.Header)]


@pytest.fixture(scope="module")
def violation(trace: Path) -> Mark:
    line, rec = records_of(trace)[-40]
    while not isinstance(rec, s.Sched):
        line, rec = records_of(trace)[line - 2 - 1]
    return Mark("NoWedge", line, "nothing moves", str(trace), ["r21 waits"], ["r21", "r23"], [3, 4])


@pytest.fixture(scope="module")
def html(trace: Path, violation: Mark, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(trace, tmp_path_factory.mktemp("page") / "page.html", [violation])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), WIDTHS)
def test_opens_without_errors_and_loads_nothing(
    show, html: Path, width: int, height: int, scheme: str
) -> None:
    page = show(html, width=width, height=height, color_scheme=scheme)
    page.press("ArrowRight", "n", "0", "ArrowDown")
    assert page.errors == []
    assert {r for r in page.requests if not r.startswith("data:")} == {html.as_uri()}


@pytest.mark.parametrize(("width", "height"), WIDTHS)
def test_is_readable(show, html: Path, width: int, height: int) -> None:
    """Nothing sticks out sideways, no text below 11 px, everything to press is big enough for a finger."""
    page = show(html, width=width, height=height).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("probe.smallText()") == []
    assert page.evaluate(f"probe.outside({width})") == []
    assert page.evaluate("probe.tinyButtons()") == []
    assert page.evaluate("probe.blank()") == 0


PAIRS = ["ink paper", "muted paper", "muted wash", "bad bad-wash", "bad paper", "good paper", "link paper"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_of_text(show, html: Path, scheme: str) -> None:
    """WCAG AA for the ordinary colours of both themes."""
    page = show(html, color_scheme=scheme).page
    ratios = page.evaluate("pairs => probe.contrast(pairs)", [pair.split() for pair in PAIRS])
    assert [r for r in ratios if r[2] < 4.5] == []


def test_keyboard(show, html: Path, violation: Mark, trace: Path) -> None:
    page = show(html)
    recs = records_of(trace)
    found = violation.line - 2
    assert page.cursor == found, "the page opens at the first finding"
    page.press("Home")
    assert page.cursor == 0
    page.press("ArrowRight")
    assert page.cursor == 1
    page.press("Shift+ArrowRight")
    assert isinstance(recs[page.cursor][1], s.Sched)
    page.press("End")
    assert page.cursor == len(recs) - 1
    page.press("ArrowLeft")
    assert page.cursor == len(recs) - 2
    page.press("Shift+ArrowLeft")
    assert isinstance(recs[page.cursor][1], s.Sched)
    page.press("Home", "n")
    assert page.cursor == found
    span = page.page.evaluate("SPpage.view.to - SPpage.view.from")
    page.press("+")
    assert page.page.evaluate("SPpage.view.to - SPpage.view.from") == pytest.approx(span / 2)
    page.press("-", "-", "0")
    assert page.page.evaluate("SPpage.view.to - SPpage.view.from") == len(recs)
    lane = page.page.evaluate("SPpage.view.lane")
    page.press("ArrowUp")
    assert page.page.evaluate("SPpage.view.lane") == lane - 1
    page.press("Home", "e")
    assert 0 < page.cursor < found
    page.press("Shift+E")
    assert page.cursor < found
    page.press("?")
    assert page.page.evaluate("document.querySelector('dialog').open")
    page.press("Escape")
    assert not page.page.evaluate("document.querySelector('dialog').open")
    before = page.cursor
    page.page.focus("input[type=search]")
    page.press("n", "ArrowLeft", "+")
    assert page.cursor == before, "typing into a field steers nothing"
    page.page.evaluate("document.activeElement.blur()")
    page.press(" ")
    page.page.wait_for_function("p => SPpage.view.cursor > p", arg=before)
    page.press(" ")
    assert page.errors == []


def test_tab_reaches_every_control(show, html: Path) -> None:
    page = show(html).page
    seen = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("probe.focused()"))
    for wanted in (
        "Next scheduling call",
        "Record",
        "Find a request",
        "Requests, scrollable",
        "Block number",
        "Keys",
    ):
        assert wanted in seen


def test_shows_what_the_trace_says(show, html: Path, trace: Path) -> None:
    """Every twelfth record, forwards and back: line, number of events, blocks in the pool."""
    page = show(html)
    recs = records_of(trace)
    stops = list(range(0, len(recs), 12))
    for p in [*stops, *reversed(stops[::3])]:
        page.page.evaluate("p => SPpage.view.go(p)", p)
        page.settle()
        line, rec = recs[p]
        assert page.text(".where").startswith(f"Line {line}:")
        events = [
            e
            for e in page.page.query_selector_all(".events li")
            if "muted" not in (e.get_attribute("class") or "")
        ]
        bad = page.page.query_selector_all(".events li.bad")
        assert len(events) - len(bad) == len(getattr(rec, "ev", []))
        if isinstance(rec, (s.Sched, s.Update)):
            taken = page.page.evaluate(f"probe.taken({p})")
            assert taken == 48 - rec.free
            assert f"free\n{rec.free}" in page.text(".bands .legend").replace(" ", "\n")


def reds(page, part: str) -> int:
    return page.page.evaluate("part => probe.reds(part)", part)


def test_the_violation_is_highlighted(show, html: Path, trace: Path, tmp_path: Path) -> None:
    marked, plain = show(html), show(build(trace, tmp_path / "plain.html"))
    for page in (marked, plain):
        page.press("Home")
    for part in (".bands", ".lanes"):
        assert reds(marked, part) > 40
        assert reds(plain, part) == 0, "control: no finding, no red"
    assert "NoWedge" in marked.text(".findings")
    assert "NoWedge violated" in marked.text(".chip")
    assert "conforms" in plain.text(".chip")


HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "</ScRiPt ><svg/onload=alert(3)>",
    "\u2028\u2029&lt;b&gt;\u202e]]>-->",
    "'\"`${alert(4)}`__proto__",
    "__proto__",
    "constructor",
]


def test_hostile_names_stay_text(show, tmp_path: Path) -> None:
    trace = tmp_path / '<b>evil & "co".jsonl'
    toy.write(trace, steps=40, requests=len(HOSTILE) * 3, name="{}")
    text = trace.read_text()
    head, *lines = text.splitlines()
    names_ = {str(i): HOSTILE[i % len(HOSTILE)] + "#" * (i // len(HOSTILE)) for i in range(len(HOSTILE) * 3)}

    def rename(x: object) -> object:
        if isinstance(x, str):
            return names_.get(x, x)
        if isinstance(x, list):
            return [rename(v) for v in x]
        return {rename(k): rename(v) for k, v in x.items()} if isinstance(x, dict) else x

    header = json.loads(head)
    header["engine"] = {
        "name": HOSTILE[1],
        "version": HOSTILE[0],
        "scheduler": HOSTILE[2],
        "connectors": HOSTILE,
    }
    renamed = [json.dumps(header), *(json.dumps(rename(json.loads(x))) for x in lines)]
    trace.write_text("\n".join(renamed) + "\n", encoding="utf-8")
    marks = [Mark(h, 50 + i, h, str(trace), [h], [h], [1]) for i, h in enumerate(HOSTILE)]
    page = show(build(trace, tmp_path / "evil.html", marks, title=HOSTILE[1]))
    for _ in range(30):
        page.press("ArrowLeft")
    page.press("?", "Escape", "End", "Home", "n", "n", "ArrowDown", "e")
    assert page.errors == []
    assert (
        page.page.evaluate("document.querySelectorAll('main img, main svg, main script, header b').length")
        == 0
    )
    assert HOSTILE[0] in page.text("main")
    assert page.text("h1") == HOSTILE[1]


def test_an_empty_trace_has_a_page(show, tmp_path: Path) -> None:
    trace = tmp_path / "header-only.jsonl"
    trace.write_bytes(s.encode(toy.Toy().header()) + b"\n")
    page = show(build(trace, tmp_path / "empty.html"))
    page.press("ArrowRight", "n", "e", "+", "0")
    assert page.errors == []
    assert "no records" in page.text(".where")


def test_a_million_events_stay_responsive(show, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A redraw costs what the pixels cost, not the trace: calls are counted, seconds only printed."""
    trace = toy.write(tmp_path / "big.jsonl", 175_000, pool=400, requests=90_000, seats=100, rate=0.6)
    drawn = tracepage.draw(records(trace))
    assert sum(drawn.timeline.events.values()) >= 1_000_000
    html = tmp_path / "big.html"
    with html.open("w", encoding="utf-8") as f:
        tracepage.page(drawn).write(f)
    page = show(html)
    page.page.evaluate("probe.count()")
    costs = {}
    for key in ("End", "Home", "ArrowRight", "Shift+ArrowRight", "+", "+", "+", "+", "ArrowDown", "e", "0"):
        before, start = page.page.evaluate("window.drawn"), page.page.evaluate("performance.now()")
        page.press(key)
        costs[key] = page.page.evaluate("window.drawn") - before
        with capsys.disabled():
            ms = page.page.evaluate("performance.now()") - start
            print(f"\n  {key}: {costs[key]} drawing calls, {ms:.0f} ms with two frames", end="")
    bands = len(names.PLACES) + 2
    assert max(costs.values()) < 2 * 1280 * bands + 400 * 3 + 20 * 1280
    assert page.errors == []
    assert page.text(".where").startswith("Line")


@pytest.mark.parametrize(("width", "height"), WIDTHS)
def test_parts_without_a_trace(show, tmp_path: Path, width: int, height: int) -> None:
    """What the simulator's page uses: lines with gaps, tables, facts; no toolbar, no errors."""
    page = Page("Comparison <&>", "stock and ours", verdict="better", tone="good")
    x = array("d", (i / 10 for i in range(5000)))
    page.columns(
        "ages",
        {
            "t": x,
            "stock": array("d", (math.nan if 100 < i < 200 else i % 700 for i in range(5000))),
            "ours": array("d", (i % 300 for i in range(5000))),
        },
    )
    series = [
        {"key": "stock", "label": "stock", "light": "#c2410c", "dark": "#fb923c"},
        {"key": "ours", "label": "ours", "light": "#2b6cb0", "dark": "#5aa0e6", "dash": True},
    ]
    page.part("lines", "Oldest wait", columns="ages", x="t", series=series, unit="seconds", xunit="s")
    page.data("sums", {"head": ["scheduler", "preemptions"], "rows": [["stock <b>", 1234], ["ours", None]]})
    page.part("table", "In numbers", area="side", data="sums")
    page.data("facts", [["workload", "</script><script>alert(1)</script>"]])
    page.part("facts", "This run", area="side", data="facts")
    html = tmp_path / "compare.html"
    with html.open("w", encoding="utf-8") as out:
        page.write(out)
    seen = show(html, width=width, height=height)
    assert seen.errors == []
    assert seen.page.evaluate("probe.blank()") == 0
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    assert "1,234" in seen.text("main")
    assert "</script><script>alert(1)</script>" in seen.text("main")
    assert seen.page.query_selector(".bar") is None
