"""A TLC counterexample as a trace with a mark at its end, so that it is drawn like every other one."""

from __future__ import annotations

from stallproof.check import story
from stallproof.check.config import Config
from stallproof.check.convert import Converter
from stallproof.check.convert_blocks import BlocksConverter
from stallproof.check.equality import to_state
from stallproof.errors import BadInput
from stallproof.report.tracepage import Mark
from stallproof.trace import schema as s
from stallproof_model.state import at

#: modules whose states name blocks
BLOCK_MODULES = ("Blocks", "EngineContract")


def of_gap(cfg: Config, timeout: float = 300) -> tuple[list[s.Record], list[Mark]]:
    """TLC's counterexample of the gap ``cfg``, and the mark that names what it refutes.

    Raises BadInput for a gap of a module that is about neither calls nor numbered blocks.
    """
    if not cfg.has_twin and cfg.module not in BLOCK_MODULES:
        raise BadInput(
            f"{cfg.name} is a gap of {cfg.module}, whose counterexamples cannot be drawn",
            remedy=f"stallproof explain {cfg.name} tells it in words",
        )
    r = story.refute(cfg, timeout)
    if not cfg.has_twin:
        named = [(t.action, t.values["s"]) for t in r.trace]
        recs = BlocksConverter(cfg.constants, named, cfg.name).records()
        return recs, [Mark(cfg.refutes, len(recs), cfg.cause, cfg.name, [], [])]
    walk = [(t.action, to_state(t.values["s"])) for t in r.trace]
    recs = Converter(cfg.c, walk, "tlc", run=cfg.name, loop_to=r.loop_to).records()
    last = walk[-1][1]
    detail = [cfg.cause] if cfg.cause else []
    if r.loop_to:
        detail.append(f"from state {r.loop_to} on it repeats for ever")
    detail += story.waits_for(cfg.c, last)
    stuck = [story.who(q) for q in range(1, cfg.c.N + 1) if at(last.st, q) not in ("finished", "new")]
    return recs, [Mark(cfg.refutes, len(recs), story.MEANING.get(cfg.refutes, ""), cfg.name, detail, stuck)]
