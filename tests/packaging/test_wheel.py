"""Wheel and source distribution, built and installed into a fresh environment, far away from the checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from stallproof.cli import VERBS

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
TRACES = ROOT / "tests" / "fixtures" / "traces"


def run(args: Sequence[object], cwd: Path, **kwargs: object) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "STALLPROOF"))}
    return subprocess.run(
        [*map(str, args)], cwd=cwd, env=env, capture_output=True, text=True, timeout=900, **kwargs
    )  # type: ignore[call-overload]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel is built from the source distribution, so both are complete."""
    out = tmp_path_factory.mktemp("dist")
    done = run([sys.executable, "-m", "build", "--no-isolation", "-o", out, ROOT], out)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    [wheel], [source] = list(out.glob("*.whl")), list(out.glob("*.tar.gz"))
    return {"wheel": wheel, "sdist": source}


@pytest.fixture(scope="module")
def fresh(dist: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``bin`` of a new environment that holds the wheel with its direct dependencies, nothing else."""
    home = tmp_path_factory.mktemp("fresh")
    venv.create(home / "env", with_pip=True)
    bin_ = home / "env" / "bin"
    done = run([bin_ / "pip", "install", "-q", "--disable-pip-version-check", dist["wheel"]], home)
    assert done.returncode == 0, done.stderr
    return bin_


def test_what_is_inside(dist: dict[str, Path]) -> None:
    names = zipfile.ZipFile(dist["wheel"]).namelist()
    for wanted in (
        "stallproof/py.typed",
        "stallproof_model/py.typed",
        "stallproof_proofs/py.typed",
        "stallproof/_spec/Sched.tla",
        "stallproof/_spec/configs.toml",
        "stallproof/report/assets/page.css",
        "stallproof/report/assets/page.js",
    ):
        assert wanted in names
    assert {n.split("/")[0] for n in names} == {
        "stallproof", "stallproof_model", "stallproof_proofs", "stallproof-0.1.0.dist-info",
    }  # fmt: skip
    with tarfile.open(dist["sdist"]) as tar:
        inside = tar.getnames()
    for wanted in ("Makefile", "mkdocs.yml", "CITATION.cff", "requirements-dev.lock", "tests/conftest.py"):
        if (ROOT / wanted).exists():
            assert any(n.endswith("/" + wanted) for n in inside), wanted
    assert not [n for n in [*names, *inside] if "__pycache__" in n or n.endswith((".pyc", ".part"))]


def test_few_direct_dependencies(dist: dict[str, Path]) -> None:
    """The scheduler alone: fewer than six; everything heavier is an extra."""
    wheel = zipfile.ZipFile(dist["wheel"])
    [meta] = [n for n in wheel.namelist() if n.endswith("METADATA")]
    needs = re.findall(r"^Requires-Dist: (.*)$", wheel.read(meta).decode(), re.M)
    direct = [n for n in needs if "extra ==" not in n]
    assert len(direct) < 6, direct
    extras = set(re.findall(r"^Provides-Extra: (.*)$", wheel.read(meta).decode(), re.M))
    assert {"check", "hunt", "report", "ascend", "ray", "diagnose"} <= extras


def test_every_verb_answers(fresh: Path, tmp_path: Path) -> None:
    """Help, or one clear error that names the extra to install."""
    for verb in VERBS:
        done = run([fresh / "stallproof", verb, "--help"], tmp_path)
        assert "Traceback" not in done.stderr, verb
        if done.returncode:
            assert "pip install 'stallproof[" in done.stderr, (verb, done.stderr)


def test_traces_are_judged_and_drawn(fresh: Path, tmp_path: Path) -> None:
    trace = TRACES / "wedge-0.23.0.jsonl"
    done = run([fresh / "stallproof", "replay", trace], tmp_path)
    assert done.returncode == 1, done.stderr
    assert "NoWedge" in done.stdout
    done = run([fresh / "stallproof", "report", trace, "-o", "page.html"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "NoWedge violated" in (tmp_path / "page.html").read_text()


def test_importing_the_scheduler_package_needs_no_engine(fresh: Path, tmp_path: Path) -> None:
    done = run([fresh / "python", "-c", "import stallproof.vllm as v; print(v.guarded.__name__)"], tmp_path)
    assert done.stdout == "guarded\n", done.stderr


def test_types_are_seen_by_a_type_checker(fresh: Path, tmp_path: Path) -> None:
    program = tmp_path / "uses.py"
    program.write_text("from stallproof.trace.reader import records\nreveal_type(records('x'))\n")
    mypy = [sys.executable, "-m", "mypy", "--python-executable", fresh / "python", "--config-file=", program]
    done = run(mypy, tmp_path)
    assert "Iterator[tuple[str, int," in done.stdout, done.stdout + done.stderr


def test_specification_and_proofs_work_from_the_wheel(
    dist: dict[str, Path], fresh: Path, tmp_path: Path
) -> None:
    done = run(
        [fresh / "pip", "install", "-q", "--disable-pip-version-check", f"{dist['wheel']}[check]"], tmp_path
    )
    assert done.returncode == 0, done.stderr
    done = run([fresh / "stallproof", "check", "--list"], tmp_path)
    assert done.returncode == 0, done.stderr
    gap = next(line.split()[0] for line in done.stdout.splitlines() if "refuted by" in line)
    done = run([fresh / "stallproof", "check", "--no-proofs", gap], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert gap in done.stdout
    listed = run([fresh / "stallproof", "prove", "--list"], tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert len(listed.stdout.splitlines()) > 20
    done = run([fresh / "stallproof", "explain", gap], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
