"""Run TLC on one configuration and read its ``-tool`` output.

Time-out, out of memory, a parse error or an output without a verdict is :data:`BROKEN`, never success: the
exit code alone does not say which property was violated.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stallproof.check import tools
from stallproof.check.tlaval import ModelSet, parse, show
from stallproof.errors import Unsupported

OK = "ok"
BROKEN = "broken"  #: the tool did not give a verdict
UNFINISHED = "unfinished"  #: a large run ended at its time limit; no violation so far, a later run goes on
CHECKPOINT_MINUTES = 9  #: four of them fit into a shard of 40 minutes
LIVENESS = "liveness"  #: TLC does not name the violated temporal property

_BIG_JVM = [
    "-XX:+UseParallelGC",
    "-XX:MaxDirectMemorySize=1500m",
    "-Dtlc2.tool.fp.FPSet.impl=tlc2.tool.fp.OffHeapDiskFPSet",
]

SHORT_JVM = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
#: options that :mod:`stallproof.check.startup` sets for a while
shared: list[str] = []

_MSG = re.compile(r"@!@!@STARTMSG (\d+):(\d+) @!@!@\n(.*?)\n?@!@!@ENDMSG \1 @!@!@", re.S)
_VAR = re.compile(r"^(?:/\\ )?(\w+) = ", re.M)
_STATE = re.compile(r"\d+: <(\w+)")


@dataclass
class TraceState:
    """One state of a counterexample: the action that led to it (empty: initial) and the variables."""

    action: str
    values: dict[str, Any]


@dataclass
class Result:
    """What TLC said. ``result`` is OK, BROKEN, LIVENESS or the violated property's name."""

    result: str = BROKEN
    distinct: int | None = None  #: of an unfinished run: as last reported, TLC does so once a minute
    generated: int | None = None
    depth: int | None = None
    collision: str | None = None
    seconds: float = 0.0  #: of an unfinished run: up to its last report, so that the counts belong to them
    trace: list[TraceState] = field(default_factory=list)
    loop_to: int | None = None  #: liveness: number (from 1) of the trace state the cycle returns to
    stutters: bool = False  #: liveness: the last state repeats for ever
    error: str | None = None


def values(body: str) -> dict[str, Any]:
    """The variables of one printed state."""
    body = body.strip()
    starts = list(_VAR.finditer(body))
    out = {}
    for m, nxt in zip(starts, [*starts[1:], None], strict=True):
        out[m.group(1)] = parse(body[m.end() : nxt.start() if nxt else len(body)])
    return out


def read(text: str) -> Result:
    """Interpret ``-tool`` output."""
    r = Result()
    for m in _MSG.finditer(text):
        code, kind, body = int(m.group(1)), m.group(2), m.group(3)
        if code == 2199:
            g = re.match(r"([\d,]+) states generated, ([\d,]+) distinct", body)
            if g:
                r.generated, r.distinct = (int(x.replace(",", "")) for x in g.groups())
        elif code == 2200:
            g = re.search(r"Progress\((\d+)\).*?([\d,]+) states generated.*?, ([\d,]+) distinct", body)
            if g:
                r.depth, r.generated, r.distinct = (int(x.replace(",", "")) for x in g.groups())
        elif code == 2194:
            g = re.search(r"(\d+)", body)
            r.depth = int(g.group(1)) if g else r.depth
        elif code == 2193:
            r.result = OK
            g = re.search(r"val = ([\d.E+-]+)\s*$", body)
            r.collision = g.group(1) if g else None
        elif code in (2110, 2107):
            r.result = body.split()[1]
        elif code == 2112:
            r.result = body.split()[2]
        elif code == 2116:
            r.result = LIVENESS
        elif code == 2217:
            head, _, rest = body.partition("\n")
            g = _STATE.match(head)
            action = g.group(1) if g else ""
            r.trace.append(TraceState("" if action == "Initial" else action, values(rest)))
        elif code == 2218:
            r.stutters = True
        elif code == 2122:
            g = re.search(r"(\d+)", body)
            r.loop_to = int(g.group(1)) if g else None
        elif kind == "1" and code not in (2121, 2264, 2268, 2401) and r.error is None:
            r.error = " ".join(body.split())[:600]
    syntax = re.search(r"\*\*\* ?(?:Parse Error|Errors)[^\n]*\n(.{0,400})", text, re.S)
    if r.result == BROKEN and syntax:
        r.error = " ".join(syntax.group(1).split())
    if r.result == BROKEN and r.error is None:
        tail = [line for line in text.splitlines() if line.strip() and not line.startswith("@!@")]
        r.error = " | ".join(tail[-3:])[:600] or "no output"
    return r


def cores(wanted: int) -> int:
    """At most ``wanted`` workers, and no more than cores we may use: ``taskset`` confines a long run."""
    return min(wanted, len(os.sched_getaffinity(0)))


