"""A real headless Chromium, if there is one; pages and traces to look at."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.report import toy

PROBES = Path(__file__).with_name("probes.js").read_text()
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="module")  # another folder borrows it, and a process holds one Playwright at a time
def browser() -> Iterator[object]:
    path = os.environ.get("CHROMIUM") or next((p for name in BROWSERS if (p := shutil.which(name))), None)
    if path is None:
        pytest.skip("no Chromium; remedy: apt-get install chromium, or CHROMIUM=/path/to/it")
    sync = pytest.importorskip("playwright.sync_api", reason="no playwright; remedy: make env")
    with sync.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Page:
    """A page with its console kept: ``errors`` must stay empty."""

    def __init__(self, browser: object, html: Path, width: int = 1280, height: int = 900, **context: object):
        self.context = browser.new_context(viewport={"width": width, "height": height}, **context)  # type: ignore[attr-defined]
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on(
            "console", lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda e: self.errors.append(str(e)))
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.on("dialog", lambda d: (self.errors.append(f"dialog {d.message}"), d.dismiss()))
        self.page.goto(html.as_uri())
        self.page.wait_for_selector("html[data-ready=yes]", state="attached", timeout=60_000)
        self.page.evaluate(PROBES)
        self.settle()

    def settle(self) -> None:
        """Let queued drawing and decompression finish."""
        self.page.evaluate("probe.settled()")

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()

    @property
    def cursor(self) -> int:
        return self.page.evaluate("SPpage.view.cursor")

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    def close(self) -> None:
        self.context.close()


@pytest.fixture
def show(browser: object) -> Iterator[object]:
    opened: list[Page] = []

    def opener(html: Path, **kwargs: object) -> Page:
        opened.append(Page(browser, html, **kwargs))
        return opened[-1]

    yield opener
    for page in opened:
        page.close()


@pytest.fixture(scope="session")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.write(tmp_path_factory.mktemp("toy") / "toy.jsonl")
