---------------------------- MODULE TraceLedger ----------------------------
(* The block ledger of `stallproof replay`, a second time and by another     *)
(* judge: TLC replays a sample of a recorded trace, one state per event, and *)
(* must come to the same verdict at the same event, on altered traces too.   *)
(* Events is generated from the trace; an event is a tuple, its name first.  *)
(* Blocks are 1..Pool. `bad` names the first rule that an event breaks.      *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS Pool, Depth, Rids, Names, Jobs, Events

VARIABLES i, own, pin, dfq, quar, ld, rd, last, touch, disp, proc, given, reuse, done, bad
vars == <<i, own, pin, dfq, quar, ld, rd, last, touch, disp, proc, given, reuse, done, bad>>

Blk == 1..Pool
Range(q) == {q[k] : k \in 1..Len(q)}
Max(a, b) == IF a < b THEN b ELSE a
NoLoad == [st |-> "none", bs |-> {}, gen |-> 0]

Refs(b) == Cardinality({r \in Rids : b \in own[r]}) + Cardinality({n \in Names : b \in pin[n]})
         + Cardinality({k \in 1..Len(dfq) : b \in dfq[k][2]}) + Cardinality({r \in Rids : b \in quar[r]})
InPool == {b \in Blk : Refs(b) = 0}
Once(q) == Cardinality(Range(q)) = Len(q)
Writing(bs) == {r \in Rids : ld[r].st # "none" /\ ld[r].bs \cap bs # {}}

\* one deferred reference of each block of Bs goes, the oldest first
RECURSIVE Drained(_, _)
Drained(q, Bs) ==
  IF Bs = {} \/ q = <<>> THEN q
  ELSE LET hit == Head(q)[2] \cap Bs
           rest == Drained(Tail(q), Bs \ hit)
       IN IF Head(q)[2] \ hit = {} THEN rest ELSE <<<<Head(q)[1], Head(q)[2] \ hit>>>> \o rest
Entry(b) == CHOOSE k \in {k \in 1..Len(dfq) : b \in dfq[k][2]} :
              \A j \in 1..(k - 1) : b \notin dfq[j][2]
Deferred == UNION {dfq[k][2] : k \in 1..Len(dfq)}

Say(rules) == IF \E k \in 1..Len(rules) : ~rules[k][1]
              THEN LET k == CHOOSE k \in 1..Len(rules) : ~rules[k][1] /\ \A j \in 1..(k - 1) : rules[j][1]
                   IN rules[k][2]
              ELSE ""

Init == /\ i = 0 /\ own = [r \in Rids |-> {}] /\ pin = [n \in Names |-> {}] /\ dfq = <<>>
        /\ quar = [r \in Rids |-> {}] /\ ld = [r \in Rids |-> NoLoad] /\ rd = [j \in Jobs |-> {}]
        /\ last = [r \in Rids |-> 0] /\ touch = [b \in Blk |-> 0] /\ disp = 0 /\ proc = 0
        /\ given = [r \in Rids |-> {}] /\ reuse = {} /\ done = {} /\ bad = ""

Keep(v) == UNCHANGED v

Reused(bs) == {<<j, b>> : j \in {j \in Jobs : rd[j] \cap bs # {}}, b \in bs}
Touched(bs, step) == [b \in Blk |-> IF b \in bs THEN Max(touch[b], step) ELSE touch[b]]

Alloc(e) ==
  LET r == e[2] bs == Range(e[3]) IN
  /\ bad' = Say(<< <<bs \subseteq Blk, "Conservation">>, <<\A q \in Rids : quar[q] \cap bs = {}, "XferSafe">>,
                   <<Once(e[3]) /\ bs \subseteq InPool, "OneOwner">> >>)
  /\ own' = [own EXCEPT ![r] = @ \cup bs]
  /\ given' = [given EXCEPT ![r] = @ \cup bs]
  /\ reuse' = reuse \cup {p \in Reused(bs) : p[2] \in rd[p[1]]}
  /\ Keep(<<pin, dfq, quar, ld, rd, last, touch, disp, proc, done>>)

Share(e) ==
  LET r == e[2] bs == Range(e[3]) IN
  /\ bad' = Say(<< <<Writing(bs) \subseteq {r} /\ \A q \in Rids : quar[q] \cap bs = {}, "XferSafe">>,
                   <<bs \subseteq Blk, "Conservation">>,
                   <<Once(e[3]) /\ own[r] \cap bs = {}, "RefCount">> >>)
  /\ own' = [own EXCEPT ![r] = @ \cup bs]
  /\ Keep(<<pin, dfq, quar, ld, rd, last, touch, disp, proc, given, reuse, done>>)

\* e[4]: newest step that may touch the blocks, if it is not the newest that names the request
Free(e) ==
  LET r == e[2] bs == Range(e[3]) IN
  /\ bad' = Say(<< <<Once(e[3]) /\ bs \subseteq own[r], "NoDoubleFree">>,
                   <<~(ld[r].st = "writing" /\ ld[r].bs \cap bs # {}), "XferSafe">> >>)
  /\ own' = [own EXCEPT ![r] = @ \ bs]
  /\ ld' = IF ld[r].st = "gated" /\ ld[r].bs \cap bs # {} THEN [ld EXCEPT ![r] = [NoLoad EXCEPT !.gen = ld[r].gen]] ELSE ld
  /\ touch' = Touched(bs, IF e[4] < last[r] THEN e[4] ELSE last[r])
  /\ Keep(<<pin, dfq, quar, rd, last, disp, proc, given, reuse, done>>)

Fence(e) ==
  LET r == e[2] bs == Range(e[3]) IN
  /\ bad' = Say(<< <<e[4] >= last[r], "InFlightSafe">>, <<e[4] <= disp + 1, "StepOrder">>,
                   <<e[4] > proc, "NoLeak">>,
                   <<Once(e[3]) /\ bs \subseteq own[r], "NoDoubleFree">>,
                   <<~(ld[r].st = "writing" /\ ld[r].bs \cap bs # {}), "XferSafe">> >>)
  /\ own' = [own EXCEPT ![r] = @ \ bs]
  /\ ld' = IF ld[r].st = "gated" /\ ld[r].bs \cap bs # {} THEN [ld EXCEPT ![r] = [NoLoad EXCEPT !.gen = ld[r].gen]] ELSE ld
  /\ dfq' = Append(dfq, <<e[4], bs>>)
  /\ touch' = Touched(bs, last[r])
  /\ Keep(<<pin, quar, rd, last, disp, proc, given, reuse, done>>)

Drain(e) ==
  LET bs == Range(e[2]) IN
  /\ bad' = Say(<< <<bs \subseteq Deferred, "NoDoubleFree">>,
                   <<\A b \in bs \cap Deferred : dfq[Entry(b)][1] <= proc, "InFlightSafe">> >>)
  /\ dfq' = Drained(dfq, bs)
  /\ Keep(<<own, pin, quar, ld, rd, last, touch, disp, proc, given, reuse, done>>)

Pin(e) ==
  LET n == e[2] bs == Range(e[3]) IN
  /\ bad' = Say(<< <<bs \subseteq Blk, "Conservation">>, <<Once(e[3]) /\ pin[n] \cap bs = {}, "RefCount">> >>)
  /\ pin' = [pin EXCEPT ![n] = @ \cup bs]
  /\ Keep(<<own, dfq, quar, ld, rd, last, touch, disp, proc, given, reuse, done>>)

Unpin(e) ==
  LET n == e[2] bs == Range(e[3]) IN
  /\ bad' = Say(<< <<bs \subseteq pin[n], "NoDoubleFree">> >>)
  /\ pin' = [pin EXCEPT ![n] = @ \ bs]
  /\ Keep(<<own, dfq, quar, ld, rd, last, touch, disp, proc, given, reuse, done>>)

Touch(e) ==
  /\ bad' = Say(<< <<Range(e[2]) \subseteq Blk /\ Once(e[2]), "Conservation">> >>)
  /\ touch' = Touched(Range(e[2]), disp)
  /\ Keep(<<own, pin, dfq, quar, ld, rd, last, disp, proc, given, reuse, done>>)

Fenced(e) ==  \* from a snapshot
  /\ bad' = "" /\ touch' = Touched({e[2]}, e[3])
  /\ Keep(<<own, pin, dfq, quar, ld, rd, last, disp, proc, given, reuse, done>>)

Load(e) ==
  LET r == e[2] bs == Range(e[4]) IN
  /\ bad' = Say(<< <<ld[r].st \in {"none", "sync"} /\ quar[r] = {} /\ e[3] = ld[r].gen + 1  \* steps run in order
                     /\ Once(e[4]) /\ bs \subseteq given[r], "XferSafe">> >>)
  /\ ld' = [ld EXCEPT ![r] = [st |-> "gated", bs |-> bs, gen |-> e[3]]]
  /\ Keep(<<own, pin, dfq, quar, rd, last, touch, disp, proc, given, reuse, done>>)

Start(e) ==
  LET r == e[2] IN
  /\ bad' = Say(<< <<ld[r].st = "gated" /\ ld[r].gen = e[3], "XferSafe">>,
                   <<\A b \in ld[r].bs : Refs(b) = 1, "XferSafe">>,
                   <<\A b \in ld[r].bs : touch[b] <= proc, "InFlightSafe">> >>)
  /\ ld' = [ld EXCEPT ![r].st = e[4]]  \* "writing", or "sync": part of the step, which fences its blocks
  /\ reuse' = reuse \cup {p \in Reused(ld[r].bs) : p[2] \in rd[p[1]]}
  /\ Keep(<<own, pin, dfq, quar, rd, last, touch, disp, proc, given, done>>)

Ended(e) ==  \* received, failed, or (synchronous) its step processed
  LET r == e[2] IN
  /\ bad' = Say(<< <<ld[r].st # "none" /\ ld[r].gen = e[3], "BoundedWait">>, <<ld[r].st \in {"writing", "sync"}, "XferSafe">> >>)
  /\ ld' = [ld EXCEPT ![r] = [NoLoad EXCEPT !.gen = ld[r].gen]]
  /\ Keep(<<own, pin, dfq, quar, rd, last, touch, disp, proc, given, reuse, done>>)

Store(e) ==
  LET r == e[3] bs == Range(e[4]) IN
  /\ bad' = Say(<< <<rd[e[2]] = {} /\ Once(e[4]) /\ bs \subseteq own[r] \cup UNION {pin[n] : n \in Names}, "StoreSafe">> >>)
  /\ rd' = [rd EXCEPT ![e[2]] = bs]
  /\ Keep(<<own, pin, dfq, quar, ld, last, touch, disp, proc, given, reuse, done>>)

Stored(e) ==
  /\ bad' = Say(<< <<rd[e[2]] # {}, "BoundedWait">> >>)
  /\ rd' = [rd EXCEPT ![e[2]] = {}]
  /\ Keep(<<own, pin, dfq, quar, ld, last, touch, disp, proc, given, reuse, done>>)

Quarantine(e) ==
  LET r == e[2] bs == Range(e[4]) IN
  /\ bad' = Say(<< <<ld[r].st = "writing" /\ ld[r].gen = e[3] /\ ld[r].bs = bs, "XferSafe">>,
                   <<Once(e[4]) /\ bs \subseteq own[r], "NoDoubleFree">> >>)
  /\ own' = [own EXCEPT ![r] = @ \ bs]
  /\ ld' = [ld EXCEPT ![r] = [NoLoad EXCEPT !.gen = ld[r].gen]]
  /\ quar' = [quar EXCEPT ![r] = @ \cup bs]
  /\ touch' = Touched(bs, last[r])
  /\ Keep(<<pin, dfq, rd, last, disp, proc, given, reuse, done>>)

