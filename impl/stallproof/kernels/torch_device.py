"""npu, cuda and cpu through torch. Imported lazily by :func:`stallproof.kernels.device.open_device`."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import Unsupported
from .device import Event, NotRecorded

#: vector cores assumed where the runtime does not say: Ascend 910B
ASCEND_VECTOR_CORES = 48


class TorchEvent:
    """An event of ``module`` (``torch.cuda`` or ``torch.npu``); of the host if ``module`` is None."""

    def __init__(self, module: Any) -> None:
        self._event = module.Event() if module is not None else None
        self._recorded = False

    def record(self, stream: Any = None) -> None:
        if self._event is not None:
            if stream is None:
                self._event.record()
            else:
                self._event.record(stream)
        self._recorded = True

    def query(self) -> bool:
        if not self._recorded:
            raise NotRecorded("query")
        return True if self._event is None else bool(self._event.query())

    def synchronize(self) -> None:
        if not self._recorded:
            raise NotRecorded("synchronize")
        if self._event is not None:
            self._event.synchronize()

    def wait(self, stream: Any) -> None:
        if not self._recorded:
            raise NotRecorded("wait")
        if self._event is not None:
            self._event.wait(stream)


class TorchDevice:
    """See :class:`stallproof.kernels.device.Device`. ``kind``: npu, cuda or cpu."""

    def __init__(self, kind: str) -> None:
        self.name = kind
        self._module = _module(kind)
        self.asynchronous = self._module is not None
        self.cores = _cores(kind, self._module)
        self._side: Any = None
        #: pinned host buffers whose copy may still run: (event, buffer)
        self._busy: deque[tuple[TorchEvent, torch.Tensor]] = deque()

    def compute(self) -> Any:
        return self._module.current_stream() if self._module is not None else None

    def side(self) -> Any:
        if self._module is None:
            return None
        if self._side is None:
            self._side = self._module.Stream()
        return self._side

    def event(self) -> TorchEvent:
        return TorchEvent(self._module)

    def wait(self, stream: Any, event: Event) -> None:
        assert isinstance(event, TorchEvent)
        event.wait(stream)

    def launch(self, stream: Any, work: Callable[[], object]) -> None:
        ctx = self._module.stream(stream) if self._module is not None and stream is not None else None
        with ctx or contextlib.nullcontext():
            work()

    def immediately(self, work: Callable[[], object]) -> None:
        side = self.side()
        self.launch(side, work)
        event = self.event()
        event.record(side)
        event.synchronize()

    def upload(self, values: Sequence[int], *, wide: bool = False) -> torch.Tensor:
        dtype = torch.int64 if wide else torch.int32
        if self._module is None:
            return torch.tensor(values, dtype=dtype)
        while self._busy and self._busy[0][0].query():
            self._busy.popleft()
        host = torch.tensor(values, dtype=dtype).pin_memory()
        out = host.to(self.name, non_blocking=True)
        event = self.event()
        event.record()
        self._busy.append((event, host))
        return out


def _module(kind: str) -> Any:
    """``torch.cuda`` or ``torch.npu``; None for cpu. Raises Unsupported where there is no such device."""
    if kind == "cpu":
        return None
    if kind == "npu":
        try:
            import torch_npu  # noqa: F401 - registers torch.npu
        except (ImportError, RuntimeError) as e:
            raise Unsupported(f"device npu: {e}", remedy="install CANN and torch-npu (docs/kernels)") from e
    module = getattr(torch, kind)
    if not module.is_available():
        raise Unsupported(f"device {kind}: none on this machine", remedy="use --device cpu")
    return module


def _cores(kind: str, module: Any) -> int:
    if kind == "cpu":
        return 1
    properties = module.get_device_properties(module.current_device())
    for name in ("vector_core_num", "multi_processor_count"):
        if (n := getattr(properties, name, 0)) > 0:
            return int(n)
    return ASCEND_VECTOR_CORES
