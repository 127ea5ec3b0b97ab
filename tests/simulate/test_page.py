"""The page of a comparison, in a real headless Chromium."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stallproof.cli.simulate import ROWS, compare
from stallproof.simulate.metrics import RequestLog, RunLog
from stallproof.simulate.page import page
from stallproof.simulate.series import FIELDS
from tests.report.conftest import browser, show  # noqa: F401 - fixtures

pytestmark = pytest.mark.slow
WIDTHS = [(1280, 900), (390, 844)]


def result(scheduler: str, slow: float, stranded: int = 0) -> dict[str, Any]:
    """A run of 60 requests; the last ``stranded`` never get a token."""
    log = RunLog(scheduler)
    for i in range(60):
        r = RequestLog(f'r{i}<script>alert(1)</script>"&', i * 0.5, 100 + i, 10)
        if i < 60 - stranded:
            r.progress(r.at + slow * (1 + i % 7), 1, log.gaps)
            r.progress(r.first + 1, 9, log.gaps)
            r.done = r.last
        log.requests[r.rid] = r
    log.virtual = 40.0
    points = [(float(t), 3, t % 9, 10 * t, t % 3, 0, 0.5 * t) for t in range(40)]
    return {
        "version": "0.32.0", "summary": log.summary(slo_ttft=5, slo_itl=0.1),
        "series": {"fields": FIELDS, "points": points},
        "requests": [
            [r.rid, r.at, r.first, r.done, r.prompt, r.output, r.tokens] for r in log.requests.values()
        ],
    }  # fmt: skip


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = [result("stock", 0.4, stranded=5), result("stallproof", 0.2)]
    out = tmp_path_factory.mktemp("page") / "page.html"
    out.write_text(page(compare(results), results, ROWS), encoding="utf-8")
    return out


@pytest.mark.parametrize(("width", "height"), WIDTHS)
def test_opens_without_errors_loads_nothing_and_fits(show: Any, html: Path, width: int, height: int) -> None:  # noqa: F811
    opened = show(html, width=width, height=height)
    opened.press("ArrowRight", "ArrowDown", "e", "+", "0")
    assert opened.errors == []
    assert {r for r in opened.requests if not r.startswith("data:")} == {html.as_uri()}
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.page.evaluate("probe.smallText()") == []
    wide = (
        "probe.visible('main *').filter(n => !n.closest('.scroll') && n.getBoundingClientRect().right > {})"
    )
    assert opened.page.evaluate(f"probe.tell({wide.format(width + 1)})") == [], "only tables scroll sideways"
    assert opened.page.evaluate("probe.blank()") == 0
    assert opened.page.query_selector("script[src], link[rel=stylesheet]") is None


def test_lanes_and_keyboard(show: Any, html: Path) -> None:  # noqa: F811
    opened = show(html)
    lanes = opened.page.evaluate("SPpage.lanes.names")
    assert len(lanes) == 120
    assert [x.split()[-1] for x in lanes[:2]] == ["stock", "stallproof"]
    opened.press("Home", "ArrowDown")
    assert opened.page.evaluate("SPpage.view.lane") == 0
    opened.press("ArrowDown")
    assert opened.page.evaluate("SPpage.view.lane") == 1
    before = opened.cursor
    opened.press("e")
    assert opened.cursor > before, "the next change of this request"
    state = "SPpage.styles.states[SPpage.stateAt({}, {})].key"
    last = opened.page.evaluate("SPpage.view.n") - 1
    assert opened.page.evaluate(state.format(118, last)) == "waiting", "stranded with stock to the end"
    assert opened.page.evaluate(f"SPpage.stateAt(119, {last})") == -1, "finished with ours"
    assert "stock stranded 5" in opened.text("header")
