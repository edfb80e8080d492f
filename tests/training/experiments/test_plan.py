"""What a series would take: told for each objective, of its missing runs, by one of them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from s2sent.training.experiments import reproduce
from s2sent.training.experiments.engine import Run
from s2sent.training.experiments.reproduce import plan
from s2sent.training.files.jsonl import append_line
from s2sent.training.recipe.recipe import Recipe, recipe_from


def recipe(selector: dict[str, Any] | None) -> Recipe:
    table = {
        "seed": 1,
        "backbone": {"name": "any"},
        "corpus": [{"source": "captions"}],
        "objective": {"name": "simcse"},
    }
    return recipe_from(table | ({"selector": selector} if selector is not None else {}), "a test")


def runs(folder: Path, objective: str) -> list[Run]:
    kinds = {"plain": recipe(None), "gated": recipe({}), "other": recipe(None)}
    return [
        Run(
            name=name,
            file=folder / f"{objective}.jsonl",
            key={"configuration": name},
            folder=folder / name,
            recipes={folder / name: of_run},
            score=dict,
        )
        for name, of_run in kinds.items()
    ]


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Recipe]:
    """The recipes whose first steps are taken; each says that a run takes 1,800 s."""
    found: list[Recipe] = []

    def first_steps(of_run: Recipe, data: Path, name: str) -> Any:
        found.append(of_run)
        return SimpleNamespace(
            steps=15_625, seconds=1800.0, pace="0.1 s a step", checkpoint=4e8, unfinished=3.2e9
        )

    monkeypatch.setattr(reproduce, "take_first_steps", first_steps)
    return found


def test_hours_and_disk_are_those_of_the_missing_runs(tried: list[Recipe], tmp_path: Path) -> None:
    append_line(tmp_path / "simcse.jsonl", {"configuration": "plain"})
    every = runs(tmp_path, "simcse") + runs(tmp_path, "prompt")
    first, second = plan(every, tmp_path).splitlines()
    assert first.startswith("simcse: 2 runs are missing, of 15,625 steps of 64 rows each. ")
    assert "about 1.0 h (30.0 min a run: 0.1 s a step)" in first
    assert "Each process needs up to 3,600 MB of disk at a time; " in first
    assert second.startswith("prompt: 3 runs are missing")
    assert [each.selector for each in tried] == [{}, {}]  # one with a selector stands for all


def test_nothing_is_tried_where_nothing_is_missing(tried: list[Recipe], tmp_path: Path) -> None:
    for name in ("plain", "gated", "other"):
        append_line(tmp_path / "a.jsonl", {"configuration": name})
    assert plan(runs(tmp_path, "a"), tmp_path) == ""
    assert tried == []
