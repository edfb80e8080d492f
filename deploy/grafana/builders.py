"""Grafana's classic dashboard JSON and the usual PromQL, as plain functions that return dicts.

Panels flow from left to right and wrap at 24 columns, so nobody counts coordinates. Provisioned
dashboards have a fixed uid, no id of a database, and name their datasource by its uid
(https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/).
"""

from typing import Any

Json = dict[str, Any]

DATASOURCE = {"type": "prometheus", "uid": "prometheus"}
SCHEMA_VERSION = 39  # Grafana 11; later ones migrate it on load
GRID_COLUMNS = 24

GREEN, RED = "green", "red"


# --- PromQL ---


def rate(metric: str, matchers: str, *by: str) -> str:
    """Per second increase of a counter, summed over all labels but these."""
    grouping = f"sum by ({', '.join(by)}) " if by else "sum"
    return f"{grouping}(rate({metric}{{{matchers}}}[$__rate_interval]))"


def mean(histogram: str, matchers: str, *by: str) -> str:
    """Mean of what a histogram observed, each observation weighing the same."""
    total, count = (rate(f"{histogram}_{what}", matchers, *by) for what in ("sum", "count"))
    return f"{total} / {count}"


def quantile(share: float, histogram: str, matchers: str, *by: str) -> str:
    """The value that this share of what a histogram observed does not exceed."""
    return f"histogram_quantile({share}, {rate(f'{histogram}_bucket', matchers, *by, 'le')})"


# --- queries and thresholds ---


def query(expr: str, legend: str = "") -> Json:
    """One query of a panel; ``legend`` may name labels as ``{{label}}``."""
    return {"datasource": DATASOURCE, "expr": expr, "legendFormat": legend or "__auto"}


def red_from(value: float) -> list[Json]:
    """Steps that turn red at and above ``value``."""
    return [{"color": GREEN, "value": None}, {"color": RED, "value": value}]


def red_below(value: float) -> list[Json]:
    """Steps that turn red below ``value``."""
    return [{"color": RED, "value": None}, {"color": GREEN, "value": value}]


# --- panels ---


def lines(
    title: str,
    unit: str,
    description: str,
    *queries: Json,
    steps: list[Json] | None = None,
    stack: bool = False,
    width: int = 8,
) -> Json:
    """Values over time; ``steps`` are drawn as lines."""
    custom = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 40 if stack else 8,
        "showPoints": "never",
        "stacking": {"mode": "normal" if stack else "none", "group": "A"},
        "thresholdsStyle": {"mode": "line" if steps else "off"},
    }
    defaults = {"unit": unit, "min": 0, "custom": custom, "color": {"mode": "palette-classic"}}
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return _panel("timeseries", title, description, queries, defaults, options, (width, 8), steps)


def stat(
    title: str, unit: str, description: str, *queries: Json, steps: list[Json] | None = None
) -> Json:
    """The latest value, large."""
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value" if steps else "none",
        "graphMode": "none",
        "textMode": "auto",
    }
    defaults = {"unit": unit, "color": {"mode": "thresholds"}}
    return _panel("stat", title, description, queries, defaults, options, (4, 8), steps)


def timeline(title: str, description: str, *queries: Json, width: int = 8) -> Json:
    """When something was true (1) and when it was not (0)."""
    texts = {"0": {"text": "no", "color": RED}, "1": {"text": "yes", "color": GREEN}}
    defaults = {
        "unit": "bool_yes_no",
        "mappings": [{"type": "value", "options": texts}],
        "custom": {"fillOpacity": 70, "lineWidth": 0},
    }
    options = {"mergeValues": True, "showValue": "never", "legend": {"showLegend": False}}
    return _panel("state-timeline", title, description, queries, defaults, options, (width, 8))


def heatmap(
    title: str, unit: str, description: str, histogram: str, matchers: str, *, width: int = 8
) -> Json:
    """How a histogram's observations spread over its buckets, over time."""
    buckets = f"{histogram}_bucket{{{matchers}}}"
    counts = query(f"sum by (le) (increase({buckets}[$__rate_interval]))", "{{le}}")
    options = {
        "calculate": False,  # the buckets are the service's own
        "color": {"mode": "scheme", "scheme": "Oranges", "exponent": 0.5, "steps": 64},
        "yAxis": {"unit": unit, "axisPlacement": "left"},
        "cellGap": 1,
        "filterValues": {"le": 1e-9},
        "tooltip": {"mode": "single", "yHistogram": True},
    }
    queries = ({**counts, "format": "heatmap"},)
    return _panel("heatmap", title, description, queries, {"unit": unit}, options, (width, 8))


