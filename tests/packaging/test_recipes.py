"""The reusable workflow and the container recipe: valid by schema, and their shell does what it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "engine-fork.yml"
CONTAINER = ROOT / "examples" / "container" / "Containerfile"
TRACES = ROOT / "tests" / "fixtures" / "traces"


def schema(path: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.github-workflows",
        str(path),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_workflow_is_valid_and_the_check_can_fail(tmp_path: Path) -> None:
    done = schema(WORKFLOW)
    assert done.returncode == 0, done.stdout
    bad = tmp_path / "bad.yml"
    bad.write_text(WORKFLOW.read_text().replace("runs-on: ubuntu-latest", "runs_on: ubuntu-latest"))
    assert schema(bad).returncode != 0


def scripts() -> dict[str, str]:
    """``run`` blocks by the name of their step."""
    text = WORKFLOW.read_text()
    blocks = re.findall(r"- name: (.+)\n(?:        if: .*\n)?        run: \|\n((?:          .*\n)+)", text)
    return {name: re.sub(r"^ {10}", "", body, flags=re.M) for name, body in blocks}


def test_inputs_are_never_pasted_into_a_script() -> None:
    """An input substituted into a script is code; through the environment it is data."""
    assert len(scripts()) == 3
    for line in [*re.findall(r"run: (.*)", WORKFLOW.read_text()), *scripts().values()]:
        assert "${{" not in line


@pytest.mark.parametrize("name", scripts())
def test_scripts_are_shell(name: str) -> None:
    subprocess.run(["bash", "-n"], input=scripts()[name], text=True, check=True)


@pytest.mark.parametrize(
    ("files", "code"),
    [(["cascade-0.32.0-ok"], 0), (["cascade-0.32.0-ok", "wedge-0.23.0"], 1), ([], 2)],
    ids=["conforming", "one diverges", "none"],
)
def test_the_replay_step(files: list[str], code: int, tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    for name in files:
        shutil.copy(TRACES / f"{name}.jsonl", tmp_path / "traces")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", scripts()["Replay every trace"]],
        cwd=tmp_path, env={**os.environ, "PATH": path, "TRACES": "traces/*.jsonl"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert len(list((tmp_path / "traces").glob("*.html"))) == len(files)


def test_container_recipe_has_a_known_form() -> None:
    """No builder here: its instructions and the settings it names."""
    text = re.sub(r"\\\n", " ", CONTAINER.read_text())
    lines = [x for x in text.splitlines() if x.strip() and not x.startswith("#")]
    assert {x.split()[0] for x in lines} == {"ARG", "FROM", "RUN", "ENV", "EXPOSE"}
    assert [x.split()[0] for x in lines][:2] == ["ARG", "FROM"]
    for name in re.findall(r"STALLPROOF_[A-Z_]+", text):
        assert any(name in p.read_text() for p in (ROOT / "impl").rglob("*.py")), name
