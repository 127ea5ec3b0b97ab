"""The scenario format: what is refused, and how; expectations by release."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallproof import scenario
from stallproof.errors import BadInput
from stallproof.harness.spawn import Job

GOOD = """
id = "x"
title = "t"
source = ["s"]
[engine]
blocks = 4
role = "kv_both"
[[request]]
id = "A"
prompt = 20
load = { tokens = 16 }
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "x.toml"
    path.write_text(text)
    return path


def test_a_good_file(tmp_path: Path) -> None:
    s = scenario.load(write(tmp_path, GOOD))
    assert (s.engine.blocks, s.request[0].load.tokens, s.engine.depth) == (4, 16, 2)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (("blocks = 4", "blocks = 0"), "$.engine.blocks"),
        (("blocks = 4", "blocks = 'many'"), "$.engine.blocks"),
        (("blocks = 4", "bloks = 4"), "bloks"),
        (("prompt = 20", "prompt = 2000"), "request[0] (A).prompt"),
        (("prompt = 20", "prompt = 20\nprefix_tokens = 21"), "prefix_tokens"),
        (('role = "kv_both"', ""), "engine.role"),
        (("tokens = 16", "tokens = 21"), "load.tokens"),
        (("tokens = 16", 'tokens = 16, outcome = "explodes"'), "outcome"),
        (('id = "A"', 'id = "A"\ncount = 0'), "count"),
        (("[[request]]", "[[requests]]"), "requests"),
        (("[engine]", "[engine"), "is not TOML"),
        (("[engine]", ".".join(["a"] * 50_000) + " = 1\n[engine]"), "a line of 100,003 characters"),
    ],
)
def test_a_bad_file_is_one_error_naming_file_and_field(
    tmp_path: Path, change: tuple[str, str], named: str
) -> None:
    path = write(tmp_path, GOOD.replace(*change))
    with pytest.raises(BadInput) as error:
        scenario.load(path)
    assert str(path) in str(error.value)
    assert named in str(error.value)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("blocks = 4", "blocks = 0"), 6),
        (("blocks = 4", "# bloks = 4\nbloks = 4"), 7),
        (('role = "kv_both"', 'role = "kv_both"\nroles = 3'), 8),
        (("tokens = 16", 'tokens = 16, outcome = "explodes"'), 11),
        (("[[request]]", '[[request]]\nid = "B"\nprompt = 1\n[[request]]\nprompts = 1'), 12),
        (("[[request]]", "[[requests]]"), 8),
        (("blocks = 4", ""), 5),  # required: the table that lacks it
    ],
)
def test_the_line_is_named(tmp_path: Path, change: tuple[str, str], line: int) -> None:
    with pytest.raises(BadInput) as error:
        scenario.load(write(tmp_path, GOOD.replace(*change)))
    assert error.value.line == line


@pytest.mark.parametrize(
    "entry", ['"0.24.0" = "NoSuchThing"', '"all of them" = "NoWedge"', '"0.1..0.2..0.3" = "ok"']
)
def test_a_bad_expectation(tmp_path: Path, entry: str) -> None:
    with pytest.raises(BadInput, match=r"expect"):
        scenario.load(write(tmp_path, GOOD + f"[expect.stock]\n{entry}\n"))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (("prompt = 20", "prompt = " + "9" * 5000), "is not TOML"),
        (("prompt = 20", "prompt = 20\ncount = 1000000000000"), "request: more than"),
        (("blocks = 4", "blocks = 10000000000000"), "blocks"),
        (('id = "A"', 'id = ""'), "is empty"),
        (('id = "x"', 'id = "../../x"'), "part of a file name"),
        (('id = "x"', 'id = ""'), "part of a file name"),
        (('id = "x"', f'id = "{"a" * 400}"'), "part of a file name"),
        (('id = "x"', r'id = "\u001b[31m"'), "part of a file name"),
    ],
)
def test_numbers_and_names_that_no_machine_can_take(
    tmp_path: Path, change: tuple[str, str], named: str
) -> None:
    with pytest.raises(BadInput, match=r"x\.toml(.|\n)*remedy") as error:
        scenario.load(write(tmp_path, GOOD.replace(*change)))
    assert named in str(error.value)


def test_twice_the_same_request(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="A1 is there twice"):
        scenario.load(
            write(
                tmp_path, GOOD.replace('id = "A"', 'id = "A"\ncount = 3') + '[[request]]\nid="A1"\nprompt=2\n'
            )
        )


def test_missing_binary_and_foreign_files(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none\.toml"):
        scenario.load(tmp_path / "none.toml")
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="UTF-8"):
        scenario.load(tmp_path / "b.toml")


def test_the_same_id_in_two_files(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    (tmp_path / "y.toml").write_text(GOOD)
    with pytest.raises(BadInput, match="is also that of"):
        scenario.load_all(tmp_path)


@pytest.mark.parametrize(
    ("version", "what"),
    [("0.23.0", "ok"), ("0.24.0", "NoZeroPre"), ("0.29.0", "NoZeroPre"), ("0.27.1", "NoWedge"),
     ("0.30.0", "ok"), ("0.33.0", "NoLeak")],
)  # fmt: skip
def test_expectation_by_release(version: str, what: str) -> None:
    table = {"0.24.0..0.29.0": "NoZeroPre", "0.27.1": "NoWedge", "0.31.0..": "NoLeak"}
    assert scenario.expected(table, version) == what


def test_job_line_is_one_line() -> None:
    assert "\n" not in Job(Path("a\nb.toml")).line()
