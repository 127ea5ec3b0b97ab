"""What happens between scheduling calls under OneOrder: answers, outputs, ends, and turns of sessions."""

from __future__ import annotations

import z3

from stallproof_proofs.logic import Action, State, forall, ite, zmin
from stallproof_proofs.systems.order import (
    BLOCKED,
    FINISHED,
    HELD,
    IDLE,
    IDLING,
    LOADING,
    NEW,
    RECEIVED,
    RUNNING,
    WAITING,
    ZOMBIE,
    CountParked,
    Deferral,
    Patience,
    RuleE,
    can_load,
    flag,
    grammar,
    is_,
    n0,
    n1,
    q,
    r0,
    total,
)
from stallproof_proofs.systems.order_parts import (
    act,
    at,
    const,
    give_up,
)


def between_calls(s: State) -> list[Action]:
    idle = {"between_calls": z3.And(s.mode() == IDLE, z3.Not(s.handing()))}
    last = z3.Or(s.tok(r0) + 1 >= total(r0), flag)
    turn = s.tok(r0) + 1 >= s.lim(r0)
    live = {"live": is_(s, r0, WAITING, LOADING, RECEIVED, HELD, RUNNING)}
    there = {"live": is_(s, r0, WAITING, LOADING, RECEIVED, HELD, RUNNING, BLOCKED, IDLING)}
    return [
        Action(
            "Pop",
            {**idle, "in_flight": s.nfl() > 0, "delivered": forall(q, s.ph(q) < s.nfl())},
            const(nfl=s.nfl() - 1, pat=ite(s.pw(), zmin(Patience, s.pat() + 1), s.pat())),
            (),
            "Process: the oldest step leaves",
        ),
        act(
            s,
            "Deliver",
            r0,
            {**idle, **live, "in_flight": s.ph(r0) > 0, "goes_on": z3.Not(z3.Or(last, turn))},
            at(s, r0, tok=s.tok(r0) + 1, ph=s.ph(r0) - 1),
            "Deliver: a token",
        ),
        act(
            s,
            "DeliverTurn",
            r0,
            {
                **idle,
                **live,
                "in_flight": s.ph(r0) > 0,
                "turn": turn,
                "goes_on": z3.Not(last),
                # sessions need rule E (who runs may take what idles), and seats that only runners take
                "rule_E": RuleE,
                "seats": z3.Not(CountParked),
            },
            at(s, r0, tok=s.tok(r0) + 1, ph=s.ph(r0) - 1, st=z3.IntVal(IDLING)),
            "Deliver: the last token of a turn; the session idles and keeps its blocks (Idle)",
        ),
        act(
            s,
            "Input",
            r0,
            {
                **idle,
                "idling": s.st(r0) == IDLING,
                "tokens": n0 >= 0,
                "turn": z3.And(s.tok(r0) + n0 < n1, n1 <= total(r0)),
            },
            at(
                s,
                r0,
                st=ite(s.own(r0) > 0, HELD, WAITING),
                tok=s.tok(r0) + n0,
                lim=n1,
                noload=z3.BoolVal(True),
            ),
            "Input: the next turn of a session, at its place in the order",
            (r0, n0, n1),
        ),
        act(
            s,
            "DeliverLast",
            r0,
            {**idle, **live, "in_flight": s.ph(r0) > 0, "last": last},
            {**give_up(s, r0, st=z3.IntVal(FINISHED)), **at(s, r0, tok=s.tok(r0) + 1, ph=s.ph(r0) - 1)},
            "Deliver: the last token, or early stop",
        ),
        act(
            s,
            "DeliverLate",
            r0,
            {**idle, "over": is_(s, r0, FINISHED, ZOMBIE), "in_flight": s.ph(r0) > 0},
            at(s, r0, ph=s.ph(r0) - 1),
            "Deliver: a token of a finished request",
        ),
        act(
            s,
            "XferDone",
            r0,
            {**idle, "loading": s.st(r0) == LOADING},
            at(s, r0, st=z3.IntVal(RECEIVED)),
            "XferDone",
        ),
        act(
            s,
            "XferFail",
            r0,
            {**idle, "loading": s.st(r0) == LOADING, "fails_left": s.fl(r0) > 0},
            {**give_up(s, r0, st=z3.IntVal(WAITING)), **at(s, r0, fl=s.fl(r0) - 1)},
            "XferFail",
        ),
        act(
            s,
            "Expire",
            r0,
            {**idle, "loading": s.st(r0) == LOADING},
            at(
                s,
                r0,
                st=z3.IntVal(WAITING),
                comp=z3.IntVal(0),
                own=z3.IntVal(0),
                quar=s.quar(r0) + s.own(r0),
                noload=z3.BoolVal(True),
            ),
            "Expire: quarantine, never loads again",
        ),
        act(
            s,
            "ExpireZombie",
            r0,
            {**idle, "zombie": s.st(r0) == ZOMBIE},
            at(
                s,
                r0,
                st=z3.IntVal(FINISHED),
                comp=z3.IntVal(0),
                own=z3.IntVal(0),
                quar=s.quar(r0) + s.own(r0),
                noload=z3.BoolVal(True),
            ),
            "Expire: of a request that was aborted under its load",
        ),
        act(
            s,
            "DeferralOver",
            r0,
            {
                **idle,
                "waits": s.st(r0) == WAITING,
                "deadline": Deferral,
                "asks": can_load(s, r0),
                "once": z3.Not(s.late(r0)),
            },
            at(s, r0, late=z3.BoolVal(True)),
            "DeferralOver: its connector has put it off for too long",
        ),
        act(
            s,
            "LateDone",
            r0,
            {**idle, "quarantined": s.quar(r0) > 0},
            {**at(s, r0, quar=z3.IntVal(0)), **const(free=s.free() + s.quar(r0))},
            "LateDone",
        ),
        act(
            s,
            "Abort",
            r0,
            {**idle, **there},
            give_up(s, r0, st=z3.IntVal(FINISHED)),
            "Abort; a load that has not started is cancelled",
        ),
        act(
            s,
            "AbortLoading",
            r0,
            {**idle, "loading": s.st(r0) == LOADING},
            at(s, r0, st=z3.IntVal(ZOMBIE)),
            "Abort, load under way",
        ),
        act(
            s,
            "XferFreed",
            r0,
            {**idle, "zombie": s.st(r0) == ZOMBIE},
            give_up(s, r0, st=z3.IntVal(FINISHED)),
            "XferFreed",
        ),
        act(
            s,
            "Arrive",
            r0,
            {**idle, "new": s.st(r0) == NEW},
            at(s, r0, st=ite(grammar(r0), BLOCKED, WAITING)),
            "Arrive",
        ),
        act(
            s,
            "GrammarReady",
            r0,
            {**idle, "blocked": s.st(r0) == BLOCKED},
            at(s, r0, st=z3.IntVal(WAITING)),
            "GrammarReady",
        ),
        act(
            s,
            "GrammarFails",
            r0,
            {**idle, "blocked": s.st(r0) == BLOCKED},
            at(s, r0, st=z3.IntVal(FINISHED)),
            "GrammarReady: it does not compile, the request ends",
        ),
        Action(
            "Pause",
            {**idle, "pauses_left": s.pz() > 0, "runs": z3.Not(s.paused())},
            const(paused=True, pz=s.pz() - 1),
            (),
            "Pause",
        ),
        Action("Resume", {**idle, "paused": s.paused()}, const(paused=False), (), "Resume"),
    ]


