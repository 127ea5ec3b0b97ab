"""Turns of streaming sessions: each is an arrival, but a session that holds blocks goes on before who waits.

It passes the oldest that waits with one turn. The next one has not come, as far as the engine can see, until
somebody else is the oldest: meanwhile the session is between turns, and gives its blocks up to anybody (spec:
``TurnsYield = kept``, ``Older``; finding N7).
"""

from __future__ import annotations

from collections import deque
from typing import Any

from stallproof.vllm.adapters import names_in
from stallproof.vllm.base import Engine


class TurnPart(Engine):
    """Part of the guard; see :class:`stallproof.vllm.guard.Guard`."""

    def _sp_set_up_turns(self: Any) -> None:
        #: session id -> the session, and inputs of its client that the engine has not been given yet
        self._sp_kept: dict[str, tuple[Any, deque[Any]]] = {}
        #: sessions between turns count towards the number of requests that may run (from 0.25)
        self._sp_idle_seats = "num_waiting_for_streaming_input" in names_in(type(self), "schedule")

    def get_num_unfinished_requests(self: Any) -> int:
        """A session whose input is here is unfinished: the engine's loop goes on, unless it is paused."""
        unfinished = int(super().get_num_unfinished_requests())
        if self._sp_ready and self._sp_kept and self._pause_state.name == "UNPAUSED":
            unfinished += len(self._sp_kept)
        return unfinished

    def _sp_older(self: Any) -> tuple[Any, ...] | None:
        """Key of the oldest that waits, can go on and holds nothing (spec: ``Older``)."""
        queues = (self.waiting, getattr(self, self._sp_holding_name))
        return min(
            (self._sp_key(r) for q in queues for r in q if not self._sp_blocked(r) and not self._sp_holds(r)),
            default=None,
        )

    def _sp_note_turns(self: Any, holding: Any) -> None:
        """Whom the sessions pass whose turn has begun since the last call."""
        turning = [
            r
            for r in holding
            if r.resumable and r.status.name == "WAITING" and getattr(r, "_sp_turning", False)
        ]
        older = self._sp_older() if turning else None
        for r in turning:
            r._sp_turning = False
            if older is not None and older < self._sp_key(r):
                r._sp_passed = older

    def _sp_yields(self: Any) -> bool:
        """Both rules: without OneOrder the oldest need not be served next."""
        return bool(self._sp_on("TurnsYield") and self._sp_on("OneOrder"))

    def _sp_must_keep(self: Any, session: Any) -> bool:
        """Its last turn passed the request that is the oldest still."""
        passed = getattr(session, "_sp_passed", None)
        if passed is None or not (self._sp_ready and self._sp_act and self._sp_arranging):
            return False
        try:
            if self._sp_idle_seats:  # it would wait in a seat that the older one needs
                seats = len(self.running) + self.num_waiting_for_streaming_input
                if seats >= getattr(self, self._sp_seats_name):
                    return False
            return bool(self._sp_yields() and self._sp_holds(session) and self._sp_older() == passed)
        except Exception as exc:
            self._sp_fault("turns", exc)
            return False

    def _sp_keep_input(self: Any, session: Any, request: Any) -> bool:
        """Whether a further input of ``session`` stays here for now; None among them ends the session."""
        from vllm.v1.request import StreamingUpdate

        rid = request.request_id
        kept = self._sp_kept.get(rid)
        if kept is not None and kept[0] is session:
            kept[1].append(StreamingUpdate.from_request(request))
            return True
        if session.status is not self._sp_between_turns or not request.resumable:
            return False
        if not self._sp_must_keep(session):
            return False
        self._sp_keep_back(session, [StreamingUpdate.from_request(request)])
        return True

    def _sp_keep_queued(self: Any, session: Any) -> None:
        """A turn has ended, and the next input is there already."""
        queued = session.streaming_queue
        if queued and queued[0] is not None and self._sp_must_keep(session):
            self._sp_keep_back(session, queued)
            queued.clear()

    def _sp_keep_back(self: Any, session: Any, inputs: Any) -> None:
        self._sp_fire("TurnsYield")
        self._sp_kept[session.request_id] = (session, deque(inputs))
        self._sp_silent.end(session.request_id)

    def _sp_begin_turns(self: Any) -> None:
        """Give the engine the inputs that were kept for who has been served meanwhile."""
        for rid, (session, inputs) in list(self._sp_kept.items()):
            live = self.requests.get(rid) is session and not session.is_finished()
            if live and self._sp_must_keep(session):
                continue
            del self._sp_kept[rid]
            if live:
                first = inputs.popleft()
                session.streaming_queue.extend(inputs)
                self._update_request_as_session(session, first)
