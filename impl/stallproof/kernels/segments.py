"""A KV cache as a list of segments: for each, an address and the bytes of one block.

K and V of a layer may be one tensor or two, MLA keeps pages of different sizes, quantised caches add scales,
and the allocator hands out raw int8 bytes viewed as anything. All of these are segments of 32-bit words; the
kernels know nothing else. Page sizes may differ from segment to segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from ..errors import BadInput

#: bytes of the word that every kernel moves
WORD = 4
#: staging areas and tables are addressed with int32
LIMIT = 2**31


@dataclass(frozen=True)
class Segment:
    """``blocks`` pages of ``page_bytes`` each; page ``b`` starts at ``address + b * page_bytes``.

    ``words``: the same memory as an int32 tensor [blocks, page_bytes / 4], which also keeps it alive.
    """

    name: str
    words: torch.Tensor

    @property
    def address(self) -> int:
        return self.words.data_ptr()

    @property
    def blocks(self) -> int:
        return self.words.shape[0]

    @property
    def page_bytes(self) -> int:
        return self.words.shape[1] * WORD


class Segments:
    """All segments of a cache, with the device tables that the Triton kernels read.

    ``address`` int64 [segments], ``words`` int32 [segments], ``first`` int32 [segments]: offset, in words, of
    the segment inside one block's record of a staging area; ``total``: words of such a record.
    Raises BadInput if the segments do not have the same number of blocks or do not lie on one device.
    """

    def __init__(self, segments: Iterable[Segment]) -> None:
        self.segments = tuple(segments)
        if not self.segments:
            raise BadInput("a KV cache without segments")
        self.blocks = self.segments[0].blocks
        self.device = self.segments[0].words.device
        for s in self.segments:
            if s.blocks != self.blocks or s.words.device != self.device:
                raise BadInput(
                    f"segment {s.name}: {s.blocks} blocks on {s.words.device}, "
                    f"the first has {self.blocks} on {self.device}"
                )
        sizes = [s.page_bytes // WORD for s in self.segments]
        self.largest = max(sizes)
        self.total = sum(sizes)
        if self.largest * WORD >= LIMIT:
            raise BadInput(f"a page of {self.largest * WORD} bytes; the kernels address less than {LIMIT}")
        firsts = [sum(sizes[:i]) for i in range(len(sizes))]
        self.address = torch.tensor([s.address for s in self.segments], dtype=torch.int64).to(self.device)
        self.words = torch.tensor(sizes, dtype=torch.int32).to(self.device)
        self.first = torch.tensor(firsts, dtype=torch.int32).to(self.device)
        self.sizes, self.firsts = sizes, firsts

    def __len__(self) -> int:
        return len(self.segments)

    def staging(self, blocks: int) -> torch.Tensor:
        """A staging area for ``blocks`` blocks: int32 [blocks, total]. At most 2**31 - 1 words (BadInput)."""
        if blocks * self.total >= LIMIT:
            raise BadInput(f"staging of {blocks} blocks x {self.total} words; at most {LIMIT - 1} words")
        return torch.zeros((blocks, self.total), dtype=torch.int32, device=self.device)


def segments_of(name: str, cache: torch.Tensor, blocks: int) -> list[Segment]:
    """Segments of one cache tensor of ``blocks`` blocks, whatever its layout and dtype.

    The block dimension is found by size and stride: outer dimensions (K and V stacked in front) give one
    segment each, inner ones form the page. A dimension whose size is a multiple of ``blocks`` (several kernel
    blocks per block) is folded. Raises BadInput if a page is not dense memory of whole 32-bit words.
    """
    sizes, strides = list(cache.shape), list(cache.stride())
    order = sorted((d for d in range(len(sizes)) if sizes[d] > 1), key=lambda d: -strides[d])
    found = [d for d in order if sizes[d] == blocks] or [d for d in order if sizes[d] % blocks == 0]
    if not found:
        if blocks == 1:
            return [_segment(name, cache, cache.storage_offset(), 1, cache.numel())]
        raise BadInput(f"cache {name} of shape {tuple(sizes)}: no dimension of {blocks} blocks")
    dim = found[0]
    outer = order[: order.index(dim)]
    fold = sizes[dim] // blocks
    page = strides[dim] * fold
    inner = order[len(outer) + 1 :]
    dense = 1
    for d in reversed(inner):
        if strides[d] != dense:
            raise BadInput(f"cache {name}: strides {tuple(strides)} leave holes inside a page")
        dense *= sizes[d]
    if dense > strides[dim]:
        raise BadInput(f"cache {name}: blocks overlap, strides {tuple(strides)}")
    offsets = [(name, cache.storage_offset())]
    for d in outer:
        offsets = [(f"{n}[{i}]", o + i * strides[d]) for n, o in offsets for i in range(sizes[d])]
    return [_segment(n, cache, o, blocks, page) for n, o in offsets]


def _segment(name: str, cache: torch.Tensor, offset: int, blocks: int, page: int) -> Segment:
    """``offset`` and ``page`` in elements of ``cache``."""
    size = cache.element_size()
    if page * size % WORD or offset * size % WORD:
        raise BadInput(
            f"cache {name}: page of {page * size} bytes at byte {offset * size} is not made of 32-bit words"
        )
    raw = torch.empty(0, dtype=torch.int32, device=cache.device).set_(
        cache.untyped_storage(), offset * size // WORD, (blocks, page * size // WORD)
    )
    return Segment(name, raw)


def from_caches(caches: dict[str, torch.Tensor] | Sequence[torch.Tensor], blocks: int) -> Segments:
    """Segments of an engine's KV cache tensors; tensors that share memory (hybrid models) count once."""
    named = caches.items() if isinstance(caches, dict) else ((str(i), t) for i, t in enumerate(caches))
    seen: dict[int, Segment] = {}
    for name, t in named:
        for s in segments_of(name, t, blocks):
            other = seen.get(s.address)
            if other is None or other.page_bytes < s.page_bytes:
                seen[s.address] = s
    return Segments(seen.values())
