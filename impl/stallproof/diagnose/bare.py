"""Verdicts where no statistics record helps: one scrape, DEBUG lines, iteration details, stacks, dumps, idleness."""

# ruff: noqa: E501 - sentences for people: one rule, one place
from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .engine import IDLE, INTERVAL, PROGRESSING, STALLED, UNKNOWN, Engine, Missing
from .evidence import Result, ev, found, hang, metrics_command, shm, stack_command, tell, window
from .judge import HANG, LOAD_DEADLINE, parked_rivals
from .metrics import Scrape
from .observe import Stats

if TYPE_CHECKING:
    from .session import Instance

#: percent of the pool that transfers in flight are believed to hold on an idle engine
LEAK_FLOOR = 25.0


def judge_scrape(c: Scrape, s: Stats, eng: Engine, inst: Instance) -> Result:
    """One scrape, alone."""
    if c.asleep:
        return Result(verdict=IDLE, why="the engine sleeps (engine_sleep_state)")
    return judge_snapshot(s, eng, inst, _pool_note(c))


def judge_snapshot(s: Stats, eng: Engine, inst: Instance, pool: str = "") -> Result:
    """One moment: it can show idleness, never a stall.

    Measured on a healthy, saturated 0.32.0: Running 0, Waiting 17, KV 0 % between two batches of equal length.
    """
    if eng.paused is not None:
        return Result(verdict=IDLE, why="the engine is paused or asleep")
    if s.running == 0 and s.waiting == 0:
        return Result(verdict=IDLE, why="nothing runs and nothing waits")
    if s.running < 0 and s.waiting < 0:
        return Result(
            verdict=UNKNOWN, why="the scrape has no request gauges",
            missing=Missing(what="num_requests_running and num_requests_waiting", command=metrics_command(eng)),
        )  # fmt: skip
    if s.running > 0:
        return Result(
            verdict=UNKNOWN, why="one moment with requests running shows no movement",
            missing=Missing(what="a second look: counters that grow are progress", command=metrics_command(eng)),
        )  # fmt: skip
    fetched = bool(s.fetch and s.fetch[2] > 0)
    if s.deferred or fetched:
        cand = "head_blocks_holders" if s.capacity else "load_done_not_promoted" if fetched else "parked"
        rivals = parked_rivals(s)
    else:
        cand = "head_never_fits"
        rivals = [
            ("the moment between two steps of a healthy engine", "tokens are counted at the second look"),
            ("a head that can never fit" + (f" ({pool})" if pool else ""),
             "nothing moves until the second look; the head's prompt against the usable pool"),
            ("paused by an administrator", "/is_paused"),
        ]  # fmt: skip
    return Result(
        verdict=UNKNOWN,
        why="one moment: parked loads may still complete" if s.deferred else "one moment with nothing running",
        missing=Missing(what="a second look, and whether parked loads completed", command=metrics_command(eng),
                        candidate=cand, rivals=rivals),
    )  # fmt: skip


def _pool_note(c: Scrape) -> str:
    blocks, size = c.get("num_gpu_blocks"), c.get("block_size")
    if math.isnan(blocks):
        return ""
    usable = int(blocks) - 1
    text = f"usable pool: {usable} blocks (num_gpu_blocks - 1)"
    return text + (f" of {int(size)} tokens = {usable * int(size)} tokens" if size == size else "")


def leak_on_idle(s: Stats, eng: Engine, inst: Instance, lines: int) -> Result | None:
    """Nothing runs, nothing waits, and blocks are held (NoLeak)."""
    held = inst.total.last.get("reset_held")
    if held is not None and eng.tally.after("reset_held", "add"):
        return Result(
            verdict=IDLE, why="idle, with blocks held",
            finding=found(
                "held_blocks", "reset-names-held-blocks",
                [ev(held, f"exactly {held.data['n']} blocks are held by nobody alive"), ev(s, tell(s))], eng,
                confidence="high",
            ),
        )  # fmt: skip
    if s.kv != s.kv or s.kv < 1.0:
        return None
    out = dict(inst.delayed_ids.items())
    if out and s.kv >= LEAK_FLOOR:
        first, last = inst.total.first["delay_free"], inst.total.last["delay_free"]
        return Result(
            verdict=IDLE, why="idle, with blocks held by finished requests",
            finding=found(
                "held_blocks", "delayed-free-without-release",
                [ev(first, f"{sum(out.values())} blocks of {len(out)} requests announced as delayed, none released"),
                 ev(last, "the last of them"), ev(s, tell(s) + ": held although nothing lives")], eng,
                concerned=list(out)[:20], count=len(out), confidence="medium", onset=(first.t, s.t),
                rivals=[("sends still in flight", "KV usage falls within the lease (30 s to 480 s)"),
                        ("stale record: the last step came before the release", "POST /reset_prefix_cache names the count")],
            ),
        )  # fmt: skip
    return None


