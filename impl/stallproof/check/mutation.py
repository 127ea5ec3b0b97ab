"""Kill the model's mutants with the graph-equality configurations: ``python -m stallproof.check.mutation``.

A process of its own, because a mutant may never end and only a main thread can be interrupted. Every mutant
is tried in every run. ``killers.json`` of the model says which configuration to try first, which makes a run
short and decides nothing; ``--record`` forgets it, searches anew and writes it.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

from stallproof.check.config import load
from stallproof_model import explore, mutants


def run(record: bool = False) -> dict[str, Any]:
    """Kill rate over all mutants: which survive, which configuration killed how many.

    ``control``: the unmodified functions, taken through the same machinery, differ nowhere.
    """
    graphs = {c.name: explore.graph(c.c) for c in load() if c.kind == "equal"}
    every = mutants.mutants()
    known = mutants.equivalents()
    control = [name for name, g in graphs.items() if mutants.differs(mutants.unmodified(), g, seconds=60)]
    first = {} if record else mutants.killers()
    outcomes = mutants.kill([m for m in every if m.name not in known], graphs, first)
    if record:
        mutants.record(outcomes)
    names = {m.name for m in every}
    return {
        "mutants": len(every),
        "equivalent": len(known),
        "killed": sum(bool(o.by) for o in outcomes),
        "survived": [o.mutant.name for o in outcomes if not o.by],
        "stale": [name for name in known if name not in names],
        "control": control,
        "by": dict(Counter(o.by for o in outcomes if o.by).most_common()),
    }


if __name__ == "__main__":
    json.dump(run(record="--record" in sys.argv[1:]), sys.stdout, indent=1)
