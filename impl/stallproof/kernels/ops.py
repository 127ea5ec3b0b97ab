"""The kernels as functions: check the arguments, choose torch or Triton, respect the launch limits.

``backend``: ``torch``, ``triton``, or None, which means Triton where the tensors lie on a device that has it
(npu, cuda) and torch elsewhere. Decided per call; nothing is decided at import time. Ids are int32 tensors;
an id outside the pool touches nothing (fill, gather, scatter), counts as a violation (check), or goes to the
sink word (stamp).
"""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import torch

from ..errors import BadInput, Unsupported
from . import reference
from .segments import LIMIT, Segments

#: tile sizes in words; double buffered they fit the unified buffer (lane ``kernels-hivm``)
TILE_DENSE, TILE_PAIRS, TILE_COPY = 2048, 512, 4096
#: largest 1-D grid of an Ascend launch
MAX_GRID = 65535
#: tags and block ids stay below this: exact as float32
SENTINEL = 2**24
RESULT_STRIDE = 16


@functools.cache
def has_triton() -> bool:
    """Whether a Triton is installed. Does not import it."""
    return importlib.util.find_spec("triton") is not None


def choose(backend: str | None, tensor: torch.Tensor) -> str:
    """``torch`` or ``triton``. Raises Unsupported for Triton where none is installed."""
    if backend is None:
        return "triton" if tensor.device.type != "cpu" and has_triton() else "torch"
    if backend not in ("torch", "triton"):
        raise BadInput(f"backend {backend!r}", remedy="torch or triton")
    if backend == "triton" and not has_triton():
        raise Unsupported("backend triton: no Triton installed", remedy="backend torch needs none")
    return backend


def grid(work: int, cores: int) -> tuple[int]:
    """At most one program per core and per piece of work, never none."""
    return (max(1, min(work, cores, MAX_GRID)),)


