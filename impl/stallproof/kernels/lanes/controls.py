"""Kernels that are wrong on purpose: controls of the lanes. Importing this module imports Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["n"])
def control_masked_gather(a_ptr, ids_ptr, out_ptr, n, TILE: tl.constexpr):
    """Relies on the mask of a gather. The interpreter never reads ``a[-1]``; the Ascend lowering does."""
    offs = tl.program_id(0) * TILE + tl.arange(0, TILE)
    m = offs < n
    ids = tl.load(ids_ptr + offs, mask=m, other=-1)
    tl.store(out_ptr + offs, tl.load(a_ptr + ids, mask=ids >= 0, other=0), mask=m)


@triton.jit(do_not_specialize=["n"])
def control_overflow(a_ptr, out_ptr, n, TILE: tl.constexpr):
    """With TILE = 65536 two fp32 tiles do not fit the unified buffer."""
    offs = tl.program_id(0) * TILE + tl.arange(0, TILE)
    m = offs < n
    tl.store(out_ptr + offs, tl.load(a_ptr + offs, mask=m, other=0.0) * 2.0 + 1.0, mask=m)
