"""Run vLLM's own scheduler tests of one release with its classes and with ours; compare test by test.

    python tests/vllm_class/upstream/run.py 0.32.0 [--whole] [--only ours] [--json]
    python tests/vllm_class/upstream/run.py 0.32.0 --only stock --check      # under the trace checker

The tests come from the release's source distribution, are unpacked into a cache folder and never committed.
``expected.toml`` says which are left out for both sides, where ours may differ, and how many must pass.
Exit code 0: everything that passes with vLLM's classes passes with ours, but for the listed exceptions, and
not fewer tests passed than the floor says. 1: something else. 2: the tests could not be run, or the release
has no floor yet.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from stallproof import engines
from stallproof.engines import cache
from stallproof.errors import StallproofError

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import hub  # noqa: E402

FAST = (
    "tests/v1/core/test_async_scheduler.py",
    "tests/v1/core/test_deferred_block_free.py",
    "tests/v1/core/test_scheduler.py",
    "tests/v1/core/test_priority_preemption_bug.py",
    "tests/v1/core/test_swa_inflight_window_free.py",
    "tests/v1/kv_connector/unit/test_remote_prefill_lifecycle.py",
    "tests/v1/kv_connector/unit/test_remote_decode_lifecycle.py",
    "tests/v1/kv_connector/unit/test_kv_load_failure_recovery.py",
    "tests/v1/kv_connector/unit/test_invalid_blocks_correctness.py",
    "tests/v1/kv_connector/unit/test_cache_pollution_prevention.py",
    "tests/v1/kv_connector/unit/test_error_propagation.py",
    "tests/v1/kv_connector/unit/test_kv_connector_lifecycle.py",
)
WHOLE = (
    *FAST,
    "tests/v1/core/test_prefix_caching.py",
    "tests/v1/core/test_priority_scheduler_random.py",
    "tests/v1/core/test_worker_slot_overflow.py",
    "tests/v1/kv_connector/unit/test_multi_connector.py",
    "tests/v1/kv_connector/unit/offloading_connector/test_scheduler.py",
    "tests/v1/kv_connector/unit/test_decode_bench_connector.py",
    "tests/v1/kv_connector/unit/test_scheduler_kv_connector_override.py",
)
#: per test; a test that hangs fails alone
TIMEOUT = 300


def unpack(version: str) -> Path:
    """``tests/`` of the release in a folder of its own, with a hub cache beside it."""
    folder = cache.root() / "upstream" / version
    if not (folder / "done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        top = f"vllm-{version}/"
        with tarfile.open(engines.sdist(version)) as tar:
            for member in tar:
                name = member.name
                if name.startswith(f"{top}tests/") or name == f"{top}pyproject.toml":
                    member.name = name.removeprefix(top)
                    tar.extract(member, folder, filter="data")
        (folder / "done").touch()
    hub.make(folder / "hub-cache")  # each time: it may have learnt of a model since
    return folder


def environment(version: str, **extra: str) -> dict[str, str]:
    """Of a pytest process over the release's own tests."""
    engine, folder = engines.get(version), unpack(version)
    env = engine.env(
        {
            "HF_HOME": str(folder / "hub-cache"),
            "STALLPROOF_STRICT": "1",
            "VLLM_TEST_DEFER_FREE_MODEL": "facebook/opt-125m",
            **extra,
        }
    )
    env["PYTHONPATH"] = ":".join([str(folder), str(HERE), env["PYTHONPATH"]])
    return env


@dataclass
class Expected:
    """``expected.toml`` for one release and set; names are test ids or their beginnings."""

    keywords: str
    left_out: dict[str, str]
    exceptions: dict[str, str]
    floor: int

    @classmethod
    def load(cls, version: str, whole: bool) -> Expected:
        book = tomllib.loads((HERE / "expected.toml").read_text())

        def table(name: str) -> dict[str, str]:
            rows = [e for e in book.get(name, []) if version in e.get("versions", [version])]
            return {e["test"]: e["why"] for e in rows}

        floor = book["floor"]["whole" if whole else "fast"].get(version, 0)
        return cls(book["keywords"], table("left_out"), table("exception"), int(floor))


def run(version: str, classes: str, files: tuple[str, ...], plugin: tuple[str, ...] = ()) -> dict[str, str]:
    """Test id -> passed, failed, skipped or error.

    ``classes``: ``stock``, ``ours`` or the name of one in ``broken.py``. ``plugin``: more pytest arguments;
    with them the run talks to the terminal.
    """
    engine, folder = engines.get(version), unpack(version)
    expected = Expected.load(version, True)
    here = [f for f in files if (folder / f.partition("::")[0]).exists()]
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        command = [
            str(engine.python), "-m", "pytest", "-p", "swap", *plugin, "-q", "-p", "no:cacheprovider",
            f"--timeout={TIMEOUT}", "-o", "timeout_method=signal", "-o", "junit_family=xunit1",
            "-k", expected.keywords, *(f"--deselect={t}" for t in expected.left_out),
            f"--junitxml={report.name}", *here,
        ]  # fmt: skip
        done = subprocess.run(
            command, cwd=folder, env=environment(version, STALLPROOF_SWAP=classes),
            capture_output=not plugin, text=True, check=False,
        )  # fmt: skip
        try:
            root = ET.parse(report.name).getroot()
        except ET.ParseError as exc:
            tail = (done.stdout or "")[-2000:] + (done.stderr or "")[-2000:]
            raise StallproofError(f"pytest said nothing about vLLM {version}: {exc}\n{tail}") from exc
    found = {}
    for case in root.iter("testcase"):
        file = case.get("file") or ""
        module = file.removesuffix(".py").replace("/", ".")
        inner = (case.get("classname") or "").removeprefix(module).lstrip(".")
        name = "::".join(x for x in (file, inner.replace(".", "::"), case.get("name")) if x)
        kinds = {child.tag for child in case}
        how = next((k for k in ("error", "failure", "skipped") if k in kinds), "passed")
        found[name] = how if found.get(name, "passed") == "passed" else found[name]
    return found


