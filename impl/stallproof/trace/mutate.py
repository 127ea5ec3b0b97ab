"""How sensitive is the checker? Break a conforming trace in one place, field by field, and see who notices.

Every declared field of every record and event is altered in every way its type allows, events and records are
dropped, doubled and swapped; record numbers are renewed, so that it is the meaning of a record that gives the
mutant away, not its number. A mutant is *killed for the right reason* if the first violation carries a rule
that :func:`~.fields.rules_of` names for it; what is not compared is listed in ``fields.NOT_COMPARED``.
"""

from __future__ import annotations

import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from . import reader
from . import schema as s
from .checker import Checker, Options
from .fields import EVENTS, NOT_COMPARED, compared, rules_of

RECORDS = {"sched": s.Sched, "update": s.Update, "outside": s.Outside, "end": s.End}


class Mutant(NamedTuple):
    field: str  #: e.g. ``alloc.blocks`` or ``sched.free``; ``alloc`` for the whole event
    kind: str  #: how it was altered
    at: int  #: index of the record
    records: list[Any]


def _tag(x: Any) -> str:
    return str(type(x).__struct_config__.tag)


class _Facts:
    """What values occur in a trace, so that an altered value is a plausible one."""

    def __init__(self, records: Sequence[Any]) -> None:
        events = [e for rec in records for e in getattr(rec, "ev", ())]
        self.rids: list[str] = list(dict.fromkeys(e.r for e in events if type(e) is s.Add))
        self.rids += [q.r for q in records[0].state.requests]
        self.pool: int = records[0].config.pool
        self.plain: bool = records[0].config.plain  # tokens tell blocks
        self.drafts: bool = records[0].config.lookahead > 0  # tokens computed may be taken back
        #: requests whose tokens can be followed to their end
        lost = {e.r for e in events if type(e) is s.Preempt}
        done = {e.r for e in events if type(e) is s.Finish and e.out > 0 and e.reason != "abort"}
        self.whole = done - lost
        self.full = {e.r for e in events if type(e) is s.Finish and e.reason == "length"}


def _values(name: str, value: Any, f: _Facts, rng: random.Random) -> Iterator[tuple[str, Any]]:
    """Ways to alter one value."""
    if name in ("r", "target", "job", "who") and isinstance(value, str):
        others = [r for r in f.rids if r != value]
        if name in ("r", "target") and others:
            yield "another request", rng.choice(others)
        yield "unknown name", f"{value}?"
    elif isinstance(value, bool):
        yield "the other way", not value
    elif isinstance(value, int):
        if value >= 0:
            yield "plus 1", value + 1
        if value > 0:
            yield "minus 1", value - 1
    elif isinstance(value, float):
        yield "plus 1", value + 1.0
    elif isinstance(value, str):
        yield "another word", _other(value)
    elif isinstance(value, list) and (not value or isinstance(value[0], int)):
        if value:
            i = rng.randrange(len(value))
            yield "one less", value[:i] + value[i + 1 :]
            yield "one twice", [*value, value[i]]
            spare = [b for b in range(1, f.pool + 1) if b not in value]
            if spare:
                yield "another block", value[:i] + [rng.choice(spare)] + value[i + 1 :]
            yield "outside the pool", value[:i] + [f.pool + 1] + value[i + 1 :]
    elif isinstance(value, list) and isinstance(value[0], str):
        yield "one less", value[1:]
        yield "one twice", [*value, value[0]]
        if len(value) > 1:
            yield "swapped", [value[1], value[0], *value[2:]]
    elif isinstance(value, dict) and value:
        key = rng.choice(list(value))
        yield "one less", {k: v for k, v in value.items() if k != key}
        yield "plus 1", {**value, key: value[key] + 1}
        others = [r for r in f.rids if r not in value] if isinstance(key, str) else []
        if others:
            new = rng.choice(others)
            yield "another request", {(new if k == key else k): v for k, v in value.items()}


_WORDS = {
    "async": "sync", "sync": "async", "done": "failed", "flush": "failed", "recv": "sent", "sent": "recv",
    "none": "all", "all": "none", "new": "none", "session": "other", "grammar": "other",
    "load": "deferral", "deferral": "load",
}  # fmt: skip


def _other(word: str) -> str:
    return _WORDS.get(word, f"{word}x")


