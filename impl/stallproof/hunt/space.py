"""The space of scenarios that hunt searches: making one, changing one, and what the environment promises.

**It knows no bug.** Every number here is a size of the format's own fields, every facet has the same chance,
and nothing is read but the random generator and, for changes, scenarios that this hunt made itself. No seed,
template or weight comes from a scenario of the test suite, a report or a release. A test holds the package to
that: it reads no file of either.

A scenario is drawn by *swarm*: first a random subset of :data:`FACETS`, then a workload that uses only these.
Bugs that need few facets together are then not drowned by all the others.
"""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from stallproof.errors import BadInput
from stallproof.scenario import At, Engine, Load, Report, Request, Scenario, Send, Stream
from stallproof.scenario.model import Turn, check

#: what a scenario may use beyond plain requests on a plain pool
FACETS = (
    "priority", "cap", "prefix", "window", "groups", "lora", "lookahead", "zeroing", "loose", "whole",
    "spread", "many", "stream", "abort", "abort_on", "session", "abandoned", "grammar", "pause", "reset",
    "oversize", "load", "send", "sync", "defer", "fail", "partial", "silent", "repeat", "forget", "late",
    "again", "report", "budget",
)  # fmt: skip
#: facets that need a connector
_OUTSIDE = frozenset(
    ("load", "send", "sync", "defer", "fail", "partial", "silent", "repeat", "forget", "late", "again",
     "report")
)  # fmt: skip
STEPS = 300
#: steps that a wait may take under a hunt before a class of ours ends it
DEADLINE = 64
#: steps of work beyond which a scenario is not tried
_LONGEST = 2500


def size(rng: Random, low: int, high: int) -> int:
    """Small more often than large: uniform in the number of doublings."""
    if high <= low:
        return low
    return min(high, int(low * (high / low) ** rng.random() + rng.random()))


def _edge(rng: Random, tokens: int, block: int) -> int:
    """``tokens`` moved next to a block boundary, half of the time."""
    if rng.random() < 0.5:
        return max(1, tokens)
    return max(1, round(tokens / block) * block + rng.choice((-1, 0, 0, 1)))


