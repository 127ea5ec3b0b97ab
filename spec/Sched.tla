------------------------------- MODULE Sched -------------------------------
(***************************************************************************)
(* An LLM-serving scheduler as counts of blocks. One scheduling call is one *)
(* atomic action, computed by recursive operators; a block holds one token. *)
(* This file is the authority: the Python twin, the proofs and the          *)
(* scheduler class mirror the operators below by name. What must hold is in *)
(* Properties.tla. Every rule and every known bug is a switch (CONSTANT).   *)
(*                                                                         *)
(* Requests are 1..N. s.ord is the scheduling order: under PRIORITY the     *)
(* numbers themselves (1 first), under FCFS the order of real arrival.      *)
(* Fences and gates are counted RELATIVE to the last processed step (1 =    *)
(* the oldest step in flight), so the state space of an open system is      *)
(* finite.                                                                  *)
(*                                                                         *)
(* TLC passes arguments of recursive operators lazily and evaluates them    *)
(* again and again in fairness conditions, hence the strict binding         *)
(* CHOOSE z \in {F_(y) : y \in {arg}} : TRUE.                               *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
  N, B, D,         \* requests; blocks in the pool; steps that may be in flight
  Budget,          \* tokens per scheduling call
  ChunkCap,        \* most tokens of one request per call
  Prompt, Total,   \* per request: prompt tokens; tokens at which it finishes
  Ext,             \* per request: tokens its connector can load (0: none)
  Look,            \* look-ahead blocks of a scheduled request (drafts)
  LookCounted,     \* full fit and reservations count them
  Align,           \* a chunk that is not the last one is a multiple of this
  (* ---- block safety ---- *)
  FenceMode,       \* "None" | "DeferFrees" | "DeferFreesGuarded" | "GateLoads"
  StaleOutput,     \* token of a request preempted in flight: "delivered" | "dropped"
  SpareInFlight,   \* never preempt a victim whose token would be dropped: wait for it
  (* ---- order ---- *)
  Fcfs,            \* order = real arrival (TRUE) or the request's number (FALSE)
  Scan,            \* waiting scan: "queue" | "holders" (holders first)
  Requeue,         \* a preempted request re-enters at the "front" | in "order" | at the "back"
  EvictPlace,      \* an evicted holder goes to the "front" | has its place kept: "keep"
  RunOrder,        \* running list: "append" | "order"
  Refusal,         \* a refused candidate: "break" | "continue" | "closes" (non-holders behind it)
  LoadCounts,      \* a refused load start is a refusal
  (* ---- eviction ---- *)
  Lateral,         \* parked holders as victims: "none" | "least" | "commit"
  LatYounger,      \* only victims behind the target in scheduling order
  VictimPick,      \* which victim first: the "least" progressed | the "youngest"
  LatCap,          \* "least": most evictions per call
  EvictTo,         \* state of an evicted holder: "waiting" | "stuck" (nobody polls it again)
  MayPreempt,      \* running requests may be preempted
  Pin,             \* "least": retry the target (TRUE) or look at the queue head again
  RunEvict,        \* rule E: a refused running request tries commit before it preempts
  (* ---- room ---- *)
  FullFit,         \* admit a prefill only if all its known tokens fit
  Reservation,     \* a load start leaves room for everything admitted (0.32)
  RuleR,           \* a load start leaves room for running prefills
  FeasibleRule,    \* a request that can never fit finishes: "no" | "admission" | "computing" (decoding too)
                   \* | "always" (a load that can never fit is given up, too)
  KeptBack,        \* blocks kept free beside a load that starts (for a step that drafts)
  MaxSeqs,         \* most running requests
  CountParked,     \* parked holders count towards MaxSeqs
  CountIdle,       \* idle sessions count towards MaxSeqs
  (* ---- adapters ---- *)
  Adapter,         \* per request: its adapter (0: none)
  MaxLoras,        \* most adapters at once
  AdapterCount,    \* taken are those of who is scheduled in this "step" | of all that are "running"
  AdapterBound,    \* how often one that waits for an adapter is overtaken (-1: without bound)
  AdapterWatch,    \* who waits is looked for when admissions "begin" | "always", and not forgotten in between
  (* ---- patience ---- *)
  P,               \* processed steps a refused running request waits before it preempts
  CloseOnWait,     \* such a call admits nobody
  (* ---- waiting for others ---- *)
  K,               \* "not yet" answers of the connector per request
  NotYetForever,   \* "not yet" has no bound
  DeferralDeadline, \* its deadline: "no" | "anew" (a load that is refused ends it) | "kept" until a load starts
  NotYetCloses,    \* "not yet" closes non-holders behind it
  Promotion,       \* completed loads are promoted when the "scan" reaches them | in all "calls" that
                   \* are not paused | "always"
  Reload,          \* a preempted request may load again
  Fails,           \* failed loads per request
  FailWakes,       \* a failure report wakes the request
  Lost,            \* requests whose load may never answer
  Deadlines,       \* a load that does not answer expires: its blocks are quarantined
  ReapNeedsWork,   \* expiry is looked at only while something runs
  PollIdle,        \* completions are polled although no request is unfinished
  AbortSilent,     \* a connector does not report the transfer of an aborted request
  Grammar,         \* requests that wait for a grammar first
  GrammarFails,    \* a grammar that fails: "no" | "wakes" (finishes) | "lost" | "never" ready
  Sessions,        \* requests that idle after one token, holding blocks, until input comes
  InputEarly,      \* input for a session that still runs queues it a second time
  SessionEvict,    \* idle sessions as victims: "never" | "younger" | "any"
  TalkOn,          \* sessions without a last turn: each begins where the last one did, so no length ends them
  TurnsYield,      \* the next turn of one that passed an older request before: "no" | lets it ask first, "once"
                   \* | has not come ("kept") until somebody else is the oldest that waits
  Pauses,          \* how often the engine may be paused
  (* ---- environment ---- *)
  Eos,             \* any token may be the last one
  Aborts,          \* a request may be aborted at any time
  Late,            \* requests that arrive later
  Recycle          \* requests that arrive again and again once finished (open system)

VARIABLE s
vars == <<s>>

Reqs == 1..N

(* ------------------------------------------------------------- helpers *)
Range(q) == {q[i] : i \in 1..Len(q)}
Min(a, b) == IF a < b THEN a ELSE b
Max(a, b) == IF a > b THEN a ELSE b
Pos(q, r) == CHOOSE i \in 1..Len(q) : q[i] = r
RemoveQ(q, r) == SelectSeq(q, LAMBDA x : x # r)
RECURSIVE SumF(_, _)
SumF(f, R) == IF R = {} THEN 0
              ELSE LET x == CHOOSE y \in R : TRUE IN f[x] + SumF(f, R \ {x})
RECURSIVE SumDfq(_)
SumDfq(q) == IF q = <<>> THEN 0 ELSE Head(q)[2] + SumDfq(Tail(q))

Before(S, a, b) == Pos(S.ord, a) < Pos(S.ord, b)
InsOrd(S, q, r) ==
  LET i == Cardinality({j \in 1..Len(q) : Before(S, q[j], r)})
  IN SubSeq(q, 1, i) \o <<r>> \o SubSeq(q, i + 1, Len(q))

(* ------------------------------------------------- requests and blocks *)
Fenced(S, r) == \E i \in 1..Len(S.infl) : r \in S.infl[i].all
StaleOut(S, r) == \E i \in 1..Len(S.infl) : r \in S.infl[i].out
Placeholders(S, r) == Cardinality({i \in 1..Len(S.infl) : r \in S.infl[i].out})
Quarantined(S) == SumF(S.quar, Reqs)
Capacity(S) == B - Quarantined(S)
Limit(S, r) == IF r \in Sessions /\ ~S.inp[r] THEN Prompt[r] + 1 ELSE Total[r]
Fits(S, n) == FeasibleRule = "no" \/ n + Look <= Capacity(S)

\* r gives its blocks up; a step in flight that names r may still touch them
Release(S, r) ==
  LET defer == FenceMode \in {"DeferFrees", "DeferFreesGuarded"} /\ Fenced(S, r)
      infl  == [i \in 1..Len(S.infl) |->
                  [S.infl[i] EXCEPT !.rel = @ \/ (~defer /\ r \in S.infl[i].all)]]
  IN IF S.own[r] = 0 THEN S
     ELSE IF defer
     THEN [S EXCEPT !.dfq = Append(@, <<Len(S.infl), S.own[r]>>), !.own[r] = 0]
     ELSE [S EXCEPT !.free = @ + S.own[r], !.own[r] = 0, !.infl = infl]

DropStale(S, r) ==
  IF StaleOutput = "delivered" THEN S
  ELSE [S EXCEPT !.infl = [i \in 1..Len(@) |-> [@[i] EXCEPT !.out = @ \ {r}]]]

Preempt(S, r) ==
  LET S1 == DropStale(Release(S, r), r)
  IN [S1 EXCEPT !.st[r] = "preempted", !.comp[r] = 0, !.run = RemoveQ(@, r),
                !.wq = CASE Requeue = "front" -> <<r>> \o @
                         [] Requeue = "order" -> InsOrd(S1, @, r)
                         [] Requeue = "back"  -> Append(@, r)]

Evict(S, v) ==
  LET S1 == Release(S, v)
  IN [S1 EXCEPT !.st[v] = IF @ = "idle" THEN "idle" ELSE EvictTo, !.comp[v] = 0,
                !.wq = IF EvictPlace = "front" THEN <<v>> \o RemoveQ(@, v) ELSE @]

Finish(S, r) ==
  LET S1 == Release(S, r)
  IN [S1 EXCEPT !.st[r] = "finished", !.comp[r] = 0, !.gate[r] = 0, !.due[r] = "no",
                !.turns = @ \ {r}, !.passed = [q \in Reqs |-> IF r \in {q, @[q]} THEN 0 ELSE @[q]],
                !.run = RemoveQ(@, r), !.wq = RemoveQ(@, r)]

\* r computes what it would load: its connector is asked no more
GiveUp(S, r) == [S EXCEPT !.noload[r] = TRUE, !.due[r] = "no"]

(* -------------------------------------------------- parked holders as victims *)
Victims(S, r) ==
  {q \in Range(S.wq) \ {r} :
     /\ S.own[q] > 0
     /\ \/ S.st[q] \in {"received", "held"} /\ (LatYounger => Before(S, r, q))
        \/ S.st[q] = "idle" /\ \/ SessionEvict = "any"
                               \/ SessionEvict = "younger" /\ Before(S, r, q)}
Gain(S, q) == IF FenceMode \in {"DeferFrees", "DeferFreesGuarded"} /\ Fenced(S, q) THEN 0 ELSE S.own[q]
\* commit: parked holders that give something; for a load start only sessions that idle (they do not compete)
CommitVictims(S, r, isLoad) ==
  {q \in Victims(S, r) : Gain(S, q) > 0 /\ (isLoad => S.st[q] = "idle" /\ SessionEvict = "any")}
RECURSIVE SumGain(_, _)
SumGain(S, R) == IF R = {} THEN 0
                 ELSE LET x == CHOOSE y \in R : TRUE IN Gain(S, x) + SumGain(S, R \ {x})
\* idle sessions first: they are in nobody's way; the youngest among equals
Rank(S, q) == IF S.st[q] = "idle" THEN -1 ELSE IF VictimPick = "least" THEN S.comp[q] ELSE 0
Worse(S, a, b) == \/ Rank(S, a) < Rank(S, b)
                  \/ Rank(S, a) = Rank(S, b) /\ (a = b \/ Before(S, b, a))
PickVictim(S, E) == CHOOSE a \in E : \A b \in E : Worse(S, a, b)
\* evicting is sure to help: what the victims give up covers the need
Sure(S, r, isLoad, need) == /\ Lateral = "commit"
                            /\ S.free + SumGain(S, CommitVictims(S, r, isLoad)) >= need
RECURSIVE CommitEvict(_, _, _, _), CommitEvict_(_, _, _, _)
CommitEvict(XX, r, isLoad, need) == CHOOSE z \in {CommitEvict_(y, r, isLoad, need) : y \in {XX}} : TRUE
CommitEvict_(X, r, isLoad, need) ==
  IF need <= X.S.free THEN X
  ELSE LET v == PickVictim(X.S, CommitVictims(X.S, r, isLoad))
       IN CommitEvict([X EXCEPT !.S = Evict(X.S, v), !.ev = @ \cup {<<v, r>>}], r, isLoad, need)

(* ------------------------------------------------- one scheduling call *)
\* X: the call so far. S state; all/out the step being built; budget; pre = {<<victim, target, gain>>};
\* hd: the first that waits for an adapter; yld: sessions whose turn lets older requests ask first; ev = {<<victim, target>>}; ref refused; cls refused so that the door closes; giv non-holders given blocks; def deferred; asked; ld loads started
X0(S) == [S |-> [S EXCEPT !.turns = {}], yld |-> S.turns, all |-> {}, out |-> {}, budget |-> Budget, pre |-> {}, ev |-> {}, ref |-> {}, cls |-> {},
          giv |-> {}, def |-> {}, asked |-> {}, ld |-> {}, lat |-> 0, pin |-> 0, hd |-> 0,
          wait |-> FALSE, patient |-> FALSE]

Grab(S, r, n) ==
  LET need == Max(S.comp[r] + n + Look - S.own[r], 0)
  IN [S EXCEPT !.own[r] = @ + need, !.free = @ - need, !.comp[r] = @ + n]
TakeStep(X, r, n, full) ==
  [X EXCEPT !.all = @ \cup {r}, !.out = IF full THEN @ \cup {r} ELSE @, !.budget = @ - n]

Refuse(X, r) == [X EXCEPT !.ref = @ \cup {r}, !.cls = @ \cup {r}]

Chunk(n0, budget) == LET n == Min(Min(n0, budget), ChunkCap)
                     IN IF n < n0 THEN (n \div Align) * Align ELSE n

\* a step in flight may still finish a request, so waiting may free blocks
CanFree(S) == \E i \in 1..Len(S.infl) : S.infl[i].out # {}

RECURSIVE RunLoop(_, _), RunLoop_(_, _)
RunLoop(XX, i) == CHOOSE z \in {RunLoop_(y, i) : y \in {XX}} : TRUE
RunLoop_(X, i) ==
  LET S == X.S IN
  IF i > Len(S.run) \/ X.budget = 0 THEN X ELSE
  LET r    == S.run[i]
      tgt  == S.tok[r] + Placeholders(S, r)
      n0   == tgt - S.comp[r]
      n    == Chunk(n0, X.budget)
      need == S.comp[r] + n + Look - S.own[r]
      v    == S.run[Len(S.run)]
  IN IF tgt >= Limit(S, r) \/ n <= 0 \/ (FeasibleRule # "admission" /\ ~Fits(S, tgt)) THEN RunLoop(X, i + 1)
     ELSE IF need <= S.free
     THEN RunLoop([TakeStep(X, r, n, n = n0) EXCEPT !.S = Grab(S, r, n)], i + 1)
     ELSE IF RunEvict /\ Sure(S, r, FALSE, need)
     THEN RunLoop(CommitEvict(X, r, FALSE, need), i)
     ELSE IF \/ FenceMode = "DeferFreesGuarded" /\ Fenced(S, v)
             \/ SpareInFlight /\ StaleOut(S, v)
     THEN [Refuse(X, r) EXCEPT !.wait = TRUE]
     ELSE IF X.pre = {} /\ S.pat < P /\ CanFree(S)
     THEN [Refuse(X, r) EXCEPT !.wait = TRUE, !.patient = TRUE]
     ELSE IF ~MayPreempt THEN [Refuse(X, r) EXCEPT !.wait = TRUE]
     ELSE LET S1 == Preempt(S, v)
              X1 == [X EXCEPT !.S = S1, !.pre = @ \cup {<<v, r, S1.free - S.free>>}]
          IN IF v = r THEN Refuse(X1, r) ELSE RunLoop(X1, i)

LookNeed == IF LookCounted THEN Look ELSE 0
Remaining(S, r) == Max(S.tok[r] + LookNeed - S.own[r], 0)
RECURSIVE SumRemaining(_, _)
SumRemaining(S, R) == IF R = {} THEN 0
                      ELSE LET x == CHOOSE y \in R : TRUE
                           IN Remaining(S, x) + SumRemaining(S, R \ {x})
RunReserved(S) == SumRemaining(S, {q \in Range(S.run) : S.comp[q] < S.tok[q]})
AllReserved(S, r) == RunReserved(S) + SumRemaining(S,
                       {q \in Range(S.wq) \ {r} : S.st[q] \in {"loading", "received", "held"}})

Promote(S, r) ==
  IF S.st[r] # "received" THEN S
  ELSE [S EXCEPT !.st[r] = "held", !.comp[r] = Min(@, S.tok[r] - 1)]
RECURSIVE PromoteAll(_, _)
PromoteAll(S, R) == IF R = {} THEN S
                    ELSE LET r == CHOOSE x \in R : TRUE IN PromoteAll(Promote(S, r), R \ {r})

NextCand(X, seen) ==
  LET c == SelectSeq(X.S.wq, LAMBDA x : x \notin seen)
      h == SelectSeq(c, LAMBDA x : X.S.own[x] > 0 /\ x \notin X.yld)
  IN IF X.pin # 0 THEN X.pin
     ELSE IF c = <<>> THEN 0
     ELSE IF Scan = "holders" /\ h # <<>> THEN Head(h) ELSE Head(c)

CanLoad(S, r) == S.own[r] = 0 /\ Ext[r] > 0 /\ ~S.noload[r]
\* the answer of the connector: a "not yet" after its deadline says that there is nothing to load
Asked(S, r, NY) == IF r \in NY /\ S.due[r] = "over" THEN GiveUp(S, r) ELSE S
\* all that others hold would be given to a load of r: if it is refused, it fits nowhere
Alone(S, r) == S.free + SumGain(S, CommitVictims(S, r, TRUE)) = Capacity(S)
Seats(S, r) == Len(S.run) + (IF CountParked
                 THEN Cardinality({q \in Range(S.wq) \ {r} : S.st[q] \in {"loading", "received", "held"}})
                 ELSE 0)
            + (IF CountIdle THEN Cardinality({q \in Range(S.wq) : S.st[q] = "idle"}) ELSE 0)
\* the door is closed to a non-holder by somebody ahead of it
Shut(X, r) ==
  /\ X.S.own[r] = 0 \/ r \in X.yld
  /\ \/ Refusal = "closes" /\ \E q \in X.cls : Before(X.S, q, r)
     \/ NotYetCloses /\ \E q \in X.def : Before(X.S, q, r)

\* adapters that are taken; r needs another one, and none is left; who is first to wait so
Taken(X) == {Adapter[q] : q \in IF AdapterCount = "running" THEN Range(X.S.run) ELSE X.all} \ {0}
NoSlot(X, r) == Adapter[r] \notin Taken(X) \cup {0} /\ Cardinality(Taken(X)) >= MaxLoras
WaitsForSlot(X) ==
  LET W == {r \in Range(X.S.wq) : X.S.st[r] \in {"waiting", "preempted", "held"} /\ NoSlot(X, r)}
      h == IF W = {} THEN 0 ELSE CHOOSE r \in W : \A q \in W : ~Before(X.S, q, r)
      kept == h = X.S.oh \/ (h = 0 /\ AdapterWatch = "always")
  IN [X EXCEPT !.hd = h, !.S.oh = IF kept THEN @ ELSE h, !.S.ot = IF kept THEN @ ELSE 0]
\* the last adapter may have been taken by r, which was just admitted
SlotTaken(X, r) == IF AdapterWatch = "always" /\ Adapter[r] # 0
                   THEN CHOOSE z \in {WaitsForSlot(y) : y \in {X}} : TRUE ELSE X
Overtakes(X, r) == X.hd # 0 /\ Adapter[r] # 0 /\ X.S.own[r] = 0 /\ Before(X.S, X.hd, r)
CountOvertaken(X, r) == IF Overtakes(X, r) THEN [X EXCEPT !.S.ot = Min(@ + 1, Max(AdapterBound, 0))] ELSE X
\* no adapter is left for r, or it has to let one go first that waits for its own
AdapterShut(X, r) == NoSlot(X, r) \/ (AdapterBound >= 0 /\ X.S.ot >= AdapterBound /\ Overtakes(X, r))

StartLoad(X, r) ==
  [X EXCEPT !.S = [@ EXCEPT !.own[r] = Ext[r], !.free = @ - Ext[r], !.comp[r] = Ext[r],
                            !.st[r] = "loading"],
            !.ld = @ \cup {r}, !.giv = @ \cup {r}, !.pin = 0]
Admit(X, r, n, full) ==
  [TakeStep(X, r, n, full) EXCEPT
     !.S = [Grab(X.S, r, n) EXCEPT
              !.st[r] = "running", !.noload[r] = @ \/ ~Reload, !.wq = RemoveQ(@, r),
              !.run = IF RunOrder = "order" THEN InsOrd(X.S, @, r) ELSE Append(@, r)],
     !.giv = IF X.S.own[r] = 0 THEN @ \cup {r} ELSE @, !.pin = 0]

RECURSIVE AdmLoop(_, _, _), AdmLoop_(_, _, _)
AdmLoop(XX, seen, NY) == CHOOSE z \in {AdmLoop_(y, seen, NY) : y \in {XX}} : TRUE
AdmLoop_(X, seen, NY) ==
  LET r == NextCand(X, seen) IN
  IF r = 0 \/ X.budget = 0 THEN X ELSE
  IF Seats(X.S, r) >= MaxSeqs THEN X ELSE
  IF X.S.st[r] \in {"loading", "idle", "blocked", "stuck"} THEN AdmLoop(X, seen \cup {r}, NY) ELSE
  IF StaleOut(X.S, r)
  THEN AdmLoop([X EXCEPT !.def = IF X.S.own[r] = 0 THEN @ \cup {r} ELSE @], seen \cup {r}, NY) ELSE
  IF Shut(X, r) \/ AdapterShut(X, r) THEN AdmLoop(X, seen \cup {r}, NY) ELSE
  LET S == Asked(Promote(X.S, r), r, NY)
      isLoad == CanLoad(S, r)
      n0   == S.tok[r] - S.comp[r]
      n    == Chunk(n0, X.budget)
      take == Max(S.comp[r] + n + Look - S.own[r], 0)
      need == IF isLoad
              THEN KeptBack + IF Reservation THEN Max(Ext[r], S.tok[r] + LookNeed) + AllReserved(S, r)
                              ELSE IF RuleR THEN Ext[r] + RunReserved(S) ELSE Ext[r]
              ELSE IF FullFit THEN Max(Remaining(S, r), take) ELSE take
      XS   == [X EXCEPT !.S = S]
      E    == IF Lateral = "least" /\ X.lat < LatCap THEN Victims(S, r) ELSE {}
  IN IF isLoad /\ r \in NY
     THEN AdmLoop([XS EXCEPT !.asked = @ \cup {r}, !.def = @ \cup {r}], seen \cup {r}, NY)
     ELSE IF ~isLoad /\ n = 0
     THEN AdmLoop(XS, seen \cup {r}, NY)
     ELSE IF need <= S.free \/ Sure(S, r, isLoad, need)
     THEN LET X1 == CommitEvict(XS, r, isLoad, need)
              X2 == CountOvertaken(X1, r)
          IN AdmLoop(IF isLoad THEN StartLoad(X2, r) ELSE SlotTaken(Admit(X2, r, n, n = n0), r), seen \cup {r}, NY)
     ELSE IF E # {}
     THEN LET v == PickVictim(S, E)
          IN AdmLoop([XS EXCEPT !.S = Evict(S, v), !.lat = @ + 1, !.ev = @ \cup {<<v, r>>},
                                !.pin = IF Pin THEN r ELSE 0], seen, NY)
     ELSE LET XR == IF isLoad /\ FeasibleRule = "always" /\ Alone(S, r) THEN [XS EXCEPT !.S = GiveUp(S, r)] ELSE XS
              X1 == IF isLoad /\ ~LoadCounts THEN [XR EXCEPT !.ref = @ \cup {r}, !.pin = 0]
                    ELSE [Refuse(XR, r) EXCEPT !.pin = 0]
          IN IF Refusal = "break" THEN X1 ELSE AdmLoop(X1, seen \cup {r}, NY)

\* what can never fit finishes at once, with an error (or as `length` once it has output)
RECURSIVE RejectInfeasible(_, _)
RejectInfeasible(S, R) ==
  IF R = {} THEN S
  ELSE LET r  == CHOOSE x \in R : \A y \in R : x <= y
           no == /\ S.st[r] \in {"waiting", "preempted", "received", "held", "running"}
                 /\ ~Fits(S, S.tok[r])
                 /\ FeasibleRule = "admission" => S.tok[r] = Prompt[r]
       IN RejectInfeasible(IF no THEN Finish(S, r) ELSE S, R \ {r})

SchedX(S, NY) ==
  CHOOSE z \in {LET S1 == IF Promotion = "always" \/ (Promotion = "calls" /\ ~S.paused)
                          THEN PromoteAll(S, Reqs) ELSE S
                    S2 == RejectInfeasible(S1, Reqs)
                IN IF S.paused THEN X0(S1)
                   ELSE CHOOSE y \in {IF X1.pre # {} \/ (X1.wait /\ CloseOnWait) THEN X1
                                      ELSE AdmLoop(WaitsForSlot(X1), {}, NY) : X1 \in {RunLoop(X0(S2), 1)}} : TRUE
               : u \in {0}} : TRUE
\* when "not yet" has to end: from the first one on, to the start of a load
Due(X, r) ==
  IF r \in X.asked /\ DeferralDeadline # "no" THEN IF X.S.due[r] = "no" THEN "runs" ELSE X.S.due[r]
  ELSE IF r \in X.ld \/ (DeferralDeadline = "anew" /\ r \in X.ref) THEN "no" ELSE X.S.due[r]
\* the call is over: dispatch the step, gate the loads, count the answers
Dispatch(X) ==
  LET infl == IF X.all = {} THEN X.S.infl
              ELSE Append(X.S.infl, [all |-> X.all, out |-> X.out, rel |-> FALSE])
      g    == IF FenceMode = "GateLoads" THEN Len(infl) ELSE 0
  IN [X.S EXCEPT !.infl = infl,
                 !.gate = [r \in Reqs |-> IF r \in X.ld THEN g ELSE @[r]],
                 !.ny = [r \in Reqs |-> IF r \in X.asked /\ ~NotYetForever THEN @[r] - 1 ELSE @[r]],
                 !.due = [r \in Reqs |-> Due(X, r)],
                 !.bad = @ \/ (X.ld # {} /\ \E i \in 1..Len(infl) : i > g /\ infl[i].rel),
                 !.pat = IF X.patient THEN @ ELSE 0, !.pw = X.patient]
SchedR(S, NY) == CHOOSE z \in {Dispatch(X) : X \in {SchedX(S, NY)}} : TRUE
CanDefer(S) == {r \in Range(S.wq) : S.ny[r] > 0 /\ CanLoad(S, r)}

(* ----------------------------------------- processing of the oldest step *)
RECURSIVE Drain(_)
Drain(S) == IF S.dfq # <<>> /\ Head(S.dfq)[1] <= 0
            THEN Drain([S EXCEPT !.free = @ + Head(S.dfq)[2], !.dfq = Tail(@)])
            ELSE S
Idle(S, r) == [S EXCEPT !.st[r] = "idle", !.run = RemoveQ(@, r), !.wq = InsOrd(S, RemoveQ(@, r), r)]
TurnOver(S, r) == [S EXCEPT !.tok[r] = Prompt[r] + 1, !.comp[r] = Min(@, Prompt[r]), !.inp[r] = FALSE]
RECURSIVE Deliver(_, _, _)
Deliver(S, R, E) ==
  IF R = {} THEN S
  ELSE LET r  == CHOOSE x \in R : \A y \in R : x <= y
           S2 == [S EXCEPT !.tok[r] = @ + 1]
           S1 == IF S.st[r] \in {"finished", "zombie"} THEN S
                 ELSE IF r \in E \/ (S2.tok[r] >= Total[r] /\ r \notin TalkOn) THEN Finish(S2, r)
                 ELSE IF S2.tok[r] >= Total[r] THEN TurnOver(Idle(S2, r), r)
                 ELSE IF S2.tok[r] >= Limit(S2, r) THEN Idle(S2, r)
                 ELSE S2
       IN Deliver(S1, R \ {r}, E)
ProcR(S, E) ==
  LET S1 == [S EXCEPT !.infl = Tail(@),
                      !.dfq = [i \in 1..Len(@) |-> <<@[i][1] - 1, @[i][2]>>],
                      !.gate = [r \in Reqs |-> Max(@[r] - 1, 0)],
                      !.pat = IF S.pw THEN Min(P, @ + 1) ELSE @]
  IN Deliver(Drain(S1), Head(S.infl).out, E)

(* -------------------------------------------------------------- actions *)
Init ==
  LET q == SelectSeq([r \in Reqs |-> r], LAMBDA r : r \notin Late)
      l == SelectSeq([r \in Reqs |-> r], LAMBDA r : r \in Late)
  IN s = [st |-> [r \in Reqs |-> IF r \in Late THEN "new" ELSE IF r \in Grammar THEN "blocked" ELSE "waiting"],
          own |-> [r \in Reqs |-> 0], comp |-> [r \in Reqs |-> 0], tok |-> [r \in Reqs |-> Prompt[r]],
          noload |-> [r \in Reqs |-> FALSE], inp |-> [r \in Reqs |-> FALSE],
          gate |-> [r \in Reqs |-> 0], quar |-> [r \in Reqs |-> 0],
          ny |-> [r \in Reqs |-> IF Ext[r] > 0 THEN K ELSE 0],
          fl |-> [r \in Reqs |-> IF Ext[r] > 0 THEN Fails ELSE 0],
          due |-> [r \in Reqs |-> "no"],
          run |-> <<>>, wq |-> q, ord |-> IF Fcfs THEN q \o l ELSE [r \in Reqs |-> r],
          oh |-> 0, ot |-> 0, turns |-> {}, passed |-> [r \in Reqs |-> 0], infl |-> <<>>, dfq |-> <<>>, free |-> B, pat |-> 0, pw |-> FALSE, paused |-> FALSE, pz |-> Pauses, bad |-> FALSE]

Schedule == /\ Len(s.infl) < D
            /\ \E NY \in SUBSET CanDefer(s) : s' = SchedR(s, NY)
Process == /\ s.infl # <<>>
           /\ \E E \in IF Eos THEN SUBSET Head(s.infl).out ELSE {{}} : s' = ProcR(s, E)
Started(r) == s.st[r] = "loading" /\ s.gate[r] = 0
XferDone(r) == Started(r) /\ s' = [s EXCEPT !.st[r] = "received"]
XferFail(r) == /\ Started(r) /\ s.fl[r] > 0
               /\ s' = [Release(s, r) EXCEPT !.st[r] = IF FailWakes THEN "waiting" ELSE "stuck",
                                             !.comp[r] = 0, !.fl[r] = @ - 1]
Expire(r) == /\ Deadlines /\ (Started(r) \/ s.st[r] = "zombie") /\ (ReapNeedsWork => s.run # <<>>)
             /\ s' = [s EXCEPT !.st[r] = IF @ = "zombie" THEN "finished" ELSE "waiting", !.comp[r] = 0,
                               !.own[r] = 0, !.quar[r] = s.own[r], !.noload[r] = TRUE]
DeferralOver(r) == s.due[r] = "runs" /\ s' = [s EXCEPT !.due[r] = "over"]
LateDone(r) == /\ s.quar[r] > 0
               /\ s' = [s EXCEPT !.free = @ + s.quar[r], !.quar[r] = 0]
XferFreed(r) == /\ s.st[r] = "zombie" /\ ~AbortSilent
                /\ PollIdle \/ \E q \in Reqs : s.st[q] \notin {"new", "finished", "zombie"}
                /\ s' = Finish(s, r)
Abort(r) == /\ Aborts /\ s.st[r] \notin {"new", "finished", "zombie"}
            /\ s' = IF Started(r) THEN [s EXCEPT !.st[r] = "zombie", !.wq = RemoveQ(@, r)]
                    ELSE Finish(s, r)
Arrive(r) ==
  /\ \/ s.st[r] = "new"
     \/ r \in Recycle /\ s.st[r] = "finished" /\ ~Fenced(s, r) /\ s.quar[r] = 0
  /\ LET S1 == [s EXCEPT !.ord = IF Fcfs THEN Append(RemoveQ(@, r), r) ELSE @]
     IN s' = [S1 EXCEPT !.st[r] = IF r \in Grammar THEN "blocked" ELSE "waiting",
                        !.tok[r] = Prompt[r], !.noload[r] = FALSE, !.inp[r] = FALSE,
                        !.ny[r] = IF Ext[r] > 0 THEN K ELSE 0, !.fl[r] = IF Ext[r] > 0 THEN Fails ELSE 0,
                        !.wq = IF Requeue = "order" THEN InsOrd(S1, @, r) ELSE Append(@, r)]
GrammarReady(r) == /\ s.st[r] = "blocked"
                   /\ \/ s' = [s EXCEPT !.st[r] = "waiting"]
                      \/ GrammarFails = "wakes" /\ s' = Finish(s, r)
                      \/ GrammarFails = "lost" /\ s' = [s EXCEPT !.st[r] = "stuck"]
\* the oldest ahead of r that waits and holds nothing: r, which holds blocks, passes it
Older(S, r) ==
  LET W == {q \in Range(S.wq) : S.st[q] \in {"waiting", "preempted"} /\ Before(S, q, r)}
  IN IF W = {} THEN 0 ELSE CHOOSE q \in W : \A x \in W : ~Before(S, x, q)
\* each turn of a session is an arrival, but one that holds blocks goes on ahead of older requests
Input(r) == \/ /\ s.st[r] = "idle"
               /\ \E S1 \in {[s EXCEPT !.ord = IF Fcfs THEN Append(RemoveQ(@, r), r) ELSE @]} :
                  \E older \in {IF TurnsYield # "no" /\ s.own[r] > 0 THEN Older(S1, r) ELSE 0} :
                  LET again == older # 0 /\ s.passed[r] = older
                  IN /\ ~(again /\ TurnsYield = "kept")
                     /\ s' = [S1 EXCEPT !.st[r] = IF s.own[r] > 0 THEN "held" ELSE "waiting",
                                        !.wq = InsOrd(S1, RemoveQ(@, r), r),
                                        !.turns = IF again THEN @ \cup {r} ELSE @,
                                        !.passed[r] = IF older # 0 THEN older ELSE @,
                                        !.inp[r] = TRUE, !.noload[r] = TRUE]
            \/ /\ InputEarly /\ r \in Sessions /\ ~s.inp[r] /\ s.st[r] = "running"
               /\ s' = [s EXCEPT !.wq = Append(@, r), !.inp[r] = TRUE]
Pause == s.pz > 0 /\ ~s.paused /\ s' = [s EXCEPT !.paused = TRUE, !.pz = @ - 1]
Resume == s.paused /\ s' = [s EXCEPT !.paused = FALSE]

Next == \/ Schedule \/ Process \/ Pause \/ Resume
        \/ \E r \in Reqs : \/ XferDone(r) \/ XferFail(r) \/ Expire(r) \/ LateDone(r) \/ XferFreed(r)
                           \/ Abort(r) \/ Arrive(r) \/ GrammarReady(r) \/ Input(r) \/ DeferralOver(r)
Spec == Init /\ [][Next]_vars

(* What the environment owes: calls are made, steps in flight are processed, a load answers or expires, a deadline *)
(* passes, a grammar is compiled, a pause ends, who is announced arrives. No connector owes an answer but "not yet" *)
(* where that has no bound: there a call is owed only if it changes something whatever connectors answer.        *)
Acts == Len(s.infl) < D /\ \A NY \in SUBSET CanDefer(s) : SchedR(s, NY) # s
Answer(r) == XferDone(r) \/ XferFail(r) \/ Expire(r)
Fairness ==
  /\ \A r \in {q \in {0} : ~NotYetForever} : WF_vars(Schedule)
  /\ \A r \in {q \in {0} : NotYetForever} : []<>~Acts \/ []<><<Schedule>>_vars
  /\ WF_vars(Process)
  /\ \A r \in {q \in Reqs : Ext[q] > 0 /\ q \notin Lost} : WF_vars(Answer(r))
  /\ \A r \in {q \in Reqs : Ext[q] > 0 /\ q \notin Lost /\ Aborts} : WF_vars(XferFreed(r))
  /\ \A r \in {q \in Lost : Ext[q] > 0 /\ Deadlines} : WF_vars(Expire(r))
  /\ \A r \in {q \in Reqs : Ext[q] > 0 /\ DeferralDeadline # "no"} : WF_vars(DeferralOver(r))
  /\ \A r \in Late : WF_vars(Arrive(r))
  /\ \A r \in {q \in Grammar : GrammarFails # "never"} : WF_vars(GrammarReady(r))
  /\ \A r \in {q \in {0} : Pauses > 0} : WF_vars(Resume)
FairSpec == Spec /\ Fairness
=============================================================================
