"""Write Prometheus' rules as a resource of its operator: ``python deploy/kubernetes/generate.py``.

Kustomize can put a file into a ConfigMap and into nothing else. So the PrometheusRule is written
from deploy/prometheus/rules and committed, and a test keeps the two the same.
"""

from pathlib import Path

import yaml

HERE = Path(__file__).parent
RULES = HERE.parent / "prometheus" / "rules"
TARGET = HERE / "components" / "monitoring" / "prometheusrule.yaml"

HEADER = "# Written by deploy/kubernetes/generate.py from deploy/prometheus/rules. Do not edit.\n"


def prometheus_rule() -> str:
    """The groups of every rule file as one PrometheusRule, in YAML."""
    files = sorted(RULES.glob("*.yml"))
    groups = [group for file in files for group in yaml.safe_load(file.read_text())["groups"]]
    resource = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "s2sent", "namespace": "s2sent"},
        "spec": {"groups": groups},
    }
    return HEADER + yaml.safe_dump(resource, sort_keys=False, width=100)


if __name__ == "__main__":
    TARGET.write_text(prometheus_rule(), encoding="utf-8")
