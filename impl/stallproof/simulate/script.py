"""What a recorded engine was told, read out of its trace: the script that :mod:`.follow` plays back.

A trace holds decisions and completions but no contents, so contents are told apart by what was shared: the
blocks that requests shared had equal contents, all others are taken to differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stallproof.errors import BadInput
from stallproof.trace import schema as T
from stallproof.trace.reader import records

Place = tuple[str, int]  #: request and index of one of its blocks


@dataclass(slots=True)
class Item:
    """One record of the trace that the engine itself made, with its line."""

    line: int
    record: T.Sched | T.Update | T.Outside


@dataclass
class Script:
    """A recording, ready to be played back. Raises :class:`BadInput` where it cannot be."""

    path: Path
    header: T.Header
    items: list[Item] = field(default_factory=list)
    #: (request, index of block) -> name of its contents
    names: dict[Place, Place] = field(default_factory=dict)
    #: request -> (index of item, tokens, mode) of each of its loads
    loads: dict[str, list[tuple[int, int, str]]] = field(default_factory=dict)

    def name(self, place: Place) -> Place:
        """Name of the contents of a block: equal for blocks that were shared."""
        root = place
        while (up := self.names.get(root, root)) != root:
            root = up
        while (up := self.names.get(place, place)) != root:
            self.names[place], place = root, up
        return root

    def answer(self, rid: str, at: int) -> tuple[int | None, bool]:
        """What the connector said about ``rid`` in the call of item ``at``: tokens, whether asynchronous."""
        if any(type(e) is T.NotYet and e.r == rid for e in self.items[at].record.ev):
            return None, False
        for n, tokens, mode in self.loads.get(rid, ()):
            if n >= at:
                return tokens, mode == "async"
        return 0, False


def read(path: Path) -> Script:
    """The script of one recording that begins with an empty engine."""
    script: Script | None = None
    for name, line, record in records(path):
        if isinstance(record, T.Header):
            if script is None:
                script = Script(path, record)
                _check(script)
            elif record.lost:
                raise BadInput(
                    "records are missing here", path=name, line=line, remedy="give a whole recording"
                )
        elif isinstance(record, (T.Sched, T.Update, T.Outside)):
            assert script is not None  # the reader rejects a trace without a header
            script.items.append(Item(line, record))
            if isinstance(record, T.Update) and any(n > 1 for n in record.out.values()):
                raise BadInput(
                    "a step gave a request several tokens (speculative decoding)", path=name, line=line,
                    remedy="such recordings cannot be followed: a trace does not say which drafts there were",
                )  # fmt: skip
    if script is None or not script.items:
        raise BadInput(
            "an empty recording", path=path, remedy="record an engine first: STALLPROOF_TRACE=FILE"
        )
    _contents(script)
    for at, item in enumerate(script.items):
        for e in item.record.ev:
            if type(e) is T.Load:
                script.loads.setdefault(e.r, []).append((at, e.tokens, e.mode))
    return script


def _check(script: Script) -> None:
    header, path = script.header, script.path
    remedy = "record from the start of the engine, one KV cache group, full attention"
    if header.engine.name != "vllm":
        raise BadInput(f"a recording of {header.engine.name}, not of vLLM", path=path, line=1, remedy=remedy)
    if header.state.requests or header.state.step or header.part:
        raise BadInput("the recording begins in the middle of a run", path=path, line=1, remedy=remedy)
    if header.config.prefix_caching and header.engine.connectors:
        raise BadInput(
            "a connector together with prefix caching", path=path, line=1,
            remedy="a trace does not say what the connector offered to a request that was then refused",
        )  # fmt: skip
    if not header.config.plain:
        raise BadInput("several KV cache groups or a sliding window", path=path, line=1, remedy=remedy)


def _contents(script: Script) -> None:
    """Fill ``names``: follow each request's block table, and join what is shared."""
    table: dict[str, list[int]] = {}
    content: dict[int, Place] = {}
    for item in script.items:
        for e in item.record.ev:
            if isinstance(e, T.Alloc):
                have = table.setdefault(e.r, [])
                for b in e.blocks:
                    content[b] = (e.r, len(have))
                    have.append(b)
            elif isinstance(e, T.Share):
                have = table.setdefault(e.r, [])
                for b in e.blocks:
                    mine = script.name((e.r, len(have)))
                    was = content.setdefault(b, mine)  # from before the recording: as good as its own
                    script.names[mine] = script.name(was)
                    have.append(b)
            elif isinstance(e, (T.Free, T.Fence, T.Quarantine)):
                gone = set(e.blocks)
                table[e.r] = [b for b in table.get(e.r, ()) if b not in gone]


