"""The sanitizer in a real engine: ``STALLPROOF_SANITIZE=check`` or ``poison``. Off by default, and then free.

The scheduler side turns what a recorder sees into plans and sends each with the step it belongs to; the
worker side stamps, checks and poisons around the model runner, and sends what it found back with the output.
Nothing is added to vLLM's processes or protocols: plans and findings are attributes of the objects that
travel anyway. :func:`plugin` is an entry point of ``vllm.general_plugins``; :func:`attach` does the same by
hand for an engine core in this process.

On CPU a step is over before the next is scheduled, so no order could ever be wrong there. Therefore the tags
of a CPU run live on a *late* device: a step's stamps and checks happen as late as the engine's contract
allows, when its output has been processed. A report then means that hardware could have raced.
"""

from __future__ import annotations

import copy
import functools
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from stallproof.errors import BadInput

from . import device_done
from .device_done import put_back
from .digests import Digests
from .feed import Feed
from .ledger import Finding, Report, StepPlan

ENV, PATTERN_ENV = "STALLPROOF_SANITIZE", "STALLPROOF_SANITIZE_PATTERN"
CHECKSUM_ENV = "STALLPROOF_SANITIZE_CHECKSUM"
MODES, PATTERNS = ("check", "poison"), ("finite", "nan", "zero")
PLAN, FOUND = "stallproof_plan", "stallproof_findings"
#: distinct reports that are logged; the rest is counted
LOGGED = 50
#: distinct reports that are kept
KEPT = 1000

logger = logging.getLogger("vllm.stallproof.sanitizer")


class SanitizerError(RuntimeError):
    """A report under ``STALLPROOF_STRICT=1``."""


@dataclass(frozen=True)
class SanitizeSettings:
    """``mode``: empty is off. ``pattern``: what poison is made of; ``strict``: raise on a report.

    ``finite``: large values, for attention kernels that multiply unwritten slots by zero (NaN would spread);
    ``nan``: where the kernel masks before it multiplies. ``checksum``: watch every so many-th block that
    enters the prefix cache, 0 none, 1 all.
    """

    mode: str = ""
    pattern: str = "finite"
    strict: bool = False
    checksum: int = 0

    @classmethod
    def from_environment(cls, env: Mapping[str, str] | None = None) -> SanitizeSettings:
        """Raises BadInput for a value that is not one of :data:`MODES` or :data:`PATTERNS`, or no number."""
        env = os.environ if env is None else env
        mode = env.get(ENV, "").strip().lower()
        if mode not in ("", "0", "off", *MODES):
            raise BadInput(f"{ENV}={mode!r}", remedy=f"use {' or '.join(MODES)}; empty is off")
        pattern = env.get(PATTERN_ENV, "finite").strip().lower()
        if pattern not in PATTERNS:
            raise BadInput(f"{PATTERN_ENV}={pattern!r}", remedy=f"use one of {', '.join(PATTERNS)}")
        strict = env.get("STALLPROOF_STRICT", "").strip().lower() in ("1", "true", "yes", "on")
        every = env.get(CHECKSUM_ENV, "").strip() or "0"
        if not every.isdecimal():
            raise BadInput(f"{CHECKSUM_ENV}={every!r}", remedy="use N: every N-th cached block; 1 is all")
        return cls(mode if mode in MODES else "", pattern, strict, int(every))


# ---------------------------------------------------------------- scheduler side


