"""One command, alike in every verb: help, examples, exit codes, no colours when piped, no traceback."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from stallproof.cli import VERBS, cli
from stallproof.cli.examples import EXAMPLES

ROOT = Path(__file__).parents[2]


def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stallproof", *args],
        capture_output=True, text=True, timeout=120, env={**os.environ, **env}, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_examples_and_exit_codes(verb: str) -> None:
    done = CliRunner().invoke(cli, [verb, "--help"])
    assert done.exit_code == 0, done.output
    assert "Examples:" in done.output or f"stallproof {verb} " in done.output.split("\n", 1)[1]
    assert "exit code" in done.output.lower()
    assert "-h, --help" in done.output


@pytest.mark.parametrize("verb", [v for v in VERBS if v not in ("completion", "engines")])
def test_every_verb_speaks_json(verb: str) -> None:
    assert "--json" in CliRunner().invoke(cli, [verb, "--help"]).output


@pytest.mark.parametrize(("verb", "line"), [(v, x) for v in EXAMPLES for x in EXAMPLES[v] if v in VERBS])
def test_examples_are_accepted_by_the_parser(verb: str, line: str) -> None:
    """Parsed, not run: a renamed option in a help page is noticed."""
    text = line.split("#")[0].split("|")[-1] if "| stallproof" in line else line.split("#")[0]
    text = text.replace('eval "$(', "").replace(')"', "").replace("| source", "")
    words = shlex.split(text.split(" < ")[0].split(" > ")[0])
    assert words[:2] == ["stallproof", verb]
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    context = click.Context(command, info_name=verb, resilient_parsing=False)
    if isinstance(command, click.Group):
        name, sub, rest = command.resolve_command(context, words[2:])
        assert sub is not None, name
        command, words = sub, ["", "", *rest]
    for param in command.params:  # files of an example need not exist
        if isinstance(param.type, click.Path):
            param.type.exists = False
    command.make_parser(context).parse_args(words[2:])


@pytest.mark.parametrize(
    "args", [["--help"], ["check", "--list"], ["replay", "no-such-file"], ["report", "--help"]]
)
def test_no_colours_when_piped(args: list[str]) -> None:
    done = run(*args, TERM="xterm-256color")
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_a_wrong_option_is_code_two(verb: str) -> None:
    done = CliRunner().invoke(cli, [verb, "--no-such-option"], standalone_mode=False)
    assert isinstance(done.exception, click.UsageError)


def test_wrong_use_from_the_shell() -> None:
    done = run("replay", "--no-such-option")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    done = run("no-such-verb")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(shell: str) -> None:
    done = run("completion", shell)
    assert done.returncode == 0
    assert "_STALLPROOF_COMPLETE" in done.stdout


def test_bash_completes_verbs_and_options() -> None:
    env = {"_STALLPROOF_COMPLETE": "bash_complete", "COMP_WORDS": "stallproof rep", "COMP_CWORD": "1"}
    code = "import sys; sys.argv[0] = 'stallproof'; from stallproof.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **env}
    )
    assert {"plain,replay", "plain,report"} <= set(done.stdout.split())


def test_importing_the_scheduler_package_is_light() -> None:
    """Nothing heavy may come along into the engine's process; counted in modules, not in seconds."""
    code = (
        "import sys; before = set(sys.modules); import stallproof.vllm; new = set(sys.modules) - before; "
        "print(sorted({m.split('.')[0] for m in new} - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "['stallproof']", done.stderr


def test_the_bare_command_imports_no_verb() -> None:
    code = (
        "import sys; from stallproof.cli import cli; "
        "print([m for m in sys.modules if m.startswith(('stallproof.cli.', 'stallproof.trace', 'z3'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


TRACES = ROOT / "tests/fixtures/traces"


def stallproof(shell: str) -> subprocess.CompletedProcess[str]:
    """A line of bash, where ``$SP`` is the command."""
    env = {**os.environ, "SP": f"{shlex.quote(sys.executable)} -m stallproof"}
    return subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=120, env=env)


@pytest.mark.parametrize(
    "args",
    [
        "prove --list",
        f"export {TRACES}/wedge-0.23.0.jsonl --perfetto -",
        f"replay {TRACES}/cascade-0.32.0-ok.jsonl",
    ],
)
def test_a_reader_that_goes_away_is_not_a_finding(args: str) -> None:
    done = stallproof(f"$SP {args} | true; exit ${{PIPESTATUS[0]}}")
    assert (done.returncode, done.stderr) == (141, "")


def test_a_full_disk_is_one_message() -> None:
    done = stallproof(f"$SP report {TRACES}/wedge-0.23.0.jsonl -o - >/dev/full")
    assert done.returncode == 2
    assert done.stderr.startswith("stallproof: cannot write the output")
    assert "Traceback" not in done.stderr


def test_a_closed_standard_output_keeps_the_exit_code() -> None:
    done = stallproof(f"$SP replay {TRACES}/wedge-0.23.0.jsonl >&-")
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ("run tests/scenarios/wedge-57841.toml --scheduler foo", "no scheduler is called 'foo'"),
        ("run tests/scenarios/wedge-57841.toml --steps -5", "not in the range"),
        ("simulate --synthetic 5 --rate 0", "not in the range"),
        ("simulate --synthetic 5 --rate nan", "--rate is nan"),
        ("simulate --synthetic 5 --scheduler foo", "no scheduler is called 'foo'"),
        ("simulate --synthetic 5 --latency base=nan", "bad latency coefficient"),
        ("replay x --from 10 --to 5", "comes before"),
        ("replay x --deadline nan", "not a finite number"),
        ("watch --metrics x --timeout nan", "not a finite number"),
        ("watch --metrics x --timeout inf", "not in the range"),
        ("watch --metrics x --interval nan", "not a finite number"),
        ("hunt --minutes nan", "not a finite number"),
        ("hunt --minutes inf", "not a finite number"),
        ("explain ping-pong --timeout nan", "not a finite number"),
        ("explain ping-pong --timeout 0", "not in the range"),
        ("check --timeout -1", "not in the range"),
        ("simulate --synthetic 5 --html no/such/folder/x.html", "cannot write there"),
        ("simulate --synthetic 5 --trace no/such/folder/x", "cannot write there"),
    ],
)
def test_bad_options_are_refused_before_anything_starts(args: str, says: str) -> None:
    done = run(*shlex.split(args.replace("tests/", f"{ROOT}/tests/")))
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_trace_without_records_is_not_a_conforming_one(tmp_path: Path) -> None:
    head = (TRACES / "wedge-0.23.0.jsonl").read_text().split("\n", 1)[0]
    (tmp_path / "head.jsonl").write_text(head + "\n")
    done = run("replay", str(tmp_path / "head.jsonl"))
    assert done.returncode == 2
    assert "nothing was recorded" in done.stdout


