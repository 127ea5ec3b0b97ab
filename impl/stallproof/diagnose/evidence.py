"""Evidence of a hang below the scheduler, and the small pieces that every rule is built from."""

# ruff: noqa: E501 - sentences for people: one rule, one place
from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from .engine import INTERVAL, Engine, Evidence, Finding, Missing, Verdict
from .observe import Obs, Stats

if TYPE_CHECKING:
    from .session import Instance


class Result(msgspec.Struct, kw_only=True):
    verdict: Verdict
    why: str
    finding: Finding | None = None
    missing: Missing | None = None


def ev(o: Obs | Stats, says: str, tier: str | None = None) -> Evidence:
    if isinstance(o, Stats):
        t = "D" if o.level == "METRICS" else "C" if o.level == "DEBUG" else "B" if o.level == "DUMP" else "E"
    else:
        t = o.tier
    return Evidence(ref=o.ref, tier=tier or t, says=says)


def found(mechanism: str, rule: str, evidence: list[Evidence], eng: Engine, **kw: object) -> Finding:
    f = Finding(mechanism=mechanism, rule=rule, evidence=evidence[:12], **kw)  # type: ignore[arg-type]
    f.tier = max((e.tier for e in f.evidence), default="E")
    return f


# ---------------------------------------------------------------- evidence of a hang below the scheduler


def hang(eng: Engine, inst: Instance) -> Finding | None:
    """Direct evidence since the last token that a step did not come back, or that the engine is dead."""
    t = eng.tally
    if t.has("frame_assert") and t.has("assertion"):
        return found(
            "double_completion", "assert-xfer-finished",
            [ev(t.last["frame_assert"], "assertion inside _update_from_kv_xfer_finished"),
             ev(t.last["assertion"], "the assertion")],
            eng, confidence="high",
        )  # fmt: skip
    if t.has("rpc_timeout"):
        o = t.first["rpc_timeout"]
        method = str(o.data.get("what", "?"))
        f = found(
            "worker_hang", "rpc-timeout",
            [ev(o, f"the call {method} to the workers timed out")], eng, confidence="high",
        )  # fmt: skip
        if o.t == o.t:
            f.onset = (o.t - inst.rpc_timeout - INTERVAL, o.t - inst.rpc_timeout)
            f.note = (
                f"the record is the time-out ({inst.rpc_timeout:.0f} s, VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS), "
                "not the start"
            )
        return dump_evidence(f, eng, inst)
    if t.has("collective_timeout"):
        o = t.first["collective_timeout"]
        return dump_evidence(
            found("worker_hang", "collective-timeout", [ev(o, "a collective timed out")], eng, confidence="high"),
            eng, inst,
        )  # fmt: skip
    if t.has("crash"):
        f = found(
            "engine_died", "device-error", [ev(t.first["crash"], "device error")], eng, confidence="high"
        )
        return dump_evidence(f, eng, inst)
    if t.has("engine_dead") and t.at_first.get("shutdown", t.order + 1) > t.at_first["engine_dead"]:
        return dump_evidence(
            found("engine_died", "engine-dead", [ev(t.first["engine_dead"], "the engine is gone")], eng,
                  confidence="high"),
            eng, inst,
        )  # fmt: skip
    if t.has("dump"):
        o = t.last["dump"]
        f = found(
            "engine_died", "dump-without-cause",
            [ev(o, "the engine dumped its step: execute or sample raised an exception")], eng,
            rivals=[
                ("time-out of a hung worker (300 s by default)", "a line 'RPC call to ... timed out' near the dump"),
                ("device error or assertion in the model", "the traceback after the dump"),
            ],
        )  # fmt: skip
        if o.t == o.t:
            f.onset = (o.t - inst.rpc_timeout - INTERVAL, o.t)
        return dump_evidence(f, eng, inst)
    return None


def dump_evidence(f: Finding, eng: Engine, inst: Instance) -> Finding:
    """Add what a dump says: who was in the step."""
    d = inst.dump
    if d is None or inst.dump_obs is None:
        return f
    if all(e.ref != inst.dump_obs.ref for e in f.evidence):
        f.evidence.append(
            ev(inst.dump_obs, f"the step held {len(d.requests)} requests, {d.scheduled_tokens} tokens")
        )
    f.concerned = [r.id for r in d.requests][:20]
    f.count = len(d.requests)
    return f


def shm(eng: Engine, running: int = 0) -> Finding | None:
    """Repeated "no broadcast block" records of the engine, with no start-up or compilation between them.

    Two are enough beside ``running`` requests and no token (two minutes), three without statistics.
    """
    t = eng.tally
    if not t.after("shm", "compile") or not t.after("shm", "worker_line"):
        return None
    # an idle worker of an old release waits in the same place and may say so
    obs = [o for o in t.some["shm"] if not o.data["worker"] and (o.data["new"] or running)]
    if len(obs) < (2 if running else 3):
        return None
    first, last = obs[0], t.last["shm"]
    n = int(first.data.get("n", 60))
    f = found(
        "shm_lost", "shm-repeated",
        [ev(first, f"first of {t.n('shm')} records, one each {n} s"), ev(last, "the last one")], eng,
        rivals=[
            ("a worker hangs in a step (device or collective)", "py-spy dump of every worker"),
            ("a long compilation without log lines", "worker CPU use; compile cache growing"),
        ],
    )  # fmt: skip
    if first.t == first.t:
        f.onset = (first.t - n, first.t)
    return f


def stack(eng: Engine, inst: Instance) -> Finding | None:
    """A stack that shows where the engine or a worker stands; counts only beside an interval without tokens."""
    states = inst.stack_states()
    for state, key, says in (
        ("dummy", "dp_desync", "the engine runs dummy batches for other ranks"),
        ("worker_wait", "worker_hang", "EngineCore waits for its workers"),
        ("device", "worker_hang", "a thread waits for the device or a collective"),
        ("scheduler", "running_not_scheduled", "EngineCore is busy inside the scheduler"),
    ):
        if state in states:
            threads = states[state]
            return found(
                key, f"stack-{state}",
                [Evidence(ref=th.ref, tier="B", says=f"{says}: {', '.join(th.frames[:3])}") for th in threads[:3]],
                eng, confidence="high" if len(threads) > 1 else "medium",
            )  # fmt: skip
    return None


def tell(s: Stats) -> str:
    parts = [f"Running {s.running}", f"Waiting {s.waiting}"]
    if s.deferred:
        parts.append(f"Deferred {s.deferred}")
    if s.kv == s.kv:
        parts.append(f"KV {s.kv:.1f} %")
    if s.tokens == s.tokens:
        parts.append(f"{s.tokens:.1f} tokens/s")
    return ", ".join(parts)


def metrics_command(eng: Engine) -> str:
    return (
        "for i in 1 2 3; do echo vllm:scraped_at $(date +%s); curl -s http://HOST:PORT/metrics; sleep 30; done "
        "> scrapes.txt; "
        "stallproof diagnose THIS_LOG scrapes.txt"
    )


def stack_command(inst: Instance) -> str:
    pid = inst.core_pid or "$(pgrep -f EngineCore | head -1)"
    return f"py-spy dump --pid {pid} > stack.txt; stallproof diagnose THIS_LOG stack.txt"


def window(a: Obs | Stats | None, b: Obs | Stats | None) -> float:
    """Seconds from ``a`` to ``b``; 0 where unknown."""
    if a is None or b is None or a.t != a.t or b.t != b.t:
        return 0.0
    return max(0.0, b.t - a.t)
