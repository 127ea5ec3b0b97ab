"""MkDocs hooks: pages from elsewhere in the repository, live reports of recorded runs, a forgiving menu."""

from __future__ import annotations

import io
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
#: repository page -> name in the site
PAGES = {
    "spec/README.md": "spec.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "README.md": "readme.md",
}
TRACES = ROOT / "tests" / "fixtures" / "traces"
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


#: pages that the menu names; one that is not generated yet is text instead of a link
MENU: set[str] = set()


def on_files(files: Files, config: Any) -> Files:
    for path, name in PAGES.items():
        if (ROOT / path).exists():
            files.append(File.generated(config, name, content=(ROOT / path).read_text(encoding="utf-8")))
    files.append(File.generated(config, "cli.md", content=_cli()))
    for trace in sorted(TRACES.glob("*.jsonl")):
        files.append(File.generated(config, f"live/{trace.stem}.html", content=_report(trace)))
    MENU.update(_listed(config.nav))
    config.nav = _present(config.nav, {f.src_uri for f in files})
    listed = _listed(config.nav)
    rest = sorted(f.src_uri for f in files.documentation_pages() if f.src_uri not in listed)
    if rest:
        config.nav.append({"More": rest})
    return files


def _cli() -> str:
    """Help of every verb, as the command prints it."""
    from click.testing import CliRunner

    from stallproof.cli import VERBS, cli

    runner = CliRunner(env={"COLUMNS": "100"})
    parts = ["# Command line", "Printed by the command itself when the site is built."]
    parts.append(
        "| code | meaning |\n|---|---|\n| 0 | fine: conforms, holds, progressing, or idle |\n"
        "| 1 | a finding |\n"
        "| 2 | bad input, or the evidence does not decide |\n| 3 | unsupported version, platform or tool |"
    )
    for verb in VERBS:
        done = runner.invoke(cli, [verb, "--help"], prog_name="stallproof")
        parts.append(f"## {verb}\n\n```text\n{done.output.strip()}\n```")
    return "\n\n".join(parts) + "\n"


def _report(trace: Path) -> str:
    from stallproof.report import findings, tracepage

    verdict, marks = findings.judge([str(trace)])
    out = io.StringIO()
    tracepage.write([str(trace)], out, marks, verdict=verdict, title=trace.name)
    return out.getvalue()


def _present(nav: list[Any], known: set[str]) -> list[Any]:
    """The menu without pages that do not exist (yet)."""
    kept: list[Any] = []
    for item in nav:
        [(title, target)] = item.items() if isinstance(item, dict) else [(None, item)]
        if isinstance(target, list):
            target = _present(target, known)
            if target:
                kept.append({title: target})
        elif target in known:
            kept.append(item)
    return kept


def _listed(nav: list[Any]) -> set[str]:
    out: set[str] = set()
    for item in nav:
        for target in item.values() if isinstance(item, dict) else [item]:
            out |= _listed(target) if isinstance(target, list) else {target}
    return out


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links as GitHub resolves them: pages of the repository get their site name, other files become text."""
    source = {v: k for k, v in PAGES.items()}.get(page.file.src_uri)
    base = posixpath.dirname(source or f"docs/{page.file.src_uri}")

    def fix(match: re.Match[str]) -> str:
        bang, text, target = match.groups()
        path, _, anchor = target.partition("#")
        if "://" in target or not path or target.startswith("mailto:"):
            return match.group(0)
        whole = posixpath.normpath(posixpath.join(base, path))
        site = PAGES.get(whole) or (whole.removeprefix("docs/") if whole.startswith("docs/") else None)
        if site and (site.startswith("live/") or files.get_file_from_path(site)):
            near = posixpath.relpath(site, posixpath.dirname(page.file.src_uri) or ".")
            return f"{bang}[{text}]({near}{'#' + anchor if anchor else ''})"
        if site in MENU:
            return text
        if (ROOT / whole).exists():
            return f"{text} (`{whole}`)" if text.strip("`") != whole.rstrip("/") else f"`{whole}`"
        return match.group(0)  # broken: the strict build says so

    parts = re.split(r"(```.*?```)", markdown, flags=re.S)
    return "".join(p if p.startswith("```") else LINK.sub(fix, p) for p in parts)
