------------------------------- MODULE Blocks -------------------------------
(***************************************************************************)
(* Block identities. No scheduling policy is assumed: within a call the     *)
(* engine may admit, grow, load, share, prune and preempt as it likes, so   *)
(* what holds here holds for every policy. A finished request's id is used  *)
(* again, so the system is open.                                            *)
(*                                                                         *)
(* Ordered work: a step touches blocks from its dispatch until it is device *)
(* done; steps are device done in order. Unordered writers (loads) and      *)
(* readers (stores, sends) know nothing of steps.                           *)
(* Scenario numbers S1.. are those of the audit in the documentation.       *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
  Blk, N, D, MaxOwn,
  FenceMode,      \* "None" | "DeferFrees" | "GateLoads"
  GateBuilt,      \* a load's gate includes the step being built
  GateTouched,    \* it waits for steps that touch its blocks only, not for all that are in flight
  GateCap,        \* a call that dispatches nothing adds nothing to gates and fences
  FenceOf,        \* DeferFrees: a freed block waits for "built" | "dispatched" | "request" (steps naming r)
  LateWork,       \* a processed step may still touch blocks (drafter, post-copies): done is not processed
  GateExtra,      \* 1: a gate waits for one more processed step, or an idle device
  SyncLoads,      \* loads that start within the call
  SyncQuiescent,  \* they take quiescent blocks only
  Share,          \* prefix hits on blocks of others, and on blocks in the pool
  OnlyNewBlocks,  \* a load writes only blocks newly allocated for it
  CountRefs,      \* a shared block is freed on its last use only
  Prune,          \* a running request gives blocks back that fell out of its window
  PruneFenced,    \* DeferFrees: pruned blocks wait too
  PruneForgets,   \* a pruned block leaves the request's table
  StoreMode,      \* unordered readers: "off" | "none" (unprotected) | "pin" (own reference) | "flush"
                  \* (ended ahead of a reuse) | "delay" (finished requests keep their blocks)
  FlushSeesLoads, \* "flush": allocations for loads are seen too
  PinBalanced,    \* a reader of a request that is gone gives its reference back too
  PreemptReaders, \* a request may be preempted while its blocks are read
  Quorum,         \* a load is complete when all its ranks have reported
  CountTransfers, \* an aborted request waits for its load AND its send
  Aborts,
  AbortWaits,     \* an aborted load that writes keeps its blocks until it reports
  Deadlines,
  Quarantine,     \* an expired load's blocks leave the pool
  SameIdLoads,    \* the id may load again while its lost load may still report
  GenCheck        \* a report is matched with its generation

VARIABLE s
vars == <<s>>
Reqs == 1..N

(* st: new | run | load | held | zombie | sending; xf: none | gated | writing      *)
(* lost: blocks that an expired load may still write; dfq: set of [b, k], deferred *)
Min(a, b) == IF a < b THEN a ELSE b
Max(a, b) == IF a > b THEN a ELSE b
MaxOf(S) == IF S = {} THEN 0 ELSE CHOOSE x \in S : \A y \in S : y <= x
\* steps that may still touch blocks: in flight, processed but not device done, being built
Touched(S) == UNION {S.infl[i].touch : i \in 1..Len(S.infl)} \cup S.tail \cup S.touch
Reading(S) == UNION {S.read[r] : r \in Reqs}
Writing(S, r) == (IF S.xf[r] = "writing" THEN S.blks[r] ELSE {}) \cup S.lost[r]
Deferred(S) == {e.b : e \in S.dfq}

Fence(S, r, b) ==
  CASE FenceOf = "built"      -> IF S.on THEN Len(S.infl) + 1 ELSE Len(S.infl)
    [] FenceOf = "dispatched" -> Len(S.infl)
    [] FenceOf = "request"    -> MaxOf({i \in 1..Len(S.infl) : r \in S.infl[i].names}
                                       \cup IF r \in S.names THEN {Len(S.infl) + 1} ELSE {})
\* the newest step that a load into Bs waits for
GateOf(S, Bs) ==
  LET built == IF GateBuilt THEN {Len(S.infl) + 1} ELSE {}
  IN IF GateTouched
     THEN MaxOf({i \in 1..Len(S.infl) : S.infl[i].touch \cap Bs # {}} \cup IF S.touch \cap Bs # {} THEN built ELSE {})
     ELSE MaxOf((1..Len(S.infl)) \cup built)
\* one holder of the blocks Bs lets go (r: on whose account); fenced: the native fence applies
Drop(S, r, Bs, fenced) ==
  LET ref1 == [b \in Blk |-> IF b \in Bs THEN S.ref[b] - 1 ELSE S.ref[b]]
      out  == IF CountRefs THEN {b \in Bs : ref1[b] = 0} ELSE Bs
      defer == {b \in out : fenced /\ FenceMode = "DeferFrees" /\ Fence(S, r, b) > 0}
  IN [S EXCEPT !.ref = [b \in Blk |-> IF b \in defer THEN ref1[b] + 1 ELSE ref1[b]],
               !.pool = @ \cup (out \ defer),
               !.dfq = @ \cup {[b |-> b, k |-> Fence(S, r, b)] : b \in defer},
               !.bad = @ \cup (IF \E b \in Bs : S.ref[b] <= 0 THEN {"double"} ELSE {})]
Release(S, r) == [Drop(S, r, S.own[r], TRUE) EXCEPT !.own[r] = {}]

\* fresh blocks New and hits Hit (kept content) for r; a reader of New must have been dealt with
Take(S, r, New, Hit, load) ==
  LET clash == {q \in Reqs : S.read[q] \cap New # {}}
      S1 == [S EXCEPT !.own[r] = @ \cup New \cup Hit,
                      !.ref = [b \in Blk |-> IF b \in New \cup Hit THEN S.ref[b] + 1 ELSE S.ref[b]],
                      !.pool = @ \ (New \cup Hit)]
  IN IF clash = {} THEN S1
     ELSE IF StoreMode = "flush" /\ (FlushSeesLoads \/ ~load) THEN [S1 EXCEPT !.read = [q \in Reqs |-> IF q \in clash THEN {} ELSE @[q]]]
     ELSE [S1 EXCEPT !.bad = @ \cup {"store"}]

\* blocks whose content r may share: of running requests, or still in the pool (touching a fenced one is legal, S1)
Hits(S, r) == IF Share THEN {{}} \cup {{b} : b \in S.pool \cup UNION {S.own[q] : q \in {q \in Reqs \ {r} : S.st[q] = "run"}}}
              ELSE {{}}
Step(S, r) == [S EXCEPT !.touch = @ \cup S.own[r], !.names = @ \cup {r}]

(* ------------------------------------------------------------ a call *)
BeginCall == /\ ~s.on /\ Len(s.infl) < D
             /\ s' = [s EXCEPT !.on = TRUE]
Admit(r) == /\ s.on /\ s.st[r] = "new"
            /\ \E H \in Hits(s, r) : \E b \in s.pool \ H :
                 s' = Step([Take(s, r, {b}, H, FALSE) EXCEPT !.st[r] = "run"], r)
Resume(r) == s.on /\ s.st[r] = "held" /\ s' = Step([s EXCEPT !.st[r] = "run"], r)
Grow(r) == /\ s.on /\ s.st[r] = "run" /\ r \notin s.names
           /\ \/ s' = Step(s, r)
              \/ /\ Cardinality(s.own[r]) < MaxOwn
                 /\ \E b \in s.pool : s' = Step(Take(s, r, {b}, {}, FALSE), r)
MayLoad(r) == s.on /\ s.st[r] = "new" /\ (SameIdLoads \/ s.lost[r] = {})
Load(r) ==
  /\ MayLoad(r)
  /\ \E H \in Hits(s, r) : \E b \in s.pool \ H :
       s' = [Take(s, r, {b}, H, TRUE) EXCEPT
               !.st[r] = "load", !.blks[r] = IF OnlyNewBlocks THEN {b} ELSE {b} \cup H,
               !.xf[r] = IF FenceMode = "GateLoads" THEN "gated" ELSE "writing",
               !.gate[r] = IF FenceMode = "GateLoads"
                           THEN GateExtra + GateOf(s, {b} \cup H) ELSE 0,
               !.new = @ \cup {r}]
SyncLoad(r) ==
  /\ SyncLoads /\ MayLoad(r)
  /\ \E b \in s.pool :
       /\ SyncQuiescent => b \notin Touched(s)
       /\ s' = Step([Take(s, r, {b}, {}, TRUE) EXCEPT
                       !.st[r] = "run", !.bad = @ \cup IF b \in Touched(s) THEN {"sync"} ELSE {}], r)
Preempt(r) == /\ s.on /\ s.st[r] = "run" /\ (PreemptReaders \/ s.read[r] = {})
              /\ s' = [Release(s, r) EXCEPT !.st[r] = "new"]
\* a call that touches nothing dispatches nothing; then there is no step to wait for (S9, S10)
EndCall ==
  /\ s.on
  /\ LET empty == s.touch = {}
         infl == IF empty THEN s.infl ELSE Append(s.infl, [touch |-> s.touch, names |-> s.names])
         cap  == Len(infl) + (IF Len(infl) > 0 \/ s.tail # {} THEN GateExtra ELSE 0)
         dfq  == {[e EXCEPT !.k = IF GateCap THEN Min(@, Len(infl)) ELSE @] : e \in s.dfq}
         out  == {e.b : e \in {e \in dfq : e.k <= 0}}
     IN s' = [s EXCEPT !.dfq = {e \in dfq : e.k > 0}, !.pool = @ \cup out,
                       !.ref = [b \in Blk |-> IF b \in out THEN @[b] - 1 ELSE @[b]], !.on = FALSE, !.touch = {}, !.names = {}, !.new = {}, !.infl = infl,
                       !.gate = [r \in Reqs |-> IF r \in s.new /\ GateCap THEN Min(@[r], cap) ELSE @[r]]]

(* ------------------------------------------------------- steps end *)
Process ==
  /\ ~s.on /\ s.infl # <<>>
  /\ LET dfq == {[e EXCEPT !.k = @ - 1] : e \in s.dfq}
         out == {e.b : e \in {e \in dfq : e.k <= 0}}
     IN s' = [s EXCEPT !.infl = Tail(@), !.tail = IF LateWork THEN Head(s.infl).touch ELSE {},
                       !.gate = [r \in Reqs |-> Max(@[r] - 1, 0)],
                       !.dfq = {e \in dfq : e.k > 0}, !.pool = @ \cup out,
                       !.ref = [b \in Blk |-> IF b \in out THEN @[b] - 1 ELSE @[b]]]
\* late work ends; with nothing in flight the device is idle and every gate opens
LateDone_ == /\ ~s.on /\ s.tail # {}
             /\ s' = [s EXCEPT !.tail = {}, !.gate = IF s.infl = <<>> THEN [r \in Reqs |-> 0] ELSE @]

Gone(S, r) == IF StoreMode = "delay" /\ S.read[r] # {}
              THEN [S EXCEPT !.st[r] = "sending"] ELSE [Release(S, r) EXCEPT !.st[r] = "new"]
Finish(r) == /\ ~s.on /\ s.st[r] \in {"run", "held"}
             /\ s' = Gone(s, r)
PruneOne(r) == /\ Prune /\ ~s.on /\ s.st[r] = "run" /\ Cardinality(s.own[r]) > 1
               /\ \E b \in s.own[r] : s' = [Drop(s, r, {b}, PruneFenced) EXCEPT !.own[r] = IF PruneForgets THEN @ \ {b} ELSE @]

(* -------------------------------------------------------- transfers *)
StartXfer(r) == /\ ~s.on /\ s.xf[r] = "gated" /\ s.gate[r] = 0
                /\ s' = [s EXCEPT !.xf[r] = "writing"]
\* an aborted request is gone when nothing of it is outstanding
Over(S, r) == IF CountTransfers /\ (S.xf[r] # "none" \/ S.read[r] # {}) THEN S
              ELSE [Release(S, r) EXCEPT !.st[r] = "new"]
XferDone(r) == /\ ~s.on /\ s.xf[r] = "writing"
               /\ LET S1 == [s EXCEPT !.xf[r] = "none", !.blks[r] = {}, !.lost[r] = IF Quorum THEN @ ELSE s.blks[r]]
                  IN s' = IF s.st[r] = "load" THEN [S1 EXCEPT !.st[r] = "held"]
                          ELSE IF s.st[r] = "zombie" THEN Over(S1, r) ELSE S1
AbortLoad(r) ==
  /\ Aborts /\ ~s.on /\ s.st[r] = "load"
  /\ s' = IF s.xf[r] = "gated"
          THEN [Over([s EXCEPT !.xf[r] = "none", !.blks[r] = {}], r) EXCEPT
                  !.st[r] = IF CountTransfers /\ s.read[r] # {} THEN "zombie" ELSE @]
          ELSE IF AbortWaits THEN [s EXCEPT !.st[r] = "zombie"]
          ELSE [Release(s, r) EXCEPT !.st[r] = "new", !.xf[r] = "none", !.blks[r] = {},
                                     !.lost[r] = s.blks[r]]
Expire(r) ==
  /\ Deadlines /\ ~s.on /\ s.st[r] = "load" /\ s.xf[r] = "writing" /\ s.lost[r] = {} /\ s.read[r] = {}
  /\ LET keep == IF Quarantine THEN s.blks[r] \cap s.own[r] ELSE {}
         S1 == Drop(s, r, s.own[r] \ keep, TRUE)
     IN s' = [S1 EXCEPT !.own[r] = {}, !.quar[r] = keep, !.lost[r] = s.blks[r], !.xf[r] = "none",
                        !.blks[r] = {}, !.st[r] = "new"]
\* a lost load reports after all; by id alone it would complete the load that is running now
LateReport(r) ==
  /\ ~s.on /\ s.lost[r] # {}
  /\ LET S1 == [Drop(s, r, s.quar[r], FALSE) EXCEPT !.quar[r] = {}, !.lost[r] = {}]
     IN s' = IF ~GenCheck /\ s.st[r] = "load" /\ s.xf[r] = "writing"
             THEN [S1 EXCEPT !.st[r] = "held", !.xf[r] = "none", !.blks[r] = {}, !.lost[r] = s.blks[r]]
             ELSE S1
Store(r) ==
  /\ StoreMode # "off" /\ ~s.on /\ s.read[r] = {}
  /\ s.st[r] = "run" \/ (StoreMode = "delay" /\ s.st[r] = "load")
  /\ s' = [s EXCEPT !.read[r] = s.own[r],
                    !.ref = [b \in Blk |-> IF StoreMode = "pin" /\ b \in s.own[r] THEN @[b] + 1 ELSE @[b]]]
ReadDone(r) ==
  /\ ~s.on /\ s.read[r] # {}
  /\ LET S1 == IF StoreMode = "pin" /\ (PinBalanced \/ s.st[r] # "new") THEN Drop(s, r, s.read[r], FALSE) ELSE s
         S2 == [S1 EXCEPT !.read[r] = {}]
     IN s' = IF s.st[r] = "sending" THEN [Release(S2, r) EXCEPT !.st[r] = "new"]
             ELSE IF s.st[r] = "zombie" THEN Over(S2, r)
             ELSE IF ~CountTransfers /\ s.st[r] = "new" /\ StoreMode = "delay" THEN Drop(S2, r, s.read[r], TRUE)
             ELSE S2

Init ==
  s = [pool |-> Blk, own |-> [r \in Reqs |-> {}], st |-> [r \in Reqs |-> "new"], ref |-> [b \in Blk |-> 0],
       infl |-> <<>>, tail |-> {}, on |-> FALSE, touch |-> {}, names |-> {}, new |-> {}, dfq |-> {},
       xf |-> [r \in Reqs |-> "none"], blks |-> [r \in Reqs |-> {}], gate |-> [r \in Reqs |-> 0],
       lost |-> [r \in Reqs |-> {}], quar |-> [r \in Reqs |-> {}], read |-> [r \in Reqs |-> {}], bad |-> {}]
Next == \/ BeginCall \/ EndCall \/ Process \/ LateDone_
        \/ \E r \in Reqs : \/ Admit(r) \/ Resume(r) \/ Grow(r) \/ Load(r) \/ SyncLoad(r) \/ Preempt(r)
                           \/ Finish(r) \/ PruneOne(r) \/ StartXfer(r) \/ XferDone(r) \/ AbortLoad(r)
                           \/ Expire(r) \/ LateReport(r) \/ Store(r) \/ ReadDone(r)
Spec == Init /\ [][Next]_vars

(* ------------------------------------------------------- statements *)
(* no unordered writer writes what a step may still touch *)
InFlightSafe == /\ \A r \in Reqs : (IF s.xf[r] = "writing" THEN s.blks[r] ELSE {}) \cap Touched(s) = {}
                /\ "sync" \notin s.bad
(* what a load may write is its request's, or in quarantine *)
XferSafe == \A r \in Reqs : /\ s.xf[r] # "none" => s.blks[r] \subseteq s.own[r]
                            /\ \A b \in Writing(s, r) : b \notin s.pool /\ b \notin Deferred(s)
                            /\ \A q \in Reqs \ {r} : Writing(s, r) \cap s.own[q] = {}
                            /\ s.lost[r] \cap s.own[r] = {}
(* a block is reused only after its unordered readers are done or flushed *)
StoreSafe == "store" \notin s.bad
(* in the pool iff nobody holds it; deferred and quarantined blocks have no owner *)
OneOwner == \A b \in Blk :
  LET held == \E r \in Reqs : b \in s.own[r] \/ b \in s.quar[r] \/ (StoreMode = "pin" /\ b \in s.read[r])
  IN /\ (b \in s.pool) # (held \/ b \in Deferred(s))
     /\ b \in Deferred(s) => ~held
     /\ \A r \in Reqs : b \in s.quar[r] => \A q \in Reqs : b \notin s.own[q]
RefCount == \A b \in Blk :
  s.ref[b] = Cardinality({r \in Reqs : b \in s.own[r]}) + Cardinality({r \in Reqs : b \in s.quar[r]})
           + Cardinality({e \in s.dfq : e.b = b})
           + (IF StoreMode = "pin" THEN Cardinality({r \in Reqs : b \in s.read[r]}) ELSE 0)
NoDoubleFree == "double" \notin s.bad
NoLeak == (\A r \in Reqs : s.st[r] = "new" /\ s.read[r] = {}) /\ s.infl = <<>> /\ ~s.on
          => s.pool \cup UNION {s.quar[r] : r \in Reqs} = Blk
(* a gate waits only for steps that are in flight *)
BoundedWait == ~s.on => \A r \in Reqs : s.xf[r] = "gated" =>
                 s.gate[r] <= Len(s.infl) + (IF Len(s.infl) > 0 \/ s.tail # {} THEN GateExtra ELSE 0)
=============================================================================
