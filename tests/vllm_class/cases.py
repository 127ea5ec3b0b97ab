"""Cases on a live scheduler, run by ``runner`` in an engine's interpreter; each takes the release's series.

A case that shows a rule also shows what vLLM's own class does, on the releases where it lacks the rule.
"""

# ruff: noqa: PT017, PT018, SIM113 - plain asserts, run outside pytest

from __future__ import annotations

import logging
import os
from typing import Any

from rig import Rig, T

OURS = "stallproof"


def minor(series: str) -> int:
    return int(series.split(".")[1])


# ---------------------------------------------------------------- the three seeds


def _cascade(cls: str) -> Rig:
    rig = Rig(cls, blocks=24, depth=2, role="kv_both", budget=2048)
    for i in range(6):
        rig.add(f"r{i}", 63, 30)
    return rig.run(600)


def case_cascade(series: str) -> None:
    """Six requests that need a block in the same step, everybody in flight (vLLM #49674)."""
    stock = _cascade("stock")
    if series in ("0.27", "0.28", "0.29"):
        assert len(stock.s.requests) == 6 and stock.steps == 600, "vLLM's own class no longer livelocks here"
    ours = _cascade(OURS)
    ours.all_done()
    assert ours.outputs == {f"r{i}": 30 for i in range(6)}
    assert ours.fired.get("Patience")


def _wedge(cls: str) -> Rig:
    rig = Rig(cls, blocks=40, depth=1, role="kv_both", budget=2048)
    rig.add("H", 30 * 16, defer=1)
    rig.add("L", 22 * 16, tokens=21 * 16)
    rig.add("W", 16)
    return rig.run(100)


def case_wedge(series: str) -> None:
    """A holder with a finished load behind a request that holds nothing and does not fit (vLLM #57841)."""
    if minor(series) <= 30:
        assert set(_wedge("stock").s.requests) == {"H", "L"}, "vLLM's own class no longer wedges here"
    ours = _wedge(OURS)
    ours.all_done()
    if minor(series) <= 30:
        assert ours.fired.get("OneOrder")


def _n1(cls: str) -> tuple[Rig, Any]:
    rig = Rig(
        cls, blocks=4, depth=2, role="kv_consumer", chunk_cap=32, budget=64, budget_tokens=44, max_num_seqs=64
    )
    r, k = rig.add("R", 64, 1), 0
    while not r.is_finished() and rig.steps < 600:
        while len(rig.s.waiting) < 8:
            rig.add(f"W{k}", 12, 1)
            k += 1
        rig.step()
    return rig, r


def case_n1(series: str) -> None:
    """An older running request starves behind newcomers (finding N1)."""
    if minor(series) >= 30:
        stock, r = _n1("stock")
        assert not r.is_finished() and stock.steps == 600, "vLLM's own class no longer starves here"
    ours, r = _n1(OURS)
    assert r.is_finished() and ours.steps < 10
    assert ours.fired.get("Patience")


# ---------------------------------------------------------------- GateLoads


def _freed_in_flight(cls: str, **more: Any) -> tuple[Rig, set[int], int]:
    """A's blocks are freed while steps that write them are in flight; B's load wants them."""
    rig = Rig(cls, blocks=8, depth=2, role="kv_both", **more)
    rig.add("A", 120, 4)
    rig.schedule()
    rig.schedule()
    hot = set(rig.s.kv_cache_manager.get_block_ids("A")[0])
    rig.abort("A")
    return rig, hot, rig.steps


def _first_unsafe_start(rig: Rig, hot: set[int], newest: int) -> str:
    """A load that started into blocks of ``hot`` before step ``newest`` was processed."""
    processed = 0
    for _ in range(8):
        out = rig.schedule()
        del out
        for step, r, blocks in rig.started:
            if set(blocks) & hot and processed < newest and step == rig.steps:
                return f"{r} started with {processed} steps processed"
        rig.process()
        processed += 1
    return ""


def case_gate_holds_a_start(series: str) -> None:
    """Blocks are given at once, the start waits for the steps that may touch them; then it all finishes."""
    if minor(series) == 23:
        rig, hot, newest = _freed_in_flight("stock")
        rig.add("B", 100, 4, tokens=96)
        assert _first_unsafe_start(rig, hot, newest), "0.23 has no fence, but the load did not start early"
    rig, hot, newest = _freed_in_flight(OURS)
    assert rig.free == 8, "frees are immediate"
    rig.add("B", 100, 4, tokens=96)
    assert not _first_unsafe_start(rig, hot, newest)
    rig.run()
    rig.all_done()
    assert rig.fired.get("GateLoads")
    assert rig.s.stallproof_stats()["load_starts_delayed"] == 1


def case_gate_does_not_wait_without_need(series: str) -> None:
    """Quiescent blocks: the load starts in the call that admits it."""
    rig = Rig(OURS, blocks=8, depth=2, role="kv_both")
    rig.add("B", 100, 4, tokens=96)
    rig.step()
    assert [r for _, r, _ in rig.started] == ["B"] and rig.started[0][0] == 1
    rig.run()
    rig.all_done()


def case_gate_does_not_wait_for_the_steps_of_others(series: str) -> None:
    """A ends by its length, so the step in flight is X's alone: a load into A's blocks starts at once.

    One that does touch blocks of anybody (zeroing, copies) is waited for.
    """
    if minor(series) < 24:
        return  # no hook tells whose blocks are released
    for touches in (False, True):
        rig = Rig(OURS, blocks=12, depth=2, role="kv_both")
        rig.add("X", 16, 40)
        rig.add("A", 120, 3)
        while "A" not in rig.finished:
            out = rig.schedule()
            if touches:
                rig.s._sp_touching = rig.s._sp_steps.dispatched
            if len(rig.flight) > 1:
                rig.process()
        assert set(out.num_scheduled_tokens) == {"X"}, "a step of X alone is in flight"
        rig.add("B", 100, 4, tokens=96)
        rig.schedule()
        assert bool(rig.started) is not touches, rig.started
        rig.run()
        rig.all_done()


def case_gate_sync_load_takes_quiescent_blocks(series: str) -> None:
    """A load that starts in its own step gets quiescent blocks, and the free list keeps its order."""
    rig = Rig(OURS, blocks=16, depth=2, role="kv_both")
    rig.add("A", 64, 4)
    rig.schedule()
    rig.schedule()
    hot = set(rig.s.kv_cache_manager.get_block_ids("A")[0])
    rig.abort("A")
    rig.add("B", 100, 4, tokens=96, mode="sync")
    rig.schedule()
    got = [blocks for _, r, blocks in rig.started if r == "B"]
    assert got and not set(got[0]) & hot, (got, hot)
    rig.run()
    rig.all_done()


