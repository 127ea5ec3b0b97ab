"""Live rules: time lines of a server, as tables; the probe's contract; and a real server (marker ``engine``)."""

# ruff: noqa: E501 - log lines as they are
from __future__ import annotations

import contextlib
import io
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallproof.cli import main
from stallproof.diagnose import watch

STALL, PROG, IDLE, UNK = "stalled", "progressing", "idle or paused", "cannot tell"


def page(
    tokens: int, running: int, waiting: int, deferred: int = 0, kv: float = 0.0, *, queries: int = 0, awake: int = 1,
    fetch: tuple[int, int, int] | None = None, nixl: int = 0, by_reason: bool = True, engine: int = 0,
    cpu: float | None = None, fds: int = 40,
) -> str:  # fmt: skip
    def g(name: str, value: float, label: str = "") -> str:
        return f'vllm:{name}{{engine="{engine}",model_name="m"{label}}} {value}'

    out = [
        g("num_requests_running", running), g("num_requests_waiting", waiting), g("kv_cache_usage_perc", kv),
        g("generation_tokens_total", tokens), g("prompt_tokens_total", tokens), g("iteration_tokens_total_count", tokens),
        g("prefix_cache_queries_total", queries), g("engine_sleep_state", awake, ',sleep_state="awake"'),
        g("nixl_num_successful_transfers_total", nixl),
    ]  # fmt: skip
    if by_reason:
        out += [g("num_requests_waiting_by_reason", waiting - deferred, ',reason="capacity"'),
                g("num_requests_waiting_by_reason", deferred, ',reason="deferred"')]  # fmt: skip
    for stage, n in zip(("waiting_to_start", "in_progress", "completed_waiting"), fetch or (), strict=False):
        out.append(g("num_requests_kv_fetch_by_stage", n, f',stage="{stage}"'))
    if cpu is not None:
        out += [f"process_cpu_seconds_total {cpu}", f"process_open_fds {fds}"]
    return "\n".join(out) + "\n"


def run_line(pages: list[str], step: float = 10.0, **limits: float) -> list[str]:
    state, out = watch.State(), []
    for i, p in enumerate(pages):
        (c,) = watch.scrape(p)
        out.append(watch.look(c, state, 1000 + i * step, watch.Limits(**limits)).verdict)
    return out


TIMELINES = [
    ("idle for ever", [page(9, 0, 0)] * 50, IDLE),
    ("busy", [page(9 * i, 4, 2, kv=0.4) for i in range(20)], PROG),
    ("saturated, one poll between two batches", [page(900, 3, 17, kv=0.9), page(990, 0, 17), page(1200, 3, 14, kv=0.7)], PROG),
    ("between two batches, then a step longer than the interval", [page(900, 3, 17, kv=0.9)] + [page(990, 0, 17)] * 8, UNK),
    ("long prefill, KV grows", [page(9, 1, 0, kv=0.1 + 0.01 * i) for i in range(60)], PROG),
    ("long step below the bound", [page(9, 1, 0, kv=0.1)] * 12, UNK),
    ("asleep with requests", [page(9, 2, 0, awake=0)] * 60, IDLE),
    ("restart of the server", [page(900, 1, 0, kv=0.1), page(0, 0, 0), page(5, 1, 0, kv=0.1)], PROG),
    ("head never fits, retried (up to 0.25.1)", [page(9, 1, 1, kv=0.4), page(12, 0, 1, queries=5), page(12, 0, 1, queries=90)], STALL),
    ("head never fits, steps go on", [page(12, 0, 1, cpu=i) for i in range(3)], STALL),
    ("a long step, the API server rests", [page(12, 0, 1, cpu=5 + i / 100) for i in range(9)], UNK),
    ("a long step, requests arrive", [page(12, 0, 1, cpu=i, fds=40 + i) for i in range(9)], UNK),
    ("head never fits, a request arrives", [page(12, 0, 1), page(12, 0, 2), page(12, 0, 2)], STALL),
    ("head never fits, nothing arrives, below the bound", [page(12, 0, 1)] * 5, UNK),
    ("head never fits, nothing arrives, past the bound", [page(12, 0, 1)] * 15, STALL),
    ("fetched behind a refused head", [page(12, 0, 3, 2, 0.6, fetch=(0, 0, 2)), page(12, 0, 4, 2, 0.6, fetch=(0, 0, 2)),
                                       page(12, 0, 4, 2, 0.6, fetch=(0, 0, 2))], STALL),
    ("loads parked", [page(12, 0, 3, 2, 0.6)] * 20, UNK),
    ("loads parked past the deadline", [page(12, 0, 3, 2, 0.6)] * 63, STALL),
    ("transfers move", [page(12, 0, 3, 3, 0.6, nixl=i) for i in range(90)], PROG),
    ("blocks held by sends", [page(12, 0, 3, 0, 0.6, queries=i) for i in range(20)], UNK),
    ("hang below the bound", [page(12, 4, 3, 0, 0.6)] * 12, UNK),
    ("hang past the bound", [page(12, 4, 3, 0, 0.6)] * 14, STALL),
    ("old release, waiting only", [page(12, 0, 3, by_reason=False)] * 30, UNK),
]  # fmt: skip


@pytest.mark.parametrize(("name", "pages", "last"), TIMELINES, ids=[t[0] for t in TIMELINES])
def test_timeline(name: str, pages: list[str], last: str) -> None:
    verdicts = run_line(pages)
    assert verdicts[-1] == last, verdicts
    if last != STALL:
        assert STALL not in verdicts


