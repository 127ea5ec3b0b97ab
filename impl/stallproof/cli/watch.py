"""``stallproof watch``: poll a running server, report a confirmed stall; ``--probe`` for liveness probes."""

from __future__ import annotations

import hashlib
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import httpx
import msgspec

from stallproof.cli.options import Finite
from stallproof.cli.output import whole
from stallproof.diagnose import watch as rules
from stallproof.diagnose.engine import IDLE, STALLED
from stallproof.diagnose.knowledge import MECHANISMS
from stallproof.errors import Exit

STATE_SCHEMA = "stallproof-watch/1"


class _File(msgspec.Struct):
    """The probe's memory. ``mono``: monotonic seconds of the last call, which a reboot resets."""

    schema: str
    url: str
    mono: float
    engines: dict[str, rules.State]


def _regular(path: Path) -> None:
    """Raise ``OSError`` for a folder, a device, or a pipe: reading one could hang a probe for ever."""
    if path.exists() and not path.is_file():
        raise OSError("no regular file")


def _read(path: Path, url: str) -> dict[str, rules.State]:
    """The remembered engines; anything unreadable, foreign, or from before a reboot starts afresh."""
    try:
        _regular(path)
        f = msgspec.json.decode(path.read_bytes(), type=_File)
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        click.echo(f"stallproof: state file {path} is not usable ({exc}); starting afresh", err=True)
        return {}
    if f.schema != STATE_SCHEMA or f.url != url or f.mono > time.monotonic():
        return {}
    return f.engines