def endings(item: Item) -> Iterator[tuple[str, str]]:
    """Requests that end in this record, and how."""
    for e in item.record.ev:
        if type(e) is T.Finish:
            yield e.r, e.reason


class Renaming:
    """Blocks of the recording and of the replay, one to one; pairs are made when both sides are new.

    A pool hands blocks out in the order in which they came back, so after the first round of a pool each
    pair is one that was made before, and the order of the pool is compared, too.
    """

    def __init__(self, *, needs: bool = True) -> None:
        self.needs = needs  #: compare what refused requests needed
        self.there: dict[int, int] = {}
        self.here: dict[int, int] = {}

    def same(self, recorded: int, replayed: int) -> bool:
        """Whether these are the same block; a new pair is remembered."""
        if recorded not in self.there and replayed not in self.here:
            self.there[recorded], self.here[replayed] = replayed, recorded
        return self.there.get(recorded) == replayed

    def all_same(self, recorded: list[int], replayed: list[int], *, ordered: bool = True) -> bool:
        if len(recorded) != len(replayed):
            return False
        if not ordered:
            return sorted(self.there.get(b, -b) for b in recorded) == sorted(replayed)
        return all(self.same(a, b) for a, b in zip(recorded, replayed, strict=True))


#: events whose blocks the recorder sorts, so that their order says nothing
_SETS = ("touch", "load_failed", "store", "pin", "unpin", "drain")


def difference(recorded: T.Record, replayed: T.Record, names: Renaming) -> str:
    """The first thing in which two records of a call differ; empty if it is the same decision."""
    if type(recorded) is not type(replayed):
        return f"a {_tag(replayed)} record where a {_tag(recorded)} record was made"
    if isinstance(recorded, T.Sched) and isinstance(replayed, T.Sched):
        if (recorded.tok, recorded.total) != (replayed.tok, replayed.total):
            return f"tokens {recorded.tok} were scheduled, the replay schedules {replayed.tok}"
        if recorded.run is not None and recorded.run != replayed.run:
            return f"running list {recorded.run}, in the replay {replayed.run}"
    if isinstance(recorded, T.Update) and isinstance(replayed, T.Update) and recorded.out != replayed.out:
        return f"tokens delivered {recorded.out}, in the replay {replayed.out}"
    assert isinstance(recorded, (T.Sched, T.Update, T.Outside))
    assert isinstance(replayed, (T.Sched, T.Update, T.Outside))
    for a, b in zip(recorded.ev, replayed.ev, strict=False):
        if type(a) is not type(b) or not _same_event(a, b, names):
            return f"{_say(a)}, in the replay {_say(b)}"
    longer, shorter = len(recorded.ev), len(replayed.ev)
    if longer != shorter:
        rest = recorded.ev[shorter] if longer > shorter else replayed.ev[longer]
        return f"{_say(rest)} is only in the {'recording' if longer > shorter else 'replay'}"
    if recorded.free != replayed.free and recorded.free >= 0:
        return f"{recorded.free} blocks free, in the replay {replayed.free}"
    return ""


def _same_event(a: Any, b: Any, names: Renaming) -> bool:
    for f in a.__struct_fields__:
        x, y = getattr(a, f), getattr(b, f)
        if f == "blocks":
            if not names.all_same(x, y, ordered=_tag(a) not in _SETS):
                return False
        elif f in ("arr", "job", "who") or (
            f == "need" and not names.needs
        ):  # clocks, and names that the recorder gives
            continue
        elif x != y:
            return False
    return True


def _tag(x: Any) -> str:
    return str(x.__struct_config__.tag)


def _say(e: Any) -> str:
    return " ".join([_tag(e), *(str(getattr(e, f)) for f in e.__struct_fields__)])