def case_gate_sync_load_waits_if_too_few(series: str) -> None:
    rig, hot, newest = _freed_in_flight(OURS)
    rig.add("B", 100, 4, tokens=96, mode="sync")
    assert not _first_unsafe_start(rig, hot, newest)
    rig.run()
    rig.all_done()
    assert rig.started


def case_abort_of_a_held_load(series: str) -> None:
    """A load that never started owes no report: its blocks are free at once, and nothing is left behind."""
    rig, _, _ = _freed_in_flight(OURS)
    rig.add("B", 100, 4, tokens=96)
    rig.schedule()
    assert rig.s.stallproof_stats()["loads_held"] == 1
    rig.abort("B")
    assert rig.free == 8 and "B" not in rig.s.requests
    rig.run()
    assert not [r for _, r, _ in rig.started if r == "B"]
    rig.all_done()


def case_falls_back_for_an_unknown_connector(series: str) -> None:
    """Nobody vouches for the class: the engine's own fence, or, where there is none, quiescent blocks."""
    import stallproof.harness.connector as c

    c.ScriptedConnector.stallproof_new_blocks_only = False
    try:
        rig, hot, newest = _freed_in_flight(OURS)
        stats = rig.s.stallproof_stats()
        if minor(series) == 23:
            assert stats["fence_mode"] == "GateLoads" and rig.free == 8
        else:
            assert stats["fence_mode"] == "DeferFrees" and rig.free == 0
        assert "not an audited connector" in stats["why"]
        rig.add("B", 100, 4, tokens=96)
        assert not _first_unsafe_start(rig, hot, newest)
        rig.run()
        rig.all_done()
        cascade = _cascade(OURS)
        cascade.all_done()
        if minor(series) > 23:
            assert cascade.s.stallproof_stats()["fence_mode"] == "DeferFrees"
        if minor(series) >= 30:
            n1, r = _n1(OURS)
            assert r.is_finished(), n1.steps
    finally:
        c.ScriptedConnector.stallproof_new_blocks_only = True


def case_gate_keeps_the_order_of_the_free_list(series: str) -> None:
    """S6: blocks freed last stand at the head of the pool; a load that must not have them passes over."""
    rig = Rig(OURS, blocks=16, depth=2, role="kv_both", record=False)
    rig.add("A", 64, 4)
    rig.schedule()
    rig.schedule()
    rig.abort("A")
    queue = rig.s.kv_cache_manager.block_pool.free_block_queue
    before = [b.block_id for b in queue.get_all_free_blocks()]
    rig.add("B", 100, 4, tokens=96, mode="sync")
    rig.schedule()
    taken = set(rig.s.kv_cache_manager.get_block_ids("B")[0])
    after = [b.block_id for b in queue.get_all_free_blocks()]
    assert after == [b for b in before if b not in taken], (before, taken, after)


def case_gate_counts_fenced_blocks_as_free(series: str) -> None:
    """S8: a load start needs free blocks and the reservation, not quiescent ones for both."""
    rig = Rig(OURS, blocks=16, depth=2, role="kv_both", record=False, chunk_cap=16, budget=64)
    rig.add("A", 80, 4)
    rig.schedule()
    rig.schedule()
    rig.add("P", 100, 4)  # a prefill in flight: what it still needs is reserved
    rig.schedule()
    rig.abort("A")
    rig.add("B", 68, 4, tokens=64)
    rig.schedule()
    assert rig.s.requests["B"].status.name == "WAITING_FOR_REMOTE_KVS", "refused for fenced blocks"
    rig.run()
    rig.all_done()


def case_gate_waits_through_steps_without_tokens(series: str) -> None:
    """S9, S10: only a load is there; its fence passes by steps that schedule nothing."""
    rig, _, _ = _freed_in_flight(OURS)
    rig.add("B", 100, 4, tokens=96)
    tokens = 0
    while not rig.started and rig.steps < 20:
        tokens += rig.schedule().total_num_scheduled_tokens
        rig.process()
    assert rig.started and tokens == 0
    rig.run()
    rig.all_done()


def case_gate_with_work_after_the_output_event(series: str) -> None:
    """S11: where a step's last work follows its output (model runner V2), one more step must be processed."""
    for lag in (0, 1):
        rig, _, newest = _freed_in_flight(OURS)
        rig.s._sp_steps.lag = lag
        rig.add("B", 100, 4, tokens=96)
        processed = 0
        while not rig.started and processed < 10:
            rig.schedule()
            if not rig.started:
                rig.process()
                processed += 1
        assert processed >= newest + lag, (processed, newest, lag)
        rig.run()
        rig.all_done()


def case_gate_after_the_last_output(series: str) -> None:
    """S11 in an engine that has processed everything: the last step's late work may still run."""
    rig = Rig(OURS, blocks=8, depth=2, role="kv_both")
    rig.s._sp_steps.lag = 1
    rig.add("A", 120, 4)
    rig.schedule()
    rig.schedule()
    rig.drain()
    assert rig.s._sp_steps.in_flight == 0
    rig.abort("A")
    rig.add("B", 100, 4, tokens=96)
    rig.schedule()
    assert not rig.started, "started while the late work of the last processed step may still run"
    rig.run()
    rig.all_done()


def case_gate_follows_the_device(series: str) -> None:
    """Device fences: a load starts when the device is done, before or after the outputs say so."""
    rig, _, newest = _freed_in_flight(OURS)
    rig.s._sp_steps.observe(newest)  # nothing is processed yet
    rig.add("B", 100, 4, tokens=96)
    rig.schedule()
    assert rig.started, "the device is done; nothing to wait for"
    rig.run()
    rig.all_done()

    rig, _, newest = _freed_in_flight(OURS)
    rig.s._sp_steps.observe(0)
    rig.add("B", 100, 4, tokens=96)
    for _ in range(4):  # every output is processed, but the device reports nothing
        rig.schedule()
        rig.process()
    assert rig.s._sp_steps.processed > newest and not rig.started
    rig.s._sp_steps.observe(newest + 99)  # more than was dispatched: not believed
    assert rig.s._sp_steps.done == rig.s._sp_steps.dispatched
    rig.schedule()
    assert rig.started
    rig.run()
    rig.all_done()

    rig, _, newest = _freed_in_flight(OURS)  # the device stops reporting: back to the outputs
    rig.s._sp_steps.observe(0)
    rig.add("B", 100, 4, tokens=96)
    for _ in range(3):
        rig.schedule()
        rig.process()
    assert not rig.started
    rig.s._sp_steps.observe(-1)
    rig.schedule()
    assert rig.started


# ---------------------------------------------------------------- commit, order


