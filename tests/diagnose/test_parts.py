"""The readers and parsers, one by one."""

# ruff: noqa: E501 - log lines as they are
from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from stallproof.cli import main
from stallproof.diagnose import dump, kvevents, parse, run, stacks
from stallproof.diagnose.clock import Clock, seconds, show
from stallproof.diagnose.metrics import Scrapes
from stallproof.diagnose.observe import NAN, Ref
from stallproof.diagnose.prefix import Prefix
from stallproof.diagnose.reader import _py
from stallproof.diagnose.version import Version

from .lines import NUMBER, core, stats

LOGS = Path(__file__).parents[1] / "fixtures" / "logs" / "published"
SELF = LOGS / "26_stalled_self_preempt_never_readmitted.log"


def code(*args: str, stdin: bytes = b"") -> tuple[int, str, str]:
    p = subprocess.run(
        [sys.executable, "-m", "stallproof", *args], input=stdin, capture_output=True, check=False
    )
    return p.returncode, p.stdout.decode(), p.stderr.decode()


# ---------------------------------------------------------------- inputs


def test_coding_does_not_matter(tmp_path: Path) -> None:
    raw = SELF.read_bytes()
    (tmp_path / "a.gz").write_bytes(gzip.compress(raw[:900]) + gzip.compress(raw[900:]))
    z = zstandard.ZstdCompressor()
    (tmp_path / "a.zst").write_bytes(z.compress(raw[:900]) + z.compress(raw[900:]))
    want = [(i.verdict, i.t0, i.first.line) for e in run.diagnose([str(SELF)]).engines for i in e.intervals]
    for name in ("a.gz", "a.zst"):
        got = [
            (i.verdict, i.t0, i.first.line)
            for e in run.diagnose([str(tmp_path / name)]).engines
            for i in e.intervals
        ]
        assert got == want


def test_standard_input_and_json() -> None:
    p = subprocess.run(
        [sys.executable, "-m", "stallproof", "diagnose", "--json", "-"],
        input=gzip.compress(SELF.read_bytes()), capture_output=True, check=False,
    )  # fmt: skip
    data = json.loads(p.stdout)
    assert p.returncode == data["exit_code"] == 1
    assert data["schema"] == "stallproof-diagnose/1"
    assert data["engines"][0]["findings"][0]["mechanism"] == "self_preempt"
    assert not p.stderr


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("empty.log", b""),
        ("foreign.log", b"hello\n" * 50),
        ("binary.bin", bytes(range(256)) * 40),
        ("cut.gz", gzip.compress(b"x" * 100_000, mtime=0)[:20]),
        ("broken.zst", b"\x28\xb5\x2f\xfd" + b"\x00" * 40),
        ("cut.msgpack", b"\x93\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00\x93\x9a\xab\x42"),
        ("bad.trace", b'{"t":"header"}\n'),
    ],
)
def test_bad_input_is_one_clear_error(tmp_path: Path, name: str, data: bytes) -> None:
    p = tmp_path / name
    p.write_bytes(data)
    rc, out, err = code("diagnose", str(p))
    assert rc == 2
    assert name in err
    assert "remedy:" in err
    assert "Traceback" not in err + out


def test_missing_file_and_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for target in (tmp_path / "no.log", tmp_path):
        with pytest.raises(SystemExit) as e:
            main(["diagnose", str(target)])
        assert e.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_cut_archive_is_judged_and_said(tmp_path: Path) -> None:
    raw = SELF.read_bytes() * 300
    p = tmp_path / "cut.gz"
    p.write_bytes(gzip.compress(raw)[:-2000])
    report = run.diagnose([str(p)])
    assert report.verdict == "stalled"
    assert any("break" in n for n in report.notes)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    import tracemalloc

    def peak(n: int) -> int:
        p = tmp_path / f"{n}.log"
        with p.open("w") as f:
            for i in range(n):
                f.write(stats(i % 80000, i % 7, 3, 1, 30) + "\n")
                f.write(core(i % 80000, "async_llm.py:578", f"Added request cmpl-{i:032x}.") + "\n")
        tracemalloc.start()
        run.diagnose([str(p)])
        return tracemalloc.get_traced_memory()[1]

    small, large = peak(1_500), peak(9_000)
    tracemalloc.stop()
    assert large < small * 2