def new_tags(blocks: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Tags of ``blocks`` blocks and the sink word: int32 [blocks + 1], all 0 (never stamped)."""
    if not 0 < blocks < SENTINEL:
        raise BadInput(f"{blocks} blocks", remedy=f"between 1 and {SENTINEL - 1}")
    return torch.zeros(blocks + 1, dtype=torch.int32, device=device)


def tag_check_dense(
    tags: torch.Tensor,
    expect: torch.Tensor,
    *,
    backend: str | None = None,
    cores: int = 1,
    tile: int = TILE_DENSE,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`reference.tag_check_dense`; the count is an int32 tensor to be summed on the host."""
    n = tags.shape[0] - 1
    if expect.shape != (n,):
        raise BadInput(f"expected tags of shape {tuple(expect.shape)} for {n} blocks")
    if choose(backend, tags) == "torch":
        return reference.tag_check_dense(tags, expect)
    g = grid(-(-n // tile), cores)
    seen = torch.empty_like(expect)
    result = torch.zeros(g[0] * RESULT_STRIDE, dtype=torch.int32, device=tags.device)
    _kernels().tag_check_dense[g](tags, expect, seen, result, n, TILE=tile)
    return result, seen


def tag_check_pairs(
    tags: torch.Tensor,
    ids: torch.Tensor,
    expect: torch.Tensor,
    *,
    backend: str | None = None,
    cores: int = 1,
    tile: int = TILE_PAIRS,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`reference.tag_check_pairs`. For few pairs in a large pool; a step uses the dense form."""
    n, blocks = _listed(ids, expect), tags.shape[0] - 1
    if choose(backend, tags) == "torch" or not n:
        return reference.tag_check_pairs(tags, ids, expect)
    g = grid(-(-n // tile), cores)
    seen = torch.empty_like(expect)
    result = torch.zeros(g[0] * RESULT_STRIDE, dtype=torch.int32, device=tags.device)
    _kernels().tag_check_pairs[g](tags, ids, expect, seen, result, n, blocks, TILE=tile)
    return result, seen


def tag_stamp(
    tags: torch.Tensor,
    ids: torch.Tensor,
    before: torch.Tensor,
    values: torch.Tensor,
    *,
    backend: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`reference.tag_stamp`. Values lie in [0, 2**24)."""
    n = _listed(ids, before, values)
    if choose(backend, tags) == "torch" or not n:
        return reference.tag_stamp(tags, ids, before, values)
    seen = torch.empty_like(values)
    result = torch.zeros(RESULT_STRIDE, dtype=torch.int32, device=tags.device)
    _kernels().tag_stamp[(1,)](tags, ids, before, values, seen, result, n, tags.shape[0] - 1)
    return result, seen


def fill_blocks(
    cache: Segments,
    ids: torch.Tensor,
    pattern: int,
    *,
    backend: str | None = None,
    cores: int = 1,
    tile: int = TILE_COPY,
) -> None:
    """See :func:`reference.fill_blocks`. ``pattern``: one int32 word, as signed or unsigned."""
    if not -(2**31) <= pattern < 2**32:
        raise BadInput(f"pattern {pattern:#x} is not a 32-bit word")
    pattern = (pattern + 2**31) % 2**32 - 2**31
    n = _listed(ids)
    if choose(backend, cache.address) == "torch" or not n:
        return reference.fill_blocks(cache, ids, pattern)
    chunks, g = _split(cache, n, tile, cores)
    _kernels().fill_blocks[g](
        cache.address, cache.words, ids, n, len(cache), cache.blocks, chunks, pattern, TILE=tile
    )
    return None


def gather_blocks(
    cache: Segments,
    ids: torch.Tensor,
    staging: torch.Tensor,
    *,
    backend: str | None = None,
    cores: int = 1,
    tile: int = TILE_COPY,
) -> None:
    """See :func:`reference.gather_blocks`. ``staging`` int32 [>= n, total], from :meth:`Segments.staging`."""
    _copy("gather_blocks", cache, ids, staging, backend, cores, tile)


def scatter_blocks(
    cache: Segments,
    ids: torch.Tensor,
    staging: torch.Tensor,
    *,
    backend: str | None = None,
    cores: int = 1,
    tile: int = TILE_COPY,
) -> None:
    """See :func:`reference.scatter_blocks`."""
    _copy("scatter_blocks", cache, ids, staging, backend, cores, tile)


def checksum_blocks(
    cache: Segments, ids: torch.Tensor, *, backend: str | None = None, cores: int = 1
) -> torch.Tensor:
    """See :func:`reference.checksum_blocks`: int32 [n, segments]."""
    n = _listed(ids)
    if choose(backend, cache.address) == "torch" or not n:
        return reference.checksum_blocks(cache, ids)
    out = torch.empty((n, len(cache)), dtype=torch.int32, device=cache.device)
    _small(n * len(cache), "results")
    g = grid(-(-n * len(cache) // 16), cores)
    _kernels().checksum_blocks[g](
        cache.address, cache.words, ids, out, n, len(cache), cache.blocks, LANES=reference.LANES
    )
    return out


def _copy(
    name: str,
    cache: Segments,
    ids: torch.Tensor,
    staging: torch.Tensor,
    backend: str | None,
    cores: int,
    tile: int,
) -> None:
    n = _listed(ids)
    if staging.dtype != torch.int32 or staging.dim() != 2 or not staging.is_contiguous():
        raise BadInput("staging must be a contiguous int32 matrix", remedy="use Segments.staging()")
    if staging.shape[0] < n or staging.shape[1] != cache.total:
        raise BadInput(f"staging of shape {tuple(staging.shape)} for {n} blocks of {cache.total} words")
    if choose(backend, cache.address) == "torch" or not n:
        getattr(reference, name)(cache, ids, staging)
        return
    _small(staging.numel(), "staging words")
    chunks, g = _split(cache, n, tile, cores)
    getattr(_kernels(), name)[g](
        cache.address, cache.words, cache.first, ids, staging,
        n, len(cache), cache.blocks, chunks, cache.total, TILE=tile,
    )  # fmt: skip


def _split(cache: Segments, n: int, tile: int, cores: int) -> tuple[int, tuple[int]]:
    """(tiles per page, grid). Small pages have empty tiles at their end: one comparison each."""
    chunks = -(-cache.largest // tile)
    work = n * len(cache) * chunks
    _small(work, "tiles")
    return chunks, grid(work, cores)


def _small(n: int, what: str) -> None:
    if n >= LIMIT:
        raise BadInput(f"{n} {what} in one launch; at most {LIMIT - 1}", remedy="list fewer blocks")


def _listed(ids: torch.Tensor, *others: torch.Tensor) -> int:
    for t in (ids, *others):
        if t.dtype != torch.int32 or t.dim() != 1 or t.shape != ids.shape:
            raise BadInput(f"expected int32 vectors of one length, got {t.dtype} of shape {tuple(t.shape)}")
    return int(ids.shape[0])


def _kernels() -> Any:
    from . import triton_kernels

    return triton_kernels
