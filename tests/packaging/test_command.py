"""One command, alike in every verb: help, examples, exit codes, no colours when piped, no traceback."""

from __future__ import annotations

import os
import shlex
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
