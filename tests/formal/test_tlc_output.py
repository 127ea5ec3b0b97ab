"""Reading TLC's -tool output: no verdict is never success."""

import pytest

from stallproof.check import tlc

START = "@!@!@STARTMSG {}:{} @!@!@\n{}\n@!@!@ENDMSG {} @!@!@\n"


def msg(code, body, kind=0):
    return START.format(code, kind, body, code)


def test_success_with_counts():
    r = tlc.read(
        msg(
            2193,
            "Model checking completed. No error has been found.\n  calculated (optimistic):  val = 6.0E-13",
        )
        + msg(2199, "6648 states generated, 3380 distinct states found, 0 states left on queue.")
        + msg(2194, "The depth of the complete state graph search is 31.")
    )
    assert (r.result, r.distinct, r.generated, r.depth, r.collision) == (tlc.OK, 3380, 6648, 31, "6.0E-13")


@pytest.mark.parametrize(
    ("code", "body", "result"),
    [
        (2110, "Invariant NoWedge is violated.", "NoWedge"),
        (2107, "Invariant InFlightSafe is violated by the initial state:", "InFlightSafe"),
        (2112, "Action property NoZeroPre is violated.", "NoZeroPre"),
        (2116, "Temporal properties were violated.", tlc.LIVENESS),
    ],
)
def test_violations_are_named(code, body, result):
    assert tlc.read(msg(code, body, 1)).result == result


def test_trace_and_lasso():
    r = tlc.read(
        msg(2217, "1: <Initial predicate>\n/\\ s = [a |-> 1]\n/\\ t = <<>>", 4)
        + msg(2217, "2: <Schedule line 3, col 1 to line 4, col 2 of module M>\ns = [a |-> 2]", 4)
        + msg(2122, "Back to state 1: <Schedule line 3>", 4)
    )
    assert [t.action for t in r.trace] == ["", "Schedule"]
    assert r.trace[0].values == {"s": {"a": 1}, "t": ()}
    assert r.loop_to == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Error: Could not find or load main class tlc2.TLC",
        msg(2103, "TLC threw an exception", 1),
        "@!@!@STARTMSG",
    ],
)
def test_no_verdict_is_broken_and_says_why(text):
    r = tlc.read(text)
    assert r.result == tlc.BROKEN
    assert r.error


@pytest.fixture
def stuck(tmp_path, monkeypatch):
    """A Java that notes its arguments, reports once, says that this was an hour from now, and never ends."""
    java = tmp_path / "java"
    java.write_text(
        "#!/bin/sh\n"
        f'echo "$@" > {tmp_path}/args\n'
        "echo '@!@!@STARTMSG 2200:0 @!@!@'\n"
        "echo 'Progress(4) at 2026: 1,300 states generated (1 s/min), 1,000 distinct states found.'\n"
        "echo '@!@!@ENDMSG 2200 @!@!@'\n"
        "touch -d '+1 hour' /proc/$$/fd/1\n"
        "exec sleep 60\n"
    )
    java.chmod(0o755)
    monkeypatch.setattr(tlc.tools, "java", lambda: java)
    return tmp_path


def test_a_large_run_at_its_time_limit_is_unfinished_with_its_counts(stuck):
    """The counts are those that the run itself reported last; without any there is no verdict."""
    r = tlc.run("Properties", {}, timeout=2, keep=stuck / "kept")
    assert (r.result, r.distinct, r.collision) == (tlc.UNFINISHED, 1000, "1.6E-14")
    assert tlc.run("Properties", {}, timeout=2).result == tlc.BROKEN


def test_the_seconds_of_an_unfinished_run_are_those_of_its_last_report(stuck):
    """TLC reports a few seconds after the start, then each minute: with the limit, rates are far off."""
    assert tlc.run("Properties", {}, timeout=2, keep=stuck / "kept").seconds > 3000


@pytest.mark.parametrize(("may_use", "workers"), [({3}, 1), ({0, 1, 2, 3}, 2)])
def test_no_more_workers_than_cores_that_may_be_used(stuck, monkeypatch, may_use, workers):
    monkeypatch.setattr(tlc.os, "sched_getaffinity", lambda _: may_use)
    tlc.run("Properties", {}, timeout=1, workers=2)
    assert f"-workers {workers} " in (stuck / "args").read_text()