Unquarantine(e) ==
  LET r == e[2] bs == Range(e[4]) IN
  /\ bad' = Say(<< <<ld[r].gen = e[3] /\ Once(e[4]) /\ bs # {} /\ bs = quar[r], "NoDoubleFree">> >>)
  /\ quar' = [quar EXCEPT ![r] = {}]
  /\ Keep(<<own, pin, dfq, ld, rd, last, touch, disp, proc, given, reuse, done>>)

Begin(e) ==  \* a scheduling call begins; its step is e[2]
  /\ bad' = Say(<< <<e[2] = disp + 1, "StepOrder">> >>)
  /\ disp' = e[2]
  /\ Keep(<<own, pin, dfq, quar, ld, rd, last, touch, proc, given, reuse, done>>)

Dispatch(e) ==  \* it ends: the step names the requests of e[2]
  /\ bad' = Say(<< <<disp - proc <= Depth, "StepOrder">> >>)
  /\ last' = [r \in Rids |-> IF r \in Range(e[2]) THEN disp ELSE last[r]]
  /\ Keep(<<own, pin, dfq, quar, ld, rd, touch, disp, proc, given, reuse, done>>)

Process(e) ==
  /\ bad' = Say(<< <<e[2] = proc + 1 /\ e[2] <= disp, "StepOrder">> >>)
  /\ proc' = e[2]
  /\ Keep(<<own, pin, dfq, quar, ld, rd, last, touch, disp, given, reuse, done>>)