def _parked_beside_an_older_runner(cls: str) -> tuple[Rig, Any]:
    """One seat: L parks with a load that ends, W, which is older in order, runs and grows."""
    rig = Rig(cls, blocks=10, depth=1, role="kv_both", policy="priority", max_num_seqs=1)
    rig.add("L", 100, 4, priority=5, tokens=96)
    rig.step()
    w = rig.add("W", 30, 60, priority=1)
    for _ in range(45):
        rig.step()
    return rig, w


def case_commit_before_preemption(series: str) -> None:
    """A refused running request takes the blocks of a younger request that does not run."""
    _, w = _parked_beside_an_older_runner("stock")
    assert w.num_preemptions > 0, "vLLM's own class spares the older request here"
    rig, w = _parked_beside_an_older_runner(OURS)
    assert w.num_preemptions == 0
    assert [(e.r, e.target) for e in rig.of(T.Evict)] == [("L", "W")]
    victim = rig.s.requests["L"]
    assert victim.status.name == "WAITING" and victim.num_preemptions == 0, "it never ran"
    rig.run()
    rig.all_done()
    assert rig.fired.get("Commit") == 1


def _session(cls: str) -> Rig:
    """A streaming session keeps its blocks between turns (#49439); A needs them."""
    rig = Rig(cls, blocks=10, depth=1, prefix_caching=False)
    rig.add("S", 100, 4, resumable=True)
    for _ in range(8):
        rig.step()
    assert rig.s.requests["S"].status.name == "WAITING_FOR_STREAMING_REQ"
    rig.add("A", 90, 4)
    for _ in range(20):
        rig.step()
    return rig


def case_session_gives_its_blocks_up(series: str) -> None:
    stock = _session("stock")
    assert not stock.finished.get("A"), "vLLM's own class serves A here"
    rig = _session(OURS)
    assert "A" in rig.finished, "A did not run"
    assert [(e.r, e.target) for e in rig.of(T.Evict)] == [("S", "A")]
    before = rig.outputs["S"]
    rig.add("S", 20, 4, resumable=True, salt="turn 2")
    for _ in range(10):
        rig.step()
    assert rig.outputs["S"] == before + 4
    # the engine keeps what was computed of turn 1, its last sampled token excepted
    assert rig.s.requests["S"].num_tokens == 100 + 3 + 20 + 4
    rig.abort("S")
    rig.all_done()


def _session_and_load(cls: str, idle: bool) -> Rig:
    """S holds 7 of 10 blocks between turns, or waits with its next turn; A wants to load 6."""
    rig = Rig(cls, blocks=10, depth=1, role="kv_both", prefix_caching=False, max_num_seqs=2 if idle else 1)
    rig.add("S", 100, 4, resumable=True)
    for _ in range(8):
        rig.step()
    assert rig.s.requests["S"].status.name == "WAITING_FOR_STREAMING_REQ"
    if not idle:
        rig.add("Q", 16, 60)  # has the only seat
        rig.step()
        rig.add("S", 20, 4, resumable=True, salt="turn 2")
    rig.add("A", 96, 4, tokens=96)
    for _ in range(20):
        rig.step()
    return rig


def case_load_start_takes_an_idle_sessions_blocks(series: str) -> None:
    """The one eviction whose target does not run in the same call: a session between turns gives way."""
    stock = _session_and_load("stock", idle=True)
    assert not stock.started and "A" not in stock.finished, "vLLM's own class starts the load here"
    rig = _session_and_load(OURS, idle=True)
    assert [r for _, r, _ in rig.started] == ["A"] and "A" in rig.finished
    assert [(e.r, e.target) for e in rig.of(T.Evict)] == [("S", "A")]
    rig.abort("S")
    rig.all_done()
    rig = _session_and_load(OURS, idle=False)  # with a turn to compute it competes: no load takes its blocks
    assert not rig.of(T.Evict) and not rig.started


def _talks_on(tokens: int = 0, **more: Any) -> tuple[Rig, int]:
    """S's next input is always there when a turn ends; A, which came before all turns but two, lacks blocks.

    Returns how many turns S has begun when A gets blocks.
    """
    rig = Rig(OURS, blocks=10, depth=1, role="kv_both" if tokens else "", prefix_caching=False, **more)
    rig.add("S", 100, 2, resumable=True)
    rig.step()
    rig.add("S", 1, 2, resumable=True, salt="0")
    rig.step()
    rig.add("A", 96, 4, **({"tokens": tokens} if tokens else {}))
    for n in range(1, 12):
        rig.add("S", 1, 2, resumable=True, salt=str(n))
    for _ in range(60):
        if rig.outputs.get("A") or rig.started:
            break
        rig.step()
    return rig, len(rig.of(T.Turn))


def case_a_session_passes_an_older_request_once(series: str) -> None:
    """Finding N7; spec: TurnsYield. The other turns are begun when A has been served, none is lost."""
    for tokens in (0, 96):  # to compute, to load
        rig, turns = _talks_on(tokens)
        assert rig.outputs.get("A") or rig.started, "A did not get its blocks"
        assert turns <= 3, f"the session began {turns} turns before"
        assert [(e.r, e.target) for e in rig.of(T.Evict)] == [("S", "A")]
        rig.add("S", 1, 1)  # the client ends the session
        rig.run()
        assert len(rig.of(T.Turn)) == 12 and rig.outputs["S"] == 2 * 13, rig.outputs
        assert rig.outputs["A"] == 4 and rig.fired.get("TurnsYield")
        rig.all_done()
    rig, turns = _talks_on(env={"STALLPROOF_OFF": "TurnsYield"})
    assert turns == 12 and "TurnsYield" not in rig.fired, "the session would have gone on before A"


def case_a_fault_keeps_no_turn(series: str) -> None:
    """Whether a turn has to wait cannot be found out: it begins, as with the engine alone."""
    from unittest.mock import patch

    with patch("stallproof.vllm.turns.TurnPart._sp_older", side_effect=ZeroDivisionError("turns")):
        rig, _ = _talks_on(env={"STALLPROOF_STRICT": "0"})
        rig.add("S", 1, 1)
        rig.run()
    assert len(rig.of(T.Turn)) == 12 and rig.outputs == {"S": 2 * 13, "A": 4}
    assert rig.s.stallproof_stats()["faults"]
    rig.all_done()