def test_filter_keeps_every_source_file_of_the_table() -> None:
    for name in (
        b"loggers metrics logger request_logger async_llm core scheduler block_pool shm_broadcast nixl_connector base_worker "
        b"mooncake_connector dump_input abstract executor_base multiproc_executor kv_cache_utils gpu_worker api_server "
        b"recompute_scheduler pool_scheduler pull_worker cumem"
    ).split():
        line = b"INFO [v1/x/" + name + b".py:12] text\n"
        assert _py(line, line.index(b".py:")), name


# ---------------------------------------------------------------- prefixes and clocks

TEXT = stats(36_610, 5, 1, 0, 2)


@pytest.mark.parametrize(
    "raw",
    [
        TEXT,
        "2026-07-14T17:10:10.758564289Z " + TEXT,
        "2026-07-14T17:10:10.758564289Z stdout F " + TEXT,
        "Jul 14 10:10:10 host docker[812]: " + TEXT,
        "vllm-1  | " + TEXT,
        "\x1b[36m(ServeReplica:app pid=812)\x1b[0m " + TEXT,
        "\x1b[1;36m" + TEXT + "\x1b[0m",
        json.dumps({"log": TEXT + "\n", "stream": "stderr", "time": "2026-07-14T17:10:10Z"}),
        json.dumps({"timestamp": "2026-07-14 10:10:10", "level": "INFO", "filename": "loggers.py", "lineno": 271,
                    "message": TEXT.split("] ", 1)[1]}),
        "node-3: " + TEXT + "\r",
        "[pod/vllm-0/engine] " + TEXT,
    ],
)  # fmt: skip
def test_wrappers(raw: str) -> None:
    line = Prefix().parse(raw.encode())
    s = parse.stats(line, lambda: Ref("x", 1))
    assert s is not None
    assert (s.gen, s.running, s.kv) == (5.0, 1, 2.0)
    assert show(line.t) == "07-14 10:10:10"
    assert line.lineno == NUMBER["0.23.0"]


@pytest.mark.parametrize(
    ("raw", "engine", "pid"),
    [
        ("(EngineCore_DP3 pid=99) INFO 07-14 10:00:00 [core.py:1] x", 3, 99),
        ("(EngineCore pid=99) INFO 07-14 10:00:00 [core.py:1] x", 0, 99),
        ("(EngineCore_1 pid=99) INFO 07-14 10:00:00 [core.py:1] x", 1, 99),
        ("(Worker_DP1_TP7_EP15 pid=5) INFO 07-14 10:00:00 [gpu_worker.py:1] x", 1, 5),
        ("(VllmWorker rank=6 pid=8) INFO 07-14 10:00:00 [gpu_worker.py:1] x", -1, 8),
        ("(APIServer pid=7) INFO 07-14 10:00:00 [api_server.py:1] x", -1, 7),
    ],
)
def test_process_tags(raw: str, engine: int, pid: int) -> None:
    line = Prefix().parse(raw.encode())
    assert (line.engine, line.pid) == (engine, pid)


def test_v0_prefix() -> None:
    line = Prefix().parse(b"INFO 04-14 08:14:17 metrics.py:488] Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 9.5 "
                          b"tokens/s, Running: 2 reqs, Swapped: 1 reqs, Pending: 4 reqs, GPU KV cache usage: 3.1%, CPU KV cache usage: 0.0%.")  # fmt: skip
    s = parse.stats(line, lambda: Ref("x", 1))
    assert s is not None
    assert s.legacy
    assert (s.running, s.waiting, s.kv) == (2, 5, 3.1)


