"""The metrics endpoint over a real socket, and the dashboard and alert rules against what it serves."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stallproof.core.stall_watch import Kind, StallWatch
from stallproof.errors import BadInput
from stallproof.vllm import metrics
from stallproof.vllm.metrics import FAMILIES, KNOWN_LABELS, Reading, Server, port_of, start

MONITORING = Path(__file__).parents[2] / "docs" / "monitoring"
RULES, DASHBOARD = MONITORING / "stallproof.rules.yml", MONITORING / "grafana-dashboard.json"
NAME = re.compile(r"\b(?:stallproof_[a-z_]+|vllm:[a-z_]+)\b")
#: what the rules and the dashboard use of vLLM's own metrics
THEIRS = {"vllm:num_requests_running", "vllm:num_preemptions_total"}


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def busy() -> Reading:
    return Reading(
        stall_seconds={"wedge": 12.5},
        stalled=["wedge"],
        oldest_waiting_s=3.5,
        oldest_refused_s=2.5,
        load_starts_delayed=7,
        quarantined_blocks=5,
        fenced_blocks=6,
        evictions=4,
        preemptions_avoided=11,
        completions_ignored={"recv": 2},
        rule_fired={"commit": 4, "patience": 9},
        fallbacks={'connector "X"\n': 1},
        guard_faults={"allocate": 1},
        recorder_drops=3,
        rules=("GateLoads", "commit"),
        mode="shadow",
    )


def environ(port: int) -> dict[str, str]:
    return {"STALLPROOF_METRICS_PORT": str(port), "STALLPROOF_METRICS_HOST": "127.0.0.1"}


@pytest.fixture
def server() -> Iterator[Server]:
    made = start(busy, model_name="tiny/model", rank=0, environ=environ(free_port()))
    assert made is not None
    yield made
    made.close()


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read().decode()


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def test_every_value_is_served_with_vllm_s_labels(server: Server) -> None:
    got = samples(scrape(server.port))
    base = (("engine", "0"), ("model_name", "tiny/model"))

    def value(name: str, **labels: str) -> float:
        return got[name, tuple(sorted((*base, *labels.items())))]

    assert value("stallproof_stall_seconds_total", kind="wedge") == 12.5
    assert value("stallproof_stall_seconds_total", kind="livelock") == 0
    assert value("stallproof_stalled", kind="wedge") == 1
    assert value("stallproof_stalled", kind="external_wait") == 0
    assert value("stallproof_oldest_waiting_age_seconds") == 3.5
    assert value("stallproof_oldest_refused_age_seconds") == 2.5
    assert value("stallproof_load_starts_delayed_total") == 7
    assert value("stallproof_quarantined_blocks") == 5
    assert value("stallproof_fenced_blocks") == 6
    assert value("stallproof_evictions_total") == 4
    assert value("stallproof_preemptions_avoided_total") == 11
    assert value("stallproof_completions_ignored_total", kind="recv") == 2
    assert value("stallproof_rule_fired_total", rule="patience") == 9
    assert value("stallproof_fallbacks_total", reason='connector "X"\n') == 1
    assert value("stallproof_guard_faults_total", hook="allocate") == 1
    assert value("stallproof_recorder_drops_total") == 3
    info = [labels for (name, labels) in got if name == "stallproof_info"]
    assert dict(info[0])["rules"] == "GateLoads,commit"
    assert dict(info[0])["mode"] == "shadow"


def test_labels_are_those_of_the_engine() -> None:
    """Same label names as vLLM's metrics, or the dashboard's joins are empty."""
    assert set(metrics.LABELS) == {"engine", "model_name"}


def test_every_kind_of_stall_is_a_series_from_the_start() -> None:
    assert set(KNOWN_LABELS["stall_seconds"]) == {k.value for k in Kind} == set(StallWatch().seconds)


@pytest.mark.parametrize(
    ("text", "rank", "port"),
    [("9400", 0, 9400), ("9400", 3, 9403), ("", 0, None), (" 9400 ", 1, 9401)],
)
def test_one_port_per_data_parallel_rank(text: str, rank: int, port: int | None) -> None:
    assert port_of(rank, {"STALLPROOF_METRICS_PORT": text}) == port


@pytest.mark.parametrize("text", ["http", "-1", "0", "65536", "9400.5", "٣٤٥"])
def test_what_is_no_port_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadInput, match="STALLPROOF_METRICS_PORT"):
        start(busy, model_name="m", environ={"STALLPROOF_METRICS_PORT": text})


def test_off_by_default(caplog: pytest.LogCaptureFixture) -> None:
    assert start(busy, model_name="m", environ={}) is None
    assert caplog.records == []


def test_a_port_in_use_does_not_stop_the_engine(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    assert start(busy, model_name="m", environ=environ(server.port)) is None
    assert sum(r.levelname == "WARNING" for r in caplog.records) == 1
    assert "no metrics" in caplog.text


def test_two_ranks_side_by_side() -> None:
    port = free_port()
    made = [start(busy, model_name="m", rank=r, environ=environ(port)) for r in (0, 1)]
    try:
        for r, one in enumerate(made):
            assert one is not None
            assert f'engine="{r}"' in scrape(port + r)
    finally:
        for one in made:
            if one is not None:
                one.close()


def test_a_scrape_meets_a_mapping_that_grows() -> None:
    """The scheduling thread adds a rule while a scrape copies the mapping."""
    live: dict[str, float] = {}
    made = start(lambda: Reading(rule_fired=live), model_name="m", environ=environ(free_port()))
    assert made is not None
    stop = threading.Event()

    def grow() -> None:
        i = 0
        while not stop.is_set():
            live[f"rule{i % 5000}"] = i
            i += 1
            if i % 5000 == 0:
                live.clear()

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        for _ in range(20):
            assert "stallproof_info" in scrape(made.port)
    finally:
        stop.set()
        thread.join()
        made.close()


# ---------------------------------------------------------------- rules and dashboard


def served() -> set[str]:
    names = {f"stallproof_{n}" + ("_total" if kind == "counter" else "") for n, kind, *_ in FAMILIES}
    return names | {"stallproof_stalled", "stallproof_info"} | THEIRS


def expressions() -> list[str]:
    found = [t["expr"] for p in json.loads(DASHBOARD.read_text())["panels"] for t in p["targets"]]
    text = RULES.read_text()
    return found + re.findall(r"expr: (?:>-\n)?((?:.|\n)*?)\n        (?:for|labels):", text)


def unknown(texts: list[str]) -> set[str]:
    return {name for text in texts for name in NAME.findall(text)} - served()


def test_rules_and_dashboard_name_only_what_is_served(server: Server) -> None:
    assert len(expressions()) > 20
    assert unknown(expressions()) == set()
    assert unknown(["rate(stallproof_stal_seconds_total[5m])"]) == {"stallproof_stal_seconds_total"}
    live = {name for name, _ in samples(scrape(server.port))}
    assert served() - THEIRS == live


def test_every_family_is_on_the_dashboard() -> None:
    text = DASHBOARD.read_text()
    assert {n for n in served() - THEIRS if n not in text} == set()


def test_dashboard_has_the_form_that_grafana_loads() -> None:
    """No Grafana here: the fields that its importer needs, unique ids, panels that do not overlap."""
    board = json.loads(DASHBOARD.read_text())
    assert board["schemaVersion"] >= 36
    assert board["uid"]
    assert {v["name"] for v in board["templating"]["list"]} == {"datasource", "model", "engine"}
    panels = board["panels"]
    assert len({p["id"] for p in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for p in panels:
        g = p["gridPos"]
        assert g["x"] + g["w"] <= 24
        cells = {(x, y) for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])}
        assert not cells & taken
        taken |= cells
        assert p["type"] in {"stat", "table", "timeseries"}
        assert p["title"]
        assert p["targets"]
        assert {"unit"} <= set(p["fieldConfig"]["defaults"])
        assert len({t["refId"] for t in p["targets"]}) == len(p["targets"])


@pytest.fixture(scope="module")
def promtool() -> str:
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("no promtool; remedy: apt-get install prometheus")
    return path


def check(*args: object, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, args)], input=stdin, capture_output=True, text=True, timeout=60)


def test_promtool_accepts_the_rules_and_their_unit_tests(promtool: str) -> None:
    done = check(promtool, "check", "rules", RULES)
    assert done.returncode == 0, done.stdout + done.stderr
    done = check(promtool, "test", "rules", MONITORING / "stallproof.rules.test.yml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("edit", ["== 1", "> 120", "> 60", "> 0\n        for: 10m", "unless on"])
def test_promtool_s_unit_tests_see_a_broken_rule(promtool: str, edit: str, tmp_path: Path) -> None:
    """Each unit test can fail: the threshold or join turned round is noticed."""
    text = RULES.read_text()
    assert edit in text
    turned = {"== 1": "== 2", "unless on": "and on"}.get(edit, edit.replace("> ", "< "))
    (tmp_path / RULES.name).write_text(text.replace(edit, turned, 1))
    test = tmp_path / "test.yml"
    test.write_text((MONITORING / "stallproof.rules.test.yml").read_text())
    assert check(promtool, "test", "rules", test).returncode != 0


def test_promtool_accepts_the_exposition(promtool: str, server: Server) -> None:
    done = check(promtool, "check", "metrics", stdin=scrape(server.port))
    assert done.returncode == 0, done.stdout + done.stderr
    bad = check(promtool, "check", "metrics", stdin="# TYPE x counter\nx{ 1\n")
    assert bad.returncode != 0


def test_promtool_parses_every_dashboard_query(promtool: str, tmp_path: Path) -> None:
    texts = [t["expr"] for p in json.loads(DASHBOARD.read_text())["panels"] for t in p["targets"]]
    filled = [t.replace("$__rate_interval", "5m").replace("$__range", "1h").replace("$", "") for t in texts]
    rules = [{"record": f"q{i}", "expr": t} for i, t in enumerate(filled)]
    path = tmp_path / "queries.yml"
    path.write_text(json.dumps({"groups": [{"name": "q", "rules": rules}]}))
    done = check(promtool, "check", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_real_prometheus_scrapes_and_alerts(server: Server, tmp_path: Path) -> None:
    """Prometheus itself, on loopback: it loads the rules, reads the metrics, and the alert is pending."""
    path = shutil.which("prometheus")
    if path is None:
        pytest.skip("no prometheus; remedy: apt-get install prometheus")
    port = free_port()
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {"job_name": "stallproof", "static_configs": [{"targets": [f"127.0.0.1:{server.port}"]}]}
        ],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))
    process = subprocess.Popen(
        [path, f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}",
         f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"],
    )  # fmt: skip

    def ask(what: str, **query: str) -> dict:
        url = f"http://127.0.0.1:{port}/api/v1/{what}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            return json.load(answer)["data"]

    try:
        wanted = {"StallproofEngineStalled", "StallproofQuarantinedBlocks"}
        seen: set[str] = set()
        for _ in range(120):
            try:
                seen = {a["labels"]["alertname"] for a in ask("alerts")["alerts"]}
            except OSError:
                seen = set()
            if wanted <= seen:
                break
            time.sleep(0.5)
        assert wanted <= seen
        [found] = ask("query", query="stallproof_stall_seconds_total{kind='wedge'}")["result"]
        assert found["value"][1] == "12.5"
        assert found["metric"]["model_name"] == "tiny/model"
        groups = ask("rules")["groups"]
        assert {r["health"] for g in groups for r in g["rules"]} == {"ok"}
    finally:
        process.terminate()
        process.wait(timeout=30)
