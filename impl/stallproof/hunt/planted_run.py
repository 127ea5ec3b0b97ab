"""Hunt on each planted fault until it is found (``make hunt-planted``).

One engine process per release hunts the mutants one after the other, each from scratch with the same seed and
up to so many seconds of CPU time. A finding counts only if its shrunk scenario passes, in the same process,
once the fault is taken out again. The control is our class as it is, with the same budget: it must find
nothing.

Rows are kept in ``out/hunt-planted.jsonl``; ``--only`` renews some of them; the page is made from all.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec import Struct

from stallproof import engines
from stallproof.errors import BadInput, Exit
from stallproof.hunt.planted import BY_NAME, MUTANTS, Mutant

CONTROL = "control"
PAGE = Path("docs/hunt-planted.md")
ROWS = Path("out/hunt-planted.jsonl")


class Row(Struct, kw_only=True):
    """One mutant. ``seconds``: CPU time until it was first seen (of all cases, if it was not)."""

    name: str
    version: str
    found: bool
    seconds: float
    cases: int
    property: str = ""
    cause: str = ""
    requests: int = 0
    blocks: int = 0
    steps: int = 0
    seed: int = 0
    limit: float = 0.0


# ---------------------------------------------------------------- in the engine's process


def hunt_one(bench: Any, mutant: Mutant | None, seed: int, limit: float, known: list[list[str]]) -> Row:
    """Hunt ``mutant`` (``None``: the control) for ``limit`` seconds of CPU time, or until it is found.

    ``known``: what shows without any fault, as seen so far; more is added, so that it is made small once.
    """
    from contextlib import nullcontext

    from stallproof.hunt.search import Hunter, Job

    found: list[dict[str, Any]] = []
    hunter = Hunter(
        bench,
        Job(scheduler="stallproof", seed=seed, shrink_runs=100, shrink_steps=3000,
            known=[] if mutant is None else known),
        lambda kind, data: found.append(data) if kind == "finding" else None,
    )  # fmt: skip
    row = Row(
        name=mutant.name if mutant else CONTROL, version=bench.version, found=False, seconds=0.0, cases=0,
        seed=seed, limit=limit,
    )  # fmt: skip
    while hunter.cpu() < limit:
        with mutant.planted() if mutant else nullcontext():
            hunter.one(hunter.case)
        hunter.case += 1
        row.cases = hunter.case
        for data in found:
            if mutant is None or not _shows(bench, data):
                s = msgspec.convert(data["scenario"], _scenario())
                row.found, row.seconds = True, data["cpu"]
                row.property, row.cause, row.steps = data["property"], data["cause"], data["steps"]
                row.requests = sum(q.count for q in s.request) + len(s.stream)
                row.blocks = s.engine.blocks
                return row
            known.append([data["property"], data["cause"], *data["needs"]])
        found.clear()
    row.seconds = hunter.cpu()
    return row


def _scenario() -> Any:
    from stallproof.scenario import Scenario

    return Scenario


def _shows(bench: Any, data: dict[str, Any]) -> bool:
    """Whether the finding is there without the fault, too: then it is not about the fault."""
    got = bench.run(msgspec.convert(data["scenario"], _scenario()))
    return got is None or data["property"] in got.causes


def worker(fd: int) -> int:
    """Reads ``{"names", "seed", "limit"}``, writes one row per line to file descriptor ``fd``."""
    from stallproof.hunt.worker import bench_here

    out = os.fdopen(fd, "wb", buffering=0)
    job = msgspec.json.decode(sys.stdin.buffer.read())
    bench, known = bench_here("stallproof"), list[list[str]]()
    for name in job["names"]:
        mutant = None if name == CONTROL else BY_NAME[name]
        out.write(msgspec.json.encode(hunt_one(bench, mutant, job["seed"], job["limit"], known)) + b"\n")
    return 0


# ---------------------------------------------------------------- outside


def hunt(version: str, names: Sequence[str], seed: int, limit: float) -> Iterator[Row]:
    """Rows of ``names`` on ``version``, as they are done. Raises :class:`BadInput` if the process dies."""
    engine = engines.get(version)
    read, write = os.pipe()
    with tempfile.TemporaryFile() as noise:
        proc = subprocess.Popen(
            [str(engine.python), "-m", "stallproof.hunt.planted_run", "--worker", str(write)],
            env=engine.env({"VLLM_LOGGING_LEVEL": "CRITICAL"}), stdin=subprocess.PIPE, stdout=noise,
            stderr=noise, pass_fds=(write,), cwd=tempfile.gettempdir(),
        )  # fmt: skip
        os.close(write)
        try:
            assert proc.stdin is not None
            proc.stdin.write(msgspec.json.encode({"names": list(names), "seed": seed, "limit": limit}))
            proc.stdin.close()
            done = 0
            with os.fdopen(read, "rb") as lines:
                for line in lines:
                    done += 1
                    yield msgspec.json.decode(line, type=Row)
            code = proc.wait()
            if done < len(names):
                noise.seek(0)
                tail = noise.read()[-1500:].decode("utf-8", "replace").strip().splitlines()[-4:]
                raise BadInput(f"the process of vLLM {version} ended (code {code}) while it hunted "
                               f"{names[done]}: " + " / ".join(tail))  # fmt: skip
        finally:
            if proc.poll() is None:
                proc.kill()
            proc.wait()


def page(rows: dict[str, Row]) -> str:
    """The page of the documentation. Rows that are missing say so."""
    controls = sorted(k for k in rows if k.startswith(CONTROL))
    mutants = [rows[m.name] for m in MUTANTS if m.name in rows]
    found = [r for r in mutants if r.found]
    limit = max((r.limit for r in rows.values()), default=0.0)
    lines = [
        "# Planted faults",
        "",
        "<!-- generated by `make hunt-planted`; do not edit -->",
        "",
        "One-line faults in our own guard (`impl/stallproof/hunt/planted.py`), each hunted blindly from the "
        f"same seed, up to {limit:.0f} seconds of CPU time. *Found*: a case broke a property, the shrunk "
        "scenario breaks it again, and passes once the fault is taken out. Seconds are CPU time of the "
        "hunting process until the first such case; the size is that of the shrunk scenario.",
        "",
        f"{len(found)} of {len(mutants)} were found"
        + (f" ({len(MUTANTS) - len(mutants)} more were not run)" if len(mutants) < len(MUTANTS) else "")
        + f", the median after {_median([r.seconds for r in found]):.1f} s.",
        "",
        "| fault | rule | was | became | vLLM | found after | cases | property | requests | blocks | steps |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for m in MUTANTS:
        r = rows.get(m.name)
        was, became = (x.strip().replace("|", "\\|") for x in (m.old, m.new))
        line = f"| {m.name} | {m.rule} | `{was}` | `{became}` |"
        if r is None:
            lines.append(f"{line} {m.version} | not run | | | | | |")
        elif not r.found:
            lines.append(f"{line} {r.version} | **not found** in {r.seconds:.0f} s | {r.cases} | | | | |")
        else:
            lines.append(
                f"{line} {r.version} | {r.seconds:.1f} s | {r.cases} | {r.property} | {r.requests} "
                f"| {r.blocks} | {r.steps} |"
            )
    lines += ["", "Without any fault:", ""]
    for k in controls:
        r = rows[k]
        what = f"**{r.property}: {r.cause}**" if r.found else "nothing"
        lines.append(f"* vLLM {r.version}, {r.seconds:.0f} s of CPU time, {r.cases} cases: {what} found.")
    lines += ["" if controls else "* not run.", *_EXPLAINED]
    return "\n".join(lines).rstrip() + "\n"


#: what is known of faults that a hunt does not find
_EXPLAINED: list[str] = []


def _median(xs: list[float]) -> float:
    xs = sorted(xs)
    return xs[len(xs) // 2] if xs else 0.0


def key(r: Row) -> str:
    return f"{CONTROL} {r.version}" if r.name == CONTROL else r.name


def read_rows(path: Path) -> dict[str, Row]:
    if not path.exists():
        return {}
    rows = [msgspec.json.decode(x, type=Row) for x in path.read_bytes().splitlines() if x.strip()]
    return {key(r): r for r in rows}


@click.command()
@click.option("--minutes", default=5.0, show_default=True, help="CPU time per fault.")
@click.option("--seed", default=0, show_default=True)
@click.option("--only", multiple=True, help="Faults (or 'control') to hunt; all if left out.")
@click.option("--page-only", is_flag=True, help="Hunt nothing; make the page from the rows that are there.")
@click.option("--worker", "fd", type=int, hidden=True)
def main(minutes: float, seed: int, only: tuple[str, ...], page_only: bool, fd: int | None) -> None:
    """Hunt planted faults and write docs/hunt-planted.md. Exit code 1 if one is not found."""
    if fd is not None:
        sys.exit(worker(fd))
    unknown = set(only) - set(BY_NAME) - {CONTROL}
    if unknown:
        raise click.UsageError(f"no fault is called {', '.join(sorted(unknown))}")
    rows = read_rows(ROWS)
    if not page_only:
        ROWS.parent.mkdir(exist_ok=True)
        with ROWS.open("ab", buffering=0) as kept:
            run_all(only, seed, 60 * minutes, rows, lambda r: kept.write(msgspec.json.encode(r) + b"\n"))
    PAGE.write_text(page(rows), encoding="utf-8")
    missed = [r.name for k, r in rows.items() if r.found == k.startswith(CONTROL)]
    click.echo(f"{PAGE}: {len(rows)} rows; against expectation: {', '.join(missed) or 'none'}")
    sys.exit(int(Exit.FINDING if missed else Exit.OK))


def run_all(
    only: Sequence[str], seed: int, limit: float, rows: dict[str, Row], keep: Callable[[Row], Any]
) -> None:
    """Hunt what is asked for, release by release; ``keep`` gets each row at once."""
    wanted = [m for m in MUTANTS if not only or m.name in only]
    versions = list(dict.fromkeys(m.version for m in wanted)) or [engines.BASE]
    for version in versions:
        names = [m.name for m in wanted if m.version == version]
        if not only or CONTROL in only:
            names.append(CONTROL)
        for row in hunt(version, names, seed, limit):
            rows[key(row)] = row
            keep(row)
            what = f"{row.property} after" if row.found else "nothing in"
            click.echo(f"{row.name:26} vLLM {row.version}: {what} {row.seconds:.1f} s, {row.cases} cases")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
