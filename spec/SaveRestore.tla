----------------------------- MODULE SaveRestore -----------------------------
(***************************************************************************)
(* Save and restore of an evicted holder's blocks. Not part of the rules to *)
(* build: this module says what an implementation must keep so that the     *)
(* promise stays what it is without it.                                     *)
(*                                                                         *)
(* Eviction frees the blocks at once. Ahead of that, on the device's own    *)
(* stream, their content is gathered into a staging row; a copy engine that *)
(* knows no stream moves the row to a bounded store. Back the same way:     *)
(* store to row, then scattered on the stream into fresh blocks, ahead of   *)
(* the first step that reads them. One block per request stands for all.    *)
(*                                                                         *)
(* The device executes the stream `q` in order, whenever it likes; a load   *)
(* is an unordered writer, as in Blocks.tla. Content is the name of the     *)
(* request it belongs to; 0 is none.                                        *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
  B, N, R, Cap, D,    \* blocks, requests, staging rows, records of the store, work in flight on the stream
  GateSeesSaves,      \* a gather or scatter in flight is part of a block's fence
  CopyOutWaits,       \* a row is copied to the store only when its gather is device done
  RowUntilCopied,     \* a row of a save is busy until that copy is done
  ReadBehindScatter,  \* a restored request is scheduled only behind its scatter
  ScatterWaits,       \* a scatter is submitted only when its row has come from the store
  RowUntilScattered,  \* a row of a restore is busy until its scatter is device done
  Cancel,             \* a restore whose request gives its block up is not scattered any more
  FreeAtOnce,         \* an evicted holder's blocks do not wait for their save
  FullDrops,          \* no row or no room in the store: plain eviction
  Fallback,           \* a saved request may compute its content again instead
  OrphansEnd          \* a save whose request has gone gives its row back

VARIABLE s
vars == <<s>>
Reqs == 1..N
Rows == 1..R
Blks == 1..B

(* st: new (nothing is kept) | run (resident) | saving | saved | restoring                *)
(* row: [use, r, b]; use: free | out (a save's) | in (a restore's); got: its content is there    *)
(* q: work in flight, each [op, r, b, i]; op: write | use | gather | scatter                     *)
Op(op, r, b, i) == [op |-> op, r |-> r, b |-> b, i |-> i]
FreeRow == [use |-> "free", r |-> 0, b |-> 0, got |-> FALSE]
Pending(S, b) == {k \in 1..Len(S.q) : S.q[k].b = b}
Fenced(S, b) == {k \in Pending(S, b) : GateSeesSaves \/ S.q[k].op \in {"write", "use"}}
Scattering(S, i) == \E k \in 1..Len(S.q) : S.q[k].op = "scatter" /\ S.q[k].i = i
Room(S) == Len(S.q) < D
Submit(S, op, r, b, i) == [S EXCEPT !.q = Append(@, Op(op, r, b, i))]
FreeRows(S) == {i \in Rows : S.row[i].use = "free"}
\* records of the store: saved ones, and those promised to a save or not yet read back by a restore
Kept(S) == {r \in Reqs : S.st[r] = "saved"} \cup {S.row[i].r : i \in {i \in Rows : S.row[i].use = "out" \/ (S.row[i].use = "in" /\ ~S.row[i].got)}}

(* ------------------------------------------------------------ requests *)
Admit(r) == /\ s.st[r] = "new" /\ Room(s)
            /\ \E b \in s.pool : s' = Submit([s EXCEPT !.st[r] = "run", !.own[r] = b, !.pool = @ \ {b}], "write", r, b, 0)
StepOn(r) == /\ s.st[r] = "run" /\ Room(s)
             /\ s' = Submit(s, "use", r, s.own[r], 0)
\* an unordered writer, gated by the fence of the block; that it writes at once is its worst moment
StartLoad(r) == /\ s.st[r] = "new"
                /\ \E b \in s.pool : /\ Fenced(s, b) = {}
                                     /\ s' = [s EXCEPT !.st[r] = "run", !.own[r] = b, !.pool = @ \ {b}, !.data[b] = r,
                                                       !.bad = @ \cup IF Pending(s, b) # {} THEN {"load"} ELSE {}]
Gone(S, r) == [S EXCEPT !.st[r] = "new", !.own[r] = 0, !.pool = IF S.own[r] = 0 THEN @ ELSE @ \cup {S.own[r]}]
Finish(r) == s.st[r] = "run" /\ s' = Gone(s, r)
\* whatever is in its way ends by itself: a row in use is freed by CopyOut, CopyIn or Exec
Abort(r) == /\ s.st[r] \in {"saving", "saved", "restoring"}
            /\ LET S1 == Gone(s, r)
               IN s' = [S1 EXCEPT !.row = [i \in Rows |->
                    IF s.row[i].r # r THEN @[i]
                    ELSE IF s.row[i].use = "out" THEN (IF OrphansEnd THEN [@[i] EXCEPT !.r = 0] ELSE [@[i] EXCEPT !.r = 0, !.b = -1])
                    ELSE IF s.row[i].use = "in" /\ Cancel /\ ~Scattering(s, i)
                         THEN (IF s.row[i].got THEN FreeRow ELSE [@[i] EXCEPT !.r = 0, !.b = 0])
                    ELSE @[i]]]

(* ---------------------------------------------------------- save *)
EvictPlain(r) == /\ s.st[r] = "run"
                 /\ FreeRows(s) = {} \/ Cardinality(Kept(s)) >= Cap \/ ~Room(s)
                 /\ s' = Gone(s, r)
EvictSave(r) ==
  /\ s.st[r] = "run" /\ Room(s)
  /\ (~FullDrops \/ Cardinality(Kept(s)) < Cap)
  /\ \E i \in FreeRows(s) :
       LET S1 == Submit(s, "gather", r, s.own[r], i)
           S2 == [S1 EXCEPT !.st[r] = "saving", !.row[i] = [use |-> "out", r |-> r, b |-> s.own[r], got |-> FALSE]]
       IN s' = IF FreeAtOnce THEN [S2 EXCEPT !.own[r] = 0, !.pool = @ \cup {s.own[r]}] ELSE S2
CopyOut(i) ==
  /\ s.row[i].use = "out" /\ s.row[i].b >= 0
  /\ CopyOutWaits => s.row[i].got
  /\ LET r == s.row[i].r
         S1 == [s EXCEPT !.row[i] = FreeRow]
     IN s' = IF r = 0 THEN S1
             ELSE [S1 EXCEPT !.host[r] = s.rdata[i], !.st[r] = "saved",
                             !.own[r] = 0, !.pool = IF s.own[r] = 0 THEN @ ELSE @ \cup {s.own[r]}]

(* ---------------------------------------------------------- restore *)
Restore(r) == /\ s.st[r] = "saved"
              /\ \E b \in s.pool, i \in FreeRows(s) :
                   s' = [s EXCEPT !.st[r] = "restoring", !.own[r] = b, !.pool = @ \ {b},
                                  !.row[i] = [use |-> "in", r |-> r, b |-> b, got |-> FALSE]]
