"""``stallproof watch`` beside a real ``vllm serve`` on CPU: idle, busy, wedged, and hung.

Needs an engine (``make engines``) and takes minutes: markers ``engine`` and ``slow``. The wedges are reproduced
first (the requests do not come back), then the watch has to find them; the healthy phases come first on the same
server and must never be called stalled.
"""

# ruff: noqa: E501 - command lines as they are
from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stallproof import engines
from stallproof.diagnose import run

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]
LIVE = Path(__file__).parent / "live"
VERSION = os.environ.get("STALLPROOF_LIVE_VERSION", "0.28.0")
BLOCK, BLOCKS = 32, 41
POOL = (BLOCKS - 1) * BLOCK


class Serve:
    """One ``vllm serve`` with the tiny model; requests are lists of token ids."""

    def __init__(self, folder: Path, *extra: str, max_len: int = POOL) -> None:
        engine = engines.get(VERSION)
        model = folder / "tiny"
        made = engine.run(
            ["-c", "import sys, pathlib; from stallproof.harness import tiny; tiny.make(pathlib.Path(sys.argv[1]))", str(model)],
            extra_env=_path(engine), capture_output=True,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.log = folder / "serve.log"
        env = {
            "VLLM_LOGGING_LEVEL": "INFO",
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "NO_COLOR": "1",
        }
        self.out = self.log.open("wb")
        self.process = subprocess.Popen(
            [str(engine.python), "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--skip-tokenizer-init",
             "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(self.port), "--enforce-eager",
             "--max-model-len", str(max_len), "--block-size", str(BLOCK), "--num-gpu-blocks-override", str(BLOCKS),
             "--max-num-seqs", "16", "--max-num-batched-tokens", "2048", *extra],
            env=engine.env(env | _path(engine)), stdout=self.out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + 400
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                pytest.fail("vllm serve ended:\n" + self.log.read_text(errors="replace")[-3000:])
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2)
                return
            time.sleep(1)
        self.stop()
        pytest.fail("vllm serve did not become healthy")

    def ask(self, tokens: int, out: int, salt: int, timeout: float, **extra: Any) -> bool:
        body = {"model": "tiny", "prompt": [(salt + i * 7) % 200 + 3 for i in range(tokens)], "max_tokens": out, "temperature": 0,
                "ignore_eos": True, "detokenize": False} | extra  # fmt: skip
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        try:
            return bool(
                json.load(urllib.request.urlopen(request, timeout=timeout))["usage"]["completion_tokens"]
            )
        except OSError:
            return False

    def background(self, *args: Any, **extra: Any) -> threading.Thread:
        t = threading.Thread(target=self.ask, args=args, kwargs=extra, daemon=True)
        t.start()
        return t

    @contextlib.contextmanager
    def load(self, clients: int, tokens: int, out: int) -> Iterator[None]:
        """Clients that ask again and again until the block ends; it begins once something runs."""
        over = threading.Event()

        def client(i: int) -> None:
            while not over.is_set():
                self.ask(tokens, max(20, out - 15 * i), i, 200)  # they do not end all at once

        threads = [threading.Thread(target=client, args=(i,), daemon=True) for i in range(clients)]
        for t in threads:
            t.start()
        deadline = time.monotonic() + 60
        while self.gauge("num_requests_running") < 1 and time.monotonic() < deadline:
            time.sleep(0.2)
        try:
            yield
        finally:
            over.set()
            for t in threads:
                t.join(240)

    def gauge(self, name: str) -> float:
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=20).read().decode()
        return next((float(x.split()[-1]) for x in text.splitlines() if x.startswith(f"vllm:{name}{{")), 0.0)

    def watch(self, *args: str, during: Callable[[], None] | None = None) -> list[dict[str, Any]]:
        p = subprocess.Popen(
            [sys.executable, "-m", "stallproof", "watch", "--metrics", f"http://127.0.0.1:{self.port}/metrics", "--json", *args],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        if during is not None:
            during()
        out, _ = p.communicate(timeout=300)
        return [json.loads(x) for x in out.splitlines()]

    def worker(self) -> int:
        """The worker's process id: grandchild of the server."""
        children: dict[int, list[int]] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                text = stat.read_text()
                children.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
        for core in children.get(self.process.pid, []):
            for child in children.get(core, []):
                if b"Worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return child
        pytest.fail("no worker process found")

    def stop(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
        self.out.close()


def _path(engine: engines.Engine) -> dict[str, str]:
    return {
        "PYTHONPATH": os.pathsep.join(
            [*map(str, engine.path), str(LIVE), str(Path(__file__).parents[2] / "impl")]
        )
    }


def verdicts(lines: list[dict[str, Any]]) -> list[str]:
    return [x["verdict"] for x in lines]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    s = Serve(tmp_path_factory.mktemp("plain"), max_len=POOL + 700)
    yield s
    s.stop()


def test_idle_and_busy_are_never_stalled(plain: Serve) -> None:
    assert set(verdicts(plain.watch("--interval", "1", "--polls", "4", "--bound", "2"))) == {"idle or paused"}
    seen: set[str] = set()
    with plain.load(20, 300, 400):
        for _ in range(8):  # on a busy machine the server may take its time to begin
            seen |= set(verdicts(plain.watch("--interval", "1", "--polls", "8", "--bound", "60")))
            if "progressing" in seen:
                break
    assert "stalled" not in seen
    assert "progressing" in seen


def test_a_prompt_that_never_fits(plain: Serve) -> None:
    assert plain.ask(50, 4, 1, 60)
    victim = plain.background(POOL + 300, 4, 2, 60)
    time.sleep(2)
    lines = plain.watch(
        "--interval",
        "3",
        "--polls",
        "8",
        "--exit-on-stall",
        during=lambda: time.sleep(4) or plain.background(40, 4, 3, 40),
    )
    assert victim.is_alive(), "the wedge was not reproduced"
    assert verdicts(lines)[-1] == "stalled"
    assert lines[-1]["finding"]["promise"] == "Feasible"
    assert lines[-1]["quiet_s"] < 30
    victim.join()
    assert plain.ask(50, 4, 4, 60), "the engine goes on once the client has gone"
    assert "stalled" not in verdicts(plain.watch("--interval", "1", "--polls", "3"))
    report = run.diagnose([str(plain.log)])
    assert (
        any(
            f.mechanism == "head_never_fits"
            # one that ran alone may have ended in the interval in which this one came: then both are named
            or (f.mechanism == "self_preempt" and any("never fit" in what for what, _ in f.rivals))
            for e in report.engines
            for f in e.findings
        )
        or report.verdict != "stalled"
    )


def test_a_worker_that_stands_still(plain: Serve) -> None:
    with plain.load(6, 200, 600):
        worker = plain.worker()
        for _ in range(20):  # what is published last must show a request that runs
            os.kill(worker, signal.SIGSTOP)
            time.sleep(1)
            if plain.gauge("num_requests_running") >= 1:
                break
            os.kill(worker, signal.SIGCONT)
            time.sleep(0.5)
        try:
            lines = plain.watch("--interval", "1", "--polls", "60", "--bound", "12", "--exit-on-stall")
        finally:
            os.kill(worker, signal.SIGCONT)
    seen = verdicts(lines)
    assert seen[-1] == "stalled"
    assert lines[-1]["finding"]["layer"] == "worker or device"
    assert all(x["verdict"] == "cannot tell" for x in lines if 0 < x["quiet_s"] < 12)


def test_head_in_front_of_a_holder(tmp_path: Path) -> None:
    """vllm#57841: H, deferred once, is refused in front of L, whose finished load holds the blocks."""
    config = {"kv_connector": "Scripted", "kv_connector_module_path": "stallproof_live_connector", "kv_role": "kv_both",
              "kv_connector_extra_config": {"load_s": 3}}  # fmt: skip
    s = Serve(tmp_path, "--kv-transfer-config", json.dumps(config))
    try:
        assert s.ask(50, 4, 1, 60)
        params = lambda **script: {"kv_transfer_params": {"script": script}}  # noqa: E731
        head = s.background(30 * BLOCK, 4, 3, 90, **params(defer_s=2))
        time.sleep(0.5)
        holder = s.background(22 * BLOCK, 4, 11, 90, **params(load=21 * BLOCK))
        time.sleep(4)
        small = s.background(BLOCK, 4, 17, 90)
        lines = s.watch("--interval", "2", "--load-deadline", "12", "--polls", "20", "--exit-on-stall")
        assert head.is_alive()
        assert holder.is_alive()
        assert small.is_alive(), "the wedge was not reproduced"
        assert verdicts(lines)[-1] == "stalled"
        assert lines[-1]["finding"]["promise"] == "NoWedge"
        assert all(x["verdict"] == "cannot tell" for x in lines if 0 < x["quiet_s"] < 12)
    finally:
        s.stop()
