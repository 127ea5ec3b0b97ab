"""Log lines in the format of each release, for tests (formats: vLLM v1/metrics/loggers.py and the table in docs)."""

# ruff: noqa: E501 - log lines as they are
from __future__ import annotations

NUMBER = {
    "0.8.3": 87, "0.9.2": 118, "0.10.1": 123, "0.11.0": 127, "0.12.0": 236, "0.16.0": 259, "0.21.0": 271, "0.23.0": 271,
    "0.25.1": 273, "0.28.0": 310, "0.30.0": 315, "0.31.0": 320, "0.32.0": 335,
}  # fmt: skip


def at(t: float, day: str = "07-14") -> str:
    t = int(t)
    return f"{day} {t // 3600:02d}:{t // 60 % 60:02d}:{t % 60:02d}"


def stats(
    t: float, gen: float = 0.0, running: int = 0, waiting: int = 0, kv: float = 0.0, *, prompt: float = 0.0,
    version: str = "0.23.0", deferred: int = 0, fetch: tuple[int, int, int] | None = None, preempt: int = 0,
    hit: float = 12.5, ext: float | None = None, engine: int = 0, level: str = "INFO", day: str = "07-14",
) -> str:  # fmt: skip
    parts = [
        f"Avg prompt throughput: {prompt:.1f} tokens/s", f"Avg generation throughput: {gen:.1f} tokens/s",
        f"Running: {running} reqs", f"Waiting: {waiting} reqs",
    ]  # fmt: skip
    if deferred:
        parts.append(f"Deferred: {deferred} reqs")
    if fetch:
        parts.append("KV fetch: {} waiting to start, {} in progress, {} completed waiting".format(*fetch))
    if preempt:
        parts.append(f"Preemptions: {preempt}")
    parts.append(f"GPU KV cache usage: {kv:.1f}%")
    parts.append(f"Prefix cache hit rate: {hit:.1f}%")
    if ext is not None:
        parts.append(f"External prefix cache hit rate: {ext:.1f}%")
    return (
        f"(APIServer pid=7) {level} {at(t, day)} [loggers.py:{NUMBER[version]}] Engine {engine:03d}: "
        + ", ".join(parts)
    )


def core(
    t: float,
    file: str,
    text: str,
    level: str = "INFO",
    tag: str = "EngineCore_DP0 pid=41",
    day: str = "07-14",
) -> str:
    return f"({tag}) {level} {at(t, day)} [{file}] {text}"


def api(t: float, file: str, text: str, level: str = "INFO") -> str:
    return core(t, file, text, level, "APIServer pid=7")


SHM = (
    "No available shared memory broadcast block found in 60 seconds. This typically happens when some processes are "
    "hanging or doing some time-consuming work (e.g. compilation, weight/kv cache quantization)."
)
