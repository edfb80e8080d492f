"""What the service measures reaches the panels and the alerts: real servers, a real Prometheus."""

from collections.abc import Iterator

import pytest

from s2sent.model.artifact.reader import Artifact
from tests.support.monitored_service import as_table, ask, monitored_service
from tests.support.monitoring import (
    Query,
    annotation_queries,
    conditions,
    panel_queries,
    rule_queries,
)
from tests.support.prometheus_process import Prometheus, is_installed

pytestmark = pytest.mark.skipif(
    not is_installed(), reason="prometheus (Debian: prometheus) is not installed"
)

# Panels that may be empty, with the reason.
EMPTY = dict.fromkeys(
    ("engine / GPU busy", "engine / GPU memory", "engine / GPU power", "engine / GPU temperature"),
    "NVIDIA's DCGM exporter measures these, not the service",
)


@pytest.fixture(scope="module")
def prometheus(
    tiny_artifact: Artifact, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    with monitored_service(tiny_artifact.path, folder) as prometheus:
        yield prometheus


def test_every_panel_shows_data(prometheus: Prometheus) -> None:
    """After successes, refusals, timeouts and clients that left, no panel is blank."""
    results = [ask(prometheus, query) for query in panel_queries()]
    blank = {result.query.where for result in results if not result.has_data}
    assert blank == EMPTY.keys(), as_table(results)


def test_every_rule_is_evaluated_without_error(prometheus: Prometheus) -> None:
    loaded = prometheus.rules()
    assert len(loaded) == len(rule_queries("record") + rule_queries("alert"))
    assert {(rule["health"], rule.get("lastError", "")) for rule in loaded} == {("ok", "")}


@pytest.mark.parametrize("query", rule_queries("record"), ids=str)
def test_every_recorded_series_has_data(query: Query, prometheus: Prometheus) -> None:
    """Under its recorded name, and as its expression asked for directly."""
    assert ask(prometheus, Query("recorded", query.where)).has_data
    assert ask(prometheus, query).has_data


@pytest.mark.parametrize("query", rule_queries("alert") + annotation_queries(), ids=str)
def test_whatever_an_alert_compares_has_data(query: Query, prometheus: Prometheus) -> None:
    """The alert may be silent, but never for want of something to compare."""
    prometheus.query_range(query.expr)
    for quantity in conditions(query.expr):
        assert ask(prometheus, Query(quantity, quantity)).has_data, quantity