class Maker:
    """Draws the parts of one scenario from ``rng``, using ``facets`` only."""

    def __init__(self, rng: Random, facets: frozenset[str]) -> None:
        self.rng, self.facets = rng, facets
        self.outside = bool(facets & _OUTSIDE)

    def has(self, facet: str, chance: float = 0.6) -> bool:
        return facet in self.facets and self.rng.random() < chance

    def engine(self) -> Engine:
        rng, pick = self.rng, self.rng.choice
        block = pick((2, 4, 8, 16))
        e = Engine(
            blocks=size(rng, 2, 48),
            block_size=block,
            depth=pick((1, 2, 3)),
            max_num_seqs=size(rng, 1, 16),
            prefix_caching="prefix" in self.facets,
            zeroing="zeroing" in self.facets,
            full_fit="loose" not in self.facets,
            policy="priority" if "priority" in self.facets else "fcfs",
            lookahead=size(rng, 1, 2 * block) if "lookahead" in self.facets else 0,
            max_loras=size(rng, 1, 3) if "lora" in self.facets else 0,
        )
        room = e.blocks * block
        e.max_model_len = max(16, 2 * room)
        e.budget = max(e.max_num_seqs, size(rng, 4, 2 * room))
        if "whole" in self.facets:
            e.chunked_prefill = False
            e.budget = max(e.budget, e.max_model_len)
        elif "cap" in self.facets:
            e.chunk_cap = size(rng, 1, e.budget)
        if "budget" in self.facets:
            e.budget_tokens = size(rng, 1, e.budget)
        if "groups" in self.facets:
            e.groups = [0, *(block * size(rng, 1, 6) for _ in range(pick((1, 2))))]
        elif "window" in self.facets:
            e.window = block * size(rng, 1, 6)
        if self.outside:
            e.role = pick(("kv_both", "kv_consumer", "kv_producer"))
            e.load_failure = pick(("recompute", "fail"))
            e.delivers = "send" in self.facets or pick((True, False))
        return e

    def load(self, prompt: int, block: int) -> Load:
        rng = self.rng
        out = ["ok"]
        for facet, outcome in (
            ("fail", "fail"), ("partial", "partial"), ("silent", "fail_silent"), ("repeat", "duplicate"),
            ("forget", "lost"),
        ):  # fmt: skip
            if facet in self.facets:
                out.append(outcome)
        load = Load(
            tokens=min(prompt, _edge(rng, size(rng, 1, prompt), block)),
            delay=size(rng, 1, 12),
            mode="sync" if self.has("sync") else "async",
            outcome=rng.choice(out),  # type: ignore[arg-type]
            again=self.has("again"),
        )
        load.again = load.again and load.outcome == "ok"
        if load.again:
            load.tokens = min(load.tokens, prompt - 1)
        if self.has("late", 0.3):
            load.delay = size(rng, 40, 100)
        if self.has("defer"):
            if rng.random() < 0.5:
                load.defer = size(rng, 1, 8)
            else:
                load.defer_until = size(rng, 1, 30)
            if self.has("forget", 0.2):
                load.defer = 100_000
        return load

    def send(self, load: Load | None) -> Send:
        out = ["ok", "with_recv"] if load and load.mode == "async" else ["ok"]
        out += ["lost"] if "forget" in self.facets else []
        out += ["duplicate"] if "repeat" in self.facets else []
        delay = size(self.rng, 40, 100) if self.has("late", 0.3) else size(self.rng, 1, 12)
        return Send(delay=delay, outcome=self.rng.choice(out))  # type: ignore[arg-type]

    def request(self, rid: str, e: Engine) -> Request:
        rng = self.rng
        room = e.blocks * e.block_size - e.lookahead
        if self.has("oversize", 0.3):
            room = e.max_model_len
        room = max(2, min(room, e.max_model_len))
        out = min(room - 1, size(rng, 1, 64))
        q = Request(id=rid, prompt=min(room - out, _edge(rng, size(rng, 1, room - out), e.block_size)))
        q.max_tokens = out
        if "spread" in self.facets:
            q.arrive = size(rng, 1, 30) - 1
        if self.has("many"):
            q.count, q.every = size(rng, 2, 6), size(rng, 1, 6) - 1
        if "priority" in self.facets:
            q.priority = rng.randrange(3)
        if self.has("prefix"):
            q.prefix, q.prefix_tokens = rng.choice("ab"), size(rng, 1, q.prompt)
        if "lora" in self.facets:
            q.lora = rng.randrange(4)
        if self.has("abort", 0.4):
            q.abort = q.arrive + size(rng, 1, 30)
        if self.has("abort_on", 0.4):
            q.abort_on = rng.choice(("loading", "received", "running"))
        if self.has("grammar", 0.4):
            q.grammar = "never" if self.has("forget", 0.5) else "error"
            q.may_fail = True
        if e.role and self.facets & (_OUTSIDE - {"send"}) and rng.random() < 0.7:
            q.load = self.load(q.prompt, e.block_size)
        if e.role and self.has("send"):
            q.send = self.send(q.load)
        if self.has("session"):
            left = room - q.prompt - out
            while left > 2 and len(q.turns) < 3 and rng.random() < 0.7:
                more = size(rng, 1, left - 1)
                turn = Turn(prompt=more, max_tokens=min(left - more, size(rng, 1, 16)))
                turn.at = size(rng, 1, 60) if rng.random() < 0.3 else -1
                left -= more + turn.max_tokens
                q.turns.append(turn)
        elif self.has("abandoned", 0.4):
            q.abandoned, q.must_finish = True, False
        return q

    def stream(self, sid: str, e: Engine) -> Stream:
        rng = self.rng
        room = max(2, min(e.blocks * e.block_size - e.lookahead, e.max_model_len))
        out = min(room - 1, size(rng, 1, 16))
        s = Stream(id=sid, prompt=size(rng, 1, room - out), max_tokens=out, keep=size(rng, 1, 8))
        s.start = size(rng, 1, 20) - 1
        if "priority" in self.facets:
            s.priority = 2 + rng.randrange(2)
        if "lora" in self.facets:
            s.lora = rng.randrange(4)
        if e.role and "load" in self.facets and rng.random() < 0.5:
            s.load = Load(tokens=size(rng, 1, s.prompt), delay=size(rng, 1, 6))
        return s

    def happenings(self, s: Scenario) -> None:
        """Pauses, resets and raw reports; a pause is always followed by a resume."""
        rng = self.rng
        if self.has("pause"):
            at = size(rng, 1, 30)
            s.at.append(At(step=at, do=rng.choice(("pause_new", "pause_all"))))
            s.at.append(At(step=at + size(rng, 1, 40), do="resume"))
        if self.has("reset"):
            s.at.append(At(step=size(rng, 1, 30), do=rng.choice(("reset_cache", "reset_running"))))
        if self.has("report"):
            loads = [n for q in s.request if q.load and q.load.mode == "async" for n in names(q)]
            sends = [n for q in s.request if q.send for n in names(q)]
            kinds = (
                [("recv", n) for n in loads] + [("failed", n) for n in loads] + [("sent", n) for n in sends]
            )
            for _ in range(size(rng, 1, 3) if kinds else 0):
                kind: Any
                kind, named = rng.choice(kinds)
                s.report.append(Report(step=size(rng, 1, 50), kind=kind, id=named))


