"""`stallproof check` end to end."""

import json
import subprocess
import sys

import pytest


def check(*args, **env):
    import os

    return subprocess.run(
        [sys.executable, "-m", "stallproof", "check", *args],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        timeout=300,
    )


def test_unknown_name_is_bad_input():
    p = check("no-such-configuration")
    assert p.returncode == 2
    assert "no configuration" in p.stderr
    assert "Traceback" not in p.stderr


@pytest.mark.parametrize("variable", ["JAVA", "TLA2TOOLS_JAR"])
def test_a_missing_tool_is_unsupported(variable):
    p = check("ping-pong", **{variable: "/nowhere/at/all"})
    assert p.returncode == 3
    assert variable in p.stderr
    assert "Traceback" not in p.stderr


def test_a_jar_that_is_no_jar_fails(tmp_path):
    jar = tmp_path / "x.jar"
    jar.write_text("not a jar")
    p = check("ping-pong", "--json", TLA2TOOLS_JAR=str(jar))
    assert p.returncode == 1
    assert json.loads(p.stdout)["rows"][0]["result"] == "broken"


@pytest.mark.slow
def test_json_of_one_of_each_kind():
    p = check("ping-pong", "one-order-impatient", "equal-native-dropped", "--json")
    doc = json.loads(p.stdout)
    assert p.returncode == 0, p.stdout
    assert [r["kind"] for r in doc["rows"]] == ["ok", "gap", "equal"]
    assert all(r["good"] for r in doc["rows"])


@pytest.mark.slow
def test_a_time_out_is_a_failure():
    p = check("one-order", "--timeout", "0.5", "--json")
    assert p.returncode == 1
    assert "no verdict" in json.loads(p.stdout)["rows"][0]["note"]