@pytest.mark.parametrize(
    ("a", "b", "apart"),
    [
        ((12, 31, 23, 59, 50), (1, 1, 0, 0, 10), 20),
        ((0, 0, 23, 59, 50), (0, 0, 0, 0, 10), 20),
        ((2, 28, 23, 59, 50), (3, 1, 0, 0, 10), 20),
        ((2, 29, 23, 59, 50), (3, 1, 0, 0, 10), 20),
        ((7, 14, 10, 0, 30), (7, 14, 9, 0, 0), 0),
        ((7, 14, 10, 0, 0), (7, 14, 10, 0, 10), 10),
    ],
)
def test_clock(a: tuple[int, ...], b: tuple[int, ...], apart: float) -> None:
    c = Clock()
    first = c(seconds(*a))
    assert c(seconds(*b)) - first == apart


def test_foreign_clocks_are_never_merged(tmp_path: Path) -> None:
    """A library in another zone writes hours later or earlier: no duration comes from that."""
    p = tmp_path / "x.log"
    foreign = ["[2025-07-14 08:00:20,557] LMCache INFO: Reqid: x (cache.py:88:lmcache.v1)",
               "E0714 08:00:21.801054 812 rdma_endpoint.cpp:190] handshake timeout",
               "2026-07-14 08:00:22 | INFO | router.py:12 | Sending prefill request"]  # fmt: skip
    p.write_text("\n".join([stats(10, 90, 4, 0, 30), foreign[0], stats(20, 0, 4, 0, 30),
                            core(21, "async_llm.py:578", "Added request r9."), *foreign]))  # fmt: skip
    report = run.diagnose([str(p)])
    assert report.verdict == "cannot tell"
    assert show(report.engines[0].intervals[-1].t1) <= "07-14 00:00:21"


def test_wrapper_offset_is_found() -> None:
    report = run.diagnose([str(LOGS / "40_degraded_kv99_waiting_grows.log")])
    assert any("+7.0 h" in n for n in report.notes)


# ---------------------------------------------------------------- versions


@pytest.mark.parametrize(("version", "number"), list(NUMBER.items()))
def test_version_from_the_line(version: str, number: int) -> None:
    v = Version()
    v.line(number)
    want = tuple(int(x) for x in version.split("."))
    assert v.overlaps(want, want)  # type: ignore[arg-type]
    assert v.known


def test_unknown_stays_unknown() -> None:
    v = Version()
    v.line(4711)
    assert str(v) == "unknown"
    assert v.at_least(0, 20) is None


def test_contradictions_are_said() -> None:
    v = Version()
    v.line(118)
    v.line(335)
    assert any("contradicts" in w for w in v.why)


# ---------------------------------------------------------------- dumps

NEW = "NewRequestData(req_id={},prompt_token_ids_len={},mm_features=[],block_ids={},num_computed_tokens={},lora_request=None)"


def test_dump_0_9_list() -> None:
    text = (
        "SchedulerOutput(scheduled_new_reqs=[], scheduled_cached_reqs=[CachedRequestData(req_id='chatcmpl-a', resumed_from_preemption=false, "
        "new_token_ids=[785], new_block_ids=[[12, 13]], num_computed_tokens=540)], num_scheduled_tokens={chatcmpl-a: 1}, "
        "total_num_scheduled_tokens=1, scheduled_spec_decode_tokens={}, num_common_prefix_blocks=[2], finished_req_ids=['x'], "
        "structured_output_request_ids={}, grammar_bitmask=null, kv_connector_metadata=null)"
    )
    d = dump.parse(text)
    assert d.shape == "0.9 list"
    assert [(r.id, r.computed, r.blocks, r.scheduled, r.exact) for r in d.requests] == [
        ("chatcmpl-a", 540, [[12, 13]], 1, False)
    ]
    assert d.finished == ["x"]


