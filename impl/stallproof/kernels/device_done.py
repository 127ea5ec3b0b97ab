"""Device fences in a real engine: ``STALLPROOF_DEVICE_FENCES=1``. Off by default, and then free.

The worker closes a fence (:class:`~stallproof.kernels.fences.StepFences`) behind the last work of every step,
drafter included, and sends the high-water mark back with the output. The scheduler side takes it as what
*device done* means: the gate of the scheduler class opens on it, and a trace records it (``done``). Where no
mark comes, the rule is the one without fences: processed, one step later where work runs behind the output.

Nothing is added to vLLM's processes or protocols: the step's number and the mark are attributes of the
objects that travel anyway. With more than one worker the mark is that of the worker whose output the engine
reads, so it may only delay a start, never bring it forward.
"""

from __future__ import annotations

import copy
import functools
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from stallproof.core.steps import Steps
from stallproof.errors import BadInput, StallproofError

from .fences import StepFences

ENV = "STALLPROOF_DEVICE_FENCES"
STEP, DONE = "stallproof_step", "stallproof_done"

logger = logging.getLogger("vllm.stallproof.fences")


def wanted(env: Mapping[str, str] | None = None) -> bool:
    """Whether the environment asks for device fences. Raises BadInput for a value that is no switch."""
    value = (os.environ if env is None else env).get(ENV, "").strip().lower()
    if value in ("", "0", "off", "false", "no"):
        return False
    if value in ("1", "on", "true", "yes"):
        return True
    raise BadInput(f"{ENV}={value!r}", remedy="use 1; empty is off")


# ---------------------------------------------------------------- scheduler side


class SchedulerFences:
    """Hooks one live scheduler, a guarded or a recorded one: number out with a step, mark in with its output.

    ``early``: see :class:`~stallproof.core.steps.Steps`. ``lost``: an output came without a mark; from then
    on the outputs decide again, because a gate must not wait for a report that never comes.
    """

    def __init__(self, scheduler: Any, *, early: bool = True) -> None:
        guarded = getattr(scheduler, "_sp_steps", None)
        if guarded is None and not hasattr(type(scheduler), "_sp_rec"):
            raise BadInput(
                f"scheduler class {type(scheduler).__name__} has no use for device fences",
                remedy="use stallproof.vllm.Scheduler, or record a trace",
            )
        done = getattr(getattr(scheduler, "_sp_rec", None), "step", 0)
        self.steps: Steps = guarded if guarded is not None else Steps(dispatched=done, processed=done)
        self.lost = False
        self._own = guarded is None
        self._scheduler = scheduler
        self._before = {n: scheduler.__dict__.get(n) for n in ("schedule", "update_from_output")}
        self.steps.early = early
        self.steps.observe(0)
        schedule, update = scheduler.schedule, scheduler.update_from_output

        @functools.wraps(schedule)
        def fenced_schedule(*args: Any, **kwargs: Any) -> Any:
            self._record()
            output = schedule(*args, **kwargs)
            if self._own:
                self.steps.dispatch(output.total_num_scheduled_tokens)
            setattr(output, STEP, self.steps.dispatched)
            return output

        @functools.wraps(update)
        def fenced_update(scheduler_output: Any, model_runner_output: Any) -> Any:
            if self._own:
                self.steps.process(scheduler_output.total_num_scheduled_tokens)
            if hasattr(scheduler_output, STEP):
                self._take(getattr(model_runner_output, DONE, None))
                self._record()
            return update(scheduler_output, model_runner_output)

        scheduler.schedule, scheduler.update_from_output = fenced_schedule, fenced_update

    def detach(self) -> None:
        """Take the hooks off again; hooks put on later must be off already."""
        put_back(self._scheduler, self._before)
        self.steps.observe(-1)

    def _take(self, mark: int | None) -> None:
        if mark is not None:
            if not self.lost:
                self.steps.observe(mark)
            return
        if not self.lost:
            self.lost = True
            text = "an output came without the device's mark; from now on the outputs decide"
            logger.warning("stallproof device fences: %s", text)
            if (rec := getattr(self._scheduler, "_sp_rec", None)) is not None:
                rec.note("device-fences", text)
        self.steps.observe(-1)

    def _record(self) -> None:
        """The mark for the trace, in the recorder's numbers, which begin when the recording does."""
        rec = getattr(self._scheduler, "_sp_rec", None)
        if rec is not None:
            rec.done = max(rec.done, self.steps.done - (self.steps.dispatched - rec.step), 0)


