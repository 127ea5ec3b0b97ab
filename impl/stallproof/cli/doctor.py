"""``stallproof doctor``: what is installed, and which rules would be active here."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from stallproof import __version__
from stallproof.core.rules import RULES, Settings
from stallproof.errors import Exit, Unsupported


def installed() -> dict[str, Any]:
    """Facts about this interpreter's vLLM; imports it. ``problem`` is empty if our classes would work."""
    found: dict[str, Any] = {"python": sys.version.split()[0], "stallproof": __version__, "problem": ""}
    if importlib.util.find_spec("vllm") is None:
        found["problem"] = "vLLM is not installed in this Python"
        return found
    try:
        import vllm
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler
    except Exception as exc:
        found["problem"] = f"vLLM does not import: {type(exc).__name__}: {exc}"
        return found
    from stallproof.vllm.adapters import adapt

    found["vllm"] = str(vllm.__version__)
    settings = Settings.from_environment()
    for cls in (Scheduler, AsyncScheduler):
        try:
            a = adapt(cls, str(vllm.__version__), settings.allow_untested)
        except Unsupported as exc:
            found["problem"] = str(exc)
            return found
        found[cls.__name__] = {
            "class": f"{cls.__module__}.{cls.__qualname__}",
            "own_schedule": a.foreign,
            "mechanisms": asdict(a.facts),
            "notes": list(a.notes),
            "rules": _rules(a.facts, 2 if cls is AsyncScheduler else 1, settings),
        }
    return found


def _rules(facts: Any, depth: int, settings: Settings) -> dict[str, str]:
    from stallproof.vllm.matrix import status

    return {r: status(r, facts, depth) if settings.active(r) else "off" for r in RULES}


def _say(found: dict[str, Any], settings: Settings) -> None:
    click.echo(
        f"stallproof {found['stallproof']}, Python {found['python']}, vLLM {found.get('vllm', 'none')}"
    )
    if found["problem"]:
        return
    click.echo(f"mode {settings.mode}, patience {settings.patience}, strict {settings.strict}")
    for name in ("Scheduler", "AsyncScheduler"):
        one = found[name]
        click.echo(f"\n{one['class']}" + (" (has a schedule() of its own)" if one["own_schedule"] else ""))
        for note in one["notes"]:
            click.echo(f"  note: {note}")
        for rule, how in one["rules"].items():
            click.echo(f"  {rule:18} {how}")
    click.echo("\nWhich fence is used depends on the connector; the INFO line at start says it.")


def _archive(path: Path, as_json: bool) -> int:
    from stallproof.vllm.adapters import FIRST, LAST, series_of, supported
    from stallproof.vllm.static import inspect_archive

    found = inspect_archive(path)
    series = series_of(found.version) if found.facts is not None else ""
    inside = bool(series) and supported(series)
    if as_json:
        click.echo(json.dumps(asdict(found) | {"supported": inside}, indent=1))
    else:
        click.echo(f"{found.project} {found.version}")
        for line in found.missing:
            click.echo(f"  missing: {line}")
        for name in found.differs:
            click.echo(f"  differs from the table of {series}: {name}")
        if found.facts is not None:
            have = [n for n, v in asdict(found.facts).items() if v]
            click.echo(f"  mechanisms: {', '.join(have)}")
            if not inside:
                click.echo(
                    f"  series {series} is outside {FIRST[0]}.{FIRST[1]} to {LAST[0]}.{LAST[1]}: "
                    "refused unless STALLPROOF_ALLOW_UNTESTED=1"
                )
            if not (found.missing or found.differs):
                click.echo("  everything the guard needs is there")
        for name, remark in found.schedulers.items():
            click.echo(f"  {name}: {remark}")
    if found.missing or found.differs:
        return Exit.FINDING
    return Exit.OK if inside or found.facts is None else Exit.UNSUPPORTED


@click.command("doctor", short_help="Say what is installed and which rules would be active here.")
@click.option(
    "--wheel", type=click.Path(path_type=Path), help="Probe a wheel or source release, uninstalled."
)
@click.option("--table", is_flag=True, help="Print the table of rules by version (docs/rules-by-version.md).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(wheel: Path | None, table: bool, as_json: bool) -> int:
    """Say what is installed and which rules would be active here.

    Exit code 0: the guard works here. 1: a probed release lacks something or differs from the table.
    2: unreadable input. 3: no vLLM, or one outside the supported range.
    """
    if table:
        from stallproof.vllm.matrix import markdown

        click.echo(markdown(), nl=False)
        return Exit.OK
    if wheel is not None:
        return _archive(wheel, as_json)
    settings = Settings.from_environment()
    found = installed()
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        _say(found, settings)
    if found["problem"]:
        raise Unsupported(found["problem"], remedy="install a supported vLLM, or probe a file with --wheel")
    return Exit.OK
