"""``stallproof completion``: the script that teaches a shell to complete verbs and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command(
    "completion",
    short_help="Print a shell's completion script.",
)
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> int:
    """Print the completion script for SHELL.

    Exit code 0.
    """
    from stallproof.cli import cli

    made = get_completion_class(shell)
    assert made is not None  # click knows the three shells of SHELLS
    click.echo(made(cli, {}, "stallproof", "_STALLPROOF_COMPLETE").source())
    return 0