def case_a_kept_session_holds_no_pause_up(series: str) -> None:
    """Who pauses the engine waits until nothing is unfinished."""
    from vllm.v1.core.sched.interface import PauseState

    rig = Rig(OURS, blocks=10, depth=1, prefix_caching=False)
    rig.add("S", 100, 2, resumable=True)
    rig.step()
    rig.add("S", 1, 2, resumable=True, salt="0")
    rig.step()
    rig.add("A", 96, 4)
    for n in range(1, 6):
        rig.add("S", 1, 2, resumable=True, salt=str(n))
    for _ in range(20):
        if rig.s._sp_kept:
            break
        rig.step()
    rig.drain()
    assert rig.s._sp_kept and rig.s.get_num_unfinished_requests() == 2  # S and A
    rig.s.set_pause_state(PauseState.PAUSED_ALL)
    assert rig.s.get_num_unfinished_requests() == 0
    rig.s.set_pause_state(PauseState.UNPAUSED)
    rig.add("S", 1, 1)
    rig.run()
    assert rig.outputs == {"S": 2 * 7, "A": 4}
    rig.all_done()


def case_a_kept_session_is_aborted(series: str) -> None:
    """What was kept of its inputs is of no other session that gets its name."""
    rig, turns = _talks_on()
    assert "S" in rig.s._sp_kept or rig.s.requests["S"].streaming_queue
    rig.abort("S")
    rig.add("S", 16, 2, resumable=True)
    rig.run()
    assert rig.s.requests["S"].status.name == "WAITING_FOR_STREAMING_REQ" and not rig.s._sp_kept
    assert len(rig.of(T.Turn)) == turns
    rig.abort("S")
    rig.run()
    rig.all_done()


def case_running_list_stays_in_order(series: str) -> None:
    """A resumed older request is not the next victim although the engine appended it last."""
    rig = Rig(OURS, blocks=12, depth=2, role="kv_both", prefix_caching=False)
    for i in range(5):
        rig.add(f"r{i}", 40, 40)
    for _ in range(200):
        if not rig.s.has_unfinished_requests():
            break
        rig.step()
        keys = [rig.s._sp_key(r) for r in rig.s.running]
        assert keys == sorted(keys), [r.request_id for r in rig.s.running]
    rig.drain()
    rig.all_done()
    assert rig.of(T.Preempt)


# ---------------------------------------------------------------- completion protocol


def case_unexpected_reports(series: str) -> None:
    """Unknown, early and duplicate reports: vLLM's own class dies on them, ours goes on."""
    for report in ({"recv": ["nobody"]}, {"sent": ["nobody"]}, {"recv": ["A"]}):
        died = False
        stock = Rig("stock", blocks=16, depth=1, role="kv_both", record=False)
        stock.add("A", 40, 8)
        try:
            stock.step(**report)
        except (AssertionError, KeyError):
            died = True
        assert died, f"vLLM's own class bears {report}"
        ours = Rig(OURS, blocks=16, depth=1, role="kv_both")
        seen: list[Any] = []
        ours.s.connector.update_connector_output = lambda out, seen=seen: seen.append(out)
        ours.add("A", 40, 8)
        ours.step(**report)
        assert len(seen) == 1 and (seen[0].finished_recving or seen[0].finished_sending), "raw report"
        ours.run()
        ours.all_done()
        assert ours.fired.get("Completions") == 1
        assert len(ours.of(T.Ignored)) == 1


def case_receive_and_send_are_counted_apart(series: str) -> None:
    """A finished request whose send is outstanding is not freed by a late receive report (#46240, #43226)."""
    rig = Rig(OURS, blocks=16, depth=1, role="kv_both", record=False)
    rig.add("A", 40, 2, tokens=0, send={"delay": 99, "outcome": "ok"})
    while "A" in {r.request_id for r in rig.s.running} or not rig.finished:
        rig.step()
    assert "A" in rig.s.requests and rig.free < 16
    rig.step(recv=["A"])
    assert "A" in rig.s.requests and rig.free < 16, "freed by a report that answers nothing"
    rig.step(sent=["A"])
    rig.all_done()
    rig.step(sent=["A"])  # a duplicate
    rig.all_done()


# ---------------------------------------------------------------- deadlines and quarantine


def _lost(**env: str) -> Rig:
    rig = Rig(
        OURS, blocks=16, depth=2, role="kv_both", env={"STALLPROOF_LOAD_DEADLINE_S": "10", **env},
        record=False,
    )  # fmt: skip
    rig.mute = {"B"}
    rig.add("B", 100, 4, tokens=96, again=True)
    rig.add("C", 20, 4)
    for _ in range(6):
        rig.step()
    return rig


def case_a_lost_load_is_given_up(series: str) -> None:
    """#46283: the request recomputes, its blocks are quarantined, and a late report gives them back."""
    rig = _lost()
    assert rig.s.requests["B"].status.name == "WAITING_FOR_REMOTE_KVS"
    rig.now = 11.0
    rig.run(60)
    assert rig.finished["B"].finish_reason is not None and rig.outputs["B"] == 4
    assert not rig.s.requests
    stats = rig.s.stallproof_stats()
    assert stats["quarantined_blocks"] == 6 and rig.free == 10
    assert len([r for _, r, _ in rig.started if r == "B"]) == 1, "the id must not load again"
    assert sorted(rig.s.sp_quarantined()) == sorted(rig.started[0][2])
    rig.add("D", 20, 4)
    rig.step()
    rig.step(recv=["B"])
    rig.step()
    rig.run()
    rig.all_done()
    assert rig.s.stallproof_stats()["quarantined_blocks"] == 0


def case_stock_waits_for_ever_for_a_lost_load(series: str) -> None:
    rig = Rig("stock", blocks=16, depth=2, role="kv_both", record=False)
    rig.mute = {"B"}
    rig.add("B", 100, 4, tokens=96)
    rig.now = 1e9
    rig.run(100)
    assert "B" in rig.s.requests


def case_quarantine_and_cache_reset(series: str) -> None:
    """Quarantined blocks hold no cached content: a prefix-cache reset works all the same."""
    rig = _lost()
    rig.now = 11.0
    rig.run(60)
    assert rig.s.stallproof_stats()["quarantined_blocks"] == 6
    assert rig.s.reset_prefix_cache()
    assert rig.free == 10, "the reset must not give quarantined blocks back"


def case_connector_reset_ends_quarantine(series: str) -> None:
    rig = _lost()
    rig.now = 11.0
    rig.run(60)
    rig.s.connector.reset_cache = lambda: True
    assert rig.s.reset_connector_cache()
    assert rig.free == 16


def case_no_new_load_above_the_quarantine_cap(series: str) -> None:
    rig = _lost(STALLPROOF_QUARANTINE_CAP="0.2")
    rig.now = 11.0
    rig.run(60)
    assert not rig.s.stallproof_stats()["healthy"]
    rig.add("E", 60, 4, tokens=48)
    rig.run()
    assert not rig.s.requests
    assert not [r for _, r, _ in rig.started if r == "E"], "a load started above the cap"


