"""Ask the engine's own allocation test "would it fit with N free blocks?" without allocating.

Watermark, reservation, whole-sequence fit, prefix hits, look-ahead, per-group formulas: all of it is the
engine's, none is repeated here. The pool's free count is shadowed and the two methods that would hand out
blocks raise instead, so the answer arrives before anything is changed. What the engine does before its test
(dropping blocks that fell out of a window) is what it does for every refused request anyway.
"""

from __future__ import annotations

import contextlib
from typing import Any


class _Fits(Exception):
    pass


def _fits(*_: Any, **__: Any) -> Any:
    raise _Fits


def own(obj: Any, name: str, absent: Any) -> Any:
    """The attribute ``name`` of the instance itself, ``absent`` where ``obj.name`` is its class's method.

    ``obj.__dict__`` is asked only where it matters: CPython makes a real dictionary of the instance then,
    and every later attribute access of the engine on that object is slower, by 3 % of a step in all.
    """
    method = getattr(getattr(obj, name), "__func__", None)
    if method is not None and method is getattr(type(obj), name, None):
        return absent
    return obj.__dict__.get(name, absent)


def take_off(obj: Any, name: str) -> None:
    """Remove the instance's own attribute. A mock deletes in its own way: it would lose the method, too."""
    if type(obj).__delattr__ is object.__delattr__:
        with contextlib.suppress(AttributeError):  # somebody else took it off
            delattr(obj, name)
    else:
        obj.__dict__.pop(name, None)


class Shadow:
    """Instance attributes put over an object's methods, and taken off again exactly."""

    __slots__ = ("_saved",)

    def __init__(self) -> None:
        self._saved: list[tuple[Any, str, Any]] = []

    def put(self, obj: Any, name: str, value: Any) -> Any:
        """Put ``value`` over ``obj.name``; returns what was called before."""
        before = getattr(obj, name)
        self._saved.append((obj, name, own(obj, name, self)))
        setattr(obj, name, value)
        return before

    def take_off(self) -> None:
        while self._saved:
            obj, name, value = self._saved.pop()
            if value is self:
                take_off(obj, name)
            else:
                setattr(obj, name, value)

    def __bool__(self) -> bool:
        return bool(self._saved)


class AllocationTest:
    """The test of one ``KVCacheManager``."""

    __slots__ = ("_manager",)

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def __call__(self, free: int, /, *args: Any, **kwargs: Any) -> bool:
        """Whether ``allocate_slots(*args, **kwargs)`` would succeed with ``free`` blocks in the pool.

        The class's own method is asked, past any hook on the instance.
        """
        shadow = Shadow()
        try:
            shadow.put(self._manager.block_pool, "get_num_free_blocks", lambda: free)
            shadow.put(self._manager.coordinator, "allocate_new_computed_blocks", _fits)
            shadow.put(self._manager.coordinator, "allocate_new_blocks", _fits)
            type(self._manager).allocate_slots(self._manager, *args, **kwargs)
        except _Fits:
            return True
        finally:
            shadow.take_off()
        return False
