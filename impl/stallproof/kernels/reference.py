"""What each kernel means, in plain torch: the reference of every lane, and the path without Triton.

Atlas 300I (310P) has no Triton and a CPU needs none, so these run in production too. All arithmetic is
modulo 2**32, as on the device.
"""

from __future__ import annotations

import torch

from .segments import Segments

#: lanes of the checksum; equal to ``triton_kernels.LANES`` (tested)
LANES = 1024


def legal(ids: torch.Tensor, blocks: int) -> torch.Tensor:
    """Which ids name a block, bool [n]."""
    return (ids >= 0) & (ids < blocks)


def tag_check_dense(tags: torch.Tensor, expect: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(how many blocks differ, int32 []; the tags seen, int32 [blocks]). 0 in ``expect``: any tag is right.

    ``tags`` int32 [blocks + 1], the last word being the sink; ``expect`` int32 [blocks].
    """
    seen = tags[: expect.shape[0]].clone()
    return ((seen != expect) & (expect != 0)).sum().to(torch.int32), seen


def tag_check_pairs(
    tags: torch.Tensor, ids: torch.Tensor, expect: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(how many pairs differ, int32 []; the tag seen per pair, int32 [n], 0 for an illegal id)."""
    blocks = tags.shape[0] - 1
    ok = legal(ids, blocks)
    seen = torch.where(ok, tags[torch.where(ok, ids, blocks).long()], 0).to(torch.int32)
    return (seen != expect).sum().to(torch.int32), seen


def tag_stamp(
    tags: torch.Tensor, ids: torch.Tensor, before: torch.Tensor, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One after the other: note ``tags[ids[i]]``, then set it to ``values[i]``.

    (how many noted tags differ from ``before``, int32 []; the noted tags, int32 [n], 0 for an illegal id).
    0 in ``before``: any tag is right. Illegal ids write the sink word only.
    """
    blocks = tags.shape[0] - 1
    seen = []
    for i, v in zip(ids.tolist(), values.tolist(), strict=True):
        ok = 0 <= i < blocks
        seen.append(int(tags[i]) if ok else 0)
        tags[i if ok else blocks] = v
    out = torch.tensor(seen, dtype=torch.int32, device=tags.device)
    return ((out != before) & (before != 0)).sum().to(torch.int32), out


def fill_blocks(cache: Segments, ids: torch.Tensor, pattern: int) -> None:
    """Every word of the listed blocks becomes ``pattern`` (int32), in every segment; illegal ids: nothing."""
    ids = ids[legal(ids, cache.blocks)].long()
    for s in cache.segments:
        s.words[ids] = pattern


def gather_blocks(cache: Segments, ids: torch.Tensor, staging: torch.Tensor) -> None:
    """``staging[i]`` = block ``ids[i]``, segment behind segment; rows of illegal ids stay as they are."""
    ok = legal(ids, cache.blocks)
    rows, ids = ok.nonzero().flatten(), ids[ok].long()
    for s, first, size in zip(cache.segments, cache.firsts, cache.sizes, strict=True):
        staging[rows, first : first + size] = s.words[ids]


def scatter_blocks(cache: Segments, ids: torch.Tensor, staging: torch.Tensor) -> None:
    """Block ``ids[i]`` = ``staging[i]``; ids must be distinct; illegal ids: nothing."""
    ok = legal(ids, cache.blocks)
    rows, ids = ok.nonzero().flatten(), ids[ok].long()
    for s, first, size in zip(cache.segments, cache.firsts, cache.sizes, strict=True):
        s.words[ids] = staging[rows, first : first + size]


def checksum_blocks(cache: Segments, ids: torch.Tensor) -> torch.Tensor:
    """int32 [n, segments]; 0 for an illegal id. The formula is that of the Triton kernel."""
    ok = legal(ids, cache.blocks)
    out = torch.zeros((ids.shape[0], len(cache)), dtype=torch.int32, device=ids.device)
    weight = (torch.arange(LANES, device=ids.device, dtype=torch.int64) * 2 + 1).to(torch.int32)
    for s, segment in enumerate(cache.segments):
        page = segment.words[ids[ok].long()]
        page = torch.nn.functional.pad(page, (0, -page.shape[1] % LANES))
        acc = torch.zeros((page.shape[0], LANES), dtype=torch.int32, device=ids.device)
        for row in page.split(LANES, dim=1):
            acc = acc * 31 + row  # int32 wraps
        out[ok, s] = (acc * weight).sum(1, dtype=torch.int32)
    return out
