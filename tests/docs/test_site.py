"""The documentation builds strictly, names only what exists, and says nothing about the machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stallproof.cli import VERBS
from stallproof.vllm.metrics import FAMILIES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    p for p in [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"] if "/img/" not in str(p)
)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def build(folder: Path, out: Path) -> subprocess.CompletedProcess[str]:
    # Not with -q: that hides warnings from the strict mode as well.
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(out)],
        cwd=folder, capture_output=True, text=True, timeout=300,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip


@pytest.mark.slow
def test_strict_build_and_that_it_can_fail(tmp_path: Path) -> None:
    done = build(ROOT, tmp_path / "site")
    assert done.returncode == 0, done.stdout + done.stderr
    for wanted in ("index.html", "promise/index.html", "live/wedge-0.23.0.html", "spec/index.html"):
        assert (tmp_path / "site" / wanted).exists(), wanted
    copy = tmp_path / "copy"
    for name in ("docs", "spec", "tests/fixtures/traces"):
        shutil.copytree(ROOT / name, copy / name)
    for name in ("mkdocs.yml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, copy / name)
    (copy / "docs" / "promise.md").write_text("# Broken\n\n[nowhere](no-such-page.md)\n")
    broken = build(copy, tmp_path / "broken")
    assert broken.returncode != 0
    assert "no-such-page.md" in broken.stdout + broken.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_pages_name_only_what_exists(page: Path) -> None:
    text = text_of(page)
    code = "\n".join(re.findall(r"`([^`\n]+)`", text) + re.findall(r"```.*?```", text, re.S))
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.M))
    asked = set(re.findall(r"\bmake ((?:[a-z][a-z0-9-]+)(?: [a-z][a-z0-9-]+)*)", code))
    missing = {word for group in asked for word in group.split() if word not in targets}
    assert not missing, f"make targets that do not exist: {missing}"
    verbs = set(re.findall(r"^\s*(?:\$ )?(?:\w+=\S+ )?stallproof ([a-z]+)\b", code, re.M))
    assert verbs <= set(VERBS), f"verbs that do not exist: {verbs - set(VERBS)}"
    for option in re.findall(r"\bSTALLPROOF_[A-Z0-9_]*[A-Z0-9]\b", text):
        assert option in settings(), f"no such setting: {option}"


def settings() -> set[str]:
    names = set()
    for path in [*(ROOT / "impl").rglob("*.py"), ROOT / ".ci" / "run", *(ROOT / "tests").rglob("*.py")]:
        names |= set(re.findall(r"STALLPROOF_[A-Z0-9_]*[A-Z0-9]", path.read_text(encoding="utf-8")))
    from dataclasses import fields

    from stallproof.core.stall_watch import Limits

    return names | {f"STALLPROOF_STALL_{f.name.upper()}" for f in fields(Limits)}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_pages_say_nothing_about_this_machine(page: Path) -> None:
    for word in ("/root/", "/home/", "/tmp/pytest", "file:///", "shared/research"):
        assert word not in text_of(page), word


def test_the_monitoring_page_lists_every_metric() -> None:
    text = text_of(DOCS / "monitoring.md")
    for name, kind, *_ in FAMILIES:
        assert f"stallproof_{name}" + ("_total" if kind == "counter" else "") in text
    listed = set(re.findall(r"`(stallproof_[a-z_]+)", text))
    known = {f"stallproof_{n}" + ("_total" if k == "counter" else "") for n, k, *_ in FAMILIES}
    assert listed <= known | {"stallproof_stalled", "stallproof_info"}


def test_every_promise_is_on_the_page_of_the_promise() -> None:
    from stallproof.cli.replay import PROMISE
    from stallproof.core.stall_watch import PROPERTY

    text = text_of(DOCS / "promise.md")
    for name in PROPERTY.values():
        assert name in text
    for name in ("Conservation", "OneOwner", "XferSafe", "StoreSafe", "NoZeroPre", "NoInversion", "NoWedge"):
        assert name in text
        assert name in PROMISE
