------------------------------ MODULE Measure ------------------------------
(* The measure of the proofs (theory order) as TLC properties, on small     *)
(* instances. pf[r]: r runs and no token was committed since its admission. *)
EXTENDS Properties

VARIABLE pf
mvars == <<s, pf>>

MInit == Init /\ pf = [r \in Reqs |-> FALSE]
MNext ==
  /\ Next
  /\ LET grew == Len(s'.infl) > Len(s.infl)
     IN pf' = [r \in Reqs |-> /\ s'.st[r] = "running"
                              /\ ~(grew /\ r \in s'.infl[Len(s'.infl)].out)
                              /\ s.st[r] # "running" \/ pf[r]]
MSpec == MInit /\ [][MNext]_mvars

Over(S, r) == S.st[r] \in {"finished", "zombie"}
\* all prefills up to r fit into what is free or held by runners behind r
Secure(S, f, r) ==
  LET upto   == {q \in Range(S.run) : ~Before(S, r, q) /\ f[q]}
      behind == {q \in Range(S.run) : Before(S, r, q)}
  IN SumRemaining(S, upto) <= S.free + SumF(S.own, behind)
Phase(S, f, r) ==
  CASE S.st[r] = "finished" -> 0
    [] S.st[r] = "zombie"   -> 1
    [] S.st[r] = "held"     -> 3
    [] S.st[r] = "received" -> 4
    [] S.st[r] = "loading"  -> 5
    [] S.st[r] \in {"waiting", "preempted"} -> 6
    [] S.st[r] = "running"  -> IF f[r] /\ Secure(S, f, r) THEN 2 ELSE 7
    [] S.st[r] = "blocked"  -> 8
    [] OTHER                -> 9
\* tokens not committed; answers and loads left; phase; prefill left
Component(S, f, r) ==
  <<IF Over(S, r) THEN 0 ELSE Total[r] - S.tok[r] - Placeholders(S, r),
    IF Over(S, r) THEN 0 ELSE S.ny[r] + S.fl[r] + (IF S.noload[r] THEN 0 ELSE 1),
    Phase(S, f, r),
    IF S.st[r] = "running" /\ f[r] THEN S.tok[r] - S.comp[r] ELSE 0>>
\* components in scheduling order; then steps in flight, loads in quarantine, pauses
Vector(S, f) ==
  [i \in 1..N |-> Component(S, f, S.ord[i])]
    \o <<<<Len(S.infl), Cardinality({r \in Reqs : S.quar[r] > 0}), S.pz, IF S.paused THEN 1 ELSE 0>>>>
Less(a, b) == \E i \in 1..Len(a) : a[i] < b[i] /\ \A j \in 1..(i - 1) : a[j] = b[j]
VLess(a, b) == \E i \in 1..Len(a) : Less(a[i], b[i]) /\ \A j \in 1..(i - 1) : a[j] = b[j]

(* ACT  everything that changes more than patience and deadlines lowers the vector *)
Decreases == [][(s'.ord = s.ord /\ [s' EXCEPT !.pat = s.pat, !.pw = s.pw, !.due = s.due] # s)
                  => VLess(Vector(s', pf'), Vector(s, pf))]_mvars

Live(S, r) == S.st[r] \in {"waiting", "preempted", "loading", "received", "held", "running"}
Oldest(S, r) == Live(S, r) /\ \A q \in Reqs : Live(S, q) => ~Before(S, q, r)
(* ACT  the oldest request is preempted only after a token of its residence, quarantine aside *)
PreemptPaid == [][\A r \in Reqs :
  (Oldest(s, r) /\ s.st[r] = "running" /\ s'.st[r] = "preempted" /\ Quarantined(s) = 0) => ~pf[r]]_mvars

(* ACT  a non-holder is served, or its connector asked, only if every request ahead of it was *)
(*      served too, put off by its connector, waits for its own load, or for its own late     *)
(*      token (Drain of the proofs)                                                           *)
Drained(X) == \A u \in X.giv \cup X.asked, v \in Reqs :
  (Before(s, v, u) /\ Live(s, v))
    => \/ s.st[v] = "loading" \/ Placeholders(s, v) > 0 \/ v \in X.asked
       \/ Component(s', pf', v) # Component(s, pf, v)
DrainOrder == [][Call(Drained)]_mvars
=============================================================================