def names(q: Request) -> list[str]:
    """Ids of the requests that ``q`` stands for."""
    return [q.id] if q.count == 1 else [f"{q.id}{k}" for k in range(q.count)]


def draw(rng: Random) -> frozenset[str]:
    """A random subset of the facets, each with the same chance."""
    chance = rng.choice((0.08, 0.16, 0.3))
    return frozenset(f for f in FACETS if rng.random() < chance)


def fresh(rng: Random, cid: str) -> Scenario:
    """A new valid scenario."""
    while True:
        make = Maker(rng, draw(rng))
        e = make.engine()
        s = Scenario(id=cid, title="made by hunt", source=["hunt"], engine=e, steps=STEPS)
        s.request = [make.request(f"r{k}x", e) for k in range(size(rng, 1, 6))]
        if "stream" in make.facets:
            s.stream = [make.stream("n0x", e)]
        make.happenings(s)
        if not refused(s):
            return s


def refused(s: Scenario) -> str:
    """Why the environment of ``s`` breaks its own side of the contract; empty if it does not.

    The environment resumes what it pauses, lets no newcomer go ahead by priority for ever, reports only
    transfers that it was asked for, and asks for nothing that the configuration itself forbids.
    """
    e = s.engine
    try:
        check(s, "hunt")
    except BadInput as exc:
        return exc.what
    if e.budget < e.max_num_seqs or (not e.chunked_prefill and (e.budget < e.max_model_len or e.chunk_cap)):
        return "the configuration is refused by the engine"
    if not e.chunked_prefill and e.budget_tokens:
        return "without chunks every prompt must fit the budget"
    paused = False
    for at in sorted(s.at, key=lambda a: a.step):
        paused = at.do.startswith("pause") if at.do in ("pause_new", "pause_all", "resume") else paused
    if paused or any(a.step >= s.steps - 100 for a in s.at):
        return "paused for ever"
    if e.policy == "priority" and any(n.priority < q.priority for n in s.stream for q in s.request):
        return "newcomers go ahead by priority for ever"
    adapters = [q.lora for q in s.request] + [n.lora for n in s.stream]
    if any(adapters) and not e.max_loras:
        return "adapters need max_loras"
    if any(q.abandoned and (q.must_finish or q.turns) for q in s.request):
        return "an abandoned session has no further turn and need not finish"
    if any(n.load and (n.load.outcome != "ok" or n.load.defer) for n in s.stream):
        return "newcomers without end have a connector that works"
    if any(fits(n.prompt + n.max_tokens, e) for n in s.stream):
        return "newcomers must fit"
    loads = {n for q in s.request if q.load and q.load.mode == "async" for n in names(q)}
    sends = {n for q in s.request if q.send for n in names(q)}
    if sends and not e.delivers:
        return "a connector that hands blocks over has to deliver them"
    if any(r.id not in (sends if r.kind == "sent" else loads) for r in s.report):
        return "a report names no transfer of its kind"
    if any(q.send and q.send.outcome == "with_recv" and not (q.load and q.load.mode == "async")
           for q in s.request):  # fmt: skip
        return "a receive is reported that nobody asked for"
    again = [q for q in s.request if q.load and q.load.again]
    if any(q.load and (q.load.tokens >= q.prompt or q.load.outcome != "ok") for q in again):
        return "a load that can be had again succeeds, and leaves a token to compute"
    longest = max(
        [n.prompt for n in s.stream]
        + [n for q in s.request for n in (q.prompt, *(t.prompt for t in q.turns))]
    )
    if longest >= e.max_model_len:
        return "the front end refuses a prompt as long as the model's length"
    if needed(s) > _LONGEST:
        return "it takes too long to be judged"
    if any(q.prefix_tokens and not q.prefix for q in s.request):
        return "a prefix needs a name"
    return ""


