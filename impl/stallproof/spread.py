"""Independent cases over processes of this machine (``--jobs``) or an existing Ray cluster (``--ray``).

Used by ``hunt`` and ``simulate``. The function must be importable (module level, or a
:func:`functools.partial` of such a one), cases and results plain data. It is called as
``function(case, tick)``; ``tick(*values)`` reports progress from wherever it runs and comes back as
``on_tick(index, *values)`` in this process, all of them before the result of their case. Example, for a
verb with ``--jobs N --ray ADDRESS``::

    def simulate_one(case: dict, tick: Tick) -> dict: ...

    results = spread.run(simulate_one, cases, spread.Where(jobs=jobs, ray=address),
                         label=lambda case: case["name"],
                         on_done=lambda i, result: bar.advance(task),
                         on_tick=lambda i, now, live: ...)

The results are those of a plain loop, in the order of the cases, however they were spread: no case is tried
twice, left out or cut short in silence. What goes wrong is one error that names the case:
:class:`CaseFailed` (the function raised; its exit code is kept) or :class:`CaseLost` (its process died).
:func:`each` yields results as they come, takes endless generators and stops cleanly when closed.

Ray is an extra (``pip install 'stallproof[ray]'``); every node needs the same Stallproof and, for cases that
run an engine, that engine (``stallproof engines up``). ``--ray local`` starts a cluster on this machine.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import signal
import socket
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import stallproof
from stallproof.errors import BadInput, Exit, StallproofError

Tick = Callable[..., None]
Function = Callable[[Any, Tick], Any]
Label = Callable[[Any], str]


@dataclass(frozen=True)
class Where:
    """``jobs`` processes here (1: in this process), or with ``ray`` (``host:port``, ``ray://host:port``,
    ``auto``, ``local``) on that cluster, at most ``jobs`` at a time there (0: as many as it has CPUs)."""

    jobs: int = 1
    ray: str | None = None


class CaseFailed(StallproofError):
    """The function raised. ``index`` of the case, ``details``: its traceback; ``code`` as what it raised."""

    def __init__(self, index: int, text: str, code: int, details: str) -> None:
        super().__init__(text)
        self.index, self.details, self.code = index, details, Exit(code)


class CaseLost(BadInput):
    """The process that ran the case died; ``indices``: the cases it can have been."""

    def __init__(self, indices: Sequence[int], what: str, remedy: str) -> None:
        super().__init__(what, remedy=remedy)
        self.indices = tuple(indices)


def run(
    function: Function, cases: Sequence[Any], where: Where = Where(), *, label: Label = str,
    on_done: Callable[[int, Any], None] = lambda i, r: None,
    on_tick: Callable[..., None] = lambda i, *v: None,
) -> list[Any]:  # fmt: skip
    """Results of all ``cases``, in their order. Raises :class:`CaseFailed`, :class:`CaseLost`, or
    :class:`BadInput` if Ray is not installed or does not answer."""
    cases = list(cases)
    found: dict[int, Any] = {}
    for i, result in each(function, cases, where, label=label, on_tick=on_tick):
        found[i] = result
        on_done(i, result)
    missing = [i for i in range(len(cases)) if i not in found]
    if missing:  # cannot happen; a sum over fewer cases must not look like the whole
        raise CaseLost(missing, f"{len(missing)} of {len(cases)} cases gave no result", "report this")
    return [found[i] for i in range(len(cases))]


def each(
    function: Function, cases: Iterable[Any], where: Where = Where(), *, label: Label = str,
    on_tick: Callable[..., None] = lambda i, *v: None,
) -> Iterator[tuple[int, Any]]:  # fmt: skip
    """``(index, result)`` as results come. ``cases`` may be endless: it is read as workers get free. Closing
    the iterator (leaving the loop) drops what has not begun. Errors as :func:`run`."""
    if where.jobs < 0:
        raise BadInput(f"--jobs {where.jobs}: give 1 or more processes")
    numbered = enumerate(cases)
    if where.ray is not None:
        return _on_ray(function, numbered, where, label, on_tick)
    if where.jobs <= 1:
        return _here(function, numbered, label, on_tick)
    return _processes(function, numbered, where.jobs, label, on_tick)


# ---------------------------------------------------------------- one case, wherever it runs


def _one(function: Function, case: Any, tick: Tick) -> dict[str, Any]:
    """Plain data, so that no exception class has to survive the way back."""
    try:
        return {"is": stallproof.__version__, "result": function(case, tick)}
    except StallproofError as exc:
        text, code, details = str(exc), int(exc.code), traceback.format_exc()
    except Exception as exc:
        text, code, details = f"{type(exc).__name__}: {exc}", int(Exit.BAD_INPUT), traceback.format_exc()
    return {"is": stallproof.__version__, "error": text, "code": code, "details": details}


def _open(i: int, answer: dict[str, Any], name: str) -> Any:
    if answer["is"] != stallproof.__version__:
        raise BadInput(
            f"case {i} ({name}) ran with Stallproof {answer['is']}, this is {stallproof.__version__}",
            remedy="install the same release on every node of the cluster",
        )
    if "error" in answer:
        raise CaseFailed(i, f"case {i} ({name}): {answer['error']}", answer["code"], answer["details"])
    return answer["result"]


def _here(
    function: Function, numbered: Iterator[tuple[int, Any]], label: Label, on_tick: Callable[..., None]
) -> Iterator[tuple[int, Any]]:
    for i, case in numbered:
        yield i, _open(i, _one(function, case, lambda *v, i=i: on_tick(i, *v)), label(case))


# ---------------------------------------------------------------- processes of this machine

_ticks: Any = None
#: a tick that is not there so long after its case's result will not come
LAST_TICKS_S = 10.0


def _set_ticks(ticks: Any) -> None:
    global _ticks
    _ticks = ticks
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C goes to all: this process just ends, without a word
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that is killed does not stop its pool; nobody would read what comes of it."""
    import multiprocessing

    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


