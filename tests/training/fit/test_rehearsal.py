"""``fit --dry-run``: what would run, how long it takes and how much disk; nothing is written."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from s2sent.training.__main__ import main
from s2sent.training.errors import ConfigError
from s2sent.training.fit.rehearsal import STEPS, rehearse
from s2sent.training.fit.train import train
from s2sent.training.loop.trainer import Trainer
from s2sent.training.recipe.recipe import Recipe
from tests.support.tiny_recipes import QUICK


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    steps: list[int] = []
    step = Trainer.training_step

    def watched(self: Trainer, *args: Any) -> torch.Tensor:
        steps.append(self.state.global_step)
        loss: torch.Tensor = step(self, *args)
        return loss

    monkeypatch.setattr(Trainer, "training_step", watched)
    return steps


@pytest.mark.parametrize(("steps", "tried"), [(500, STEPS), (3, 3)])
def test_it_tells_what_would_run_and_leaves_nothing(
    recipe: Recipe,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
    tried: int,
) -> None:
    taken = counted(monkeypatch)
    long = replace(recipe, training=replace(QUICK, steps=steps, eval_every=5))
    said = rehearse(long, data, tmp_path / "out")
    assert len(taken) == tried
    assert [*tmp_path.iterdir()] == []
    what, corpus, seconds, disk = said.splitlines()
    assert re.match(r"trains ([\d,]+) of \1 parameters of .*tiny with the objective simcse", what)
    assert corpus == f"on 60 of captions, 20 of wikisplit: {steps} steps of 8 rows"
    scores = steps // 5 + (steps % 5 > 0) + 2
    times = rf"about [\d.]+ min: .* s a step, the median of the first {tried}, and .* s for each of"
    assert re.match(rf"{times} {scores} scores of 44 pairs of STS-B dev", seconds)
    assert re.match(r"[\d.]+ MB for .*out, and at most [\d.]+ MB for .*out\.partial until", disk)


def test_the_disk_it_tells_is_what_a_run_takes(
    recipe: Recipe, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state takes at most half of what two do, and little less."""
    said = rehearse(recipe, data, tmp_path / "out").splitlines()[-1]
    told, most = (float(number) for number in re.findall(r"([\d.]+) MB for", said))
    sizes: list[float] = []
    save = Trainer._save_checkpoint

    def watched(self: Trainer, *args: Any, **kwargs: Any) -> None:
        save(self, *args, **kwargs)
        files = (tmp_path / "out.partial").rglob("*.*")
        sizes.append(sum(file.stat().st_size for file in files if file.is_file()) / 1e6)

    monkeypatch.setattr(Trainer, "_save_checkpoint", watched)
    train(recipe, data, tmp_path / "out", save_minutes=0)
    assert 0.7 * most < 2 * max(sizes) < 1.3 * most
    weights = (tmp_path / "out" / "model.safetensors").stat().st_size / 1e6
    assert told == pytest.approx(weights, abs=0.2)


def test_the_command_prints_it(
    recipe: Recipe, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(
        f"""seed = 3\nselector = {{ reduction = 4 }}
        backbone = {{ name = "{recipe.backbone.name}", max_seq_length = 32 }}
        corpus = [{{ source = "captions" }}]
        objective = {{ name = "simcse" }}
        training = {{ steps = 3, batch_size = 8 }}"""
    )
    output = tmp_path / "out"
    with pytest.raises(SystemExit, match="0"):
        main(["fit", str(path), "--data", str(data), "--output", str(output), "--dry-run"])
    assert "3 steps of 8 rows" in capsys.readouterr().out
    assert not output.exists()


def test_a_folder_that_is_taken_is_refused_as_by_the_run(
    recipe: Recipe, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="exists already"):
        rehearse(recipe, data, tmp_path)


def test_a_tracker_that_is_not_installed_is_refused(
    recipe: Recipe, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="--report-to nothing is no tracker that transformers"):
        train(recipe, data, tmp_path / "out", report_to=["nothing"])
    with pytest.raises(ConfigError, match="--report-to nothing is no tracker that transformers"):
        rehearse(recipe, data, tmp_path / "out", report_to=["nothing"])
    assert not [*tmp_path.iterdir()]


def test_an_interrupted_run_is_described_where_it_is_to_be_resumed(
    recipe: Recipe, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "out.partial").mkdir()
    with pytest.raises(ConfigError, match="go on with --resume"):
        rehearse(recipe, data, tmp_path / "out")
    assert " steps of 8 rows" in rehearse(recipe, data, tmp_path / "out", resume=True)
    assert [*tmp_path.rglob("*")] == [tmp_path / "out.partial"]


def test_a_tracker_gets_loss_and_scores(
    recipe: Recipe, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import TrainerCallback
    from transformers.integrations import integration_utils

    seen: list[set[str]] = []

    class Tracker(TrainerCallback):
        def on_log(self, *args: Any, **kwargs: Any) -> None:
            seen.append({*kwargs["logs"]})

    known: Callable[[], list[str]] = lambda: ["ours"]  # noqa: E731 - a fake of one line
    monkeypatch.setattr(
        "transformers.integrations.integration_utils.get_available_reporting_integrations", known
    )
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "ours", Tracker)
    train(recipe, data, tmp_path / "out", report_to=["ours"])
    names = set.union(*seen)
    assert {"loss", "eval_stsb_dev"} <= names