def test_dump_0_12_set_and_groups() -> None:
    text = (
        f"SchedulerOutput(scheduled_new_reqs=[{NEW.format('cmpl-1-0-ab', 40, '([3, 4], [9])', 0)}], scheduled_cached_reqs="
        "CachedRequestData(req_ids=['b', 'c'],resumed_req_ids={'c'},new_token_ids_lens=[],all_token_ids_lens={},new_block_ids=[None, ([5], [6])],"
        "num_computed_tokens=[7, 8],num_output_tokens=[1, 2]), num_scheduled_tokens={cmpl-1-0-ab: 40, b: 1, c: 1}, total_num_scheduled_tokens=42, "
        "preempted_req_ids=[], finished_req_ids=[], free_encoder_mm_hashes=[], x=<Enum.A: 1>)"
    )
    d = dump.parse(text)
    assert d.scheduled_tokens == 42
    assert not d.cut
    by = {r.id: r for r in d.requests}
    assert by["cmpl-1-0-ab"].blocks == [[3, 4], [9]]
    assert by["cmpl-1-0-ab"].exact
    assert by["c"].resumed
    assert by["b"].blocks == []


def test_dump_cut_anywhere() -> None:
    text = f"SchedulerOutput(scheduled_new_reqs=[{NEW.format('q', 40, '([3, 4],)', 0)}], num_scheduled_tokens={{q: 40}}, total_num_scheduled_tokens=40)"
    whole = dump.parse(text)
    assert not whole.cut
    for i in range(len(text)):
        assert dump.parse(text[:i]).scheduled_tokens in (0, 4, 40)  # a number may be cut as well
    dump.parse("SchedulerOutput(" + "(" * 5000)


# ---------------------------------------------------------------- stacks

IDLE_STACK = """Process 26842: VLLM::EngineCore
Python v3.11.7 (/usr/bin/python3.11)

Thread 26842 (idle): "MainThread"
    Condition.wait (threading.py:327)
    Queue.get (queue.py:171)
    EngineCoreProc._process_input_queue (vllm/v1/engine/core.py:1588)
    EngineCoreProc.run_busy_loop (vllm/v1/engine/core.py:1551)
"""
HUNG_STACK = """Process 11: VLLM::EngineCore
Thread 11 (active): "MainThread"
    acquire_read (vllm/distributed/device_communicators/shm_broadcast.py:459)
    dequeue (vllm/distributed/device_communicators/shm_broadcast.py:530)
    get_response (vllm/v1/executor/multiproc_executor.py:230)
    step (vllm/v1/engine/core.py:290)
    run_busy_loop (vllm/v1/engine/core.py:700)
"""


def states(text: str) -> list[str]:
    s = stacks.Stacks()
    out = []
    for n, line in enumerate(text.splitlines(), 1):
        head, done = s.header(line, Ref("x", n))
        if not head:
            _, done = s.frame(line, Ref("x", n))
        out += [done.state] if done else []
    last = s.flush()
    return out + ([last.state] if last else [])


def test_stack_states() -> None:
    assert states(IDLE_STACK) == ["idle"]
    assert states(HUNG_STACK) == ["worker_wait"]
    start = """Thread 2403 (active)
    sample_tokens (vllm/v1/worker/gpu_worker.py:1105)
    compile_or_warm_up_model (vllm/v1/worker/gpu_worker.py:866)
    collective_rpc (vllm/v1/executor/uniproc_executor.py:103)
    _initialize_kv_caches (vllm/v1/engine/core.py:345)
    run_engine_core (vllm/v1/engine/core.py:900)"""
    assert states(start) == ["startup"]
    fault = 'Thread 0x7f (most recent call first):\n  File "/x/vllm/v1/engine/core.py", line 9 in execute_dummy_batch\n  File "/x/vllm/v1/engine/core.py", line 8 in run_busy_loop\n'
    assert states(fault) == ["dummy"]


@pytest.mark.parametrize(
    ("stack", "verdict"), [(IDLE_STACK, "idle or paused"), (HUNG_STACK, "stalled"), ("", "cannot tell")]
)
def test_a_stack_decides_what_a_record_cannot(tmp_path: Path, stack: str, verdict: str) -> None:
    """The twins: the same record, told apart by the stack."""
    log = "\n".join([stats(10, 90, 4, 0, 30), stats(20, 0, 4, 0, 30)])
    for name, texts in (("one", [log + "\n" + stack]), ("two", [log, stack])):
        paths = []
        for i, t in enumerate(texts):
            if t:
                p = tmp_path / f"{name}{i}.txt"
                p.write_text(t + "\n")
                paths.append(str(p))
        assert run.diagnose(paths).verdict == verdict, name