def model_values(constants: Mapping[str, Any]) -> list[str]:
    """All TLC model values that ``constants`` use."""
    return [x for v in constants.values() if isinstance(v, ModelSet) for x in v]


def module(name: str, extends: str, constants: Mapping[str, Any], extra: str = "") -> str:
    """Text of the model module: one definition per constant."""
    lines = [f"---- MODULE {name} ----", f"EXTENDS {extends}, TLC"]
    models = model_values(constants)
    if models:
        lines += ["CONSTANTS " + ", ".join(models), f"Symmetry == Permutations({{{', '.join(models)}}})"]
    lines += [f"c_{k} == {show(v)}" for k, v in constants.items()]
    return "\n".join([*lines, extra, "====", ""])


def run(
    extends: str,
    constants: Mapping[str, Any],
    *,
    invariants: Sequence[str] = (),
    properties: Sequence[str] = (),
    spec: str = "Spec",
    symmetry: str = "",
    definitions: str = "",
    replaced: Mapping[str, str] | None = None,
    dump: Path | None = None,
    workers: int = 1,
    heap: str = "2g",
    timeout: float = 600,
    keep: Path | None = None,
    options: Sequence[str] = (),
    big: bool = False,
    jvm: Sequence[str] | None = None,
) -> Result:
    """Check one model with TLC.

    ``constants`` are given by definition override, ``replaced`` names operators and what of ``definitions``
    stands for each; ``dump`` receives the state graph in dot form;
    ``big`` picks JVM flags for long runs, ``jvm`` are more for a short one. ``keep`` is a directory for
    TLC's state and output: a checkpoint is written there every nine minutes, and a run that finds one goes on
    from it. Such a run that reaches ``timeout`` is UNFINISHED, with the counts that it last reported: the
    first come after a few seconds, the next a minute later, so of a run of less than a minute they say
    nothing about its speed.

    Raises ``Unsupported`` if Java or the jar is missing.
    """
    java, jar = tools.java(), tools.jar()
    with tempfile.TemporaryDirectory(prefix="stallproof-tlc-") as tmp:
        d = Path(tmp)
        for f in tools.spec_dir().glob("*.tla"):
            shutil.copy(f, d)
        (d / "jtmp").mkdir()
        (d / "MC.tla").write_text(module("MC", extends, constants, definitions))
        cfg = ["CONSTANTS", *(f"  {k} <- c_{k}" for k in constants)]
        cfg += [f"  {x} = {x}" for x in model_values(constants)]
        cfg += [f"  {old} <- {new}" for old, new in (replaced or {}).items()]
        cfg += [f"SPECIFICATION {spec}"]
        if symmetry:
            cfg.append(f"SYMMETRY {symmetry}")
        if invariants:
            cfg.append("INVARIANTS " + " ".join(invariants))
        if properties:
            cfg.append("PROPERTIES " + " ".join(properties))
        (d / "MC.cfg").write_text("\n".join(cfg) + "\n")
        flags = _BIG_JVM if big else [*SHORT_JVM, *(shared if jvm is None else jvm)]
        cmd = [str(java), *flags, f"-Xmx{heap}", "-Xss64m", f"-Djava.io.tmpdir={d / 'jtmp'}"]
        cmd += ["-cp", str(jar), "tlc2.TLC", "-tool", "-deadlock", "-fp", "0"]
        cmd += ["-workers", str(cores(workers))]
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            options = [*options, "-checkpoint", str(CHECKPOINT_MINUTES)]
            saved = sorted(keep.glob("*/queue.chkpt"), key=lambda p: p.stat().st_mtime)
            if saved:
                options = [*options, "-recover", str(saved[-1].parent.resolve())]
        cmd += ["-metadir", str(keep.resolve() if keep else d / "meta"), "-config", "MC.cfg", *options]
        if dump is not None:
            cmd += ["-dump", "dot,actionlabels", str(dump)]
        started, began = time.monotonic(), time.time()
        log = keep / f"tlc-{len(list(keep.glob('tlc-*.log'))) + 1}.log" if keep else d / "tlc.log"
        try:
            with log.open("w") as out:
                subprocess.run(
                    [*cmd, "MC.tla"],
                    cwd=d,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    timeout=timeout,
                    check=False,
                )
            late = False
        except subprocess.TimeoutExpired:
            late = True
        except OSError as exc:
            raise Unsupported(f"cannot run {java}: {exc}", remedy=tools.REMEDY.format("JAVA")) from exc
        r = read(log.read_text(errors="replace"))
        r.seconds = time.monotonic() - started
        if late and keep and r.distinct and r.generated and r.result == BROKEN:
            r.result, r.error = UNFINISHED, None
            r.seconds = max(log.stat().st_mtime - began, 0.0)
            r.collision = f"{r.distinct * max(r.generated - r.distinct, 0) / 2**64:.1E}"
        elif late:
            r.result, r.error = BROKEN, f"no verdict after {timeout:.0f} s"
        return r
