"""The pytest plug-in under vLLM's own tests: stock conforms, a scheduler that keeps blocks is told so."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from stallproof import engines
from tests.vllm_class.upstream.run import environment, unpack

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]
TEST = "tests/v1/kv_connector/unit/test_remote_decode_lifecycle.py"
LEAKY = '''
from vllm.v1.core.sched.scheduler import Scheduler

class Leaky(Scheduler):
    """Forgets the blocks of a request that was sent."""

    def _free_request_blocks(self, request):
        pass
'''


def run(tmp_path: Path, *args: str) -> str:
    engine, folder = engines.get("0.32.0"), unpack("0.32.0")
    (tmp_path / "leaky.py").write_text(LEAKY)
    (tmp_path / "use_leaky.py").write_text(
        "import vllm.v1.core.sched.scheduler as m, leaky\nm.Scheduler = leaky.Leaky\n"
    )
    env = environment("0.32.0")
    env["PYTHONPATH"] = f"{tmp_path}:{env['PYTHONPATH']}"
    command = [str(engine.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *args]
    done = subprocess.run(
        [*command, "-p", "stallproof.pytest_plugin", "--stallproof", TEST],
        cwd=folder, env=env, capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_stock_conforms(tmp_path):
    out = run(tmp_path)
    assert "0 tests diverge" in out, out[-3000:]
    assert "4 tests made" in out, out[-3000:]


def test_a_leak_is_named(tmp_path):
    out = run(tmp_path, "-p", "use_leaky", "--stallproof-report")
    assert "Conservation: tests/v1/kv_connector" in out, out[-3000:]
