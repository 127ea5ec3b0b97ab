"""Equality and achieved bandwidth of the kernels on a device, against a plain device copy.

``python benchmarks/kernels_bandwidth.py --device cuda|npu|cpu [--mib 1024]``, where torch (and Triton) is.
Never run on a GPU or an NPU so far; on cpu it checks equality of the torch path and times that.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

from stallproof.errors import StallproofError


def timed(device: object, work: Callable[[], object], rounds: int = 10) -> float:
    """Median seconds of ``work``, the device idle before and after; the first two rounds warm up."""
    samples = []
    for _ in range(rounds + 2):
        done = device.event()  # type: ignore[attr-defined]
        t0 = time.perf_counter()
        work()
        done.record()
        done.synchronize()
        samples.append(time.perf_counter() - t0)
    return statistics.median(samples[2:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--mib", type=int, default=256, help="size of the cache")
    parser.add_argument("--page-kib", type=int, default=64)
    args = parser.parse_args()
    try:
        import torch

        from stallproof.kernels import ops, reference
        from stallproof.kernels.device import open_device
        from stallproof.kernels.segments import from_caches

        device = open_device(args.device)
        backend = ops.choose(None, torch.empty(0, device=args.device))
    except (StallproofError, ImportError) as e:
        print(f"kernels_bandwidth: {e}", file=sys.stderr)
        return int(getattr(e, "code", 3))
    page, segments = args.page_kib * 256, 8
    blocks = max(2, args.mib * 2**18 // page // segments)
    caches = [
        torch.randint(-(2**31), 2**31, (blocks, page), dtype=torch.int64).to(torch.int32).to(args.device)
        for _ in range(segments)
    ]
    cache = from_caches(caches, blocks)
    ids = torch.randperm(blocks)[: blocks // 2].to(torch.int32).to(args.device)
    staging, want = cache.staging(len(ids)), cache.staging(len(ids))
    reference.gather_blocks(cache, ids, want)
    ops.gather_blocks(cache, ids, staging, cores=device.cores)
    equal = [("gather", torch.equal(staging, want))]
    sums = ops.checksum_blocks(cache, ids, cores=device.cores)
    equal.append(("checksum", torch.equal(sums, reference.checksum_blocks(cache, ids))))
    size = staging.numel() * 4
    copy = size * 2 / timed(device, lambda: want.copy_(staging))
    print(f"{args.device}, backend {backend}, {len(ids)} of {blocks} blocks, {size / 2**20:.0f} MiB")
    print(f"{'device copy':12s} {copy / 1e9:8.1f} GB/s")
    for name, traffic, work in (
        ("gather", 2, lambda: ops.gather_blocks(cache, ids, staging, cores=device.cores)),
        ("scatter", 2, lambda: ops.scatter_blocks(cache, ids, staging, cores=device.cores)),
        ("checksum", 1, lambda: ops.checksum_blocks(cache, ids, cores=device.cores)),
        ("fill", 1, lambda: ops.fill_blocks(cache, ids, 0x7FC07FC0, cores=device.cores)),
    ):
        rate = size * traffic / timed(device, work)
        print(f"{name:12s} {rate / 1e9:8.1f} GB/s, {rate / copy:5.2f} of a copy")
    equal.append(("fill", all(bool((c[ids.long()] == 0x7FC07FC0).all()) for c in caches)))
    tags = ops.new_tags(65536, args.device)
    expect = torch.ones(65536, dtype=torch.int32, device=args.device)
    seconds = timed(device, lambda: ops.tag_check_dense(tags, expect, cores=device.cores))
    count, _ = ops.tag_check_dense(tags, expect, cores=device.cores)
    equal.append(("tag check", int(count.sum()) == 65536))
    print(f"{'tag check':12s} {seconds * 1e6:8.1f} us for 65,536 blocks")
    for name, same in equal:
        print(f"{name}: {'equal to the reference' if same else 'DIFFERS'}")
    return 0 if all(same for _, same in equal) else 1


if __name__ == "__main__":
    sys.exit(main())