\* no row, or it would have to wait: compute again, as after a plain eviction
Forget(r) == Fallback /\ s.st[r] = "saved" /\ s' = Gone(s, r)
CopyIn(i) == /\ s.row[i].use = "in" /\ ~s.row[i].got
             /\ s' = IF s.row[i].r = 0 THEN [s EXCEPT !.row[i] = FreeRow, !.rdata[i] = 0]
                     ELSE [s EXCEPT !.row[i].got = TRUE, !.rdata[i] = s.host[s.row[i].r]]
Scatter(i) ==
  /\ s.row[i].use = "in" /\ s.row[i].r # 0 /\ ~Scattering(s, i) /\ Room(s)
  /\ ScatterWaits => s.row[i].got
  /\ LET r == s.row[i].r
         S1 == Submit(s, "scatter", r, s.row[i].b, i)
         S2 == IF s.st[r] = "restoring" /\ s.own[r] = s.row[i].b THEN [S1 EXCEPT !.st[r] = "run"] ELSE S1
     IN s' = IF RowUntilScattered THEN S2 ELSE [S2 EXCEPT !.row[i] = FreeRow]
\* a mutant's step: before the scatter
ReadEarly(r) == /\ ~ReadBehindScatter /\ s.st[r] = "restoring" /\ Room(s)
                /\ s' = Submit(s, "use", r, s.own[r], 0)

