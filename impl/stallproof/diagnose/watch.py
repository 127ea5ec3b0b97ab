"""The rules of diagnosis on a running server: polls of ``/metrics``, a tracker per engine, a confirmed stall.

What one poll cannot show, two can: the counters of tokens and steps stand still while requests are there. A
scheduler stall is *decidable* where nothing outside the scheduler can end it: nothing runs, requests wait for
capacity, none is parked (or fetched requests wait behind the head). Everything else gets its bound first:
``bound`` for a step that may be long, ``load_deadline`` for parked loads.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from .engine import IDLE, PROGRESSING, STALLED, UNKNOWN, Verdict
from .metrics import Scrape, Scrapes
from .observe import NAN, Ref, Stats

#: seconds without a token after which a step counts as hung (worker or device)
BOUND = 120.0
#: seconds after which parked loads have missed every documented deadline
LOAD_DEADLINE = 600.0
#: one gap between polls counts for at most this many seconds: a paused probe or host is not a stalled engine
GAP = 60.0


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds in seconds; both are configurable."""

    bound: float = BOUND
    load_deadline: float = LOAD_DEADLINE
    gap: float = GAP


class State(msgspec.Struct, kw_only=True):
    """What is remembered of one engine between polls; also the content of the probe's state file.

    ``quiet``: seconds without progress while requests were there; ``polls``: polls in that state; ``same``:
    polls in a row in which the decidable condition held; ``hot``: gaps in a row with steps going on.
    Counters are the last values seen.
    """

    at: float = NAN
    progress: float = NAN
    queries: float = NAN
    transfers: float = NAN
    cpu: float = NAN
    fds: float = NAN
    hot: int = 0
    kv: float = NAN
    running: int = -1
    waiting: int = -1
    quiet: float = 0.0
    polls: int = 0
    same: int = 0
    #: the scheduler was seen to go on without scheduling a token
    lively: bool = False


class Look(msgspec.Struct, kw_only=True):
    """The outcome of one poll for one engine."""

    engine: int
    verdict: Verdict
    why: str
    mechanism: str = ""
    quiet: float = 0.0
    running: int = -1
    waiting: int = -1
    deferred: int | None = None
    kv: float = NAN


def scrape(text: str, url: str = "") -> list[Scrape]:
    """The engines in one answer of ``/metrics``."""
    s = Scrapes()
    out: list[Scrape] = []
    for n, line in enumerate(text.splitlines(), 1):
        if line.startswith("vllm:"):
            out += s.feed(line, Ref(url, n, line.encode()[:200]), NAN)
    out += s.flush()
    for name in ("process_cpu_seconds_total", "process_open_fds"):
        value = next(iter(_plain(text, name)), NAN)
        for c in out:
            c.values[name] = value
    return out


def _plain(text: str, name: str) -> Iterable[float]:
    for line in text.splitlines():
        if line.startswith(name + " "):
            try:
                yield float(line.split()[1])
            except (ValueError, IndexError):
                return


def _grew(new: float, old: float) -> bool:
    return new == new and old == old and new > old


