"""What deploy/ asks Prometheus: the queries of dashboards and rules, read from their files."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser as promql
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = sorted((DEPLOY / "prometheus" / "rules").glob("*.yml"))

Json = dict[str, Any]

# What Grafana puts in for its variables, fit for a Prometheus that scrapes every second.
GRAFANA_VARIABLES = {"$__rate_interval": "5s", "$instance": ".*", "$route": ".*"}
SET_OPERATORS = ("and", "or", "unless")
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")


@dataclass(frozen=True)
class Query:
    """An expression, where it stands, and the text that may name its labels."""

    where: str
    expr: str
    text: str = ""

    def __str__(self) -> str:
        return self.where


def dashboards() -> dict[str, Json]:
    """The committed dashboards by file name."""
    files = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


def panels(dashboard: Json) -> list[Json]:
    """All panels but the headings, those of collapsed rows included."""
    nested = [inner for panel in dashboard["panels"] for inner in panel.get("panels", [])]
    return [panel for panel in [*dashboard["panels"], *nested] if panel["type"] != "row"]


def panel_queries() -> list[Query]:
    """One entry for each target of each panel, variables of Grafana filled in."""
    return [
        Query(f"{name} / {panel['title']}", filled_in(target["expr"]), target["legendFormat"])
        for name, dashboard in dashboards().items()
        for panel in panels(dashboard)
        for target in panel["targets"]
    ]


def annotation_queries() -> list[Query]:
    """The dashboards' annotations, which have a value only at some moments."""
    return [
        Query(f"{name} / {note['name']}", filled_in(note["expr"]), note["titleFormat"])
        for name, dashboard in dashboards().items()
        for note in dashboard["annotations"]["list"]
    ]


def rules(kind: str) -> list[Json]:
    """The rules of a kind, ``alert`` or ``record``, in the order of their files."""
    groups = [group for file in RULES for group in yaml.safe_load(file.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


def rule_queries(kind: str) -> list[Query]:
    """The rules' expressions."""
    return [Query(rule[kind], rule["expr"], _templates(rule)) for rule in rules(kind)]


def conditions(expr: str) -> list[str]:
    """The quantities a condition compares.

    An alert has no value while all is well. What it compares must have one all the same, or it
    would be silent for ever. Set operators are split, comparisons and ``absent`` taken away.
    """
    return [node.prettify() for node in _quantities(promql.parse(expr))]


def filled_in(expr: str) -> str:
    """The expression as Grafana would send it."""
    for variable, value in GRAFANA_VARIABLES.items():
        expr = expr.replace(variable, value)
    return expr


def in_table(expr: str) -> str:
    """The expression for a Markdown table, where a bare bar ends the cell also inside code."""
    return expr.replace("|", r"\|")


def is_scalar(node: promql.Expr) -> bool:
    """Whether a node is a number without labels."""
    match node:
        case promql.NumberLiteral():
            return True
        case promql.ParenExpr():
            return is_scalar(node.expr)
        case promql.Call():
            return bool(node.func.return_type == promql.ValueType.Scalar)
        case promql.BinaryExpr():
            return is_scalar(node.lhs) and is_scalar(node.rhs)
    return False


def _quantities(node: promql.Expr) -> list[promql.Expr]:
    match node:
        case promql.ParenExpr():
            return _quantities(node.expr)
        case promql.Call() if node.func.name == "absent":
            return _quantities(node.args[0])
        case promql.BinaryExpr() if str(node.op) in (*SET_OPERATORS, *COMPARISONS):
            sides = [side for side in (node.lhs, node.rhs) if not is_scalar(side)]
            return [quantity for side in sides for quantity in _quantities(side)]
    return [node]


def _templates(rule: Json) -> str:
    return " ".join(rule.get("annotations", {}).values())
