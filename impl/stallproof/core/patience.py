"""Patience: wait for steps in flight before a preemption, at most P processed steps, only while it can help.

Spec: ``P``; a waiting refusal schedules nothing for the request and closes the call's admissions.

The spec's ``CanFree`` counts only steps that yield a token: a step of prompt chunks alone ends no
request, so waiting for it frees nothing. ``working`` may count more steps than that: every theorem of the
proofs holds for a wait for any step in flight, and the price is at most ``P`` processed steps of delay.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Patience:
    """One counter for the engine, because one refusal ends the scan of the running list.

    ``limit``: P. An episode begins with a refusal and ends with the first call that refuses no running
    request or preempts; it waits for at most ``limit`` processed steps in all, so no refusal can renew it.
    """

    limit: int = 1
    since: int | None = None

    def wait(self, processed: int, working: int) -> bool:
        """Whether the refused request waits now, instead of preempting.

        ``processed``: newest processed step. ``working``: unprocessed steps that can still end a request; an
        upper bound will do, such as those with tokens.
        """
        if self.limit <= 0 or working <= 0:
            return False
        if self.since is None:
            self.since = processed
        return processed - self.since < self.limit

    def settle(self) -> None:
        """The episode is over: nobody was refused, or a victim was taken."""
        self.since = None
