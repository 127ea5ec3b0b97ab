"""One scheduling order in the engine's own queues.

Before a call: requests that hold blocks are in the queue that is drained first, everybody else in the other,
each in scheduling order. So a refusal, at which the engine ends its scan, closes only requests that hold
nothing (and later holders, for that call). After a call: the running list is in order, so that the engine's
victim is the youngest.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import islice
from typing import Any

from stallproof.core import order
from stallproof.vllm.base import Engine


class QueuePart(Engine):
    """Part of the guard; see :class:`stallproof.vllm.guard.Guard`."""

    def _sp_set_up_queues(self: Any) -> None:
        self._sp_arrivals = 0
        self._sp_moved: list[Any] = []  #: preempted and evicted requests, to be put at their place
        self._sp_sessions: dict[str, Any] = {}  #: streaming sessions that hold blocks between turns
        self._sp_parted: list[Any] = []  #: sessions whose turn ended while they were preempted
        self._sp_session_comp: dict[str, int] = {}  #: evicted ones: tokens the engine counts as computed
        self._sp_unserved: list[Any] = []  #: an older, ready request that the last call had no tokens for
        self._sp_threshold: int | None = None  #: the engine's chunk cap, while ours is in its place
        self._sp_foreign = self._sp_adapter.foreign
        self._sp_holding_name = "kv_holding_waiting" if self._sp_adapter.facts.holding else "skipped_waiting"
        #: the attribute that says how many requests may run
        self._sp_seats_name = (
            "max_num_active_reqs" if hasattr(self, "max_num_active_reqs") else "max_num_running_reqs"
        )
        kinds = {type(self.waiting).__name__, type(getattr(self, self._sp_holding_name)).__name__}
        #: a queue class of somebody else's keeps its own order
        self._sp_arranging = kinds <= {"FCFSRequestQueue", "PriorityRequestQueue"}
        if not self._sp_arranging:
            self._sp_counts.fallbacks["a request queue with an order of its own"] += 1

    def _sp_arrival(self: Any, request: Any) -> int:
        """Place in order of arrival at this scheduler, from 1."""
        n: int | None = request.__dict__.get("_sp_arrival")
        if n is None:
            self._sp_arrivals += 1
            n = request._sp_arrival = self._sp_arrivals
        return n

    def _sp_key(self: Any, request: Any) -> tuple[Any, ...]:
        """Place in scheduling order, smaller first.

        Each turn of a streaming session is an arrival (the engine renews its arrival time, too); between
        turns it has no work that could be ahead of anybody's.
        """
        if request.status is self._sp_between_turns:
            return (math.inf, self._sp_arrival(request))
        if self._sp_priority:
            return (request.priority, request.arrival_time, self._sp_arrival(request))
        return (self._sp_arrival(request),)

    def _sp_queue_key(self: Any, request: Any) -> tuple[Any, ...]:
        """For finding a place in a queue: a session between turns is passed over, wherever it stands."""
        return (-math.inf,) if request.status is self._sp_between_turns else self._sp_key(request)

    def _sp_has_waiting(self: Any) -> bool:
        return bool(self.waiting or getattr(self, self._sp_holding_name))

    def _sp_holds(self: Any, request: Any) -> bool:
        """Whether a request that does not run owns blocks (spec: ``own[r] > 0``).

        A promoted load of a one-token prompt does, with nothing computed: that token is computed again.
        """
        if request.num_computed_tokens > 0 or request.status.name == "WAITING_FOR_REMOTE_KVS":
            return True
        return request in self._inflight_prefills and any(
            self.kv_cache_manager.get_blocks(request.request_id).blocks
        )

    def _sp_blocked(self: Any, request: Any) -> bool:
        """It waits for something outside and can take no block meanwhile: no need to move it."""
        status = request.status.name
        if status == "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR":
            return not self._sp_grammar_ready(request)
        return bool(status == "WAITING_FOR_STREAMING_REQ")

    def _sp_grammar_ready(self: Any, request: Any) -> bool:
        """Whether it is compiled. To 0.24 asking re-raises the compiler's error."""
        output = request.structured_output_request
        try:
            return output is not None and bool(output.grammar)
        except Exception:
            return False

    def _try_promote_blocked_waiting_request(self: Any, request: Any) -> bool:
        """Native to 0.30. A grammar that does not compile ends its request, not the engine (#45012)."""
        try:
            return bool(super()._try_promote_blocked_waiting_request(request))
        except Exception as exc:
            grammar = request.status.name == "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR"
            if not (self._sp_ready and grammar and self._sp_on("WaitDeadline")):
                raise
            self._sp_fire("WaitDeadline")
            self._sp_bad_grammars.append((request, f"its grammar does not compile: {exc}"))
            return False

    def _sp_arrange(self: Any) -> None:
        if not self._sp_moved and not getattr(self, self._sp_holding_name):
            return
        moved = self._sp_moved[:]
        self._sp_moved.clear()
        if not self._sp_arranging or not self._sp_on("OneOrder"):
            return
        try:
            self._sp_arrange_now(moved)
        except Exception as exc:
            self._sp_fault("order", exc)

    def _sp_arrange_now(self: Any, moved: list[Any]) -> None:
        holding, key = getattr(self, self._sp_holding_name), self._sp_key
        if self._sp_share is not None:
            self._sp_call_back(holding)
        self._sp_note_turns(holding)
        stray = [r for r in holding if not self._sp_holds(r) and not self._sp_blocked(r)]
        if stray:
            holding.remove_requests(stray)
            if holding:
                self._sp_fire("OneOrder")
        if not isinstance(holding, deque):  # heaps are in order by themselves
            for r in stray:
                self.waiting.add_request(r)
            return
        if not order.in_order(list(holding), key):
            self._sp_fire("OneOrder")
            ordered = sorted(holding, key=key)
            holding.clear()
            holding.extend(ordered)
        front = self._sp_ready_holders(holding) if self._sp_foreign and self._sp_adapter.facts.select else []
        self._sp_arrange_waiting(moved, stray)
        self.waiting.extendleft(reversed(front))

    def _sp_call_back(self: Any, holding: Any) -> None:
        """Holders that the engine skipped for their adapter and put among those that hold nothing."""
        there = set(map(id, holding))
        lost = [
            r
            for r in self._inflight_prefills
            if r.status.name in ("WAITING", "PREEMPTED") and id(r) not in there and self._sp_holds(r)
        ]
        lost = [r for r in lost if any(r is x for x in self.waiting)]
        if lost:
            self.waiting.remove_requests(lost)
            for r in lost:
                holding.add_request(r)

    def _sp_ready_holders(self: Any, holding: Any) -> list[Any]:
        """Holders that can go on, taken out of their queue in order, to be put in front of the other.

        A copied loop may know one queue only (vllm-ascend#10699).
        """
        front, waiting, done = [], self.waiting, self.finished_recving_kv_req_ids
        while waiting and self._sp_holds(waiting[0]):  # put there before an earlier call
            front.append(waiting.popleft())
        ready = [r for r in holding if r.status.name in ("WAITING", "PREEMPTED") or r.request_id in done]
        if ready:
            holding.remove_requests(ready)
        return sorted([*front, *ready], key=self._sp_key)

    def _sp_arrange_waiting(self: Any, moved: list[Any], stray: list[Any]) -> None:
        """Those that hold nothing: preempted and skipped requests go to their places."""
        waiting, key = self.waiting, self._sp_key
        back = {r.request_id: r for r in moved if r.request_id in self.requests and not self._sp_holds(r)}
        # the engine puts them in front, where sessions between turns may stand, too: nobody waits for those
        ready = (i for i, r in enumerate(waiting) if r.status is not self._sp_between_turns)
        head = list(islice(ready, len(back) + 2))
        displaced = []
        last = key(waiting[head.pop()]) if head else None
        for i in reversed(head):
            if key(waiting[i]) > last:
                displaced.append(waiting[i])
                del waiting[i]
            else:
                last = key(waiting[i])
        back_in = sorted([*stray, *displaced], key=key)
        if not back_in:
            return
        if not waiting or key(back_in[-1]) < self._sp_queue_key(waiting[0]):
            waiting.extendleft(reversed(back_in))
        else:
            self._sp_fire("OneOrder")
            order.insert_from_front(waiting, back_in, self._sp_queue_key)

    def _sp_order_running(self: Any) -> None:
        if not self._sp_settings.active("RunningOrder") or order.in_order(self.running, self._sp_key):
            return
        self._sp_fire("RunningOrder")
        if self._sp_act:
            self.running.sort(key=self._sp_key)

    # ------------------------------------------------------------ a share of the token budget

    def _sp_find_unserved(self: Any) -> None:
        """The first waiting request that is ready, if a prefill behind it in order runs (#53130)."""
        self._sp_unserved.clear()
        if not self._sp_settings.active("BudgetShare"):
            return
        done = self.finished_recving_kv_req_ids
        for queue in (getattr(self, self._sp_holding_name), self.waiting):
            for r in queue:
                status = r.status.name
                if status in ("WAITING", "PREEMPTED") or r.request_id in done:
                    key = self._sp_key(r)
                    if any(x.is_prefill_chunk and self._sp_key(x) > key for x in self.running):
                        self._sp_unserved.append(r)
                    return

    def _sp_share_budget(self: Any) -> None:
        """Cap the chunks of this call so that the unserved request gets up to half of the budget."""
        request = self._sp_unserved.pop()
        if request.request_id not in self.requests or request.is_finished():
            return
        prefills = sum(bool(x.is_prefill_chunk) for x in self.running)
        if not prefills or request.status is self._sp_running:
            return
        budget = self.max_num_scheduled_tokens
        need = min(request.num_tokens - request.num_computed_tokens, budget // 2)
        cap = max(1, (budget - need - (len(self.running) - prefills)) // prefills)
        now = self.scheduler_config.long_prefill_token_threshold
        if 0 < now <= cap:
            return
        self._sp_fire("BudgetShare")
        if self._sp_act:
            self._sp_threshold, self.scheduler_config.long_prefill_token_threshold = now, cap

    def _select_waiting_queue_for_scheduling(self: Any) -> Any:
        """Native to 0.30: which queue is scanned next. Holders first, under both policies."""
        if self._sp_hook_later and self._sp_in:
            self._sp_hook_later = False
            self._sp_hook_allocate()
        if self._sp_in and self._sp_arranging and self._sp_on("OneOrder"):
            return self.skipped_waiting or self.waiting or None
        return super()._select_waiting_queue_for_scheduling()

    # ------------------------------------------------------------ arrivals and sessions

    def _sp_unheard(self: Any, request: Any) -> bool:
        """A further turn for a session that has ended: its client does not know yet."""
        return any(o.request_id == request.request_id for _, o in self._sp_endings)

    def add_request(self: Any, request: Any) -> None:
        if self._sp_ready and self._sp_unheard(request):
            return
        if self._sp_ready and request.request_id not in self.requests:
            self._sp_arrival(request)
            super().add_request(request)
            if request.status.name == "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR":
                self._sp_grammars.begin(request.request_id, self._sp_now())
            self._sp_check_arrival(request)
            return
        session = self.requests.get(request.request_id) if self._sp_ready else None
        if session is not None and session.resumable:  # its place is that of its client's chunk
            self._sp_arrivals += 1
            session.__dict__.setdefault("_sp_turns", deque()).append(self._sp_arrivals)
            if self._sp_keep_input(session, request):
                return
        super().add_request(request)

    def _enqueue_waiting_request(self: Any, request: Any) -> None:
        """A session whose next turn came early goes to its place, not behind those that came meanwhile.

        To 0.30 one that holds blocks went behind those that hold none, too.
        """
        ours = self._sp_ready and self._sp_arranging and request.status.name == "WAITING"
        waiting = self.waiting
        if not ours or not request.resumable or not self._sp_on("OneOrder"):
            super()._enqueue_waiting_request(request)
        elif self._sp_holds(request):
            if waiting and self._sp_holding_name == "skipped_waiting":
                self._sp_fire("OneOrder")
            getattr(self, self._sp_holding_name).add_request(request)
        elif isinstance(waiting, deque) and waiting and self._sp_key(request) < self._sp_key(waiting[-1]):
            self._sp_fire("OneOrder")
            order.insert_from_front(waiting, [request], self._sp_queue_key)
        else:
            super()._enqueue_waiting_request(request)

    def _handle_stopped_request(self: Any, request: Any) -> bool:
        parted = self._sp_ready and self._sp_act and request.resumable
        if parted and (parted := all(r is not request for r in self.running)):
            # Preempted with this turn's last token in flight: nothing is computed any more, and the engine
            # would cut the session's tokens there. As for one that runs, all but the last count as computed.
            self._sp_session_comp[request.request_id] = request.num_tokens - 1
        if request.resumable:
            self._sp_keep_queued(request)
        finished: bool = super()._handle_stopped_request(request)
        if not finished and self._sp_ready:
            self._sp_sessions[request.request_id] = request
            if request.status is self._sp_between_turns and request.request_id not in self._sp_kept:
                self._sp_silent.begin(request.request_id, self._sp_now())
        if parted and finished:
            self._sp_session_comp.pop(request.request_id, None)
        elif parted:
            self._sp_parted.append(request)
        return finished

    def _sp_requeue_parted(self: Any) -> None:
        """A preempted session whose turn has ended goes back into a queue.

        The engine puts it there and then takes every stopped request that was not running out of all queues.
        """
        parted, self._sp_parted = self._sp_parted, []
        queues = (self.waiting, getattr(self, self._sp_holding_name))
        for request in parted:
            live = self.requests.get(request.request_id) is request and not request.is_finished()
            if live and not any(r is request for queue in queues for r in queue):
                self._sp_fire("OneOrder")
                self._enqueue_waiting_request(request)

    def _update_request_as_session(self: Any, session: Any, update: Any) -> None:
        """An evicted session: the engine cuts its tokens at the computed ones, so give that number back."""
        comp = None
        if self._sp_ready:
            comp = self._sp_session_comp.pop(session.request_id, None)
            session._sp_turning = session.num_computed_tokens > 0  # a turn without blocks passes nobody
            turns = session.__dict__.get("_sp_turns")
            if turns:
                session._sp_arrival = turns.popleft()
            else:  # given to the engine past ``add_request``
                self._sp_arrivals += 1
                session._sp_arrival = self._sp_arrivals
            self._sp_silent.end(session.request_id)
        queue = self._sp_queue_of(session) if self._sp_ready and self._sp_act else None
        if queue is not None:
            queue.remove_request(session)
        if comp is None:
            super()._update_request_as_session(session, update)
        else:
            session.num_computed_tokens = comp
            super()._update_request_as_session(session, update)
            session.num_computed_tokens = 0
        if isinstance(queue, deque):
            order.insert_from_front(queue, [session], self._sp_queue_key)
        elif queue is not None:
            queue.add_request(session)
        if self._sp_ready:
            self._sp_check_arrival(session)  # the longer sequence may never fit

    def _sp_queue_of(self: Any, session: Any) -> Any:
        """The queue that ``session`` is in, if a turn, which changes its place, has to move it there.

        A heap does not notice; a list holds it where it was when its blocks were taken. Holders in a list are
        put in order before each call.
        """
        waiting, holding = self.waiting, getattr(self, self._sp_holding_name)
        for queue in (waiting,) if isinstance(waiting, deque) else (waiting, holding):
            if self._sp_arranging and any(r is session for r in queue):
                return queue
        return None
