"""What our classes add to vLLM's own import: `make bench-import`, in an engine.

Each run is a process of its own: vLLM's scheduler is imported first, then CPU time is taken for
``import stallproof.vllm`` and for making ``AsyncScheduler``. The first run only writes byte code, as an
installation does. Limit of the promise: 50 ms (median).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys

LIMIT_MS = 50.0
CODE = """
import json, time
import vllm.v1.core.sched.async_scheduler
a = time.process_time()
import stallproof.vllm
b = time.process_time()
stallproof.vllm.AsyncScheduler
print(json.dumps([1e3 * (b - a), 1e3 * (time.process_time() - b)]))
"""


def once() -> tuple[float, float]:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env["VLLM_LOGGING_LEVEL"] = "ERROR"
    done = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True, check=True)
    package, cls = json.loads(done.stdout.splitlines()[-1])
    return package, cls


def main() -> int:
    import vllm

    once()
    runs = [once() for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 7)]
    package, cls = (statistics.median(x) for x in zip(*runs, strict=True))
    total = sorted(a + b for a, b in runs)
    print(
        f"vLLM {vllm.__version__}: import stallproof.vllm {package:.1f} ms, the class {cls:.1f} ms of CPU;"
        f" together {statistics.median(total):.1f} ms ({total[0]:.1f} to {total[-1]:.1f}, {len(runs)} runs),"
        f" limit {LIMIT_MS:.0f} ms"
    )
    return int(statistics.median(total) > LIMIT_MS)


if __name__ == "__main__":
    sys.exit(main())
