"""Every reader of foreign bytes: mutated real files give an answer or one of our errors, nothing else.

What once broke a reader is kept in ``corpus/<reader>/`` and read first.
"""

from __future__ import annotations

import ast
import io
import os
import re
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stallproof import scenario
from stallproof.core.stall_watch import parse
from stallproof.diagnose import run as diagnose
from stallproof.errors import StallproofError
from stallproof.report import findings, perfetto, tracepage
from stallproof.simulate import retrace, workload
from stallproof.trace.reader import records

#: examples of each property; more by STALLPROOF_FUZZ=2000
MANY = int(os.environ.get("STALLPROOF_FUZZ", "30"))
ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).with_name("corpus")
MOONCAKE = b"".join(
    b'{"timestamp": %d, "input_length": %d, "output_length": 9, "hash_ids": [1, %d]}\n' % (i * 10, 600 + i, i)
    for i in range(20)
)
AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n" + b"".join(
    b"2023-11-16 18:17:%02d.9799600,%d,%d\n" % (i, 300 + i, 10 + i) for i in range(20)
)


def read_trace(path: Path) -> None:
    list(islice(records(path), 5000))


def draw_trace(path: Path) -> None:
    verdict, marks = findings.judge([str(path)])
    drawn = tracepage.draw(records(path))
    tracepage.page(drawn, marks, verdict=verdict).write(io.StringIO())
    perfetto.write(drawn, io.StringIO(), marks)


def read_workload(path: Path) -> None:
    readers: dict[str, Callable] = {
        "mooncake": workload.mooncake, "azure": workload.azure, "trace": retrace.from_trace,
    }  # fmt: skip
    kind = workload.detect(path)
    if kind in readers:
        workload.select(islice(readers[kind](path), 1000))


def read_logs(path: Path) -> None:
    diagnose.diagnose((str(path),))


def read_stall_line(path: Path) -> None:
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        parse(line)


def seeds(pattern: str, most: int = 20_000) -> list[bytes]:
    return [p.read_bytes()[:most] for p in sorted(ROOT.glob(pattern))][:6]


TRACES = seeds("tests/fixtures/traces/*.jsonl")
TARGETS: dict[str, tuple[Callable[[Path], None], list[bytes], str]] = {
    "trace": (read_trace, TRACES, "x.jsonl"),
    "page": (draw_trace, TRACES, "x.jsonl"),
    "scenario": (lambda p: scenario.load(p), seeds("tests/scenarios/*.toml"), "x.toml"),
    "workload": (read_workload, [MOONCAKE, AZURE, *TRACES[:1]], "x.dat"),
    "logs": (read_logs, seeds("tests/fixtures/logs/*/*.log", 6000), "x.log"),
    "stall_line": (
        read_stall_line,
        [b'WARNING STALLPROOF STALL {"v":1,"event":"stall","waiters":[{"r":"a"}]}\n'],
        "x.log",
    ),
}

HUGE = [b"99999999999999999999999", b"-1", b"1e999", b"NaN", b"null", b'""', b"[]", b"{}", b"-0", b"true"]
edit = st.one_of(
    st.tuples(st.just("cut"), st.integers(0, 1 << 15)),
    st.tuples(st.just("flip"), st.integers(0, 1 << 15), st.integers(0, 255)),
    st.tuples(st.just("insert"), st.integers(0, 1 << 15), st.binary(max_size=12)),
    st.tuples(st.just("drop_line"), st.integers(0, 200)),
    st.tuples(st.just("double_line"), st.integers(0, 200)),
    st.tuples(st.just("swap_lines"), st.integers(0, 200), st.integers(0, 200)),
    st.tuples(st.just("number"), st.integers(0, 400), st.sampled_from(HUGE)),
    st.tuples(
        st.just("string"), st.integers(0, 400), st.sampled_from([b"x" * 5000, b"\\u0000", b"\xff\xfe"])
    ),
    st.tuples(st.just("deepen"), st.integers(0, 400), st.just(b"")),
)


