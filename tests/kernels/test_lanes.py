"""The lanes themselves: complete, hash-locked, and skipped with one line where a tool is missing."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

from stallproof.errors import Exit
from stallproof.kernels import lanes
from stallproof.kernels.lanes import __main__ as command
from stallproof.kernels.lanes import environment, native, signatures

PACKAGE = Path(lanes.__file__).parent.parent


def jitted(path: Path) -> dict[str, list[str]]:
    """Kernels of a module -> their arguments, without importing Triton."""
    found = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and node.decorator_list:
            found[node.name] = [a.arg for a in node.args.args]
    return found


@pytest.mark.parametrize(
    ("path", "known"),
    [
        (PACKAGE / "triton_kernels.py", signatures.KERNELS),
        (PACKAGE / "lanes" / "controls.py", signatures.CONTROLS),
    ],
)
def test_every_kernel_is_in_every_lane(path: Path, known: dict) -> None:
    found = jitted(path)
    assert set(found) == set(known)
    for name, arguments in found.items():
        types, constants = known[name]
        assert arguments == [*types, *constants]


def test_the_lanes_compile_the_tiles_that_are_launched() -> None:
    text = (PACKAGE / "ops.py").read_text()
    (values,) = re.findall(r"^TILE_DENSE, TILE_PAIRS, TILE_COPY = (\d+), (\d+), (\d+)$", text, re.M)
    kernels = signatures.KERNELS
    used = [kernels[n][1]["TILE"] for n in ("tag_check_dense", "tag_check_pairs", "fill_blocks")]
    assert used == [int(v) for v in values]
    assert kernels["gather_blocks"][1] == kernels["scatter_blocks"][1] == kernels["fill_blocks"][1]


def test_every_kernel_has_its_page() -> None:
    docs = Path(__file__).parent.parent.parent / "docs" / "kernels"
    pages = "".join(p.read_text().split("\n")[0] for p in docs.glob("*.md"))
    assert all(name in pages for name in signatures.KERNELS)


@pytest.mark.parametrize("name", ["interpret.txt", "ascend.txt"])
def test_locks_have_hashes_and_no_host(name: str) -> None:
    text = environment._text("stallproof.kernels.lanes", name)
    assert "--hash=sha256:" in text
    assert "http" not in text
    requirements = [x for x in text.splitlines() if x and not x.startswith((" ", "#"))]
    assert all("==" in x for x in requirements)


def test_the_two_tritons_are_never_in_one_environment() -> None:
    interpret, ascend = (
        environment._text("stallproof.kernels.lanes", f"{n}.txt") for n in ("interpret", "ascend")
    )
    assert "\ntriton==" in interpret
    assert "triton-ascend==" in ascend
    assert "triton-ascend" not in interpret
    assert "\ntriton==" not in ascend


@pytest.mark.parametrize(
    ("arguments", "code"), [(["native"], Exit.OK), (["--require", "native"], Exit.UNSUPPORTED)]
)
def test_a_missing_tool_skips_its_lane_with_one_line(
    arguments: list[str], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(native.shutil, "which", lambda name: None)
    monkeypatch.setattr(native.Path, "exists", lambda self: False)
    monkeypatch.setattr(sys, "argv", ["lanes", *arguments])
    assert command.main() == code
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("SKIPPED kernel lane native: mlir-opt 19 not found")


def test_a_wheel_that_vanished_skips_its_lane_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone(*args: object, **kwargs: object) -> int:
        raise environment.Skip("ascend.txt cannot be installed: ERROR: No matching distribution found")

    monkeypatch.setattr(environment, "run", gone)
    monkeypatch.setattr(sys, "argv", ["lanes", "lower", "hivm"])
    assert command.main() == Exit.OK
    skipped = [x for x in capsys.readouterr().out.splitlines() if x.startswith("SKIPPED")]
    assert len(skipped) == 2
