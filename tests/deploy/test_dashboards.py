"""The Grafana dashboards: what is committed is what the code makes, and all of it exists."""

import json
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import promql_parser as promql
import pytest
import yaml

from tests.support.monitoring import (
    DEPLOY,
    Json,
    Query,
    annotation_queries,
    dashboards,
    filled_in,
    in_table,
    panel_queries,
    panels,
)
from tests.support.promql_labels import Catalogue, UnknownName

GRAFANA = DEPLOY / "grafana"
EACH_DASHBOARD = pytest.mark.parametrize("dashboard", dashboards().values(), ids=dashboards())
LATENCY_METRIC = "s2sent_request_duration_seconds"


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue()


def test_committed_dashboards_are_what_the_code_makes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, GRAFANA / "generate.py", tmp_path], check=True)
    made = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    committed = {file.name: file.read_bytes() for file in (GRAFANA / "dashboards").iterdir()}
    assert sorted(made) == sorted(committed) == ["engine.json", "overview.json"]
    assert made == committed, "run: python deploy/grafana/generate.py"


@EACH_DASHBOARD
def test_dashboard_can_be_provisioned(dashboard: Json) -> None:
    """Classic JSON without an id of some database or a question asked on import."""
    assert re.fullmatch(r"s2sent-[a-z]+", dashboard["uid"])
    assert dashboard["id"] is None
    assert 39 <= dashboard["schemaVersion"] <= 41
    assert "__inputs" not in dashboard
    assert "${DS_" not in json.dumps(dashboard)


@EACH_DASHBOARD
def test_every_datasource_is_the_provisioned_one(dashboard: Json) -> None:
    (source,) = _provisioned("datasources/prometheus.yml")["datasources"]
    referred = re.findall(r'"datasource": (\{[^}]*\})', json.dumps(dashboard))
    assert len(referred) > len(panels(dashboard))
    wanted = {"type": source["type"], "uid": source["uid"]}
    assert all(json.loads(reference) == wanted for reference in referred)


@EACH_DASHBOARD
def test_every_panel_says_what_it_shows_and_in_which_unit(dashboard: Json) -> None:
    titles = [panel["title"] for panel in panels(dashboard)]
    assert len(set(titles)) == len(titles)
    for panel in panels(dashboard):
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert re.fullmatch(r"[A-Z\d].+\.", panel["description"]), panel["title"]
        assert panel["targets"], panel["title"]


@EACH_DASHBOARD
def test_panels_have_their_own_id_and_place(dashboard: Json) -> None:
    nested = [inner for panel in dashboard["panels"] for inner in panel.get("panels", [])]
    everything = [*dashboard["panels"], *nested]
    numbers = [panel["id"] for panel in everything]
    assert len(set(numbers)) == len(numbers)
    places = [panel["gridPos"] for panel in everything]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        assert not _overlap(one, other), (one, other)


@pytest.mark.parametrize("query", panel_queries() + annotation_queries(), ids=str)
def test_every_query_names_only_what_exists(query: Query, catalogue: Catalogue) -> None:
    """Metrics, labels, label values, bucket edges, and the labels its legend shows."""
    labels = catalogue.labels(promql.parse(query.expr))
    assert set(re.findall(r"\{\{(\w+)\}\}", query.text)) <= labels


@EACH_DASHBOARD
def test_variables_list_a_label_that_exists(dashboard: Json, catalogue: Catalogue) -> None:
    for variable in dashboard["templating"]["list"]:
        found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
        assert found
        metric, label = found.groups()
        assert label in catalogue.labels(promql.parse(metric))
        assert label == variable["name"]


@EACH_DASHBOARD
def test_every_variable_of_a_query_is_known(dashboard: Json) -> None:
    names = {variable["name"] for variable in dashboard["templating"]["list"]}
    for panel in panels(dashboard):
        for target in panel["targets"]:
            assert "$" not in filled_in(target["expr"])
            assert set(re.findall(r"\$([a-z]+)", target["expr"])) <= names


@pytest.mark.parametrize(
    "wrong",
    [
        "s2sent_request_total",
        'rate(s2sent_requests_total{code="200"}[5m])',
        'rate(s2sent_requests_total{status=~"5..|418"}[5m])',
        f'rate({LATENCY_METRIC}_bucket{{le="1"}}[5m])',
        "sum by (stage) (s2sent_queue_texts)",
        f"histogram_quantile(0.9, sum by (route) (rate({LATENCY_METRIC}_bucket[5m])))",
        "s2sent_requests_total / s2sent_queue_texts",
        'up{job="s2sents"}',
    ],
)
def test_the_check_finds_what_does_not_exist(wrong: str, catalogue: Catalogue) -> None:
    with pytest.raises(UnknownName):
        catalogue.labels(promql.parse(wrong))


def test_the_table_of_results_lists_every_query() -> None:
    """Run ``python -m tests.support.monitored_service`` and put its table into PANELS.md."""
    documented = (GRAFANA / "PANELS.md").read_text(encoding="utf-8")
    table = re.search("<!-- panels: begin -->\n(.*)<!-- panels: end -->", documented, re.DOTALL)
    assert table
    listed = re.findall(r"^\| (\w+ / .+?) \| `(.+?)` \| \d", table[1], flags=re.MULTILINE)
    queries = [(query.where, in_table(query.expr)) for query in panel_queries()]
    assert listed == queries


def test_the_folder_of_dashboards_is_provisioned_read_only() -> None:
    (provider,) = _provisioned("dashboards/s2sent.yml")["providers"]
    assert provider["type"] == "file"
    assert provider["allowUiUpdates"] is False
    assert Path(provider["options"]["path"]).is_absolute()


def _provisioned(name: str) -> Json:
    content: Json = yaml.safe_load((GRAFANA / "provisioning" / name).read_text())
    assert content["apiVersion"] == 1
    return content


def _overlap(one: Json, other: Json) -> bool:
    beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
    above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    return not (beside or above)
