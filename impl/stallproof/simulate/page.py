"""The comparison as one self-contained page, out of the parts of :mod:`stallproof.report`."""

from __future__ import annotations

import io
import math
from array import array
from typing import Any

from stallproof.report.page import Page

#: Lines of the occupancy chart: series field, label, light and dark colour.
OCCUPANCY = (
    ("used", "held by requests", "#2563eb", "#60a5fa"),
    ("fenced", "idle behind fences", "#b45309", "#fbbf24"),
)
QUEUES = (
    ("running", "running", "#15803d", "#4ade80"),
    ("waiting", "waiting", "#be123c", "#fb7185"),
    ("loading", "loading", "#7c3aed", "#c4b5fd"),
)
#: At most so many rows in the table of slow requests.
SLOWEST = 40


def page(report: dict[str, Any], results: list[dict[str, Any]], rows: Any = ()) -> str:
    """HTML text. ``report`` as of ``compare``; ``rows``: (key, label, format) of the summary table."""
    runs = report["runs"]
    stranded = [r for r in runs if r["stranded"]]
    verdict = f"{stranded[0]['scheduler']} stranded {stranded[0]['stranded']}" if stranded else "all finished"
    out = Page(
        "Schedulers side by side", f"simulated; vLLM {runs[0]['vllm']}", verdict=verdict,
        tone="bad" if stranded else "good",
    )  # fmt: skip
    head = [
        "",
        *(r["scheduler"] for r in runs),
        *(f"{r['scheduler']} / {runs[0]['scheduler']}" for r in runs[1:]),
    ]
    body = []
    for key, label, form in rows:
        cells = [None if _nan(r[key]) else form.format(r[key]) for r in runs]
        quotients = [
            None if x is None or key not in x or _nan(x[key]) else round(x[key], 3) for x in report["ratios"]
        ]
        body.append([label, *cells, *quotients])
    out.data("summary", {"head": head, "rows": body})
    out.part("table", "Summary", area="wide", data="summary")
    for n, (r, result) in enumerate(zip(runs, results, strict=True)):
        _curves(out, n, r["scheduler"], result)
    for n, (r, result) in enumerate(zip(runs, results, strict=True)):
        _requests(out, n, r["scheduler"], result)
    text = io.StringIO()
    out.write(text)
    return text.getvalue()


def _curves(out: Page, n: int, name: str, result: dict[str, Any]) -> None:
    fields, points = result["series"]["fields"], result["series"]["points"]
    columns = {f: array("d", (p[i] for p in points)) for i, f in enumerate(fields)}
    out.columns(f"series{n}", columns)
    for title, lines, unit in (
        ("blocks by state", OCCUPANCY, "blocks"),
        ("requests by state", QUEUES, "requests"),
        ("age of the oldest request without a token", (("oldest", "age", "#0f766e", "#5eead4"),), "seconds"),
    ):
        out.part(
            "lines", f"{name}: {title}", area="wide", columns=f"series{n}", x="t", xunit="s", unit=unit,
            series=[{"key": k, "label": la, "light": li, "dark": d} for k, la, li, d in lines],
        )  # fmt: skip


def _requests(out: Page, n: int, name: str, result: dict[str, Any]) -> None:
    """Each request's waiting and finishing time over its arrival, and the slowest ones by name."""
    rows = sorted(result["requests"], key=lambda r: r[1])
    end = result["summary"]["virtual_s"]

    def span(r: list[Any], stamp: float) -> float:
        return (stamp if stamp >= 0 else end) - r[1]

    out.columns(
        f"requests{n}",
        {
            "at": array("d", (r[1] for r in rows)),
            "first": array("d", (span(r, r[2]) for r in rows)),
            "done": array("d", (span(r, r[3]) for r in rows)),
        },
    )
    out.part(
        "lines", f"{name}: request times over arrival", area="wide", columns=f"requests{n}",
        x="at", xunit="s",
        unit="seconds",
        series=[
            {"key": "done", "label": "to the last token", "light": "#94a3b8", "dark": "#64748b"},
            {"key": "first", "label": "to the first token", "light": "#be123c", "dark": "#fb7185"},
        ],
    )  # fmt: skip
    slow = sorted(rows, key=lambda r: -span(r, r[2]))[:SLOWEST]
    out.data(
        f"slow{n}",
        {
            "head": ["request", "arrived (s)", "first token (s)", "finished (s)", "prompt", "tokens"],
            "rows": [
                [r[0], round(r[1], 2), None if r[2] < 0 else round(r[2] - r[1], 3),
                 None if r[3] < 0 else round(r[3] - r[1], 3), r[4], f"{r[6]} of {r[5]}"]
                for r in slow
            ],
        },
    )  # fmt: skip
    out.part("table", f"{name}: the {len(slow)} slowest to their first token", area="wide", data=f"slow{n}")


def _nan(x: Any) -> bool:
    return isinstance(x, float) and (math.isnan(x) or math.isinf(x))