def unanswered(s: Stats, eng: Engine, end: float) -> Result | None:
    """Requests arrived after the engine was last seen idle, time went on, and no record shows a token since.

    At INFO every interval with a token writes a record, so there was none; but a lost line would look the same.
    """
    gone = {i for k in ("abort", "failed", "done") for i in eng.tally.ids.get(k, {})}
    new = [o for o in eng.tally.some.get("add", []) if o.t > s.t and o.data["id"] not in gone]
    if not new or end - new[0].t < HANG:
        return None
    return Result(
        verdict=UNKNOWN, why=f"{len(new)} requests arrived up to {end - new[0].t:.0f} s ago and no record shows a token since",
        missing=Missing(
            what="whether these requests run, wait, or were answered", command=metrics_command(eng), candidate="wedge",
            rivals=[("they wait and nothing is scheduled", "num_requests_waiting above 0, counters stand still"),
                    ("they never reached the scheduler", "num_requests_* stay 0; shm_broadcast records"),
                    ("records are missing from this log", "counters moved")],
        ),
    )  # fmt: skip


def contradiction(s: Stats, eng: Engine, inst: Instance, lines: int) -> Result | None:
    """The core says it has unfinished work, the record says there is none: the record is stale (vLLM #16580)."""
    t = eng.tally
    loop = t.last.get("loop")
    if (
        loop is None
        or loop.data.get("what") != "True"
        or not t.after("loop", "work_wait")
        or not t.after("loop", "wave_idle")
    ):
        return None
    others = [e for i, e in inst.engines.items() if i != eng.index and e.tally.last.get("loop") is not None]
    if not any(e.tally.last["loop"].data.get("what") == "False" for e in others):
        return None
    if lines < 2 and window(loop, s) < 2 * INTERVAL:
        return None
    other = next(e for e in others if e.tally.last["loop"].data.get("what") == "False")
    return Result(
        verdict=STALLED, why="this rank has unfinished work and has produced no token since",
        finding=found(
            "dp_desync", "rank-unfinished-others-idle",
            [ev(loop, "this rank: unfinished work"), ev(other.tally.last["loop"], f"{other.name}: none"),
             ev(s, "the record still shows " + tell(s) + ": it was never refreshed")], eng,
            onset=(loop.t, s.t), rivals=[("a first step that takes long", "py-spy dump of both ranks")],
        ),
    )  # fmt: skip


def judge_bare(eng: Engine, inst: Instance, end: float) -> Result:
    """No statistics at all for this engine: what the other lines allow."""
    t = eng.tally
    f = hang(eng, inst)
    if f is not None:
        return Result(verdict=STALLED, why="the step did not come back, or the engine is gone", finding=f)
    if t.has("shm"):
        return _startup_or_lost(eng, inst)
    runs = [o for o in t.some.get("dp", []) if o.data["unfinished"] and not o.data["executed"]]
    if (len(runs) >= 3 and window(runs[0], runs[-1]) >= INTERVAL) or len(runs) >= 10:
        return Result(
            verdict=STALLED, why="the core keeps unfinished work and executes nothing",
            finding=found("dp_desync", "unfinished-not-executed", [ev(runs[0], "first"), ev(runs[-1], "last")], eng),
        )  # fmt: skip
    if t.has("parked", "pull_failed", "p_not_ready", "transport"):
        return _parked_bare(eng, inst, end)
    if t.has("lookup"):
        rid, n = max(t.ids["lookup"].items(), key=lambda kv: kv[1])
        first, last = t.first["lookup"], t.last["lookup"]
        if n >= 20 and window(first, last) >= 60:
            return Result(
                verdict=STALLED, why="the same head is looked up and refused again and again",
                finding=found("wedge", "lookup-repeats",
                              [ev(first, f"{n} look-ups of {rid}"), ev(last, "the last one")], eng, concerned=[rid]),
            )  # fmt: skip
    if eng.iteration is not None:
        d = eng.iteration.data
        if eng.empty_steps >= 20:
            return Result(
                verdict=UNKNOWN, why=f"{eng.empty_steps} steps without a token",
                missing=Missing(what="whether requests wait", command=metrics_command(eng)),
            )  # fmt: skip
        wait = end - eng.iteration.t
        if d["gen_reqs"] + d["ctx_reqs"] > 0 and wait >= 120:
            return Result(
                verdict=UNKNOWN, why=f"the step counter stands since {wait:.0f} s; idle and hung look the same",
                missing=Missing(what="whether requests are unfinished", command=metrics_command(eng)),
            )  # fmt: skip
        return Result(verdict=PROGRESSING, why="the step counter moves")
    states = inst.stack_states()
    if states:
        return _stack_alone(eng, inst)
    if eng.paused is not None or inst.paused is not None:
        return Result(verdict=IDLE, why="the engine is paused or asleep")
    if inst.kv_batches > 1:
        return Result(
            verdict=UNKNOWN, why="KV events show cache content, not whether requests wait",
            missing=Missing(what="the queue", command=metrics_command(eng)),
        )  # fmt: skip
    if t.has("starting", "compile", "startup") and not t.has("ready"):
        return Result(
            verdict=UNKNOWN, why="start-up, not finished",
            missing=Missing(what="whether the workers still make progress", command=stack_command(inst)),
        )  # fmt: skip
    return Result(
        verdict=UNKNOWN, why="no statistics record, scrape, dump or stack of this engine",
        missing=Missing(what="any record of what runs and what waits", command=metrics_command(eng)),
    )  # fmt: skip


