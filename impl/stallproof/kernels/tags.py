"""The tag of a block: ``epoch * 4 + state``, below 2**24, so exact as float32. 0: never stamped.

An epoch is one ownership: it changes when a block is handed out, when a transfer agent may start to write
it, and when it leaves its owner under an unfinished write. Prefix sharing changes nothing: the content stays
valid.
"""

from __future__ import annotations

#: the block was handed to a request whose writes are ordered with the device stream
OWNED = 1
#: an unordered writer (load) may write it
LOADING = 2
#: it left its owner while an unordered writer was unfinished
POOL = 3

STATES = {OWNED: "owned", LOADING: "loading", POOL: "pool"}

#: epochs of one block before they repeat; a step that outlives that many reuses of a block is not expected
EPOCHS = 2**22 - 1


def tag(epoch: int, state: int) -> int:
    """``epoch`` counts from 1 without bound and wraps; the result is in [5, 2**24)."""
    return ((epoch - 1) % EPOCHS + 1) * 4 + state


def epoch_of(value: int) -> int:
    return value >> 2


def describe(value: int) -> str:
    """``epoch 5 (loading)``."""
    if not value:
        return "no epoch"
    return f"epoch {value >> 2} ({STATES.get(value & 3, 'invalid')})"
