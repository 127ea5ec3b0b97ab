--------------------------- MODULE EngineContract ---------------------------
(***************************************************************************)
(* What is assumed of an engine and its connectors. The guarantee: an       *)
(* engine that keeps these clauses, with the rules of Sched.tla, keeps the  *)
(* promise. Each clause names the monitor that checks it on every recorded  *)
(* trace (a rule of the trace checker); "Monitor: none" is assumed and      *)
(* unchecked, with the reason. The model engine of Blocks.tla keeps every   *)
(* clause (configurations contract-kept), so they do not contradict each other. *)
(***************************************************************************)
EXTENDS Blocks

Owned(S) == UNION {S.own[r] : r \in Reqs}
Held(S) == Owned(S) \cup UNION {S.quar[r] \cup S.read[r] : r \in Reqs} \cup Deferred(S)

(* Monitor: StepOrder. Steps are processed in dispatch order, each of them once. *)
StepsInOrder ==
  [][\/ s'.infl = s.infl
     \/ s.infl # <<>> /\ s'.infl = Tail(s.infl)
     \/ Len(s'.infl) = Len(s.infl) + 1 /\ SubSeq(s'.infl, 1, Len(s.infl)) = s.infl]_vars

(* Monitor: StepOrder. At most D steps are in flight. *)
Depth == Len(s.infl) <= D

(* Monitor: StepOrder. A call that touches blocks dispatches a step, with or without tokens. *)
TouchingCallsAreSteps == [][(s.on /\ ~s'.on) => ((s.touch # {}) <=> (Len(s'.infl) > Len(s.infl)))]_vars

(* Monitor: StepOrder. Steps are device done in dispatch order: the late work of a processed step *)
(* has ended when the next one is processed.                                                     *)
DeviceInOrder ==
  [][\/ s'.tail \in {s.tail, {}}
     \/ s.infl # <<>> /\ s'.tail = Head(s.infl).touch]_vars

(* Monitor: Conservation, OneOwner. Fresh blocks come from the pool, never more than there are. *)
FreshFromPool == [][\A r \in Reqs : s'.own[r] \ s.own[r] \subseteq s.pool \cup Owned(s)]_vars

(* Monitor: NoDoubleFree. Only what is held comes back to the pool. *)
FreeOnlyHeld == [][s'.pool \ s.pool \subseteq Held(s)]_vars

(* Monitor: RefCount. A shared block stays out of the pool while it has another holder. *)
LastUseFrees == [][\A b \in s'.pool : \A r \in Reqs : b \notin s'.own[r]]_vars

(* Monitor: InFlightSafe. A step touches only blocks that a request of it owns at that moment. *)
TouchOnlyOwned == [][s'.touch \ s.touch \subseteq Owned(s')]_vars

(* Monitor: XferSafe. A load writes only blocks newly allocated for it, never prefix hits. *)
LoadsOnlyNewBlocks == [][\A r \in Reqs : s.blks[r] = {} => s'.blks[r] \subseteq s.pool]_vars

(* Monitor: XferSafe. A transfer begins after the connector was told, and ends with one report. *)
OneReport ==
  [][\A r \in Reqs :
       \/ s'.xf[r] = s.xf[r]
       \/ s.xf[r] = "none" /\ s'.xf[r] \in {"gated", "writing"}
       \/ s.xf[r] = "gated" /\ s'.xf[r] \in {"writing", "none"}
       \/ s.xf[r] = "writing" /\ s'.xf[r] = "none"]_vars

(* Monitor: BoundedWait. A late report of a lost load only releases its quarantine. *)
LateReportsOnlyRelease ==
  [][\A r \in Reqs : (s.lost[r] # {} /\ s'.lost[r] # s.lost[r])
       => (s'.st = s.st /\ s'.own = s.own /\ s'.xf = s.xf)]_vars

(* Monitor: StoreSafe. An unordered reader is known: it is pinned, delays the free, or is ended *)
(* (flushed) ahead of the reuse, in the call that reuses the block.                            *)
ReadersListed == [][\A r \in Reqs :
  s.read[r] # s'.read[r] => (s'.read[r] = {} \/ (s.read[r] = {} /\ s'.read[r] \subseteq s.own[r]))]_vars

(* Monitor: Queues. A request is in one state; only a running request is in a step. *)
OnlyRunningRun == [][\A r \in s'.names \ s.names : s'.st[r] = "run"]_vars

(* Clauses that block identities cannot express.                                                *)
(* Monitor: Tokens. A step yields tokens only to requests it names, as many as were asked.      *)
(* Monitor: Limits. Steps keep max_num_batched_tokens and max_num_seqs.                         *)
(* Monitor: Requests. An id is not used twice at the same time.                                 *)
(* Monitor: PrefixValid. A hit shares blocks whose content is valid (filled since the reset).   *)
(* Monitor: none. Dummy batches touch the null block only: a trace records real steps; the      *)
(*   block sanitizer sees such a write on the device.                                           *)
(* Monitor: none. Side streams join before their step ends: not visible from the host; the      *)
(*   block sanitizer checks tags at step begin and end.                                         *)
(* Monitor: none. Every writer of a block (forward, draft model, zeroing, copy-on-write, poison,*)
(*   stamp, connector) is listed with its order to the device stream: read from the source of   *)
(*   each supported release; see the scope table.                                               *)
=============================================================================