def test_decidable_stall_within_two_intervals() -> None:
    """The head is refused from the second page on: confirmed at the page after, and no bound is needed."""
    assert run_line([page(9, 1, 1, kv=0.4), page(12, 0, 1, queries=5), page(12, 0, 1, queries=90)])[1:] == [
        PROG,
        STALL,
    ]


def test_no_bound_no_hang() -> None:
    """The guard can fail: with the bound removed the long prefill without KV growth would be a false alarm."""
    pages = [page(9, 1, 0, kv=0.1)] * 4
    assert STALL not in run_line(pages)
    assert STALL in run_line(pages, bound=0.0)


def test_a_paused_host_is_not_a_stall() -> None:
    """One long gap between polls counts for at most a minute."""
    assert STALL not in run_line([page(9, 1, 0, kv=0.1)] * 2, step=100_000.0)


calm = st.builds(
    page, st.integers(0, 5), st.integers(0, 3), st.integers(0, 3), st.integers(0, 0), st.sampled_from((0.0, 0.2, 0.5)),
    queries=st.integers(0, 9), awake=st.integers(0, 1),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(calm, max_size=12), st.lists(st.just(page(9, 0, 0)), min_size=1, max_size=5))
def test_an_idle_end_is_never_stalled(before: list[str], idle: list[str]) -> None:
    assert run_line(before + idle)[-1] != STALL


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=400) | calm.map(str.encode))
def test_any_answer(raw: bytes) -> None:
    for c in watch.scrape(raw.decode("utf-8", "replace")):
        watch.look(c, watch.State(), 1.0, watch.Limits())


# ---------------------------------------------------------------- the command


class Server:
    def __init__(self) -> None:
        self.body, self.status, self.paused = "", 200, False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = self.path in ("/metrics", "/is_paused")
                self.send_response(outer.status if known else 404)
                self.end_headers()
                body = outer.body if self.path == "/metrics" else json.dumps({"is_paused": outer.paused})
                self.wfile.write(body.encode())

            def log_message(self, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}/metrics"


@pytest.fixture
def server() -> Iterator[Server]:
    s = Server()
    yield s
    s.http.shutdown()
    s.http.server_close()


def cli(*args: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as e:
        main(["watch", "--timeout", "30", *args])
    return int(e.value.code or 0), out.getvalue(), err.getvalue()


def test_probe_confirms_only_a_stall(server: Server, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    probe = ("--metrics", server.url, "--probe", "--state", str(state))
    for body in (page(9, 1, 1, kv=0.4), page(12, 0, 1, queries=5)):
        server.body = body
        assert cli(*probe)[0] == 0
    server.body = page(12, 0, 1, queries=90)
    rc, out, _ = cli(*probe, "--json")
    assert rc == 1
    line = json.loads(out)
    assert line["verdict"] == STALL
    assert line["finding"]["promise"] == "Feasible"
    server.paused = True
    assert cli(*probe)[0] == 0
    server.paused = False
    assert cli(*probe)[0] == 1
    server.body = page(40, 1, 0, kv=0.1)
    assert cli(*probe)[0] == 0


@pytest.mark.parametrize("trouble", ["refused", "500", "html", "state cut", "state foreign", "state folder"])
def test_probe_trouble_is_never_a_restart(server: Server, tmp_path: Path, trouble: str) -> None:
    state, url = tmp_path / "s.json", server.url
    server.body = page(12, 0, 1, queries=90)
    if trouble == "refused":
        url = "http://127.0.0.1:9/metrics"
    elif trouble == "500":
        server.status = 500
    elif trouble == "html":
        server.body = "<html>"
    elif trouble == "state cut":
        state.write_text('{"schema": "stallproof-wa')
    elif trouble == "state foreign":
        state.write_text('{"a": 1}')
    else:
        state = tmp_path
    for _ in range(4):
        rc, out, err = cli("--metrics", url, "--probe", "--state", str(state))
        # a state file that is repaired by the first call lets the stall be confirmed afterwards
        assert rc == 0 or trouble in ("state cut", "state foreign")
        assert "Traceback" not in out + err
        if trouble in ("refused", "500", "html"):
            assert "cannot tell" in err


@pytest.mark.parametrize("where", ["pipe", "/", "folder"])
def test_the_state_replaces_no_device_and_leaves_nothing_behind(
    server: Server, tmp_path: Path, where: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    server.body = page(5, 1, 0)
    rc, _, err = cli("--metrics", server.url, "--probe", "--state", str(tmp_path / where))
    assert rc == 0
    assert "cannot be written" in err
    assert (tmp_path / "pipe").is_fifo()
    assert {p.name for p in tmp_path.iterdir()} == {"pipe", "folder"}


def test_watch_prints_json_lines(server: Server) -> None:
    server.body = page(9, 0, 0) + page(9, 0, 0, engine=1)
    rc, out, _ = cli("--metrics", server.url, "--interval", "0.2", "--polls", "2", "--json")
    assert rc == 0
    assert [json.loads(x)["engine"] for x in out.splitlines()] == [0, 1, 0, 1]


def test_watch_without_a_server_cannot_tell() -> None:
    rc, _, err = cli("--metrics", "http://127.0.0.1:9/metrics", "--interval", "0.2", "--polls", "1")
    assert rc == 2
    assert "127.0.0.1:9" in err
