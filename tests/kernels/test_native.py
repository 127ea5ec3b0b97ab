"""Lane 3: the code that triton-ascend lowered, run on the host, against the torch reference."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

IR = os.environ.get("STALLPROOF_KERNELS_IR", "")
if not IR:
    pytest.skip("run by `make kernels-native`", allow_module_level=True)

from stallproof.kernels import ops, reference  # noqa: E402
from stallproof.kernels.lanes.native import Guarded, Kernel, build  # noqa: E402
from stallproof.kernels.segments import Segment, Segments  # noqa: E402

from .strategies import words  # noqa: E402

ROUNDS = 40


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory):
    out, made = tmp_path_factory.mktemp("native"), {}

    def kernel(name: str) -> Kernel:
        if name not in made:
            made[name] = Kernel(build(Path(IR) / f"{name}.mlir", out))
        return made[name]

    return kernel


def guarded(t: torch.Tensor) -> torch.Tensor:
    """A copy of ``t`` that ends on an inaccessible page."""
    out = Guarded(t.numel()).tensor().view(t.shape)
    out.copy_(t)
    return out


def order(rng: random.Random, grid: int) -> list[int]:
    return rng.sample(range(grid), grid)


def cache(rng: random.Random, g: torch.Generator) -> Segments:
    """Segments with unequal pages, the last page of each ending on a guard page."""
    blocks = rng.randint(1, 6)
    sizes = [rng.choice([1, 8, 1000, 4096, 5000, 16384]) for _ in range(rng.randint(1, 4))]
    segments = [Segment(f"s{i}", guarded(words(g, blocks, n))) for i, n in enumerate(sizes)]
    return Segments(segments)


def rounds():
    for seed in range(ROUNDS):
        yield random.Random(seed), torch.Generator().manual_seed(seed)


def listed(rng: random.Random, blocks: int, *, distinct: bool) -> torch.Tensor:
    some = [*range(blocks), -1, blocks, 2**30, -(2**31)]
    chosen = (
        rng.sample(some, rng.randint(1, len(some))) if distinct else rng.choices(some, k=rng.randint(1, 9))
    )
    return guarded(torch.tensor(chosen, dtype=torch.int32))


def test_tag_check_dense(built) -> None:
    for rng, g in rounds():
        n, grid = rng.randint(1, 9000), rng.randint(1, 48)
        tags = words(g, n + 1)
        expect = torch.where(torch.rand(n, generator=g) < 0.5, tags[:n], 0)
        for _ in range(rng.randint(0, 3)):
            expect[rng.randrange(n)] ^= 1 << rng.randrange(31)
        want, seen = reference.tag_check_dense(tags, expect)
        got_seen, result = (
            guarded(torch.zeros_like(expect)),
            torch.zeros(grid * ops.RESULT_STRIDE, dtype=torch.int32),
        )
        # the sink word is not read: the tags end on the guard page without it
        built("tag_check_dense")(
            grid, guarded(tags[:n]), guarded(expect), got_seen, result, n, order=order(rng, grid)
        )
        assert int(result.sum()) == int(want)
        assert torch.equal(got_seen, seen)


def test_tag_check_pairs(built) -> None:
    for rng, g in rounds():
        blocks, grid = rng.randint(1, 3000), rng.randint(1, 8)
        tags, ids = guarded(words(g, blocks + 1)), listed(rng, blocks, distinct=False)
        ids = guarded(ids.repeat(rng.randint(1, 200)))
        expect = torch.where(reference.legal(ids, blocks), tags[ids.clamp(0, blocks).long()], 0)
        expect[rng.randrange(len(expect))] += rng.randint(0, 1)
        want, seen = reference.tag_check_pairs(tags, ids, expect)
        got_seen, result = (
            guarded(torch.zeros_like(expect)),
            torch.zeros(grid * ops.RESULT_STRIDE, dtype=torch.int32),
        )
        built("tag_check_pairs")(
            grid, tags, ids, guarded(expect), got_seen, result, len(ids), blocks, order=order(rng, grid)
        )
        assert int(result.sum()) == int(want)
        assert torch.equal(got_seen, seen)


def test_tag_stamp(built) -> None:
    for rng, g in rounds():
        blocks = rng.randint(1, 400)
        ids = listed(rng, blocks, distinct=False)
        values, before = words(g, len(ids)), torch.tensor(rng.choices([0, 3], k=len(ids)), dtype=torch.int32)
        a, b = guarded(words(g, blocks + 1)), None
        b = guarded(a)
        want, seen = reference.tag_stamp(a, ids, before, values)
        got_seen, result = (
            guarded(torch.zeros_like(values)),
            torch.zeros(ops.RESULT_STRIDE, dtype=torch.int32),
        )
        built("tag_stamp")(1, b, ids, guarded(before), guarded(values), got_seen, result, len(ids), blocks)
        assert torch.equal(a, b)
        assert torch.equal(got_seen, seen)
        assert int(result.sum()) == int(want)


def test_fill(built) -> None:
    for rng, g in rounds():
        c = cache(rng, g)
        ids, grid = listed(rng, c.blocks, distinct=False), rng.randint(1, 48)
        copy = Segments([Segment(s.name, s.words.clone()) for s in c.segments])
        pattern = rng.choice([0, 0x7FC07FC0, -2139062144])
        reference.fill_blocks(copy, ids, pattern)
        chunks = -(-c.largest // ops.TILE_COPY)
        built("fill_blocks")(
            grid, c.address, c.words, ids, len(ids), len(c), c.blocks, chunks, pattern, order=order(rng, grid)
        )
        assert all(torch.equal(a.words, b.words) for a, b in zip(c.segments, copy.segments, strict=True))


def test_gather_and_scatter(built) -> None:
    for rng, g in rounds():
        c = cache(rng, g)
        source, grid = listed(rng, c.blocks, distinct=True), rng.randint(1, 48)
        want, got = c.staging(len(source)).fill_(9), guarded(c.staging(len(source)).fill_(9))
        reference.gather_blocks(c, source, want)
        chunks = -(-c.largest // ops.TILE_COPY)
        tail = (len(source), len(c), c.blocks, chunks, c.total)
        built("gather_blocks")(grid, c.address, c.words, c.first, source, got, *tail, order=order(rng, grid))
        assert torch.equal(got, want)
        target = guarded(torch.tensor(rng.sample(source.tolist(), len(source)), dtype=torch.int32))
        copy = Segments([Segment(s.name, s.words.clone()) for s in c.segments])
        reference.scatter_blocks(copy, target, want)
        built("scatter_blocks")(grid, c.address, c.words, c.first, target, got, *tail, order=order(rng, grid))
        assert all(torch.equal(a.words, b.words) for a, b in zip(c.segments, copy.segments, strict=True))


def test_checksum(built) -> None:
    for rng, g in rounds():
        c = cache(rng, g)
        ids, grid = listed(rng, c.blocks, distinct=False), rng.randint(1, 8)
        out = guarded(torch.full((len(ids), len(c)), 7, dtype=torch.int32))
        built("checksum_blocks")(
            grid, c.address, c.words, ids, out, len(ids), len(c), c.blocks, order=order(rng, grid)
        )
        assert torch.equal(out, reference.checksum_blocks(c, ids))


MASKED = """
import sys, torch
from pathlib import Path
from stallproof.kernels.lanes.native import Guarded, Kernel, build
table = Guarded(1024, front=True)
ids = torch.full((512,), int(sys.argv[3]), dtype=torch.int32)
kernel = Kernel(build(Path(sys.argv[1]) / "control_masked_gather.mlir", Path(sys.argv[2])))
kernel(1, table, ids, torch.zeros_like(ids), 512)
"""


@pytest.mark.parametrize(("first", "want"), [(0, 0), (-1, -signal.SIGSEGV)])
def test_control_a_masked_gather_is_not_masked(tmp_path: Path, first: int, want: int) -> None:
    """Lane 1 passes this kernel; here reading ``a[-1]`` under a false mask dies on the guard page."""
    run = subprocess.run([sys.executable, "-c", MASKED, IR, str(tmp_path), str(first)])
    assert run.returncode == want


def test_control_the_same_kernel_passes_the_interpreter() -> None:
    pytest.importorskip("triton")
    from stallproof.kernels.lanes import controls

    out = torch.full((512,), 9, dtype=torch.int32)
    ids = torch.full((512,), -1, dtype=torch.int32)
    controls.control_masked_gather[(1,)](torch.ones(4, dtype=torch.int32), ids, out, 512, TILE=512)
    assert not out.any()
