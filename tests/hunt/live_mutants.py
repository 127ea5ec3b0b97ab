"""In an engine: runs the scenario of each mutant that names one, with the fault; prints what is violated."""

import os
import sys
from pathlib import Path

os.environ.update({f"STALLPROOF_{n}_DEADLINE_S": "64" for n in ("LOAD", "DEFERRAL", "WAIT", "SESSION")})
os.environ["STALLPROOF_STRICT"] = "1"

import vllm

from stallproof import scenario
from stallproof.harness.drive import run
from stallproof.hunt.planted import MUTANTS

for m in MUTANTS:
    if m.scenario and m.version == "0.32.0":
        s = scenario.load(Path(sys.argv[1]) / f"{m.scenario}.toml")
        with m.planted():
            broken = run(s, vllm.__version__, "stallproof").violated
        print("LIVE", m.name, *sorted(broken), flush=True)