def _in_process(function: Function, i: int, case: Any) -> dict[str, Any]:
    said = 0

    def tick(*values: Any) -> None:
        nonlocal said
        said += 1
        _ticks.put((i, values))

    return {**_one(function, case, tick), "ticks": said}


def _processes(
    function: Function, numbered: Iterator[tuple[int, Any]], jobs: int, label: Label,
    on_tick: Callable[..., None],
) -> Iterator[tuple[int, Any]]:  # fmt: skip
    import multiprocessing
    from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
    from concurrent.futures.process import BrokenProcessPool

    context = multiprocessing.get_context("spawn")  # nothing of this process's threads and pipes goes along
    ticks = context.Queue()
    said: queue.SimpleQueue[Any] = queue.SimpleQueue()
    pump = threading.Thread(target=_pump, args=(ticks, said), daemon=True)
    pump.start()
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_set_ticks, initargs=(ticks,))
    running: dict[Future[dict[str, Any]], tuple[int, Any]] = {}
    heard: Counter[int] = Counter()
    try:
        while True:
            for i, case in itertools.islice(numbered, jobs - len(running)):
                running[pool.submit(_in_process, function, i, case)] = (i, case)
            if not running:
                return
            done, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
            _tell(said, on_tick, heard)
            for future in done:
                i, case = running[future]
                try:
                    answer = future.result()
                except BrokenProcessPool as exc:
                    raise _lost(running.values(), label) from exc
                del running[future]
                _tell(said, on_tick, heard, i, answer["ticks"])  # results and ticks come by different pipes
                yield i, _open(i, answer, label(case))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        ticks.put(None)
        pump.join(timeout=10)
        ticks.close()


def _pump(ticks: Any, said: queue.SimpleQueue[Any]) -> None:
    with contextlib.suppress(EOFError, OSError):
        while (item := ticks.get()) is not None:
            said.put(item)


