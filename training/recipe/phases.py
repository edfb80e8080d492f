"""Reads a recipe of several phases: one TOML file, each phase a table of what it changes.

    seed = 1                      [[phase]]                      [[phase]]
    [backbone] ...                name = "contrast"              name = "full"
    [[corpus]] ...                objective.name = "simcse"      objective.teachers = [...]

A phase has the settings of the one before it, the first one those above; tables are merged key by
key, a table of another name and lists take the place of what was there. A phase begins with the
weights that the one before it left, or with those of a ``backbone.name`` of its own; ``phase:NAME``
as a backbone or among teachers is what phase NAME left.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from s2sent.training.errors import ConfigError
from s2sent.training.recipe.recipe import Recipe, read_table, recipe_from

PHASE = "phase:"  # starts the name of an encoder that an earlier phase left
TABLE_KEY = "phase"
NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


@dataclass(frozen=True)
class Phase:
    """One run of a recipe of several."""

    name: str
    recipe: Recipe


def read_phases(path: Path) -> list[Phase]:
    """The phases of a recipe's file; the one of a recipe without phases has no name.

    Raises `ConfigError` naming the file, the phase and the key.
    """
    table = read_table(path)
    if TABLE_KEY not in table:
        return [Phase("", recipe_from(table, str(path)))]
    patches = table.pop(TABLE_KEY)
    if (
        not isinstance(patches, list)
        or not patches
        or not all(isinstance(p, dict) for p in patches)
    ):
        raise ConfigError(f"{path} has {TABLE_KEY} that is no list of tables: write [[phase]].")
    phases: list[Phase] = []
    for patch in patches:
        name = _checked_name(patch, [phase.name for phase in phases], str(path))
        where = f"{path}, phase {name}"
        table = merged(table, {key: value for key, value in patch.items() if key != "name"})
        recipe = recipe_from(table, where)
        if "seed" in patch:
            raise ConfigError(f"{where} has seed, which all phases share: write it above them.")
        if phases and "name" not in patch.get("backbone", {}):
            before = replace(recipe.backbone, name=PHASE + phases[-1].name)
            recipe = replace(recipe, backbone=before)
        _require_known(recipe, {PHASE + phase.name for phase in phases}, where)
        phases.append(Phase(name, recipe))
    return phases


def with_seed(phases: list[Phase], seed: int) -> list[Phase]:
    """The phases with another seed. Raises `ConfigError`."""
    return [
        Phase(phase.name, recipe_from(phase.recipe.as_table() | {"seed": seed}, "--seed"))
        for phase in phases
    ]


def merged(table: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """A table with a patch's values; tables in both are merged, unless their names differ."""
    whole = dict(table)
    for key, value in patch.items():
        old: Any = whole.get(key)
        tables = isinstance(old, dict) and isinstance(value, dict)
        alike = tables and value.get("name", old.get("name")) == old.get("name")
        whole[key] = merged(old, value) if alike else value
    return whole


def with_encoders(recipe: Recipe, folders: dict[str, str], where: str) -> Recipe:
    """The recipe with other names of its backbone and teachers, from old names to new ones."""
    table = recipe.as_table()
    table["backbone"] = renamed(table["backbone"], folders)
    table["objective"] = renamed(table["objective"], folders)
    return recipe_from(table, where)


def renamed(value: Any, names: dict[str, str]) -> Any:
    """A value of a recipe in which texts, also in its tables and lists, have other names."""
    if isinstance(value, dict):
        return {key: renamed(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [renamed(each, names) for each in value]
    return names.get(value, value) if isinstance(value, str) else value


def encoders_of(recipe: Recipe) -> list[str]:
    """The names of the backbone, of teachers, and of a second tower."""
    objective = recipe.objective
    others = [*getattr(objective, "teachers", [])]
    if (tower := getattr(objective, "second_tower", None)) is not None:
        others.append(tower)
    return [recipe.backbone.name, *others]


def _checked_name(patch: dict[str, Any], before: list[str], where: str) -> str:
    name = patch.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigError(
            f"{where} has a phase with name = {name!r}: name it in small letters, digits, - and _."
        )
    if name in before:
        raise ConfigError(f"{where} has two phases named {name}: name each once.")
    return name


def _require_known(recipe: Recipe, known: set[str], where: str) -> None:
    for name in encoders_of(recipe):
        if name.startswith(PHASE) and name not in known:
            earlier = ", ".join(sorted(known)) or "none, in the first phase"
            raise ConfigError(f"{where} names {name}, which is no earlier phase: use {earlier}.")
