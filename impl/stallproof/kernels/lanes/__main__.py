"""Run lanes; see the package. Exit code 0: passed or skipped (one line says why), 1: a finding.

``--require``: a lane that cannot run is an error (exit code 3), as ``make test`` wants it for the first lane.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from stallproof.errors import Exit, StallproofError

from . import environment, hivm, native

LANES = ("interpret", "lower", "native", "hivm", "cuda")


def _pytest(target: str, **env: str) -> int:
    """The lane's tests in the ``interpret`` environment, without the project's plug-ins and settings."""
    tests = Path("tests/kernels")
    if not tests.is_dir():
        raise environment.Skip("the tests are not here; run it in a source checkout")
    # the project's pytest settings need plug-ins of the development environment; the engine has its own tests
    options = ["-q", "-ra", "-c", "/dev/null", "--rootdir", ".", "--confcutdir", str(tests)]
    options += ["-p", "no:cacheprovider", "-W", "ignore::pytest.PytestUnknownMarkWarning"]
    options += ["--ignore", str(tests / "test_engine.py"), "-m", "not engine"]
    args = ["-m", "pytest", *options, str(tests / target) if target else str(tests)]
    return environment.run("interpret", args, print, TRITON_INTERPRET="1", **env)


def _linalg() -> Path:
    """The folder of the lowered kernels, lowered now. Raises Skip if lane 2 cannot run."""
    out = environment.folder("ascend").with_suffix(".ir")
    rc = environment.run("ascend", ["-m", "stallproof.kernels.lanes.lower", str(out)], print)
    if rc:
        raise SystemExit(rc)
    return out


def lane(name: str) -> int:
    if name == "interpret":
        return _pytest("")
    if name == "cuda":
        return environment.run("interpret", ["-m", "stallproof.kernels.lanes.cuda"], print)
    if name == "native":
        native.tools()
        return _pytest("test_native.py", STALLPROOF_KERNELS_IR=str(_linalg()))
    folder = _linalg()
    return hivm.main(folder, environment.folder("ascend")) if name == "hivm" else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m stallproof.kernels.lanes", description=__doc__)
    parser.add_argument("lanes", nargs="+", choices=[*LANES, "env"])
    parser.add_argument("--require", action="store_true")
    args = parser.parse_args()
    worst = 0
    for name in args.lanes:
        print(f"== kernel lane {name}", flush=True)
        try:
            if name == "env":
                for e in environment.LOCKS:
                    print(environment.python(e, print))
                continue
            worst = max(worst, lane(name))
        except environment.Skip as e:
            print(f"SKIPPED kernel lane {name}: {e}")
            worst = max(worst, Exit.UNSUPPORTED if args.require else 0)
        except StallproofError as e:
            print(f"stallproof: {e}", file=sys.stderr)
            return int(e.code)
    return worst


if __name__ == "__main__":
    sys.exit(main())