# ---------------------------------------------------------------- metrics


def test_two_scrapes_in_one_file(tmp_path: Path) -> None:
    def scrape(t: int, tokens: int, running: int, waiting: int, deferred: int) -> str:
        e = '{engine="0",model_name="m"}'
        r = '{engine="0",model_name="m",reason="%s"}'
        return (
            f"vllm:scraped_at {t}\nvllm:num_requests_running{e} {running}\nvllm:num_requests_waiting{e} {waiting}\n"
            f"vllm:num_requests_waiting_by_reason{r % 'capacity'} {waiting - deferred}\n"
            f"vllm:num_requests_waiting_by_reason{r % 'deferred'} {deferred}\nvllm:kv_cache_usage_perc{e} 0.0\n"
            f"vllm:generation_tokens_total{e} {tokens}\n"
        )

    def judged(*scrapes: str) -> tuple[str, int]:
        p = tmp_path / "m.txt"
        p.write_text("".join(scrapes))
        r = run.diagnose([str(p)])
        return r.verdict, int(run.exit_code(r))

    assert judged(scrape(100, 5, 0, 6, 0)) == ("cannot tell", 2)
    assert judged(scrape(100, 5, 0, 6, 0), scrape(105, 5, 0, 6, 0)) == ("cannot tell", 2)
    assert judged(*(scrape(100 + 30 * i, 5, 0, 6, 0) for i in range(4))) == ("stalled", 1)
    assert judged(*(scrape(100 + 30 * i, 5 + i, 0, 6, 0) for i in range(4))) == ("progressing", 0)
    assert judged(*(scrape(100 + 30 * i, 5, 0, 6, 5) for i in range(4))) == ("cannot tell", 2)
    assert judged(*(scrape(100 + 300 * i, 5, 0, 6, 5) for i in range(4))) == ("stalled", 1)
    assert judged(*(scrape(100 + 30 * i, 5, 0, 0, 0) for i in range(4))) == ("idle or paused", 0)


def test_broken_samples_are_ignored() -> None:
    s = Scrapes()
    for text in (
        "vllm:",
        "vllm:x{",
        'vllm:x{engine="a"} 1',
        "vllm:x 1e",
        "vllm:x NaN",
        'vllm:x{engine="0"} 3',
    ):
        s.feed(text, Ref("x", 1), NAN)
    assert [c.values for c in s.flush()] == [{"x": 3.0}]


# ---------------------------------------------------------------- KV events


def test_both_layouts() -> None:
    sample = json.loads((LOGS / "kv_events_samples.json").read_text())
    for key, layout in (("array_layout_up_to_0.23", "array"), ("map_layout_from_0.25.1", "map")):
        raw = bytes.fromhex(sample[key])
        for cut in (1, 7, len(raw)):
            stream = io.BytesIO(raw * 3)
            got = list(kvevents.batches(iter(lambda s=stream, n=cut: s.read(n), b"")))
            assert [(b.stored, b.removed, b.cleared, b.layout[:3]) for b in got] == [
                (1, 1, 1, layout[:3])
            ] * 3
    frame = b"\x93\xc4\x02kv\xc4\x08" + (7).to_bytes(8, "big") + b"\xc4" + bytes([len(raw)]) + raw
    assert [b.seq for b in kvevents.batches(iter([frame]))] == [7]
    assert isinstance(list(kvevents.batches(iter([raw + raw[:20]])))[-1], str)


def test_kv_event_sample_file() -> None:
    report = run.diagnose([str(LOGS / "kv_events_samples.json")])
    assert report.verdict == "cannot tell"
    assert "ownership" in report.notes[0]


