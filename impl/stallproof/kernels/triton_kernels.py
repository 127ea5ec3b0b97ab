"""The Triton kernels. Importing this module imports Triton; :mod:`stallproof.kernels.ops` does so lazily.

One source for three targets: the Triton interpreter, CUDA, and Ascend NPUs through triton-ascend. Rules kept
by every kernel, each with the lane that found it (``docs/kernels/README.md``):

* 1-D grid, at most one program per vector core, with the loop inside;
* tiles are contiguous and bounded, so that they fit the 192 KiB unified buffer twice (double buffering);
* ids are made legal *before* any pointer is formed: the Ascend lowering of a gather reads every lane and
  selects afterwards, so a mask does not protect it. An illegal id addresses the sink word behind the tags, or
  yields an empty tile;
* no int64 vectors; one int64 scalar per tile forms a page address;
* int32 equality is ``float32(a - b) != 0``: exact, since the subtraction wraps and a nonzero int32 never
  rounds to zero, and vectorised where an int32 compare is not; sentinels stay below 2**24;
* no atomics: each program owns one result slot of one 64-byte line, the granule of the scalar cache.
"""

from __future__ import annotations

import triton
import triton.language as tl

#: int32 words between the result slots of two programs: 64 bytes, so that no two cores write one cache line.
RESULT_STRIDE = 16

#: lanes of the checksum; part of its definition, not a tuning parameter.
LANES = 1024


@triton.jit(do_not_specialize=["n"])
def tag_check_dense(tags_ptr, expect_ptr, seen_ptr, result_ptr, n, TILE: tl.constexpr):
    """``seen = tags``; ``result[program]`` = number of ``b`` with ``expect[b] != 0`` and ``!= tags[b]``."""
    pid = tl.program_id(0)
    nprog = tl.num_programs(0)
    lane = tl.arange(0, TILE)
    bad_total = tl.zeros([], dtype=tl.float32)
    for start in range(pid * TILE, n, nprog * TILE):
        offs = start + lane
        m = offs < n
        seen = tl.load(tags_ptr + offs, mask=m, other=0)
        want = tl.load(expect_ptr + offs, mask=m, other=0)
        differs = (seen - want).to(tl.float32) != 0.0
        cares = want.to(tl.float32) != 0.0
        bad_total += tl.sum(tl.where(differs & cares, 1.0, 0.0), axis=0)
        tl.store(seen_ptr + offs, seen, mask=m)
    tl.store(result_ptr + pid * 16, bad_total.to(tl.int32))


@triton.jit(do_not_specialize=["n", "n_blocks"])
def tag_check_pairs(tags_ptr, ids_ptr, expect_ptr, seen_ptr, result_ptr, n, n_blocks, TILE: tl.constexpr):
    """``seen[i] = tags[ids[i]]``, 0 for an illegal id; ``result[program]`` = how many != ``expect[i]``."""
    pid = tl.program_id(0)
    nprog = tl.num_programs(0)
    lane = tl.arange(0, TILE)
    bad_total = tl.zeros([], dtype=tl.float32)
    for start in range(pid * TILE, n, nprog * TILE):
        offs = start + lane
        m = offs < n
        ids = tl.load(ids_ptr + offs, mask=m, other=0)
        want = tl.load(expect_ptr + offs, mask=m, other=0)
        legal = (ids >= 0) & (ids < n_blocks)
        seen = tl.load(tags_ptr + tl.where(legal, ids, n_blocks))
        seen = tl.where(legal, seen, 0)
        bad = ((seen - want).to(tl.float32) != 0.0) & m
        bad_total += tl.sum(tl.where(bad, 1.0, 0.0), axis=0)
        tl.store(seen_ptr + offs, seen, mask=m)
    tl.store(result_ptr + pid * 16, bad_total.to(tl.int32))


@triton.jit(do_not_specialize=["n", "n_blocks"])
def tag_stamp(tags_ptr, ids_ptr, before_ptr, values_ptr, seen_ptr, result_ptr, n, n_blocks):
    """In order: ``seen[i] = tags[ids[i]]; tags[ids[i]] = values[i]``. One program.

    ``result[0]`` = how many ``seen[i]`` differ from ``before[i]``, where that is not 0. An illegal id writes
    the sink word, is seen as 0 and so counts.
    """
    bad = 0
    for i in range(n):
        b = tl.load(ids_ptr + i)
        before = tl.load(before_ptr + i)
        legal = (b >= 0) & (b < n_blocks)
        b = tl.where(legal, b, n_blocks)
        seen = tl.where(legal, tl.load(tags_ptr + b), 0)
        differs = (seen != before) & (before != 0)
        bad += tl.where(differs, 1, 0)
        tl.store(tags_ptr + b, tl.load(values_ptr + i))
        tl.store(seen_ptr + i, seen)
    tl.store(result_ptr, bad)


