"""Runs what files of results lack: trains a run's checkpoints, scores it and adds its line.

An experiment is a list of runs: its arms, which are patches of a recipe, by its seeds. A run that
has its line is not run again and a checkpoint that is there is not trained again, so an interrupted
series goes on when its command is given again. Several processes may work on one folder: a run that
another one has is left to it.
"""

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

from s2sent.model.network.loading.backbone_settings import read_config
from s2sent.model.network.transformer import is_causal
from s2sent.training.backbones import resolve, width_of
from s2sent.training.errors import ConfigError, Interrupted
from s2sent.training.files.jsonl import append_line, read_lines
from s2sent.training.files.locks import locked
from s2sent.training.files.record import provenance, read_record
from s2sent.training.fit.train import train
from s2sent.training.recipe.phases import merged
from s2sent.training.recipe.recipe import Recipe, recipe_from

log = logging.getLogger(__name__)

TESTS = "tests"  # the field of a line with the scores of the tests
# The libraries that decide what a run gives.
VERSIONS = ("torch", "transformers", "sentence-transformers", "numpy", "scipy", "scikit-learn")


@dataclass(frozen=True)
class Series:
    """What one command runs: an experiment on one backbone, under one budget."""

    data: Path
    output: Path
    backbone: str
    budget: str = "short"
    objectives: tuple[str, ...] = ("simcse",)
    seeds: tuple[int, ...] = ()  # none given: the budget's
    steps: int | None = None  # none given: the budget's
    corpus: str = "wikisplit"
    keys: tuple[str, ...] = ()  # of the paper's experiments; all where none is named
    arms: tuple[str, ...] = ()  # of X4 and sfp, likewise
    test_pairs: int = 0  # of sfp, of each test; 0 is all
    command: str = "reproduce"  # that builds the tables again

    @property
    def name(self) -> str:
        """The backbone in results: the end of its path, without ``pypi:``."""
        return Path(self.backbone).name.rpartition(":")[2]

    @property
    def folder(self) -> Path:
        """Where the results of the backbone are."""
        return self.output / self.name


@dataclass(frozen=True)
class Arm:
    """What is compared: a label, and what of a recipe's table is its own."""

    label: str
    patch: Mapping[str, Any]

    def recipe(self, table: Mapping[str, Any], source: str) -> Recipe:
        """The recipe of a table with this arm's part in it. Raises `ConfigError`."""
        return recipe_from(merged(dict(table), dict(self.patch)), source)


@dataclass(frozen=True)
class Run:
    """One line of a file of results, and how it is made.

    The line begins with ``key``, by which it is found again, and has the fields ``needed``. The
    ``recipes`` are trained in their order, each into its folder, with teachers' embeddings in
    ``cache``; ``score`` gives the line's other fields. Of runs with one ``folder`` one is run at a
    time; it is deleted once all of them have their lines, unless nothing was trained by a recipe.
    """

    name: str
    file: Path
    key: Mapping[str, Any]
    folder: Path
    recipes: Mapping[Path, Recipe]
    score: Callable[[], Mapping[str, Any]]
    needed: tuple[str, ...] = ()
    cache: Path | None = None

    @property
    def has_line(self) -> bool:
        """Whether the line is there."""
        return any(
            self.key.items() <= line.items() and set(self.needed) <= line.keys()
            for line in read_lines(self.file)
        )


@dataclass(frozen=True)
class Study:
    """An experiment: its runs on a series, and the page of their lines.

    ``write_tables`` returns the page's path and raises `ConfigError` without results. ``first`` is
    done before the runs.
    """

    runs_of: Callable[[Series], list[Run]]
    write_tables: Callable[[Series], Path]
    first: Callable[[Series], None] = lambda _: None