def _startup_or_lost(eng: Engine, inst: Instance) -> Result:
    t = eng.tally
    ready = inst.total.has("ready")
    starting = inst.total.has("starting", "startup", "compile") and not ready
    lost = shm(eng)
    if starting or lost is None:
        work = [o.ref.line for k in ("compile", "worker_line") for o in t.some.get(k, [])]
        since = sum(o.ref.line > max(work, default=0) for o in t.some["shm"])
        if work and max(work) > t.first["shm"].ref.line and since <= 2:
            return Result(
                verdict=PROGRESSING, why="start-up or compilation goes on: worker lines between the records"
            )
        return Result(
            verdict=UNKNOWN, why="a wait for the workers during start-up: compilation and a hang look the same",
            missing=Missing(what="what the workers do", command=stack_command(inst), candidate="worker_hang",
                            rivals=[("compilation or weight loading", "worker CPU use, compile cache growing"),
                                    ("a worker hangs", "the same stack twice, 30 s apart")]),
        )  # fmt: skip
    return Result(verdict=STALLED, why="broadcasts to the workers are not consumed", finding=lost)


def _parked_bare(eng: Engine, inst: Instance, end: float) -> Result:
    t = eng.tally
    parked = t.some.get("parked", [])
    if parked:
        first, last = t.first["parked"], t.last["parked"]
        for rid in t.ids.get("recv", {}):
            done = next((o for o in t.some["recv"] if o.data["id"] == rid), None)
            again = [
                o for o in [*parked, last] if o.data["id"] == rid and done and o.ref.line > done.ref.line
            ]
            if done is not None and again:
                return Result(
                    verdict=STALLED, why="a load has completed and its request is parked still",
                    finding=found("load_done_not_promoted", "completed-and-parked",
                                  [ev(done, "completed"), ev(again[-1], "parked still")], eng, concerned=[rid]),
                )  # fmt: skip
        failed = [t.last[k] for k in ("pull_failed", "p_not_ready") if k in t.last]
        secs = window(first, last)
        if (failed and t.after("parked", failed[0].kind)) or secs >= LOAD_DEADLINE:
            return Result(
                verdict=STALLED, why="a load failed, or is past every deadline, and its request is parked still",
                finding=found("load_lost", "failed-and-parked",
                              [ev(o, "a load failed") for o in failed] + [ev(last, "parked still")], eng,
                              concerned=list(t.ids["parked"])[:20], onset=(first.t, last.t)),
            )  # fmt: skip
    return Result(
        verdict=UNKNOWN, why="loads failed or are pending; whether their requests still wait is not shown",
        missing=Missing(what="what runs and what waits", command=metrics_command(eng), candidate="load_lost",
                        rivals=[("the requests were recomputed or failed cleanly", "Running or tokens/s above zero afterwards"),
                                ("they are parked for ever", "Deferred stays; KV usage stays")]),
    )  # fmt: skip


def _stack_alone(eng: Engine, inst: Instance) -> Result:
    states = inst.stack_states()
    if "idle" in states and not set(states) & {"worker_wait", "dummy", "device"}:
        return Result(verdict=IDLE, why="the stack shows EngineCore waiting for work")
    # Two stacks in the same place prove nothing either: a busy EngineCore is nearly always found in the same wait.
    which = ", ".join(sorted(states))
    return Result(
        verdict=UNKNOWN, why=f"one stack ({which}) is one moment",
        missing=Missing(
            what="an interval without tokens: the log, or two scrapes", command=metrics_command(eng),
            candidate="dp_desync" if "dummy" in states else "worker_hang" if "worker_wait" in states or "device" in states else "wedge",
            rivals=[("an ordinary step", "the next stack differs"),
                    ("a step that hangs", "a record or two scrapes without tokens beside it")],
        ),
    )  # fmt: skip
