"""The recorder's eyes: hooks on an engine's block pool, and the comparison that proves they saw all."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from stallproof.trace import schema as T
from stallproof.vllm.copies import Copies
from stallproof.vllm.probe import own, take_off

if TYPE_CHECKING:
    from stallproof.vllm.recording import Recorder


def prunes(coordinator: Any) -> bool:
    """Whether some KV cache group gives blocks up while its request runs (a window); True if unknown."""
    for manager in getattr(coordinator, "single_type_managers", None) or (None,):
        base = next((c for c in type(manager).__mro__ if c.__name__ == "SingleTypeKVCacheManager"), None)
        if base is None:
            return True
        for name in ("get_num_skipped_tokens", "remove_skipped_blocks"):
            if getattr(type(manager), name, None) is not getattr(base, name, None):
                return True
    return False


class Probe:
    """Sees every change of the pool and says for whom it was; keeps its own tables to compare with."""

    def __init__(self, rec: Recorder) -> None:
        self.rec = rec
        m = rec.s.kv_cache_manager
        self.manager, self.pool, self.coordinator = m, m.block_pool, m.coordinator
        self.null = self.pool.null_block
        self.context: tuple[str, str] = ("", "")
        self.asking: Any = None  # running request that asks for blocks, where no context says more
        self.tables: dict[str, Counter[int]] = {}
        self.others: Counter[int] = Counter()  # pins and deferred entries
        self.fresh: list[int] = []  # allocated within the allocate_slots call in progress
        self.external = 0  # how many of them hold external tokens
        self.shared: list[int] = []
        self.turn = 0  # the block sampled last
        self.upto = -1  # tokens computed that the pruning in progress counts the window from
        self.copies = Copies(self)
        self._put_back: list[tuple[Any, str, Any]] = []
        for request in rec.s.requests.values():
            self.tables[request.request_id] = Counter(self.blocks_of(request.request_id))

    # -------------------------------------------------------------- reading the engine

    def _table(self, r: str) -> Counter[int]:
        table = self.tables.get(r)
        if table is None:
            table = self.tables[r] = Counter()
        return table

    def free(self) -> int:
        return self.pool.get_num_free_blocks()

    def priority_of(self, request: Any) -> int:
        """The priority that counts in the scheduling order: none under FCFS."""
        policy = getattr(self.rec.s, "policy", None)
        return int(request.priority) if getattr(policy, "value", "") == "priority" else 0

    def blocks_of(self, r: str) -> list[int]:
        """Blocks of ``r`` in the engine's tables, the null block left out, group by group."""
        null = self.null.block_id
        return [b for group in self.manager.get_block_ids(r) for b in group if b != null]

    def held_by(self, requests: Iterable[str]) -> set[int]:
        return {b for r in requests for b, n in self.tables.get(r, Counter()).items() if n > 0}

    def snapshot(self) -> T.Snapshot:
        s = self.rec.s
        recv = s.finished_recving_kv_req_ids
        states = []
        for q in s.requests.values():
            name, blocks = q.status.name, self.blocks_of(q.request_id)
            st: Any
            if name == "RUNNING":
                st = T.RUNNING
            elif name == "WAITING_FOR_REMOTE_KVS":
                st = T.RECEIVED if q.request_id in recv else T.LOADING
            elif q.is_finished():
                st = T.FINISHED
            elif blocks:
                st = T.HELD
            else:
                st = T.PREEMPTED if name == "PREEMPTED" else T.WAITING
            states.append(
                T.ReqState(
                    r=q.request_id,
                    st=st,
                    prio=self.priority_of(q),
                    arr=float(q.arrival_time),
                    prompt=int(q.num_prompt_tokens),
                    max_tokens=int(q.max_tokens),
                    tok=int(q.num_tokens),
                    comp=int(q.num_computed_tokens),
                    blocks=blocks,
                    gen=self.rec.gen.get(q.request_id, 0),
                    out=int(q.num_output_tokens),
                    awaits={
                        "WAITING_FOR_STREAMING_REQ": "session",
                        "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR": "grammar",
                    }.get(name, ""),
                )
            )
        return T.Snapshot(
            step=self.rec.step, processed=self.rec.processed, free=self.free(), requests=states,
            run=[q.request_id for q in s.running],
        )  # fmt: skip

    # -------------------------------------------------------------- hooks

    @contextlib.contextmanager
    def within(self, kind: str, r: str) -> Iterator[None]:
        before, self.context = self.context, (kind, r)
        try:
            yield
        finally:
            self.context = before

    def install(self) -> None:
        """Hook the instances; :meth:`remove` puts back exactly what was there."""
        for owner, name in (
            (self.pool, "get_new_blocks"),
            (self.pool, "touch"),
            (self.pool, "free_blocks"),
            (self.manager, "allocate_slots"),
            (self.manager, "free"),
            (self.manager, "pop_blocks_for_free"),
            (self.coordinator, "remove_skipped_blocks"),
            (self.coordinator, "allocate_new_computed_blocks"),
            (self.rec.s.connector, "get_num_new_matched_tokens"),
            (self.rec.s.connector, "update_state_after_alloc"),
        ):
            if owner is None or not hasattr(owner, name):
                continue
            if name == "remove_skipped_blocks" and not prunes(owner):
                continue  # asked once per request and step, for nothing
            self._put_back.append((owner, name, own(owner, name, None)))
            setattr(owner, name, getattr(self, f"_{name}")(getattr(owner, name)))
        for manager in getattr(self.coordinator, "single_type_managers", ()):
            if hasattr(manager, "_apply_cow"):
                self._put_back.append((manager, "_apply_cow", own(manager, "_apply_cow", None)))
                manager._apply_cow = self.copies.hook(manager._apply_cow)

    def remove(self) -> None:
        for owner, name, before in reversed(self._put_back):
            if before is None:
                take_off(owner, name)
            else:
                setattr(owner, name, before)
        self._put_back.clear()

    def _who(self) -> tuple[str, str]:
        """What is being done, and for which request."""
        kind, r = self.context
        return ("allocate", self.asking.request_id) if self.asking is not None and not kind else (kind, r)

    def _get_new_blocks(self, call: Any) -> Any:
        def get_new_blocks(num_blocks: int, *a: Any, **k: Any) -> Any:
            got = call(num_blocks, *a, **k)
            ids = [b.block_id for b in got]
            if ids:
                kind, r = self._who()
                if r:
                    table = self._table(r)
                    for b in ids:
                        table[b] = table.get(b, 0) + 1
                    if self.asking is None:
                        self.fresh.extend(ids)
                    self.rec.emit(T.Alloc(r, ids))
                else:
                    self.others.update(ids)
                    self.rec.emit(T.Pin(kind or "connector", ids))
            return got

        return get_new_blocks

    def _touch(self, call: Any) -> Any:
        def touch(blocks: Any, *a: Any, **k: Any) -> Any:
            flat = [b for g in blocks for b in (g if isinstance(g, (list, tuple)) else (g,))]
            result = call(blocks, *a, **k)
            ids = [b.block_id for b in flat if not b.is_null]
            if ids:
                kind, r = self._who()
                if r:
                    self._table(r).update(ids)
                    self.shared.extend(ids)
                    self.rec.emit(T.Share(r, ids))
                else:
                    self.others.update(ids)
                    self.rec.emit(T.Pin(kind or "connector", ids))
            return result

        return touch

    def _free_blocks(self, call: Any) -> Any:
        def free_blocks(ordered_blocks: Any, *a: Any, **k: Any) -> Any:
            blocks = list(ordered_blocks)
            mine = [b for b in blocks if getattr(b, "pool", None) in (None, self.pool)]
            result = call(blocks, *a, **k)
            ids = [b.block_id for b in mine if not b.is_null]
            if ids:
                kind, r = self._who()
                if kind in ("drain", "copy") and self.copies.released(ids, now=kind == "copy"):
                    pass
                elif kind == "drain" or not r:
                    self.others.subtract(ids)
                    self.rec.emit(T.Drain(ids) if kind == "drain" else T.Unpin(kind or "connector", ids))
                else:
                    self._table(r).subtract(ids)
                    self.rec.emit(T.Free(r, ids) if kind == "free" else T.Prune(r, ids, self.upto))
            return result

        return free_blocks

    def _free(self, call: Any) -> Any:
        def free(request: Any, *a: Any, **k: Any) -> Any:
            with self.within("free", request.request_id):
                result = call(request, *a, **k)
            self._drop_if_empty(request.request_id)
            return result

        return free

    def _pop_blocks_for_free(self, call: Any) -> Any:
        def pop_blocks_for_free(request: Any, *a: Any, **k: Any) -> Any:
            if self.context[0] == "free":  # free() itself may be made of pop and free_blocks
                return call(request, *a, **k)
            blocks = call(request, *a, **k)
            ids = [b.block_id for b in blocks if not b.is_null]
            if ids:
                r = request.request_id
                self._table(r).subtract(ids)
                self.others.update(ids)
                self.rec.emit(T.Fence(r, ids, self.rec.fence_step()))
                self._drop_if_empty(r)
            return blocks

        return pop_blocks_for_free

    def _remove_skipped_blocks(self, call: Any) -> Any:
        def remove_skipped_blocks(request_id: str, *a: Any, **k: Any) -> Any:
            tokens = a[0] if a else next(iter(k.values()), -1)
            self.upto = int(tokens)
            with self.within("prune", request_id):
                return call(request_id, *a, **k)

        return remove_skipped_blocks

    def _allocate_slots(self, call: Any) -> Any:
        from vllm.v1.request import RequestStatus

        rec, is_running = self.rec, RequestStatus.RUNNING

        def allocate_slots(
            request: Any, num_new_tokens: int, *a: Any, num_lookahead_tokens: int = 0, **k: Any
        ) -> Any:
            if (
                request.status is is_running and not a and not k
            ):  # a fast path: each running request, each step
                self.asking = request
                try:
                    result = call(request, num_new_tokens, num_lookahead_tokens=num_lookahead_tokens)
                finally:
                    self.asking = None
                if result is not None:  # all that happened are the pool's own events
                    return result
                r, running = request.request_id, True
            else:
                r, running = request.request_id, request.status is is_running
                if num_lookahead_tokens:
                    k["num_lookahead_tokens"] = num_lookahead_tokens
                self.fresh, self.shared, self.external = [], [], 0
                with self.within("allocate", r):
                    result = call(request, num_new_tokens, *a, **k)
            if running and result is not None:
                return result
            names = ("num_new_computed_tokens", "new_computed_blocks", "num_lookahead_tokens",
                     "num_external_computed_tokens", "delay_cache_blocks")  # fmt: skip
            given = {"num_lookahead_tokens": num_lookahead_tokens, **dict(zip(names, a, strict=False)), **k}
            hit, ext = given.get("num_new_computed_tokens", 0), given.get("num_external_computed_tokens", 0)
            parked = bool(given.get("delay_cache_blocks"))
            comp = request.num_computed_tokens or hit + ext
            if result is None:
                rec.refused = r
                need = -1
                if len(self.manager.kv_cache_config.kv_cache_groups) == 1:
                    size = rec.s.block_size
                    tokens = comp + num_new_tokens + given.get("num_lookahead_tokens", 0)
                    have = sum(self.tables.get(r, Counter()).values()) + hit // size
                    need = max(0, -(-tokens // size) - have)
                why = "blocks" if need > self.free() else "reserved" if k.get("reserved_blocks") else "fit"
                rec.emit(T.Refuse(r, need, why))
                return None
            if ext > 0:
                rec.gen[r] = rec.gen.get(r, 0) + 1
                target = self._load_target(r, hit, ext)
                rec.emit(T.Load(r, rec.gen[r], target, "async" if parked else "sync", ext))
                if parked:
                    rec.loading[r] = target
                    rec.begun.discard(r)
                else:
                    rec.sync_loads[r] = rec.step
            if not running and not parked and rec.kind == "schedule":
                rec.emit(T.Admit(r, comp))
            return result

        return allocate_slots

    def _allocate_new_computed_blocks(self, call: Any) -> Any:
        def allocate_new_computed_blocks(*a: Any, **k: Any) -> Any:
            result = call(*a, **k)
            self.external = len(self.fresh)  # blocks for tokens that are computed here come behind them
            return result

        return allocate_new_computed_blocks

    def _load_target(self, r: str, hit: int, ext: int) -> list[int]:
        """Blocks the load will write: newly allocated ones that hold external tokens."""
        if len(self.manager.kv_cache_config.kv_cache_groups) != 1:
            return self.fresh[: self.external]
        size = self.rec.s.block_size
        last = -(-(hit + ext) // size) - len(self.shared)
        return self.fresh[: max(0, last)]

    def _get_num_new_matched_tokens(self, call: Any) -> Any:
        def get_num_new_matched_tokens(request: Any, *a: Any, **k: Any) -> Any:
            answer = call(request, *a, **k)
            if answer[0] is None and "not_yet" not in self.rec.own:
                self.rec.emit(T.NotYet(request.request_id))
            return answer

        return get_num_new_matched_tokens

    def _update_state_after_alloc(self, call: Any) -> Any:
        def update_state_after_alloc(
            request: Any, blocks: Any, num_external_tokens: int, *a: Any, **k: Any
        ) -> Any:
            if num_external_tokens > 0 and "start" not in self.rec.own:
                self.rec.begun.add(request.request_id)
                self.rec.emit(T.Start(request.request_id, self.rec.gen.get(request.request_id, 0)))
            return call(request, blocks, num_external_tokens, *a, **k)

        return update_state_after_alloc

    # -------------------------------------------------------------- did we see everything?

    def _drop_if_empty(self, r: str) -> None:
        table = self.tables.get(r)
        if table is not None and not any(table.values()):
            del self.tables[r]

    def refs(self, events: Iterable[T.Event], most: int = 8) -> dict[int, int]:
        """A sample of the pool's own counts: blocks that ``events`` name, and one more, a turn further."""
        blocks = self.pool.blocks
        self.turn = self.turn % (len(blocks) - 1) + 1 if len(blocks) > 1 else 0
        ids = [self.turn]
        for e in events:
            if len(ids) >= most:
                break
            ids += getattr(e, "blocks", ())[: most - len(ids)]
        return {b: blocks[b].ref_cnt for b in sorted(ids) if b}

    def differences(self) -> list[str]:
        """What the engine's own tables say and the recorded events do not."""
        found = []
        live = self.rec.s.requests
        for r in set(live) | set(self.tables):
            seen = +self.tables.get(r, Counter())
            real = Counter(self.blocks_of(r)) if r in live else Counter()
            if seen != real:
                found.append(
                    f"blocks of {r}: recorded {sorted(seen.elements())}, engine {sorted(real.elements())}"
                )
        refs: Counter[int] = Counter(self.others)
        for table in self.tables.values():
            refs.update(table)
        for b in self.pool.blocks:
            if not b.is_null and b.ref_cnt != refs[b.block_id]:
                found.append(
                    f"block {b.block_id}: recorded {refs[b.block_id]} references, engine {b.ref_cnt}"
                )
        return found[:8]
