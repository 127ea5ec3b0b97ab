----------------------------- MODULE Properties -----------------------------
(* The promise, statements only. Names as in the documentation, the proofs, *)
(* the traces and the scheduler class. INV: invariant, ACT: every step,      *)
(* LIVE: under Fairness.                                                     *)
EXTENDS Sched

(* INV  every block has exactly one account; a finished request owns nothing *)
Conservation ==
  /\ s.free >= 0 /\ \A r \in Reqs : s.own[r] >= 0
  /\ s.free + SumF(s.own, Reqs) + SumDfq(s.dfq) + Quarantined(s) = B
  /\ \A r \in Reqs : s.st[r] \in {"new", "finished"} => s.own[r] = 0

(* INV  every request is in exactly the queue of its state, once *)
Queues ==
  LET parked == {"waiting", "preempted", "loading", "received", "held", "idle", "blocked", "stuck"}
  IN /\ Range(s.run) = {r \in Reqs : s.st[r] = "running"} /\ Len(s.run) = Cardinality(Range(s.run))
     /\ Range(s.wq) = {r \in Reqs : s.st[r] \in parked} /\ Len(s.wq) = Cardinality(Range(s.wq))

(* INV  no load has started on a block that a step in flight may still touch *)
InFlightSafe == ~s.bad

(* INV  the blocks of a load that has not answered are its own, or in quarantine *)
XferSafe == \A r \in Reqs : s.st[r] \in {"loading", "zombie"} => s.own[r] = Ext[r]

(* INV  never more adapters among running requests than the engine may run *)
AdapterShare == Cardinality({Adapter[r] : r \in Range(s.run)} \ {0}) <= MaxLoras

(* INV  all finished and nothing in flight: everything is back but the quarantine *)
NoLeak == ((\A r \in Reqs : s.st[r] = "finished") /\ s.infl = <<>>) => s.free + Quarantined(s) = B

(* INV  never more running requests than seats *)
Seated == Len(s.run) <= MaxSeqs

Must == Reqs \ (Recycle \cup Sessions)
AllDone == \A r \in Must : s.st[r] = "finished"
Pending == \/ s.infl # <<>> \/ s.paused
           \/ \E r \in Reqs : s.st[r] \in {"loading", "zombie", "blocked"} \/ s.due[r] = "runs"
(* INV  unfinished work and nothing pending outside: the call changes something *)
NoWedge == \/ Pending \/ \A r \in Reqs : s.st[r] \in {"new", "finished", "idle"}
           \/ \A NY \in SUBSET CanDefer(s) : SchedR(s, NY) # s

(* INV  a completed load is acted on by the next call *)
BoundedWait == Len(s.infl) < D =>
  \A NY \in SUBSET CanDefer(s) : \A r \in Reqs :
    s.st[r] = "received" => SchedX(s, NY).S.st[r] # "received"

\* the effect record X of the call that leads from s to s'
Call(OK(_)) == \A NY \in SUBSET CanDefer(s) :
                 (Len(s.infl) < D /\ s' = SchedR(s, NY)) => OK(SchedX(s, NY))

(* ACT  a preemption frees blocks for its target at once, or the victim is the target *)
(*      itself; and the patience bound was used up, or no step in flight could help   *)
ZeroPre(X) == \E p \in X.pre : (p[3] = 0 /\ p[1] # p[2]) \/ (s.pat < P /\ CanFree(s))
NoZeroPre == [][LET OK(X) == ~ZeroPre(X) IN Call(OK)]_vars

(* ACT  a lateral eviction happens only if its target runs in the same call; a session that *)
(*      idles may also make room for a load that starts in the same call                   *)
Coupled(X) == \A e \in X.ev : e[2] \in X.all \/ (s.st[e[1]] = "idle" /\ e[2] \in X.ld)
EvictCoupled == [][Call(Coupled)]_vars

(* ACT  nobody behind a refused request enters with its first block in that call *)
InOrder(X) == \A q \in X.giv, r \in X.ref : ~Before(X.S, r, q)
NoInversion == [][Call(InOrder)]_vars

(* LIVE  closed system: every request finishes *)
Termination == <>AllDone
(* LIVE  open system: a request finishes however many behind it arrive *)
NoStarvation == \A r \in Must : <>(s.st[r] = "finished")
=============================================================================