def look(c: Scrape, st: State, now: float, limits: Limits) -> Look:
    """Judge one scrape against what is remembered; updates ``st``. ``now``: monotonic seconds."""
    s = c.stats()
    progress = c.progress
    queries = c.get("prefix_cache_queries_total")
    transfers = sum(
        v
        for k, v in c.values.items()
        if k.startswith(("nixl_", "mooncake_", "kv_transfer"))
        and "fail" not in k
        and "expired" not in k
        and v == v
    )
    cpu = c.get("process_cpu_seconds_total")
    gap = min(max(0.0, now - st.at), limits.gap) if st.at == st.at else 0.0
    first = st.at != st.at
    restarted = st.progress == st.progress and progress < st.progress
    moved = (
        _grew(progress, st.progress)
        or (s.running > 0 and s.kv == s.kv and st.kv == st.kv and s.kv != st.kv)
        or (not first and s.running > 0 and s.running != st.running)
    )
    retried = _grew(queries, st.queries) and not _grew(progress, st.progress)
    # Every step, one without tokens included, sends a record to the API server. Measured on 0.28.0: 5 to 10 %
    # of a core while wedged, 0.2 % while idle; one scrape costs some 10 ms. New arrivals cost as well, but
    # they show as open connections.
    fds = c.get("process_open_fds")
    hot = gap > 0 and fds == st.fds and (cpu - st.cpu) / gap > 0.02 + 0.05 / gap
    st.hot = st.hot + 1 if hot else 0
    spinning = st.hot >= 2
    # gauges that change although nothing runs and nothing was counted: steps come back and schedule nothing
    refreshed = s.running == 0 == st.running and (s.waiting != st.waiting or s.kv != st.kv)
    fetching = _grew(transfers, st.transfers)
    out = Look(
        engine=c.engine,
        verdict=UNKNOWN,
        why="",
        running=s.running,
        waiting=s.waiting,
        deferred=s.deferred,
        kv=s.kv,
    )

    def leave(verdict: Verdict, why: str, mechanism: str = "") -> Look:
        out.verdict, out.why, out.mechanism, out.quiet = verdict, why, mechanism, st.quiet
        st.at, st.progress, st.queries, st.transfers = now, progress, queries, transfers
        st.fds = fds
        st.cpu, st.kv, st.running, st.waiting = cpu, s.kv, s.running, s.waiting
        return out

    if restarted or moved or first or c.asleep or (s.running <= 0 and s.waiting <= 0):
        st.quiet, st.polls, st.same, st.hot, st.lively = 0.0, 0, 0, 0, False
        if c.asleep:
            return leave(IDLE, "asleep")
        if s.running < 0 and s.waiting < 0:
            return leave(UNKNOWN, "no request gauges in the answer")
        if s.running == 0 and s.waiting == 0:
            return leave(IDLE, "nothing runs and nothing waits")
        st.same = 1 if _decidable(s) else 0
        if moved and not first:
            return leave(PROGRESSING, "counters or KV usage move")
        return leave(
            UNKNOWN, "the engine restarted" if restarted else "first look: counters need a second one"
        )

    st.quiet += gap
    st.polls += 1
    st.lively = st.lively or retried or spinning or refreshed
    if _decidable(s):
        st.same += 1
        fetched = bool(s.fetch and s.fetch[2] > 0)
        # The moment between the last request and a long next step (or a compilation) looks the same, because
        # gauges are set by steps only. It cannot be that once the scheduler is seen to go on without a token.
        if st.same >= 2 and st.lively:
            mech = "head_blocks_holders" if fetched else "head_never_fits"
            return leave(
                STALLED, "requests wait for capacity, nothing runs, nothing outside can change it", mech
            )
        if st.quiet >= limits.bound and st.polls >= 2:
            return leave(
                STALLED, f"no step came back for {st.quiet:.0f} s (bound {limits.bound:.0f} s)", "worker_hang"
            )
        return leave(UNKNOWN, "requests wait for capacity and nothing runs; one more look")
    st.same = 0
    if s.running > 0:
        if st.quiet >= limits.bound and st.polls >= 2:
            return leave(
                STALLED, f"no step came back for {st.quiet:.0f} s (bound {limits.bound:.0f} s)", "worker_hang"
            )
        return leave(
            UNKNOWN,
            f"no token for {st.quiet:.0f} s: a long step, compilation or hang; bound {limits.bound:.0f} s",
        )
    if fetching:
        st.quiet = 0.0
        return leave(PROGRESSING, "transfers move")
    if s.deferred is None and st.lively is False and st.quiet < limits.load_deadline:
        return leave(UNKNOWN, "requests wait; this release does not say whether they are parked")
    if st.quiet >= limits.load_deadline and st.polls >= 2:
        mech = "held_blocks" if s.deferred == 0 else "head_blocks_holders" if s.capacity else "parked"
        return leave(STALLED, f"parked requests are past their deadline ({limits.load_deadline:.0f} s)", mech)
    why = f"parked loads may still complete: {st.quiet:.0f} s of {limits.load_deadline:.0f} s"
    return leave(UNKNOWN, why, "head_blocks_holders" if s.capacity else "parked")


def _decidable(s: Stats) -> bool:
    """Nothing outside the scheduler can end it: no parked request, or fetched ones behind a refused head."""
    if s.running != 0 or s.waiting <= 0 or s.deferred is None:
        return False
    if s.fetch and s.fetch[2] > 0 and s.fetch[1] == 0 and s.fetch[0] == 0:
        return True
    # Blocks held by nobody who runs or is parked may still come back from sends in flight.
    return s.deferred == 0 and s.kv == s.kv and s.kv < 0.05