def _write(path: Path, url: str, engines: dict[str, rules.State]) -> None:
    # JSON has no nan: what is not known is left out
    known = {k: {f: v for f, v in msgspec.structs.asdict(e).items() if v == v} for k, e in engines.items()}
    data = msgspec.json.encode(
        {"schema": STATE_SCHEMA, "url": url, "mono": time.monotonic(), "engines": known}
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _regular(path)
        with whole(path) as out:
            out.write(data.decode())
    except OSError as exc:
        click.echo(
            f"stallproof: state file {path} cannot be written ({exc}): no stall can be confirmed", err=True
        )


def _line(look: rules.Look, url: str, stamp: float) -> dict[str, Any]:
    m = MECHANISMS.get(look.mechanism)
    out: dict[str, Any] = {
        "ts": round(stamp, 3), "url": url, "engine": look.engine, "verdict": look.verdict, "why": look.why,
        "quiet_s": round(look.quiet, 1), "running": look.running, "waiting": look.waiting,
        "deferred": look.deferred,
        "kv_percent": round(look.kv, 2) if look.kv == look.kv else None,
    }  # fmt: skip
    if m is not None:
        key = "finding" if look.verdict == STALLED else "candidate"
        out[key] = {
            "mechanism": m.key, "layer": m.layer, "promise": m.promise or None, "title": m.title,
            "do_now": m.now,
            "prevented_by_stallproof": m.prevented,
        }  # fmt: skip
    return out


class _Watch:
    def __init__(self, url: str, limits: rules.Limits, timeout: float) -> None:
        self.url, self.limits = url, limits
        self.client = httpx.Client(timeout=timeout, follow_redirects=True)
        self.states: dict[str, rules.State] = {}
        self.answers = 0

    def poll(self) -> list[rules.Look] | str:
        """One look per engine, or why there is none."""
        try:
            r = self.client.get(self.url)
            r.raise_for_status()
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            return f"{type(exc).__name__}: {exc}"
        scrapes = rules.scrape(r.text, self.url)
        if not scrapes:
            return "the answer has no vllm: metrics"
        self.answers += 1
        now = time.monotonic()
        looks = [
            rules.look(c, self.states.setdefault(str(c.engine), rules.State()), now, self.limits)
            for c in scrapes[:1024]
        ]
        if any(k.verdict == STALLED for k in looks) and (why := self.paused()):
            for k in looks:
                if k.verdict == STALLED:
                    k.verdict, k.why, k.mechanism = IDLE, why, ""
        return looks

    def paused(self) -> str:
        """Does the server say that it is paused or asleep? Only development mode has these end points."""
        for path, key in (("is_paused", "is_paused"), ("is_sleeping", "is_sleeping")):
            try:
                r = self.client.get(httpx.URL(self.url).join(f"/{path}"))
                if r.status_code == 200 and r.json().get(key) is True:
                    return f"/{path} says so"
            except (httpx.HTTPError, ValueError, AttributeError):
                continue
        return ""


@click.command(name="watch")
@click.option("--metrics", "url", required=True, help="URL of the server's /metrics.")
@click.option(
    "--interval", default=10.0, show_default=True, type=Finite(0.2, 86400), help="Seconds between polls."
)
@click.option(
    "--bound",
    default=rules.BOUND,
    show_default=True,
    type=Finite(1),
    help="Seconds without a token before a step counts as hung (worker or device).",
)
@click.option(
    "--load-deadline",
    default=rules.LOAD_DEADLINE,
    show_default=True,
    type=Finite(1),
    help="Seconds before parked remote loads count as lost.",
)
@click.option(
    "--timeout", default=5.0, show_default=True, type=Finite(0.1, 3600), help="Seconds for one answer."
)
@click.option("--probe", is_flag=True, help="One poll, then exit: 1 only on a confirmed stall, else 0.")
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    help="State file of --probe; default: one per URL in the temporary folder.",
)
@click.option("--polls", type=click.IntRange(1), help="Stop after this many polls.")
@click.option("--exit-on-stall", is_flag=True, help="Stop with exit code 1 at the first confirmed stall.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line per engine and poll on standard output.")
def command(
    url: str, interval: float, bound: float, load_deadline: float, timeout: float, probe: bool,
    state: Path | None,
    polls: int | None, exit_on_stall: bool, as_json: bool,
) -> int:  # fmt: skip
    """Poll a running server and report a confirmed stall; never on idleness, a long prefill or sleep.

    A decidable scheduler stall is confirmed within two intervals; a worker or device hang after --bound;
    parked loads after --load-deadline. With --probe: one poll with a state file, for liveness probes.
    """
    limits = rules.Limits(
        bound=bound, load_deadline=load_deadline, gap=max(rules.GAP, 2 * interval) if not probe else rules.GAP
    )
    w = _Watch(url, limits, timeout)
    if probe:
        if state is None:
            digest = hashlib.sha256(url.encode()).hexdigest()[:16]
            state = Path(tempfile.gettempdir()) / f"stallproof-watch-{digest}.json"
        return _probe(w, state, as_json)
    said: dict[int, str] = {}
    n = 0
    stalled = False
    while True:
        looks = w.poll()
        n += 1
        stamp = time.time()
        if isinstance(looks, str):
            if said.get(-1) != looks:
                click.echo(f"stallproof: {url}: {looks}", err=True)
            said[-1] = looks
        else:
            said.pop(-1, None)
            stalled = any(k.verdict == STALLED for k in looks)
            for k in looks:
                if as_json:
                    click.echo(msgspec.json.encode(_line(k, url, stamp)).decode())
                elif said.get(k.engine) != k.verdict:
                    _say(k, stamp)
                said[k.engine] = k.verdict
            sys.stdout.flush()
        if stalled and exit_on_stall:
            return int(Exit.FINDING)
        if polls is not None and n >= polls:
            return int(Exit.FINDING if stalled else Exit.OK if w.answers else Exit.BAD_INPUT)
        time.sleep(interval)


def _say(k: rules.Look, stamp: float) -> None:
    when = time.strftime("%H:%M:%S", time.localtime(stamp))
    click.echo(
        f"{when} engine {k.engine:03d}: {k.verdict} - {k.why} (Running {k.running}, Waiting {k.waiting})"
    )
    m = MECHANISMS.get(k.mechanism)
    if m is not None and k.verdict == STALLED:
        click.echo(f"  {m.layer}: {m.title}" + (f" [{m.promise}]" if m.promise else ""))
        click.echo(f"  now: {m.now}")


def _probe(w: _Watch, path: Path, as_json: bool) -> int:
    w.states = _read(path, w.url)
    looks = w.poll()
    if isinstance(looks, str):
        # an unreachable server is for the port check of the probe, not for ours
        click.echo(f"stallproof: {w.url}: {looks}; cannot tell", err=True)
        return int(Exit.OK)
    _write(path, w.url, w.states)
    stamp = time.time()
    for k in looks:
        if as_json:
            click.echo(msgspec.json.encode(_line(k, w.url, stamp)).decode())
        else:
            _say(k, stamp)
    return int(Exit.FINDING if any(k.verdict == STALLED for k in looks) else Exit.OK)
