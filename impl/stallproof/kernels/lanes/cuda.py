"""Lane 5, run in the ``interpret`` environment: compile every kernel for CUDA without a GPU.

``python -m stallproof.kernels.lanes.cuda [CAPABILITY]``, default 90 (Hopper). Shows that upstream Triton
compiles the same source to a cubin; not that it runs.
"""

from __future__ import annotations

import sys
import time

from .signatures import KERNELS


def main(capability: int = 90) -> int:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource

    from stallproof.kernels import triton_kernels

    failed = 0
    for name, (signature, constants) in KERNELS.items():
        t0 = time.perf_counter()
        types = {**signature, **dict.fromkeys(constants, "constexpr")}
        try:
            source = ASTSource(getattr(triton_kernels, name), types, constexprs=constants)
            done = triton.compile(source, target=GPUTarget("cuda", capability, 32))
        except Exception as e:  # whatever the compiler raises is this lane's finding
            print(f"FAIL {name}: {str(e).splitlines()[0] if str(e) else type(e).__name__}")
            failed += 1
            continue
        size, seconds, shared = len(done.asm["cubin"]), time.perf_counter() - t0, done.metadata.shared
        print(f"ok   {name}: sm_{capability} cubin of {size} B, {seconds:.2f} s, shared memory {shared} B")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