def case_aborted_lost_load(series: str) -> None:
    """The client goes away, the report never comes: after the deadline nothing is left but the quarantine."""
    rig = _lost()
    rig.abort("B")
    assert "B" in rig.s.requests
    rig.now = 11.0
    rig.run(60)
    assert not rig.s.requests
    assert rig.s.stallproof_stats()["quarantined_blocks"] == 6 and rig.free == 10


def case_endless_not_yet(series: str) -> None:
    """A connector that always answers "not yet" is no longer asked after the deadline."""
    stock = Rig("stock", blocks=16, depth=1, role="kv_both", record=False)
    stock.add("B", 100, 4, defer=10**9)
    stock.run(50)
    assert "B" in stock.s.requests
    rig = Rig(OURS, blocks=16, depth=1, role="kv_both", env={"STALLPROOF_DEFERRAL_DEADLINE_S": "5"})
    rig.add("B", 100, 4, defer=10**9)
    rig.run(10)
    assert "B" in rig.s.requests
    rig.now = 6.0
    rig.run(50)
    rig.all_done()
    assert rig.fired.get("DeferralDeadline") == 1
    assert [e.what for e in rig.of(T.Expire)] == ["deferral"]


def case_not_yet_between_refusals(series: str) -> None:
    """A real answer whose load is refused does not renew the deadline (spec: gap deferral-begins-anew)."""
    rig = Rig(OURS, blocks=12, depth=1, role="kv_both", env={"STALLPROOF_DEFERRAL_DEADLINE_S": "5"})
    rig.add("A", 100, 40)
    rig.add("B", 100, 4, defer=1, tokens=96)
    for i in range(20):
        rig.now = float(i)
        rig.step()
        if i % 2:
            rig.s.connector.asked["B"] = 0  # it says "not yet" once more
    assert "A" in rig.s.requests, "B is refused all the time"
    assert [e.what for e in rig.of(T.Expire)] == ["deferral"]
    asked = len(rig.of(T.NotYet))
    rig.run()
    rig.all_done()
    assert not rig.started, "B loaded although its connector was to be asked no more"
    assert len(rig.of(T.NotYet)) == asked


# ---------------------------------------------------------------- feasibility


def case_a_lone_load_beside_a_session(series: str) -> None:
    """A load that fits nowhere is computed, though a session between turns holds blocks (spec: Alone)."""

    def rig_of(cls: str) -> Rig:
        small = {"blocks": 2, "block_size": 4, "max_num_seqs": 2, "max_model_len": 16}
        rig = Rig(cls, depth=1, lookahead=5, role="kv_producer", **small)
        rig.add("S", 1, 1, resumable=True)
        for _ in range(4):
            rig.step()
        assert rig.s.requests["S"].status.name == "WAITING_FOR_STREAMING_REQ" and rig.free < 2
        rig.add("A", 1, 2, tokens=1)
        for _ in range(20):
            rig.step()
        return rig

    if minor(series) >= 31:
        assert "A" not in rig_of("stock").finished, "vLLM's own class serves A here"
    rig = rig_of(OURS)
    assert "A" in rig.finished
    if minor(series) >= 31:
        assert rig.fired.get("Feasible") and not rig.started
    rig.abort("S")
    rig.all_done()


def case_infeasible_prompt(series: str) -> None:
    """A prompt larger than the pool: vLLM's own class waits for ever, ours answers with an error (#39734)."""
    stock = Rig("stock", blocks=4, depth=1, record=False)
    stock.add("big", 100, 4)
    stock.run(50)
    assert "big" in stock.s.requests
    for depth in (1, 2):
        rig = Rig(OURS, blocks=4, depth=depth)
        rig.add("big", 100, 4)
        rig.add("small", 20, 4)
        rig.run(60)
        rig.all_done()
        out = rig.finished["big"]
        assert out.finish_reason.name == "ERROR" and "do not fit" in out.stop_reason
        assert rig.outputs["small"] == 4


def case_outgrown_pool(series: str) -> None:
    """A lone request that outgrows the pool while decoding ends as ``length``, with what it has."""
    for depth, how in ((1, "length"), (2, "length"), (2, "error")):
        rig = Rig(OURS, blocks=4, depth=depth, env={"STALLPROOF_ON_WALL": how}, max_model_len=512)
        rig.add("grow", 40, 400)
        rig.run(200)
        rig.all_done()
        assert rig.finished["grow"].finish_reason.name == how.upper(), (depth, how)
        assert rig.outputs["grow"] >= 24


def case_feasible_although_the_watermark_is_not(series: str) -> None:
    """A watermark (from 0.24) is for those that run already: a prompt that is alone may fill the pool."""
    for cls in ("stock", OURS):
        rig = Rig(cls, blocks=4, depth=1, record=False)
        rig.s.kv_cache_manager.watermark_blocks = 2
        rig.add("alone", 60, 2)
        rig.run(20)
        assert rig.outputs["alone"] == 2 and rig.finished["alone"].finish_reason.name == "LENGTH", cls
        assert not rig.s.requests


def case_a_load_refused_once_is_loaded_one_refused_twice_is_computed(series: str) -> None:
    """A refusal with the whole pool free may be a passing fault; the same one again is for good."""
    for times, loads, off in ((1, 1, ""), (2, 0, ""), (2, 0, "LoadFailure")):
        rig = Rig(OURS, blocks=8, depth=1, role="kv_both", record=False, env={"STALLPROOF_OFF": off})
        manager = rig.s.kv_cache_manager
        manager.allocate_slots = lambda *a, **k: None
        rig.add("L", 64, 2, tokens=32)
        for _ in range(times):
            rig.step()
        del manager.allocate_slots
        rig.run(20)
        rig.all_done()
        assert (len(rig.started), rig.outputs["L"]) == (loads, 2), times
        assert rig.fired.get("Feasible", 0) == 1 - loads


def case_outgrown_pool_beside_another(series: str) -> None:
    """Two requests fill the pool; the younger outgrows it while it is not alone, and ends all the same."""
    rig = Rig(OURS, blocks=6, depth=2, max_model_len=512)
    rig.add("first", 20, 30)
    rig.add("grow", 20, 300)
    rig.run(300)
    rig.all_done()
    assert rig.outputs["first"] == 30
    assert rig.finished["grow"].finish_reason.name == "LENGTH" and rig.outputs["grow"] >= 76


