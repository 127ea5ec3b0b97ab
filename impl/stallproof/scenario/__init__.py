"""Scenarios: small declarative files that drive the real scheduler of any engine release.

A scenario is one TOML file: an engine in miniature, requests with what their connector does, and what must
happen on which release. ``load`` reads one, ``load_all`` a folder.
"""

from stallproof.scenario.model import (
    At,
    Engine,
    Expect,
    Load,
    Report,
    Request,
    Scenario,
    Send,
    Stream,
    expected,
    load,
    load_all,
)  # fmt: skip

__all__ = [
    "At", "Engine", "Expect", "Load", "Report", "Request", "Scenario", "Send", "Stream", "expected", "load",
    "load_all",
]  # fmt: skip
