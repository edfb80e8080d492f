"""The table of CSE-SFP on a tiny decoder: both parts, resumed, with tables by hand."""

import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from s2sent.model.network.encoder import find_selector
from s2sent.training.errors import ConfigError, Interrupted
from s2sent.training.experiments.arms.decoders import (
    FROZEN_FILE,
    GATE_RATE,
    LORA_FILE,
    STATIC_RATE,
    STUDY,
    lora_tables,
    runs_of,
)
from s2sent.training.experiments.engine import TESTS, Series, is_decoder
from s2sent.training.experiments.reproduce import run_study
from s2sent.training.files.jsonl import read_lines
from s2sent.training.fit.encoder import new_encoder
from s2sent.training.objectives.sfp import TwoStageLoss
from s2sent.training.recipe.recipe import Recipe
from tests.support.tiny import tiny_backbone, tiny_decoder
from tests.support.tiny_data import SENTENCES, tiny_data, write_table
from tests.support.tiny_tasks import STS_HEADER, tiny_tasks
from tests.support.untrained import Untrained, run_with


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Series:
    folder = tmp_path_factory.mktemp("sfp")
    data = tiny_tasks(tiny_data(folder / "data"))
    rows = [("1", a, b) for a, b in zip(SENTENCES[:20], SENTENCES[20:40], strict=True)]
    write_table(
        data / "corpus" / "pan-paraphrase.tsv.gz", [("label", "sentence1", "sentence2"), *rows]
    )
    dev = [("x", str(n % 6), a, b) for n, (a, b) in enumerate(itertools.pairwise(SENTENCES[::10]))]
    write_table(data / "sts" / "stsb-dev.tsv", [STS_HEADER, *dev])
    decoder = tiny_decoder(folder / "tiny")
    return Series(data, folder / "out", str(decoder), budget="smoke")


def test_both_parts_are_run_once_and_go_on_after_an_interruption(series: Series) -> None:
    train = Untrained(interrupt_at=2)
    with pytest.raises(Interrupted, match="give the same command again"):
        run_with(train, STUDY, series)
    page = run_with(train, STUDY, series)
    arms = [run.key["arm"] for run in runs_of(series)]
    assert arms == ["last", "s2sent-3", "mean-3", "static-features-3"]
    names = [f"{arm}.1.seed1.checkpoint" for arm in arms]
    assert train.names == [*names[:2], *names[1:]]
    again = Untrained()
    assert run_with(again, STUDY, series) == page
    assert again.names == []

    frozen, lora = (read_lines(series.folder / name) for name in (FROZEN_FILE, LORA_FILE))
    assert all(TESTS in line for line in frozen if line["seed"])
    assert {"s2sent-3-rms", "s2sent-3-none", "low-rank-rms", "mean-4-none"} <= {
        line["arm"] for line in frozen
    }
    assert [line["arm"] for line in lora] == arms
    text = page.read_text()
    assert f"| last block | 1 | {lora[0]['STS-B dev without STS12-16']:.2f} |" in text
    assert "**Depth 4, contrastive**" in text


def test_named_arms_are_low_rank_updates_alone(series: Series, tmp_path: Path) -> None:
    chosen = replace(series, output=tmp_path, arms=("mean-3", "last"))
    train = Untrained()
    run_with(train, STUDY, chosen)
    assert train.names == ["last.1.seed1.checkpoint", "mean-3.1.seed1.checkpoint"]
    assert not (chosen.folder / FROZEN_FILE).exists()
    with pytest.raises(ConfigError, match="first is no arm here: use one of last, s2sent-3, "):
        run_study(STUDY, replace(chosen, arms=("first",)))


def test_arms_with_low_rank_updates_differ_in_their_selector_alone(series: Series) -> None:
    runs = runs_of(series)
    recipes = [recipe for run in runs for recipe in run.recipes.values()]
    arms = [run.key["arm"] for run in runs]
    rates = {
        arm: recipe.training.selector_learning_rate
        for arm, recipe in zip(arms, recipes, strict=True)
    }
    assert [arm for arm, rate in rates.items() if rate == STATIC_RATE] == ["static-features-3"]

    def alike(recipe: Recipe) -> Recipe:
        training = replace(recipe.training, selector_learning_rate=GATE_RATE)
        return replace(recipe, selector=None, training=training)

    assert all(alike(recipe) == alike(recipes[0]) for recipe in recipes)
    for recipe in recipes:
        TwoStageLoss(new_encoder(recipe))  # which trains every arm
    assert recipes[0].training.lora_rank
    kinds = [find_selector(new_encoder(recipe)) for recipe in recipes]
    assert [kind is None for kind in kinds] == [arm == "last" for arm in arms]
    assert runs_of(replace(series, steps=0)) == []
    assert {run.key["seed"] for run in runs_of(replace(series, seeds=(4, 5)))} == {4, 5}


def test_an_encoder_has_the_frozen_part_alone(series: Series, tmp_path: Path) -> None:
    encoder = replace(series, backbone=str(tiny_backbone(tmp_path / "bert")), output=tmp_path)
    assert is_decoder(series.backbone)
    assert not is_decoder(encoder.backbone)
    page = run_with(Untrained(), STUDY, encoder)
    assert "minus" in page.read_text()
    assert not (encoder.folder / LORA_FILE).exists()
    shutil.rmtree(encoder.folder)
    with pytest.raises(ConfigError, match="has no results: run the experiment first"):
        run_study(STUDY, encoder, only_tables=True)


def lora_lines(steps: tuple[int, int, int] = (10, 10, 10)) -> list[dict[str, Any]]:
    """Three seeds of two arms, of which the last kept these steps."""
    return [
        {
            "arm": arm,
            "seed": seed,
            "steps": 10,
            "batch_size": 4,
            "pairs": 20,
            "pairs_per_task": 0,
            "bf16": False,
            "dev": {"step": 10 if arm == "last" else steps[seed - 1]},
            "STS-B dev without STS12-16": 70.0,
            TESTS: {"average": 70.0 + gain + seed / 10},
        }
        for arm, gains in {"last": (0, 0, 0), "s2sent-3": (2, 2.1, 2.2)}.items()
        for seed, gain in enumerate(gains, start=1)
    ]


@pytest.mark.parametrize("steps", [(10, 10, 10), (10, 0, 10), (0, 0, 0)])
def test_s2sent_is_tested_against_every_other_arm_by_seeds(steps: tuple[int, int, int]) -> None:
    """With every run, whatever step it kept."""
    lines = lora_lines(steps)
    _, scores, tests = lora_tables(lines)
    assert "| S2Sent, 3 blocks | 3 | 70.00 ± 0.00 | 72.30 ± 0.20 |" in scores
    row = f"| last block | 3 | +{fmean((2, 2.1, 2.2)):.2f} | +1.85 to +2.35 | < 0.001 | more |"
    assert row in tests
    assert "| no test | no test |" in lora_tables([lines[0], lines[3]])[2]