@dataclass
class Comparison:
    """Of both sides of one release. ``ok`` only if every list of complaints is empty."""

    version: str
    stock_passed: int
    ours_passed: int
    floor: int
    exceptions: dict[str, str] = field(default_factory=dict)
    worse: list[str] = field(default_factory=list)  #: pass with stock, not with ours, not listed
    stale: list[str] = field(default_factory=list)  #: exceptions that pass with ours, too, or name no test
    broken: list[str] = field(default_factory=list)  #: fail with stock and are not left out

    @property
    def ok(self) -> bool:
        return self.ours_passed >= self.floor > 0 and not (self.worse or self.stale or self.broken)


def compare(version: str, stock: dict[str, str], ours: dict[str, str], expected: Expected) -> Comparison:
    def passed(results: dict[str, str]) -> int:
        return sum(how == "passed" for how in results.values())

    out = Comparison(version, passed(stock), passed(ours), expected.floor)
    ran = {t.partition("::")[0] for t in stock}
    worse = {t for t, how in stock.items() if how == "passed" and ours.get(t) != "passed"}
    for name, why in expected.exceptions.items():
        differ = {t for t in worse if t.startswith(name)}
        if differ:
            out.exceptions |= dict.fromkeys(sorted(differ), why)
            worse -= differ
        elif name.partition("::")[0] in ran:
            out.stale.append(name)
    out.worse = sorted(worse)
    out.broken = sorted(t for t, how in stock.items() if how in ("failure", "error"))
    return out


def say(c: Comparison, ours: dict[str, str]) -> None:
    print(
        f"vLLM {c.version}: {c.stock_passed} of its tests pass with its classes, "
        f"{c.ours_passed} with ours (floor {c.floor})"
    )
    for t, why in c.exceptions.items():
        print(f"  exception: {t}: {why}")
    for t in c.worse:
        print(f"  WORSE: {t}: {ours.get(t, 'missing')}")
    for t in c.stale:
        print(f"  STALE: {t} is listed as an exception and does not differ; take it off the list")
    for t in c.broken:
        print(f"  BROKEN: {t} fails with vLLM's own class; leave it out with its reason")
    if c.ours_passed < c.floor:
        print(f"  TOO FEW: {c.ours_passed} passed, the floor is {c.floor}")


def main() -> int:
    p = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    p.add_argument("version")
    p.add_argument("--whole", action="store_true", help="every scheduler and connector test")
    p.add_argument("--fast", action="store_true", help="the fast set, which is the default")
    p.add_argument("--only", help="run one side (stock, ours, or a class of broken.py), list its failures")
    p.add_argument("--control", metavar="CLASS", help="a class of broken.py in the place of ours")
    p.add_argument("--check", action="store_true", help="under stallproof.pytest_plugin; nothing is compared")
    p.add_argument("--json", action="store_true")
    p.add_argument("files", nargs="*", help="files or test ids instead of a set; the floor does not count")
    a = p.parse_intermixed_args()
    files = tuple(a.files) or (WHOLE if a.whole else FAST)
    checked = (
        "-p", "stallproof.pytest_plugin", "--stallproof", "--stallproof-report",
        "--stallproof-layer=ledger", "--stallproof-layer=progress",
    )  # fmt: skip
    try:
        if a.only or a.check:
            side = a.only or "stock"
            one = run(a.version, side, files, checked if a.check else ())
            print("\n".join(f"{how}: {t}" for t, how in one.items() if how in ("failure", "error")))
            print(f"{side} on vLLM {a.version}: {sum(h == 'passed' for h in one.values())} passed")
            return 0
        expected = Expected.load(a.version, a.whole)
        if a.files:
            expected.floor = 1
        sides = ("stock", a.control or "ours")
        unpack(a.version)  # both sides read it: not by two at once
        t0 = time.monotonic()
        with ThreadPoolExecutor(2) as pool:
            stock, ours = pool.map(lambda side: run(a.version, side, files), sides)
    except (StallproofError, subprocess.CalledProcessError) as exc:
        print(f"stallproof: {exc}", file=sys.stderr)
        return 2
    result = compare(a.version, stock, ours, expected)
    if a.json:
        print(json.dumps(asdict(result) | {"ok": result.ok}, indent=1))
    else:
        say(result, ours)
        print(f"  {time.monotonic() - t0:.0f} s, both sides at once")
    if not expected.floor:
        print(f"stallproof: vLLM {a.version} has no floor in expected.toml: cannot tell", file=sys.stderr)
        return 2
    return 0 if result.ok else 1


if __name__ == "__main__":
    sys.exit(main())
