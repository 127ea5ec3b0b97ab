"""The engine side of ``stallproof simulate``: plans (or recordings to follow) in, results on a descriptor."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import msgspec


def main() -> int:
    out = os.fdopen(int(sys.argv[1]), "w", buffering=1)

    def say(**fields: Any) -> None:
        print(json.dumps(fields), file=out, flush=True)

    from stallproof.errors import StallproofError
    from stallproof.simulate.plan import Plan

    for line in sys.stdin:
        before = dict(os.environ)
        try:
            raw = json.loads(line)
            if "follow" in raw:
                from stallproof.simulate.follow import follow

                say(result=follow(Path(raw["follow"])))
                continue
            plan = msgspec.convert(raw, Plan)
            os.environ.update({k: str(v) for k, v in plan.options.items()})
            say(result=one(plan, say))
        except StallproofError as exc:
            say(error=str(exc), code=int(exc.code))
        except Exception as exc:
            say(error=f"{type(exc).__name__}: {exc}", traceback=traceback.format_exc())
        finally:
            os.environ.clear()
            os.environ.update(before)
    return 0


def one(plan: Any, say: Any) -> dict[str, Any]:
    """Run one plan; reports progress about twice a second."""
    import resource
    import time

    import vllm

    from stallproof.simulate.engine import Simulation, make
    from stallproof.simulate.series import FIELDS

    jobs = plan.work.jobs(plan.max_model_len)
    sched = make(plan)
    sim = Simulation(plan, jobs, sched)
    saves = None
    if plan.save_restore:
        from stallproof.simulate.save_restore import SaveRestore

        saves = SaveRestore(sim, plan.save_restore, plan.move_cost)
        sim.latency = saves  # type: ignore[assignment]  # the same calls, other seconds
    if plan.trace:
        from stallproof.vllm.recording import attach_file

        attach_file(sched, plan.trace, source="simulate", every=16, clock=lambda: sim.now)
    last = time.monotonic()

    def tick(now: float, arrived: int, live: int) -> None:
        nonlocal last
        if time.monotonic() - last > 0.5:
            last = time.monotonic()
            say(tick=[round(now, 1), arrived, live, len(jobs)])

    log = sim.run(tick)
    if plan.trace:
        from stallproof.vllm.recording import close_recording

        close_recording(sched)
    summary = log.summary(slo_ttft=plan.slo_ttft, slo_itl=plan.slo_itl)
    summary["peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    if saves is not None:
        summary |= saves.summary()
    return {
        "version": str(vllm.__version__),
        "summary": summary,
        "series": {"fields": FIELDS, "points": sim.series.points},
        "requests": [
            [r.rid, round(r.at, 6), round(r.first, 6), round(r.done, 6), r.prompt, r.output, r.tokens]
            for r in log.requests.values()
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
