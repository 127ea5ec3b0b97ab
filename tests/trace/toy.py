"""A small paged-KV engine for tests, written for this purpose: it records traces as a real engine would.

Its switches cover what the ledger has to understand (prefix sharing, deferred frees, gated and immediate
load starts, unordered readers flushed before reuse, aborts, lost loads with quarantine), and ``bug`` breaks
one thing at a time, so that each rule of the checker is seen to fire.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from itertools import islice

from stallproof.trace import schema as s


@dataclass(eq=False)
class R:
    r: str
    prio: int
    arr: float
    prompt: int
    max_tokens: int
    family: int = 0
    ext: int = 0  # tokens an external load brings
    out: int = 0
    comp: int = 0
    pcomp: int = 0
    holes: int = 0  # output tokens scheduled, not yet known
    since: int = 0
    last: int = 0
    gen: int = 0
    st: str = s.WAITING
    blocks: list[int] = field(default_factory=list)
    loaded: bool = False
    no_load: bool = False

    @property
    def place(self):
        return (self.prio, self.arr)


class Toy:
    def __init__(
        self,
        write=None,
        *,
        pool=16,
        block=4,
        depth=2,
        mode="GateLoads",
        budget=32,
        seqs=8,
        seed=0,
        sharing=True,
        readers=True,
        lost=0.0,
        bug="",
        rules=None,
        ordered=True,
        loads=True,
    ):
        self.rng = random.Random(seed)
        self.config = s.Config(
            pool=pool,
            block_size=block,
            depth=depth,
            fence_mode=mode,
            max_num_seqs=seqs,
            max_num_batched_tokens=budget,
            prefix_caching=sharing,
        )
        self.engine = s.Engine("toy", "1", scheduler="tests.trace.toy.Toy")
        self.rules = (
            rules
            if rules is not None
            else (["NoInversion", "VictimOrder", "RunningOrder"] if ordered else [])
        )
        if mode == "GateLoads" and rules is None:
            self.rules.append("GateLoads")
        self.mode, self.bs, self.sharing, self.readers, self.lost, self.bug = (
            mode,
            block,
            sharing,
            readers,
            lost,
            bug,
        )
        self.with_loads = loads
        self.pool = dict.fromkeys(range(1, pool + 1))  # ordered set
        self.ref = dict.fromkeys(range(1, pool + 1), 0)
        self.hash: dict[int, tuple] = {}
        self.cached: dict[tuple, int] = {}
        self.reqs: dict[str, R] = {}
        self.waiting: list[R] = []
        self.running: list[R] = []
        self.parked: list[R] = []
        self.zombies: dict[str, R] = {}
        self.step = self.processed = 0
        self.infl: deque[tuple[int, dict[str, int]]] = deque()
        self.deferred: deque[tuple[int, list[int]]] = deque()
        self.loads: dict[str, list] = {}  # r -> [gen, blocks, step, started, due]
        self.quar: dict[tuple[str, int], list] = {}
        self.jobs: dict[str, tuple[str, list[int], int]] = {}
        self.njobs = 0
        self.ev: list = []
        self.ts = 1.0
        self.names = 0
        self.last_run: list[str] | None = None
        self.records: list = []
        self.write = write or self.records.append

    # -------------------------------------------------------------- recording

    def header(self, **kw):
        return s.Header(
            schema=s.SCHEMA,
            run=kw.pop("run", "toy"),
            source="harness",
            engine=self.engine,
            config=self.config,
            clock=s.Clock("2026-01-01T00:00:00+00:00", 0.0),
            rules=self.rules,
            state=self.snapshot(),
            **kw,
        )

    def snapshot(self):
        def state(q, st):
            return s.ReqState(
                r=q.r,
                st=st,
                prio=q.prio,
                arr=q.arr,
                prompt=q.prompt,
                max_tokens=q.max_tokens,
                tok=q.prompt + q.out,
                comp=q.comp,
                blocks=list(q.blocks),
                gen=q.gen,
                last=q.last,
                out=q.out,
            )

        return s.Snapshot(
            step=self.step,
            processed=self.processed,
            free=len(self.pool),
            requests=[state(q, q.st) for q in self.reqs.values()]
            + [state(q, s.FINISHED) for q in self.zombies.values()],
            run=[q.r for q in self.running],
        )

    def emit(self, record):
        self.ts += 0.25
        record.ts = self.ts
        record.ev, self.ev = self.ev, []
        record.free = len(self.pool)
        picked = self.rng.sample(range(1, self.config.pool + 1), 2)
        record.refs = {b: self.ref[b] for b in picked}
        self.write(record)

    # -------------------------------------------------------------- blocks

    def take(self, q, k):
        got = list(islice(self.pool if self.bug != "gate" else reversed(self.pool), k))
        if (
            got
            and self.bug == "double"
            and self.rng.random() < 0.2
            and any(p is not q and p.blocks for p in self.running)
        ):
            got[-1] = next(p for p in self.running if p is not q and p.blocks).blocks[-1]
        for b in got:
            self.pool.pop(b, None)
            self.ref[b] += 1
            h = self.hash.pop(b, None)
            if h is not None and self.cached.get(h) == b:
                del self.cached[h]
        q.blocks += got
        if got:
            self.ev.append(s.Alloc(q.r, got))
            for job, (_, blocks, _) in list(self.jobs.items()):
                if not set(blocks).isdisjoint(got) and self.bug != "noflush":
                    self.end_job(job, "flush")
        return got

    def drop(self, blocks):
        for b in blocks:
            self.ref[b] -= 1
            if not self.ref[b]:
                self.pool[b] = None

    def release(self, q, prune=0):
        blocks = list(reversed(q.blocks))
        q.blocks = []
        if not blocks:
            return
        if self.bug == "leak" and len(blocks) > 1 and self.rng.random() < 0.3:
            blocks = blocks[1:]
        quiet = q.last <= self.processed
        if self.mode.startswith("DeferFrees") and not quiet:
            fence = self.step_building if self.bug != "lowfence" else self.processed
            self.deferred.append((fence, blocks))
            self.ev.append(s.Fence(q.r, blocks, fence))
        else:
            self.drop(blocks)
            self.ev.append(s.Free(q.r, blocks))
            if self.bug == "doublefree" and self.rng.random() < 0.3:
                self.ev.append(s.Free(q.r, blocks[:1]))

    @property
    def step_building(self):
        return self.step

    def end_job(self, job, how="done"):
        r, _, _ = self.jobs.pop(job)
        self.ev.append(s.Stored(job, how))
        q = self.zombies.get(r)
        if q is not None and not any(x[0] == r for x in self.jobs.values()) and r not in self.loads:
            self.release(q)
            del self.zombies[r]

    # -------------------------------------------------------------- outside

    def add(self, prompt=None, max_tokens=None, prio=0, family=None, ext=None, r=None):
        rng = self.rng
        self.names += 1
        cap = self.config.pool * self.bs
        prompt = prompt or rng.randint(1, min(24, cap // 2))
        q = R(
            r or f"r{self.names}",
            prio,
            self.ts,
            prompt,
            max_tokens or rng.randint(1, max(1, min(12, cap - prompt - 1))),
            family=rng.randint(0, 2) if family is None else family,
            ext=(rng.choice([0, 0, max(0, prompt - 1)]) * self.with_loads if ext is None else ext),
        )
        self.reqs[q.r] = q
        self.waiting.append(q)
        self.waiting.sort(key=lambda q: q.place)
        self.ev.append(s.Add(q.r, q.prio, q.arr, q.prompt, q.max_tokens))
        self.emit(s.Outside())
        return q

    def abort(self, r):
        q = self.reqs[r]
        self.ev.append(s.Finish(r, "abort", q.out))
        self.finish(q)
        self.emit(s.Outside())

    def finish(self, q):
        self.reqs.pop(q.r)
        for seq in (self.waiting, self.running, self.parked):
            if q in seq:
                seq.remove(q)
        load = self.loads.get(q.r)
        if load is not None and not load[3]:
            del self.loads[q.r]
            load = None
        if self.bug == "freeload":
            self.loads.pop(q.r, None)
            load = None
        if load is not None or (any(x[0] == q.r for x in self.jobs.values()) and q.st == s.RUNNING):
            self.zombies[q.r] = q
        else:
            self.release(q)

    # -------------------------------------------------------------- the scheduling call

    def schedule(self):
        self.step += 1
        n, quiet = self.step, self.processed
        tok: dict[str, int] = {}
        budget = self.config.max_num_batched_tokens
        if self.mode == "GateLoads":
            for r, load in self.loads.items():
                if not load[3] and (load[2] <= quiet or self.bug == "gate"):
                    load[3], load[4] = True, self.step + self.rng.randint(1, 4)
                    self.ev.append(s.Start(r, load[0]))
        refused = False
        i = 0
        while i < len(self.running):
            q = self.running[i]
            i += 1
            k = min(self.todo(q), budget)
            if k <= 0:
                continue
            while not self.grow(q, k):
                victim = max(self.running, key=lambda p: p.place) if self.rules else self.running[-1]
                if victim.r in tok:
                    budget += tok.pop(victim.r)
                if self.mode == "DeferFreesGuarded" and victim is not q and victim.last > quiet:
                    refused = True
                    self.ev.append(s.Refuse(q.r, self.need(q, k), "fence"))
                    k = 0
                    break
                if self.running.index(victim) < i:
                    i -= 1
                self.running.remove(victim)
                refused = True
                self.ev.append(s.Refuse(q.r, self.need(q, k), "blocks"))
                self.ev.append(s.Preempt(victim.r, q.r))
                self.reset(victim)
                if victim is q:
                    k = 0
                    break
            if k:
                tok[q.r] = k
                budget -= k
        if not refused or self.bug == "inversion":
            self.admissions(tok, budget, n, refused)
        for r, k in tok.items():
            q = self.reqs[r]
            q.comp += k
            q.last = n
            if q.comp == q.prompt + q.out + q.holes:
                q.holes += 1
            self.hashes(q)
            if self.readers and q.comp == q.prompt and self.rng.random() < 0.3:
                self.njobs += 1
                self.jobs[f"j{self.njobs}"] = (r, q.blocks[:2], n + self.rng.randint(2, 5))
                self.ev.append(s.Store(f"j{self.njobs}", r, q.blocks[:2]))
        self.infl.append((n, tok))
        rec = s.Sched(step=n, tok=dict(tok), total=sum(tok.values()))
        run = [q.r for q in self.running]
        if run != self.last_run:
            rec.run = self.last_run = run
        self.emit(rec)
        return tok

    def todo(self, q):
        if q.out + q.holes >= q.max_tokens:
            return 0
        return q.prompt + q.out + q.holes - q.comp

    def need(self, q, k):
        return max(0, -(-(q.comp + k) // self.bs) - len(q.blocks))

    def grow(self, q, k):
        need = self.need(q, k)
        if need > len(self.pool):
            return False
        self.take(q, need)
        return True

    def reset(self, q):
        self.release(q)
        q.st, q.comp, q.pcomp, q.holes, q.loaded = s.PREEMPTED, 0, 0, 0, False
        self.waiting.append(q)
        self.waiting.sort(key=lambda q: q.place)

    def admissions(self, tok, budget, n, refused):
        for q in sorted(
            self.waiting + [p for p in self.parked if p.st == s.RECEIVED],
            key=lambda q: (not q.blocks, q.place),
        ):
            if len(self.running) >= self.config.max_num_seqs or budget <= 0:
                break
            if q.last > self.processed and not q.blocks:
                continue  # stale output outstanding
            if q.st == s.RECEIVED:
                known = q.prompt + q.out
                k = min(known - q.comp, budget)
                if not self.grow(q, k):
                    self.ev.append(s.Refuse(q.r, self.need(q, k), "blocks"))
                    refused = True
                    continue
                self.ev.append(s.Promote(q.r))
                self.parked.remove(q)
                self.run(q, tok, k, n)
                budget -= k
                continue
            if refused and self.bug != "inversion":
                continue
            hits = self.hits(q)
            ext = max(0, q.ext - len(hits) * self.bs) if not q.loaded and not q.no_load else 0
            known = q.prompt + q.out
            total = ext if ext else min(known - len(hits) * self.bs, budget)
            need = -(-(len(hits) * self.bs + total) // self.bs) - len(hits)
            fit = -(-(known + 1) // self.bs) - len(hits)
            free = len(self.pool) - sum(b in self.pool for b in hits)
            if max(need, fit) > free:
                self.ev.append(s.Refuse(q.r, need, "blocks" if need > free else "fit"))
                refused = True
                continue
            for b in hits:
                self.pool.pop(b, None)
                self.ref[b] += 1
            q.blocks = list(hits)
            if hits:
                self.ev.append(s.Share(q.r, list(hits)))
            new = self.take(q, need)
            q.comp = len(hits) * self.bs
            self.waiting.remove(q)
            if ext:
                q.gen += 1
                q.st = s.LOADING
                self.parked.append(q)
                gate = self.mode == "GateLoads" and self.bug != "gate"
                self.loads[q.r] = [q.gen, new, n, not gate, n + self.rng.randint(1, 6)]
                self.ev.append(s.Load(q.r, q.gen, list(new), "async", ext))
                if not gate:
                    self.ev.append(s.Start(q.r, q.gen))
                q.ext_now = ext
            else:
                self.run(q, tok, total, n)
                budget -= total

    def run(self, q, tok, k, n):
        self.ev.append(s.Admit(q.r, q.comp))
        q.st, q.since, q.pcomp = s.RUNNING, n, q.comp
        tok[q.r] = k
        self.running.append(q)
        if self.rules:
            self.running.sort(key=lambda q: q.place)

    def hits(self, q):
        got = []
        if self.sharing:
            for i in range((q.prompt + q.out - 1) // self.bs):
                b = self.cached.get((q.family, i)) if (i + 1) * self.bs <= q.prompt else None
                if b is None or any(b in load[1] for load in self.loads.values()):
                    break
                got.append(b)
        return got

    def hashes(self, q):
        if self.sharing:
            for i in range(min(q.comp, q.prompt) // self.bs):
                h = (q.family, i)
                if h not in self.cached and q.blocks[i] not in self.hash:
                    self.cached[h] = q.blocks[i]
                    self.hash[q.blocks[i]] = h

    # -------------------------------------------------------------- the output call

    def update(self):
        n, tok = self.infl.popleft()
        self.processed = n
        out: dict[str, int] = {}
        while self.deferred and self.deferred[0][0] <= n + (self.bug == "earlydrain"):
            blocks = self.deferred.popleft()[1]
            self.drop(blocks)
            self.ev.append(s.Drain(blocks))
        for r, k in tok.items():
            q = self.reqs.get(r)
            if q is None or q.since > n or q.st != s.RUNNING:
                continue
            q.pcomp += k
            if q.pcomp >= q.prompt + q.out:
                q.out += 1
                q.holes -= 1
                out[r] = 1
                if q.out >= q.max_tokens:
                    self.ev.append(s.Finish(r, "length", q.out))
                    self.finish(q)
        for r, load in list(self.loads.items()):
            if load[3] and load[4] <= n:
                if self.rng.random() < self.lost:
                    q = self.reqs.get(r)
                    if q is None:
                        continue
                    self.ev.append(s.Expire(r, "load"))
                    self.ev.append(s.Quarantine(r, load[0], load[1]))
                    self.quar[r, load[0]] = [load[1], n + 6]
                    for b in load[1]:
                        q.blocks.remove(b)
                    del self.loads[r]
                    self.release(q)
                    q.st, q.comp, q.no_load = s.WAITING, 0, True
                    self.parked.remove(q)
                    self.waiting.append(q)
                    self.waiting.sort(key=lambda q: q.place)
                    continue
                self.recv(r, load)
        for (r, gen), (blocks, due) in list(self.quar.items()):
            if due <= n:
                del self.quar[r, gen]
                self.ev.append(s.Ignored(r, "recv", "late"))
                self.ev.append(s.Unquarantine(r, gen, blocks))
                self.drop(blocks)
        for job, (_, _, due) in list(self.jobs.items()):
            if due <= n:
                self.end_job(job)
        self.emit(s.Update(step=n, out=out))

    def recv(self, r, load):
        del self.loads[r]
        self.ev.append(s.Recv(r, load[0]))
        q = self.reqs.get(r)
        if q is None:
            q = self.zombies[r]
            if not any(x[0] == r for x in self.jobs.values()):
                del self.zombies[r]
                self.release(q)
            return
        q.st, q.loaded = s.RECEIVED, True
        q.comp += q.ext_now

    # -------------------------------------------------------------- a whole run

    def play(self, calls=80, arrivals=0.5, aborts=0.03, drain=True, max_calls=2000):
        rng = self.rng
        for i in range(max_calls):
            if i < calls and rng.random() < arrivals:
                self.add()
            if self.reqs and rng.random() < aborts:
                self.abort(rng.choice(sorted(self.reqs)))
            if (
                i >= calls
                and drain
                and not (self.reqs or self.zombies or self.infl or self.jobs or self.quar)
            ):
                break
            if len(self.infl) >= self.config.depth or (self.infl and rng.random() < 0.5):
                self.update()
            elif self.reqs or self.jobs or self.quar or self.zombies:
                self.schedule()
        return self


def trace(toy: Toy, **play) -> list:
    """A finished recording of one part, header first, record numbers and last record set."""
    head = toy.header()
    toy.play(**play)
    records = [head, *toy.records]
    finished = sum(isinstance(e, s.Finish) for r in toy.records for e in getattr(r, "ev", ()))
    records.append(s.End(ts=toy.ts, calls=toy.step, finished=finished))
    for i, r in enumerate(records[1:], 1):
        r.n = i
    return records


def lines(records) -> bytes:
    return b"".join(s.encode(r) + b"\n" for r in records)
