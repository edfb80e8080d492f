"""docker-compose.yml as docker compose reads it; tests/support/check_compose.py starts the
stack."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from s2sent.service.server import SEND_TIMEOUT_SECONDS
from s2sent.service.settings import Settings, environment_name
from tests.deploy.test_images import tool

ROOT = Path(__file__).parents[2]
COMPOSE_FILE = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
PROFILES = {"cpu": "service", "gpu": "service-gpu"}
# The image itself fixes these: where it listens, what is mounted where, what it runs on.
FIXED_SETTINGS = {"host", "port", "artifact", "model", "device"}
ELSEWHERE = "192.0.2.1"


def run_config(profile: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """`docker compose config` in an environment with nothing but the given variables."""
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **variables}
    # No .env: a developer's own must not decide a test.
    command = [tool("docker-compose"), "--env-file", os.devnull, "--profile", profile]
    return subprocess.run(
        [*command, "config", "--format", "json"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def config(profile: str, **variables: str) -> dict[str, Any]:
    """The services of a profile, with everything filled in."""
    done = run_config(profile, **variables)
    assert done.returncode == 0, done.stderr
    services: dict[str, Any] = json.loads(done.stdout)["services"]
    return services


def seconds(duration: str) -> int:
    """A duration as compose prints it, e.g. 1m15s."""
    found = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", duration)
    assert found is not None, duration
    return 60 * int(found[1] or 0) + int(found[2] or 0)


@pytest.mark.parametrize("profile", PROFILES)
def test_profile_is_one_service_with_prometheus_and_grafana(profile: str) -> None:
    assert config(profile).keys() == {PROFILES[profile], "prometheus", "grafana"}


@pytest.mark.parametrize("profile", PROFILES)
def test_service_is_built_for_its_device(profile: str) -> None:
    """The GPU is reserved in the profile gpu only."""
    service = config(profile)[PROFILES[profile]]
    assert service["build"]["target"] == profile
    devices = service["deploy"]["resources"].get("reservations", {}).get("devices", [])
    assert [device["capabilities"] for device in devices] == ([["gpu"]] if profile == "gpu" else [])


@pytest.mark.parametrize("profile", PROFILES)
def test_prometheus_finds_the_service_under_one_name(profile: str) -> None:
    """prometheus.yml is the same for both profiles."""
    scraped = (ROOT / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8")
    assert "targets: [service:8080]" in scraped
    network = config(profile)[PROFILES[profile]]["networks"]["default"] or {}
    assert "service" in {PROFILES[profile], *network.get("aliases", [])}


@pytest.mark.parametrize("profile", PROFILES)
def test_ports_are_published_on_loopback(profile: str) -> None:
    for name, service in config(profile).items():
        assert [port["host_ip"] for port in service["ports"]] == ["127.0.0.1"], name


def test_variable_publishes_a_port_elsewhere() -> None:
    """One by one: who opens the service does not open Prometheus."""
    services = config("cpu", SERVICE_ADDRESS=ELSEWHERE, SERVICE_PORT="80")
    assert services["service"]["ports"][0]["host_ip"] == ELSEWHERE
    assert services["service"]["ports"][0]["published"] == "80"
    assert services["prometheus"]["ports"][0]["host_ip"] == "127.0.0.1"


@pytest.mark.parametrize("profile", PROFILES)
def test_containers_are_hardened_and_limited(profile: str) -> None:
    for name, service in config(profile).items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["deploy"]["resources"]["limits"].keys() >= {"cpus", "memory"}, name


@pytest.mark.parametrize("profile", PROFILES)
def test_start_follows_health(profile: str) -> None:
    """The service, then Prometheus, then Grafana, each when the one before is healthy."""
    services = config(profile)
    assert all("healthcheck" in service for service in services.values())
    waits_for = services["prometheus"]["depends_on"][PROFILES[profile]]
    assert waits_for["condition"] == "service_healthy"
    assert services["grafana"]["depends_on"]["prometheus"]["condition"] == "service_healthy"


def test_stop_waits_for_the_drain() -> None:
    grace = seconds(config("cpu")["service"]["stop_grace_period"])
    drain_seconds = Settings.model_fields["drain_timeout_seconds"].default
    assert grace >= drain_seconds + SEND_TIMEOUT_SECONDS + 5


def test_every_setting_can_be_given() -> None:
    """And reaches the container only if it is given."""
    wanted = {environment_name(field) for field in Settings.model_fields.keys() - FIXED_SETTINGS}
    environment = config("cpu", S2SENT_THREADS="3")["service"]["environment"]
    assert environment.keys() == wanted
    assert {name: value for name, value in environment.items() if value is not None} == {
        "S2SENT_THREADS": "3"
    }


def test_example_has_every_variable_and_no_other() -> None:
    example = (ROOT / ".env.example").read_text(encoding="utf-8")
    listed = re.findall(r"^(\w+)=", example, re.MULTILINE)
    read = set(re.findall(r"\$\{(\w+)", COMPOSE_FILE))
    passed_on = set(re.findall(r"^ +(S2SENT_\w+):$", COMPOSE_FILE, re.MULTILINE))
    assert sorted(listed) == sorted(read | passed_on | {"COMPOSE_PROFILES"})


def test_example_changes_no_default() -> None:
    """Its only value is the profile."""
    example = (ROOT / ".env.example").read_text(encoding="utf-8")
    assert re.findall(r"^(\w+=.+)$", example, re.MULTILINE) == ["COMPOSE_PROFILES=cpu"]


def test_grafana_shows_itself_to_strangers_on_loopback_only() -> None:
    """On another address it asks for a login, and a password must be chosen."""
    refused = run_config("cpu", GRAFANA_ADDRESS=ELSEWHERE)
    assert refused.returncode != 0
    assert "GRAFANA_ADMIN_PASSWORD" in refused.stderr
    given = {"GRAFANA_ADDRESS": ELSEWHERE, "GRAFANA_ADMIN_PASSWORD": "chosen"}
    environment = config("cpu", **given)["grafana"]["environment"]
    assert environment["GF_AUTH_ANONYMOUS_ENABLED"] == "false"
    assert given["GRAFANA_ADMIN_PASSWORD"] == environment["GF_SECURITY_ADMIN_PASSWORD"]


@pytest.mark.parametrize("profile", PROFILES)
def test_what_is_mounted_exists_and_is_not_written(profile: str) -> None:
    for service in config(profile).values():
        for volume in service["volumes"]:
            if volume["type"] == "bind":
                assert Path(volume["source"]).exists(), volume
                assert volume["read_only"], volume


def test_grafana_looks_where_the_dashboards_are_mounted() -> None:
    """The provider's folder, and the dashboard it opens with."""
    mounts = {volume["target"]: volume["source"] for volume in config("cpu")["grafana"]["volumes"]}
    provisioning = Path(mounts["/etc/grafana/provisioning"])
    provider = next((provisioning / "dashboards").glob("*.yml")).read_text(encoding="utf-8")
    assert "path: /etc/grafana/dashboards\n" in provider
    home = re.search(
        r"^default_home_dashboard_path = (.+)$",
        Path(mounts["/etc/grafana/grafana.ini"]).read_text("utf-8"),
        re.MULTILINE,
    )
    assert home is not None
    assert (Path(mounts["/etc/grafana/dashboards"]) / Path(home[1]).name).exists()


def test_prometheus_accepts_its_configuration() -> None:
    """With the rules it names."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    done = subprocess.run(
        [promtool, "check", "config", "deploy/prometheus/prometheus.yml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "rules found" in done.stdout
