"""What a run is prepared from, and what is said of it before it begins."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from s2sent.training.bfloat16 import NO_BFLOAT16
from s2sent.training.fit.train import train
from s2sent.training.recipe.recipe import CorpusPart, Recipe
from tests.support.tiny_data import SENTENCES


def test_bf16_on_a_processor_without_it_is_warned_of(
    recipe: Recipe,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("s2sent.training.fit.preparation.has_bfloat16", lambda: False)
    for precision in ("fp32", "bf16"):
        caplog.clear()
        of_it = replace(recipe, training=replace(recipe.training, precision=precision))
        train(of_it, data, tmp_path / precision)
        assert (NO_BFLOAT16 in caplog.messages) == (precision == "bf16")


def test_lines_that_were_not_taken_as_they_are_are_told_and_recorded(
    recipe: Recipe, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """So that an empty line of a million does not stop a run, and is not forgotten either."""
    folder = Path(shutil.copytree(data, tmp_path / "data"))
    lines = [*SENTENCES[:20], "", *SENTENCES[20:40], "  "]
    (folder / "corpus" / "own.txt").write_text("\n".join(lines))
    own = replace(recipe, corpus=[CorpusPart(source="own.txt")])
    outcome = train(own, folder, tmp_path / "out")
    assert "own.txt: empty lines left out: 2" in caplog.messages
    assert outcome.record["corpus"]["rows"] == {"own.txt": 40}
    assert outcome.record["corpus"]["changed"] == {"own.txt": "empty lines left out: 2"}
