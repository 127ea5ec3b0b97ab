"""Runs scripts in one process of an engine (importing vLLM takes seconds): prints ``path code last-line``."""

import contextlib
import importlib.util
import io
import sys
from pathlib import Path

try:
    import stallproof  # noqa: F401
except ImportError:
    pass
else:
    sys.exit("stallproof is importable here: the scripts would prove nothing")

for name in sys.argv[1:]:
    path = Path(name)
    spec = importlib.util.spec_from_file_location(path.stem.replace("-", "_"), path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        spec.loader.exec_module(module)
        code = module.main()
    print("RAN", path.stem, code, said.getvalue().strip().splitlines()[-1], flush=True)
