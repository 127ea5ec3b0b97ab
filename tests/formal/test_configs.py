"""The configurations: well formed, each gap one cause, errors name the configuration."""

import pytest

from stallproof.check import config
from stallproof.errors import BadInput

ALL = config.load()


def test_there_is_something_to_check():
    assert {c.kind for c in ALL} == {"ok", "gap", "mutant", "equal"}


def test_every_statement_of_the_promise_is_refuted_somewhere():
    """A statement that nothing refutes by name may say nothing."""
    every = {*config.INVARIANTS, *config.STEPS, *config.LIVE}
    assert every == {c.refutes for c in ALL if c.has_twin and c.refutes}
    for module in ("Blocks", "Measure"):
        mine = [c for c in ALL if c.module == module]
        stated = {s for c in mine for s in (*c.invariants, *c.properties)}
        assert stated == {c.refutes for c in mine if c.refutes}


@pytest.mark.parametrize("cfg", [c for c in ALL if c.kind == "mutant"], ids=lambda c: c.name)
def test_a_mutant_has_one_fault_and_says_which(cfg):
    assert cfg.cause
    assert (cfg.tla != cfg.tla_fixed) != bool(cfg.replaced)
    if cfg.replaced:
        assert cfg.replaced[cfg.operator] in cfg.definition


@pytest.mark.parametrize("cfg", [c for c in ALL if c.kind == "gap"], ids=lambda c: c.name)
def test_a_gap_names_a_known_statement_and_its_cause(cfg):
    known = (
        {*config.INVARIANTS, *config.STEPS, *config.LIVE}
        if cfg.has_twin
        else {*cfg.invariants, *cfg.properties}
    )
    assert cfg.refutes in known
    assert cfg.cause
    assert cfg.tla != cfg.tla_fixed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[ok]]\nname = 'x'\nconstants = { B = 'many' }", "x: B = 'many' should be"),
        ("[[ok]]\nname = 'x'\n[[ok]]\nname = 'x'", "two configurations"),
        ("[[gap]]\nname = 'x'", "needs 'refutes'"),
        ("[[mutant]]\nname = 'x'\nrefutes = 'Seated'", "a mutant needs"),
        ("[[mutant]]\nname = 'x'\nrefutes = 'Seated'\noperator = 'Seats'", "a mutant needs"),
        ("[[maybe]]\nname = 'x'", "unknown table"),
        ("[[ok]]\nname = 'x'\ncolour = 'red'", "unknown key 'colour'"),
        ("[[ok]]\nname = 'x'\nrules = 'Mine'", "unknown rules"),
        ("[[ok", "configs.toml"),
    ],
)
def test_a_wrong_file_is_one_error(tmp_path, text, message):
    path = tmp_path / "configs.toml"
    path.write_text(text)
    with pytest.raises(BadInput, match=message):
        config.load(path)