(* ---------------------------------------------------------- the device *)
Exec ==
  /\ s.q # <<>>
  /\ LET o == Head(s.q)
         S1 == [s EXCEPT !.q = Tail(@)]
     IN s' = CASE o.op = "write"   -> [S1 EXCEPT !.data[o.b] = o.r]
               [] o.op = "use"     -> [S1 EXCEPT !.bad = @ \cup IF s.data[o.b] # o.r THEN {"read"} ELSE {}]
               [] o.op = "gather"  -> [S1 EXCEPT !.rdata[o.i] = s.data[o.b],
                                                 !.row[o.i] = IF ~RowUntilCopied /\ @.use = "out" THEN FreeRow
                                                              ELSE IF @.use = "out" THEN [@ EXCEPT !.got = TRUE] ELSE @,
                                                 !.late = IF RowUntilCopied THEN @ ELSE @ \cup {<<o.r, o.i>>}]
               [] o.op = "scatter" -> [S1 EXCEPT !.data[o.b] = s.rdata[o.i],
                                                 !.row[o.i] = IF RowUntilScattered THEN FreeRow ELSE @]
\* the mutant that frees a row before its copy: the copy still comes
LateCopy == \E p \in s.late :
  s' = [s EXCEPT !.late = @ \ {p}, !.host[p[1]] = s.rdata[p[2]], !.st[p[1]] = IF @ = "saving" THEN "saved" ELSE @]

Init ==
  s = [pool |-> {b \in Blks : TRUE}, own |-> [r \in Reqs |-> 0], st |-> [r \in Reqs |-> "new"], q |-> <<>>,
       row |-> [i \in Rows |-> FreeRow], rdata |-> [i \in Rows |-> 0], host |-> [r \in Reqs |-> 0],
       data |-> [b \in Blks |-> 0], late |-> {}, bad |-> {}]
Next == \/ Exec \/ LateCopy
        \/ \E r \in Reqs : \/ Admit(r) \/ StepOn(r) \/ StartLoad(r) \/ Finish(r) \/ Abort(r)
                           \/ EvictPlain(r) \/ EvictSave(r) \/ Restore(r) \/ Forget(r) \/ ReadEarly(r)
        \/ \E i \in Rows : CopyOut(i) \/ CopyIn(i) \/ Scatter(i)
Spec == Init /\ [][Next]_vars

(* ------------------------------------------------------- statements *)
(* the store holds what it says: no block was reused before its save had read it *)
SaveSafe == \A r \in Reqs : s.st[r] = "saved" => s.host[r] = r
(* no step reads a restored block before the restore is done, and nothing else writes it *)
RestoreSafe == "read" \notin s.bad
(* no unordered writer writes a block that work in flight still reads or writes *)
InFlightSafe == "load" \notin s.bad
(* an eviction gives its blocks at once, whatever the store does: liveness does not depend on it *)
EvictFrees == \A r \in Reqs : s.st[r] \in {"new", "saving", "saved"} => s.own[r] = 0
(* a saved request at the head of the line is never held up by the store *)
HeadOfLine == \A r \in Reqs : s.st[r] = "saved" /\ s.pool # {} => Fallback \/ FreeRows(s) # {}
(* the store is bounded *)
Bounded == Cardinality(Kept(s)) <= Cap
(* every block has one place *)
OneOwner == \A b \in Blks : (b \in s.pool) # (\E r \in Reqs : s.own[r] = b)
(* all finished and nothing in flight: every block is in the pool, and a row in use is one whose copy ends it *)
NoLeak == (\A r \in Reqs : s.st[r] = "new") /\ s.q = <<>>
          => s.pool = Blks /\ \A i \in Rows : s.row[i].use = "out" => s.row[i].b # -1
=============================================================================
