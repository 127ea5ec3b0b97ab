"""The declarative configurations of ``spec/configs.toml`` and the recorded figures beside it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from stallproof.check import tools
from stallproof.check.tlaval import ModelSet
from stallproof.errors import BadInput
from stallproof_model.rulesets import RULESETS
from stallproof_model.state import Constants, constants

#: Statements of ``Properties.tla`` by how TLC checks them.
INVARIANTS = (
    "Conservation",
    "Queues",
    "InFlightSafe",
    "XferSafe",
    "NoLeak",
    "Seated",
    "AdapterShare",
    "NoWedge",
    "BoundedWait",
)
STEPS = ("NoZeroPre", "EvictCoupled", "NoInversion")
LIVE = ("Termination", "NoStarvation")
#: For a large run: ``Calls`` of ``Calls.tla`` stands for NoWedge, BoundedWait and the step statements.
LARGE = ("Conservation", "Queues", "InFlightSafe", "XferSafe", "NoLeak", "Seated", "AdapterShare", "Calls")

#: Modules whose constants are those of ``Sched.tla``.
SCHED = ("Properties", "Calls", "Measure")

KINDS = ("ok", "gap", "mutant", "equal")
_KEYS = {
    "name",
    "module",
    "rules",
    "constants",
    "refutes",
    "fixed",
    "bugs",
    "cause",
    "story",
    "live",
    "tier",
    "invariants",
    "properties",
    "symmetry",
    "without",
    "of",
    "spec",
    "wrong",
    "operator",
    "definition",
}


@dataclass(frozen=True)
class Config:
    """One configuration.

    ``kind``: ``ok`` must hold, ``gap`` must be refuted by ``refutes`` while the same constants with ``fixed``
    laid over them hold, ``mutant`` likewise with ``wrong`` constants or one ``operator`` replaced by
    ``definition`` (a statement that no gap refutes can fail, too), ``equal`` compares the state graphs.
    ``tier``: ``pr`` or ``nightly``.
    """

    kind: str
    name: str
    rules: str = "OneOrder"
    module: str = "Properties"
    constants: Mapping[str, Any] = field(default_factory=dict)
    refutes: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    bugs: tuple[str, ...] = ()
    cause: str = ""
    story: str = ""
    live: bool = False
    tier: str = "pr"
    invariants: tuple[str, ...] = ()
    properties: tuple[str, ...] = ()
    symmetry: str = ""
    without: tuple[str, ...] = ()
    spec: str = "Spec"
    wrong: Mapping[str, Any] = field(default_factory=dict)
    operator: str = ""
    definition: str = ""

    @property
    def has_twin(self) -> bool:
        """Whether the Python model covers this module."""
        return self.module == "Properties"

    @cached_property
    def c(self) -> Constants:
        """Constants of the Sched model."""
        return constants(**{**RULESETS[self.rules], **self.constants, **self.wrong})

    @cached_property
    def fixed_c(self) -> Constants:
        """Constants with the gap closed."""
        return constants(**{**RULESETS[self.rules], **self.constants, **self.fixed})

    @property
    def replaced(self) -> dict[str, str]:
        """The operator that a mutant replaces, and by which of its definition."""
        return {self.operator: f"Wrong{self.operator}"} if self.operator else {}

    @property
    def tla(self) -> dict[str, Any]:
        """Constants as TLC gets them."""
        return (
            self.c._asdict() if self.module in SCHED else {k: _freeze(v) for k, v in self.constants.items()}
        )

    @property
    def tla_fixed(self) -> dict[str, Any]:
        return (
            self.fixed_c._asdict()
            if self.module in SCHED
            else {k: _freeze(v) for k, v in {**self.constants, **self.fixed}.items()}
        )


def _freeze(v: Any) -> Any:
    """TOML has no sets: ``{set = [...]}`` stands for one, ``{model = [...]}`` for one of model values."""
    if isinstance(v, dict) and set(v) == {"set"}:
        return frozenset(_freeze(x) for x in v["set"])
    if isinstance(v, dict) and set(v) == {"model"}:
        return ModelSet(v["model"])
    if isinstance(v, list):
        return tuple(_freeze(x) for x in v)
    return v


def load(path: Path | None = None) -> list[Config]:
    """Read all configurations; raises :class:`BadInput` naming the configuration that is wrong."""
    path = path or tools.spec_dir() / "configs.toml"
    try:
        doc = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise BadInput(str(exc), path=path, remedy="restore configs.toml from the distribution") from exc
    modules: dict[str, dict[str, Any]] = doc.pop("module", {})
    out: list[Config] = []
    wanted: list[
        tuple[str, str]
    ] = []  #: graph equality of other configurations, "+fixed" with the gap closed
    for kind, entries in doc.items():
        if kind not in KINDS:
            raise BadInput(f"unknown table [[{kind}]]", path=path)
        for e in entries:
            name = e.get("name", "?")
            unknown = set(e) - _KEYS
            if unknown:
                raise BadInput(f"{name}: unknown key {sorted(unknown)[0]!r}", path=path)
            if e.get("rules", "OneOrder") not in RULESETS:
                raise BadInput(f"{name}: unknown rules {e['rules']!r}", path=path)
            if "of" in e:
                wanted += [(name, x) for x in e["of"]]
                continue
            mod = e.get("module", "Properties")
            defaults = modules.get(mod, {})
            base = modules.get("Blocks", {}) if mod == "EngineContract" else defaults
            lists = ("bugs", "invariants", "properties", "without")
            entry: dict[str, Any] = {k: tuple(v) if k in lists else v for k, v in e.items()}
            entry["constants"] = {**base.get("constants", {}), **e.get("constants", {})}
            for k in ("invariants", "properties"):
                entry.setdefault(k, tuple(defaults.get(k, ())))
            entry.setdefault("symmetry", defaults.get("symmetry", ""))
            entry.setdefault("spec", defaults.get("spec", "Spec"))
            cfg = Config(kind=kind, **entry)
            if kind == "gap" and not (cfg.refutes and cfg.fixed):
                raise BadInput(f"{name}: a gap needs 'refutes' and 'fixed'", path=path)
            one = bool(cfg.wrong) != bool(cfg.operator and cfg.definition)
            if kind == "mutant" and not (cfg.refutes and one):
                text = "a mutant needs 'refutes', and 'wrong' or 'operator' with 'definition'"
                raise BadInput(f"{name}: {text}", path=path)
            if cfg.module in SCHED:
                try:
                    cfg.c, cfg.fixed_c  # noqa: B018 - built for its errors
                except ValueError as exc:
                    raise BadInput(f"{name}: {exc}", path=path) from exc
            out.append(cfg)
    known = {cfg.name: cfg for cfg in out if cfg.has_twin}
    for name, x in wanted:
        source = known.get(x.removesuffix("+fixed"))
        if source is None:
            raise BadInput(f"{name}: no configuration {x!r} of the Sched model", path=path)
        out.append(equal_to(source, x.endswith("+fixed")))
    names = [cfg.name for cfg in out]
    for n in names:
        if names.count(n) > 1:
            raise BadInput(f"{n}: two configurations have this name", path=path)
    return out


def equal_to(cfg: Config, fixed: bool) -> Config:
    """Graph equality on the constants of another configuration, or on its fixed setting."""
    extra, suffix = (cfg.fixed, "+fixed") if fixed else ({}, "")
    constants = {**cfg.constants, **extra}
    return replace(cfg, kind="equal", name=f"equal:{cfg.name}{suffix}", constants=constants, tier="pr")


def equal_to_all(configs: list[Config]) -> list[Config]:
    """Graph equality on every quick configuration, its fixed setting included: one per distinct constants."""
    seen = {c.c for c in configs if c.kind == "equal"}
    out = []
    for cfg in configs:
        if not cfg.has_twin or cfg.kind in ("equal", "mutant") or cfg.tier != "pr":
            continue
        for new in (equal_to(cfg, False), equal_to(cfg, True)):
            if new.c not in seen:
                seen.add(new.c)
                out.append(new)
    return out


def recorded() -> dict[str, dict[str, Any]]:
    """Figures of the last ``stallproof check --record``: name to states, depth, trace."""
    path = tools.spec_dir() / "recorded.json"
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text())
    except ValueError as exc:
        raise BadInput(str(exc), path=path, remedy="stallproof check --record") from exc


def record(figures: Mapping[str, Mapping[str, Any]]) -> Path:
    """Merge ``figures`` into ``recorded.json``; returns its path."""
    path = tools.spec_dir() / "recorded.json"
    known = {cfg.name for cfg in load()}
    merged = {name: f for name, f in {**recorded(), **figures}.items() if name in known}
    path.write_text(json.dumps(dict(sorted(merged.items())), indent=1) + "\n")
    return path
