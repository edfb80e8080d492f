"""The experiments as data: every cell can be built, and equal cells are one."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from s2sent.model.network.selector_config import SelectorConfig
from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.results.published import (
    TABLE_2,
    TABLE_3,
    TABLE_4,
    best_sts_rows,
    transfer_rows,
)
from s2sent.training.experiments.arms.configurations import (
    BUDGETS,
    CONFIGURATIONS,
    EXPERIMENTS,
    PRESETS,
    TEMPLATES,
    as_printed,
    chosen,
    recipe_of,
)
from s2sent.training.experiments.arms.paper import experiment_tables
from s2sent.training.experiments.engine import Series
from s2sent.training.recipe.objectives import PromptBERT, SimCSE
from s2sent.training.recipe.recipe import Recipe, TrainingConfig


def series(budget: str, steps: int | None = None) -> Series:
    return Series(Path("data"), Path("out"), "any", budget=budget, steps=steps)


def recipe(name: str, objective: str = "simcse", steps: int | None = None) -> Recipe:
    return recipe_of(name, series("short", steps=steps), 1, objective=objective)


@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.parametrize("width", [768, 384])
def test_every_configuration_builds_a_recipe_and_a_selector(name: str, width: int) -> None:
    patch = CONFIGURATIONS[name]
    config = recipe(name).selector_config(width)
    if "selector" not in patch:
        assert config is None
    else:
        assert isinstance(config, SelectorConfig)
        assert config.width == width
        assert config.pooling == patch.get("backbone", {}).get("pooling", "mean")


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("objective", ["simcse", "prompt", "prompt-mean"])
def test_every_experiment_builds_under_every_budget_and_objective(
    budget: str, objective: str
) -> None:
    for experiment in EXPERIMENTS.values():
        for name in experiment.configurations:
            if objective in experiment.objectives:
                recipe_of(name, series(budget), 1, objective=objective)


def test_a_name_stands_for_one_configuration_and_a_configuration_has_one_name() -> None:
    every = [*EXPERIMENTS.values(), *as_printed([])]
    assert {name for each in every for name in each.configurations} == {*CONFIGURATIONS}
    recipes = [(name, recipe(name)) for name in CONFIGURATIONS]
    for (name, first), (other, second) in itertools.combinations(recipes, 2):
        assert first != second, (name, other)


def test_one_block_is_gated_by_the_gates_own_value() -> None:
    config = recipe("last1-1d").selector_config(768)
    assert config is not None
    assert (config.num_blocks, config.num_frequencies, config.weight_norm) == (1, 4, "none")


def test_rows_that_are_ours_are_marked() -> None:
    experiment = EXPERIMENTS["table 2"]
    (table,) = experiment_tables(experiment, "simcse", {"last1": []})
    marked = [row.label for row in experiment.rows if f"{row.label} (not in the paper)" in table]
    near, at_last = (row for row in experiment.rows if row.label in marked)
    assert recipe(near.name).initial_bias == 3
    assert recipe(at_last.name).initial_bias == 3
    assert not TABLE_2["BERT", "simcse"].keys() & {near.name, at_last.name}


def test_the_budgets_are_what_they_say() -> None:
    full = recipe_of("last1", series("full"), 1, objective="simcse")
    assert (full.training.steps, full.training.eval_every, full.training.batch_size) == (0, 125, 64)
    assert full.training.learning_rate == 3e-5
    assert len(BUDGETS["full"].seeds) == 7
    prompt = recipe_of("last1", series("full"), 1, objective="prompt")
    assert (prompt.training.learning_rate, prompt.backbone.pooling) == (1e-5, "mask")
    short = recipe("last1").training
    assert short.steps >= 1000  # fewer do not move a gate
    assert short.selector_learning_rate == 0
    gate_rate = recipe("last3-2d").training.selector_learning_rate
    assert 1e-3 <= gate_rate <= 1e-2
    assert short.precision == "bf16"
    assert BUDGETS["short"].seeds == (1, 2, 3, 4, 5)
    assert recipe("last1", steps=7).training.steps == 7


def test_as_printed_the_tables_have_the_papers_rows_and_last3_2d_by_each_preset() -> None:
    tables = {experiment.key: experiment for experiment in as_printed([])}
    assert list(tables) == ["table 2", "table 3", "table 4"]
    of_2, of_3, of_4 = (list(table.configurations) for table in tables.values())
    presets = ["last3-2d", "last3-2d-paper", "last3-2d-official"]
    assert of_2 == ["last1", "last1-1d", "last3-avg", "last3-1d", *presets] + [
        "last6-avg",
        "last6-1d",
        "last6-2d",
    ]
    cls = [f"cls-{name.replace('2d', '2d-mlp')}" for name in presets]
    assert sorted(of_3) == sorted(["cls-last1-mlp", "last1", *cls, *presets])
    assert of_4 == ["last1", *presets]
    for table in tables.values():
        for name in table.configurations:
            plain = name.removesuffix("-paper").removesuffix("-official")
            assert plain in TABLE_2["BERT", "simcse"] | TABLE_3["BERT", "simcse"]
    assert [*PRESETS] == ["paper", "official"]


@pytest.mark.parametrize("backbone", ["bert", "roberta"])
@pytest.mark.parametrize("objective", ["simcse", "prompt", "prompt-mean"])
def test_the_papers_budget_is_the_papers_protocol(backbone: str, objective: str) -> None:
    """A million sentences once, 64 a batch, 32 tokens, temperature 0.05, N = 3, m = 4, r = 12."""
    for name in ("last3-2d", "last3-2d-paper", "last3-2d-official"):
        made = recipe_of(name, series("paper"), 1, objective=objective, family=backbone)
        assert made.corpus[0].limit == 1_000_000
        assert replace(made.training, learning_rate=3e-5) == TrainingConfig(precision="bf16")
        assert made.training.learning_rate == (3e-5 if objective == "simcse" else 1e-5)
        assert getattr(made.objective, "temperature", None) == 0.05
        config = made.selector_config(768)
        assert config is not None
        assert (config.num_blocks, config.num_frequencies, config.reduction) == (3, 4, 12)
        assert made.backbone.pooling == ("mask" if objective == "prompt" else "mean")
        if isinstance(made.objective, PromptBERT):
            ours = PromptBERT().templates if backbone == "bert" else TEMPLATES["roberta"]
            assert made.objective.templates == ours
    assert BUDGETS["paper"].seeds == (1, 2, 3, 4, 5, 6, 7)


def test_cls_is_trained_with_simcses_head_as_in_the_paper() -> None:
    for row in EXPERIMENTS["table 3"].rows:
        made = recipe(row.name).objective
        assert isinstance(made, SimCSE)
        headed = made.projection
        assert headed == (row.name in TABLE_3["BERT", "simcse"] and "CLS" in row.label), row.label


def test_what_the_paper_does_not_have_is_no_part_of_it() -> None:
    with pytest.raises(ConfigError, match="--paper runs what the paper has: leave control x1 out"):
        as_printed(["table 2", "control x1"])


def test_an_experiment_that_is_not_there_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"There is no table 9: choose from table 2, table 3.*, table jtcse, table sfp",
    ):
        chosen(["table 9"])


def test_the_papers_numbers_stand_for_rows_that_are_run() -> None:
    assert all(len(printed) == 8 for printed in TABLE_2.values())
    for key, table in (("table 2", TABLE_2), ("table 3", TABLE_3), ("table 4", TABLE_4)):
        known = {row.name for row in EXPERIMENTS[key].rows}
        assert all(set(printed) <= known for printed in table.values())


@pytest.mark.parametrize("row", [row for table in TABLE_4.values() for row in table.values()])
def test_the_papers_transfer_averages_are_those_of_its_tasks(row: tuple[float, ...]) -> None:
    assert sum(row[:-1]) / 7 == pytest.approx(row[-1], abs=0.011)


def test_the_reports_rows_are_the_base_and_the_best_average_of_each_model() -> None:
    rows = best_sts_rows()
    assert rows["SimCSE-BERT base"] == TABLE_2["BERT", "simcse"]["last1"]
    assert rows["SimCSE-BERT base, S2Sent"] == (79.54, 73.18, 78.50)
    assert rows["PromptRoBERTa base, S2Sent"] == (83.67, 71.57, 81.25)  # six blocks
    assert list(rows) == list(transfer_rows())
    for model, row in rows.items():
        assert row[-1] == max(row[-1], rows[model.removesuffix(", S2Sent")][-1])
