"""The runs of a chain: its recipes with a seed, each going on from what earlier ones left."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from s2sent.training.errors import ConfigError
from s2sent.training.recipe.recipe import Recipe, read_recipe, recipe_from

CHECKPOINTS = "runs/"  # how a recipe names what an earlier one left
WITH, WITHOUT = "with the selector", "without the selector"  # of the last recipe


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
        left: dict[str, Path] = {}
        found = {}
        for name, recipe in self.recipes.items():
            own = f"{name}-without-selector" if (name, arm) == (self.last, WITHOUT) else name
            known = {f"{CHECKPOINTS}{each}": str(path) for each, path in left.items()}
            table = _replaced(recipe.as_table(), known)
            seeded = replace(recipe_from(table, name), seed=seed)
            if own != name:
                seeded = _without_selector(seeded, name)
            left[name] = folder / f"seed{seed}" / own
            found[left[name]] = seeded
        return found


def _without_selector(recipe: Recipe, name: str) -> Recipe:
    try:
        return replace(recipe, selector=None)
    except ValueError as error:
        raise ConfigError(
            f"The last recipe, {name}, is also run without its selector, and cannot be ({error}): "
            "end the chain with a recipe that can."
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
        for text in _texts(recipe.as_table()):
            if text.startswith(CHECKPOINTS) and text.removeprefix(CHECKPOINTS) not in recipes:
                raise ConfigError(
                    f"{file} begins from {text}, which no recipe before it leaves: give the file "
                    f"whose name ends with {text.removeprefix(CHECKPOINTS)} first."
                )
        recipes[name] = recipe
    return Chain(recipes)


def _texts(value: Any) -> list[str]:
    """Every text in a table, however deep."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value
    return [text for each in inner for text in _texts(each)] if _has_parts(value) else []


def _replaced(value: Any, texts: Mapping[str, str]) -> Any:
    """A copy of a table in which some texts are others."""
    if isinstance(value, str):
        return texts.get(value, value)
    if isinstance(value, dict):
        return {key: _replaced(each, texts) for key, each in value.items()}
    return [_replaced(each, texts) for each in value] if _has_parts(value) else value


def _has_parts(value: Any) -> bool:
    return isinstance(value, dict | list | tuple)