@triton.jit
def _page(addr_ptr, words_ptr, ids_ptr, i, s, n_blocks):
    """Pointer to page ``ids[i]`` of segment ``s`` and its size in words; size 0 for an illegal id."""
    b = tl.load(ids_ptr + i)
    words = tl.load(words_ptr + s)
    legal = (b >= 0) & (b < n_blocks)
    b = tl.where(legal, b, 0)
    size = tl.where(legal, words, 0)
    address = tl.load(addr_ptr + s) + b.to(tl.int64) * (words * 4)
    return address.to(tl.pointer_type(tl.int32)), size


@triton.jit(do_not_specialize=["n", "n_segs", "n_blocks", "chunks", "pattern"])
def fill_blocks(addr_ptr, words_ptr, ids_ptr, n, n_segs, n_blocks, chunks, pattern, TILE: tl.constexpr):
    """Every word of page ``ids[i]`` of every segment = ``pattern``. An illegal id has an empty tile."""
    pid = tl.program_id(0)
    nprog = tl.num_programs(0)
    lane = tl.arange(0, TILE)
    tile = tl.zeros([TILE], dtype=tl.int32) + pattern
    for w in range(pid, n * n_segs * chunks, nprog):
        i = w // (n_segs * chunks)
        r = w - i * (n_segs * chunks)
        s = r // chunks
        c = r - s * chunks
        page, size = _page(addr_ptr, words_ptr, ids_ptr, i, s, n_blocks)
        offs = c * TILE + lane
        tl.store(page + offs, tile, mask=offs < size)


@triton.jit(do_not_specialize=["n", "n_segs", "n_blocks", "chunks", "total"])
def gather_blocks(
    addr_ptr,
    words_ptr,
    first_ptr,
    ids_ptr,
    staging_ptr,
    n,
    n_segs,
    n_blocks,
    chunks,
    total,
    TILE: tl.constexpr,
):
    """``staging[i, first[s] : first[s] + words[s]]`` = page ``ids[i]`` of segment ``s``."""
    pid = tl.program_id(0)
    nprog = tl.num_programs(0)
    lane = tl.arange(0, TILE)
    for w in range(pid, n * n_segs * chunks, nprog):
        i = w // (n_segs * chunks)
        r = w - i * (n_segs * chunks)
        s = r // chunks
        c = r - s * chunks
        page, size = _page(addr_ptr, words_ptr, ids_ptr, i, s, n_blocks)
        offs = c * TILE + lane
        m = offs < size
        v = tl.load(page + offs, mask=m, other=0)
        tl.store(staging_ptr + (i * total + tl.load(first_ptr + s)) + offs, v, mask=m)


@triton.jit(do_not_specialize=["n", "n_segs", "n_blocks", "chunks", "total"])
def scatter_blocks(
    addr_ptr,
    words_ptr,
    first_ptr,
    ids_ptr,
    staging_ptr,
    n,
    n_segs,
    n_blocks,
    chunks,
    total,
    TILE: tl.constexpr,
):
    """The inverse of :func:`gather_blocks`. Ids must be distinct, else the winner is unspecified."""
    pid = tl.program_id(0)
    nprog = tl.num_programs(0)
    lane = tl.arange(0, TILE)
    for w in range(pid, n * n_segs * chunks, nprog):
        i = w // (n_segs * chunks)
        r = w - i * (n_segs * chunks)
        s = r // chunks
        c = r - s * chunks
        page, size = _page(addr_ptr, words_ptr, ids_ptr, i, s, n_blocks)
        offs = c * TILE + lane
        m = offs < size
        v = tl.load(staging_ptr + (i * total + tl.load(first_ptr + s)) + offs, mask=m, other=0)
        tl.store(page + offs, v, mask=m)


@triton.jit(do_not_specialize=["n", "n_segs", "n_blocks"])
def checksum_blocks(addr_ptr, words_ptr, ids_ptr, out_ptr, n, n_segs, n_blocks, LANES: tl.constexpr):
    """``out[i, s]`` = checksum of page ``ids[i]`` of segment ``s``; 0 for an illegal id.

    ``acc[l] = 31 * acc[l] + row[l]`` over the rows of ``LANES`` words (the last one padded with 0), then the
    sum of ``acc[l] * (2 l + 1)``, all modulo 2**32.
    """
    pid = tl.program_id(0)
    nprog = tl.num_programs(0)
    lane = tl.arange(0, LANES)
    weight = lane * 2 + 1
    # 16 consecutive results per program and turn: one 64-byte line is written by one core
    for g in range(pid * 16, n * n_segs, nprog * 16):
        for w in range(g, tl.minimum(g + 16, n * n_segs)):
            i = w // n_segs
            s = w - i * n_segs
            page, size = _page(addr_ptr, words_ptr, ids_ptr, i, s, n_blocks)
            acc = tl.zeros([LANES], dtype=tl.int32)
            for start in range(0, size, LANES):
                offs = start + lane
                acc = acc * 31 + tl.load(page + offs, mask=offs < size, other=0)
            tl.store(out_ptr + w, tl.sum(acc * weight, axis=0))
