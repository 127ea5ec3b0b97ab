"""py-spy and faulthandler stacks: what each thread is doing, by its frames.

Discriminating frames: research production_evidence 1.9. A stack is one moment: alone it proves nothing; two
equal ones, or one together with an interval without tokens, do.
"""

from __future__ import annotations

import re

import msgspec

from .observe import Ref

_THREAD = re.compile(r"^(?:Current t|T)hread (\S+)(?: \(([^)]*)\))?:?(?:.*?\"([^\"]*)\")?")
_PROCESS = re.compile(r"^Process (\d+): (.*)")
_PYSPY = re.compile(r"^\s+([\w<>.~:*&\[\], ]{1,200}?) \((?:.*/)?([\w\-.<>]+?)(?:\.py)?(?::(\d+))?\)\s*$")
_FAULT = re.compile(r'^\s*File "(?:.*/)?([\w\-.<>]+?)(?:\.py)?", line (\d+) in (\S+)')
_MAX = 80

#: (class, function names, why). First match from the innermost frame outwards wins.
_DEVICE = re.compile(
    r"synchronize|all_reduce|allreduce|all_gather|allgather|broadcast_tensor|barrier|reduce_scatter|all_to_all"
    r"|_local_scalar_dense|\bitem\b|tolist|nccl|hccl|aclrt|Stream|graph_?replay|\breplay\b|cuda\w*|npu\w*|wait_event"
)
_RPC = {
    "acquire_read",
    "acquire_write",
    "get_response",
    "collective_rpc",
    "sample_tokens",
    "execute_model",
    "dequeue",
    "wait_for_response",
    "get_output",
    "future_result",
}
_STARTUP = {"compile_or_warm_up_model", "_initialize_kv_caches", "determine_available_memory", "load_model"}
_SCHED = {"schedule", "update_from_output", "allocate_slots", "_preempt_request", "get_computed_blocks"}


class Thread(msgspec.Struct, kw_only=True):
    """One thread. ``frames``: function@file, innermost first."""

    name: str
    ref: Ref
    process: str = ""
    pid: int = 0
    frames: list[str] = []

    @property
    def state(self) -> str:
        """startup, worker_wait, device, dummy, idle, scheduler, step, loop, receive, or empty."""
        names = [f.split("@")[0].rsplit(".", 1)[-1] for f in self.frames]
        files = [f.partition("@")[2] for f in self.frames]
        have = set(names)
        core = bool(have & {"run_busy_loop", "run_engine_core"})
        worker = "worker_busy_loop" in have or "worker_main" in have
        if have & _STARTUP:
            return "startup"
        if "execute_dummy_batch" in have:
            return "dummy"
        if core:
            if have & {"_process_input_queue"} and not have & {"step", "step_with_batch_queue"}:
                return "idle"
            if have & _RPC or any(f == "shm_broadcast" for f in files):
                return "worker_wait"
            if have & _SCHED or "step" in have or "step_with_batch_queue" in have:
                device = any(_DEVICE.search(n) for n in names[:6])
                if "schedule" in have or "update_from_output" in have:
                    return "scheduler"
                return "device" if device else "step"
            return "loop"
        if worker:
            inner = names[:1]
            if have & {"execute_model", "sample_tokens", "execute_dummy_batch"}:
                return "device"
            if have & {"dequeue", "acquire_read"} or inner == ["wait"]:
                return "receive"
            return "device" if any(_DEVICE.search(n) for n in names[:6]) else ""
        if have & {"execute_model", "sample_tokens"} and any(_DEVICE.search(n) for n in names[:8]):
            return "device"
        return ""


class Stacks:
    """Collects frames line by line; finished threads come out of :meth:`feed` and :meth:`flush`."""

    def __init__(self) -> None:
        self.thread: Thread | None = None
        self.process = ""
        self.pid = 0
        self.last = -1

    def header(self, text: str, ref: Ref) -> tuple[bool, Thread | None]:
        """Does a thread or a process begin here? With the thread that ended."""
        m = _PROCESS.match(text)
        if m is not None:
            done = self.flush()
            self.pid, self.process = int(m[1][:12]), m[2][:200]
            return True, done
        m = _THREAD.match(text)
        if m is None:
            return False, None
        done = self.flush()
        self.thread = Thread(name=(m[3] or m[1])[:80], ref=ref, process=self.process, pid=self.pid)
        self.last = ref.line
        return True, done

    def frame(self, text: str, ref: Ref) -> tuple[bool, Thread | None]:
        """Is this a stack frame? With the thread that ended, where a new one begins without a header."""
        m = _PYSPY.match(text)
        if m is not None:
            name, file = m[1].strip(), m[2]
        else:
            m = _FAULT.match(text)
            if m is None:
                return False, None
            file, name = m[1], m[3]
        done = None
        if self.thread is None or ref.line - self.last > 3:
            done = self.flush()
            self.thread = Thread(name="?", ref=ref, process=self.process, pid=self.pid)
        self.last = ref.line
        if len(self.thread.frames) < _MAX:
            self.thread.frames.append(f"{name}@{file}")
        return True, done

    def flush(self) -> Thread | None:
        """The thread collected so far."""
        t, self.thread = self.thread, None
        return t if t is not None and t.frames else None
