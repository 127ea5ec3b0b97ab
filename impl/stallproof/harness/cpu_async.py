"""A vLLM general plug-in for tests: asynchronous scheduling on the CPU platform.

The CPU platform switches asynchronous scheduling off whatever the user asked for, so that only one batch is
ever in flight. This puts the wish back and gives the model runner's asynchronous output stand-ins for
device events and streams, which on a CPU have nothing to do. Active where ``STALLPROOF_CPU_ASYNC=1``.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

ENV = "STALLPROOF_CPU_ASYNC"


class _Event:
    """Always done."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def record(self, *args: Any, **kwargs: Any) -> None: ...

    def synchronize(self) -> None: ...

    def wait(self, *args: Any, **kwargs: Any) -> None: ...

    def query(self) -> bool:
        return True


class _Stream:
    """Everything on it has already happened."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        import torch

        self.device = torch.device("cpu")

    def wait_stream(self, *args: Any, **kwargs: Any) -> None: ...

    def wait_event(self, *args: Any, **kwargs: Any) -> None: ...

    def synchronize(self) -> None: ...

    def record_event(self, *args: Any, **kwargs: Any) -> _Event:
        return _Event()


def register() -> None:
    """Entry point of ``vllm.general_plugins``; called once per process, harmless to call again."""
    if os.environ.get(ENV) != "1":
        return
    import torch
    from vllm.platforms import current_platform

    cls: Any = type(current_platform)
    if getattr(cls, "_stallproof_async", False):
        return
    cls._stallproof_async = True
    original = cls.check_and_update_config.__func__

    def check_and_update_config(klass: Any, vllm_config: Any) -> None:
        wanted = vllm_config.scheduler_config.async_scheduling
        original(klass, vllm_config)
        if wanted:
            vllm_config.scheduler_config.async_scheduling = True

    cls.check_and_update_config = classmethod(check_and_update_config)
    fake: Any = torch.cuda
    fake.Event, fake.Stream = _Event, _Stream
    fake.current_stream = fake.default_stream = lambda *a, **k: _Stream()
    fake.stream = lambda *a, **k: contextlib.nullcontext()
    torch.Event = _Event
    with contextlib.suppress(Exception):
        # Some releases put poorer placeholders of their own in while the runner is built.
        import vllm.v1.worker.cpu_model_runner as runner

        runner._torch_cuda_wrapper = contextlib.nullcontext
