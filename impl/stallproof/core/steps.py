"""Steps in flight: dispatched, processed, device done. Numbers count scheduling calls from 1."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Steps:
    """Counters of one engine.

    ``lag``: how many further steps must be processed before a processed step is also *device done* (0 where
    the output event is the last work of a step; 1 where a drafter or a state copy runs after it).
    Every scheduling call dispatches a step, one without tokens too, because it can still touch blocks
    (zeroing, copies, transfers). Spec: variables ``disp`` and ``proc``.

    Where the device itself reports (``observe``), its mark is what *device done* means, whether it is earlier
    or later than the output; ``lag`` is then not used. ``early``: the mark may run ahead of the processed
    steps; False where it speaks for one device of several.
    """

    lag: int = 0
    early: bool = True
    dispatched: int = 0
    processed: int = 0
    working: int = 0  #: unprocessed steps with tokens; only these can end a request
    building: bool = False
    device: int = -1  #: newest step that the device reports done, -1: it does not report

    def begin(self) -> None:
        self.building = True

    def dispatch(self, tokens: int) -> None:
        """The call has returned a step with ``tokens`` tokens."""
        self.building = False
        self.dispatched += 1
        if tokens > 0:
            self.working += 1

    def abandon(self) -> None:
        """The call raised: no step was dispatched."""
        self.building = False

    def process(self, tokens: int) -> None:
        """The output of the oldest unprocessed step is being processed; unknown ones are ignored."""
        if self.processed < self.dispatched:
            self.processed += 1
        if tokens > 0 and self.working > 0:
            self.working -= 1

    @property
    def newest(self) -> int:
        """The newest step that work done now may belong to: the one being built, if any."""
        return self.dispatched + self.building

    @property
    def in_flight(self) -> int:
        return self.dispatched - self.processed

    def observe(self, mark: int) -> None:
        """The device reports every step up to ``mark`` done; negative: it reports no longer.

        A mark never falls, and no step that was not dispatched is done, whatever is reported.
        """
        self.device = max(self.device, min(mark, self.dispatched)) if mark >= 0 else -1

    @property
    def done(self) -> int:
        """The newest step that counts as device done."""
        by_output = self.processed - self.lag
        if self.device < 0:
            return by_output
        return self.device if self.early else min(self.device, by_output)

    @property
    def idle(self) -> bool:
        """Nothing is being built and everything dispatched is device done: no block can be touched."""
        return not self.building and self.passed(self.dispatched)

    def passed(self, fence: int) -> bool:
        """Whether step ``fence`` is device done."""
        return fence <= 0 or fence <= self.done