def _tell(
    said: queue.SimpleQueue[Any],
    on_tick: Callable[..., None],
    heard: Counter[int],
    case: int = 0,
    owed: int = 0,
) -> None:
    """Pass on what was said, and wait for the rest of the ``owed`` ticks of ``case``."""
    with contextlib.suppress(queue.Empty):
        while True:
            i, values = said.get(timeout=LAST_TICKS_S) if heard[case] < owed else said.get_nowait()
            heard[i] += 1
            on_tick(i, *values)


def _lost(running: Iterable[tuple[int, Any]], label: Label) -> CaseLost:
    suspects = sorted(running, key=lambda item: item[0])
    names = ", ".join(f"{i} ({label(case)})" for i, case in suspects)
    which = f"case {names}" if len(suspects) == 1 else f"one of the cases {names}"
    return CaseLost(
        [i for i, _ in suspects],
        f"a worker process died while it ran {which}",
        "it was killed, out of memory, or left the interpreter; run these with --jobs 1 to see which and why",
    )


# ---------------------------------------------------------------- Ray


def _on_ray(
    function: Function, numbered: Iterator[tuple[int, Any]], where: Where, label: Label,
    on_tick: Callable[..., None],
) -> Iterator[tuple[int, Any]]:  # fmt: skip
    ray = _ray()
    address = where.ray or "auto"
    mine = not ray.is_initialized()
    if mine:
        _connect(ray, address)
    running: dict[Any, tuple[int, Any]] = {}
    try:
        from ray.util.queue import Queue

        ticks = Queue(actor_options={"num_cpus": 0})
        width = where.jobs or max(1, int(ray.cluster_resources().get("CPU", 1)))
        remote = ray.remote(num_cpus=1, max_retries=0)(_in_ray)
        while True:
            for i, case in itertools.islice(numbered, width - len(running)):
                running[remote.remote(function, ticks, i, case)] = (i, case)
            if not running:
                return
            done, _ = ray.wait(list(running), num_returns=1, timeout=0.5)
            # a tick is in the queue before its case ends, so those of what is done are there
            for j, values in ticks.get_nowait_batch(ticks.qsize()):
                on_tick(j, *values)
            for ref in done:
                i, case = running[ref]
                try:
                    answer = ray.get(ref)
                except ray.exceptions.RayError as exc:
                    first = (str(exc).strip() or type(exc).__name__).splitlines()[0]
                    raise CaseLost(
                        [i], f"case {i} ({label(case)}) was lost on the Ray cluster: {first}",
                        "see that its nodes are up and have the memory, and the same Stallproof and Python",
                    ) from exc  # fmt: skip
                del running[ref]
                yield i, _open(i, answer, label(case))
    finally:
        for ref in running:
            with contextlib.suppress(Exception):
                ray.cancel(ref, force=True)
        if mine:
            ray.shutdown()


def _in_ray(function: Function, ticks: Any, i: int, case: Any) -> dict[str, Any]:
    return _one(function, case, lambda *v: ticks.put((i, v)))


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise BadInput("--ray needs Ray", remedy="pip install 'stallproof[ray]'") from None
    return ray


def _connect(ray: Any, address: str) -> None:
    try:
        _reachable(address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", include_dashboard=None)
    except Exception as exc:
        first = (str(exc).strip() or type(exc).__name__).splitlines()[0]
        raise BadInput(
            f"no Ray cluster answers at {address!r}: {first[:200]}",
            remedy="start one with 'ray start --head' and give its host:port, or use --ray local",
        ) from exc


def _reachable(address: str) -> None:
    """Raises :class:`OSError` or :class:`ValueError` at once; Ray itself would try again for minutes."""
    if address in ("auto", "local"):
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError("an address is host:port, ray://host:port, auto or local")
    socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()


__all__ = ["CaseFailed", "CaseLost", "Tick", "Where", "each", "run"]
