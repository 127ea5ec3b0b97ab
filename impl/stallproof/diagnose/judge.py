"""Verdict rules for an interval without tokens. Each rule names its source; see ``docs/diagnose.md``.

Two principles. *A stall must be shown*: an interval without a token is not one, because a long prefill, a
compilation, a pause and a stale record look the same. *The future counts*: while a parked load may still
complete, nothing is proved, unless its completion, its failure or its deadline is in evidence.
"""

# ruff: noqa: E501 - sentences for people: one rule, one place
from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .engine import IDLE, INTERVAL, PROGRESSING, STALLED, UNKNOWN, Engine, Evidence, Missing, Quiet
from .evidence import Result, ev, found, hang, metrics_command, shm, stack, stack_command, tell
from .observe import Stats

if TYPE_CHECKING:
    from .session import Instance

#: seconds after which a step that has not come back counts as hung, where arrivals show that time passed
HANG = 120.0
#: seconds after which a parked load has missed every documented deadline (NIXL 480 s, Mooncake receive 540 s)
LOAD_DEADLINE = 600.0
#: seconds that a single step, or a grammar compile that this release does not count as deferred, may take
LONG_STEP = 60.0


# ---------------------------------------------------------------- the interval


def _observed(q: Quiet, end: float, inst: Instance) -> float:
    """Seconds without a token that the evidence covers; 0 where no clock says."""
    t = end if end == end else q.last.t
    return max(0.0, t - q.start) if t == t and q.start == q.start else 0.0


def _concerned(eng: Engine) -> list[str]:
    gone = set(eng.tally.ids.get("abort", {})) | set(eng.tally.ids.get("done", {}))
    return [i for i in eng.tally.ids.get("add", {}) if i not in gone and not i.startswith("POST ")][:20]


def judge_quiet(q: Quiet, eng: Engine, inst: Instance, end: float, closed: Stats | None) -> Result:
    """The verdict for a stretch of records without tokens while Running or Waiting is above zero.

    ``end``: seconds of the last line of the input or of the closing record. ``closed``: that record, if tokens
    came again or the engine emptied.
    """
    s = q.last
    secs = _observed(q, end, inst)
    base = [ev(q.first, tell(q.first))]
    if q.last.ref != q.first.ref:
        base.append(ev(q.last, tell(q.last)))
    if q.before is not None:
        base.insert(0, ev(q.before, "the last record with tokens: " + tell(q.before)))
    # the last token came somewhere in the interval that the last record with tokens covers
    onset = (q.before.t - INTERVAL if q.before is not None else q.start, q.first.t)
    if q.first.legacy and (secs < HANG or closed is not None):
        moving = closed is not None or (q.before is not None and secs < LONG_STEP / 2)
        longer = Missing(what="a longer stretch of the log", command=metrics_command(eng))
        return Result(
            verdict=PROGRESSING if moving else UNKNOWN,
            why="V0 prints a record per step: a zero record is not an interval",
            missing=None if moving else longer,
        )
    if eng.paused is not None:
        return Result(verdict=IDLE, why="the engine is paused or asleep: " + eng.paused.ref.quote[:80])
    hung = hang(eng, inst) or shm(eng, q.last.running)
    if hung is None and closed is None:
        if "idle" in inst.stack_states():
            # EngineCore waits for input only while its scheduler has no unfinished request
            if s.running > 0 and not eng.tally.has("add"):
                return Result(
                    verdict=IDLE, why="the record is stale: the stack shows EngineCore waiting for work"
                )
            return Result(
                verdict=UNKNOWN, why="the record says that requests are there, the stack that EngineCore has none",
                missing=Missing(
                    what="whether a new request is answered", command=metrics_command(eng), candidate="shm_lost",
                    rivals=[("the record is stale: the requests were aborted", "a probe request is answered"),
                            ("requests are lost on their way to the scheduler", "it is not, and num_requests stays 0")],
                ),
            )  # fmt: skip
        again = q.lines >= 2 or (q.before is not None and not q.kv_grew) or secs >= LONG_STEP
        if s.running > 0 and again:
            # a long prefill waits in the same frames, but its KV usage grows; with nothing running the same
            # frames show steps that schedule nothing (seen on a wedged 0.28.0)
            hung = stack(eng, inst)
    if hung is not None and closed is not None and closed.tokens > 0 and hung.rule == "shm-repeated":
        return Result(verdict=UNKNOWN, why=f"a step took {secs:.0f} s, and it came back")
    if hung is not None:
        hung.evidence = (base + hung.evidence)[:12]
        if math.isnan(hung.onset[0]) or q.before is not None:
            hung.onset, hung.note = onset, ""
        hung.concerned = hung.concerned or _concerned(eng)
        hung.count = hung.count or s.running + max(0, s.waiting)
        return Result(verdict=STALLED, why="no token, and the step does not come back", finding=hung)
    looping = _livelock(q, eng, base) if eng.self_preempt is None else None
    if looping is not None:
        r = looping
    elif s.running == 0:
        r = _nothing_runs(q, eng, inst, secs, base, closed)
    else:
        r = _something_runs(q, eng, inst, secs, base, end)
    if closed is not None:
        r = _resolved(r, q, secs, closed)
    if r.finding is not None:
        if math.isnan(r.finding.onset[0]):
            r.finding.onset = onset
        r.finding.concerned = r.finding.concerned or _concerned(eng)
        r.finding.count = r.finding.count or max(0, s.running) + max(0, s.waiting)
    return r


