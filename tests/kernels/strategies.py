"""Hypothesis strategies and small builders for kernel tests. Imports torch."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from stallproof.kernels.segments import Segments, from_caches

#: the interpreter costs 2 to 3 ms per program and iteration, so examples are few and small
EXAMPLES = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))

seeds = st.integers(0, 2**31 - 1)


def words(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Random int32 words, all bits used."""
    return torch.randint(-(2**31), 2**31, shape, generator=generator, dtype=torch.int64).to(torch.int32)


@st.composite
def caches(draw: st.DrawFn) -> Segments:
    """K and V apart or stacked, MLA with unequal pages, int8 bytes: 1 to 5 segments of 1 to 9 blocks."""
    blocks = draw(st.integers(1, 9))
    g = torch.Generator().manual_seed(draw(seeds))
    layers = {}
    for i in range(draw(st.integers(1, 2))):
        kind = draw(st.sampled_from(["separate", "stacked", "mla", "int8"]))
        size = draw(st.sampled_from([1, 3, 64, 100, 129]))
        if kind == "separate":
            layers[f"k{i}"] = words(g, blocks, size)
            layers[f"v{i}"] = words(g, blocks, size)
        elif kind == "stacked":
            layers[f"kv{i}"] = words(g, 2, blocks, size, 2).view(torch.bfloat16)
        elif kind == "mla":
            layers[f"nope{i}"] = words(g, blocks, 4 * size)
            layers[f"rope{i}"] = words(g, blocks, size)
        else:
            layers[f"q{i}"] = words(g, blocks, size).view(torch.int8)
    return from_caches(layers, blocks)


def ids(cache: Segments, *, distinct: bool = False) -> st.SearchStrategy[list[int]]:
    """Listed blocks, legal or not."""
    some = st.integers(-2, cache.blocks + 2)
    return st.lists(some, max_size=8, unique=distinct)


def image(cache: Segments) -> list[torch.Tensor]:
    return [s.words.clone() for s in cache.segments]
