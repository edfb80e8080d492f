"""The cells of a series of experiments: which runs there are, which are done, and who runs one.

A cell is one configuration trained with one objective and one seed. Its files:

    <output>/<backbone>/<objective>.jsonl                                   its result, one line
    <output>/<backbone>/<objective>/<configuration>.seed<seed>.lock         the pid that runs it
                                                              .checkpoint   until it is scored

Several processes may work on one folder: each claims a cell with a file lock, which the operating
system releases when the process ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from s2sent.training.backbones import resolve, width_of
from s2sent.training.corpus import read_corpus
from s2sent.training.errors import ConfigError
from s2sent.training.experiments.paper.plan.budgets import BUDGETS, OBJECTIVES
from s2sent.training.experiments.paper.plan.configurations import Configuration, misfit
from s2sent.training.experiments.paper.plan.experiments import Experiment
from s2sent.training.experiments.paper.results import difference, find_result, results_file
from s2sent.training.recipe.recipe import Recipe, recipe_from


@dataclass(frozen=True)
class Series:
    """What one command runs: experiments on one backbone, under one budget."""

    data: Path
    output: Path
    backbone: str
    budget: str = "short"
    objectives: tuple[str, ...] = ("simcse",)
    seeds: tuple[int, ...] = ()  # none given: the budget's
    steps: int | None = None  # none given: the budget's
    corpus: str = "wikisplit"
    keep: bool = False  # the checkpoints too

    def __post_init__(self) -> None:
        if unknown := [name for name in self.objectives if name not in OBJECTIVES]:
            raise ConfigError(
                f"{unknown[0]} is no objective here: choose from {', '.join(OBJECTIVES)}."
            )

    @property
    def folder(self) -> Path:
        """Where the results of the backbone are."""
        return self.output / backbone_name(self.backbone)

    def recipe(self, configuration: Configuration, objective: str, seed: int) -> Recipe:
        """The recipe of a cell."""
        return configuration.recipe(
            objective=objective,
            backbone=self.backbone,
            budget=self.budget,
            seed=seed,
            steps=self.steps,
            corpus=self.corpus,
        )


@dataclass(frozen=True)
class Cell:
    """One run: a recipe, and the path that its lock and its checkpoint begin with."""

    configuration: str
    objective: str
    recipe: Recipe
    transfer: bool
    stem: Path

    @property
    def checkpoint(self) -> Path:
        """The folder of the trained encoder."""
        return self.stem.with_name(f"{self.stem.name}.checkpoint")

    @property
    def lock(self) -> Path:
        """The file that is locked while the cell is run."""
        return self.stem.with_name(f"{self.stem.name}.lock")

    @property
    def results(self) -> Path:
        """The file that holds the results of the objective."""
        return results_file(self.stem.parents[1], self.objective)

    @property
    def name(self) -> str:
        """The name of the cell in messages."""
        return f"{self.objective} {self.configuration} seed {self.recipe.seed}"


def backbone_name(backbone: str) -> str:
    """The folder name of a backbone: the end of its path, without ``pypi:``."""
    return Path(backbone).name.rpartition(":")[2]


def cells(experiments: Sequence[Experiment], series: Series) -> tuple[list[Cell], dict[str, str]]:
    """The cells of experiments, each once, ordered by seed; and what is left out, with reasons.

    Raises `ConfigError` where no cell is left.
    """
    blocks, width = size_of(resolve(series.backbone))
    found: dict[Path, Cell] = {}
    left_out: dict[str, str] = {}
    for seed in series.seeds or BUDGETS[series.budget].seeds:
        for experiment in experiments:
            for objective in series.objectives:
                if objective not in experiment.objectives:
                    left_out[f"{experiment.key} with {objective}"] = "the paper has no such rows"
                    continue
                for name, configuration in experiment.configurations.items():
                    if reason := misfit(configuration, blocks=blocks, width=width):
                        left_out[name] = reason
                        continue
                    file = series.folder / objective / f"{name}.seed{seed}"
                    recipe = series.recipe(configuration, objective, seed)
                    transfer = experiment.transfer or (file in found and found[file].transfer)
                    found[file] = Cell(name, objective, recipe, transfer, file)
    if not found:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise ConfigError(f"Nothing is left to run on {series.backbone} ({reasons}): ask for more.")
    return list(found.values()), left_out


def size_of(backbone: str) -> tuple[int, int]:
    """The number of blocks of a backbone and its width. Raises `EncoderError`."""
    from transformers import AutoConfig  # takes seconds to import

    width = width_of(backbone)
    return int(AutoConfig.from_pretrained(backbone).num_hidden_layers), width


def corpus_sha256(data: Path, todo: Sequence[Cell]) -> dict[Path, str]:
    """The hash of the corpus that each cell trains on, by stem; each corpus is read once."""
    known: dict[Any, str] = {}
    for cell in todo:
        key = (tuple(cell.recipe.corpus), cell.recipe.objective.example_kind)
        if key not in known:
            known[key] = read_corpus(data / "corpus", key[0], kind=key[1]).sha256
    return {
        cell.stem: known[tuple(cell.recipe.corpus), cell.recipe.objective.example_kind]
        for cell in todo
    }


def is_done(cell: Cell, sha256: str) -> bool:
    """Whether a cell has its result. Raises `ConfigError` where it is one of another recipe."""
    result = find_result(cell.results, cell.configuration, cell.recipe.seed)
    if result is None:
        return False
    where = f"{cell.results}, {cell.configuration} seed {cell.recipe.seed}"
    if recipe_from(result["recipe"], where) != cell.recipe:
        raise ConfigError(
            f"{where} holds another recipe than {cell.name} has now "
            f"({difference(result['recipe'], cell.recipe.as_table())}): "
            "name another --output, or delete the line."
        )
    if result["corpus_sha256"] != sha256:
        raise ConfigError(
            f"{where} was trained on the corpus {result['corpus_sha256'][:12]}, and "
            f"{cell.name} would be on {sha256[:12]}: name another --output, or delete the line."
        )
    return not cell.transfer or "transfer" in result