class SchedulerSanitizer:
    """Hooks one live scheduler. ``reports``: all distinct ones so far; ``repeated``: how many more."""

    def __init__(self, scheduler: Any, settings: SanitizeSettings) -> None:
        from stallproof.vllm import recording

        self.settings = settings
        self.reports: list[Report] = []
        self.repeated = 0
        self.steps = 0
        self._seen: set[tuple[Any, ...]] = set()
        self._plan: StepPlan | None = None
        self.pool = scheduler.kv_cache_manager.block_pool
        self.digests = Digests(settings.checksum) if settings.checksum else None
        self.feed = Feed(
            len(self.pool.blocks),
            cached=self._cached if settings.mode == "poison" else None,
            digests=self.digests,
        )
        self._scheduler = scheduler
        self._unhook = watch_cache(self.pool, self.digests) if self.digests else lambda: None
        self._before = {n: scheduler.__dict__.get(n) for n in ("schedule", "update_from_output")}
        rec = getattr(scheduler, "_sp_rec", None)
        if rec is None:
            if not isinstance(scheduler, recording.RecordingMixin):
                raise BadInput(
                    f"scheduler class {type(scheduler).__name__} does not record",
                    remedy="make it with stallproof.vllm.recording.recorded(Base), or use the plug-in",
                )
            rec = recording.attach(scheduler, self._record)
        else:
            first = rec.put

            def both(record: Any) -> None:
                first(record)
                self._record(record)

            rec.put = both
        self._rec = rec
        state = rec.probe.snapshot()
        self.feed.adopt((r.r, r.blocks) for r in state.requests)
        schedule, update = scheduler.schedule, scheduler.update_from_output

        @functools.wraps(schedule)
        def sanitized_schedule(*args: Any, **kwargs: Any) -> Any:
            self._plan = None
            output = schedule(*args, **kwargs)
            if self._plan is not None:
                setattr(output, PLAN, self._plan)
                self.steps += 1
            return output

        @functools.wraps(update)
        def sanitized_update(scheduler_output: Any, model_runner_output: Any) -> Any:
            self.found(getattr(model_runner_output, FOUND, ()))
            return update(scheduler_output, model_runner_output)

        scheduler.schedule, scheduler.update_from_output = sanitized_schedule, sanitized_update

    def detach(self) -> None:
        """Take the hooks off again."""
        from stallproof.vllm import recording

        put_back(self._scheduler, self._before)
        self._unhook()
        recording.close_recording(self._scheduler)

    def _cached(self, block: int) -> bool:
        b = self.pool.blocks[block]
        return getattr(b, "block_hash", None) is not None or b.ref_cnt > 0 or getattr(b, "is_null", False)

    def _record(self, record: Any) -> None:
        plan = self.feed.record(record)
        if plan is not None:
            self._plan = plan

    def found(self, findings: Any) -> None:
        """Explain findings, log each distinct report once, raise under ``strict``."""
        for report in self.feed.reports(findings):
            key = (report.property, report.block, report.job, report.request, report.step or report.at)
            if key in self._seen or len(self.reports) >= KEPT:
                self.repeated += 1
                continue
            self._seen.add(key)
            self.reports.append(report)
            if len(self.reports) <= LOGGED:
                logger.error("stallproof sanitizer: %s", report.line())
                self._rec.note("sanitizer", report.line(), block=report.block, property=report.property)
            if self.settings.strict:
                raise SanitizerError(report.line())


# ---------------------------------------------------------------- worker side