def next_turn(s: State) -> list[Action]:
    """``Input`` under FCFS: the next turn is an arrival, a new request that keeps the blocks.

    FCFS puts it last; nothing below needs to know its place. One action in two halves, since two requests
    change; nothing happens between them.
    """
    return [
        act(
            s,
            "InputAway",
            r0,
            {
                "between_calls": z3.And(s.mode() == IDLE, z3.Not(s.handing())),
                "idling": s.st(r0) == IDLING,
            },
            {
                **at(s, r0, st=z3.IntVal(FINISHED), own=z3.IntVal(0), comp=z3.IntVal(0)),
                **const(limbo=s.own(r0), limboc=s.comp(r0), handing=True),
            },
            "Input: the turn that is over gives its blocks away",
        ),
        act(
            s,
            "InputHere",
            r0,
            {
                "between_calls": s.handing(),
                "new": s.st(r0) == NEW,
                "tokens": s.tok(r0) > s.limboc(),
            },
            {
                **at(
                    s,
                    r0,
                    st=ite(s.limbo() > 0, HELD, WAITING),
                    own=s.limbo(),
                    comp=s.limboc(),
                    noload=z3.BoolVal(True),
                ),
                **const(limbo=0, limboc=0, handing=False),
            },
            "Input: the turn that begins takes them",
        ),
    ]
