"""The list of theories, in reading order."""

from __future__ import annotations

from stallproof_proofs.result import Assumption
from stallproof_proofs.theory import Theory


def theories() -> list[Theory]:
    """Every theory. Importing their modules loads Z3."""
    from stallproof_proofs.proofs import (
        adapters,
        blocks,
        commit,
        dropped,
        loops,
        order,
        refcount,
        save_restore,
        shared,
        sharing,
        starvation,
        starvation_dropped,
        starvation_shared,
        sums,
    )

    return [
        blocks.gate,
        blocks.defer,
        refcount.theory,
        sums.theory,
        loops.theory,
        commit.theory,
        order.theory,
        dropped.theory,
        starvation.theory,
        starvation_dropped.theory,
        sharing.theory,
        shared.theory,
        starvation_shared.theory,
        adapters.theory,
        save_restore.theory,
    ]


def assumptions() -> list[Assumption]:
    """Every assumption once, with the theories that need it."""
    out: dict[str, Assumption] = {}
    for th in theories():
        for a in th.assumptions:
            known = out.get(a.name)
            if known and known.text != a.text:
                raise ValueError(f"assumption {a.name} is stated twice, differently")
            out[a.name] = a
    return list(out.values())
