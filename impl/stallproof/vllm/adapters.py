"""What each supported vLLM series has of its own, and the probes that check it on the class at hand.

A series is ``major.minor``. The table is what we have read and run; ``probe`` looks at a class and says what
it really has. The two must agree, which is a test on every version and the core of ``stallproof doctor``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from types import CodeType
from typing import Any

from stallproof.errors import Unsupported

FIRST, LAST = (0, 23), (0, 33)
#: series that are run by the tests; others within the range are read, not run
TESTED = ("0.23", "0.24", "0.25", "0.26", "0.27", "0.28", "0.29", "0.30", "0.31", "0.32", "0.33")


@dataclass(frozen=True)
class Facts:
    """Mechanisms of one scheduler class.

    Attributes:
        fence: freed blocks can be kept out of the pool until a step is processed (vLLM #45357).
        guard: the victim of a preemption is asked about before it is popped (#49675).
        holding: requests that hold blocks wait in a queue of their own that is drained first.
        select: the queue to scan is chosen by a method.
        reset_list: preempted ids come from an attribute, not from a list local to ``schedule()``.
        skip_zero: blocks that an asynchronous load writes are left out of zeroing.
        drop_mode: in-flight output of a preempted request can be dropped (``requires_kv_delivery``).
        reserve: load admission leaves room for prefills in flight (rule R, #44560).
        full_fit: admission can ask for room for the whole sequence.
    """

    fence: bool
    guard: bool
    holding: bool
    select: bool
    reset_list: bool
    skip_zero: bool
    drop_mode: bool
    reserve: bool
    full_fit: bool


def _facts(*have: str) -> Facts:
    return Facts(**{f.name: f.name in have for f in fields(Facts)})


_23 = ("select", "reserve", "full_fit")
_24 = (*_23, "fence")
_25 = (*_24, "reset_list")
_26 = (*_25, "skip_zero")
_27 = (*_26, "drop_mode")
_30 = (*_27, "guard")
_31 = (*(x for x in _30 if x != "select"), "holding")
TABLE: dict[str, Facts] = {
    "0.23": _facts(*_23),
    "0.24": _facts(*_24),
    "0.25": _facts(*_25),
    "0.26": _facts(*_26),
    "0.27": _facts(*_27),
    "0.28": _facts(*_27),
    "0.29": _facts(*_27),
    "0.30": _facts(*_30),
    "0.31": _facts(*_31),
    "0.32": _facts(*_31),
    "0.33": _facts(*_31),
}


def series_of(version: str) -> str:
    """``0.28`` of ``0.28.0+cpu``. Raises Unsupported if ``version`` is not a version."""
    m = re.match(r"v?(\d+)\.(\d+)", version)
    if not m:
        raise Unsupported(f"vLLM calls itself version {version!r}", remedy="install a release of vLLM")
    return f"{int(m[1])}.{int(m[2])}"


def supported(series: str) -> bool:
    major, minor = map(int, series.split("."))
    return FIRST <= (major, minor) <= LAST


def vllm_base() -> Any:
    """vLLM's own Scheduler class, from wherever a platform may have replaced the module's attribute."""
    from vllm.v1.core.sched import scheduler

    base = scheduler.Scheduler
    for cls in base.__mro__:
        if cls.__module__ == "vllm.v1.core.sched.scheduler" and cls.__name__ == "Scheduler":
            return cls
    return base


def _method(cls: Any, name: str) -> Any:
    """``cls.name`` as it is without anything of ours in front; None if there is none."""
    for c in cls.__mro__:
        if name in c.__dict__ and not c.__module__.startswith("stallproof."):
            return c.__dict__[name]
    return None


def probe(cls: Any) -> Facts:
    """The mechanisms that scheduler class ``cls`` really has."""
    schedule = names_in(cls, "schedule")
    allocate = _allocate_parameters()
    return Facts(
        fence=_method(cls, "_free_request_blocks") is not None,
        guard=_method(cls, "_request_blocks_can_be_freed") is not None,
        holding="kv_holding_waiting" in names_in(cls, "__init__"),
        select=_method(cls, "_select_waiting_queue_for_scheduling") is not None,
        reset_list="reset_preempted_req_ids" in schedule,
        skip_zero=not schedule.isdisjoint({"_skip_zero_block_ids", "skip_zeroing_group_ids"}),
        drop_mode="drop_stale_output" in inspect.signature(_method(cls, "_preempt_request")).parameters,
        reserve="reserved_blocks" in allocate,
        full_fit="full_sequence_must_fit" in allocate,
    )


def names_in(cls: Any, name: str) -> set[str]:
    """Names and strings that the definitions of method ``name`` along the class's ancestry refer to.

    From the compiled code: reading and tokenizing the source takes 30 ms, and a comment proves nothing.
    """
    codes: list[Any] = [
        getattr(inspect.unwrap(c.__dict__[name]), "__code__", None)
        for c in cls.__mro__
        if name in c.__dict__ and not c.__module__.startswith("stallproof.")
    ]
    found: set[str] = set()
    while codes:
        code = codes.pop()
        if isinstance(code, CodeType):
            found.update(code.co_names)
            codes += code.co_consts
        elif isinstance(code, str):
            found.add(code)
        elif isinstance(code, tuple):  # the names of keyword arguments
            codes += code
    return found


def _allocate_parameters() -> Iterable[str]:
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    return inspect.signature(KVCacheManager.allocate_slots).parameters


#: methods that the guard overrides or calls, with the parameters it relies on
METHODS: dict[str, tuple[str, ...]] = {
    "schedule": (),
    "update_from_output": ("scheduler_output", "model_runner_output"),
    "add_request": ("request",),
    "finish_requests": ("request_ids", "finished_status"),
    "_preempt_request": ("request", "timestamp"),
    "_free_request": ("request", "delay_free_blocks"),
    "_free_blocks": ("request",),
    "_connector_finished": ("request",),
    "_build_kv_connector_meta": ("connector", "scheduler_output"),
    "_update_waiting_for_remote_kv": ("request",),
    "_update_from_kv_xfer_finished": ("kv_connector_output",),
    "_inflight_prefill_reserved_blocks": (),
    "reset_prefix_cache": ("reset_running_requests", "reset_connector"),
    "reset_connector_cache": (),
    "shutdown": (),
}
PROMOTE = ("_handle_blocked_waiting_request", "_try_promote_blocked_waiting_request")


def missing(cls: Any) -> list[str]:
    """What the guard needs and ``cls`` lacks, in words; empty if nothing."""
    lacks = []
    for name, parameters in METHODS.items():
        method = _method(cls, name)
        if method is None:
            lacks.append(f"method {name}")
            continue
        have = inspect.signature(method).parameters
        lacks += [f"parameter {p} of {name}" for p in parameters if p not in have]
    if not any(_method(cls, name) is not None for name in PROMOTE):
        lacks.append(f"one of the methods {', '.join(PROMOTE)}")
    allocate = _allocate_parameters()
    for p in ("num_external_computed_tokens", "delay_cache_blocks", "new_computed_blocks"):
        if p not in allocate:
            lacks.append(f"parameter {p} of KVCacheManager.allocate_slots")
    return lacks


def foreign_schedule(cls: Any) -> bool:
    """Whether ``cls`` has a ``schedule`` of its own instead of vLLM's."""
    for c in cls.__mro__:
        if "schedule" in c.__dict__ and not c.__module__.startswith("stallproof."):
            return not c.__module__.startswith("vllm.v1.core.sched.")
    return True


@dataclass(frozen=True)
class Adapter:
    """A series together with what the class at hand has."""

    version: str
    series: str
    facts: Facts
    foreign: bool
    promote: str
    notes: tuple[str, ...] = ()


def adapt(cls: Any, version: str, allow_untested: bool) -> Adapter:
    """Choose the adapter for scheduler class ``cls`` of vLLM ``version``.

    Raises:
        Unsupported: outside the range without permission, or the class lacks what the guard needs.
    """
    series = series_of(version)
    notes: list[str] = []
    if not supported(series):
        if not allow_untested:
            raise Unsupported(
                f"vLLM {version} is outside the supported range {FIRST[0]}.{FIRST[1]} to {LAST[0]}.{LAST[1]}",
                remedy="install a supported release, or set STALLPROOF_ALLOW_UNTESTED=1 (self-checks first)",
            )
        notes.append(f"vLLM {version} is untested; self-checks passed")
    lacks = missing(cls)
    if lacks:
        raise Unsupported(
            f"{cls.__module__}.{cls.__qualname__} of vLLM {version} lacks {'; '.join(lacks)}",
            remedy="use a scheduler class derived from vLLM's, or remove --scheduler-cls",
        )
    facts = probe(cls)
    expected = TABLE.get(series)
    if expected is not None and facts != expected:
        differ = [f.name for f in fields(Facts) if getattr(facts, f.name) != getattr(expected, f.name)]
        notes.append(f"differs from vLLM {series} in: {', '.join(differ)}")
    promote = next(name for name in PROMOTE if _method(cls, name) is not None)
    return Adapter(version, series, facts, foreign_schedule(cls), promote, tuple(notes))
