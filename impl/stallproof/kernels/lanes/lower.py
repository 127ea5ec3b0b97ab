"""Lane 2, run in the ``ascend`` environment: Triton to Linalg with triton-ascend 3.2.0.

``python -m stallproof.kernels.lanes.lower FOLDER [ARCH]`` writes ``<kernel>.ttir`` and ``<kernel>.mlir`` and
prints one line per kernel. No NPU, CANN or torch-npu is needed. Uses the compiler's Python interface of
triton-ascend 3.2, which is internal: another release needs a port.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

from .signatures import CONTROLS, KERNELS


def lower(name: str, function, signature: dict[str, str], constants: dict[str, int], arch: str):
    """(TTIR, Linalg) of one kernel, as text."""
    from triton._C.libtriton import ir
    from triton.backends import backends
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource

    backend = backends["ascend"].compiler(GPUTarget("npu", arch, 0))
    source = ASTSource(fn=function, signature=signature, constants=constants)
    options = backend.parse_options({})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    modules = backend.get_module_map() if hasattr(backend, "get_module_map") else None
    module = source.make_ir(options, backend.get_codegen_implementation(), modules, context)
    metadata = {"target": backend.target, **options.__dict__}
    stages: dict = {}
    backend.add_stages(stages, options)
    module = stages["ttir"](module, metadata)
    ttir = str(module)
    return ttir, stages["ttadapter"](module, metadata)


def main(out: Path, arch: str = "Ascend910B1") -> int:
    from stallproof.kernels import triton_kernels

    from . import controls

    out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name, (signature, constants) in {**KERNELS, **CONTROLS}.items():
        function = getattr(triton_kernels, name, None) or getattr(controls, name)
        t0 = time.perf_counter()
        try:
            ttir, linalg = lower(name, function, signature, constants, arch)
        except Exception as e:  # whatever the compiler raises is this lane's finding
            text = e.stderr.decode() if isinstance(e, subprocess.CalledProcessError) and e.stderr else str(e)
            print(f"FAIL {name}: {text.strip().splitlines()[0] if text.strip() else type(e).__name__}")
            failed += 1
            continue
        (out / f"{name}.ttir").write_text(ttir)
        (out / f"{name}.mlir").write_text(linalg)
        discrete = len(re.findall(r"tensor\.extract .*DiscreteMemAccess", linalg))
        vectors64 = len(re.findall(r"tensor<\d[\dx]*xi64>", linalg))
        if vectors64 and name in KERNELS:
            print(f"FAIL {name}: {vectors64} int64 vectors, which Ascend computes one element at a time")
            failed += 1
            continue
        print(
            f"ok   {name}: {len(linalg.splitlines())} lines of Linalg in "
            f"{(time.perf_counter() - t0) * 1e3:.0f} ms, discrete accesses {discrete}, "
            f"int64 vectors {vectors64}"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
