"""What ``stallproof run`` refuses before, and instead of, a run: one clear error, exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallproof import cli, engines
from stallproof.errors import BadInput
from stallproof.harness.config import scheduler_class

SCENARIO = str(Path(__file__).with_name("wedge-57841.toml"))


def refused(capsys, *args: str) -> str:
    with pytest.raises(SystemExit) as end:
        cli.main(["run", SCENARIO, *args])
    assert end.value.code == 2
    return capsys.readouterr().err


def test_no_parent_folder_is_made(tmp_path, capsys):
    path = tmp_path / "no" / "x.jsonl"
    assert f"{path}: cannot write there" in refused(capsys, "-o", str(path))
    assert not path.parent.exists()


def test_a_folder_is_no_trace_file(tmp_path, capsys):
    assert "cannot write there: Is a directory" in refused(capsys, "-o", str(tmp_path))


def test_an_existing_trace_is_not_touched_by_the_look(tmp_path):
    from stallproof.cli.run import writable

    path = tmp_path / "x.jsonl"
    writable(path, folder=False)
    assert not path.exists()
    path.write_text("kept")
    writable(path, folder=False)
    assert path.read_text() == "kept"
    writable(tmp_path / "traces", folder=True)
    assert list((tmp_path / "traces").iterdir()) == []


def test_a_trace_overwrites_neither_a_scenario_nor_another_trace(tmp_path, capsys):
    text = Path(SCENARIO).read_text()
    here = tmp_path / "x.toml"
    here.write_text(text)
    with pytest.raises(SystemExit) as end:
        cli.main(["run", str(here), "-o", str(here)])
    assert end.value.code == 2
    assert "it is an input, too" in capsys.readouterr().err
    assert here.read_text() == text
    assert "one trace would overwrite the other" in refused(capsys, str(here), "-o", str(tmp_path / "traces"))
    assert not (tmp_path / "traces").exists()


def test_nothing_run_is_not_fine(tmp_path, capsys):
    here = tmp_path / "x.toml"
    here.write_text('versions = ["0.23.0"]\n' + Path(SCENARIO).read_text())
    with pytest.raises(SystemExit) as end:
        cli.main(["run", str(here), "--vllm", "0.32.0"])
    assert end.value.code == 2
    assert "nothing to run: made for 0.23.0 only" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["no.such.Class", "json.NoSuchClass", "json.dumps", "json.JSONDecoder"])
def test_a_dotted_name_that_is_no_scheduler(name):
    with pytest.raises(BadInput, match=name.replace(".", r"\.")):
        scheduler_class(name, 2)


def test_an_engine_reads_its_files_as_utf8(monkeypatch):
    monkeypatch.setenv("PYTHONUTF8", "0")
    engine = engines.Engine(version="0.0.0", python=Path("python"), path=())
    assert engine.env()["PYTHONUTF8"] == "1"
