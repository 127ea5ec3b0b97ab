"""Lane 3: run the code that triton-ascend lowered, on the host CPU, through Debian's MLIR and LLVM 19.

The Linalg of lane 2 is bufferised, lowered to LLVM and loaded with ctypes; programs run one after another. It
shows that the *lowered* code computes what the reference computes, and finds what the interpreter cannot: a
masked gather reads every lane here. It does not show the Ascend back end or its memory model.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from .environment import Skip

_PASSES = (
    "convert-elementwise-to-linalg", "linalg-generalize-named-ops", "eliminate-empty-tensors",
    "empty-tensor-to-alloc-tensor", "one-shot-bufferize=allow-return-allocs-from-loops=true",
    "convert-bufferization-to-memref", "canonicalize", "convert-linalg-to-loops", "lower-affine",
    "convert-scf-to-cf", "memref-expand", "expand-strided-metadata", "lower-affine", "convert-arith-to-llvm",
    "convert-math-to-llvm", "convert-index-to-llvm", "finalize-memref-to-llvm", "convert-func-to-llvm",
    "convert-cf-to-llvm", "convert-arith-to-llvm", "reconcile-unrealized-casts",
)  # fmt: skip
_DESCRIPTOR = "!llvm.struct<(ptr, ptr, i64, array<1 x i64>, array<1 x i64>)>"
_CAST = re.compile(r"^( *)(%\w+) = hivm\.hir\.pointer_cast\((%\w+)\) \[(%\w+)\] : (memref<\?xi\d+>)", re.M)


def tools() -> dict[str, str]:
    """Paths of mlir-opt, mlir-translate, llc and a C compiler. Raises Skip if one is missing."""
    found = {}
    for name in ("mlir-opt", "mlir-translate", "llc"):
        there = Path("/usr/lib/llvm-19/bin") / name
        path = str(there) if there.exists() else shutil.which(f"{name}-19")
        if not path:
            raise Skip(f"{name} 19 not found (Debian: apt-get install mlir-19-tools llvm-19)")
        found[name] = path
    cc = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not cc:
        raise Skip("no C compiler found")
    return {**found, "cc": cc}


def build(linalg: Path, out: Path) -> Path:
    """A shared object with the kernel of ``linalg``. Raises RuntimeError with the compiler's words."""
    t = tools()
    base = out / linalg.stem
    base.with_suffix(".in.mlir").write_text(_portable(linalg.read_text()))
    passes = [f"--{p}" for p in _PASSES]
    _do([t["mlir-opt"], f"{base}.in.mlir", "--allow-unregistered-dialect", *passes, "-o", f"{base}.ll.mlir"])
    _do([t["mlir-translate"], f"{base}.ll.mlir", "--mlir-to-llvmir", "-o", f"{base}.ll"])
    _do([t["llc"], "-O2", "-relocation-model=pic", "-filetype=obj", f"{base}.ll", "-o", f"{base}.o"])
    runtime = Path(__file__).with_name("rt.c")
    _do([t["cc"], "-shared", "-fPIC", "-O2", f"{base}.o", str(runtime), "-o", f"{base}.so", "-lm"])
    return base.with_suffix(".so")


def _do(command: list[str]) -> None:
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(f"{Path(command[0]).name}: {run.stderr.strip()[:2000]}")


def _portable(text: str) -> str:
    """Replace the one Ascend operation in front of LLVM: an address becomes a memref descriptor."""
    count = iter(range(10**6))

    def expand(m: re.Match[str]) -> str:
        indent, result, address, size, kind = m.groups()
        p = f"%sp{next(count)}"
        lines = [
            f"{p}p = llvm.inttoptr {address} : i64 to !llvm.ptr",
            f"{p}z = llvm.mlir.constant(0 : i64) : i64",
            f"{p}o = llvm.mlir.constant(1 : i64) : i64",
            f"{p}n = arith.index_cast {size} : index to i64",
            f"{p}0 = llvm.mlir.undef : {_DESCRIPTOR}",
            f"{p}1 = llvm.insertvalue {p}p, {p}0[0] : {_DESCRIPTOR}",
            f"{p}2 = llvm.insertvalue {p}p, {p}1[1] : {_DESCRIPTOR}",
            f"{p}3 = llvm.insertvalue {p}z, {p}2[2] : {_DESCRIPTOR}",
            f"{p}4 = llvm.insertvalue {p}n, {p}3[3, 0] : {_DESCRIPTOR}",
            f"{p}5 = llvm.insertvalue {p}o, {p}4[4, 0] : {_DESCRIPTOR}",
            f"{result} = builtin.unrealized_conversion_cast {p}5 : {_DESCRIPTOR} to {kind}",
        ]
        return "\n".join(indent + line for line in lines)

    text = _CAST.sub(expand, text)
    if "hivm.hir." in text:
        raise RuntimeError("the lowering uses Ascend operations that this lane does not know")
    return re.sub(r"^ *annotation\.mark.*$", "", text, flags=re.M)


class Kernel:
    """A built kernel. ``kernel(grid, *arguments)``: tensors (data_ptr and numel is enough) and ints."""

    def __init__(self, library: Path) -> None:
        self._function = getattr(ctypes.CDLL(str(library)), library.stem)
        self._function.restype = None

    def __call__(self, grid: int, *arguments: Any, order: list[int] | None = None) -> None:
        flat: list[Any] = [*_memref(0, 0), *_memref(0, 0)]  # workspace and lock, unused by these kernels
        for a in arguments:
            flat += [ctypes.c_int32(a)] if isinstance(a, int) else _memref(a.data_ptr(), a.numel())
        for pid in order if order is not None else range(grid):
            self._function(*flat, *[ctypes.c_int32(x) for x in (grid, 1, 1, pid, 0, 0)])


def _memref(address: int, size: int) -> list[Any]:
    p, n = ctypes.c_void_p(address), ctypes.c_int64
    return [p, p, n(0), n(size), n(1)]


class Guarded:
    """``words`` int32 words that end (``front``: begin) at an inaccessible page: a stray access dies."""

    def __init__(self, words: int, *, front: bool = False) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        page = 4096
        body = -(-words * 4 // page) * page
        base = libc.mmap(None, body + 2 * page, 3, 0x22, -1, 0)  # read | write, private | anonymous
        if base in (None, ctypes.c_void_p(-1).value):
            raise MemoryError("mmap failed")
        if libc.mprotect(base, page, 0) or libc.mprotect(base + page + body, page, 0):
            raise OSError(ctypes.get_errno(), "mprotect failed")
        self._words = words
        self._address = base + page if front else base + page + body - words * 4

    def data_ptr(self) -> int:
        return self._address

    def numel(self) -> int:
        return self._words

    def tensor(self) -> Any:
        """The same memory as an int32 tensor [words]."""
        import torch

        return torch.frombuffer(
            (ctypes.c_char * (self._words * 4)).from_address(self._address), dtype=torch.int32
        )
