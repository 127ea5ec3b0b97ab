"""Tables and pictures of `make bench-simulate`: paired comparison per cell, in plain Markdown and SVG."""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

Summary = dict[str, Any]
Pairs = list[dict[str, Summary]]
#: two-sided 95 % quantiles of Student's t by degrees of freedom
T95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 14: 2.14, 19: 2.09}
#: (summary key, heading); smaller is better for all of them
COMPARED = (
    ("scheduled_tokens", "scheduled tokens"), ("ttft_p50_s", "first token p50"),
    ("ttft_p95_s", "first token p95"), ("ttft_p99_s", "first token p99"),
    ("itl_mean_s", "inter-token mean"), ("itl_p50_s", "inter-token p50"), ("itl_p99_s", "inter-token p99"),
    ("longest_request_wait_s", "longest wait"), ("virtual_s", "end of the run"),
)  # fmt: skip


def t95(n: int) -> float:
    """Quantile for a sample of ``n``, on the safe side between the table's entries."""
    return T95[max(k for k in T95 if k <= n - 1)]


def alive(pairs: Pairs) -> Pairs:
    """Pairs in which neither stranded a request: only these have latencies to compare."""
    return [p for p in pairs if not p["stock"]["stranded"] and not p["stallproof"]["stranded"]]


def ratio(pairs: Pairs, key: str) -> tuple[float, float, float] | None:
    """Geometric mean of ours / stock over the seeds, with its 95 % interval (paired t on logarithms)."""
    logs = [
        math.log(p["stallproof"][key] / p["stock"][key])
        for p in pairs
        if p["stock"].get(key) and p["stallproof"].get(key)
    ]
    if len(logs) < 2:
        return None
    mean = statistics.fmean(logs)
    half = t95(len(logs)) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def verdict(r: tuple[float, float, float] | None) -> str:
    """One cell of a table: ratio, interval, and whether the difference is more than noise."""
    if r is None:
        return "-"
    mean, low, high = r
    if max(abs(low - 1), abs(high - 1)) < 5e-5:
        return "1, equal"
    word = "noise" if low <= 1 <= high else "**better**" if mean < 1 else "**worse**"
    return f"{mean:.4f} [{low:.4f}, {high:.4f}] {word}"


def total(pairs: Pairs, scheduler: str, key: str) -> float:
    return sum(p[scheduler][key] for p in pairs)


def tables(found: dict[Any, Pairs], planned: dict[Any, int], minutes: float) -> str:
    """All cells: what happened, then the comparison where both finished everything."""
    heads = (
        "cell", "seeds", "requests", "stranded stock / ours", "preemptions stock / ours",
        "recomputed tokens stock / ours", "evictions", "goodput ours / stock",
    )  # fmt: skip
    out = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for cell, pairs in found.items():
        good = [
            p["stallproof"]["goodput_rps"] / p["stock"]["goodput_rps"]
            for p in alive(pairs)
            if p["stock"]["goodput_rps"]
        ]
        cells = [
            cell.label, f"{len(pairs)} of {planned[cell]}", f"{total(pairs, 'stock', 'requests'):,.0f}",
            *(
                f"{total(pairs, 'stock', k):,.0f} / {total(pairs, 'stallproof', k):,.0f}"
                for k in ("stranded", "preemptions", "recomputed_tokens")
            ),
            f"{total(pairs, 'stallproof', 'evictions'):,.0f}",
            f"{statistics.fmean(good):.3f}" if good else "-",
        ]  # fmt: skip
        out.append("| " + " | ".join(cells) + " |")
    for title, keys in (("tokens and time to the first token", COMPARED[:4]), ("the rest", COMPARED[4:])):
        out += ["", f"Ours / stock, {title} (smaller is better):", ""]
        out.append("| cell | pairs | " + " | ".join(h for _, h in keys) + " |")
        out.append("|---|---|" + "---|" * len(keys))
        for cell, pairs in found.items():
            live = alive(pairs)
            row = [verdict(ratio(live, k)) for k, _ in keys]
            out.append(f"| {cell.label} | {len(live)} | " + " | ".join(row) + " |")
    return "\n".join(out) + "\n"


