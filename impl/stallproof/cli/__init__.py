"""The ``stallproof`` command: one verb per module, each imported only when it is used.

A verb is a module ``stallproof.cli.<verb>`` holding a :class:`click.Command` named ``command``; to add
one, write the module and add a line to ``VERBS``.
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn, TextIO

import click

from stallproof import __version__
from stallproof.errors import Exit, StallproofError

#: verb -> one-line help, shown without importing the verb's module.
VERBS: dict[str, str] = {
    "check": "Model-check the specification: every property, every named gap, graph equality, proofs.",
    "prove": "Run the Z3 proofs, each with its guard-removed twins.",
    "explain": "Tell a gap's counterexample as a story, from TLC's own trace.",
    "engines": "Bring up vLLM releases on CPU, each in its own environment.",
    "run": "Run a scenario file on the real scheduler of an engine and record a trace.",
    "hunt": "Look for scenarios that break the promise on any scheduler class.",
    "replay": "Check a recorded trace against the promise; say what went wrong, where and why.",
    "report": "Draw a trace as one offline HTML page.",
    "export": "Write a trace for Perfetto and Chrome's trace viewer.",
    "diagnose": "Say why a production engine stalled, from logs, metrics and dumps.",
    "watch": "Poll a running server's metrics and report a confirmed stall.",
    "simulate": "Run schedulers side by side on a production workload, under a virtual clock.",
    "completion": "Print a shell's completion script.",
    "doctor": "Say what is installed and which rules would be active here.",
}


class _Lazy(click.Group):
    """Click group that imports a verb's module only when that verb runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        try:
            command: click.Command = importlib.import_module(f"stallproof.cli.{name}").command
        except ModuleNotFoundError as exc:
            if exc.name == f"stallproof.cli.{name}":
                raise StallproofError(f"'{name}' is not part of this build") from exc
            if exc.name and exc.name.startswith("stallproof"):
                raise
            raise StallproofError(
                f"'{name}' needs the Python package '{exc.name}', which is not installed\n"
                f"  remedy: pip install 'stallproof[check,diagnose]'"
            ) from exc
        if command.epilog is None:
            from stallproof.cli.examples import epilog

            command.epilog = epilog(name, command.help or "")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="stallproof")
def cli() -> None:
    """Scheduling that provably cannot stall: check, prove, record, replay, explain."""


_OUTPUT_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _mute(stream: TextIO) -> None:
    """What ``stream`` still holds goes nowhere, so that the flush at exit cannot fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _reader_gone() -> NoReturn:
    """Standard output has no reader any more."""
    if sys.__stdout__ is not None:
        _mute(sys.__stdout__)
    sys.exit(141)


def _ended(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


@contextmanager
def _orderly() -> Iterator[None]:
    """To be told to end is an orderly end: engines' processes end with us, and what was found is saved."""
    mine = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if threading.current_thread() is threading.main_thread()
        and signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in mine:
        signal.signal(number, _ended)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point: run the command, turn every known error into one message and its documented exit code.

    A reader that goes away (``| head -1``) ends the command as SIGPIPE would, with 141: neither fine nor a
    finding was said.
    """
    if sys.stdout is None:  # started with standard output closed
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):
        # a terminal that cannot show a character, or a file name that is no text, is no reason to fail
        sys.stdout.reconfigure(errors="backslashreplace")
    out = sys.stdout
    try:
        with _orderly():
            result = cli.main(args=None if argv is None else list(argv), standalone_mode=False)
        sys.stdout.flush()
    except StallproofError as exc:
        from stallproof.cli.output import printable

        click.echo(f"stallproof: {printable(str(exc))}", err=True)
        sys.exit(exc.code)
    except click.exceptions.Exit as exc:
        sys.exit(exc.exit_code)
    except click.ClickException as exc:
        exc.show()
        sys.exit(Exit.BAD_INPUT)
    except click.Abort:
        click.echo("stallproof: interrupted", err=True)
        sys.exit(130)
    except SystemExit as exc:
        # click puts a wrapper over a broken pipe, rich points the stream at the null device, and both exit
        # with 1, which would read as a finding
        if sys.stdout is not out or isinstance(exc.__context__, BrokenPipeError):
            _reader_gone()
        raise
    except BrokenPipeError:
        _reader_gone()
    except OSError as exc:
        if exc.errno not in _OUTPUT_FULL:
            raise
        _mute(sys.stdout)
        click.echo(f"stallproof: cannot write the output: {exc.strerror}\n  remedy: make room", err=True)
        sys.exit(Exit.BAD_INPUT)
    sys.exit(int(result) if isinstance(result, int) else Exit.OK)
