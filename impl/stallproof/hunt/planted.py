"""One-line faults planted in our own guard, to see that a hunt finds each of them.

A :class:`Mutant` replaces one expression in one function, in the running process only: no file is touched.
``stallproof.hunt.planted.<name>`` is a scheduler class with that fault (``stallproof hunt --scheduler-cls
stallproof.hunt.planted.gate_open``), and ``stallproof.hunt.planted.control`` is our class as it is. A mutant
whose text is no longer in its function raises :class:`Stale`: it never passes for one that was not found.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any


class Stale(AssertionError):
    """The source has changed: the mutant's text is not (or not once) in its function."""


@dataclass(frozen=True)
class Mutant:
    """``where``: module:qualified name below ``stallproof``; ``old`` occurs once in it and becomes ``new``.

    ``rule``: what is broken; ``version``: release to hunt on (some rules act on old ones only); ``scenario``:
    one of ``tests/scenarios`` that shows the mutant to be alive, if one does.
    """

    name: str
    rule: str
    where: str
    old: str
    new: str
    version: str = "0.32.0"
    scenario: str = ""

    def function(self) -> FunctionType:
        """The function to change, beneath decorators and properties."""
        module, _, qualname = self.where.partition(":")
        found: Any = importlib.import_module(f"stallproof.{module}")
        for part in qualname.split("."):
            found = inspect.getattr_static(found, part) if inspect.isclass(found) else getattr(found, part)
        if isinstance(found, property):
            found = found.fget
        found = inspect.unwrap(found)
        assert isinstance(found, FunctionType), self.where
        return found

    def code(self) -> CodeType:
        """The changed function's code. Raises :class:`Stale`."""
        function = self.function()
        source = textwrap.dedent(inspect.getsource(function))
        if source.count(self.old) != 1:
            raise Stale(f"{self.name}: {self.old!r} is {source.count(self.old)} times in {self.where}")
        lines = source.replace(self.old, self.new).splitlines()
        while not lines[0].startswith("def "):  # decorators are applied already
            del lines[0]
        # a function that says super() needs the cell of its class: the code keeps the old function's
        wrapped = "def _outer(__class__):\n" + textwrap.indent("\n".join(lines), "    ")
        tree = ast.parse("from __future__ import annotations\n" + wrapped)
        outer = next(
            c for c in compile(tree, f"<planted {self.name}>", "exec").co_consts if isinstance(c, CodeType)
        )
        changed = next(
            c for c in outer.co_consts if isinstance(c, CodeType) and c.co_name == function.__name__
        )
        if changed.co_freevars != function.__code__.co_freevars:
            raise Stale(f"{self.name}: {self.where} closes over {function.__code__.co_freevars}")
        return changed

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """With the fault in place, in this process."""
        function = self.function()
        before, function.__code__ = function.__code__, self.code()
        try:
            yield
        finally:
            function.__code__ = before


def _m(*fields: str, **more: str) -> Mutant:
    return Mutant(*fields, **more)


