"""Guard faults: an error inside a hook must not stop the engine, nor fill its log."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Faults:
    """Counts by hook. ``note`` says whether this is the first of its hook, the one to log."""

    count: dict[str, int] = field(default_factory=dict)

    def note(self, hook: str) -> bool:
        first = hook not in self.count
        self.count[hook] = self.count.get(hook, 0) + 1
        return first
