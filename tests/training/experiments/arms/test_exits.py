"""Control X4: arms that differ in the head alone, results that are kept, tables by hand."""

import shutil
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from s2sent.model.artifact.reader import Artifact
from s2sent.model.export.checkpoint import export_checkpoint
from s2sent.model.network.encoder import get_selector
from s2sent.model.runtime.encoder import OnnxEncoder
from s2sent.training.errors import ConfigError, EncoderError, Interrupted
from s2sent.training.evaluation.depths.pairs import evaluate_depth_pairs, score_pairs
from s2sent.training.evaluation.retrieval import PACKAGES, retrieval_scores
from s2sent.training.evaluation.sts import DEV_FILE
from s2sent.training.experiments.arms.exits import (
    ARMS,
    RESULTS_FILE,
    STUDY,
    area,
    runs_of,
    write_exit_tables,
)
from s2sent.training.experiments.engine import Series
from s2sent.training.experiments.reproduce import run_study
from s2sent.training.files.jsonl import append_line, read_lines
from s2sent.training.fit.encoder import new_encoder
from s2sent.training.recipe.recipe import Recipe
from tests.support.few import FEW
from tests.support.tiny_data import tiny_data
from tests.support.tiny_elastic import elastic_checkpoint
from tests.support.tiny_tasks import tiny_tasks
from tests.support.untrained import run_with


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Series:
    folder = tmp_path_factory.mktemp("x4")
    data = tiny_tasks(tiny_data(folder / "data"))
    with (data / "sts" / DEV_FILE).open("a") as dev:  # pairs that no test holds
        dev.writelines(f"tiny\t{n}\t{'cat ' * n}\t{'dog ' * n}reads\n" for n in range(1, 5))
    (data / PACKAGES).parent.mkdir()
    (data / PACKAGES).write_text("query\tdocument\na cat\ta black cat\ndogs\ttwo dogs\n")
    checkpoint = elastic_checkpoint(folder)
    return Series(data, folder / "out", str(checkpoint.with_name("backbone")), seeds=(1, 2))


def without_head(recipe: Recipe) -> Recipe:
    assert recipe.elastic is not None
    elastic = replace(recipe.elastic, project=False, project_rank=0)
    return replace(recipe, selector=None, elastic=elastic)


def test_arms_differ_in_their_head_alone(series: Series) -> None:
    runs = runs_of(series)
    assert [(run.key["seed"], run.key["arm"]) for run in runs] == [
        (seed, arm) for seed in (1, 2) for arm in ARMS
    ]
    assert runs[0].key["depths"] == [2, 3]
    recipes = [recipe for run in runs if run.key["seed"] == 1 for recipe in run.recipes.values()]
    assert all(without_head(recipe) == without_head(recipes[0]) for recipe in recipes)
    heads = {f"{recipe.selector} {recipe.elastic}" for recipe in recipes}
    assert len(heads) == len(ARMS)


def recipes_of(series: Series) -> dict[str, Recipe]:
    return {run.key["arm"]: recipe for run in runs_of(series) for recipe in run.recipes.values()}


def test_the_low_rank_head_has_about_as_many_parameters_as_a_gate(series: Series) -> None:
    by_arm = recipes_of(series)
    ours, head = (get_selector(new_encoder(by_arm[arm])) for arm in ("s2sent", "low-rank"))
    gate = sum(each.numel() for each in ours.exits["3"].parameters())
    trained = sum(each.numel() for each in head.parameters() if each.requires_grad)
    width = head.config.width
    assert abs(trained / len(head.config.exits) - gate) <= width  # half a row and a column


def test_a_low_rank_head_can_stand_on_s2sent(series: Series) -> None:
    """The gates of one arm and the head of another, from the same first weights."""
    by_arm = recipes_of(series)
    gated, headed, both = (
        get_selector(new_encoder(by_arm[arm])) for arm in ("s2sent", "low-rank", "s2sent-low-rank")
    )
    names = [{name for name, _ in each.named_parameters()} for each in (gated, headed, both)]
    assert names[0] | names[1] == names[2]
    assert names[0] & names[1] == set()


