"""Known advisories: what is locked is not affected, or it is said why that cannot be reached."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from tests.deploy.test_images import pins

ROOT = Path(__file__).parents[2]
ADVISORIES: list[dict[str, Any]] = tomllib.loads(
    (ROOT / "deploy/advisories.toml").read_text(encoding="utf-8")
)["advisory"]
PINS = {
    name: pins(ROOT / name)
    for name in ("constraints.txt", "deploy/requirements-cpu.txt", "deploy/requirements-gpu.txt")
}


@pytest.mark.parametrize("advisory", ADVISORIES, ids=lambda advisory: advisory["ids"][0])
def test_what_is_locked_is_fixed_or_it_is_said_why_it_cannot_be_reached(
    advisory: dict[str, Any],
) -> None:
    versions = [locked.get(advisory["package"]) for locked in PINS.values()]
    assert any(versions), f"{advisory['package']} is not locked any more: remove its advisories"
    affected = [one for one in versions if one and Version(one) < Version(advisory["fixed"])]
    assert not affected or advisory.get("answer"), f"{advisory['ids']} affects {affected}"


def test_what_an_answer_rests_on_exists() -> None:
    for advisory in ADVISORIES:
        assert (ROOT / advisory.get("test", "deploy/advisories.toml")).is_file()


def test_an_affected_package_that_runs_code_of_a_configuration_stays_out() -> None:
    """CVE-2026-4372 needs it."""
    assert not any("kernels" in locked for locked in PINS.values())