MUTANTS: tuple[Mutant, ...] = (
    # ---- fences and gated loads
    _m("gate_open", "GateLoads", "core.gate:Gate.must_hold", "not self._steps.passed(fence)", "False"),
    _m("gate_early", "GateLoads", "core.steps:Steps.passed", "fence <= self.done", "fence <= self.done + 1"),
    _m("gate_never", "GateLoads", "core.gate:Gate.due", "if self._steps.passed(x.fence)", "if False"),
    _m("fence_oldest", "GateLoads", "core.fences:BlockFences.newest", "max(", "min("),
    _m("fence_lowered", "GateLoads", "core.fences:BlockFences.raise_to", "< step", "> step"),
    _m("fence_processed", "GateLoads", "vllm.loads:LoadPart._sp_observe_free",
       "self._sp_last_touch()", "self._sp_steps.processed"),
    _m("two_steps_done", "GateLoads", "core.steps:Steps.process", "self.processed += 1",
       "self.processed += 2"),
    _m("held_load_kept", "GateLoads", "vllm.reports:ReportPart.finish_requests",
       "self._sp_gate.drop(rid) is not None", "self._sp_gate.drop(rid) is None"),
    # ---- order, refusals, patience
    _m("door_open", "NoInversion", "vllm.allocation:AllocationPart._sp_close", "self._sp_call.closed = True",
       "self._sp_call.closed = False", scenario="starvation-n1"),
    _m("endless_patience", "Patience", "core.patience:Patience.wait", "processed - self.since < self.limit",
       "True"),
    _m("order_reversed", "OneOrder", "vllm.queues:QueuePart._sp_arrange_now", "sorted(holding, key=key)",
       "sorted(holding, key=key, reverse=True)"),
    _m("oldest_victim", "RunningOrder", "vllm.queues:QueuePart._sp_order_running",
       "self.running.sort(key=self._sp_key)", "self.running.sort(key=self._sp_key, reverse=True)"),
    _m("victims_dropped", "Patience", "vllm.guard:Guard._sp_keep", "self._sp_call.keeping = True",
       "self._sp_call.keeping = False", version="0.28.0"),
    _m("hog_unseen", "BudgetShare", "vllm.queues:QueuePart._sp_find_unserved", "self._sp_unserved.append(r)",
       "pass", scenario="budget-hog-53130"),
    # ---- commit eviction
    _m("no_commit", "Commit", "vllm.allocation:AllocationPart._sp_plan", "if not parked:", "if parked:",
       scenario="sessions-49439"),
    _m("older_victims", "Commit", "core.commit:plan", "h.key > target_key", "h.key < target_key"),
    _m("shared_gain", "Commit", "core.commit:gain_of", "n >= refs[b]", "n >= 1"),
    _m("one_victim_short", "Commit", "core.commit:plan", "chosen = younger[:low]",
       "chosen = younger[: low - 1]"),
    _m("evicts_loading", "Commit", "vllm.allocation:AllocationPart._sp_parked", "r.request_id in done",
       "r.request_id not in done"),
    _m("evicted_tokens_kept", "Commit", "vllm.allocation:AllocationPart._sp_release",
       "victim.num_computed_tokens = 0", "pass", scenario="sessions-49439"),
    _m("evicted_reservation_kept", "Commit", "vllm.allocation:AllocationPart._sp_release",
       "self._inflight_prefills.discard(victim)", "pass"),
    _m("sessions_kept", "Commit", "vllm.allocation:AllocationPart._sp_parked", "self._sp_sessions.values()",
       "()", scenario="sessions-49439"),
    # ---- loads that fail, answer late, or never
    _m("reservation_kept", "LoadFailure", "vllm.loads:LoadPart._update_waiting_for_remote_kv",
       "self._inflight_prefills.discard(request)", "pass", scenario="failed-loads-own-finding"),
    _m("fails_for_ever", "LoadFailure", "vllm.loads:LoadPart._sp_match", ">= MAX_FAILED_LOADS",
       ">= 1000 * MAX_FAILED_LOADS"),
    _m("places_kept", "LoadFailure", "vllm.reports:ReportPart._sp_reset_places",
       "request.num_output_placeholders = 0", "pass", scenario="failed-load-placeholder-45138"),
    _m("unknown_accepted", "Completions", "core.completions:Completions.judge",
       'return Verdict.IGNORE, "unknown request"', 'return Verdict.ACCEPT, ""',
       scenario="unknown-report-43226"),
    _m("live_accepted", "Completions", "core.completions:Completions.judge",
       'return Verdict.IGNORE, "no transfer outstanding"', 'return Verdict.ACCEPT, ""',
       scenario="duplicate-recv-53049"),
    _m("second_transfer_forgotten", "Completions", "core.completions:Completions.judge",
       "if open_kinds:\n", "if not open_kinds:\n", scenario="abort-recv-sent-46240"),
    _m("received_refused", "Completions", "core.completions:Completions.judge", "if received:",
       "if not received:"),
    _m("deadline_never", "LoadDeadline", "core.deadlines:Deadlines.expired", "late.append(name)", "pass",
       scenario="lost-load-35943"),
    _m("deadline_renewed", "DeferralDeadline", "core.deadlines:Deadlines.begin",
       "self.due.setdefault(name, now + self.limit)", "self.due[name] = now + self.limit",
       scenario="deferral-49829"),
    _m("nothing_quarantined", "LoadDeadline", "vllm.loads:LoadPart._sp_take_out", "b.ref_cnt == 1",
       "b.ref_cnt == 2", scenario="lost-load-35943"),
    _m("quarantined_loads", "LoadDeadline", "core.quarantine:Quarantine.may_load",
       "rid not in self._lots and not self.over_cap", "not self.over_cap"),
    _m("lost_sends_kept", "WaitDeadline", "vllm.loads:LoadPart._sp_expire_send", '"sent" not in owed',
       '"sent" in owed', scenario="lost-send-50425"),
    _m("no_promotion", "Promotion", "vllm.loads:LoadPart._sp_promote",
       'if not self._sp_settings.active("Promotion"):', "if True:"),
    _m("asleep_while_paused", "Promotion", "vllm.reports:ReportPart._sp_wants_reports",
       'self.pause_state.name == "UNPAUSED"', 'self.pause_state.name != "UNPAUSED"', scenario="pause-58041"),
    # ---- what can never be served
    _m("infeasible_served", "Feasible", "core.feasible:verdict", "if fits:", "if fits or output_tokens == 0:",
       scenario="never-fits-39734"),
    _m("capacity_plus_one", "Feasible", "vllm.endings:EndingPart._sp_capacity",
       "block_pool.num_gpu_blocks - 1 -", "block_pool.num_gpu_blocks -"),
    _m("lookahead_uncounted", "Feasible", "core.feasible:least", "tokens + ahead", "tokens"),
    _m("load_insisted_on", "Feasible", "vllm.loads:LoadPart._sp_give_load_up",
       "self._sp_failures[request.request_id] = GIVEN_UP", "pass", scenario="lone-load-own-finding"),
    _m("length_unseen", "Feasible", "vllm.endings:EndingPart._sp_can_fit", "request.num_tokens >= longest",
       "request.num_tokens > 2 * longest", scenario="session-outgrows-length-own-finding"),
    # ---- adapters
    _m("adapter_uncounted", "AdapterShare", "core.adapter_share:AdapterShare.may",
       "len(self.active) < self.most", "True", scenario="lora-pipeline-own-finding"),
    _m("adapter_overtaken", "AdapterShare", "core.adapter_share:AdapterShare.may",
       "self.overtaken < self.bound", "True", scenario="lora-16876"),
    # ---- sessions, and steps in flight behind a failure
    _m("turn_at_its_beginning", "OneOrder", "vllm.queues:QueuePart._update_request_as_session",
       "session._sp_arrival = turns.popleft()", "session._sp_arrival = self._sp_arrivals"),
    _m("turn_after_turn", "TurnsYield", "vllm.turns:TurnPart._sp_must_keep", "self._sp_older() == passed",
       "False", scenario="session-talks-on-own-finding"),
    _m("promoted_is_no_holder", "OneOrder", "vllm.queues:QueuePart._sp_holds",
       "request in self._inflight_prefills and any(", "False and any("),
    _m("late_output", "LoadFailure", "vllm.reports:ReportPart._sp_reset_places",
       "self._sp_disown_flight(request)", "pass", version="0.23.0"),
    _m("expired_again", "LoadDeadline", "vllm.loads:LoadPart._sp_expire",
       "self._sp_failures[rid] = GIVEN_UP", "pass"),
)  # fmt: skip

BY_NAME = {m.name: m for m in MUTANTS}
assert len(BY_NAME) == len(MUTANTS), "names are unique"


def scheduler(name: str) -> Callable[[int], type]:
    """Makes the class of a mutant (or ``control``) for a depth; the fault stays in this process."""

    def of(depth: int) -> type:
        from stallproof import vllm

        cls: type = vllm.AsyncScheduler if depth == 2 else vllm.Scheduler
        if name != "control" and name not in _planted:
            if _planted:
                raise AssertionError(f"{_planted[0]} is planted here already: one fault per process")
            mutant = BY_NAME[name]
            mutant.function().__code__ = mutant.code()
            _planted.append(name)
        return cls

    return of


_planted: list[str] = []


def __getattr__(name: str) -> Any:
    if name == "control" or name in BY_NAME:
        return scheduler(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