def case_quarantine_makes_a_request_infeasible(series: str) -> None:
    """Capacity shrinks by what is quarantined: who can no longer fit is told so instead of waiting."""
    rig = Rig(
        OURS, blocks=16, depth=1, role="kv_both", env={"STALLPROOF_LOAD_DEADLINE_S": "10"}, record=False,
        max_num_seqs=1,
    )  # fmt: skip
    rig.mute = {"B"}
    rig.add("B", 100, 4, tokens=96)
    rig.add("R", 20, 40)
    for _ in range(4):
        rig.step()
    rig.add("big", 200, 4)  # 13 blocks: fits 16, not 10
    rig.now = 11.0
    rig.run(120)
    assert rig.finished["big"].finish_reason.name == "ERROR"
    assert rig.outputs["B"] == 4 and rig.outputs["R"] == 40
    assert not rig.s.requests


WAITS = {"STALLPROOF_LOAD_DEADLINE_S": "10", "STALLPROOF_WAIT_DEADLINE_S": "20"}
LOST = {"delay": 0, "outcome": "lost"}


def case_lost_send_makes_a_request_infeasible(series: str) -> None:
    """A send that is never acknowledged takes blocks from the pool, too: who waits for them is told."""
    rig = Rig(OURS, blocks=16, depth=1, role="kv_both", env=WAITS, record=False)
    rig.add("A", 100, 2, tokens=0, send=LOST)
    for _ in range(4):
        rig.step()
    rig.add("big", 200, 4)  # 13 blocks: fits 16, not 9
    rig.run(10)
    assert "big" in rig.s.requests, "while the deadline runs the blocks may come back"
    assert rig.s.sp_awaits() == ["A"]
    rig.now = 21.0
    rig.run(10)
    assert rig.finished["big"].finish_reason.name == "ERROR"
    assert not rig.s.requests and rig.s.sp_awaits() == []
    assert rig.s.stallproof_stats()["quarantined_blocks"] == 16 - rig.free > 0


def case_lost_load_of_an_aborted_request_makes_one_infeasible(series: str) -> None:
    rig = Rig(OURS, blocks=16, depth=1, role="kv_both", env=WAITS, record=False)
    rig.mute = {"B"}
    rig.add("B", 100, 4, tokens=96)
    rig.step()
    rig.abort("B")
    rig.add("big", 200, 4)
    rig.run(10)
    assert "big" in rig.s.requests
    rig.now = 11.0
    rig.run(10)
    assert rig.finished["big"].finish_reason.name == "ERROR"
    assert not rig.s.requests and rig.free == 10


def case_load_and_send_both_lost(series: str) -> None:
    """Each has a quarantine and a late report of its own; what both may touch stays until both have come."""
    rig = Rig(OURS, blocks=16, depth=1, role="kv_both", env=WAITS, prefix_caching=True)
    rig.add("P", 40, 2, salt="x")
    rig.run(20)
    rig.mute = {"A"}
    rig.add("A", 100, 4, salt="x", tokens=96, send=LOST)
    rig.step()
    rig.abort("A")  # its first blocks are P's, read by the send; the load writes the others
    rig.run(4)
    held = 16 - rig.free
    rig.now = 11.0
    rig.run(4)
    assert "A" not in rig.s.requests and rig.s.stallproof_stats()["quarantined_blocks"] == held
    assert rig.free == 16 - held
    rig.add("C", 20, 9)
    rig.step()
    rig.step(recv=["A"])
    assert 0 < rig.s.stallproof_stats()["quarantined_blocks"] <= held
    rig.step(sent=["A"])
    rig.run()
    rig.all_done()


def case_of_a_load_and_a_send_lost_one_report_frees_nothing_that_the_other_touches(series: str) -> None:
    for kind in ("recv", "sent"):
        rig = Rig(OURS, blocks=16, depth=1, role="kv_both", env=WAITS, prefix_caching=True)
        rig.mute = {"A"}
        rig.add("A", 100, 4, tokens=96, send=LOST)
        rig.step()
        rig.abort("A")
        rig.now = 11.0
        rig.run(4)
        written = rig.s.stallproof_stats()["quarantined_blocks"]
        assert written == 16 - rig.free > 0
        rig.add("C", 20, 9)
        rig.step()
        rig.step(**{kind: ["A"]})
        assert rig.s.stallproof_stats()["quarantined_blocks"] == written, kind
        rig.step(**{"recv" if kind == "sent" else "sent": ["A"]})
        assert rig.s.stallproof_stats()["quarantined_blocks"] == 0
        rig.run()
        rig.all_done()


def case_two_lost_sends_of_the_same_blocks(series: str) -> None:
    """Blocks that two sends read leave the pool once: a request that fits what is left is served."""
    rig = Rig(OURS, blocks=8, depth=1, role="kv_both", env=WAITS, prefix_caching=True)
    for rid in ("A", "B"):
        rig.add(rid, 65, 2, salt="x", tokens=0, send=LOST)
        rig.run(6)
    rig.now = 21.0
    rig.run(2)
    assert not rig.s.requests
    assert rig.s.stallproof_stats()["quarantined_blocks"] == len(rig.s.sp_quarantined()) == 8 - rig.free == 6
    rig.add("C", 16, 4)
    rig.run(20)
    assert rig.outputs["C"] == 4
    assert rig.s.reset_prefix_cache()


# ---------------------------------------------------------------- promotion


def case_promotion_while_paused(series: str) -> None:
    """#53130, #58041: a received load is recognised although the engine is paused."""
    from vllm.v1.core.sched.interface import PauseState

    for cls in ("stock", OURS):
        rig = Rig(cls, blocks=16, depth=1, role="kv_both", record=False)
        rig.add("B", 100, 4, tokens=96)
        rig.step()
        rig.s.set_pause_state(PauseState.PAUSED_ALL)
        for _ in range(6):
            rig.step()
        status = rig.s.requests["B"].status.name
        assert status == ("WAITING" if cls == OURS else "WAITING_FOR_REMOTE_KVS"), (cls, status)
        rig.s.set_pause_state(PauseState.UNPAUSED)
        rig.run()
        rig.all_done()


# ---------------------------------------------------------------- hygiene


def _instance_hooks(s: Any) -> dict[str, Any]:
    found = {}
    for label, obj in (
        ("manager", s.kv_cache_manager), ("pool", s.kv_cache_manager.block_pool),
        ("coordinator", s.kv_cache_manager.coordinator), ("connector", s.connector),
    ):  # fmt: skip
        if obj is None:
            continue
        for name, value in vars(obj).items():
            if callable(value) and not isinstance(value, type):
                found[f"{label}.{name}"] = value
    return found