class WorkerSanitizer:
    """Hooks one model runner: plan in, stamps and checks around the step, findings out."""

    def __init__(self, worker: Any, blocks: int, settings: SanitizeSettings) -> None:
        from .device import open_device
        from .sanitizer import Sanitizer, pattern
        from .simulated import SimulatedDevice

        runner = worker.model_runner
        kind = runner.device.type
        real = open_device(kind)
        self.late = not real.asynchronous
        device = SimulatedDevice(lambda n: 0) if self.late else real
        cache, fill = None, 0
        if settings.mode == "poison" or settings.checksum:
            tensors = _kv_tensors(runner)
            from .segments import from_caches

            cache = from_caches(tensors, blocks)
            fill = pattern(tensors[0].dtype, settings.pattern)
        self.sanitizer = Sanitizer(
            device, blocks, where=runner.device, cache=cache, fill=fill, fill_device=real
        )
        from .fences import StepFences

        self.fences = StepFences(device)
        #: processed steps that the late device may still be running: 1 where work follows the output
        self.behind = 0
        self._step = 0
        self._found: list[Finding] = []
        self.filled = 0
        self._runner = runner
        self._before = {n: runner.__dict__.get(n) for n in ("execute_model", "sample_tokens")}
        execute, sample = runner.execute_model, getattr(runner, "sample_tokens", None)

        @functools.wraps(execute)
        def execute_model(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            plan = getattr(scheduler_output, PLAN, None)
            if plan is not None:
                self.begin(plan)
            output = execute(scheduler_output, *args, **kwargs)
            return output if output is None else self.end(output)

        runner.execute_model = execute_model
        if sample is not None:

            @functools.wraps(sample)
            def sample_tokens(*args: Any, **kwargs: Any) -> Any:
                return self.end(sample(*args, **kwargs))

            runner.sample_tokens = sample_tokens

    def begin(self, plan: StepPlan) -> None:
        if self._step:
            self._close()
        self.filled += len(plan.fill)
        for job in plan.now:  # in the order of the host: what was processed before it, and no more, is done
            if self.late:
                self.fences.drain(job.after - self.behind)
            self.sanitizer.jobs([job])
        if self.late:
            self.fences.drain(plan.processed - self.behind)
        self.sanitizer.begin(plan)
        self._step = plan.step

    def end(self, output: Any) -> Any:
        """The step has submitted its last work, the drafter included. Returns what to give back."""
        self._close()
        self._found += self.sanitizer.collect()
        return self._publish(output)

    def drain(self) -> list[Finding]:
        """Everything has run: the findings not yet sent."""
        self._close()
        self.fences.drain()
        found, self._found = self._found + self.sanitizer.collect(), []
        return found

    def remove(self) -> None:
        """Take the hooks off again."""
        put_back(self._runner, self._before)

    def _close(self) -> None:
        if self._step:
            self.sanitizer.end(self._step)
            self.fences.close(self._step)
            self._step = 0

    def _publish(self, output: Any) -> Any:
        if not self._found or output is None:
            return output
        if hasattr(output, "get_output"):
            inner: Callable[..., Any] = output.get_output

            def get_output(*args: Any, **kwargs: Any) -> Any:
                return self._publish(inner(*args, **kwargs))

            output.get_output = get_output
            return output
        if hasattr(output, "req_ids"):
            output = copy.copy(output)  # an empty output is one object for all steps
            setattr(output, FOUND, self._found)
            self._found = []
        return output


def _kv_tensors(runner: Any) -> list[Any]:
    """The KV cache tensors of a model runner. Raises BadInput where this release keeps them elsewhere."""
    tensors: list[Any] = []
    for cache in getattr(runner, "kv_caches", None) or ():
        tensors += cache if isinstance(cache, (list, tuple)) else [cache]
    if not tensors:
        raise BadInput(
            "poison and checksums: this model runner does not show its KV cache",
            remedy=f"use {ENV}=check without {CHECKSUM_ENV}",
        )
    return tensors


def install_worker(worker: Any, blocks: int, settings: SanitizeSettings) -> int:
    """Called in every worker through ``collective_rpc``; returns the number of KV segments (0 for check)."""
    inner = getattr(worker, "worker", worker)
    inner.stallproof_sanitizer = WorkerSanitizer(inner, blocks, settings)
    cache = inner.stallproof_sanitizer.sanitizer.cache
    return len(cache) if cache is not None else 0


def drain_worker(worker: Any) -> list[Finding]:
    """Called in every worker through ``collective_rpc``: let all checks run."""
    inner = getattr(worker, "worker", worker)
    found: list[Finding] = inner.stallproof_sanitizer.drain()
    return found


def remove_worker(worker: Any) -> None:
    """Called in every worker through ``collective_rpc``: take the hooks off."""
    inner = getattr(worker, "worker", worker)
    inner.stallproof_sanitizer.remove()
    del inner.stallproof_sanitizer


# ---------------------------------------------------------------- both


def silent_store(connector: Any) -> str:
    """Why ``connector`` may read blocks that the scheduler no longer knows to be read; empty if it does not.

    A connector that stores in the background and flushes when a block is reused would store poison, because a
    fill runs ahead of its flush. A connector class whose every store delays the free says so with
    ``stallproof_reports_stores = True``.
    """
    if connector is None or getattr(connector, "stallproof_reports_stores", False):
        return ""
    config = getattr(getattr(connector, "_vllm_config", None), "kv_transfer_config", None)
    if getattr(config, "kv_role", "") == "kv_consumer":
        return ""
    return f"{type(connector).__name__} may store blocks without telling the scheduler"


def mutable_blocks(config: Any, scheduler: Any) -> str:
    """Why a full block in the prefix cache may still change; empty if it may not.

    A drafter with a cache of its own writes the last position of a block one step late; groups other than
    full attention keep states that are written in place.
    """
    if getattr(config, "speculative_config", None) is not None:
        return "a drafter may write the end of a full block one step late"
    groups = getattr(getattr(scheduler, "kv_cache_config", None), "kv_cache_groups", ())
    if len(groups) > 1:
        return "several kinds of KV cache share the blocks"
    return ""


def watch_cache(pool: Any, digests: Digests) -> Callable[[], None]:
    """Tell ``digests`` what enters and leaves the prefix cache of ``pool``; returns what takes it off."""
    names = ("cache_full_blocks", "_maybe_evict_cached_block", "reset_prefix_cache")
    before = {n: pool.__dict__.get(n) for n in names}
    cache, evict, reset = (getattr(pool, n) for n in names)

    @functools.wraps(cache)
    def cache_full_blocks(request: Any, blocks: Any, num_cached_blocks: int, *args: Any, **kw: Any) -> Any:
        bare = [b for b in blocks[num_cached_blocks:] if b.block_hash is None]
        result = cache(request, blocks, num_cached_blocks, *args, **kw)
        for b in bare:
            if b.block_hash is not None and not b.is_null:
                digests.entered(b.block_id, request.request_id, b.block_hash)
        return result

    @functools.wraps(evict)
    def maybe_evict_cached_block(block: Any) -> Any:
        if block.block_hash is not None:
            digests.left(block.block_id, block.block_hash)
        return evict(block)

    @functools.wraps(reset)
    def reset_prefix_cache(*args: Any, **kwargs: Any) -> Any:
        done = reset(*args, **kwargs)
        if done:
            digests.reset()
        return done

    hooks = (cache_full_blocks, maybe_evict_cached_block, reset_prefix_cache)
    for name, hook in zip(names, hooks, strict=True):
        setattr(pool, name, hook)
    return lambda: put_back(pool, before)


class EngineSanitizer:
    """The sanitizer of one engine core. ``finish()`` runs the checks that are still open."""

    def __init__(self, core: Any, settings: SanitizeSettings) -> None:
        self._core = core
        connector = getattr(core.scheduler, "connector", None)
        if settings.mode == "poison" and (why := silent_store(connector)):
            logger.warning("stallproof sanitizer: checking only, no poison: %s", why)
            settings = replace(settings, mode="check")
        if settings.checksum and (why := mutable_blocks(core.vllm_config, core.scheduler)):
            logger.warning("stallproof sanitizer: no checksums: %s", why)
            settings = replace(settings, checksum=0)
        self.settings = settings
        self.scheduler = SchedulerSanitizer(core.scheduler, settings)
        blocks = len(self.scheduler.pool.blocks)
        self.segments = core.model_executor.collective_rpc(install_worker, args=(blocks, settings))
        what = f"{self.segments[0]} segments, pattern {settings.pattern}" if self.segments[0] else "tags only"
        if settings.checksum:
            what += f", checksum of every {settings.checksum}. cached block"
        logger.info("stallproof sanitizer: mode %s, %d blocks, %s", settings.mode, blocks, what)

    def finish(self) -> list[Report]:
        """All distinct reports, the checks still open included."""
        for found in self._core.model_executor.collective_rpc(drain_worker):
            self.scheduler.found(found)
        return self.scheduler.reports

    def detach(self) -> list[Report]:
        """:meth:`finish`, then leave the engine as it was."""
        reports = self.finish()
        self._core.model_executor.collective_rpc(remove_worker)
        self.scheduler.detach()
        return reports


def attach(core: Any, settings: SanitizeSettings | None = None) -> EngineSanitizer | None:
    """Sanitize the engine core ``core`` (``vllm.v1.engine.core.EngineCore``); None if it is switched off."""
    settings = settings or SanitizeSettings.from_environment()
    if not settings.mode:
        return None
    return EngineSanitizer(core, settings)


def plugin() -> None:
    """Entry point of ``vllm.general_plugins``: ``STALLPROOF_SANITIZE`` and ``STALLPROOF_DEVICE_FENCES``.

    Without them it touches nothing. With them an engine core attaches the sanitizer, the fences or both at
    its first step; for the sanitizer, the scheduler class that the configuration names is given a recorder.
    """
    if not any(os.environ.get(name, "").strip() for name in (ENV, device_done.ENV)):
        return
    settings, fences = SanitizeSettings.from_environment(), device_done.wanted()
    if not settings.mode and not fences:
        return
    from vllm.v1.engine.core import EngineCore

    def first(name: str) -> None:
        original = getattr(EngineCore, name)
        if getattr(original, "_stallproof", False):
            return

        @functools.wraps(original)
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not hasattr(self, "stallproof_sanitizer"):
                self.stallproof_sanitizer = attach(self, settings)
                # after the sanitizer: a CPU run has one late device for both
                self.stallproof_fences = device_done.attach(self) if fences else None
            return original(self, *args, **kwargs)

        step._stallproof = True  # type: ignore[attr-defined]
        setattr(EngineCore, name, step)

    for name in ("step", "step_with_batch_queue"):
        first(name)
    if not settings.mode:
        return
    from vllm.config import SchedulerConfig

    resolve = SchedulerConfig.get_scheduler_cls
    if getattr(resolve, "_stallproof", False):
        return

    @functools.wraps(resolve)
    def get_scheduler_cls(self: Any) -> Any:
        from stallproof.vllm.recording import recorded

        return recorded(resolve(self))

    get_scheduler_cls._stallproof = True  # type: ignore[attr-defined]
    SchedulerConfig.get_scheduler_cls = get_scheduler_cls
