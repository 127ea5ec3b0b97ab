"""Pictures of the documentation from recorded runs: `make docs-pictures`. Needs Chromium and playwright."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURES = {"wedge": "wedge-0.23.0", "cascade": "cascade-0.28.0", "starvation": "starvation-0.32.0"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def main() -> int:
    from playwright.sync_api import sync_playwright

    from stallproof.report import findings, tracepage

    browser = os.environ.get("CHROMIUM") or next((p for b in BROWSERS if (p := shutil.which(b))), None)
    if browser is None:
        print("no Chromium; remedy: apt-get install chromium, or CHROMIUM=/path/to/it", file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": 1000, "height": 1400}, device_scale_factor=1.5)
        for name, trace in PICTURES.items():
            source = ROOT / "tests" / "fixtures" / "traces" / f"{trace}.jsonl"
            html = Path(folder) / f"{name}.html"
            verdict, marks = findings.judge([str(source)])
            with html.open("w", encoding="utf-8") as out:
                tracepage.write([str(source)], out, marks, verdict=verdict)
            page.goto(html.as_uri())
            page.wait_for_selector("html[data-ready=yes]", state="attached")
            page.wait_for_timeout(300)
            page.locator("div.main").screenshot(path=str(ROOT / "docs" / "img" / f"{name}.png"))
            print(f"docs/img/{name}.png from {source.name}")
        chromium.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
