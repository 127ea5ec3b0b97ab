"""Run vLLM's own scheduler tests of one release with its classes and with ours; compare test by test.

    python tests/vllm_class/upstream/run.py 0.32.0 [--whole] [--only ours] [--json]

The tests come from the release's source distribution, are unpacked into a cache folder and never committed.
Exit code 0: everything that passes with vLLM's classes passes with ours, but for the listed exceptions, and
not fewer tests passed than the floor says. 1: something else. 2: the tests could not be run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

from stallproof import engines
from stallproof.engines import cache
from stallproof.errors import StallproofError

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import hub  # noqa: E402

TOOLS = ("pytest>=8", "pytest-asyncio", "pytest-timeout", "tblib")
#: need images, encoders or downloads
LEFT_OUT = "not ec_connector and not mm and not encoder and not multimodal and not llava"
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
    "tests/v1/kv_connector/unit/test_multi_connector.py",
    "tests/v1/kv_connector/unit/offloading_connector/test_scheduler.py",
    "tests/v1/kv_connector/unit/test_decode_bench_connector.py",
)


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
        hub.make(folder / "hub-cache")
        (folder / "done").touch()
    return folder


def tools(python: Path) -> Path:
    target = cache.root() / "upstream" / "tools"
    if not (target / "pytest").exists():
        subprocess.run(
            [str(python), "-m", "pip", "install", "-q", "--target", str(target), *TOOLS], check=True
        )
    return target


def run(version: str, ours: bool, files: tuple[str, ...], quiet: bool = False) -> dict[str, str]:
    """Test id -> passed, failed, skipped or error."""
    engine, folder = engines.get(version), unpack(version)
    here = [f for f in files if (folder / f).exists()]
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        extra = {
            "HF_HOME": str(folder / "hub-cache"),
            "STALLPROOF_SWAP": "1" if ours else "0",
            "STALLPROOF_STRICT": "1",
            "VLLM_TEST_DEFER_FREE_MODEL": "facebook/opt-125m",
        }
        env = engine.env(extra)
        env["PYTHONPATH"] = ":".join([str(folder), str(HERE), env["PYTHONPATH"], str(tools(engine.python))])
        command = [
            str(engine.python), "-m", "pytest", "-p", "swap", "-q", "--timeout=600",
            "-p", "no:cacheprovider", "-k", LEFT_OUT, f"--junitxml={report.name}", *here,
        ]  # fmt: skip
        done = subprocess.run(command, cwd=folder, env=env, capture_output=quiet, text=True, check=False)
        try:
            root = ET.parse(report.name).getroot()
        except ET.ParseError as exc:
            tail = (done.stdout or "")[-2000:] + (done.stderr or "")[-2000:]
            raise StallproofError(f"pytest said nothing about vLLM {version}: {exc}\n{tail}") from exc
    found = {}
    for case in root.iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        kinds = {child.tag for child in case}
        found[name] = next((k for k in ("error", "failure", "skipped") if k in kinds), "passed")
    return found


def compare(version: str, stock: dict[str, str], ours: dict[str, str]) -> dict[str, object]:
    book = tomllib.loads((HERE / "exceptions.toml").read_text())
    reasons = {
        e["test"]: e["why"]
        for e in book.get("exception", [])
        if not e.get("versions") or version in e["versions"]
    }
    worse = sorted(t for t, how in stock.items() if how == "passed" and ours.get(t) != "passed")
    listed = {t: next((why for name, why in reasons.items() if name in t), None) for t in worse}
    passed = sum(how == "passed" for how in ours.values())
    floor = int(book.get("floor", {}).get(version, 0))
    return {
        "version": version,
        "stock_passed": sum(how == "passed" for how in stock.values()),
        "ours_passed": passed,
        "floor": floor,
        "exceptions": {t: why for t, why in listed.items() if why},
        "worse": [t for t, why in listed.items() if not why],
        "ok": passed >= floor > 0 and all(listed.values()),
    }


def main() -> int:
    p = argparse.ArgumentParser()
    p.add_argument("version")
    p.add_argument(
        "--whole", action="store_true", help="every scheduler and connector test, not the fast set"
    )
    p.add_argument("--fast", action="store_true", help="the fast set, which is the default")
    p.add_argument("--only", choices=["stock", "ours"], help="run one side and list its failures")
    p.add_argument("--json", action="store_true")
    p.add_argument("files", nargs="*")
    a = p.parse_intermixed_args()
    files = tuple(a.files) or (WHOLE if a.whole else FAST)
    try:
        if a.only:
            one = run(a.version, a.only == "ours", files)
            print("\n".join(f"{how}: {t}" for t, how in one.items() if how in ("failure", "error")))
            print(f"{a.only} on vLLM {a.version}: {sum(h == 'passed' for h in one.values())} passed")
            return 0
        stock, ours = run(a.version, False, files, True), run(a.version, True, files, True)
    except (StallproofError, subprocess.CalledProcessError) as exc:
        print(f"stallproof: {exc}", file=sys.stderr)
        return 2
    result = compare(a.version, stock, ours)
    if a.json:
        print(json.dumps(result, indent=1))
    else:
        print(
            f"vLLM {a.version}: {result['stock_passed']} of its tests pass with its classes, "
            f"{result['ours_passed']} with ours (floor {result['floor']})"
        )
        for t, why in result["exceptions"].items():  # type: ignore[attr-defined]
            print(f"  exception: {t}: {why}")
        for t in result["worse"]:  # type: ignore[attr-defined]
            print(f"  WORSE: {t}: {ours.get(t, 'missing')}")
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
