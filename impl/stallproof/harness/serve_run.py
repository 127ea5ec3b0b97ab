"""Run ``vllm serve`` on CPU under pressure, with concurrent clients over HTTP that disconnect at random.

``python -m stallproof.harness.serve_run '{"requests": 40, ...}'`` inside an engine: starts the server, lets
every prompt be computed once so that the connector has something to load, then sends all requests,
``clients`` at a time. Who goes away, and after how many tokens, depends on the seed only. Afterwards the
server must have nothing to do, hold no block, and answer. Prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stallproof.harness.engine_run import (
    GRAMMAR,
    Plan,
    model_folder,
    prompts,
    scheduler_class,
    structured,
    transfer,
    write,
)

#: tokens that a client which leaves asks for besides those that are compared
MORE = 250
#: seconds until the server must be up, a request answered, and the server gone
UP, ANSWER, GONE = 400.0, 300.0, 60.0


@dataclass
class ServePlan(Plan):
    """A plan, and its clients."""

    clients: int = 24  #: requests under way at a time
    leave: float = 0.4  #: share of clients that disconnect before their answer is complete
    idle: float = 120.0  #: seconds that the server has to come to rest
    log: str = "serve.log"  #: what the server says


@dataclass
class Leaving:
    """When a client goes away: after ``tokens`` of its output, or ``seconds`` after sending; 0 for never."""

    tokens: int = 0
    seconds: float = 0.0


def leaving(plan: ServePlan, rid: str, longest: int) -> Leaving:
    """Decided by the seed and the request's name."""
    rnd = random.Random(f"{plan.seed} {rid}")
    if rnd.random() >= plan.leave:
        return Leaving()
    if rnd.random() < 0.3:  # mostly while it waits or loads
        return Leaving(seconds=0.005 + 0.4 * rnd.random())
    return Leaving(tokens=rnd.randint(1, max(1, longest - 1)))


def command(plan: ServePlan, port: int) -> list[str]:
    """``vllm serve`` with what the plan says."""
    on = ["--enable-prefix-caching"] if plan.prefix_caching else ["--no-enable-prefix-caching"]
    on += ["--async-scheduling"] if plan.asynchronous else ["--no-async-scheduling"]
    if plan.connector is not None:
        on += ["--kv-transfer-config", json.dumps(transfer(plan))]
    if plan.speculative:
        on += ["--speculative-config", json.dumps(plan.speculative)]
    values = {
        "host": "127.0.0.1", "port": port, "served-model-name": "tiny", "dtype": "float32", "seed": 0,
        "max-model-len": plan.max_model_len, "num-gpu-blocks-override": plan.blocks + 1,
        "block-size": plan.block_size, "max-num-seqs": plan.max_num_seqs,
        "max-num-batched-tokens": plan.budget, "long-prefill-token-threshold": plan.chunk_cap,
        "scheduling-policy": plan.policy, "scheduler-cls": scheduler_class(plan),
    }  # fmt: skip
    flags = [x for k, v in values.items() for x in (f"--{k}", str(v))]
    model = str(model_folder())
    return [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model, "--enforce-eager", *flags, *on]