def worse(found: dict[Any, Pairs]) -> list[str]:
    """Where ours is worse than stock by more than noise."""
    out = []
    for cell, pairs in found.items():
        for k, head in COMPARED:
            r = ratio(alive(pairs), k)
            if r is not None and r[1] > 1 + 5e-5:
                out.append(f"{cell.label}, {head}: {(r[0] - 1) * 100:.2f} % more")
    return out


def stranded(found: dict[Any, Pairs]) -> list[str]:
    """Where a run ended with requests that will not finish."""
    out = []
    for cell, pairs in found.items():
        for scheduler, name in (("stock", "stock"), ("stallproof", "ours")):
            bad = [p[scheduler] for p in pairs if p[scheduler]["stranded"]]
            if bad:
                gone, of = (sum(s[k] for s in bad) for k in ("stranded", "requests"))
                runs = f"in {len(bad)} of {len(pairs)} runs"
                out.append(f"{cell.label}: {name} strands {gone:,} of {of:,} requests, {runs}")
    return out


def better(found: dict[Any, Pairs]) -> list[str]:
    """Where ours is better than stock by more than noise."""
    out = []
    for cell, pairs in found.items():
        for k, head in COMPARED:
            r = ratio(alive(pairs), k)
            if r is not None and r[2] < 1 - 5e-5:
                out.append(f"{cell.label}, {head}: {(1 - r[0]) * 100:.2f} % less")
    return out


def commit() -> str:
    """The last change of the scheduler class, as far as git knows."""
    paths = ["impl/stallproof/core", "impl/stallproof/vllm"]
    got = subprocess.run(
        ["git", "log", "-1", "--format=%h", "--", *paths], capture_output=True, text=True
    ).stdout.strip()
    return f"Scheduler class as of commit {got}. " if got else ""


def page(
    text: str, found: dict[Any, Pairs], planned: dict[Any, int], a: argparse.Namespace, device: str
) -> str:
    """docs/simulate-results.md."""
    runs = sum(len(p) for p in found.values())
    left = [
        f"{c.label}: {len(found.get(c, ()))} of {planned[c]} seeds"
        for c in sorted(planned, key=lambda c: len(found.get(c, ())))
        if len(found.get(c, ())) < planned[c]
    ]
    bad = worse(found)
    names = [name for name, _ in pictures(found)]
    about = (
        f"{commit()}Slices of {a.minutes:g} minutes, {a.seeds} seeds wanted, {runs} pairs of runs. "
        f"Device: `{device}`. "
        "A cell is *group, workload, vLLM release, pool* (in multiples of the trace's largest request). "
        "Intervals are 95 %, paired by seed; *noise*: the interval contains 1; *equal*: to four digits."
    )
    return "\n".join([
        "# Stock against ours on production traffic: results", "",
        "Generated by `make bench-simulate`. What the simulator is and how to read this: "
        "[simulate](simulate.md).", "",
        about, "",
        *(f"![{n}](img/{n})\n" for n in names),
        text,
        "## Stranded requests", "",
        *([f"* {x}" for x in stranded(found)] or ["None."]), "",
        "A pair in which a run stranded requests has no ratio above: what never ends has no latency.", "",
        "## Better than stock by more than noise", "",
        *([f"* {x}" for x in better(found)] or ["Nothing."]), "",
        "## Worse than stock by more than noise", "",
        *([f"* {x}" for x in bad] or ["Nothing."]), "",
        "## Not run, or not for all seeds", "",
        *([f"* {x}" for x in left] or ["Everything planned has run."]), "",
    ])  # fmt: skip


# ---------------------------------------------------------------- pictures

