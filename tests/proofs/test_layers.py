"""Statements stand apart from proofs: the import order of the package, read from the sources."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import stallproof_proofs

ROOT = Path(stallproof_proofs.__file__).parent
#: layer -> what it may import of this package
ALLOWED = {
    "systems": {"logic", "sums", "systems"},
    "statements": {"logic", "systems", "statements"},
    "proofs": {"logic", "sums", "result", "theory", "systems", "statements", "proofs"},
}


def imported(path: Path) -> set[str]:
    """First component, below the package, of everything that ``path`` imports from it."""
    out = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            names = [f"{node.module}.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        out |= {n.split(".")[1] for n in names if n.split(".")[0] == "stallproof_proofs" and "." in n}
    return out


@pytest.mark.parametrize(
    "path",
    [p for layer in ALLOWED for p in sorted((ROOT / layer).glob("*.py"))],
    ids=lambda p: p.parent.name + "/" + p.name,
)
def test_a_layer_imports_only_what_it_may(path: Path) -> None:
    assert imported(path) <= ALLOWED[path.parent.name]


def test_the_check_can_fail(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("from stallproof_proofs.proofs import blocks\n")
    assert imported(bad) == {"proofs"}


def test_importing_the_package_loads_no_solver() -> None:
    code = "import sys, stallproof_proofs; sys.exit('z3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
