"""Which labels the result of a PromQL expression has, worked out from the metrics that exist.

`Catalogue.labels` walks an expression and raises UnknownName for a metric nobody exposes, a label
its metric does not have, a label value (a bucket's edge, a status, a reason) that never occurs, and
for two sides of an operator whose labels can never match.
"""

import re
from collections.abc import Mapping, Sequence

import promql_parser as promql
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from s2sent.service.telemetry.metrics import Metrics
from s2sent.service.telemetry.processes import ENGINE, Merged, families_of
from tests.support.monitoring import is_scalar, rules

Labels = frozenset[str]
Series = Sequence[Mapping[str, str]]  # the labels of each series of one metric

TARGET_LABELS = frozenset({"job", "instance"})  # Prometheus adds them to whatever it scrapes
JOB = "s2sent"

# NVIDIA's DCGM exporter, which the service does not depend on.
DCGM_FIELDS = ("GPU_UTIL", "FB_USED", "POWER_USAGE", "GPU_TEMP")
DCGM_LABELS = ("gpu", "UUID", "device", "modelName", "Hostname")


class UnknownName(Exception):
    """An expression names something that does not exist; the message says what."""


class Catalogue:
    """Every metric Prometheus can know, with the labels and values its series have."""

    def __init__(self) -> None:
        self.series: dict[str, Series] = {**_exposed(), **_from_elsewhere()}
        self._recorded: dict[str, Labels] = {}
        for rule in rules("record"):  # a rule may read what stands above it
            self._recorded[rule["record"]] = self.labels(promql.parse(rule["expr"]))

    def labels(self, node: promql.Expr) -> Labels:
        """The labels of an expression's result, names of metrics left out."""
        match node:
            case promql.VectorSelector():
                return self._selected(node)
            case promql.MatrixSelector():
                return self._selected(node.vector_selector)
            case promql.ParenExpr() | promql.SubqueryExpr() | promql.UnaryExpr():
                return self.labels(node.expr)
            case promql.Call():
                return self._called(node)
            case promql.AggregateExpr():
                return self._aggregated(node)
            case promql.BinaryExpr():
                return self._combined(node)
        return frozenset()  # a literal

    def _selected(self, selector: promql.VectorSelector) -> Labels:
        name = selector.name or ""
        matchers = selector.matchers.matchers
        if name in self._recorded:
            _require({matcher.name for matcher in matchers}, self._recorded[name], name)
            return self._recorded[name]
        if name not in self.series:
            raise UnknownName(f"no metric is called {name!r}")
        series = self.series[name]
        known = frozenset(label for labels in series for label in labels) | TARGET_LABELS
        _require({matcher.name for matcher in matchers}, known, name)
        for matcher in matchers:
            _require_values(matcher, series, name)
        return known

    def _called(self, call: promql.Call) -> Labels:
        inner = frozenset[str]().union(*map(self.labels, call.args))
        if call.func.name == "histogram_quantile":
            _require({"le"}, inner, "the argument of histogram_quantile")
            return inner - {"le"}
        return frozenset() if call.func.name == "absent" else inner

    def _aggregated(self, node: promql.AggregateExpr) -> Labels:
        inner = self.labels(node.expr)
        if node.modifier is None:
            return frozenset()
        named = frozenset(node.modifier.labels)
        _require(named, inner, node.expr.prettify())
        return named if node.modifier.type == promql.AggModifierType.By else inner - named

    def _combined(self, node: promql.BinaryExpr) -> Labels:
        left, right = self.labels(node.lhs), self.labels(node.rhs)
        if is_scalar(node.lhs):
            return right
        if is_scalar(node.rhs) or str(node.op) == "or":
            return left
        if node.modifier and node.modifier.matching:
            raise UnknownName("on() and ignoring() are not checked; give both sides equal labels")
        if left != right:
            raise UnknownName(f"{sorted(left)} never match {sorted(right)}: {node.prettify()}")
        return left


def _exposed() -> dict[str, Series]:
    """What /metrics of a service of several processes that has loaded its model shows."""
    metrics = Metrics()
    metrics.model_info.labels("m", "f", "fp32", "CPU", 384).set(1)
    found: dict[str, list[Mapping[str, str]]] = {}
    exposed = Merged({ENGINE: [families_of(metrics.registry)]})
    for family in text_string_to_metric_families(generate_latest(exposed).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return dict(found)


def _from_elsewhere() -> dict[str, Series]:
    """What Prometheus itself adds, and what NVIDIA's exporter shows."""
    alerts = [
        {"alertname": rule["alert"], "alertstate": state, **rule["labels"]}
        for rule in rules("alert")
        for state in ("pending", "firing")
    ]
    gpu = [dict.fromkeys(DCGM_LABELS, "")]
    return {"up": [{}], "ALERTS": alerts, **{f"DCGM_FI_DEV_{field}": gpu for field in DCGM_FIELDS}}


def _require(names: set[str] | Labels, known: Labels, where: str) -> None:
    unknown = names - known
    if unknown:
        raise UnknownName(f"{where} has no label {', '.join(sorted(unknown))}")


def _require_values(matcher: promql.Matcher, series: Series, name: str) -> None:
    """Each alternative of a matcher must be true of some series; an instance may be any."""
    if matcher.name == "instance":
        return
    values = {labels.get(matcher.name, "") for labels in series}
    if matcher.name == "job":
        values = {JOB}
    is_pattern = matcher.op in (promql.MatchOp.Re, promql.MatchOp.NotRe)
    for wanted in matcher.value.split("|") if is_pattern else [re.escape(matcher.value)]:
        if not any(re.fullmatch(wanted, value) for value in values):
            raise UnknownName(f"no series of {name} has {matcher.name} {wanted!r}")