def _replace(x: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(x, **changes)


def sites(records: Sequence[Any]) -> dict[str, list[tuple[int, int]]]:
    """Where each kind of event and record occurs: tag -> (record, event or -1)."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for i, rec in enumerate(records):
        if type(rec) in RECORDS.values():
            found[_tag(rec)].append((i, -1))
        for j, e in enumerate(getattr(rec, "ev", ())):
            found[_tag(e)].append((i, j))
    return found


def mutants(records: Sequence[Any], per_site: int = 8, seed: int = 0) -> Iterator[Mutant]:
    """Mutants of one trace (header first): at most ``per_site`` places for each field."""
    rng = random.Random(seed)
    f = _Facts(records)
    for tag, places in sorted(sites(records).items()):
        picked = places if len(places) <= per_site else sorted(rng.sample(places, per_site))
        for i, j in picked:
            rec = records[i]
            x = rec if j < 0 else rec.ev[j]
            for name in x.__struct_fields__:
                if name in ("n", "ev") or _unseen(tag, name, x, f):
                    continue
                value = getattr(x, name)
                if value is None or value == {} or value == []:
                    continue
                for kind, new in _values(name, value, f, rng):
                    if tag == "load" and name == "blocks" and kind == "one less" and not f.plain:
                        continue  # behind a window, only the connector knows what a load fills
                    changed = _replace(x, **{name: new})
                    if j >= 0:
                        changed = _replace(rec, ev=[*rec.ev[:j], changed, *rec.ev[j + 1 :]])
                    yield Mutant(f"{tag}.{name}", kind, i, _with(records, i, changed))
            yield from _whole(records, tag, i, j)


def _unseen(tag: str, name: str, x: Any, f: _Facts) -> bool:
    """Values that this trace ends too early to show (a request aborted before its first token)."""
    if tag == "add":
        return (name == "prompt" and (x.r not in f.whole or f.drafts)) or (
            name == "max_tokens" and x.r not in f.full
        )
    shown = f.plain or x.r in f.whole if tag == "admit" else True
    return tag == "admit" and name == "comp" and (x.comp < 0 or f.drafts or not shown)


def _with(records: Sequence[Any], i: int, *new: Any) -> list[Any]:
    return [*records[:i], *new, *records[i + 1 :]]


def _whole(records: Sequence[Any], tag: str, i: int, j: int) -> Iterator[Mutant]:
    rec = records[i]
    if j < 0:
        if tag in ("sched", "update", "outside"):
            yield Mutant(tag, "dropped", i, _with(records, i))
            yield Mutant(tag, "doubled", i, _with(records, i, rec, rec))
            k = i + 1
            if k < len(records) and type(records[k]) is not s.End and type(records[k]) is not s.Outside:
                yield Mutant(
                    tag, "swapped with the next", i, [*records[:i], records[k], rec, *records[k + 1 :]]
                )
        return
    ev = rec.ev
    yield Mutant(tag, "dropped", i, _with(records, i, _replace(rec, ev=ev[:j] + ev[j + 1 :])))
    yield Mutant(tag, "doubled", i, _with(records, i, _replace(rec, ev=[*ev[: j + 1], *ev[j:]])))


def judge(records: Iterable[Any], layers: tuple[str, ...]) -> str:
    """The first rule violated, ``bad input``, or an empty string if the trace conforms.

    What the schema itself refuses counts as ``bad input``; record numbers and times are renewed.
    """
    checker = Checker(Options(layers=layers))
    fresh = []
    for n, rec in enumerate(records):
        if n and rec.n != n:
            rec = _replace(rec, n=n)
        fresh.append(rec)
    checker.run([reader.Batch("mutant", 1, fresh, 0)])
    verdict = checker.verdict()
    return verdict.violations[0].rule if verdict.violations else ""


class Row(NamedTuple):
    field: str
    kind: str
    mutants: int
    killed: int
    right: int
    rules: dict[str, int]


def sensitivity(
    traces: dict[str, Sequence[Any]], layers: tuple[str, ...] = ("ledger", "policy"), per_site: int = 8
) -> tuple[list[Row], list[str]]:
    """The kill table over all ``traces``, and the names of controls that do not conform."""
    counts: dict[tuple[str, str], list[Any]] = {}
    broken = []
    for name, records in traces.items():
        if judge(records, layers):
            broken.append(name)
            continue
        for m in mutants(records, per_site):
            rule = judge(m.records, layers)
            row = counts.setdefault((m.field, m.kind), [0, 0, 0, Counter()])
            row[0] += 1
            row[1] += bool(rule)
            row[2] += rule in rules_of(m.field)
            row[3][rule or "(survived)"] += 1
    return [Row(f, k, a, b, c, dict(d)) for (f, k), (a, b, c, d) in sorted(counts.items())], broken


def failures(rows: Sequence[Row]) -> list[str]:
    """Compared fields of which some mutant got away, or was rejected for a wrong reason."""
    return [
        f"{r.field}, {r.kind}: {r.right} of {r.mutants} killed for the right reason: {r.rules}"
        for r in rows
        if "." in r.field and compared(r.field, r.kind) and r.right < r.mutants
    ]


def table(rows: Sequence[Row]) -> list[str]:
    """The kill table in words: every field and alteration, the total, what is not compared and why."""
    out = [f"{'field':22} {'alteration':20} {'mutants':>7} {'killed':>7} {'right reason':>13}  by"]
    for r in rows:
        mark = "" if "." in r.field and compared(r.field, r.kind) else "  (not required)"
        by = ", ".join(f"{rule} {n}" for rule, n in sorted(r.rules.items(), key=lambda x: -x[1]))
        out.append(f"{r.field:22} {r.kind:20} {r.mutants:7} {r.killed:7} {r.right:13}  {by}{mark}")
    need = [r for r in rows if "." in r.field and compared(r.field, r.kind)]
    tags = {r.field.split(".")[0] for r in rows}
    total, right = sum(r.mutants for r in need), sum(r.right for r in need)
    out += [
        "",
        f"{len({r.field for r in need})} fields compared, {total} mutants, {right} killed for the right "
        f"reason ({100 * right / max(1, total):.1f} %)",
        f"events that do not occur in these traces: {', '.join(sorted(set(EVENTS) - tags)) or 'none'}",
        f"not compared, {len(NOT_COMPARED)} fields or alterations:",
        *(f"  {field}: {why}" for field, why in NOT_COMPARED.items()),
    ]
    return out


def load(path: str) -> list[Any]:
    """All records of one recording."""
    return [rec for _, _, rec in reader.records(path)]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the kill table of the given traces; 0: every compared field is killed for the right reason."""
    paths = list(sys.argv[1:] if argv is None else argv)
    rows, broken = sensitivity({p: load(p) for p in paths})
    print("\n".join(table(rows)))
    bad = [f"control does not conform: {name}" for name in broken]
    bad += [f"not killed: {text}" for text in failures(rows)]
    for text in bad:
        print(text)
    return 1 if bad or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
