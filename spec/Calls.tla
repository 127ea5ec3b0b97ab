------------------------------- MODULE Calls -------------------------------
(* The statements about calls once more, for large runs: in every state     *)
(* each call that is possible there is computed once, and all statements    *)
(* about calls are judged on it. TLC evaluates the temporal forms of        *)
(* Properties.tla on every transition, which takes several times as long.   *)
(* A call is possible whenever fewer than D steps are in flight, so Calls   *)
(* holds in all reachable states iff NoZeroPre, EvictCoupled, NoInversion,  *)
(* BoundedWait and NoWedge hold.                                            *)
EXTENDS Properties

CallOK(S, X) ==
  /\ ~ZeroPre(X)
  /\ Coupled(X)
  /\ InOrder(X)
  /\ \A r \in Reqs : S.st[r] = "received" => X.S.st[r] # "received"
  /\ \/ Pending
     \/ \A r \in Reqs : S.st[r] \in {"new", "finished", "idle"}
     \/ Dispatch(X) # S

(* INV *)
Calls == Len(s.infl) < D =>
           \A NY \in SUBSET CanDefer(s) : \A X \in {SchedX(s, NY)} : CallOK(s, X)
=============================================================================