def _resolved(r: Result, q: Quiet, secs: float, closed: Stats) -> Result:
    if r.verdict == STALLED and ((r.finding is not None and r.finding.certain) or secs >= HANG):
        r.why += "; it had ended by the next record"
        return r
    if closed.tokens > 0 and secs <= 5 * INTERVAL + 300:
        return Result(verdict=PROGRESSING, why="a long prefill or step: tokens were credited afterwards")
    if closed.tokens > 0:
        return Result(
            verdict=UNKNOWN, why=f"{secs:.0f} s without a token, then progress again", missing=r.missing
        )
    return Result(
        verdict=UNKNOWN, why="the requests left without a token (aborted, or finished between records)"
    )


def _livelock(q: Quiet, eng: Engine, base: list[Evidence]) -> Result | None:
    """Pre-emptions in several intervals without a token: counted, named, or seen as KV usage that falls."""
    ids = eng.tally.ids.get("preempted", {})
    rid, often = max(ids.items(), key=lambda kv: kv[1]) if ids else ("", 0)
    if q.preempting < 2 and q.drops < 2 and (often < 5 or q.lines < 2):
        return None
    named = (
        [ev(eng.tally.last["preempted"], f"{rid} was pre-empted {often} times since the last token")]
        if often
        else []
    )
    return Result(
        verdict=STALLED, why="pre-emptions go on and no token comes out",
        finding=found("livelock", "preempting-without-tokens", base + named, eng, confidence="high",
                      concerned=list(ids)[:20]),
    )  # fmt: skip


def _retried(q: Quiet, eng: Engine) -> bool:
    """The hit rate moved: the head is asked for and refused every step. Later releases count admissions only."""
    return bool(q.hit_moved) and eng.version.at_least(0, 26) is False


