"""Starts the compose file's stack and shows that its parts find each other; one row per promise.

    python -m tests.support.check_compose --compose podman-compose --without-grafana

Needs docker compose or podman-compose and the image s2sent:cpu. Takes its own ports and its own
project name, so it does not disturb a running stack. Not a pytest module.
"""

import argparse
import http.client
import os
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.drain_load import exchange

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 180
TEXTS = ["A man is playing a guitar.", "Someone plays music.", "The stock market fell."]
PORTS = {"SERVICE_PORT": 18080, "PROMETHEUS_PORT": 19090, "GRAFANA_PORT": 13000}


def get(port: int, path: str) -> Any:
    """The JSON of an answer with status 200; raises AssertionError for any other."""
    status, body = call(port, "GET", path)
    assert status == 200, f"{path}: {status} {body}"
    return body


def call(port: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """One request to a published port."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        return exchange(connection, method, path, body)
    finally:
        connection.close()


def wait_for(promise: Callable[[], str]) -> str:
    """Ask until the promise is kept; raises its last AssertionError when the time is over."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            return promise()
        except (AssertionError, OSError, http.client.HTTPException) as error:
            if time.monotonic() > deadline:
                raise AssertionError(f"{type(error).__name__}: {error}") from error
        time.sleep(1)


def query(expression: str) -> list[dict[str, Any]]:
    """The result of an instant query; empty where Prometheus has no data."""
    path = "/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    result: list[dict[str, Any]] = get(PORTS["PROMETHEUS_PORT"], path)["data"]["result"]
    return result


def ready() -> str:
    """The service is ready."""
    return str(get(PORTS["SERVICE_PORT"], "/ready"))


def embeddings() -> str:
    """The service embeds, within its limits of cores."""
    status, rows = call(PORTS["SERVICE_PORT"], "POST", "/embed", {"inputs": TEXTS})
    assert status == 200, rows
    info = get(PORTS["SERVICE_PORT"], "/info")
    return f"{len(rows)} x {len(rows[0])} from {info['model_id']}, {info['threads']} threads"


def targets() -> str:
    """Prometheus reaches everything it should scrape."""
    active = get(PORTS["PROMETHEUS_PORT"], "/api/v1/targets")["data"]["activeTargets"]
    health = {target["scrapeUrl"]: target["health"] for target in active}
    assert health, "no targets"
    assert set(health.values()) == {"up"}, health
    return ", ".join(f"{url} {state}" for url, state in sorted(health.items()))


def metrics() -> str:
    """What the service did is to be seen in Prometheus."""
    texts = query("sum(s2sent_texts_total)")
    assert texts, "s2sent_texts_total has no data yet"
    assert float(texts[0]["value"][1]) >= len(TEXTS), texts
    answered = query('sum(s2sent_requests_total{route="/embed",status="200"})')
    return f"s2sent_texts_total {texts[0]['value'][1]}, answered {answered[0]['value'][1]}"


def rules() -> str:
    """Prometheus has loaded the rules, and each of them evaluates."""
    groups = get(PORTS["PROMETHEUS_PORT"], "/api/v1/rules")["data"]["groups"]
    health = [rule["health"] for group in groups for rule in group["rules"]]
    assert health, "no rules"
    assert set(health) == {"ok"}, health
    return f"{len(health)} rules in {len(groups)} groups, all ok"


def dashboards() -> str:
    """Grafana shows the dashboards to anybody on this machine."""
    found = get(PORTS["GRAFANA_PORT"], "/api/search?type=dash-db")
    assert len(found) >= 2, found
    return ", ".join(board["title"] for board in found)


def main() -> int:
    """Start the stack, run every check, remove the stack; returns 1 if one failed."""
    parser = argparse.ArgumentParser(description="Check the stack of the compose file.")
    parser.add_argument("--compose", default="docker compose", help="or podman-compose")
    parser.add_argument("--without-grafana", action="store_true")
    given = parser.parse_args()
    command = [*given.compose.split(), "--project-name", "s2sent-check"]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("S2SENT_")},
        **{name: str(port) for name, port in PORTS.items()},
        "COMPOSE_PROFILES": "cpu",
    }

    def compose(*arguments: str) -> None:
        subprocess.run(
            [*command, *arguments], cwd=ROOT, env=environment, check=True, stdout=sys.stderr
        )

    wanted = ["service", "prometheus"] + ([] if given.without_grafana else ["grafana"])
    checks = [ready, embeddings, targets, metrics, rules]
    try:
        compose("up", "--detach", *wanted)
        return report([*checks, *([] if given.without_grafana else [dashboards])])
    finally:
        compose("down", "--volumes")


def report(checks: list[Callable[[], str]]) -> int:
    """Print a row for each check; returns 1 if one failed."""
    failures = 0
    for check in checks:
        try:
            verdict, detail = "ok", wait_for(check)
        except AssertionError as error:
            verdict, detail, failures = "FAILED", str(error), failures + 1
        sys.stdout.write(f"{check.__name__:12} {verdict:7} {detail}\n")
        sys.stdout.flush()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
