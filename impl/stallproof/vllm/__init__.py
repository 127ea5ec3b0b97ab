"""Scheduler classes for vLLM, guarded by Stallproof.

Use ``--scheduler-cls stallproof.vllm.AsyncScheduler`` (or ``stallproof.vllm.Scheduler`` where asynchronous
scheduling is off). For a scheduler class of somebody else's: ``guarded(Base)``. Importing this package does
not import vLLM; asking for a class does.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

__all__ = ["AsyncScheduler", "Scheduler", "guarded"]

_BASES = {
    "Scheduler": ("vllm.v1.core.sched.scheduler", "Scheduler"),
    "AsyncScheduler": ("vllm.v1.core.sched.async_scheduler", "AsyncScheduler"),
}


def guarded(base: type | str) -> Any:
    """A subclass of scheduler class ``base`` with the rules of Stallproof in force.

    ``base``: a class derived from vLLM's ``Scheduler``, or its dotted name. Its own ``schedule()`` is called,
    not replaced. The same class object is returned for the same base.

    Raises:
        Unsupported: vLLM is outside the supported range, or the class lacks what the guard needs.
    """
    if isinstance(base, str):
        module, _, name = base.rpartition(".")
        base = getattr(importlib.import_module(module), name)
    return _guarded(base)


@functools.cache
def _guarded(base: Any) -> Any:
    import vllm

    from stallproof.core.rules import Settings
    from stallproof.vllm.adapters import adapt
    from stallproof.vllm.guard import Guard
    from stallproof.vllm.recording import RecordingMixin

    if issubclass(base, Guard):
        return base
    adapt(base, vllm.__version__, Settings.from_environment().allow_untested)
    name = f"Stallproof{base.__name__}"
    # Recording in front sees what the guard does before and after the engine's own call.
    return type(
        name,
        (RecordingMixin, Guard, base),
        {"__module__": __name__, "__doc__": Guard.__doc__, "_sp_base": base},
    )


def __getattr__(name: str) -> Any:
    if name in _BASES:
        module, attribute = _BASES[name]
        return guarded(getattr(importlib.import_module(module), attribute))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
