"""The torch reference against what the specifications in docs/kernels say, in plain Python."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from stallproof.errors import BadInput, Unsupported  # noqa: E402
from stallproof.kernels import ops, reference  # noqa: E402
from stallproof.kernels.segments import Segments, from_caches, segments_of  # noqa: E402

from .strategies import caches, image, seeds, words  # noqa: E402

FAST = settings(max_examples=60, deadline=None)


def tensor(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def plain_checksum(page: list[int]) -> int:
    acc = [0] * reference.LANES
    for start in range(0, len(page), reference.LANES):
        row = page[start : start + reference.LANES]
        acc = [31 * a + w for a, w in zip(acc, row + [0] * (reference.LANES - len(row)), strict=True)]
    total = sum(a * (2 * lane + 1) for lane, a in enumerate(acc))
    return (total + 2**31) % 2**32 - 2**31


@FAST
@given(cache=caches())
def test_checksum_is_the_documented_formula(cache: Segments) -> None:
    out = ops.checksum_blocks(cache, tensor([0, -1, cache.blocks]), backend="torch")
    assert out[0].tolist() == [plain_checksum(s.words[0].tolist()) for s in cache.segments]
    assert not out[1:].any()


@FAST
@given(seed=seeds, size=st.sampled_from([3, 1024, 2500]), data=st.data())
def test_any_change_of_one_word_changes_the_checksum(seed: int, size: int, data: st.DataObject) -> None:
    cache = from_caches([words(torch.Generator().manual_seed(seed), 2, size)], 2)
    before = ops.checksum_blocks(cache, tensor([1]))
    at, bits = data.draw(st.integers(0, size - 1)), data.draw(st.integers(1, 2**31 - 1))
    cache.segments[0].words[1, at] ^= bits
    assert not torch.equal(ops.checksum_blocks(cache, tensor([1])), before)


def test_checksum_moves_with_the_block_but_not_with_its_words() -> None:
    cache = from_caches([words(torch.Generator().manual_seed(1), 4, 3000)], 4)
    page = cache.segments[0].words
    page[2] = page[0]
    a, b = ops.checksum_blocks(cache, tensor([0, 2])).flatten().tolist()
    assert a == b
    page[2, [5, 1029]] = page[2, [1029, 5]]
    assert ops.checksum_blocks(cache, tensor([2])).item() != a


@FAST
@given(cache=caches(), data=st.data())
def test_gather_scatter_fill_touch_exactly_the_listed_blocks(cache: Segments, data: st.DataObject) -> None:
    listed = data.draw(st.lists(st.integers(0, cache.blocks - 1), unique=True, min_size=1))
    before = image(cache)
    staging = cache.staging(len(listed))
    ops.gather_blocks(cache, tensor(listed), staging)
    for row, b in zip(staging, listed, strict=True):
        assert torch.equal(row, torch.cat([s.words[b] for s in cache.segments]))
    ops.fill_blocks(cache, tensor(listed), 0x7FC07FC0)
    for was, s in zip(before, cache.segments, strict=True):
        for b in range(cache.blocks):
            if b in listed:
                assert (s.words[b] == 0x7FC07FC0).all()
            else:
                assert torch.equal(s.words[b], was[b])
    ops.scatter_blocks(cache, tensor(listed), staging)
    assert all(map(torch.equal, image(cache), before))


@pytest.mark.parametrize(
    ("dtype", "pattern"),
    [
        (torch.bfloat16, 0x7FC07FC0),
        (torch.float16, 0x7E007E00),
        (torch.float32, 0x7FC07FC0),
        (torch.float8_e4m3fn, 0x7F7F7F7F),
        (torch.float8_e5m2, 0x7F7F7F7F),
    ],
)
def test_patterns_are_nan_in_every_element(dtype: torch.dtype, pattern: int) -> None:
    raw = torch.zeros(2, 64, dtype=torch.int8)
    ops.fill_blocks(from_caches([raw], 2), tensor([1]), pattern)
    values = raw.view(dtype).float()
    assert values[1].isnan().all()
    assert not values[0].isnan().any()


LAYOUTS = {
    "separate": (lambda: torch.zeros(6, 32, 2, 8, dtype=torch.bfloat16), 6, [32 * 2 * 8 * 2]),
    "stacked": (lambda: torch.zeros(2, 6, 32, 2, 8, dtype=torch.bfloat16), 6, [1024, 1024]),
    "interleaved": (lambda: torch.zeros(6, 2, 32, 2, 8, dtype=torch.bfloat16), 6, [2048]),
    "permuted": (lambda: torch.zeros(2, 6, 2, 32, 8).permute(0, 1, 3, 2, 4), 6, [2048, 2048]),
    "two kernel blocks per block": (lambda: torch.zeros(12, 16, 8), 6, [1024]),
    "one block": (lambda: torch.zeros(32, 8), 1, [1024]),
    "raw bytes": (lambda: torch.zeros(6, 64, dtype=torch.int8), 6, [64]),
    "offset view": (lambda: torch.zeros(8, 16)[2:], 6, [64]),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str) -> None:
    make, blocks, pages = LAYOUTS[name]
    cache = make()
    found = segments_of("kv", cache, blocks)
    assert [s.page_bytes for s in found] == pages
    assert {s.blocks for s in found} == {blocks}
    ops.fill_blocks(Segments(found), tensor(list(range(blocks))), 0x01010101)
    assert (cache.contiguous().view(torch.int8) == 1).all(), "the pages cover the cache"
    base = cache.untyped_storage().data_ptr()
    assert all(base <= s.address for s in found)


def test_one_page_of_a_permuted_cache_is_one_block() -> None:
    cache = torch.zeros(2, 6, 2, 32, 8).permute(0, 1, 3, 2, 4)
    ops.fill_blocks(from_caches({"kv": cache}, 6), tensor([4]), -1)
    changed = (cache != 0).flatten(2).any(2)
    assert changed.nonzero().tolist() == [[0, 4], [1, 4]]


def test_shared_memory_counts_once() -> None:
    raw = torch.zeros(4, 64, dtype=torch.int8)
    assert len(from_caches({"attention": raw.view(torch.bfloat16), "mamba": raw.view(torch.float32)}, 4)) == 1


@pytest.mark.parametrize(
    ("cache", "blocks", "message"),
    [
        (lambda: torch.zeros(7, 8), 6, "no dimension of 6 blocks"),
        (lambda: torch.zeros(6, 3, dtype=torch.int8), 6, "not made of 32-bit words"),
        (lambda: torch.zeros(6, 8, 4)[:, :, :2], 6, "holes inside a page"),
    ],
)
def test_refused_layouts(cache, blocks: int, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        from_caches([cache()], blocks)


def test_refused_arguments() -> None:
    cache = from_caches([torch.zeros(4, 8)], 4)
    with pytest.raises(BadInput, match="4 blocks"):
        ops.tag_check_dense(ops.new_tags(4), tensor([1, 2]))
    with pytest.raises(BadInput, match="int32 vectors"):
        ops.fill_blocks(cache, torch.tensor([1]), 0)
    with pytest.raises(BadInput, match="32-bit word"):
        ops.fill_blocks(cache, tensor([1]), 2**32)
    with pytest.raises(BadInput, match="staging of shape"):
        ops.gather_blocks(cache, tensor([1, 2]), cache.staging(1))
    with pytest.raises(BadInput, match="staging of"):
        cache.staging(2**29)
    with pytest.raises(BadInput, match="blocks on"):
        from_caches([torch.zeros(4, 8)], 4).__class__(
            [*cache.segments, *from_caches([torch.zeros(5, 8)], 5).segments]
        )
    with pytest.raises(BadInput, match="backend"):
        ops.choose("opencl", cache.address)


def test_triton_without_triton_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "has_triton", lambda: False)
    assert ops.choose(None, torch.zeros(1)) == "torch"
    with pytest.raises(Unsupported, match="no Triton"):
        ops.choose("triton", torch.zeros(1))


@pytest.mark.parametrize(
    ("work", "cores", "want"), [(0, 48, 1), (5, 48, 5), (10**6, 48, 48), (10**6, 10**6, 65535)]
)
def test_grid(work: int, cores: int, want: int) -> None:
    assert ops.grid(work, cores) == (want,)
