"""pytest plug-in: the trace checker under somebody's existing scheduler tests.

    pytest -p stallproof.pytest_plugin --stallproof tests/v1/core
    pytest -p stallproof.pytest_plugin --stallproof --stallproof-class my_fork.scheduler.Scheduler

Every scheduler that a test makes is recorded while the test runs, and the recording is checked: block safety
and the engine contract (``--stallproof-layer ledger``, the default), with ``progress`` also the promise's
monitors. A test whose calls diverge fails with the property by name; with ``--stallproof-report`` it only
says so, and the run ends with a table. vLLM's own classes are replaced in their modules before any test is
imported; ``--stallproof-class`` names others. How many batches a test keeps in flight is its own business.

Tests that reach into a scheduler from outside (mocks, hand-made outputs, steps processed out of order) do
what no engine does; mark them ``@pytest.mark.stallproof(skip="why")``.
"""

from __future__ import annotations

import importlib
import weakref
from collections import Counter
from typing import Any

import pytest

from stallproof.trace import schema as s
from stallproof.trace.checker import Checker, Options
from stallproof.trace.ledger import Violation
from stallproof.trace.reader import Batch

#: classes that are checked unless others are named
CLASSES = (
    "vllm.v1.core.sched.scheduler.Scheduler",
    "vllm.v1.core.sched.async_scheduler.AsyncScheduler",
)
_watching: list[Watch] = []


class Watch:
    """One scheduler under one test: records go straight into a checker."""

    def __init__(self, sched: Any, options: Options) -> None:
        from stallproof.vllm.describe import config_of, engine_of, rules_of
        from stallproof.vllm.recording import attach

        self.checker = Checker(options)
        self.line = 1
        self.over = ""
        rec = attach(sched, self.put)
        self.rec = weakref.ref(rec)
        config = config_of(sched)
        config.depth = 1 << 20
        self.put(
            s.Header(
                schema=s.SCHEMA,
                run="pytest",
                source="harness",
                engine=engine_of(sched),
                config=config,
                clock=s.Clock("", 0.0),
                rules=rules_of(sched),
                state=rec.probe.snapshot(),
            )
        )

    def put(self, record: s.Record) -> None:
        """Check one record; a fault of the checker never reaches the test."""
        if self.over:
            return
        try:
            if isinstance(record, s.Note) and record.kind == "crash":
                self.over = "an exception left the scheduler"  # what it did half is not judged
            elif not self.checker.run([Batch("this test", self.line, [record], 0)]):
                self.over = "diverged"
        except Exception as exc:
            self.over = f"the checker failed: {type(exc).__name__}: {exc}"
        self.line += 1

    @property
    def violations(self) -> list[Violation]:
        return self.checker.out.violations


def checked(base: type, options: Options | None = None) -> type:
    """``base`` whose instances are recorded and checked from the moment they are made."""
    from stallproof.vllm.recording import recorded

    outer = recorded(base)
    what = options or Options(layers=("ledger",))

    class Checked(outer):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if self._sp_rec is None:  # not by STALLPROOF_TRACE already
                _watching.append(Watch(self, what))

    Checked.__name__ = Checked.__qualname__ = base.__name__
    Checked.__module__ = base.__module__
    return Checked


class Plugin:
    """State of one pytest run."""

    def __init__(self, config: pytest.Config | Any) -> None:
        o = config.known_args_namespace
        self.layers = tuple(o.stallproof_layer or ("ledger",))
        options = Options(layers=self.layers, ignore=frozenset(o.stallproof_ignore or ()))
        self.report = bool(o.stallproof_report)
        self.found: list[tuple[str, Violation]] = []
        self.notes: Counter[str] = Counter()
        self.calls = self.events = self.schedulers = self.tests = 0
        for name in o.stallproof_class or CLASSES:
            module_name, _, attribute = name.rpartition(".")
            module = importlib.import_module(module_name)
            setattr(module, attribute, checked(getattr(module, attribute), options))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        del _watching[:]
        failure: BaseException | None = None
        result = None
        try:
            result = yield
        except BaseException as exc:  # a test that fails by itself is judged too
            failure = exc
        seen, _watching[:] = list(_watching), []
        for watch in seen:
            led = watch.checker.ledger
            self.calls += led.calls
            self.events += led.events
            if watch.over and watch.over != "diverged":
                self.notes[watch.over] += 1
        self.schedulers += len(seen)
        self.tests += bool(seen)
        bad = [v for watch in seen for v in watch.violations]
        if bad and not item.get_closest_marker("stallproof"):
            self.found.append((item.nodeid, bad[0]))
            if failure is None and not self.report:
                pytest.fail(text(bad[0], seen), pytrace=False)
            item.add_report_section("call", "stallproof", text(bad[0], seen))
        if failure is not None:
            raise failure
        return result

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        tr = terminalreporter
        tr.section("stallproof")
        tr.write_line(
            f"{self.tests} tests made {self.schedulers} schedulers: {self.calls} calls, {self.events} events "
            f"checked ({', '.join(self.layers)}); {len(self.found)} tests diverge"
        )
        for rule, n in Counter(v.rule for _, v in self.found).most_common():
            tr.write_line(f"  {rule}: {n}")
        for name, v in self.found:
            tr.write_line(f"  {v.rule}: {name}: {v.text}")
        for note, n in self.notes.most_common():
            tr.write_line(f"  not judged to the end ({n}): {note}")


def text(v: Violation, watches: list[Watch]) -> str:
    """A violation for a test report."""
    lines = [
        f"{v.rule}: {v.text}",
        f"  step {v.step}, field {v.field}: expected {v.expected}, observed {v.observed}",
    ]
    for watch in watches:
        if v in watch.violations:
            lines += [f"  {x}" for x in watch.checker.out.waits]
    return "\n".join(lines)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("stallproof", "block safety and progress of LLM schedulers")
    group.addoption(
        "--stallproof", action="store_true", help="record and check every scheduler of every test"
    )
    group.addoption("--stallproof-report", action="store_true", help="say what diverges, fail nothing")
    group.addoption(
        "--stallproof-class", action="append", metavar="NAME", help="dotted name of a class to check"
    )
    group.addoption("--stallproof-ignore", action="append", metavar="RULE", help="a rule not to report")
    group.addoption("--stallproof-layer", action="append", choices=["ledger", "progress", "policy"],
                    help="layers to check (default: ledger)")  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: Any) -> None:
    """Before any conftest or test module: the classes they import are the checked ones."""
    if early_config.known_args_namespace.stallproof:
        early_config.pluginmanager.register(Plugin(early_config), "stallproof-run")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "stallproof(skip): do not judge this test's schedulers")
    if config.getoption("stallproof") and not config.pluginmanager.has_plugin("stallproof-run"):
        config.pluginmanager.register(Plugin(config), "stallproof-run")