Finish(e) ==
  /\ bad' = "" /\ done' = done \cup {e[2]}
  /\ Keep(<<own, pin, dfq, quar, ld, rd, last, touch, disp, proc, given, reuse>>)

Add(e) ==
  /\ bad' = "" /\ done' = done \ {e[2]}
  /\ ld' = [ld EXCEPT ![e[2]] = IF @.st = "none" THEN NoLoad ELSE @]
  /\ Keep(<<own, pin, dfq, quar, rd, last, touch, disp, proc, given, reuse>>)

\* the record ends with e[2] blocks in the pool (Pool + 1: not recorded); e[3]: an output call;
\* e[4]: requests that were made to give everything up
Close(e) ==
  /\ bad' = Say(<< <<\A p \in reuse : rd[p[1]] = {}, "StoreSafe">>,
                   <<\A r \in Range(e[4]) : own[r] = {}, "Conservation">>,
                   <<\A r \in done : own[r] = {} \/ ld[r].st # "none" \/ \E j \in Jobs : rd[j] \cap own[r] # {}, "Conservation">>,
                   <<e[2] > Pool \/ Cardinality(InPool) = e[2], "Conservation">>,
                   <<e[3] /\ dfq # <<>> => Head(dfq)[1] > proc, "NoLeak">> >>)
  /\ given' = [r \in Rids |-> {}] /\ reuse' = {}
  /\ Keep(<<own, pin, dfq, quar, ld, rd, last, touch, disp, proc, done>>)

