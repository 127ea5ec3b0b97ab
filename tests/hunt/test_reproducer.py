"""A reproducer needs vLLM alone, shows the fault where it is, and passes where it is not."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import msgspec
import pytest

from stallproof import engines, scenario
from stallproof.errors import BadInput, Unsupported
from stallproof.hunt import reproducer, upstream_test
from stallproof.scenario import Load, Scenario, Send

SCENARIOS = Path(__file__).parents[1] / "scenarios"
ALL = {s.id: s for s in scenario.load_all(SCENARIOS)}


def properties(s: Scenario) -> set[str]:
    return {p for p in s.expect.stock.values() if p != "ok"} or {"Termination"}


# ---------------------------------------------------------------- the text


def test_sections() -> None:
    template = "a\n# @if x y\nb  # noqa: F401\n    # @if z\n    c\n    # @end\n# @end\nd\n"
    assert reproducer.sections(template, set()) == "a\nd\n"
    assert reproducer.sections(template, {"y"}) == "a\nb\nd\n"
    assert reproducer.sections(template, {"x", "z"}) == "a\nb\n    c\nd\n"
    assert reproducer.sections(template, {"z"}) == "a\nd\n", "a section inside one that is left out"
    with pytest.raises(ValueError, match="no end"):
        reproducer.sections("# @if x\n", set())
    with pytest.raises(ValueError, match="line 1 ends"):
        reproducer.sections("# @end\n", set())


def test_data_says_what_is_not_a_default_and_nothing_else() -> None:
    got = reproducer.data(ALL["wedge-57841"])
    assert got["request"][1] == {
        "id": "L", "prompt": 704, "max_tokens": 8, "load": {"tokens": 672, "delay": 3},
    }  # fmt: skip
    assert set(got) == {"engine", "request", "steps"}
    assert got["engine"]["role"] == "kv_both"
    assert "depth" not in got["engine"], "2 is the default"
    back = {**got, "id": "x", "title": "x", "source": []}
    again = msgspec.convert(back, Scenario)
    assert again.engine == ALL["wedge-57841"].engine
    assert again.request == ALL["wedge-57841"].request


@pytest.mark.parametrize("form", [reproducer, upstream_test], ids=["script", "test"])
def test_every_scenario_gives_clean_code_without_us(form: object, tmp_path: Path) -> None:
    """No name is missing or left over, whatever sections are chosen; nothing of ours is imported."""
    for s in ALL.values():
        if s.engine.base:
            continue
        for prop in properties(s):
            path = form.write(tmp_path / f"{s.id}_{prop}.py", s, prop, version="0.32.0")  # type: ignore[attr-defined]
            text = path.read_text()
            assert "@" not in "".join(x for x in text.splitlines() if "@static" not in x), "words filled in"
            for node in ast.walk(ast.parse(text)):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
                assert not [n for n in names if "stallproof" in n]
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F,E9", str(tmp_path)]
    done = subprocess.run(ruff, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


def test_what_no_script_can_show_is_refused() -> None:
    with pytest.raises(Unsupported, match="no stand-alone script can judge LoopRank"):
        reproducer.text(ALL["wedge-57841"], "LoopRank")
    with pytest.raises(Unsupported, match="lost_fence"):
        reproducer.text(ALL["fork-lost-fence-903"], "InFlightSafe")
    with pytest.raises(Unsupported, match="cannot use our class"):
        reproducer.text(ALL["wedge-57841"], "NoWedge", scheduler="stallproof")


def test_a_forks_class_is_named_in_the_script() -> None:
    assert "SCHEDULER = 'forked.Scheduler'" in reproducer.text(
        ALL["wedge-57841"], "NoWedge", scheduler="forked.Scheduler"
    )


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    for form in (reproducer, upstream_test):
        with pytest.raises(BadInput, match="No such file"):
            form.write(tmp_path / "none" / "x.py", ALL["wedge-57841"], "NoWedge")


def test_words_cannot_break_the_script() -> None:
    s = msgspec.structs.replace(ALL["wedge-57841"], title='a """ b \\N{x', story="@title@ {}")
    ast.parse(reproducer.text(s, "NoWedge"))


# ---------------------------------------------------------------- on the engine

#: what happens to a request of ours that loads and sends when its client goes away: stock forgets the load
LOAD_AND_SEND = Scenario(
    id="load-and-send", title="A request that loads and sends is aborted", source=["own"], steps=60,
    engine=scenario.Engine(blocks=20, role="kv_both"),
    request=[
        scenario.Request(id="A", prompt=100, max_tokens=4, abort_on="loading", load=Load(tokens=64, delay=9),
                         send=Send(delay=2)),
        scenario.Request(id="B", prompt=40, max_tokens=30),
    ],
)  # fmt: skip

#: scenario -> the property that it is about; the file says on which releases
SHOWN = {
    "wedge-57841": "NoWedge", "cascade-49674": "NoZeroPre", "starvation-n1": "NoStarvation",
    "lost-load-35943": "BoundedWait", "lost-send-50425": "NoLeak", "empty-handover-50297": "StoreSafe",
    "reuse-before-fence-45357": "InFlightSafe", "window-prune-47728": "InFlightSafe",
    "abort-recv-sent-46240": "NoDoubleFree", "reset-running": "EngineDies", "lookahead-57104": "NoWedge",
    "abandoned-session-53321": "Termination", "grammar-error-45012": "BoundedWait",
    "budget-hog-53130": "NoStarvation", "failed-loads-own-finding": "NoWedge",
}  # fmt: skip


def _load(s: Scenario, **changes: object) -> None:
    s.request[0].load = msgspec.structs.replace(s.request[0].load, **changes)


#: where no release is free of the fault: what takes its trigger away
CONTROLS: dict[str, Callable[[Scenario], None]] = {
    "lost-load-35943": lambda s: _load(s, outcome="ok"),
    "lost-send-50425": lambda s: setattr(s.request[0], "send", Send()),
    "abort-recv-sent-46240": lambda s: s.report.pop(),
    "failed-loads-own-finding": lambda s: _load(s, outcome="ok"),
}


def copy(s: Scenario) -> Scenario:
    return msgspec.convert(msgspec.to_builtins(s), Scenario)


@cache
def ran(version: str, folder: Path) -> dict[str, tuple[int, str]]:
    """Name of each script -> exit code and last line, all in one process that cannot import Stallproof."""
    paths = []
    for sid, prop in SHOWN.items():
        s = ALL[sid]
        if s.versions and version not in s.versions:
            continue
        paths.append(reproducer.write(folder / f"{sid}.py", s, prop, version=version))
        if sid in CONTROLS:
            CONTROLS[sid](control := copy(s))
            paths.append(reproducer.write(folder / f"{sid}.control.py", control, prop))
    paths.append(reproducer.write(folder / "load-and-send.py", LOAD_AND_SEND, "XferSafe"))
    control = copy(LOAD_AND_SEND)
    control.request[0].abort_on = ""
    paths.append(reproducer.write(folder / "load-and-send.control.py", control, "XferSafe"))
    engine = engines.get(version)
    env = {**os.environ, "PYTHONPATH": str(engine.path[0]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(engine.python), str(Path(__file__).with_name("reproduce_all.py")), *map(str, paths)],
        env=env, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    found = {}
    for line in done.stdout.splitlines():
        if line.startswith("RAN "):
            _, name, code, last = line.split(" ", 3)
            found[name] = (int(code), last)
    assert len(found) == len(paths), done.stdout[-1000:] + done.stderr[-2000:]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reproducers")


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", engines.CI)
def test_shows_the_fault_where_it_is_and_only_there(version: str, folder: Path) -> None:
    got = ran(version, folder)
    wrong = []
    for sid, prop in SHOWN.items():
        if sid not in got:
            continue
        shows = scenario.expected(ALL[sid].expect.stock, version) == prop
        code, last = got[sid]
        want = f"FAULT: {prop}: step " if shows else f"no fault: {prop} holds"
        if code != int(shows) or not last.startswith(want):
            wrong.append((sid, code, last))
    for name, (code, last) in got.items():
        if name.endswith(".control") and code:
            wrong.append((name, code, last))
    assert got["load-and-send"][1].startswith("FAULT: XferSafe"), got["load-and-send"]
    assert not wrong
    assert sum(code for code, _ in got.values()) >= 6, "most of them show on every release"


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_as_a_program(tmp_path: Path) -> None:
    """By itself, as somebody else would run it: exit code 1 and one line with the reason at the end."""
    engine = engines.get("0.23.0")
    path = reproducer.write(tmp_path / "r.py", ALL["wedge-57841"], "NoWedge", version="0.23.0")
    env = {**os.environ, "PYTHONPATH": str(engine.path[0]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(engine.python), str(path)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr[-1000:]
    lines = done.stdout.splitlines()
    assert lines[0].startswith("vLLM 0.23.0, AsyncScheduler, 40 usable blocks")
    assert lines[-1].startswith("FAULT: NoWedge: step 11: H, L unfinished, 19 blocks free")
    assert any("refused H" in x for x in lines)
    bad = path.read_text().replace("'blocks': 40", "'blocks': -3")
    path.write_text(bad)
    done = subprocess.run(
        [str(engine.python), str(path)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, "an engine that cannot be made is no verdict"
    assert done.stdout.startswith("cannot run: ")
