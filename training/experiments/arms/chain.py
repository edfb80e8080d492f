"""Chains of recipes, one going on from another's checkpoint, run with several seeds.

The last recipe is run with its selector and without. Every seed is trained and scored on
development data before any is scored on the tests.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.development import WITHOUT_OVERLAP, score_development
from s2sent.training.evaluation.encoders import load_checkpoint, torch_encode
from s2sent.training.evaluation.results.markdown import markdown_table
from s2sent.training.evaluation.results.statistics import by_seed, compare, mean_and_spread
from s2sent.training.evaluation.retrieval import PACKAGES
from s2sent.training.evaluation.sts import AVERAGE, Remembered, read_tasks, score, with_average
from s2sent.training.experiments.engine import (
    DEVELOPMENT,
    TESTS,
    Run,
    Train,
    read_results,
    run_missing,
)
from s2sent.training.experiments.score import development_texts, fusion_weights, initial_encoder
from s2sent.training.experiments.tables import (
    Runs,
    arms_of,
    comparisons_table,
    get,
    values,
    write_page,
)
from s2sent.training.files.jsonl import read_lines
from s2sent.training.files.record import read_record
from s2sent.training.recipe.phases import encoders_of, renamed
from s2sent.training.recipe.recipe import Recipe, read_recipe, recipe_from
from s2sent.training.train import train as train_recipe

RESULTS_FILE = "chain.jsonl"
CHECKPOINTS = "runs/"  # how a recipe names what an earlier one left
WITH, WITHOUT = "with the selector", "without the selector"  # of the last recipe
COMPARED = {DEVELOPMENT: WITHOUT_OVERLAP, TESTS: AVERAGE}  # the score by which arms are compared
MARGIN = 0.1  # points; a difference within it counts as none
TITLES = {DEVELOPMENT: "Development data", TESTS: "The seven STS tests"}


@dataclass(frozen=True)
class Chain:
    """Recipes by the name of the folder that each leaves, in their order."""

    recipes: Mapping[str, Recipe]

    @property
    def last(self) -> str:
        """The name of the recipe whose checkpoint is scored."""
        return list(self.recipes)[-1]

    @property
    def arms(self) -> tuple[str, ...]:
        """The last recipe as it is and, where it has a selector, without one."""
        return (WITH, WITHOUT) if self.recipes[self.last].selector is not None else (WITHOUT,)

    @property
    def sha256(self) -> str:
        """What identifies the chain: all its settings but the seeds."""
        tables = {name: recipe.as_table() for name, recipe in self.recipes.items()}
        plain = {name: {**table, "seed": None} for name, table in tables.items()}
        return hashlib.sha256(json.dumps(plain).encode()).hexdigest()

    def with_seed(self, seed: int, arm: str, folder: Path) -> dict[Path, Recipe]:
        """The recipes of one seed and arm by the folders that they leave in ``folder``.

        Raises `ConfigError` where the last recipe cannot be run without its selector.
        """
        left: dict[str, str] = {}
        found = {}
        for name, recipe in self.recipes.items():
            own = f"{name}-without-selector" if (name, arm) == (self.last, WITHOUT) else name
            seeded = recipe_from(renamed(recipe.as_table(), left) | {"seed": seed}, name)
            if own != name:
                seeded = _without_selector(seeded, name)
            output = folder / f"seed{seed}" / own
            left[f"{CHECKPOINTS}{name}"] = str(output)
            found[output] = seeded
        return found


def _without_selector(recipe: Recipe, name: str) -> Recipe:
    table = {key: value for key, value in recipe.as_table().items() if key != "selector"}
    try:
        return recipe_from(table, "without it")
    except ConfigError as error:
        raise ConfigError(
            f"The last recipe, {name}, is also run without its selector, and cannot be "
            f"({str(error).removesuffix('.')}): end the chain with a recipe that can."
        ) from None


def read_chain(files: Sequence[Path]) -> Chain:
    """Read recipes in their order; the last word of a file's name is that of its folder.

    ``default-3-pairs.toml`` leaves ``runs/pairs``, and a later recipe begins there by naming it.
    Raises `ConfigError` for a recipe that cannot be read, for two files of one name, and for one
    that names what no earlier recipe leaves.
    """
    recipes: dict[str, Recipe] = {}
    for file in files:
        name = file.stem.rpartition("-")[2]
        recipe = read_recipe(file)
        if name in recipes:
            raise ConfigError(f"{file} would leave {CHECKPOINTS}{name} a second time: rename it.")
        for start in encoders_of(recipe):
            if start.startswith(CHECKPOINTS) and start.removeprefix(CHECKPOINTS) not in recipes:
                raise ConfigError(
                    f"{file} begins from {start}, which no recipe before it leaves: give the file "
                    f"whose name ends with {start.removeprefix(CHECKPOINTS)} first."
                )
        recipes[name] = recipe
    return Chain(recipes)


def run_chain(
    chain: Chain,
    seeds: Sequence[int],
    data: Path,
    output: Path,
    *,
    tests: bool = False,
    command: str = "chain",
    train: Train = train_recipe,
) -> Path:
    """Run what is missing of a chain's seeds, and return the path of its tables.

    With ``tests`` the seven STS tests are scored too, once all else is done. Raises a
    `TrainingError` for what cannot be run, before anything is trained, and `Interrupted` when a
    signal ended a run.
    """
    file = output / RESULTS_FILE
    if any(line["chain_sha256"] != chain.sha256 for line in read_lines(file)):
        raise ConfigError(f"{file} has results of other recipes: choose another --output.")
    runs = [
        _run(chain, part, seed, arm, data, file)
        for part in (DEVELOPMENT, *((TESTS,) if tests else ()))
        for seed in seeds
        for arm in chain.arms
    ]
    if tests:
        read_tasks(data / "sts")  # so that no run ends at a file that cannot be used
    run_missing(runs, data, keep=True, train=train)
    return write_chain_tables(file, command)


def _run(chain: Chain, part: str, seed: int, arm: str, data: Path, file: Path) -> Run:
    recipes = chain.with_seed(seed, arm, file.parent)
    return Run(
        name=f"seed {seed}, {arm}",
        file=file,
        key={"chain_sha256": chain.sha256, "part": part, "seed": seed, "arm": arm},
        folder=file.parent / f"seed{seed}",
        recipes=recipes,
        score=partial(_score, recipes, part, data),
        part=part,
        tested=(list(recipes)[-1],) if part == TESTS else (),
    )


def _score(
    recipes: Mapping[Path, Recipe], part: str, data: Path, _: float | None
) -> dict[str, Any]:
    """The scores of the last checkpoint, and how far its fusion weights changed."""
    folder, recipe = list(recipes.items())[-1]
    encoder = load_checkpoint(folder)
    encode = Remembered(torch_encode(encoder))
    kept_steps = [read_record(each).get("dev", {}).get("step") for each in recipes]
    if part == TESTS:
        scores = with_average(score(encode, data / "sts"))
        return {"scores": scores, "kept_steps": kept_steps}
    retrieval = data / PACKAGES
    start = initial_encoder(recipe) if recipe.selector is not None else None
    weights = fusion_weights(encoder, start, development_texts(data))
    return {
        "scores": score_development(
            encode, data / "sts", retrieval if retrieval.is_file() else None
        ),
        "kept_steps": kept_steps,
        "weight_moved": weights and weights.change,
    }


def write_chain_tables(file: Path, command: str) -> Path:
    """Write the tables of a file of results beside it; returns their path.

    Raises `ConfigError` for a file without results.
    """
    lines = read_results(file)
    parts = []
    for part, title in TITLES.items():
        if of_part := [line for line in lines if line["part"] == part]:
            runs = arms_of(of_part, (WITH, WITHOUT))
            parts += [f"## {title}", _table(runs, list(of_part[0]["scores"]))]
            side = (WITHOUT, runs[WITH], runs[WITHOUT])
            if found := compare([side], get("scores", COMPARED[part])):
                parts.append(comparisons_table(f"{WITH}, minus", COMPARED[part], found, MARGIN))
    if changes := values(lines, get("weight_moved")):
        parts.append(f"Fusion weights changed by {max(changes):.3f} at most by the kept step.")
    return write_page(file.with_suffix(".md"), "A chain of recipes by seeds", command, parts)


def _table(runs: Mapping[str, Runs], scores: Sequence[str]) -> str:
    """A row a seed and, from two seeds, a row of means ± standard deviations, for each arm."""
    rows = []
    for arm, of_arm in runs.items():
        for line in of_arm:
            kept = ", ".join(map(str, line.get("kept_steps", ())))
            cells = [f"{line['scores'][name]:.2f}" for name in scores]
            rows.append([arm, str(line["seed"]), kept, *cells])
        if len(of_arm) > 1:
            known = [by_seed(of_arm, get("scores", name)).values() for name in scores]
            cells = [mean_and_spread([*of_score]) for of_score in known]
            rows.append([arm, f"mean of {len(of_arm)}", "", *cells])
    return markdown_table(["", "seed", "kept steps", *scores], rows)
