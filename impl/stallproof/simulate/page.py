"""The comparison as one self-contained page, out of the parts of :mod:`stallproof.report`."""

from __future__ import annotations

import io
import math
from array import array
from typing import Any

from stallproof.report import names
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
#: At most so many rows in the table of slow requests, and requests with a lane.
SLOWEST, LANES = 40, 200
STATE = {style.key: i for i, style in enumerate(names.STATES)}
#: Moments of the lanes' time axis.
MOMENTS = 4000


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
    _lanes(out, runs, results)
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


def _lanes(out: Page, runs: list[dict[str, Any]], results: list[dict[str, Any]]) -> None:
    """The lives of the slowest requests, one lane for each scheduler, those of a request side by side."""
    end = max(r["summary"]["virtual_s"] for r in results) or 1.0
    lives = [{q[0]: q for q in r["requests"]} for r in results]

    def wait(rid: str) -> float:
        return max((q[2] if q[2] >= 0 else end) - q[1] for q in (x[rid] for x in lives if rid in x))

    rids = sorted({rid for x in lives for rid in x}, key=lambda rid: (-wait(rid), rid))[:LANES]
    rids.sort(key=lambda rid: next(x[rid][1] for x in lives if rid in x))
    moments = min(MOMENTS, max(2, int(end * 20)))
    rows: list[tuple[int, int, int, int]] = []
    lanes: list[str] = []

    def at(t: float) -> int:
        return min(moments, max(0, int((t if t >= 0 else end) / end * moments)))

    for rid in rids:
        for r, x in zip(runs, lives, strict=True):
            if rid not in x:
                continue
            _, came, first, done = x[rid][:4]
            rows.append((len(lanes), at(came), max(at(came) + 1, at(first)), STATE["waiting"]))
            if first >= 0:
                rows.append((len(lanes), at(first), max(at(first) + 1, at(done)), STATE["running"]))
            lanes.append(f"{rid} {r['scheduler']}")
    none_i, none_b = array("i"), array("B")
    columns = {f"state.{k}": array("i", (x[i] for x in rows)) for i, k in enumerate(("lane", "start", "end"))}
    columns["state.code"] = array("B", (x[3] for x in rows))
    for kind in ("overlay", "mark"):
        columns |= {f"{kind}.{k}": none_i for k in ("lane", "start", "end")} | {f"{kind}.code": none_b}
    columns |= {f"transfer.{k}": none_i for k in ("lane", "admitted", "started", "ended", "blocks")}
    columns |= {"transfer.kind": none_b, "transfer.outcome": none_b}
    out.columns("lanes", columns)
    out.data("lanes", {"names": lanes, "order": [[0, i] for i in range(len(lanes))]})
    out.data("rank", list(range(len(lanes))))
    out.data("findings", [])
    out.data("styles", {k: names.table(getattr(names, k.upper())) for k in ("states", "overlays", "marks")})
    out.data("trace", {"n": moments, "pool": 0, "kinds": ["moment"], "files": [], "chunks": []})
    zero = array("i", bytes(4 * moments))
    stamps = array("d", ((i + 1) * end / moments for i in range(moments)))
    out.columns(
        "axis", {"kind": array("B", bytes(moments)), "step": zero, "ts": stamps, "tokens": zero, "line": zero}
    )
    out.part("lanes", f"Lives of the {len(rids)} slowest requests", area="main", columns="lanes")


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