Count(e) ==  \* the pool's own count of references of block e[2]
  /\ bad' = Say(<< <<Refs(e[2]) = e[3], "RefCount">> >>)
  /\ Keep(<<own, pin, dfq, quar, ld, rd, last, touch, disp, proc, given, reuse, done>>)

Restore(e) ==  \* the head of the sample: steps dispatched, processed; generations and steps of requests
  /\ bad' = "" /\ disp' = e[2] /\ proc' = e[3]
  /\ last' = [r \in Rids |-> LET h == {x \in Range(e[4]) : x[1] = r} IN IF h = {} THEN 0 ELSE (CHOOSE x \in h : TRUE)[2]]
  /\ ld' = [r \in Rids |-> LET h == {x \in Range(e[4]) : x[1] = r}
                           IN IF h = {} THEN NoLoad ELSE [NoLoad EXCEPT !.gen = (CHOOSE x \in h : TRUE)[3]]]
  /\ Keep(<<own, pin, dfq, quar, rd, touch, given, reuse, done>>)

Step(e) ==
  CASE e[1] = "alloc" -> Alloc(e) [] e[1] = "share" -> Share(e) [] e[1] = "free" -> Free(e)
    [] e[1] = "fence" -> Fence(e) [] e[1] = "drain" -> Drain(e) [] e[1] = "pin" -> Pin(e)
    [] e[1] = "unpin" -> Unpin(e) [] e[1] = "touch" -> Touch(e) [] e[1] = "fenced" -> Fenced(e)
    [] e[1] = "load" -> Load(e) [] e[1] = "start" -> Start(e) [] e[1] = "ended" -> Ended(e)
    [] e[1] = "store" -> Store(e) [] e[1] = "stored" -> Stored(e)
    [] e[1] = "quarantine" -> Quarantine(e) [] e[1] = "unquarantine" -> Unquarantine(e)
    [] e[1] = "begin" -> Begin(e) [] e[1] = "dispatch" -> Dispatch(e) [] e[1] = "process" -> Process(e)
    [] e[1] = "finish" -> Finish(e) [] e[1] = "add" -> Add(e) [] e[1] = "close" -> Close(e) [] e[1] = "count" -> Count(e)
    [] e[1] = "restore" -> Restore(e)

Next == /\ i < Len(Events) /\ bad = ""
        /\ Step(Events[i + 1])
        /\ i' = i + 1
Spec == Init /\ [][Next]_vars

Conservation == bad # "Conservation"
OneOwner == bad # "OneOwner"
RefCount == bad # "RefCount"
NoDoubleFree == bad # "NoDoubleFree"
NoLeak == bad # "NoLeak"
InFlightSafe == bad # "InFlightSafe"
XferSafe == bad # "XferSafe"
StoreSafe == bad # "StoreSafe"
BoundedWait == bad # "BoundedWait"
StepOrder == bad # "StepOrder"
=============================================================================