def table(title: str, description: str, info: Json, *, width: int = 8) -> Json:
    """The labels of a metric that is always 1, a line for each series."""
    hidden = dict.fromkeys(("Time", "Value", "__name__", "job"), True)
    queries = ({**info, "format": "table", "instant": True, "range": False},)
    panel = _panel(
        "table", title, description, queries, {"unit": "none"}, {"showHeader": True}, (width, 8)
    )
    organize = {"id": "organize", "options": {"excludeByName": hidden}}
    return panel | {"transformations": [organize]}


def _panel(
    kind: str,
    title: str,
    description: str,
    queries: tuple[Json, ...],
    defaults: Json,
    options: Json,
    size: tuple[int, int],
    steps: list[Json] | None = None,
) -> Json:
    if steps:
        defaults = {**defaults, "thresholds": {"mode": "absolute", "steps": steps}}
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": DATASOURCE,
        "targets": [{**query, "refId": chr(ord("A") + i)} for i, query in enumerate(queries)],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "gridPos": {"w": size[0], "h": size[1]},
    }


# --- the dashboard ---


def row(title: str, *panels: Json, collapsed: bool = False) -> Json:
    """Panels under a heading; a collapsed row asks for its data only once it is opened."""
    size = {"w": GRID_COLUMNS, "h": 1}
    return {
        "type": "row", "title": title, "collapsed": collapsed, "gridPos": size, "panels": panels
    }  # fmt: skip


def variable(name: str, metric: str, chosen: tuple[str, ...] = ()) -> Json:
    """A choice among a label's values, by default all of them."""
    values = list(chosen) or ["$__all"]
    label_values = f"label_values({metric}, {name})"
    return {
        "type": "query",
        "name": name,
        "label": name.capitalize(),
        "datasource": DATASOURCE,
        "query": {"query": label_values, "refId": "variable"},
        "definition": label_values,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": list(chosen) or ["All"], "value": values},
        "refresh": 2,  # when the time range changes
        "sort": 1,
    }


def annotation(name: str, expr: str, text: str) -> Json:
    """Marks in every panel the moments at which ``expr`` has a value."""
    return {
        "name": name,
        "datasource": DATASOURCE,
        "enable": True,
        "iconColor": "blue",
        "expr": expr,
        "titleFormat": text,
    }


def dashboard(
    name: str, description: str, rows: list[Json], variables: list[Json], annotations: list[Json]
) -> Json:
    """A dashboard with the uid ``s2sent-<name>``, its panels numbered and placed."""
    return {
        "uid": f"s2sent-{name}",
        "id": None,
        "title": f"S2Sent {name}",
        "description": description,
        "tags": ["s2sent"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": False,
        "timezone": "browser",
        "graphTooltip": 1,  # one cursor for all panels
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": variables},
        "annotations": {"list": annotations},
        "links": [
            {"type": "dashboards", "title": "S2Sent", "tags": ["s2sent"], "keepTime": True}
        ],
        "panels": _placed(rows),
    }  # fmt: skip


def _placed(rows: list[Json]) -> list[Json]:
    """The rows and their panels in a flat list, as Grafana wants those that are not collapsed."""
    placed: list[Json] = []
    number, top = 1, 0
    for head in rows:
        panels, bottom = _flow(head["panels"], number + 1, top + 1)
        inner = panels if head["collapsed"] else []
        position = {"x": 0, "y": top, **head["gridPos"]}
        placed.append({**head, "id": number, "gridPos": position, "panels": inner})
        placed += [] if head["collapsed"] else panels
        number += 1 + len(panels)
        top = bottom
    return placed


def _flow(panels: tuple[Json, ...], number: int, top: int) -> tuple[list[Json], int]:
    """The panels with ids and places, side by side while they fit, and the line below them."""
    placed: list[Json] = []
    x, y, line = 0, top, 0
    for panel in panels:
        size = panel["gridPos"]
        if x + size["w"] > GRID_COLUMNS:
            x, y, line = 0, y + line, 0
        placed.append({**panel, "id": number + len(placed), "gridPos": {"x": x, "y": y, **size}})
        x += size["w"]
        line = max(line, size["h"])
    return placed, y + line
