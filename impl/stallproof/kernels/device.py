"""One small interface to npu, cuda, cpu and a simulated device. Nothing is imported or chosen at import time.

A *stream* runs its operations in order; operations of two streams are ordered by events only. An event that
was never recorded says nothing: ``torch.npu.Event().query()`` answers True then, which would make a step
that was not submitted look finished. So every event here refuses to be asked before it is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..errors import Unsupported

if TYPE_CHECKING:
    import torch

KINDS = ("npu", "cuda", "cpu")


class NotRecorded(RuntimeError):
    """An event was asked, or waited for, before it was recorded."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} before record: an unrecorded event must not count as done")


@runtime_checkable
class Event(Protocol):
    """A marker in one stream."""

    def record(self, stream: Any = None) -> None:
        """Put the marker behind everything submitted to ``stream`` (default: the compute stream) so far."""

    def query(self) -> bool:
        """Whether everything ahead of the marker is done. Never blocks. Raises NotRecorded."""
        ...

    def synchronize(self) -> None:
        """Block until it is. Raises NotRecorded."""


@runtime_checkable
class Device(Protocol):
    """What the sanitizer and the fences need from a device."""

    name: str
    #: vector cores, the useful upper bound of a grid
    cores: int
    #: whether work runs behind the host's back; False: a launch returns when the work is done
    asynchronous: bool

    def compute(self) -> Any:
        """The stream on which the engine runs its model."""
        ...

    def side(self) -> Any:
        """A stream that is not ordered with the compute stream."""
        ...

    def event(self) -> Event: ...

    def wait(self, stream: Any, event: Event) -> None:
        """Later work of ``stream`` runs after ``event``. Raises NotRecorded."""

    def launch(self, stream: Any, work: Callable[[], object]) -> None:
        """Submit ``work`` to ``stream``."""

    def immediately(self, work: Callable[[], object]) -> None:
        """Run ``work`` in no order with the compute stream; returns when it is done."""

    def upload(self, values: Sequence[int], *, wide: bool = False) -> Any:
        """``values`` as an int32 (``wide``: int64) tensor, ordered on the stream that is current.

        The host buffer is not reused before its copy is done (a reused pinned buffer is vLLM PR 48085).
        """
        ...


def open_device(kind: str) -> Device:
    """The device ``kind``: one of :data:`KINDS`. Raises Unsupported if this machine has none.

    Imports torch, and ``torch_npu`` for ``npu``.
    """
    if kind not in KINDS:
        raise Unsupported(f"device {kind!r}", remedy=f"one of {', '.join(KINDS)}")
    from .torch_device import TorchDevice

    return TorchDevice(kind)


def device_of(tensor: torch.Tensor) -> Device:
    """The device that holds ``tensor``."""
    return open_device(tensor.device.type)