def _nothing_runs(
    q: Quiet, eng: Engine, inst: Instance, secs: float, base: list[Evidence], closed: Stats | None
) -> Result:
    """Running 0, Waiting above 0, no token for a whole interval."""
    s, t = q.last, eng.tally
    if eng.self_preempt is not None:
        a, b = eng.self_preempt
        return Result(
            verdict=STALLED, why="the only request pre-empted itself and is not admitted again",
            finding=found(
                "self_preempt", "kv-high-then-zero",
                [ev(a, tell(a)), ev(b, tell(b) + ": KV fell to nothing and the request went back to waiting")] + base[-1:],
                eng, confidence="high", onset=(a.t, b.t), certain=closed is None,
                rivals=[
                    ("the client gave up at that moment", "an 'Aborted request' line; Waiting would be 0"),
                    ("it finished, and a newcomer that can never fit waits", "the prompt of what waits against the pool"),
                ],
            ),
        )  # fmt: skip
    done = _completed(q, eng)
    if done is not None:
        return Result(
            verdict=STALLED, why="a load has completed and nothing is scheduled",
            finding=found(
                "head_blocks_holders" if s.capacity else "load_done_not_promoted", "completed-and-parked",
                base + done, eng, confidence="high",
            ),
        )  # fmt: skip
    if s.fetch and s.fetch[2] > 0 and (q.fetch_done >= 2 or secs >= INTERVAL):
        return Result(
            verdict=STALLED, why="fetched requests wait and nothing is scheduled",
            finding=found(
                "head_blocks_holders" if s.capacity else "load_done_not_promoted", "fetch-completed-waiting", base, eng,
                confidence="high", note=f"KV fetch: {s.fetch[2]} completed and waiting",
            ),
        )  # fmt: skip
    failed = _failures(eng)
    parked = s.deferred or 0
    connector = "connector" in inst.facts
    if s.deferred is not None and parked == 0:
        held = s.kv == s.kv and s.kv >= 1.0
        if held and connector and secs < LOAD_DEADLINE:
            return Result(
                verdict=UNKNOWN, why="requests wait for capacity that transfers may still give back",
                missing=Missing(
                    what=f"whether the sends that hold {s.kv:.1f} % of the pool complete",
                    command=metrics_command(eng), candidate="held_blocks",
                    rivals=[
                        ("sends still in flight", "KV usage falls in a later record"),
                        ("blocks leaked", "KV usage stays for longer than the lease (30 s to 480 s)"),
                    ],
                ),
            )  # fmt: skip
        before = q.before
        twin = before is not None and 0 <= s.waiting <= before.waiting
        if (
            (twin or q.first.level == "METRICS")
            and q.lines <= 2
            and secs < LONG_STEP
            and not _retried(q, eng)
        ):
            return Result(
                verdict=UNKNOWN, why="the record may show the moment between the last request and a long next step",
                missing=Missing(what="a second look", command=metrics_command(eng), candidate="wedge",
                                rivals=[("a first step longer than the interval", "tokens in the next record"),
                                        ("a head that is never admitted", "the same record again")]),
            )  # fmt: skip
        mech = "held_blocks" if held and inst.delayed > 0 else "wedge" if held else "head_never_fits"
        return Result(
            verdict=STALLED, why="requests wait for capacity, nothing runs, nothing is parked",
            finding=found(
                mech, "capacity-with-nothing-running", base, eng,
                confidence="high" if q.lines > 1 or _retried(q, eng) else "medium",
                certain=secs >= LONG_STEP or q.lines > 2,
                rivals=[
                    ("admission arithmetic that never comes out, though the head would fit",
                     "the head's prompt length against num_gpu_blocks - 1 blocks"),
                    ("paused by an administrator", "/is_paused; 'setting pause state' in the log"),
                ],
            ),
        )  # fmt: skip
    if failed:
        return Result(
            verdict=STALLED, why="a load failed and its request still waits",
            finding=found("load_lost", "failed-and-parked", base + failed, eng,
                          certain=secs >= LONG_STEP, confidence="high" if parked else "medium"),
        )  # fmt: skip
    past = secs >= LOAD_DEADLINE
    if s.deferred is not None or connector:
        cap = s.capacity or 0
        if past:
            return Result(
                verdict=STALLED, why="parked requests are past every documented deadline",
                finding=found("head_blocks_holders" if cap else "parked", "parked-past-deadline", base, eng,
                              note=f"{secs:.0f} s without a token; deadline {LOAD_DEADLINE:.0f} s",
                              rivals=parked_rivals(s)),
            )  # fmt: skip
        return Result(
            verdict=UNKNOWN, why="parked loads may still complete",
            missing=Missing(
                what="whether the parked loads completed, failed or are still running",
                command=metrics_command(eng) if s.kv != 0 else stack_command(inst),
                candidate="head_blocks_holders" if cap else "parked", rivals=parked_rivals(s),
            ),
        )  # fmt: skip
    if (secs >= LONG_STEP and (q.lines > 2 or t.has("add"))) or _retried(q, eng):
        return Result(
            verdict=STALLED, why="requests wait, nothing runs, and newcomers change nothing",
            finding=found(
                "head_never_fits" if s.kv < 1.0 else "wedge", "waiting-with-nothing-running", base, eng,
                note="the prefix hit rate moves: the head is retried and refused every step" if _retried(q, eng) else "",
                rivals=[("a grammar is being compiled", "py-spy dump: a compile thread is busy"),
                        ("parked on a remote load (this version does not count them)", "connector lines in the log")],
            ),
        )  # fmt: skip
    return Result(
        verdict=UNKNOWN, why="one record without tokens while requests wait",
        missing=Missing(
            what="a second look: the version does not say whether the requests are parked",
            command=metrics_command(eng), candidate="wedge",
            rivals=[
                ("parked on a grammar, an encoder or a remote load", "DEBUG log, or num_requests_waiting_by_reason from 0.20 on"),
                ("the head can never fit", "its prompt length against the pool"),
                ("stale record after an abort", "an 'Aborted request' line, or a probe request"),
            ],
        ),
    )  # fmt: skip


