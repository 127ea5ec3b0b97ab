"""Run the cases of the guarded classes on every supported release and write the dated table of results.

    python tests/vllm_class/matrix.py [VERSION...]        (make test-matrix)

Exit code 1 if a case failed. Releases that are not installed are brought up first.
"""

from __future__ import annotations

import datetime
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from stallproof import engines  # noqa: E402
from tests.vllm_class.test_class import NAMES, run_cases  # noqa: E402

TABLE = ROOT / "docs" / "test-matrix.md"
HEAD = """# Cases by vLLM release

<!-- written by `make test-matrix`; do not edit -->

The cases of `tests/vllm_class/cases.py` on a live scheduler of each release, on CPU: every rule with vLLM's
own class failing beside it where it lacks the rule, hook hygiene, injected faults, shadow mode.

| vLLM | passed | failed | run on |
|---|---|---|---|
"""


def rows(text: str) -> dict[str, str]:
    return {m[1]: m[0] for m in re.finditer(r"^\| (\d+\.\d+\.\d+) \|.*$", text, re.M)}


def main() -> int:
    versions = sys.argv[1:] or list(engines.MATRIX)
    missing = [v for v in versions if not engines.is_up(v)]
    if missing:
        engines.up(missing)
    table = rows(TABLE.read_text()) if TABLE.exists() else {}
    bad = 0
    for version in versions:
        found = run_cases(version, "cases", {})
        failed = [n for n in NAMES if found.get(n, "missing")]
        bad += len(failed)
        day = datetime.datetime.now(datetime.UTC).date().isoformat()
        names = f" ({', '.join(failed)})" if failed else ""
        table[version] = f"| {version} | {len(NAMES) - len(failed)} | {len(failed)}{names} | {day} |"
        print(table[version], flush=True)
        for name in failed:
            print(f"--- {name}\n{found.get(name, found.get('', 'did not run'))}", flush=True)
        order = sorted(table, key=lambda v: tuple(map(int, v.split("."))))
        TABLE.write_text(HEAD + "\n".join(table[v] for v in order) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
