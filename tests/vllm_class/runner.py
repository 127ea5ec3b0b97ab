"""Run cases in an engine's interpreter: one JSON line per case, on the descriptor given first."""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))


def main() -> None:
    out = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    import vllm

    cases = importlib.import_module(os.environ.get("STALLPROOF_CASES", "cases"))

    series = ".".join(vllm.__version__.split(".")[:2])
    names = sys.argv[2:] or [n for n in vars(cases) if n.startswith("case_")]
    for name in names:
        error = ""
        try:
            getattr(cases, name)(series)
        except BaseException:
            error = traceback.format_exc()
        print(json.dumps({"case": name, "error": error}), file=out, flush=True)


if __name__ == "__main__":
    main()
