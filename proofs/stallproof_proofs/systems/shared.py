"""The rules of OneOrder in counts, with shared blocks.

The micro-steps of :mod:`stallproof_proofs.systems.order_steps`; ``own`` is the length of a block table, and a
block may stand in several. ``Sgain(u)`` is the *joint* gain of the victims of ``u`` (blocks that come free
when all of them let go), ``Srun(u)`` what the runners behind ``u`` add to that, ``Sidle`` the joint gain of
sessions that idle, ``Sall(u)`` that of everybody but ``u`` and those whose transfer goes on. None of them is
a sum of tables; how they move is chosen freely within what theory ``sharing`` proves, block by block
(:func:`let_go`, :func:`takes`). An admission may take ``hits``: blocks that others hold, too, with the tokens
computed in them. ``hth``: hits that the target of an eviction counts on. Rule E is on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import z3

from stallproof_proofs.logic import Action, Bool, Expr, State, System, Var, Vocabulary, forall, ite, zmax
from stallproof_proofs.sums import members, moved, positive
from stallproof_proofs.systems import order as m
from stallproof_proofs.systems import order_steps as steps
from stallproof_proofs.systems.order import (
    IDLING,
    LOADING,
    RUNNING,
    ZOMBIE,
    Blocks,
    Look,
    n0,
    order,
    q,
    r0,
    u,
    v0,
)

#: sums that sharing leaves exact: they are sums of lengths of tables, or of requests
EXACT = (m.OWN, m.QUAR, m.RESERVED, m.RUNNERS, m.PARKERS, m.PREFILL, m.OLDER)
JOINT = {m.GAIN.name, m.BEHIND.name, m.IDLERS.name}

vocabulary = Vocabulary(*m.vocabulary.vars.values(), Var("hth", (), m.I), Var("Sall", (m.Req,), m.I))

# choices: blocks that come free or leave the pool, blocks into quarantine, hits, joint gains afterwards
moves, lost, hits = z3.Ints("moves lost hits")
gain2 = z3.Function("Sgain'", m.Req, m.I)
run2 = z3.Function("Srun'", m.Req, m.I)
all2 = z3.Function("Sall'", m.Req, m.I)
idle2 = z3.Int("Sidle'")

RELEASE = {
    "RunEvict", "AdmEvict", "LoadEvict", "Preempt", "SelfPreempt", "Reject", "DeliverLast", "XferFail",
    "Abort", "XferFreed",
}  # fmt: skip


def behind_or_idle(s: State, w: Expr, r: Expr) -> Bool:
    """``w`` is in the room of ``r``: a runner behind it, or its victim."""
    return z3.Or(m.victim(s, w, r), z3.And(s.st(w) == RUNNING, order(w) > order(r)))


def both(s: State, r: Expr) -> Expr:
    return s.Sgain(r) + s.Srun(r)


def movable(s: State, w: Expr, r: Expr) -> Bool:
    """``w`` is not ``r`` itself (unless that idles), and no transfer of it goes on."""
    return z3.And(z3.Or(w != r, s.st(w) == IDLING), z3.Not(m.is_(s, w, LOADING, ZOMBIE)))


def let_go(s: State, w: Expr) -> Bool:
    """``w`` lets go: what comes free was in the gain of every set that it is in; no gain gets smaller."""
    after = gain2(u) + run2(u)
    return z3.And(
        moves >= 0,
        moves <= s.own(w),
        forall(
            u,
            z3.And(
                ite(m.victim(s, w, u), moves + gain2(u) == s.Sgain(u), gain2(u) >= s.Sgain(u)),
                ite(behind_or_idle(s, w, u), moves + after == both(s, u), after >= both(s, u)),
                ite(movable(s, w, u), moves + all2(u) == s.Sall(u), all2(u) >= s.Sall(u)),
            ),
        ),
        ite(s.st(w) == IDLING, moves + idle2 == s.Sidle(), idle2 >= s.Sidle()),
    )


def takes(s: State, grab: Expr, shared: Expr) -> Bool:
    """``r0`` takes ``grab`` blocks, ``shared`` of them others hold, too; the rest leaves the pool."""
    after = gain2(u) + run2(u)
    return z3.And(
        moves >= 0,
        shared >= 0,
        moves + shared == grab,
        forall(
            u,
            z3.And(
                ite(
                    order(r0) > order(u),
                    after == both(s, u) + moves,
                    after >= both(s, u) - shared,
                ),
                ite(u == r0, all2(u) >= s.Sall(u) - shared, all2(u) == s.Sall(u) + moves),
            ),
        ),
    )


def _more(s: State, a: Action, guards: Mapping[str, Bool], **updates: Any) -> Action:
    joint: dict[str, Any] = {
        m.GAIN.name: lambda w: gain2(w),
        m.BEHIND.name: lambda w: run2(w),
        m.IDLERS.name: lambda: idle2,
        "Sall": lambda w: all2(w),
    }
    gains = forall(u, z3.And(gain2(u) >= idle2, run2(u) >= 0, all2(u) >= gain2(u) + run2(u)))
    return replace(
        a,
        guards={**a.guards, **guards, "gains": z3.And(idle2 >= 0, gains)},
        updates={**a.updates, **joint, **updates},
    )


def _with_sharing(s: State, a: Action) -> Action:
    """``a`` where blocks are shared; its exact sums are derived afterwards."""
    actor = a.actors.get(m.OWN.name)
    after = gain2(u) + run2(u)
    more = z3.And(gain2(u) >= s.Sgain(u), after >= both(s, u), all2(u) >= s.Sall(u))
    grows = z3.And(forall(u, more), idle2 >= s.Sidle())
    joined = z3.And(gain2(u) == s.Sgain(u), after == both(s, u))
    if a.name in RELEASE:
        a = _more(s, a, {"let_go": let_go(s, actor)}, free=lambda: s.free() + moves)
    elif a.name == "Serve":
        grab = zmax(s.comp(r0) + n0 + Look - s.own(r0), 0)
        a = _more(s, a, {"takes": takes(s, grab, z3.IntVal(0))}, free=lambda: s.free() - moves)
    elif a.name == "Admit":
        grab = zmax(s.comp(r0) + n0 + Look - s.own(r0), 0)
        rest = m.goal(s, r0) - s.comp(r0)
        a = _more(
            s,
            a,
            {
                "takes": takes(s, grab, hits),
                "chunk": ite(s.own(r0) == 0, z3.And(m.chunk(s, r0) <= n0, n0 <= rest), n0 == m.chunk(s, r0)),
                "full_fit": zmax(m.remaining(s, r0) - grab, 0) <= s.free() - moves,
            },
            free=lambda: s.free() - moves,
        )
    elif a.name == "StartLoad":
        a = _more(
            s,
            a,
            {"takes": z3.And(moves >= 0, moves <= m.ext(r0))},
            free=lambda: s.free() - moves,
        )
    elif a.name in ("Expire", "ExpireZombie"):
        a = _more(
            s,
            a,
            {"lost": z3.And(lost >= 0, moves >= 0, lost + moves <= s.own(r0), grows)},
            free=lambda: s.free() + moves,
            quar=lambda w: ite(w == r0, s.quar(r0) + lost, s.quar(w)),
        )
    elif a.name == "XferDone":
        a = _more(s, a, {"grows": grows})
    elif a.name == "DeliverTurn":
        stays = z3.Implies(z3.And(s.st(r0) == RUNNING, order(r0) > order(u)), after == both(s, u))
        a = _more(s, a, {"grows": z3.And(grows, forall(u, stays))})
    elif a.name == "Input":
        nothing = s.own(r0) == 0  # a session that was evicted moves no block
        kept = z3.And(
            z3.Implies(z3.Or(order(r0) > order(u), nothing), joined),
            z3.Implies(z3.Or(u != r0, nothing), all2(u) == s.Sall(u)),
        )
        a = _more(s, a, {"moves": forall(u, kept)})
    return a


def actions(s: State) -> list[Action]:
    out = []
    for base in steps.actions(s):
        actor = base.actors.get(m.OWN.name)
        plain = {n: x for n, x in base.updates.items() if n not in {t.name for t in m.SUMS}}
        a = _with_sharing(s, replace(base, updates=plain))
        if a.name == "AdmEvict":
            need = m.remaining(s, r0) <= s.free() + s.Sgain(r0) + hits
            counted = z3.And(hits >= 0, z3.Implies(s.hast(), hits == s.hth()))
            a = replace(
                a,
                guards={**a.guards, "sure": need, "hits": counted},
                updates={**a.updates, "hth": lambda: hits},
            )
        out.append(a if actor is None else moved(s, replace(a, actors={}), actor, EXACT))
    return out


def init(s: State) -> list[Bool]:
    return [*steps.init(s), s.hth() == 0]


def joint(s: State) -> dict[str, Bool]:
    """What holds of joint gains in every state, because they are numbers of blocks."""
    others_go = forall(q, z3.Implies(z3.And(q != r0, s.own(q) > 0), m.victim(s, q, r0)))
    others_idle = forall(q, z3.Implies(z3.And(q != r0, s.own(q) > 0), s.st(q) == IDLING))
    rest = s.free() + s.own(r0) + s.Squar()
    runs_behind = lambda w: z3.Exists([q], z3.And(s.st(q) == RUNNING, order(q) > order(w)))  # noqa: E731
    return {
        "natural": z3.And(s.Sidle() >= 0, forall(u, z3.And(s.Sgain(u) >= s.Sidle(), s.Srun(u) >= 0))),
        "all": forall(u, s.Sall(u) >= both(s, u)),
        "pool": forall(u, s.free() + s.Squar() + s.own(u) <= Blocks),
        "others": z3.Implies(z3.And(s.Sall(r0) > both(s, r0), s.st(r0) != IDLING), s.Sold(r0) > 0),
        "larger set": z3.Implies(order(r0) < order(v0), s.Sgain(v0) <= s.Sgain(r0)),
        **{f"runners {w}": z3.Implies(s.Srun(w) > 0, runs_behind(w)) for w in (r0, v0)},
        **{
            f"victims {n}": z3.Implies(s.Sgain(w) > 0, z3.Exists([q], m.victim(s, q, w)))
            for n, w in (("r0", r0), ("tgt", s.tgt()))
        },
        "idlers": z3.Implies(s.Sidle() > 0, z3.Exists([q], z3.And(s.st(q) == IDLING, s.own(q) > 0))),
        # each block is in quarantine, in the table of r0, or in the room of r0 (sharing/NoWedge.place)
        "place": z3.Implies(z3.And(others_go, s.st(r0) != IDLING), rest + s.Sgain(r0) == Blocks),
        "place, idle": z3.Implies(z3.And(others_idle, s.st(r0) != IDLING), rest + s.Sidle() == Blocks),
    }


def facts(s: State) -> list[Bool]:
    """About constants, exact sums (theory ``sums``), and joint gains."""
    no_prefill_left_out = forall(q, z3.Implies(z3.And(s.st(q) == RUNNING, s.pf(q)), s.comp(q) < s.tok(q)))
    return [
        *steps.constants(),
        m.RuleE,
        *(members(s, t, q) for t in EXACT),
        z3.Implies(no_prefill_left_out, forall(u, s.Spf(u) <= s.Sres())),
        positive(s, m.RESERVED, q),
        positive(s, m.RUNNERS, q),
        positive(s, m.PARKERS, q),
        positive(s, m.PREFILL, q, r0, but=r0),
        positive(s, m.OLDER, q, r0),
        *joint(s).values(),
    ]


system = System("OneOrder, shared blocks", vocabulary, init, actions, "joint gains", facts)