# ---------------------------------------------------------------- our own traces

TRACES = LOGS.parents[1] / "traces"


@pytest.mark.parametrize(
    ("name", "verdict", "mechanism"),
    [
        ("wedge-0.23.0.jsonl", "stalled", "wedge"),
        ("cascade-0.28.0.jsonl", "stalled", "livelock"),
        ("cascade-0.32.0-ok.jsonl", "idle or paused", ""),
        ("starvation-0.23.0-ok.jsonl", "idle or paused", ""),
    ],
)
def test_own_traces(tmp_path: Path, name: str, verdict: str, mechanism: str) -> None:
    raw = (TRACES / name).read_bytes()
    z = tmp_path / "t.jsonl.zst"
    z.write_bytes(zstandard.compress(raw))
    for path in (TRACES / name, z):
        report = run.diagnose([str(path)])
        found = [f for e in report.engines for f in e.findings]
        assert report.verdict == verdict
        assert [f.mechanism for f in found] == ([mechanism] if mechanism else [])
        assert all(f.tier == "A" for f in found)


def test_own_trace_cut_before_the_stall_is_no_stall(tmp_path: Path) -> None:
    lines = (TRACES / "wedge-0.23.0.jsonl").read_bytes().splitlines(keepends=True)
    for n in range(1, 24):
        p = tmp_path / "t.jsonl"
        p.write_bytes(b"".join(lines[:n]) + lines[n][:9])
        assert run.diagnose([str(p)]).verdict != "stalled"


def own(tmp_path: Path, raw: bytes) -> tuple[str, list[str]]:
    """Verdict and notes on a trace."""
    p = tmp_path / "t.jsonl"
    p.write_bytes(raw)
    report = run.diagnose([str(p)])
    return report.verdict, report.notes


def test_own_trace_without_a_call_tells_nothing(tmp_path: Path) -> None:
    lines = (TRACES / "cascade-0.32.0-ok.jsonl").read_bytes().splitlines(keepends=True)
    for raw in (lines[0], lines[0] + lines[1], lines[0] + lines[1][:9]):
        verdict, notes = own(tmp_path, raw)
        assert verdict == "cannot tell"
        assert len(notes) == 1
        assert "judged up to here" in notes[0]
    done, out, _ = code("diagnose", str(tmp_path / "t.jsonl"))
    assert done == 2
    assert "no scheduling call" in out
    assert own(tmp_path, lines[0] + b'{"t":"end","n":1}\n') == ("idle or paused", []), "it ended idle"


def test_own_trace_that_is_cut_is_judged_by_what_is_there_and_says_so(tmp_path: Path) -> None:
    lines = (TRACES / "cascade-0.32.0-ok.jsonl").read_bytes().splitlines(keepends=True)
    verdict, notes = own(tmp_path, b"".join(lines[:12]))
    assert verdict == "progressing"
    assert "t.jsonl:12: no end record" in notes[0]
    verdict, notes = own(tmp_path, b"".join(lines[:12]) + lines[12][:9])
    assert verdict == "progressing"
    assert "t.jsonl:13: the trace is cut within this record" in notes[0]
    assert own(tmp_path, b"".join(lines))[1] == [], "one that is whole says nothing"


# ---------------------------------------------------------------- privacy


def test_prompts_are_never_quoted(tmp_path: Path) -> None:
    p = tmp_path / "x.log"
    secret = "my secret words"
    p.write_text("\n".join([
        stats(10, 30, 2, 0, 40), stats(20, 0, 2, 0, 40),
        core(30, "logger.py:42", f"Received request cmpl-1: prompt: '{secret}', params: SamplingParams(n=1), prompt_token_ids: [1, 2], lora_request: None."),
        core(400, "logger.py:42", f"Received request cmpl-2: prompt: '{secret}', params: x"),
    ]))  # fmt: skip
    for args in (["-v"], ["--json"], []):
        _, out, err = code("diagnose", *args, str(p))
        assert "cmpl-1" in out or not args
        assert secret not in out + err
