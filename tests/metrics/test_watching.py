"""What the guard tells the stall watch, on a stand-in of the few attributes that it reads."""

from __future__ import annotations

from types import SimpleNamespace as N
from typing import Any

import pytest

from stallproof.core.stall_watch import parse
from stallproof.vllm.watching import WatchPart


class Request:
    def __init__(self, rid: str, status: str = "WAITING", computed: int = 0) -> None:
        self.request_id, self.num_computed_tokens, self.arrival_time = rid, computed, 1.0
        self.status = N(name=status)

    def is_finished(self) -> bool:
        return self.status.name.startswith("FINISHED")


class Guard(WatchPart):
    """The attributes of the guard and of the engine that the watch reads."""

    def __init__(self, *requests: Request, deadline: float = 60.0) -> None:
        self.requests = {r.request_id: r for r in requests}
        self.running: list[Any] = [r for r in requests if r.status.name == "RUNNING"]
        self.waiting: list[Any] = []
        self.max_num_running_reqs, self._sp_seats_name = 8, "max_num_running_reqs"
        self.finished_recving_kv_req_ids: set[str] = set()
        self.connector = object()
        self.now = 0.0
        self._sp_now = lambda: self.now
        self._sp_depth, self._sp_act = 2, True
        self._sp_steps = N(working=0, in_flight=0)
        self._sp_gate: dict = {}
        self._sp_call = N(evicted=[], target=None)
        self._sp_quarantine = N(blocks=0)
        self._sp_key = lambda r: r.request_id

        class Deferral(dict):
            limit = deadline

        self._sp_deferral, self._sp_put_off = Deferral(), set[str]()
        pool = N(get_num_free_blocks=lambda: 3, num_gpu_blocks=9)
        self.kv_cache_manager = N(block_pool=pool, get_blocks=lambda rid: N(blocks=()))
        self.vllm_config = N(
            parallel_config=N(data_parallel_index=3), model_config=N(served_model_name=["name", "other"])
        )

    def _sp_rules(self) -> list[str]:
        return ["Commit"]

    def _sp_fault(self, hook: str, exc: Exception) -> None:
        raise exc

    def run(self, calls: int, tokens: dict[str, int] | None = None, outputs: bool = False) -> None:
        scheduled = tokens or {}
        for _ in range(calls):
            self.now += 1.0
            for rid, computed in scheduled.items():
                self.requests[rid].num_computed_tokens = computed
            self._sp_watch(
                N(
                    total_num_scheduled_tokens=len(scheduled),
                    num_scheduled_tokens=scheduled,
                    finished_req_ids=set(),
                )
            )
            if outputs:
                self._sp_watch_outputs({0: N(outputs=[object()])})


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture):
    return lambda: [value for r in caplog.records if (value := parse(r.getMessage()))]


def guard(*requests: Request, **kwargs: float) -> Guard:
    made = Guard(*requests, **kwargs)
    made._sp_set_up_watch()
    return made


def test_labels_are_rank_and_first_served_name() -> None:
    assert guard()._sp_labels() == ("name", 3)


def test_a_wedge_is_seen(lines) -> None:
    guard(Request("a"), Request("b", "PREEMPTED")).run(10)
    assert {x["kind"] for x in lines()} == {"wedge"}
    assert [w["r"] for w in lines()[0]["waiters"]] == ["a", "b"]
    assert lines()[0]["engine"] == "3"


@pytest.mark.parametrize(
    "change",
    [
        lambda g: g._sp_steps.__dict__.update(working=1),
        lambda g: g._sp_put_off.add("a"),
        lambda g: g._sp_gate.update(a=1),
        lambda g: setattr(g, "pause_state", N(name="PAUSED_ALL")),
        lambda g: setattr(g._sp_deferral.__class__, "limit", 0.0),
        lambda g: g.requests.update(s=Request("s", "FINISHED_STOPPED")),
        lambda g: g.requests.update(l=Request("l", "WAITING_FOR_REMOTE_KVS")),
        lambda g: g.requests.clear(),
    ],
    ids=["step in flight", "not yet", "gated load", "paused", "no deadline", "send", "load", "idle"],
)
def test_no_wedge_while_something_is_pending(change, lines) -> None:
    made = guard(Request("a"))
    change(made)
    made.run(100)
    assert [x for x in lines() if x["kind"] == "wedge"] == []


@pytest.mark.parametrize(
    ("status", "why"), [("WAITING_FOR_REMOTE_KVS", "load"), ("FINISHED_STOPPED", "send")]
)
def test_an_old_outside_wait_is_seen(status: str, why: str, lines) -> None:
    guard(Request("a", status)).run(130)
    first = lines()[0]
    assert first["kind"] == "external_wait"
    assert first["seconds"] >= 120
    assert first["waiters"][0]["why"] == why


def test_a_load_that_has_arrived_is_not_an_outside_wait(lines) -> None:
    made = guard(Request("a", "WAITING_FOR_REMOTE_KVS"))
    made.finished_recving_kv_req_ids.add("a")
    made.run(200)
    assert [x for x in lines() if x["kind"] == "external_wait"] == []


def test_a_livelock_recomputes_and_a_long_prefill_does_not(lines) -> None:
    thrash = guard(Request("a", "RUNNING"))
    for i in range(200):
        thrash.run(1, {"a": 64 if i % 2 else 128})
    assert {x["kind"] for x in lines()} == {"livelock"}


def test_control_a_long_prefill_is_an_advance(lines) -> None:
    prefill = guard(Request("a", "RUNNING"))
    for i in range(1, 400):
        prefill.run(1, {"a": 64 * i})
    assert lines() == []


def test_control_tokens_are_an_advance(lines) -> None:
    guard(Request("a", "RUNNING")).run(400, {"a": 64}, outputs=True)
    assert lines() == []


def test_without_a_seat_the_head_of_the_queue_lacks_no_blocks() -> None:
    """Releases differ in the attribute that says how many may run."""
    guard = Guard(Request("a", "RUNNING"), Request("b"))

    class Queue(list):
        def peek_request(self) -> Request:
            return self[0]

    guard.waiting = Queue([guard.requests["b"]])
    assert guard._sp_head() is guard.requests["b"]
    guard.max_num_active_reqs, guard._sp_seats_name = 1, "max_num_active_reqs"
    assert guard._sp_head() is None