def test_diagnose_does_not_clear_a_trace_it_could_not_read(tmp_path: Path) -> None:
    lines = (TRACES / "wedge-0.23.0.jsonl").read_bytes().split(b"\n")
    (tmp_path / "broken.jsonl").write_bytes(b"\n".join([*lines[:5], b"\0", *lines[5:]]))
    done = run("diagnose", str(tmp_path / "broken.jsonl"))
    assert done.returncode == 2, done.stdout
    assert "broken.jsonl:6" in done.stdout
    (tmp_path / "v9.jsonl").write_bytes(
        b"\n".join(lines).replace(b"stallproof-trace/1", b"stallproof-trace/9")
    )
    done = run("diagnose", str(tmp_path / "v9.jsonl"))
    assert done.returncode == 3
    assert "stallproof-trace/9" in done.stderr


def test_a_file_name_that_is_no_text(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/n\xff.jsonl"
    Path(os.fsdecode(name)).write_bytes((TRACES / "wedge-0.23.0.jsonl").read_bytes())
    for verb, code in (("replay", 1), ("diagnose", 1), ("report", 0)):
        done = run(verb, "--json", os.fsdecode(name))
        assert (done.returncode, done.stderr) == (code, ""), verb
        json.loads(done.stdout)


def test_an_encoding_that_lacks_a_character_is_no_failure() -> None:
    trace = str(TRACES / "wedge-0.23.0.jsonl")
    done = run("report", trace, "-o", "-", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_name_from_a_trace_cannot_steer_the_terminal(tmp_path: Path) -> None:
    text = (TRACES / "wedge-0.23.0.jsonl").read_text()
    (tmp_path / "t.jsonl").write_text(text.replace('"H"', r'"\u001b[2J\u0000\u202eH"'))
    for verb in ("replay", "diagnose"):
        done = run(verb, str(tmp_path / "t.jsonl"))
        assert done.returncode == 1
        assert r"\u202eH" in done.stdout
        assert not {"\x1b", "\0", "\u202e"} & set(done.stdout)


def test_a_page_does_not_overwrite_its_workload(tmp_path: Path) -> None:
    text = (TRACES / "wedge-0.23.0.jsonl").read_bytes()
    (tmp_path / "t.jsonl").write_bytes(text)
    done = run("simulate", str(tmp_path / "t.jsonl"), "--html", str(tmp_path / "t.jsonl"))
    assert (done.returncode, "it is an input, too" in done.stderr) == (2, True)
    assert (tmp_path / "t.jsonl").read_bytes() == text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_to_be_told_to_end_ends_what_was_started(number: int, tmp_path: Path) -> None:
    """An engine's process was left running, and went on writing its trace."""
    code = (
        "import click, os, signal, subprocess\n"
        "from stallproof import cli\n"
        "@click.command()\n"
        "def command():\n"
        "    p = subprocess.Popen(['sleep', '60'])\n"
        "    try:\n"
        f"        os.kill(os.getpid(), {int(number)}); signal.pause()\n"
        "    finally:\n"
        "        p.kill(); p.wait(); print('ended')\n"
        "cli.cli.commands['x'] = command\n"
        "cli._Lazy.get_command = lambda self, ctx, name: command\n"
        "cli.main(['x'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "ended\n", "")
