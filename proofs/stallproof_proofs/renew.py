"""Look for what each proof uses and what would break it; write both down while going on.

What was found is written every few seconds and at the end, a break by Ctrl-C included. So a later run goes on
where an earlier one stopped: it looks only at obligations without a complete record, or with one that has
grown old. ``again`` looks at all; a list beside the hints remembers how far such a sweep has come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stallproof_proofs import hints as store
from stallproof_proofs import runner
from stallproof_proofs.hints import Hint
from stallproof_proofs.theory import Obligation

#: seconds between two writes
EVERY = 5.0


@dataclass
class Tally:
    """What one run did: ``left``: not come to; ``failed``: not proved."""

    total: int = 0
    skipped: int = 0
    renewed: int = 0
    frames: int = 0
    undecided: int = 0
    failed: tuple[str, ...] = ()

    @property
    def left(self) -> int:
        return self.total - self.skipped - self.renewed - len(self.failed)


def swept() -> Path:
    """Names that the sweep under way has done."""
    return store.HINTS.with_suffix(".swept.tmp")


def complete(o: Obligation) -> bool:
    """Somebody has looked, and the hypotheses that were found still prove it."""
    hint = store.hints().get(o.name)
    if hint is None or hint.fails_if is None:
        return False
    hyps, goal = o.condition()
    if not set(hint.uses) <= set(hyps):
        return False
    return runner.query(({n: hyps[n] for n in hint.uses}, goal), runner.TIMEOUT_MS // 4)[0] == "proved"


def look(o: Obligation) -> Hint | None:
    """What ``o`` uses and what breaks it; None if it is not proved."""
    status, _, used = runner.prove(o)
    if status != "proved":
        return None
    recorded = store.hints().get(o.name, Hint()).fails_if or ""
    return Hint(sorted(used), runner.breaks(o, used, recorded))


def renew(
    progress: Callable[[Tally, str], None] | None = None,
    only: Sequence[str] = (),
    again: bool = False,
    every: float = EVERY,
) -> Tally:
    """See the module. Raises what interrupts it, after everything found has been written."""
    obligations = [o for o in runner.select(only) if o.kind == "obligation"]
    path = swept()
    done = set(path.read_text(encoding="utf-8").splitlines()) if again and path.exists() else set()
    tally = Tally(total=len(obligations))
    found: dict[str, Hint] = {}
    written = time.monotonic()

    def write() -> None:
        store.save(found)
        if again:
            with path.open("a", encoding="utf-8") as f:
                f.writelines(f"{n}\n" for n in found)
        found.clear()

    try:
        for o in obligations:
            if o.name in done if again else complete(o):
                tally.skipped += 1
                continue
            hint = look(o)
            if hint is None:
                tally.failed += (o.name,)
            else:
                found[o.name] = hint
                tally.renewed += 1
                tally.frames += hint.fails_if == ""
                tally.undecided += hint.fails_if is None
            if progress:
                progress(tally, o.name)
            if time.monotonic() - written >= every:
                write()
                written = time.monotonic()
    finally:
        write()
    if not only:
        store.save({}, {o.name for o in obligations})
    path.unlink(missing_ok=True)
    return tally