def mutated(data: bytes, edits: list[tuple]) -> bytes:
    for kind, *args in edits:
        if kind == "cut":
            data = data[: args[0]]
        elif not data and kind != "insert":
            continue
        elif kind == "flip":
            at = args[0] % len(data)
            data = data[:at] + bytes([args[1]]) + data[at + 1 :]
        elif kind == "insert":
            at = args[0] % (len(data) + 1)
            data = data[:at] + args[1] + data[at:]
        elif kind.endswith(("line", "lines")):
            lines = data.split(b"\n")
            i = args[0] % len(lines)
            if kind == "drop_line":
                del lines[i]
            elif kind == "double_line":
                lines.insert(i, lines[i])
            else:
                j = args[1] % len(lines)
                lines[i], lines[j] = lines[j], lines[i]
            data = b"\n".join(lines)
        else:
            what = {"number": rb"-?\d+(?:\.\d+)?", "string": rb'"[^"\n]*"', "deepen": rb"\[[^\[\]\n]*\]"}[
                kind
            ]
            found = list(re.finditer(what, data))
            if found:
                m = found[args[0] % len(found)]
                new = {
                    "number": args[1],
                    "string": b'"' + args[1] + b'"',
                    "deepen": b"[" * 3000 + b"]" * 3000,
                }
                data = data[: m.start()] + new[kind] + data[m.end() :]
    return data


def attempt(name: str, data: bytes, folder: Path) -> None:
    target, _, file = TARGETS[name]
    path = folder / file
    path.write_bytes(data)
    try:
        target(path)
    except StallproofError as exc:
        said = str(exc)
    else:
        said = "an answer"
    assert said.strip()


@pytest.mark.parametrize("name", TARGETS)
def test_control_the_seeds_are_read(name: str, tmp_path: Path) -> None:
    target, data, file = TARGETS[name]
    read = 0
    for one in data:
        (tmp_path / file).write_bytes(one[: one.rfind(b"\n") + 1])
        try:
            target(tmp_path / file)
        except StallproofError:  # the first kilobytes of a log may hold nothing yet
            continue
        read += 1
    assert read >= max(1, len(data) - 2)


KEPT = sorted(p for p in CORPUS.glob("*/*") if p.is_file())


@pytest.mark.parametrize("path", KEPT, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_what_once_broke_a_reader(path: Path, tmp_path: Path) -> None:
    attempt(path.parent.name, path.read_bytes(), tmp_path)


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=MANY, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_mutated_input_never_surprises(name: str, tmp_path: Path, data: st.DataObject) -> None:
    seed = data.draw(st.sampled_from(TARGETS[name][1]))
    attempt(name, mutated(seed, data.draw(st.lists(edit, min_size=1, max_size=4))), tmp_path)


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=MANY, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=400))
def test_noise_never_surprises(name: str, tmp_path: Path, data: bytes) -> None:
    attempt(name, data, tmp_path)


FORBIDDEN_CALLS = {"eval", "exec", "__import__"}
FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}


def unsafe(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.split(".")[0] in FORBIDDEN_MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FORBIDDEN_MODULES:
            found.append(str(node.module))
        elif isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            whole = ast.unparse(node.func)
            if name in FORBIDDEN_CALLS - {"__import__"} or whole in ("os.system", "os.popen", "yaml.load"):
                found.append(whole)
            for key in node.keywords:
                if key.arg == "shell" and not (
                    isinstance(key.value, ast.Constant) and key.value.value is False
                ):
                    found.append("shell=")
    return found


@pytest.mark.parametrize(
    "bad", ["import pickle", "from marshal import loads", "eval('1')", "import os; os.system('x')",
            "import subprocess; subprocess.run('x', shell=True)"],
)  # fmt: skip
def test_control_of_the_static_check(bad: str) -> None:
    assert unsafe(bad)


#: source that is not foreign: the model's own functions, mutated and compiled again
OUR_OWN = {"model/stallproof_model/mutants.py": {"exec"}}


def test_no_pickle_no_eval_no_shell() -> None:
    found = {
        str(p.relative_to(ROOT)): bad
        for part in ("impl", "model", "proofs")
        for p in (ROOT / part).rglob("*.py")
        if (bad := unsafe(p.read_text(encoding="utf-8")))
    }
    assert {k: v for k, v in found.items() if not set(v) <= OUR_OWN.get(k, set())} == {}
