"""Limits of our own class that are listed (docs/limits.md): found again by every hunt, they are no news."""

from __future__ import annotations

from stallproof.hunt.finding import Finding

#: classes these limits are about
OURS = ("stallproof", "stallproof.vllm.Scheduler", "stallproof.vllm.AsyncScheduler")


def limit(f: Finding) -> str:
    """The listed limit that ``f`` shows; empty if it shows none, or is not about our class."""
    if f.scheduler not in OURS:
        return ""
    return ""  # none at present