def parked_rivals(s: Stats) -> list[tuple[str, str]]:
    held = s.kv == s.kv and s.kv < 0.05
    out = [
        ("remote loads are slow but alive", "transfer counters grow; KV fetch stages (0.32 and later) move"),
        ("a completion or a failure report was lost", "the peer's log for the same request ids"),
    ]
    if held:
        out.insert(
            0,
            (
                "parked without blocks: grammar, encoder, look-up or session",
                "KV usage is 0: no load was admitted",
            ),
        )
    if s.capacity:
        out.append(
            (
                "a finished load is stranded behind the refused head",
                "DEBUG: 'Finished recving' for a request that waits",
            )
        )
    return out


def _completed(q: Quiet, eng: Engine) -> list[Evidence] | None:
    """A completed load whose request is seen parked again afterwards, or that nothing follows."""
    t = eng.tally
    for kind in ("recv", "received"):
        for rid in t.ids.get(kind, {}):
            again = [o for o in t.some.get("parked", []) if o.data["id"] == rid]
            first = next((o for o in t.some[kind] if o.data["id"] == rid), None)
            if first is not None and again and again[-1].ref.line > first.ref.line:
                return [ev(first, f"the load of {rid} completed"), ev(again[-1], "and it is parked still")]
    o = t.first.get("recv")
    if o is not None and q.last.t - o.t >= INTERVAL:
        return [ev(o, f"the load of {o.data['id']} completed, and no token followed")]
    return None


def _failures(eng: Engine) -> list[Evidence]:
    out = []
    for kind, says in (
        ("pull_failed", "a load failed"),
        ("p_not_ready", "the prefill side was not ready"),
        ("transport", "the transfer engine reports an error"),
        ("producer_timeout", "the producer gave up and freed the blocks"),
    ):
        if kind in eng.tally.last:
            out.append(ev(eng.tally.last[kind], says))
    return out


def _something_runs(
    q: Quiet, eng: Engine, inst: Instance, secs: float, base: list[Evidence], end: float
) -> Result:
    """Running above 0, no token for a whole interval."""
    s, t = q.last, eng.tally
    if (q.kv_grew or q.moved) and q.stuck <= 2:
        return Result(verdict=PROGRESSING, why="a long prefill: KV usage moves while no token is credited")
    if s.running >= 16 and s.kv == s.kv and s.kv < 0.05 and q.stuck >= q.lines and not t.has("compile"):
        return Result(
            verdict=STALLED, why=f"{s.running} requests run and hold no block: no step has finished",
            finding=found(
                "collective_hang", "many-running-kv-zero", base, eng, confidence="medium", certain=secs >= LONG_STEP,
                rivals=[("a first step that compiles or captures graphs", "compile lines of the workers"),
                        ("a very large pool (use below 0.05 %)", "num_gpu_blocks")],
            ),
        )  # fmt: skip
    if q.growing >= 3 and q.lines >= 4 and q.stuck <= 2:
        return Result(
            verdict=STALLED, why="the queue grows step by step, and running requests get no token",
            finding=found("running_not_scheduled", "waiting-grows-without-tokens", base, eng),
        )  # fmt: skip
    aborted = set(t.ids.get("abort", {}))
    arrived = [o for o in t.some.get("add", []) if o.data["id"] not in aborted]
    if arrived:
        first = arrived[0]
        wait = end - first.t if end == end and first.t == first.t else 0.0
        if wait >= HANG and secs >= HANG:
            return Result(
                verdict=STALLED, why=f"a request that arrived {wait:.0f} s ago changed nothing: no step comes back",
                finding=found(
                    "worker_hang", "arrivals-without-a-step", base + [ev(first, "arrived during the silence")], eng,
                    rivals=[("a step or compilation longer than the bound", "worker CPU use, compile lines"),
                            ("the running requests are never scheduled", "py-spy dump of EngineCore: busy in step()")],
                ),
            )  # fmt: skip
    if aborted and not arrived and len(aborted) >= s.running + max(0, s.waiting):
        return Result(verdict=IDLE, why="every request was aborted; the record is stale (vLLM #29928)")
    return Result(
        verdict=UNKNOWN, why="no token in the last record; a hang, a long prefill and a stale record look the same",
        missing=Missing(
            what="a second look at the step counter, or a stack of EngineCore",
            command=stack_command(inst), candidate="worker_hang",
            rivals=[
                ("a step hangs in a worker or the device", "py-spy: EngineCore in acquire_read or get_response, twice"),
                ("a long prefill or a compilation", "iteration counter or KV usage moves; worker busy"),
                ("stale record after all requests were aborted (vLLM #29928)",
                 "abort lines; a probe request is answered"),
            ],
        ),
    )  # fmt: skip
