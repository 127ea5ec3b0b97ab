"""``stallproof doctor``: static probes, the generated table, and what bad input gets."""

from __future__ import annotations

import io
import json
import re
import tarfile
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from stallproof.cli.doctor import command
from stallproof.core.rules import RULES
from stallproof.errors import BadInput, Exit, Unsupported
from stallproof.vllm.adapters import FIRST, LAST, METHODS, TABLE, TESTED, series_of, supported
from stallproof.vllm.matrix import TESTS, markdown
from stallproof.vllm.static import inspect_archive

ROOT = Path(__file__).resolve().parents[2]


def scheduler(drop: str = "", extra: str = "") -> str:
    """A scheduler module with the names that the guard needs, and nothing behind them."""
    lines = ["class Scheduler:"]
    for name, parameters in METHODS.items():
        if name != drop:
            lines.append(f"    def {name}(self, {', '.join(parameters)}): pass")
    lines.append("    def _try_promote_blocked_waiting_request(self, request): pass")
    lines.append("    def _select_waiting_queue_for_scheduling(self): pass")
    return "\n".join(lines) + "\n" + extra


MANAGER = """
class KVCacheManager:
    def allocate_slots(self, request, num_new_tokens, num_new_computed_tokens, new_computed_blocks,
                       num_external_computed_tokens, delay_cache_blocks, full_sequence_must_fit,
                       reserved_blocks): pass
"""


def wheel(path: Path, text: str, version: str = "0.23.0") -> Path:
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("vllm/v1/core/sched/scheduler.py", text)
        z.writestr("vllm/v1/core/kv_cache_manager.py", MANAGER)
        z.writestr(f"vllm-{version}.dist-info/METADATA", f"Name: vllm\nVersion: {version}\n")
    return path


def sdist(path: Path, text: str, version: str = "0.23.0") -> Path:
    with tarfile.open(path, "w:gz") as t:
        for name, body in (
            ("vllm/v1/core/sched/scheduler.py", text),
            ("vllm/v1/core/kv_cache_manager.py", MANAGER),
            ("PKG-INFO", f"Name: vllm\nVersion: {version}\n"),
        ):
            info = tarfile.TarInfo(f"vllm-{version}/{name}")
            info.size = len(body)
            t.addfile(info, io.BytesIO(body.encode()))
    return path


@pytest.mark.parametrize("make", [wheel, sdist])
def test_a_release_that_has_everything(tmp_path: Path, make) -> None:
    found = inspect_archive(make(tmp_path / "x", scheduler()))
    assert (found.missing, found.differs) == ([], [])
    assert found.facts == TABLE["0.23"]
    done = CliRunner().invoke(command, ["--wheel", str(tmp_path / "x")], standalone_mode=False)
    assert done.return_value == Exit.OK
    assert "everything the guard needs is there" in done.output


def test_a_folder_is_called_a_folder_and_its_file_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"a folder, not a file\n +remedy: give a \.whl or \.tar\.gz"):
        inspect_archive(tmp_path)
    wheel(tmp_path / "vllm-0.23.0.whl", scheduler())
    with pytest.raises(BadInput, match=r"for example vllm-0\.23\.0\.whl"):
        inspect_archive(tmp_path)


def test_a_release_that_lacks_a_method_is_a_finding(tmp_path: Path) -> None:
    path = wheel(tmp_path / "x.whl", scheduler(drop="_preempt_request"))
    done = CliRunner().invoke(command, ["--wheel", str(path), "--json"], standalone_mode=False)
    assert done.return_value == Exit.FINDING
    assert "method _preempt_request" in json.loads(done.output)["missing"]


def test_a_mechanism_that_the_table_does_not_expect_is_a_finding(tmp_path: Path) -> None:
    path = wheel(tmp_path / "x.whl", scheduler(), version="0.32.0")
    done = CliRunner().invoke(command, ["--wheel", str(path)], standalone_mode=False)
    assert done.return_value == Exit.FINDING
    assert "differs from the table of 0.32: guard" in done.output


def test_a_release_outside_the_range(tmp_path: Path) -> None:
    path = wheel(tmp_path / "x.whl", scheduler(), version="0.99.0")
    done = CliRunner().invoke(command, ["--wheel", str(path)], standalone_mode=False)
    assert done.return_value == Exit.UNSUPPORTED
    assert "STALLPROOF_ALLOW_UNTESTED=1" in done.output


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04 broken", b"\x1f\x8b not a gzip", b"plain text", bytes(2048)], ids=str
)
def test_files_that_are_no_release(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.whl"
    path.write_bytes(content)
    with pytest.raises(BadInput) as found:
        inspect_archive(path)
    assert "x.whl" in str(found.value)
    assert "remedy" in str(found.value)


def test_truncated_and_foreign_releases(tmp_path: Path) -> None:
    whole = sdist(tmp_path / "x.tar.gz", scheduler() + "#" * 100_000).read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as z:
        z.writestr("other/__init__.py", "")
    for path in (tmp_path / "cut.tar.gz", tmp_path / "other.whl", tmp_path / "missing.whl"):
        with pytest.raises(BadInput):
            inspect_archive(path)
    with pytest.raises(BadInput, match="not Python"):
        inspect_archive(wheel(tmp_path / "bad.whl", "class Scheduler(:"))
    with pytest.raises(BadInput, match="no class Scheduler"):
        inspect_archive(wheel(tmp_path / "none.whl", "x = 1"))


def test_the_committed_table_is_the_generated_one() -> None:
    assert (ROOT / "docs" / "rules-by-version.md").read_text() == markdown(), (
        "run: stallproof doctor --table > docs/rules-by-version.md"
    )


def test_every_rule_names_tests_that_exist() -> None:
    here = ROOT / "tests" / "vllm_class"
    cases = set(
        re.findall(r"^def (case_\w+)\(", "".join(p.read_text() for p in here.glob("*cases.py")), re.M)
    )
    scenarios = {p.stem for p in (ROOT / "tests" / "scenarios").glob("*.toml")}
    assert set(TESTS) == set(RULES)
    for rule, names in TESTS.items():
        assert names, rule
        assert set(names) <= cases | scenarios, (rule, set(names) - cases - scenarios)


def test_a_rule_without_a_test_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "Bare", "a rule that nothing shows")
    with pytest.raises(BadInput, match=r"no test is named for Bare\n +remedy"):
        markdown()


def test_without_vllm_the_answer_is_unsupported() -> None:
    done = CliRunner().invoke(command, [], standalone_mode=False)
    if isinstance(done.exception, Unsupported):
        assert "not installed" in str(done.exception)
    else:  # an engine's own interpreter
        assert done.return_value == Exit.OK


def test_versions() -> None:
    assert series_of("0.28.0+cpu") == series_of("v0.28.1rc2") == "0.28"
    first, last, after = (f"{a}.{b}" for a, b in (FIRST, LAST, (LAST[0], LAST[1] + 1)))
    assert [supported(s) for s in ("0.22", first, last, after, "1.23")] == [False, True, True, False, False]
    assert (min(TABLE), max(TABLE)) == (first, last)
    assert set(TESTED) <= set(TABLE)
    with pytest.raises(Unsupported):
        series_of("main")
