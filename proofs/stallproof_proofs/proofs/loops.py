"""LoopRank: every loop inside a scheduling call ends, with a bound on its iterations.

The iterations are those of ``RunLoop`` and ``AdmLoop`` of ``spec/Sched.tla``: lengths of lists and numbers of
holders before and after one iteration. The tests run the model and count: the bounds are met there too.
"""

from __future__ import annotations

import z3

from stallproof_proofs.result import Assumption
from stallproof_proofs.theory import Lemma, Lemmas

n, i, v, h, cap = z3.Ints("len i victim holders cap")
n2, i2, h2, cap2 = z3.Ints("len' i' holders' cap'")
u, u2 = z3.Ints("unseen unseen'")

inside = z3.And(i >= 0, i < n, v >= 0, v < n, h >= 0)
go_on = z3.And(n2 == n, i2 == i + 1, h2 == h)  # served or skipped
evict = z3.And(n2 == n, i2 == i, h >= 1, h2 == h - 1)  # rule E: a parked holder gives its blocks up
fcfs = z3.And(
    v == n - 1, v != i, n2 == n - 1, i2 == i, h2 == h
)  # the last one is preempted, the target stays
prio = z3.And(
    v != i, n2 == n - 1, i2 == z3.If(v < i, i - 1, i), h2 == h
)  # the lowest priority, wherever it is
stay = z3.And(n2 == n, i2 == i, h2 == h)  # a fenced victim is kept and the loop tries again

scan = z3.And(u >= 1, h >= 0)
skip = z3.And(u2 == u - 1, h2 == h)  # refused, shut, loading, not yet
load = z3.And(u2 == u - 1, h2 == h + 1)
admit_holder = z3.And(u2 == u - 1, h >= 1, h2 == h - 1)
admit_fresh = skip
commit = z3.And(u2 == u, h >= 1, h2 == h - 1)  # a victim keeps its place and whether it was seen
requeue = z3.And(z3.Or(u2 == u, u2 == u + 1), h >= 1, h2 == h - 1)  # a victim is scanned again in the call
least = z3.And(requeue, cap >= 1, cap2 == cap - 1)
others_cap = z3.And(z3.Or(skip, load, admit_holder), cap2 == cap)


def falls(rank: z3.ArithRef, after: z3.ArithRef) -> z3.BoolRef:
    """The rank is a natural number that goes down."""
    return z3.And(rank >= 0, after >= 0, after < rank)


def lemmas() -> list[Lemma]:
    run_fcfs, run_prio = z3.Or(go_on, evict, fcfs), z3.Or(go_on, evict, prio)
    adm = z3.Or(skip, load, admit_holder, admit_fresh, commit)
    return [
        Lemma(
            "RunLoop.fcfs",
            {"inside": inside, "iteration": run_fcfs},
            falls(h + n - i, h2 + n2 - i2),
            ("iteration", "inside"),
            "at most holders + len(run) iterations",
        ),
        Lemma(
            "RunLoop.priority",
            {"inside": inside, "iteration": run_prio},
            falls(h + 2 * n - i, h2 + 2 * n2 - i2),
            ("iteration", "inside"),
            "at most holders + 2 len(run) iterations",
        ),
        Lemma(
            "AdmLoop.commit",
            {"inside": scan, "iteration": adm},
            falls(2 * u + h, 2 * u2 + h2),
            ("iteration", "inside"),
            "at most 2 len(waiting) + holders iterations",
        ),
        Lemma(
            "AdmLoop.least",
            {"inside": z3.And(scan, cap >= 0), "iteration": z3.Or(others_cap, least)},
            falls(3 * cap + 2 * u + h, 3 * cap2 + 2 * u2 + h2),
            ("iteration", "inside"),
            "with a cap: at most 3 cap + 2 len(waiting) + holders",
        ),
        Lemma(
            "Patience",
            {"waits": z3.And(i >= 0, i < n), "step": i2 == i + 1},
            falls(n - i, n - i2),
            ("step", "waits"),
            "i processed steps waited, n = P: at most P steps",
        ),
    ]


def refuted() -> list[Lemma]:
    return [
        Lemma(
            "RunLoop.priority with rank len - i",
            {"inside": inside, "iteration": prio},
            n2 - i2 < n - i,
            note="the victim may stand before the index",
        ),
        Lemma(
            "RunLoop with a fenced victim kept",
            {"inside": inside, "iteration": stay},
            2 * n2 - i2 < 2 * n - i,
            note="retry without a break: never ends",
        ),
        Lemma(
            "AdmLoop with victims scanned again",
            {"inside": scan, "iteration": z3.Or(load, requeue)},
            2 * u2 + h2 < 2 * u + h,
            note="no cap and the victim is queued behind: evict, load, evict, ...",
        ),
    ]


theory = Lemmas(
    name="loops",
    title="LoopRank",
    theorem="Each iteration of the running loop (FCFS and PRIORITY, with rule E), of the admission loop "
    "(commit without a cap; least-progressed with one) and of patience lowers a natural number. With "
    "L = len(run), W = len(waiting), H = parked holders: at most H + L (FCFS) or H + 2 L (PRIORITY) "
    "iterations of the running loop, 2 W + H of the admission loop, P processed steps of patience.",
    lemmas=lemmas,
    refuted=refuted,
    assumptions=(
        Assumption(
            "iterations",
            "model",
            "One iteration changes list lengths and numbers of holders as written in proofs/loops.py. Every "
            "iteration seen in the model is one of them, and their number is within the bound; only a victim "
            "in the middle of an unordered list (RunLoop.priority) is in no model.",
            ("loops",),
            "tests/proofs (stallproof_proofs.iterations)",
        ),
    ),
)