def case_hooks_are_taken_off_exactly(series: str) -> None:
    """After every call the objects look as before, a test's own stand-in included."""
    rig = Rig(OURS, blocks=12, depth=2, role="kv_both", record=False)
    lasting = {"pool.free_blocks"}
    before = {k: v for k, v in _instance_hooks(rig.s).items() if k not in lasting}
    own = rig.s.kv_cache_manager.allocate_slots
    rig.s.kv_cache_manager.allocate_slots = stand_in = lambda *a, **k: own(*a, **k)
    before["manager.allocate_slots"] = stand_in
    for i in range(5):
        rig.add(f"r{i}", 40, 30, **({"tokens": 32} if i % 2 else {}))
    while rig.s.has_unfinished_requests() and rig.steps < 300:
        rig.step()
        now = {k: v for k, v in _instance_hooks(rig.s).items() if k not in lasting}
        assert now == before, set(now) ^ set(before)
    rig.drain()
    assert not rig.s.requests and rig.s.stallproof_stats()["fired"]
    rig.s.shutdown()
    assert "free_blocks" not in vars(rig.s.kv_cache_manager.block_pool)


def case_hooks_come_off_when_the_engine_raises(series: str) -> None:
    rig = Rig(OURS, blocks=12, depth=2, role="kv_both", record=False)
    rig.add("A", 40, 4, tokens=32)
    before = _instance_hooks(rig.s)

    def boom(*_: Any) -> Any:
        raise RuntimeError("engine")

    rig.s.connector.build_connector_meta, keep = boom, rig.s.connector.build_connector_meta
    before["connector.build_connector_meta"] = boom
    try:
        rig.schedule()
    except RuntimeError as exc:
        assert str(exc) == "engine"
    else:
        raise AssertionError("the engine's own error was swallowed")
    assert _instance_hooks(rig.s) == before
    assert not rig.s._sp_in and rig.s._sp_steps.in_flight == 0
    del keep


def case_kept_requests_are_not_reported_as_preempted(series: str) -> None:
    """0.23 and 0.24 build that list locally: putting a victim back must take it out of there too."""
    rig = Rig(OURS, blocks=24, depth=2, role="kv_both", budget=2048)
    for i in range(6):
        rig.add(f"r{i}", 63, 30)
    kept = 0
    while rig.s.has_unfinished_requests() and rig.steps < 300:
        out = rig.step()
        running = {r.request_id for r in rig.s.running}
        reported = set(out.preempted_req_ids or ())
        assert not reported & running, (reported, running)
        kept += rig.s.stallproof_stats()["preemptions_avoided"]
    rig.drain()
    rig.all_done()
    assert kept
    assert all(r.num_preemptions == 0 or r.status.name for r in rig.s.requests.values())


def case_a_victim_that_never_ran_stays_waiting(series: str) -> None:
    rig = Rig(OURS, blocks=10, depth=1, role="kv_both", policy="priority")
    rig.add("L", 100, 4, priority=5, tokens=96)
    for _ in range(2):
        rig.step()
    rig.s.max_num_running_reqs = 0  # received, but nobody may be admitted yet
    if hasattr(rig.s, "max_num_active_reqs"):
        rig.s.max_num_active_reqs = 0
    for _ in range(3):
        rig.step()
    rig.s.max_num_running_reqs = 1
    if hasattr(rig.s, "max_num_active_reqs"):
        rig.s.max_num_active_reqs = 1
    victim = rig.s.requests["L"]
    rig.add("O", 120, 4, priority=1)
    rig.s._sp_choice_before = None
    target = rig.s.requests["O"]
    plan = None
    rig.s._sp_allocate_before = rig.s.kv_cache_manager.allocate_slots
    from stallproof.core import commit

    plan = commit.Plan(("L",), 7)
    rig.s._sp_evict(plan, target)
    rig.s._sp_allocate_before = None
    assert victim.status.name == "WAITING" and victim.num_preemptions == 0
    assert victim.num_computed_tokens == 0 and rig.free == 10
    rig.run()
    rig.all_done()


# ---------------------------------------------------------------- faults, shadow, switches


FAULTS = {
    "patience": ("stallproof.core.patience.Patience.wait", "cascade"),
    "commit": ("stallproof.core.commit.plan", "commit"),
    "gate": ("stallproof.core.fences.BlockFences.newest", "load"),
    "fences": ("stallproof.core.fences.BlockFences.raise_to", "load"),
    "order": ("stallproof.core.order.in_order", "load"),
    "completions": ("stallproof.core.completions.Completions.judge", "load"),
    "match": ("stallproof.vllm.loads.LoadPart._sp_answer", "load"),
    "feasible": ("stallproof.vllm.probe.AllocationTest.__call__", "load"),
}


def _pressure(env: dict[str, str], **engine: Any) -> Rig:
    rig = Rig(OURS, blocks=14, depth=2, role="kv_both", env=env, record=False, **engine)
    for i in range(8):
        rig.add(f"r{i}", 40 + 5 * i, 20, priority=i % 3, **({"tokens": 32} if i % 2 else {}))
    return rig


def case_guard_faults_leave_a_working_scheduler(series: str) -> None:
    """An error in any decision: one log line, and everything still finishes with all blocks back."""
    import importlib
    from unittest.mock import patch

    import stallproof.vllm.endings
    import stallproof.vllm.guard  # noqa: F401

    quiet = logging.getLogger("stallproof")
    for hook, (target, _) in FAULTS.items():
        module, _, attribute = target.rpartition(".")
        owner: Any
        try:
            owner = importlib.import_module(module)
        except ModuleNotFoundError:
            mod, _, cls = module.rpartition(".")
            owner = getattr(importlib.import_module(mod), cls)
        lines: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record, lines=lines: lines.append(record.getMessage())  # type: ignore[method-assign]
        quiet.addHandler(handler)
        quiet.setLevel(logging.ERROR)
        try:
            with patch.object(owner, attribute, side_effect=ZeroDivisionError(hook)):
                rig = _pressure({"STALLPROOF_STRICT": "0"})
                rig.run(600)
        finally:
            quiet.removeHandler(handler)
        rig.all_done()
        faults = rig.s.stallproof_stats()["faults"]
        if faults:
            assert len([x for x in lines if "internal error" in x]) == len(faults), (hook, lines, faults)
        elif hook not in ("commit", "order", "gate"):
            raise AssertionError(f"{hook}: the injected error was never reached")


def case_strict_raises(series: str) -> None:
    from unittest.mock import patch

    rig = _pressure({"STALLPROOF_STRICT": "1"})
    with patch("stallproof.core.patience.Patience.wait", side_effect=ZeroDivisionError("x")):
        try:
            rig.run(200)
        except ZeroDivisionError:
            return
    raise AssertionError("STALLPROOF_STRICT=1 did not raise")


def _outline(rig: Rig) -> list[Any]:
    seen = []
    while rig.s.has_unfinished_requests() and rig.steps < 300:
        out = rig.step()
        seen.append((dict(out.num_scheduled_tokens), [r.request_id for r in rig.s.running], rig.free))
    return seen


