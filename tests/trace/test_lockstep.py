"""Random workloads on real schedulers, every call checked: stock keeps the contract, ours keeps the promise.

``STALLPROOF_LOCKSTEP=1000`` runs so many workloads per release on both classes (default 60),
``STALLPROOF_DRAWN`` so many drawn by Hypothesis (default 15), ``STALLPROOF_MATRIX`` names other releases.
Most workloads come from seeds, because a number names one for ever and the engine process can work ahead;
those that Hypothesis draws lean to extremes, and a failing one is shrunk.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stallproof import engines
from stallproof.trace.contract import CLAUSES

from .lockstep import CLASSES, CONTRACT, WORKER, Outcome, Worker, failures, findings, run, table
from .workloads import scenario, toml

COUNT = int(os.environ.get("STALLPROOF_LOCKSTEP", "700"))
FIRST = int(os.environ.get("STALLPROOF_LOCKSTEP_SEED", "0"))
DRAWN = int(os.environ.get("STALLPROOF_DRAWN", "15"))
VERSIONS = tuple(os.environ.get("STALLPROOF_MATRIX", " ".join(engines.CI)).split())
#: seeds that once found a fault of ours, of the recorder's or of the harness's; always run
FOUND = (23, 45, 48)

#: drawn and shrunk by Hypothesis: the load of an aborted request has ended, its send takes longer than the
#: load's deadline; the load must not be given up (its blocks would wait for a second report for ever)
ENDED_LOAD = """
id = "ended-load"
title = "a load that has ended does not expire"
source = ["generated"]
steps = 90
[engine]
blocks = 5
depth = 1
budget = 32
role = "kv_both"
[[request]]
id = "a"
prompt = 2
abort = 1
must_finish = false
load = { tokens = 2, delay = 1 }
send = { delay = 25 }
[[request]]
id = "b"
prompt = 8
max_tokens = 60
"""


def test_the_kept_configurations_stand_for_their_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """What 0.29 and 0.30 import with the first scheduler has ``ModelConfig | None`` in an annotation."""

    class ModelConfig:
        limit = 3

        def __init__(self, model: str) -> None:
            self.model = model

    stub = SimpleNamespace(ModelConfig=ModelConfig)
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(config=stub))
    monkeypatch.setitem(sys.modules, "vllm.config", stub)
    monkeypatch.setattr(sys, "path", [str(WORKER.parent), *sys.path])
    spec = spec_from_file_location("lockstep_engine", WORKER)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.cache_models()
    kept: Any = stub.ModelConfig
    assert kept is not ModelConfig
    assert (kept | None, None | kept) == (ModelConfig | None, None | ModelConfig)
    first, second = kept(model="a"), kept(model="a")
    assert (first.model, second.model, kept(model="b").model, kept.limit) == ("a", "a", "b", 3)
    assert first is not second


on_engine = [pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module", params=VERSIONS)
def worker(request):
    with Worker(request.param) as w:
        yield w


@cache
def runs(w: Worker) -> dict[str, Outcome]:
    seeds = range(FIRST, FIRST + COUNT)
    return run(w, [*seeds, *(x for x in FOUND if x not in seeds)])


class TestEngines:
    pytestmark = on_engine

    def test_stock_keeps_the_contract(self, worker):
        bad = [v for v in runs(worker)["stock"].violations if v[1] in CONTRACT]
        assert not bad, bad[0]

    def test_ours_keeps_the_promise(self, worker):
        o = runs(worker)["stallproof"]
        assert not o.violations, f"{len(o.violations)} of {o.workloads}: {o.violations[0]}"
        assert not o.harness, o.harness[0]
        assert not o.died

    def test_every_clause_was_exercised(self, worker):
        """A run in which nothing happened proves nothing."""
        short = {c: runs(worker)[c].short(c) for c in CLASSES}
        assert not any(short.values()), short

    def test_nothing_else_fails(self, worker):
        """No error of the harness, and block tables equal the engine's own after every call."""
        assert not failures(worker.version, runs(worker))

    def test_copies_of_partial_hits_are_recorded(self, worker):
        """Copy-on-write keeps both ends of a copy out of the pool until it has run; releases before 0.28
        have none."""
        jobs = [{"seed": seed, "partial": True} for seed in range(100, 112)]
        r = {c: Outcome() for c in CLASSES}
        for i, answer in enumerate(worker.ask(jobs)):
            for c in CLASSES:
                r[c].add(f"w{100 + i}", answer[c])
        assert not [text for text in failures(worker.version, r) if "exercised" not in text]
        copies = tuple(map(int, worker.version.split(".")[:2])) >= (0, 28)
        for c in CLASSES:
            assert (r[c].events["pin"] > 0) == (r[c].events["unpin"] > 0) == copies

    def test_a_load_that_has_ended_does_not_expire(self, worker):
        (answer,) = worker.ask([{"toml": ENDED_LOAD}])
        o = Outcome()
        o.add("ended-load", answer["stallproof"])
        wrong = o.violations or o.harness or o.errors
        assert not wrong
        assert o.events["recv"] == 1
        assert o.events["stored"] == 1
        assert not o.events["quarantine"]

    def test_workloads_that_once_broke_a_promise(self, worker):
        """A failed load that was evicted, a cancelled load that a send kept, rule R without look-ahead."""
        for n, answer in zip(ONCE, worker.ask([{"seed": n} for n in ONCE]), strict=True):
            o = Outcome()
            o.add(f"w{n}", answer["stallproof"])
            wrong = o.violations or o.errors or o.blind
            assert not wrong, f"w{n}: {wrong}"

    def test_drawn_workloads(self, worker):
        @settings(
            max_examples=DRAWN,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(rng=st.randoms(use_true_random=False))
        def drawn(rng):
            text = toml(scenario(rng))
            (answer,) = worker.ask([{"toml": text}])
            for c in CLASSES:
                o = Outcome()
                o.add("drawn", answer[c])
                bad = [v for v in o.violations if c == "stallproof" or v[1] in CONTRACT]
                wrong = bad or o.errors or o.blind
                assert not wrong, f"{c}: {wrong}\n{text}"

        drawn()


#: numbers of such workloads
ONCE = (606, 823, 1213, 1423, 1529, 1809)


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.timeout(600)
def test_a_fork_that_lost_its_fence_is_found():
    """The same workloads see it when an engine hands out blocks that a step in flight still writes."""
    with Worker("0.32.0") as w:
        jobs = [{"seed": s, "engine": {"base": "lost_fence"}, "schedulers": ["stock"]} for s in range(60)]
        found = [answer["stock"]["violations"][:1] for answer in w.ask(jobs)]
    assert {v[0][0] for v in found if v} >= {"InFlightSafe"}


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_workloads_are_scenarios(seed, tmp_path_factory):
    """Whatever the generator makes is a valid scenario file."""
    from stallproof.scenario import load

    path = tmp_path_factory.getbasetemp() / "generated.toml"
    path.write_text(toml(scenario(seed)))
    assert load(path).request


@settings(max_examples=10, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_drawn_workloads_are_scenarios(rng, tmp_path_factory):
    from stallproof.scenario import load

    path = tmp_path_factory.getbasetemp() / "drawn.toml"
    path.write_text(toml(scenario(rng)))
    assert load(path).request


def outcome(stock_rule="", ours_rule="", counts=1 << 20):
    r = {c: Outcome(workloads=40, calls=400) for c in CLASSES}
    for c, rule in (("stock", stock_rule), ("stallproof", ours_rule)):
        r[c].counts.update(dict.fromkeys(CLAUSES, counts))
        if rule:
            r[c].violations.append(("w1", rule, "ledger", 7, "text"))
    return r


def test_the_run_can_fail():
    assert not failures("1", outcome())
    assert not failures("1", outcome(stock_rule="NoStarvation")), "what stock may break is no failure"
    assert "w1 breaks Tokens" in failures("1", outcome(stock_rule="Tokens"))[0]
    assert "w1 breaks NoStarvation" in failures("1", outcome(ours_rule="NoStarvation"))[0]
    assert len(failures("1", outcome(counts=0))) == 2 * len(CLAUSES)
    blind = outcome()
    blind["stock"].blind.append("w1: blocks of a")
    assert failures("1", blind)


def test_the_table_names_every_clause():
    text = table({"1": outcome()})
    assert all(f"`{name}`" in text for name in CLAUSES)
    assert "NoStarvation in 1" in findings({"1": outcome(stock_rule="NoStarvation")})
