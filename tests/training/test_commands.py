"""The command line of training: help without torch, fit and evaluate, errors as one sentence."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from training.__main__ import main
from training.commands.options import positive_numbers
from training.evaluation.sts import TASKS
from training.recipe.recipe import (
    Recipe,
)

ROOT = Path(__file__).parents[2]


def test_help_imports_no_training_library() -> None:
    """So that help is instant."""
    code = (
        "import sys; sys.argv = ['s2sent-train', 'fit', '--help']\n"
        "from training.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--data" in done.stdout


def test_the_commands_fit_and_score(
    recipe: Recipe, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run from the command line has the seed given there, and evaluate puts it into its table."""
    path = tmp_path / "recipe.toml"
    path.write_text(
        f"""seed = 3\nselector = {{ reduction = 4 }}
        backbone = {{ name = "{recipe.backbone.name}", max_seq_length = 32 }}
        corpus = [{{ source = "wikisplit" }}, {{ source = "captions" }}]
        objective = {{ name = "simcse" }}
        training = {{ steps = 4, batch_size = 8, eval_every = 2 }}"""
    )
    arguments = [str(path), "--data", str(data), "--output", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match="0"):
        main(["fit", *arguments, "--seed", "4"])
    assert json.loads((tmp_path / "out" / "training.json").read_text())["seed"] == 4
    tasks = tmp_path / "sts"
    tasks.mkdir()
    for file in TASKS.values():
        shutil.copy(data / "sts" / "stsb-dev.tsv", tasks / file)
    with pytest.raises(SystemExit, match="0"):
        main(["evaluate", str(tmp_path / "out"), "--data", str(tmp_path)])
    table = capsys.readouterr().out.splitlines()
    assert table[0].startswith("|  | STS12 |")
    assert table[2].startswith(f"| {tmp_path / 'out'} |")
    assert len(set(table[2].split("|")[2:-1])) == 1  # seven copies of one task, and their mean


def test_a_mistake_on_the_command_line_is_one_sentence_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["none.toml", "--data", str(tmp_path), "--output", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match="2"):
        main(["fit", *arguments])
    assert capsys.readouterr().err.startswith("s2sent-train: none.toml cannot be read")
    with pytest.raises(SystemExit, match="2"):
        main(["evaluate", str(tmp_path), "--data", str(tmp_path), "--record"])
    assert capsys.readouterr().err.startswith(f"s2sent-train: {tmp_path / 'manifest.json'}")
    with pytest.raises(SystemExit, match="2"):
        main(["export", "pypi:unheard-of", str(tmp_path / "out")])
    assert "No package is known for the backbone" in capsys.readouterr().err


@pytest.mark.parametrize("rates", ["nan", "", "0", "inf", "fast"])
def test_rates_are_numbers_above_0(rates: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a list of learning rates such as"):
        positive_numbers(rates, "learning rates")
