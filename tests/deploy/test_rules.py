"""The recording rules and alerts: well named, nothing unknown in them, each seen to fire."""

import re
import subprocess
from pathlib import Path

import promql_parser as promql
import pytest
import yaml
from prometheus_client import generate_latest

from s2sent.service.telemetry.metrics import DURATION_BUCKETS, Metrics
from tests.support import prometheus_process
from tests.support.monitoring import (
    DEPLOY,
    RULES,
    Json,
    Query,
    conditions,
    panel_queries,
    rule_queries,
    rules,
)
from tests.support.promql_labels import JOB, Catalogue

PROMETHEUS = DEPLOY / "prometheus"
CONFIG = PROMETHEUS / "prometheus.yml"
UNIT_TESTS = sorted((PROMETHEUS / "tests").glob("*.yml"))
EACH_ALERT = pytest.mark.parametrize("alert", rules("alert"), ids=lambda rule: rule["alert"])
EACH_QUERY = pytest.mark.parametrize(
    "query", rule_queries("record") + rule_queries("alert"), ids=str
)
NEEDS_PROMTOOL = pytest.mark.skipif(
    not prometheus_process.is_installed(), reason="promtool (Debian: prometheus) is not installed"
)


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue()


@EACH_QUERY
def test_every_rule_names_only_what_exists(query: Query, catalogue: Catalogue) -> None:
    """Metrics, labels, label values, bucket edges, and the labels its texts show."""
    labels = catalogue.labels(promql.parse(query.expr))
    assert set(re.findall(r"\$labels\.(\w+)", query.text)) <= labels


@pytest.mark.parametrize("query", rule_queries("record"), ids=str)
def test_a_recorded_name_begins_with_the_labels_it_has(query: Query, catalogue: Catalogue) -> None:
    """As level:metric:operation."""
    level, metric, operation = query.where.split(":")
    assert set(level.split("_")) == catalogue.labels(promql.parse(query.expr))
    assert metric.startswith("s2sent_")
    assert operation


def test_every_recorded_series_is_read_somewhere() -> None:
    readers = panel_queries() + rule_queries("record") + rule_queries("alert")
    for rule in rules("record"):
        assert any(rule["record"] in reader.expr for reader in readers), rule["record"]


@EACH_ALERT
def test_an_alert_tells_what_to_do(alert: Json) -> None:
    assert re.fullmatch(r"S2Sent[A-Z][A-Za-z]+", alert["alert"])
    assert alert["labels"]["severity"] in ("critical", "warning")
    notes = alert["annotations"]
    assert set(notes) == {"summary", "description", "runbook_url"}
    assert notes["summary"].endswith(".")
    assert notes["runbook_url"] == f"docs/operations.md#alert-{alert['alert'].lower()}"


@EACH_ALERT
def test_an_alert_compares_something(alert: Json) -> None:
    """What is compared is known, so the live test can see that it has a value."""
    quantities = conditions(alert["expr"])
    assert quantities
    assert alert["expr"] not in quantities


def test_conditions_are_split_down_to_what_is_compared() -> None:
    expr = "(a > 2 * 0.1 and rate(b[5m]) == 0) or absent(c == 1) unless d"
    assert conditions(expr) == ["a", "rate(b[5m])", "c", "d"]


def test_the_latency_objective_is_one_bucket_edge_everywhere() -> None:
    queries = panel_queries() + rule_queries("record")
    edges = {edge for query in queries for edge in re.findall(r'le="([^"]+)"', query.expr)}
    (edge,) = edges
    assert float(edge) in DURATION_BUCKETS
    (alert,) = [rule for rule in rules("alert") if rule["alert"] == "S2SentHighLatency"]
    assert alert["expr"].endswith(f"> {edge}")


def test_groups_have_names_of_their_own() -> None:
    """Prometheus' operator takes all files as one."""
    groups = [group for file in RULES for group in yaml.safe_load(file.read_text())["groups"]]
    names = [group["name"] for group in groups]
    assert len(set(names)) == len(names)


def test_the_deployed_prometheus_scrapes_the_job_the_rules_expect() -> None:
    config = yaml.safe_load(CONFIG.read_text())
    assert JOB in [job["job_name"] for job in config["scrape_configs"]]
    provisioned = DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yml"
    (source,) = yaml.safe_load(provisioned.read_text())["datasources"]
    assert source["jsonData"]["timeInterval"] == config["global"]["scrape_interval"]


@NEEDS_PROMTOOL
def test_promtool_accepts_the_rules_and_the_configuration() -> None:
    _promtool("check", "rules", *RULES)
    _promtool("check", "config", CONFIG)


@NEEDS_PROMTOOL
def test_promtool_accepts_the_names_of_the_metrics() -> None:
    exposed = generate_latest(Metrics().registry)
    subprocess.run(["promtool", "check", "metrics"], input=exposed, check=True)


@NEEDS_PROMTOOL
def test_alerts_fire_and_stay_silent() -> None:
    _promtool("test", "rules", *UNIT_TESTS)


@EACH_ALERT
def test_every_alert_has_a_case_that_fires_and_one_that_does_not(alert: Json) -> None:
    files = [yaml.safe_load(file.read_text()) for file in UNIT_TESTS]
    cases = [case for file in files for test in file["tests"] for case in test["alert_rule_test"]]
    fires = {bool(c.get("exp_alerts")) for c in cases if c["alertname"] == alert["alert"]}
    assert fires == {True, False}


def _promtool(*arguments: str | Path) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
