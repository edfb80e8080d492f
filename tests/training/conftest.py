"""A tiny backbone, a tiny data folder and a short recipe on them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from s2sent.training.__main__ import main
from s2sent.training.evaluation import transfer
from s2sent.training.recipe.objectives import SimCSE
from s2sent.training.recipe.recipe import BackboneConfig, CorpusPart, Recipe
from tests.support.tiny import tiny_backbone
from tests.support.tiny_data import tiny_data
from tests.support.tiny_recipes import QUICK


@pytest.fixture(scope="session")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_backbone(tmp_path_factory.mktemp("backbone") / "tiny")


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def few_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transfer tasks take a fraction of the time: three folds within three, two strengths."""
    monkeypatch.setattr(transfer, "FOLDS", 3)
    monkeypatch.setattr(transfer, "STRENGTHS", transfer.STRENGTHS[-2:])


@pytest.fixture
def refusal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Runs a command that is to end with status 2; gives what it says on standard error."""
    monkeypatch.setenv("COLUMNS", "300")

    def run(*arguments: object) -> str:
        with pytest.raises(SystemExit, match="^2$"):
            main([*map(str, arguments)])
        return capsys.readouterr().err

    return run


@pytest.fixture(scope="session")
def recipe(backbone: Path) -> Recipe:
    return Recipe(
        seed=3,
        backbone=BackboneConfig(name=str(backbone), max_seq_length=32),
        corpus=[CorpusPart(source="captions"), CorpusPart(source="wikisplit", limit=20)],
        objective=SimCSE(),
        training=QUICK,
        selector={"reduction": 4},
    )
