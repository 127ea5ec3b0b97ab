"""The content of rows and records follows their requests; each rule of the module is needed."""

from __future__ import annotations

import z3

from stallproof_proofs.logic import Action, Bool, State, forall, ite
from stallproof_proofs.result import Assumption
from stallproof_proofs.statements import save_restore as stated
from stallproof_proofs.systems import save_restore as m
from stallproof_proofs.theory import Inductive, Twin, substituted


def auxiliary(s: State) -> dict[str, Bool]:
    i, j, r = m.i, m.j, m.r
    kept = z3.And(m.pending(s, i), z3.Not(s.orphan(i)))
    coming = z3.Or(s.use(i) == m.COMING, s.use(i) == m.HERE)
    other = z3.And(m.pending(s, j), z3.Not(s.orphan(j)), s.of(i) == s.of(j))
    return {
        "codes": forall(i, z3.And(s.use(i) >= m.FREE, s.use(i) <= m.SCATTERING)),
        "gathered": forall(i, z3.Implies(s.use(i) == m.GATHERED, s.rdata(i) == s.of(i))),
        "here": forall(
            i, z3.Implies(z3.Or(s.use(i) == m.HERE, s.use(i) == m.SCATTERING), s.rdata(i) == s.of(i))
        ),
        "record": forall(
            i, z3.Implies(z3.And(s.use(i) == m.COMING, z3.Not(s.orphan(i))), s.host(s.of(i)) == s.of(i))
        ),
        "who": forall(i, z3.Implies(kept, s.st(s.of(i)) == ite(coming, m.RESTORING, m.SAVING))),
        "one row": forall(i, j, z3.Implies(z3.And(kept, other), i == j)),
        "no orphan here": forall(i, z3.Implies(s.use(i) == m.HERE, z3.Not(s.orphan(i)))),
        "states": forall(r, z3.And(s.st(r) >= m.NEW, s.st(r) <= m.RESTORING)),
    }


def _kept_when_aborted(s: State, a: Action) -> Action:
    return substituted(a, use=s.use, orphan=s.orphan)


theory = Inductive(
    name="save_restore",
    title="Save and restore",
    theorem="A store behind staging rows keeps contents apart: a saved request's record has its content, and "
    "every restore writes the content of its own request, for any number of requests and rows, with "
    "aborts at any moment, if a row is copied only when its gather is done, a scatter is submitted only "
    "when its row has come, a row is reused only when it is free, and an aborted restore is cancelled. "
    "Off in the scheduler class.",
    system=m.system,
    statements=stated.statements,
    auxiliary=auxiliary,
    twins=[
        Twin("CopyOut", "gathered", "SaveSafe", note="CopyOutWaits"),
        Twin("EvictSave", "row_free", "NoLeak.row", note="RowUntilCopied: a row in use is taken"),
        Twin("Restore", "row_free", "NoLeak.row", note="RowUntilCopied: a row in use is taken"),
        Twin("CopyIn", "coming", "here", note="RowUntilScattered: a copy lands in a row not yet scattered"),
        Twin("Restore", "saved", "record", note="restored though nothing was saved"),
        Twin("Scatter", "here", "here", note="ScatterWaits"),
        Twin("Abort", "cancel", "who", _kept_when_aborted, note="Cancel, OrphansEnd"),
    ],
    assumptions=(
        Assumption(
            "save_restore_blocks",
            "glue",
            "For blocks, a gather is Run of the holder in the call that takes its blocks, and a scatter is "
            "Run of the request on fresh ones; so InFlightSafe of theory blocks.gate covers both, and a "
            "gather reads what its request wrote.",
            ("save_restore",),
            "spec/SaveRestore.tla (gap save-gate-blind), tests/kernels/test_save.py",
        ),
    ),
)