def case_shadow_changes_nothing(series: str) -> None:
    """Step by step the same decisions as vLLM's own class; what would have been done is counted."""
    for policy in ("fcfs", "priority"):
        runs = []
        for cls, env in (("stock", {}), (OURS, {"STALLPROOF_MODE": "shadow"})):
            rig = Rig(cls, blocks=14, depth=2, role="kv_consumer", env=env, record=False, policy=policy)
            for i in range(8):
                rig.add(f"r{i}", 40 + 5 * i, 20, priority=i % 3, **({"tokens": 32} if i % 2 else {}))
            runs.append((_outline(rig), rig))
        (stock, _), (ours, rig) = runs
        assert ours == stock
        assert rig.s.stallproof_stats()["mode"] == "shadow"
        assert rig.fired, "nothing would have been done: the scenario shows nothing"


def case_rules_can_be_switched_off(series: str) -> None:
    off = ",".join(
        sorted(
            {"GateLoads", "Patience", "NoInversion", "Commit", "OneOrder", "RunningOrder", "Promotion",
             "LoadDeadline", "DeferralDeadline", "Feasible", "FullFit", "RuleR"}
        )
    )  # fmt: skip
    runs = []
    for cls, env in (("stock", {}), (OURS, {"STALLPROOF_OFF": off})):
        rig = Rig(cls, blocks=14, depth=2, role="kv_consumer" if minor(series) > 29 else "kv_producer",
                  env=env, record=False)  # fmt: skip
        for i in range(6):
            rig.add(f"r{i}", 40 + 5 * i, 20)
        runs.append(_outline(rig))
        if cls == OURS:
            assert not set(rig.fired) - {"DeferFrees"}, rig.fired
    assert runs[0] == runs[1]


def case_unknown_version_is_refused(series: str) -> None:
    import vllm

    from stallproof.errors import Unsupported
    from stallproof.vllm.adapters import FIRST, LAST, adapt, vllm_base

    base = vllm_base()
    for version in ("0.22.0", f"{LAST[0]}.{LAST[1] + 1}.0", "1.0.0", "not-a-version"):
        try:
            adapt(base, version, False)
        except Unsupported as exc:
            assert f"{FIRST[0]}.{FIRST[1]} to {LAST[0]}.{LAST[1]}" in str(exc) or "version" in str(exc)
        else:
            raise AssertionError(f"{version} was accepted")
    notes = adapt(base, "0.99.0", True).notes
    assert any("untested" in n for n in notes)

    class NoHooks:
        def schedule(self) -> None: ...

    try:
        adapt(NoHooks, vllm.__version__, True)
    except Unsupported as exc:
        assert "_preempt_request" in str(exc)
    else:
        raise AssertionError("a class without the hooks was accepted")


def case_the_table_of_mechanisms_is_true(series: str) -> None:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    from stallproof.vllm.adapters import TABLE, missing, probe

    for cls in (Scheduler, AsyncScheduler):
        assert probe(cls) == TABLE[series], (probe(cls), TABLE[series])
        assert not missing(cls)


def case_records_that_cannot_be_written_are_counted(series: str) -> None:
    """The metric for them reads what the writer counts."""
    from tempfile import TemporaryDirectory

    from stallproof.vllm.recording import attach_file, close_recording

    rig = Rig(OURS, blocks=8, record=False)
    with TemporaryDirectory() as folder:
        attach_file(rig.s, f"{folder}/t.jsonl")
        writer = rig.s._sp_writer
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, writer._fd)
        os.close(full)
        assert rig.s._sp_reading().recorder_drops == 0
        rig.add("a", 20, 2)
        rig.run(20)
        assert rig.s._sp_reading().recorder_drops == writer.dropped > 0
        close_recording(rig.s)
    rig.all_done()


def case_a_trace_tells_look_ahead_and_the_longest_sequence(series: str) -> None:
    """Replay's Feasible check counts with them."""
    from stallproof.vllm.describe import config_of

    for cls in ("stock", OURS):
        told = config_of(Rig(cls, blocks=8, lookahead=3, max_model_len=96, record=False).s)
        assert (told.slots, told.max_model_len, told.lookahead) == (3, 96, 3), cls


def case_guard_by_environment(series: str) -> None:
    """``STALLPROOF_GUARD=1``: whatever class the configuration names is guarded; else nothing changes."""
    from vllm.config import SchedulerConfig

    import stallproof.vllm as sv
    from stallproof.vllm.guard import Guard
    from stallproof.vllm.plugin import register

    before = SchedulerConfig.get_scheduler_cls
    config = Rig("stock", blocks=8, depth=2, record=False).s.scheduler_config
    try:
        os.environ.pop("STALLPROOF_GUARD", None)
        register()
        assert SchedulerConfig.get_scheduler_cls is before
        os.environ["STALLPROOF_GUARD"] = "1"
        register()
        register()
        assert config.get_scheduler_cls() is sv.AsyncScheduler
        config.scheduler_cls = "vllm.v1.core.sched.scheduler.Scheduler"
        assert issubclass(config.get_scheduler_cls(), Guard)
        config.scheduler_cls = "stallproof.vllm.Scheduler"
        assert config.get_scheduler_cls() is sv.Scheduler
    finally:
        os.environ.pop("STALLPROOF_GUARD", None)
        SchedulerConfig.get_scheduler_cls = before


def case_guarded_composes(series: str) -> None:
    """A base class with a ``schedule`` of its own: its feature stays active, and it is guarded once."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    import stallproof.vllm as sv

    class Balance(AsyncScheduler):
        calls = 0

        def schedule(self, *a: Any, **k: Any) -> Any:
            Balance.calls += 1
            held = []
            if Balance.calls % 2 and self.running:  # admits only in every second call
                while self.waiting:
                    held.append(self.waiting.pop_request())
            out = super().schedule(*a, **k)
            for r in reversed(held):
                self.waiting.prepend_request(r)
            return out

    cls = sv.guarded(Balance)
    assert sv.guarded(Balance) is cls and sv.guarded(cls) is cls
    assert sv.AsyncScheduler is sv.guarded(AsyncScheduler)
    assert sv.guarded("vllm.v1.core.sched.async_scheduler.AsyncScheduler") is sv.AsyncScheduler
    rig = Rig(cls, blocks=24, depth=2, role="kv_both", budget=2048)
    for i in range(6):
        rig.add(f"r{i}", 63, 30)
    rig.run(600)
    rig.all_done()
    assert Balance.calls >= rig.steps
    assert rig.s.stallproof_stats()["scheduler"].endswith("Balance")
    assert os.environ.get("STALLPROOF_STRICT") == "1"
