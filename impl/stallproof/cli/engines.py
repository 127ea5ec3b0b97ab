"""``stallproof engines``: vLLM releases on CPU, each usable beside the others."""

from __future__ import annotations

import os
import shutil
import time

import click

from stallproof import engines
from stallproof.engines import cache, install


@click.group(name="engines")
def command() -> None:
    """Bring vLLM releases up on CPU, each in its own environment.

    One release is installed in full; the others are their own Python sources over it, which is all that
    scheduling needs. Everything is verified by hash and kept in the cache folder (STALLPROOF_CACHE, else
    the user's cache).
    """


@command.command()
@click.argument("versions", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every release of the test matrix.")
def up(versions: tuple[str, ...], every: bool) -> None:
    """Install VERSIONS (default: those that CI runs). Quick when they are there already."""
    wanted = list(engines.MATRIX if every else versions or engines.CI)
    t0 = time.monotonic()
    done = engines.up(wanted, say=click.echo, progress=os.isatty(2))
    new = [v for v, fresh in done if fresh]
    here = [v for v, fresh in done if not fresh]
    if here:
        click.echo(f"up to date: {', '.join(here)}")
    if new:
        used = sum(cache.size(p) for p in cache.engines().iterdir() if p.is_dir())
        click.echo(
            f"installed: {', '.join(new)} in {time.monotonic() - t0:.0f} s; "
            f"{cache.engines()} now holds {used / 1e9:.1f} GB, "
            f"{shutil.disk_usage(cache.engines()).free / 1e9:.0f} GB free"
        )


@command.command("list")
def list_() -> None:
    """Supported releases and which of them are installed."""
    have = {m.version: m for m in engines.installed()}
    base = cache.read(install.base_folder())
    for v in engines.SDISTS:
        m = have.get(v)
        # the full release lies in the environment that the others share
        size = (m.bytes if m else 0) + (base.bytes if base and m and m.kind == "full" else 0)
        click.echo(f"{v:8} {'-' if m is None else f'{m.kind:8} {size / 1e6:6.0f} MB'}")


@command.command()
def where() -> None:
    """The cache folder."""
    click.echo(cache.root())


@command.command()
@click.argument("version")
def path(version: str) -> None:
    """The interpreter and the module search path of VERSION, as shell assignments."""
    e = engines.get(version)
    click.echo(f"PYTHON={e.python}")
    click.echo(f"PYTHONPATH={os.pathsep.join(map(str, e.path))}")


@command.command("exec", context_settings={"ignore_unknown_options": True})
@click.argument("version")
@click.argument("cmd", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(version: str, cmd: tuple[str, ...]) -> None:
    """Run a command inside VERSION: ``stallproof engines exec 0.28.0 -- python script.py``."""
    e = engines.get(version)
    env = e.env()
    env["PATH"] = os.pathsep.join([str(e.python.parent), env.get("PATH", "")])
    program = str(e.python) if cmd[0] in ("python", "python3") else cmd[0]
    try:
        os.execvpe(program, [program, *cmd[1:]], env)
    except OSError as exc:
        raise click.ClickException(f"cannot run {cmd[0]}: {exc.strerror}") from exc


@command.command()
@click.argument("versions", nargs=-1, required=True)
def rm(versions: tuple[str, ...]) -> None:
    """Remove VERSIONS; the full environment goes with the last of them."""
    for v in versions:
        click.echo(f"{v}: {'removed' if install.remove(v) else 'was not installed'}")