def test_runs_are_scored_once_and_go_on_after_an_interruption(series: Series) -> None:
    trained: list[str] = []
    source = Path(series.backbone).with_name("checkpoint")

    def train(recipe: Recipe, data: Path, output: Path, **options: Any) -> Any:
        trained.append(f"{recipe.seed} {output.name.partition('.')[0]}")
        if len(trained) == 3:
            raise Interrupted("stop")
        shutil.copytree(source, output)
        return SimpleNamespace(stopped=None)

    with pytest.raises(Interrupted, match="give the same command again"):
        run_with(train, STUDY, series)
    target = run_with(train, STUDY, series)
    names = [f"{seed} {arm}" for seed in (1, 2) for arm in ARMS]
    assert trained == [*names[:3], *names[2:]]
    assert run_with(train, STUDY, series) == target
    assert len(trained) == len(names) + 1
    lines = read_lines(series.folder / RESULTS_FILE)
    assert [*lines[0]["tests"]] == ["2", "3", "4"]
    assert area(lines[0]) == pytest.approx(
        fmean(lines[0]["tests"][depth]["32"] for depth in ("2", "3", "4"))
    )
    page = target.read_text()
    assert "| low-rank head on S2Sent, minus | pairs | area | 95 % | p (Holm) |" in page
    assert "Made by `s2sent-train reproduce`" in page
    assert f"| S2Sent | 2 | {lines[3]['tests']['2']['32']:.2f} |" in page
    assert [*lines[0]["retrieval"]] == ["2", "3", "4"]
    assert {*lines[0]["retrieval"].values()} <= {0.0, 50.0, 100.0}
    assert "| R@1, packages-dev | depth 2 |" in page
    file = series.output / "wider" / RESULTS_FILE
    for line in [*lines, *({**line, "batch_size": 1 + line["batch_size"]} for line in lines)]:
        append_line(file, line)
    assert (
        write_exit_tables(replace(series, backbone="wider")).read_text().count("| S2Sent | 2 |")
        == 2
    )
    with pytest.raises(ConfigError, match="has no results"):
        run_study(STUDY, replace(series, output=series.output / "none"), only_tables=True)
    with pytest.raises(ConfigError, match="gate is no arm here: use one of last, mean"):
        run_with(train, STUDY, replace(series, arms=("gate",)))


def test_areas_are_tested_by_pairs_of_seeds(tmp_path: Path) -> None:
    """Seeds differ by tens and S2Sent is always about 1 above: unpaired nothing is significant."""
    file = tmp_path / "tiny" / RESULTS_FILE
    for seed, noise in enumerate((0.0, 0.1, -0.1), start=1):
        for arm, gain in {"s2sent": 1 + noise, "last": 0.0, "mean": noise, "static": 2.0}.items():
            grid = {"2": {"32": 10 * seed + gain}, "3": {"32": 10 * seed + gain}}
            line = {"arm": arm, "seed": seed, "steps": 9, "tests": grid, "name": "tiny"}
            shared = {"backbone": "tiny", "corpus": "c", "batch_size": 8, "depths": [2]}
            append_line(file, {**line, **shared})
    page = write_exit_tables(Series(tmp_path, tmp_path, "tiny")).read_text()
    p = float(ttest_1samp([1.0, 1.1, 0.9], 0).pvalue)
    assert f"| last block alone | 3 | +1.00 | +0.75 to +1.25 | {2 * p:.3f} | more |" in page
    assert "| mean of the last min(3, k) | 3 | +1.00 |  | no test | no test |" in page
    assert (
        f"| static weights, one per block | 3 | -1.00 | -1.25 to -0.75 | {2 * p:.3f} | less" in page
    )
    assert "| low-rank head" not in page.partition("S2Sent, minus")[2]


def test_every_pair_of_depths_is_scored(series: Series, tmp_path: Path) -> None:
    """Queries at one depth against documents at another, by the served graph."""
    checkpoint = Path(series.backbone).with_name("checkpoint")
    made = export_checkpoint(checkpoint, tmp_path / "artifact", replace(FEW, depths=(2, 3)))
    served = OnnxEncoder(made)
    texts = ["a cat", "two dogs", "he reads"]
    rows = {depth: served.encode(texts, depth=depth % 4 or None) for depth in (2, 3, 4)}
    found = score_pairs(rows, rows, retrieval_scores)
    assert set(found["R@1"]) == {(one, other) for one in rows for other in rows}
    assert found["R@1"][4, 4] == 100
    similar = rows[2] @ rows[4].T
    first = 100 * float(np.mean(similar.argmax(1) == np.arange(3)))
    assert found["R@1"][2, 4] == pytest.approx(first)
    shown: list[str] = []
    evaluate_depth_pairs(made.path, series.data, shown.append)
    assert "| 2 |" in shown[-1]
    plain = export_checkpoint(checkpoint, tmp_path / "plain", FEW)
    with pytest.raises(EncoderError, match="can only run to its full depth"):
        evaluate_depth_pairs(plain.path, series.data, shown.append)
    assert Artifact.open(made.path).manifest.by_depth == {}