WIDTH, HEIGHT, LEFT, TOP = 560, 260, 64, 34
COLOURS = {"stock": "#be123c", "stallproof": "#0f766e"}


def pictures(found: dict[Any, Pairs]) -> Iterator[tuple[str, str]]:
    """(file name, SVG) of each pressure sweep with at least three pools."""
    groups: dict[str, list[tuple[float, Pairs]]] = {}
    for cell, pairs in found.items():
        if cell.group == "sweep":
            groups.setdefault(f"{cell.name} {cell.version}", []).append((cell.pool, pairs))
    for name, points in groups.items():
        if len(points) >= 3:
            slug = name.replace(" ", "-").replace(".", "")
            yield f"simulate-{slug}.svg", sweep(name, sorted(points, key=lambda p: p[0]))


def sweep(name: str, points: list[tuple[float, Pairs]]) -> str:
    """Two charts over the pool: time to the first token (p95), and recomputed tokens."""
    charts: tuple[tuple[str, Callable[[Summary], float]], ...] = (
        ("first token p95, mean over seeds (s)", lambda s: s["ttft_p95_s"]),
        ("recomputed tokens, % of scheduled", lambda s: 100 * s["recomputed_tokens"] / s["scheduled_tokens"]),
    )
    title = f"{name}: pool in multiples of the largest request"
    body = [f'<text x="{WIDTH}" y="20" text-anchor="middle" font-weight="bold">{title}</text>']
    for n, (head, value) in enumerate(charts):
        lines = {
            s: [(pool, statistics.fmean(value(p[s]) for p in pairs)) for pool, pairs in points]
            for s in ("stock", "stallproof")
        }
        chart = _chart(head, lines)
        body.append(f'<g transform="translate({n * WIDTH} 20)">{chart}</g>')
    box = f"0 0 {2 * WIDTH} {HEIGHT + 30}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" font-family="sans-serif" font-size="12" '
        f'role="img" aria-label="{title}"><rect width="100%" height="100%" fill="#ffffff"/>'
        + "".join(body) + "</svg>\n"
    )  # fmt: skip


def _chart(title: str, lines: dict[str, list[tuple[float, float]]]) -> str:
    top = max(y for line in lines.values() for _, y in line) or 1.0
    xs = [math.log(x) for x, _ in next(iter(lines.values()))]

    def at(x: float, y: float) -> tuple[float, float]:
        across = (math.log(x) - xs[0]) / ((xs[-1] - xs[0]) or 1)
        return LEFT + across * (WIDTH - LEFT - 30), HEIGHT - 40 - y / top * (HEIGHT - 40 - TOP)

    out = [f'<text x="{LEFT}" y="20">{title}</text>']
    for k in range(5):
        y = top * k / 4
        _, py = at(math.e ** xs[0], y)
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - 30}" y1="{py:.1f}" y2="{py:.1f}" stroke="#e2e8f0"/>')
        out.append(f'<text x="{LEFT - 6}" y="{py + 4:.1f}" text-anchor="end" fill="#475569">{y:.3g}</text>')
    for x, _ in next(iter(lines.values())):
        px, _ = at(x, 0)
        out.append(f'<text x="{px:.1f}" y="{HEIGHT - 22}" text-anchor="middle" fill="#475569">{x:g}</text>')
    for n, (name, line) in enumerate(lines.items()):
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in (at(x, y) for x, y in line))
        dash = ' stroke-dasharray="7 4"' if name == "stock" else ""
        out.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"{dash}/>')
        for x, y in line:
            px, py = at(x, y)
            out.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{COLOURS[name]}"/>')
        label, y = name + (" (dashed)" if dash else ""), TOP + 14 + 16 * n
        out.append(f'<text x="{WIDTH - 36}" y="{y}" text-anchor="end" fill="{COLOURS[name]}">{label}</text>')
    return "".join(out)