# ---------------------------------------------------------------- worker side


class WorkerFences:
    """Hooks one model runner: a fence behind each step's last work, the mark out with the output.

    Under the sanitizer on CPU the fences lie on its *late* device, so that one clock says what is done.
    """

    def __init__(self, worker: Any) -> None:
        from .device import open_device

        runner = worker.model_runner
        self.device: Any = open_device(runner.device.type)
        sanitizer = getattr(worker, "stallproof_sanitizer", None)
        if sanitizer is not None and sanitizer.late:
            self.device = sanitizer.sanitizer.device
        self.fences = StepFences(self.device)
        self._step = 0
        self._runner = runner
        self._before = {n: runner.__dict__.get(n) for n in ("execute_model", "sample_tokens")}
        execute, sample = runner.execute_model, getattr(runner, "sample_tokens", None)

        @functools.wraps(execute)
        def execute_model(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            self._close()  # of a step that never got as far as its output
            self._step = getattr(scheduler_output, STEP, 0)
            output = execute(scheduler_output, *args, **kwargs)
            return output if output is None else self._end(output)

        runner.execute_model = execute_model
        if sample is not None:

            @functools.wraps(sample)
            def sample_tokens(*args: Any, **kwargs: Any) -> Any:
                return self._end(sample(*args, **kwargs))

            runner.sample_tokens = sample_tokens

    def remove(self) -> None:
        """Take the hooks off again."""
        put_back(self._runner, self._before)

    def _close(self) -> None:
        if self._step > self.fences.newest:
            self.fences.close(self._step)
        self._step = 0

    def _end(self, output: Any) -> Any:
        """The step has submitted its last work, the drafter included. Returns what to give back."""
        self._close()
        return self._publish(output)

    def _publish(self, output: Any) -> Any:
        if output is None:
            return output
        if hasattr(output, "get_output"):  # the mark is read when the output is: as new as it can be
            inner: Callable[..., Any] = output.get_output

            def get_output(*args: Any, **kwargs: Any) -> Any:
                return self._publish(inner(*args, **kwargs))

            output.get_output = get_output
        elif hasattr(output, "req_ids"):
            output = copy.copy(output)  # an empty output is one object for all steps
            setattr(output, DONE, self.fences.poll())
        return output


def install_fences(worker: Any) -> str:
    """Called in every worker through ``collective_rpc``: the device's name, or ``no: why``."""
    inner = getattr(worker, "worker", worker)
    try:
        inner.stallproof_fences = WorkerFences(inner)
    except StallproofError as e:
        return f"no: {e}"
    return str(inner.stallproof_fences.device.name)


def remove_fences(worker: Any) -> None:
    """Called in every worker through ``collective_rpc``: take the hooks off."""
    inner = getattr(worker, "worker", worker)
    if hasattr(inner, "stallproof_fences"):
        inner.stallproof_fences.remove()
        del inner.stallproof_fences


# ---------------------------------------------------------------- both


def put_back(target: Any, before: Mapping[str, Any]) -> None:
    """Instance attributes as they were before a hook."""
    for name, value in before.items():
        if value is not None:
            setattr(target, name, value)
        elif name in target.__dict__:
            delattr(target, name)


class EngineFences:
    """The device fences of one engine core; made by :func:`attach`."""

    def __init__(self, core: Any, scheduler: SchedulerFences) -> None:
        self._core, self.scheduler = core, scheduler

    def detach(self) -> None:
        """Leave the engine as it was; hooks put on later must be off already."""
        self._core.model_executor.collective_rpc(remove_fences)
        self.scheduler.detach()


def attach(core: Any) -> EngineFences | None:
    """Fence every step of the engine core ``core`` (``vllm.v1.engine.core.EngineCore``).

    None, with one line in the log, where a worker's device has no events to offer or nothing would use them.
    """
    answers = core.model_executor.collective_rpc(install_fences)
    why = next((a for a in answers if a.startswith("no: ")), "")
    if not why:
        try:
            scheduler = SchedulerFences(core.scheduler, early=len(answers) == 1)
        except BadInput as e:
            why = f"no: {e}"
    if why:
        core.model_executor.collective_rpc(remove_fences)
        logger.warning("stallproof device fences: off, %s", why.removeprefix("no: "))
        return None
    word = "may open a gate early" if scheduler.steps.early else f"{len(answers)} workers: may only delay"
    logger.info("stallproof device fences: on, device %s, %s", answers[0], word)
    return EngineFences(core, scheduler)
