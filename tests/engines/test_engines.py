"""The engines tool, without installing anything: settings, hashes, interruption, errors."""

from __future__ import annotations

import configparser
import hashlib
import importlib
import io
import re
import tarfile
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from stallproof import engines
from stallproof.cli import main
from stallproof.cli.engines import command
from stallproof.engines import cache, fetch, install
from stallproof.engines.cache import Manifest
from stallproof.engines.catalogue import BASE, CI, MATRIX, SDISTS
from stallproof.errors import BadInput, Exit, Unsupported


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STALLPROOF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("STALLPROOF_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache.root() == tmp_path / "x" / "stallproof"
    monkeypatch.setenv("STALLPROOF_CACHE", str(tmp_path / "own"))
    assert cache.root() == tmp_path / "own"
    monkeypatch.delenv("STALLPROOF_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.root() == Path.home() / ".cache" / "stallproof"


def test_tables_agree() -> None:
    assert BASE in SDISTS
    assert set(CI) <= set(MATRIX) <= set(SDISTS)
    assert all(len(bytes.fromhex(h)) == 32 for h in SDISTS.values())


@pytest.mark.parametrize("name", install._LOCKS)
def test_every_locked_package_has_a_hash(name: str) -> None:
    text = install._lock(name).decode()
    pins = [line for line in text.splitlines() if "==" in line and not line.startswith("#")]
    assert pins
    for entry in text.split("\n")[:]:
        if "==" in entry and not entry.startswith("#"):
            assert entry.rstrip().endswith("\\"), f"{entry} has no hash"
    left_out = ("torchvision==", "torchaudio==", "torchcodec==", "triton==")
    assert not [p for p in pins if p.startswith(left_out)]


def test_both_torch_cases_are_the_same_public_version() -> None:
    local = install._lock("torch-local.txt").decode()
    public = install._lock("torch-public.txt").decode()
    pin = next(x for x in public.splitlines() if x.startswith("torch==")).split()[0]
    assert f"{pin}+cpu" in local


@pytest.mark.parametrize("verb", ["up", "path"])
def test_unknown_release_is_unsupported_and_names_the_range(
    verb: str, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["engines", verb, "0.18.0"])
    assert stop.value.code == Exit.UNSUPPORTED
    said = capsys.readouterr().err
    assert "0.23.0" in said
    assert "0.33.0" in said
    assert "Traceback" not in said
    assert not own_cache.exists(), "nothing is written for a release that is refused"


def test_a_release_that_is_not_installed_says_how_to_install_it(own_cache: Path) -> None:
    with pytest.raises(BadInput, match=r"stallproof engines up 0\.28\.0"):
        engines.get("0.28.0")


def test_nothing_half_made_is_taken_for_whole(own_cache: Path) -> None:
    base, top = install.base_folder(), install.overlay_folder("0.28.0")
    (base / "bin").mkdir(parents=True)
    (base / "bin" / "python").touch()
    top.mkdir(parents=True)
    assert not install.is_up("0.28.0"), "no manifest: interrupted"
    cache.seal(base, Manifest(BASE, "full", install.base_digest(), ""))
    assert not install.is_up("0.28.0"), "the sources have no manifest"
    cache.seal(top, Manifest("0.28.0", "overlay", "of another recipe", ""))
    assert not install.is_up("0.28.0"), "out of date"
    cache.seal(top, Manifest("0.28.0", "overlay", install.overlay_digest("0.28.0"), ""))
    assert install.is_up("0.28.0")
    (top / cache.MANIFEST).write_text('{"version": "0.2')
    assert not install.is_up("0.28.0"), "a torn manifest"


def test_discard_removes_the_manifest_first(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = own_cache / "x"
    folder.mkdir(parents=True)
    cache.seal(folder, Manifest("0.28.0", "overlay", "d", ""))

    def interrupted(*a: object, **k: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cache.shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.discard(folder)
    assert cache.read(folder) is None


def test_unwritable_cache_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("STALLPROOF_CACHE", str(blocked))
    with pytest.raises(BadInput, match="STALLPROOF_CACHE"), cache.exclusive():
        pass


PIP_CONFIG = """\
:env:.cert='/certs/ca.crt'
global.index-url='https://user:s%40t@mirror.example/simple'
global.extra-index-url='file:///one/simple https://two.example/simple'
install.index-url='https://install.example/simple'
"""


def test_pip_settings_are_followed() -> None:
    s = fetch.Settings(PIP_CONFIG)
    assert s.indexes == [
        "https://install.example/simple",
        "file:///one/simple",
        "https://two.example/simple",
    ]
    assert s.cert == "/certs/ca.crt"
    assert fetch.Settings("").indexes == ["https://pypi.org/simple"]


@pytest.fixture
def mirror(tmp_path: Path) -> tuple[Path, bytes]:
    """A local HTML index with one (tiny) source release."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as tar:
        for name in ("vllm/__init__.py", "vllm/v1/core/sched/scheduler.py", "tests/x.py"):
            info = tarfile.TarInfo(f"vllm-0.28.0/{name}")
            tar.addfile(info, io.BytesIO())
    page = tmp_path / "simple" / "vllm"
    page.mkdir(parents=True)
    (page / "vllm-0.28.0.tar.gz").write_bytes(raw.getvalue())
    (page / "index.html").write_text(
        '<a data-x="1" href="vllm-0.28.0.tar.gz#sha256=ab">vllm-0.28.0.tar.gz</a>'
    )
    return tmp_path / "simple", raw.getvalue()


def test_source_release_comes_from_the_configured_index(
    mirror: tuple[Path, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, data = mirror
    monkeypatch.setattr(fetch, "settings", lambda _: fetch.Settings(f"global.index-url='{index.as_uri()}'"))
    digest = hashlib.sha256(data).hexdigest()
    got = fetch.sdist("0.28.0", digest, tmp_path / "out", Path("python"))
    assert got.read_bytes() == data
    monkeypatch.setattr(fetch, "links", lambda *a: pytest.fail("asked again although it is there"))
    assert fetch.sdist("0.28.0", digest, tmp_path / "out", Path("python")) == got


def test_a_wrong_hash_is_refused_and_leaves_nothing(
    mirror: tuple[Path, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, _ = mirror
    monkeypatch.setattr(fetch, "settings", lambda _: fetch.Settings(f"global.index-url='{index.as_uri()}'"))
    with pytest.raises(BadInput, match="SHA-256"):
        fetch.sdist("0.28.0", "0" * 64, tmp_path / "out", Path("python"))
    assert not list((tmp_path / "out").iterdir())


def test_no_index_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = f"global.index-url='{(tmp_path / 'none').as_uri()}'"
    monkeypatch.setattr(fetch, "settings", lambda _: fetch.Settings(conf))
    with pytest.raises(BadInput, match="pip config list"):
        fetch.sdist("0.28.0", "0" * 64, tmp_path / "out", Path("python"))


def test_extract_takes_the_sources_only(mirror: tuple[Path, bytes], tmp_path: Path) -> None:
    folder = tmp_path / "top"
    folder.mkdir()
    install._extract(mirror[0] / "vllm" / "vllm-0.28.0.tar.gz", "0.28.0", folder)
    assert "version = '0.28.0'" in (folder / "vllm" / "_version.py").read_text()
    assert not (folder / "tests").exists()


def test_list_and_where_need_no_engine(own_cache: Path) -> None:
    run = CliRunner()
    shown = run.invoke(command, ["list"])
    assert shown.exit_code == 0
    assert [line.split()[0] for line in shown.output.splitlines()] == list(SDISTS)
    assert run.invoke(command, ["where"]).output.strip() == str(own_cache)


def test_other_platforms_are_refused_before_any_work(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install.platform, "machine", lambda: "riscv64")
    with pytest.raises(Unsupported, match="Linux x86_64"):
        engines.up(["0.28.0"])
    assert not own_cache.exists()


@pytest.mark.engine
@pytest.mark.parametrize("version", CI)
def test_an_installed_release_reports_its_own_version(version: str) -> None:
    code = (
        "import vllm, stallproof; from vllm.platforms import current_platform as p; "
        "print(vllm.__version__, p.is_cpu())"
    )
    seen = engines.get(version).run(["-c", code], capture_output=True, text=True)
    assert seen.stdout.split()[-2:] == [version, "True"], seen.stderr[-2000:]


def test_the_shim_registers_the_plug_ins_of_an_installed_wheel(own_cache: Path) -> None:
    """What pyproject.toml registers works inside our engines, too; an older shim is renewed."""
    folder = install.shim()
    entry = next(folder.glob("*.dist-info")) / "entry_points.txt"
    entry.write_text("[vllm.general_plugins]\n")
    install.shim()
    there = configparser.ConfigParser()
    there.read(entry)
    ours = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())
    wanted = ours["project"]["entry-points"]["vllm.general_plugins"]
    have = set(there["vllm.general_plugins"].values())
    assert set(wanted.values()) <= have
    for target in have:
        module, _, name = target.partition(":")
        assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.engine
@pytest.mark.parametrize("version", engines.CI)
def test_sources_over_another_build_leave_its_packed_product_alone(version: str) -> None:
    code = (
        "from vllm.plugins import load_general_plugins as load; load();"
        "from vllm.model_executor.layers import utils; print(utils.check_cpu_sgl_kernel.__module__)"
    )
    said = engines.get(version).run(["-c", code], capture_output=True, text=True).stdout.split()[-1]
    own = version == engines.BASE
    assert said == ("vllm.model_executor.layers.utils" if own else "stallproof.harness.cpu_gemm")


def test_list_counts_the_environment_of_the_full_release(own_cache: Path) -> None:
    base = install.base_folder()
    (base / "bin").mkdir(parents=True)
    (base / "bin" / "python").touch()
    cache.seal(base, Manifest(BASE, "full", install.base_digest(), "", bytes=2_500_000_000))
    for version, kind in ((BASE, "full"), ("0.28.0", "overlay")):
        top = install.overlay_folder(version)
        top.mkdir(parents=True)
        cache.seal(top, Manifest(version, kind, install.overlay_digest(version), "", bytes=43_000_000))
    said = CliRunner().invoke(command, ["list"], standalone_mode=False).output
    assert re.search(rf"^{BASE} +full +2543 MB$", said, re.M), said
    assert re.search(r"^0\.28\.0 +overlay +43 MB$", said, re.M), said
