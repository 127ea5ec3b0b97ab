"""Lane 1: the Triton kernels in the interpreter against the torch reference."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from stallproof.kernels import ops, reference  # noqa: E402
from stallproof.kernels.segments import Segments  # noqa: E402

from .strategies import EXAMPLES, caches, ids, image, seeds, words  # noqa: E402

TAGS = st.integers(1, 2**24 - 1)
GRID = 3


def tensor(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_constants_agree() -> None:
    from stallproof.kernels import triton_kernels

    assert triton_kernels.LANES == reference.LANES
    assert triton_kernels.RESULT_STRIDE == ops.RESULT_STRIDE


@EXAMPLES
@given(n=st.integers(1, 300), seed=seeds, flips=st.integers(0, 3), tile=st.sampled_from([64, 256]))
def test_tag_check_dense(n: int, seed: int, flips: int, tile: int) -> None:
    g = torch.Generator().manual_seed(seed)
    tags = words(g, n + 1)  # all bits: the comparison is exact for any int32, not for tags only
    expect = torch.where(torch.rand(n, generator=g) < 0.5, tags[:n], 0)
    for _ in range(flips):
        i, bit = int(torch.randint(n, (1,), generator=g)), int(torch.randint(31, (1,), generator=g))
        expect[i] ^= 1 << bit
    want, seen = ops.tag_check_dense(tags, expect, backend="torch")
    got, got_seen = ops.tag_check_dense(tags, expect, backend="triton", cores=GRID, tile=tile)
    assert int(got.sum()) == int(want)
    assert torch.equal(got_seen, seen)
    assert got.nonzero().remainder(ops.RESULT_STRIDE).sum() == 0


@EXAMPLES
@given(blocks=st.integers(1, 200), data=st.data())
def test_tag_check_pairs(blocks: int, data: st.DataObject) -> None:
    tags = ops.new_tags(blocks)
    tags[:blocks] = tensor(data.draw(st.lists(TAGS, min_size=blocks, max_size=blocks)))
    tags[blocks] = 7  # the sink
    listed = tensor(data.draw(st.lists(st.integers(-2, blocks + 1), max_size=150)))
    expect = torch.where(reference.legal(listed, blocks), tags[listed.clamp(0, blocks).long()], 9)
    wrong = data.draw(st.sets(st.integers(0, max(len(listed) - 1, 0)), max_size=3)) if len(listed) else set()
    for i in wrong:
        expect[i] += 1
    want, seen = ops.tag_check_pairs(tags, listed, expect, backend="torch")
    got, got_seen = ops.tag_check_pairs(tags, listed, expect, backend="triton", cores=GRID, tile=64)
    assert int(got.sum()) == int(want) == int((seen != expect).sum())
    assert torch.equal(got_seen, seen)


@EXAMPLES
@given(blocks=st.integers(1, 40), data=st.data())
def test_tag_stamp(blocks: int, data: st.DataObject) -> None:
    listed = tensor(data.draw(st.lists(st.integers(-2, blocks + 2), max_size=30)))
    values = tensor([data.draw(TAGS) for _ in listed])
    before = tensor([data.draw(st.sampled_from([0, 1, 2])) for _ in listed])
    a, b = ops.new_tags(blocks), ops.new_tags(blocks)
    a[::2], b[::2] = 1, 1
    want, want_seen = ops.tag_stamp(a, listed, before, values, backend="torch")
    got, got_seen = ops.tag_stamp(b, listed, before, values, backend="triton")
    assert torch.equal(a, b)
    assert torch.equal(got_seen, want_seen)
    assert int(got.sum()) == int(want)


@EXAMPLES
@given(
    cache=caches(), pattern=st.sampled_from([0, 0x7FC07FC0, 0x7E007E00, 0x7F7F7F7F, 0x80808080]), d=st.data()
)
def test_fill(cache: Segments, pattern: int, d: st.DataObject) -> None:
    listed = tensor(d.draw(ids(cache)))
    before = image(cache)
    ops.fill_blocks(cache, listed, pattern, backend="torch")
    want = image(cache)
    restore(cache, before)
    ops.fill_blocks(cache, listed, pattern, backend="triton", cores=GRID, tile=64)
    assert all(map(torch.equal, image(cache), want))


@EXAMPLES
@given(cache=caches(), d=st.data())
def test_gather_then_scatter(cache: Segments, d: st.DataObject) -> None:
    source = tensor(d.draw(ids(cache, distinct=True)))
    target = tensor(d.draw(st.permutations(range(-2, cache.blocks + 6)))[: len(source)])
    want, got = cache.staging(len(source) + 1).fill_(5), cache.staging(len(source) + 1).fill_(5)
    ops.gather_blocks(cache, source, want, backend="torch")
    ops.gather_blocks(cache, source, got, backend="triton", cores=GRID, tile=64)
    assert torch.equal(got, want)
    before = image(cache)
    ops.scatter_blocks(cache, target, want, backend="torch")
    scattered = image(cache)
    restore(cache, before)
    ops.scatter_blocks(cache, target, got, backend="triton", cores=GRID, tile=64)
    assert all(map(torch.equal, image(cache), scattered))


@EXAMPLES
@given(cache=caches(), d=st.data())
def test_checksum(cache: Segments, d: st.DataObject) -> None:
    listed = tensor(d.draw(ids(cache)))
    want = ops.checksum_blocks(cache, listed, backend="torch")
    assert torch.equal(ops.checksum_blocks(cache, listed, backend="triton", cores=GRID), want)


def restore(cache: Segments, saved: list[torch.Tensor]) -> None:
    for s, w in zip(cache.segments, saved, strict=True):
        s.words.copy_(w)
