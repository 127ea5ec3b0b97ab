"""Lane 4: compile the Linalg of lane 2 for Ascend chips with the compiler of PyPI's ``ascendnpu-ir``.

Criterion: the compiler writes ``module.hivm.opt.mlir``, the program after planning the unified buffer and the
pipe synchronisation, and reports no error but the missing ``hivmc`` (the last stage, which only CANN has, and
why its exit code is 1). Negative control: a tile that overflows the unified buffer must not get that far.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from .environment import Skip
from .signatures import KERNELS, TARGETS

#: what the compiler says of the missing last stage, and then of itself
_EXPECTED = ("hivmc", "[ERROR] Failed to run BiShengIR pipeline")
_BYTES = {"i1": 1, "i8": 1, "i16": 2, "f16": 2, "bf16": 2, "i32": 4, "f32": 4, "i64": 8}


@dataclass(frozen=True)
class Compiled:
    ok: bool
    seconds: float
    buffer: int  #: high-water mark in the unified buffer, bytes
    scalar: int  #: scalar loads and stores in the code
    error: str


def compilers(environment: Path) -> Path:
    """The folder of the compilers inside the ``ascend`` environment. Raises Skip if it is missing."""
    found = sorted(environment.glob("lib/python*/site-packages/ascendnpuir/bin/bishengir-compile"))
    if not found:
        raise Skip("ascendnpu-ir is installed without bishengir-compile")
    return found[0].parent


def compile_for(linalg: Path, target: str, compiler: Path) -> Compiled:
    # 3.2.0 writes an attribute that this compiler does not know
    text = re.sub(r', mix_mode\s*=\s*"[^"]*"', "", linalg.read_text())
    with tempfile.TemporaryDirectory() as tmp:
        source, temps = Path(tmp) / "in.mlir", Path(tmp) / "temps"
        source.write_text(text)
        temps.mkdir()
        t0 = time.perf_counter()
        run = subprocess.run(
            [
                str(compiler), str(source), f"--target={target}", "--enable-hfusion-compile=true",
                "--enable-hivm-compile=true", "--enable-triton-kernel-compile=true",
                "--enable-auto-multi-buffer=true", f"--save-temps={temps}", "-o", str(Path(tmp) / "out.o"),
            ],
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        seconds = time.perf_counter() - t0
        result = temps / "module.hivm.opt.mlir"
        code = result.read_text() if result.exists() else ""
    errors = [
        x.split("error:")[-1].strip()
        for x in (run.stderr + run.stdout).splitlines()
        if "error" in x.lower() and not any(y in x for y in _EXPECTED)
    ]
    errors.sort(key=lambda x: "overflow" not in x)  # the reason ahead of "pipeline failed"
    scalar = len(re.findall(r"memref\.(?:load|store)", code))
    ok = bool(code) and not errors
    error = "" if ok else (errors[0] if errors else f"exit {run.returncode}, no HIVM written")
    return Compiled(ok, seconds, _high_water(code), scalar, error)


def _high_water(code: str) -> int:
    top = 0
    pattern = r"hivm\.hir\.pointer_cast\(([^)]*)\)[^:]*: memref<([^,>]+), #hivm\.address_space<ub>>"
    for offsets, shape in re.findall(pattern, code):
        *dims, kind = shape.split("x")
        if not all(d.isdigit() for d in dims):
            continue
        size = _BYTES.get(kind, 4)
        for d in dims:
            size *= int(d)
        if kind == "i1":
            size = -(-size // 8)
        top = max([top, *(int(o) + size for o in re.findall(r"%c(\d+)_i64", offsets))])
    return top


def main(folder: Path, environment: Path) -> int:
    bin_ = compilers(environment)
    failed = 0
    for target, compiler, limit in TARGETS:
        for name in KERNELS:
            c = compile_for(folder / f"{name}.mlir", target, bin_ / compiler)
            good = c.ok and c.buffer <= limit
            failed += not good
            buffer = f"{c.buffer} of {limit} B" if c.buffer else "not stated"
            print(
                f"{'ok  ' if good else 'FAIL'} {target} {name}: {c.seconds:.2f} s, unified buffer {buffer}, "
                f"scalar memory operations {c.scalar}{'; ' + c.error if c.error else ''}"
            )
        control = compile_for(folder / "control_overflow.mlir", target, bin_ / compiler)
        refused = not control.ok and "overflow" in control.error.lower()
        failed += not refused
        print(f"{'ok  ' if refused else 'FAIL'} {target} control_overflow must fail: {control.error[:80]}")
    return 1 if failed else 0