class Clients:
    """All requests of a plan against one server."""

    def __init__(self, plan: ServePlan, port: int) -> None:
        self.plan, self.base = plan, f"http://127.0.0.1:{port}"
        self.longest = min(plan.max_model_len, (plan.blocks - 1) * plan.block_size)  #: tokens of one request
        self.tokens: dict[str, list[int]] = {}
        self.finished: list[str] = []
        self.left: list[str] = []
        self.failed: dict[str, str] = {}

    def body(self, rid: str, prompt: list[int], n: int, **params: Any) -> dict[str, Any]:
        body = {
            "model": "tiny", "prompt": prompt, "max_tokens": n, "temperature": 0.0, "stream": True,
            "return_token_ids": True, "kv_transfer_params": params or None,
        }  # fmt: skip
        if structured(self.plan, rid):
            body["structured_outputs"] = {"regex": GRAMMAR}
        else:
            body["ignore_eos"] = True
        if self.plan.priorities > 1:
            body["priority"] = int("".join(filter(str.isdigit, rid))) % self.plan.priorities
        return body

    async def ask(self, http: Any, rid: str, body: dict[str, Any], leave: Leaving) -> None:
        """One streamed completion; its tokens go to ``tokens[rid]`` as they come."""
        got = self.tokens.setdefault(rid, [])
        headers = {"X-Request-Id": rid}

        async def stream() -> str:
            async with http.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
                if answer.status_code != 200:
                    return f"{answer.status_code} {(await answer.aread())[:200]!r}"
                async for line in answer.aiter_lines():
                    if not line.startswith("data: "):
                        continue
                    if line == "data: [DONE]":
                        return "done"
                    event = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        return str(event["error"])[:200]
                    got.extend(event["choices"][0].get("token_ids") or ())
                    if leave.tokens and len(got) >= leave.tokens:
                        return "left"
            return "the stream ended early"

        try:
            how = await asyncio.wait_for(stream(), leave.seconds or ANSWER)
        except TimeoutError:
            how = "left" if leave.seconds else f"no answer in {ANSWER:.0f} s"
        except Exception as exc:
            how = f"{type(exc).__name__}: {exc}"[:200]
        if how == "done":
            self.finished.append(rid)
        elif how == "left":
            self.left.append(rid)
        else:
            self.failed[rid] = how

    async def run(self) -> dict[str, Any]:
        import httpx

        plan, work = self.plan, prompts(self.plan)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=self.base, timeout=ANSWER, limits=limits) as http:
            if plan.warm and plan.connector is not None:
                for rid, prompt, _ in work:
                    await self.ask(http, f"w{rid}", self.body(f"w{rid}", prompt, 1, store=True), Leaving())
            warm_failed = dict(self.failed)
            self.tokens, self.finished, self.failed = {}, [], {}
            turn = asyncio.Semaphore(plan.clients)

            async def client(rid: str, prompt: list[int], n: int) -> None:
                async with turn:
                    leave = leaving(plan, rid, n)
                    if leave.tokens:  # still under way when its client goes, however late that is
                        n = max(n, min(n + MORE, self.longest - len(prompt)))
                    await self.ask(http, rid, self.body(rid, prompt, n, load=True), leave)

            t0 = time.monotonic()
            await asyncio.gather(*(client(*one) for one in work))
            seconds = time.monotonic() - t0
            idle = await self.idle(http)
            last = work[0]
            await self.ask(http, "again", self.body("again0", last[1], last[2]), Leaving())
            answered = self.tokens.pop("again", [])
            idle = idle and await self.idle(http)
        self.finished = [r for r in self.finished if r != "again"]
        return {
            "seconds": round(seconds, 1), "idle": idle, "answered": answered, "warm_failed": warm_failed,
            "asked": [r for r, _, _ in work], "finished": sorted(self.finished), "aborted": sorted(self.left),
            "failed": self.failed, "tokens": {r: self.tokens[r] for r in sorted(self.tokens)},
        }  # fmt: skip

    async def idle(self, http: Any) -> bool:
        """The server's own metrics say that nothing runs or waits and no block is in use."""
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        until = time.monotonic() + self.plan.idle
        while time.monotonic() < until:
            text = (await http.get("/metrics")).text
            values = [
                float(line.rsplit(" ", 1)[1])
                for line in text.splitlines()
                if line.partition("{")[0] in names and not line.startswith("#")
            ]
            if len(values) >= len(names) and not any(values):
                return True
            await asyncio.sleep(0.25)
        return False


def wait_up(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Until it accepts requests. Raises RuntimeError with the end of its log if it does not."""
    import httpx

    until = time.monotonic() + UP
    while time.monotonic() < until and server.poll() is None:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    raise RuntimeError(f"the server is not up:\n{log.read_text(errors='replace')[-4000:]}")


def stop(server: subprocess.Popen[bytes]) -> int | None:
    """Ask it to end, as a user would; its whole process group is killed if it does not. Its exit code."""
    server.send_signal(signal.SIGINT)
    try:
        server.wait(GONE)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    return server.returncode


def run(plan: ServePlan) -> dict[str, Any]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = dict(os.environ)
    env |= {
        # the worker stays in the scheduler's process, where the connector's store is
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "STALLPROOF_TRACE": plan.trace,
        "STALLPROOF_CPU_ASYNC": "1" if plan.asynchronous else "0", "STALLPROOF_STRICT": "1",
    }  # fmt: skip
    if not plan.trace:
        del env["STALLPROOF_TRACE"]
    log, t0 = Path(plan.log), time.monotonic()
    with log.open("wb") as out:
        server = subprocess.Popen(
            command(plan, port), env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            wait_up(server, port, log)
            start = time.monotonic() - t0
            result = asyncio.run(Clients(plan, port).run())
        finally:
            code = stop(server)
    return {"plan": asdict(plan), "start_seconds": round(start, 1), "exit": code, **result}


def main() -> int:
    raw: dict[str, Any] = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()}
    write(run(ServePlan(**values)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