def run_missing(runs: Sequence[Run], data: Path) -> None:
    """Add the line of every run without one, but of those that another process is at.

    Raises `Interrupted` when a signal ended a run, and a `TrainingError` for what cannot be run.
    """
    for number, run in enumerate(runs, start=1):
        if run.has_line:
            continue
        with locked(run.folder) as free:
            if not free:
                log.info("%s is run by another process: give this command again then", run.name)
            elif not run.has_line:
                log.info("%d of %d: %s", number, len(runs), run.name)
                for folder, recipe in run.recipes.items():
                    ensure_checkpoint(folder, recipe, data, run.cache)
                versions = {name: version(name) for name in VERSIONS}
                line = {**run.key, **run.score(), "versions": versions, **provenance()}
                append_line(run.file, line)
                if run.recipes and all(of.has_line for of in runs if of.folder == run.folder):
                    shutil.rmtree(run.folder, ignore_errors=True)


def ensure_checkpoint(folder: Path, recipe: Recipe, data: Path, cache: Path | None = None) -> None:
    """Leave the checkpoint of a recipe in ``folder``, unless it is there; what was begun goes on.

    Raises `Interrupted` when a signal ends the run, and `ConfigError` where the checkpoint is
    another recipe's.
    """
    if folder.exists():
        made_by = read_record(folder).get("recipe")
        if made_by is None or recipe_from(made_by, str(folder)) != recipe:
            raise ConfigError(f"{folder} is of another recipe: move it away.")
        return
    log.info("training %s", folder)
    begun = folder.with_name(f"{folder.name}.partial").exists()
    again = "Interrupted: give the same command again to go on."
    try:
        outcome = train(recipe, data, folder, cache=cache, resume=begun)
    except Interrupted as error:
        raise Interrupted(again, error.number) from error
    if outcome.stopped is not None:
        raise Interrupted(again, outcome.stopped)


def runs_of_arms(
    series: Series,
    file: Path,
    arms: Mapping[str, Arm],
    seeds: Sequence[int],
    settings: Mapping[str, Any],
    table: Mapping[str, Any],
    score: Callable[[Path], Mapping[str, Any]],
) -> list[Run]:
    """The runs of a file, every arm that a series asks for of a seed before the next seed.

    A line has the ``settings``, a seed and an arm, whose recipe is ``table`` with its patch.
    ``score`` gives the other fields, from the checkpoint. Raises `ConfigError` for an unknown arm.
    """
    require_known(series.arms, [*arms], "arm")
    folder, runs = file.with_suffix(""), []
    for seed, arm in product(seeds, [arm for arm in arms if arm in (series.arms or arms)]):
        name = f"{arm}.{settings['steps']}.seed{seed}"
        checkpoint = folder / f"{name}.checkpoint"
        run = Run(
            name=f"{file.stem} {name}",
            file=file,
            key={**settings, "seed": seed, "arm": arm},
            folder=checkpoint,
            recipes={checkpoint: arms[arm].recipe({"seed": seed, **table}, f"{file.stem} {name}")},
            score=partial(score, checkpoint),
            cache=folder / "cache",
        )
        runs.append(run)
    return runs


def require_known(names: Sequence[str], known: Sequence[str], what: str) -> None:
    """Raise `ConfigError` for a name that is not among the known ones."""
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"{unknown[0]} is no {what} here: use one of {', '.join(known)}.")


def read_results(file: Path) -> list[dict[str, Any]]:
    """The lines of a file; raises `ConfigError` where there are none."""
    lines = read_lines(file)
    if not lines:
        raise ConfigError(f"{file} has no results: run the experiment first.")
    return lines


def model_config(backbone: str) -> Any:
    """The library's configuration of a backbone's model. Raises `CheckpointError`."""
    return read_config(Path(resolve(backbone)))


def size_of(backbone: str) -> tuple[int, int]:
    """The number of blocks of a backbone and its width. Raises `EncoderError`."""
    return int(model_config(backbone).num_hidden_layers), width_of(resolve(backbone))


def is_decoder(backbone: str) -> bool:
    """Whether a backbone reads from left to right only."""
    return is_causal(model_config(backbone))