def needed(s: Scenario) -> int:
    """Steps in which all requests of ``s`` would be done one after the other, done twice, with all delays."""
    e = s.engine
    budget = max(1, min(x for x in (e.budget, e.budget_tokens or e.budget, e.chunk_cap or e.budget)))
    steps = 0
    for q in s.request:
        tokens = q.prompt + sum(t.prompt for t in q.turns)
        out = q.max_tokens + sum(t.max_tokens for t in q.turns)
        outside = (q.load.delay + min(q.load.defer, 100) + q.load.defer_until) if q.load else 0
        steps += q.count * (2 * -(-tokens // budget) + 2 * out + q.every + outside) + q.arrive
    for n in s.stream:  # those that are ahead of a request
        steps += (n.keep + e.max_num_seqs) * (-(-n.prompt // budget) + 2 * n.max_tokens)
    return 2 * steps + max([0, *(a.step for a in s.at)])


def silence(s: Scenario) -> int:
    """Steps until sessions without a further turn meet their deadlines, one after the other."""
    return DEADLINE * sum(q.count for q in s.request if q.abandoned)


def fits(tokens: int, e: Engine) -> int:
    """By how many blocks ``tokens`` of one request exceed the pool; 0: they fit. Windows are not used."""
    groups = max(1, len(e.groups))
    need = groups * -(-(tokens + e.lookahead) // e.block_size)
    return max(0, need - e.blocks)


def oversize(s: Scenario) -> str:
    """``prompt`` or ``total``: what of some request exceeds the pool; empty: every request fits."""
    worst = ""
    for q in s.request:
        prompt = q.prompt + sum(t.prompt + t.max_tokens for t in q.turns)
        if fits(prompt, s.engine):
            return "prompt"
        if fits(prompt + q.max_tokens, s.engine):
            worst = "total"
    return worst


def needs(s: Scenario) -> list[str]:
    """What ``s`` uses beyond plain requests on a plain pool. Of a shrunk scenario: what its failure needs."""
    e = s.engine
    out = {
        "several batches in flight": e.depth > 1, "priorities": e.policy == "priority",
        "prefix caching": e.prefix_caching, "a window": bool(e.window or any(e.groups)),
        "several KV groups": len(e.groups) > 1, "adapters": bool(e.max_loras),
        "look-ahead": bool(e.lookahead),
        "zeroing": e.zeroing, "loose admission": not e.full_fit, "whole prompts": not e.chunked_prefill,
        "a chunk cap": bool(e.chunk_cap), "newcomers": bool(s.stream),
        "several requests": sum(q.count for q in s.request) > 1, "policy fail": e.load_failure == "fail",
    }  # fmt: skip
    for a in s.at:
        out[a.do] = a.do != "resume"
    for r in s.report:
        out[f"a stray {r.kind}"] = True
    for q in s.request:
        if q.load:
            what = "a load" if q.load.outcome == "ok" else f"a load: {q.load.outcome}"
            out[f"{what} in step" if q.load.mode == "sync" else what] = bool(q.load.tokens)
            out["not yet"] = out.get("not yet", False) or bool(q.load.defer or q.load.defer_until)
            out["a late report"] = out.get("a late report", False) or q.load.delay > 40
        if q.send:
            out["a send" if q.send.outcome == "ok" else f"a send: {q.send.outcome}"] = True
        out["an abort"] = out.get("an abort", False) or q.abort >= 0 or bool(q.abort_on)
        out["a session"] = out.get("a session", False) or bool(q.turns or q.abandoned)
        if q.grammar:
            out[f"a grammar: {q.grammar}"] = True
    out["a load"] = out.get("a load", False) or any(n.load for n in s.stream)
    return sorted(k for k, used in out.items() if used)


# ------------------------------------------------------------ changes


def copy(s: Scenario) -> Scenario:
    return msgspec.convert(msgspec.to_builtins(s), Scenario)


def mutate(rng: Random, s: Scenario, other: Scenario, cid: str) -> Scenario:
    """``s`` with one to four random changes; ``other``: a scenario to take requests from."""
    for _ in range(20):
        t = copy(s)
        t.id = cid
        make = Maker(rng, draw(rng) | _used(t))
        for _ in range(rng.choice((1, 1, 2, 3, 4))):
            rng.choice(_CHANGES)(rng, t, other, make)
        for k, q in enumerate(t.request):
            q.id = f"r{k}x"
        if not refused(t):
            return t
    return fresh(rng, cid)


def _used(s: Scenario) -> frozenset[str]:
    """Facets that ``s`` shows, as far as a new request of it should use them, too."""
    e = s.engine
    out = {"spread"}
    out |= {"priority"} if e.policy == "priority" else set()
    out |= {"prefix"} if e.prefix_caching else set()
    out |= {"lora"} if e.max_loras else set()
    out |= {"load"} if e.role else set()
    return frozenset(out)


def _add(rng: Random, t: Scenario, other: Scenario, make: Maker) -> None:
    t.request.append(make.request(f"r{len(t.request)}x", t.engine))


def _drop(rng: Random, t: Scenario, other: Scenario, make: Maker) -> None:
    if len(t.request) > 1:
        gone = t.request.pop(rng.randrange(len(t.request)))
        t.report = [r for r in t.report if r.id not in names(gone)]


def _double(rng: Random, t: Scenario, other: Scenario, make: Maker) -> None:
    q = msgspec.convert(msgspec.to_builtins(rng.choice(t.request)), Request)
    q.id = f"r{len(t.request)}x"
    q.arrive += rng.randrange(4)
    t.request.insert(rng.randrange(len(t.request) + 1), q)


def _swap(rng: Random, t: Scenario, other: Scenario, make: Maker) -> None:
    rng.shuffle(t.request)


def _take(rng: Random, t: Scenario, other: Scenario, make: Maker) -> None:
    q = msgspec.convert(msgspec.to_builtins(rng.choice(other.request)), Request)
    q.id = f"r{len(t.request)}x"
    if not t.engine.role:
        q.load = q.send = None
    if not t.engine.max_loras:
        q.lora = 0
    t.request.append(q)


def _transfer(rng: Random, t: Scenario, other: Scenario, make: Maker) -> None:
    if not t.engine.role:
        t.engine.role = rng.choice(("kv_both", "kv_consumer", "kv_producer"))
    q = rng.choice(t.request)
    if rng.random() < 0.7:
        q.load = make.load(q.prompt, t.engine.block_size)
    else:
        q.send, t.engine.delivers = make.send(q.load), True


def _engine(rng: Random, t: Scenario, other: Scenario, make: Maker) -> None:
    """One field of the engine as another draw has it."""
    drawn = make.engine()
    field = rng.choice(
        ("blocks", "depth", "max_num_seqs", "budget", "chunk_cap", "policy", "prefix_caching", "zeroing",
         "full_fit", "lookahead", "window", "load_failure", "budget_tokens", "groups")
    )  # fmt: skip
    setattr(t.engine, field, getattr(drawn, field))


def _nudge(rng: Random, t: Scenario, other: Scenario, make: Maker) -> None:
    """One number somewhere, a little more or less, doubled or halved."""
    q = rng.choice(t.request)
    places: list[tuple[Any, str, int]] = [
        (q, "prompt", 1), (q, "max_tokens", 1), (q, "arrive", 0), (q, "count", 1), (q, "every", 0),
        (t.engine, "blocks", 1), (t.engine, "budget", 1), (t.engine, "max_num_seqs", 1),
    ]  # fmt: skip
    if q.load:
        places += [(q.load, "tokens", 0), (q.load, "delay", 1), (q.load, "defer", 0)]
    if q.send:
        places.append((q.send, "delay", 1))
    if q.abort >= 0:
        places.append((q, "abort", 0))
    for n in t.stream:
        places += [(n, "prompt", 1), (n, "max_tokens", 1), (n, "keep", 1), (n, "start", 0)]
    for a in [*t.at, *t.report]:
        places.append((a, "step", 0))
    what, field, low = rng.choice(places)
    old = getattr(what, field)
    step = t.engine.block_size
    new = rng.choice((old + 1, old - 1, old + step, old - step, old * 2, old // 2, low))
    if field == "count":
        new = min(new, 8)
    setattr(what, field, max(low, new))
    if q.load:
        q.load.tokens = min(q.load.tokens, q.prompt)
    q.prefix_tokens = min(q.prefix_tokens, q.prompt)


def _leave(rng: Random, t: Scenario, other: Scenario, make: Maker) -> None:
    q = rng.choice(t.request)
    if rng.random() < 0.5:
        q.abort = q.arrive + size(rng, 1, 30)
    else:
        q.abort_on = rng.choice(("", "loading", "received", "running"))


def _happen(rng: Random, t: Scenario, other: Scenario, make: Maker) -> None:
    make.happenings(t)


def _newcomers(rng: Random, t: Scenario, other: Scenario, make: Maker) -> None:
    t.stream = [] if t.stream else [make.stream("n0x", t.engine)]


_CHANGES = (
    _add, _drop, _double, _swap, _take, _transfer, _engine, _nudge, _nudge, _nudge, _leave, _happen,
    _newcomers,
)  # fmt: skip
