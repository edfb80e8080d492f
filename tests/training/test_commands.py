"""The command line of training: help without torch, fit and evaluate, errors as one sentence."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from s2sent.model.network.template import TemplateError
from s2sent.training.__main__ import main
from s2sent.training.errors import failure
from s2sent.training.evaluation.sts import TASKS
from s2sent.training.fit.encoder import new_encoder
from s2sent.training.recipe.recipe import (
    Recipe,
)
from tests.support.interruption import interrupted_at

ROOT = Path(__file__).parents[2]


def test_help_imports_no_training_library() -> None:
    """So that help is instant."""
    code = (
        "import sys; sys.argv = ['s2sent-train', 'fit', '--help']\n"
        "from s2sent.training.__main__ import main\n"
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


def recipe_file(recipe: Recipe, path: Path) -> str:
    path.write_text(
        f"""seed = 3\nselector = {{ reduction = 4 }}
        backbone = {{ name = "{recipe.backbone.name}", max_seq_length = 32 }}
        corpus = [{{ source = "captions" }}]
        objective = {{ name = "simcse" }}
        training = {{ steps = 4, batch_size = 8, eval_every = 2 }}"""
    )
    return str(path)


def failed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit status of a command and the one sentence that it ends with."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    *_, said = capsys.readouterr().err.splitlines()
    status = ended.value.code
    assert isinstance(status, int)
    return status, said


def test_a_seed_outside_its_range_is_one_sentence(
    recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = recipe_file(recipe, tmp_path / "recipe.toml")
    options = ["--data", str(tmp_path), "--output", str(tmp_path / "out"), "--seed", "-1"]
    status, said = failed(["fit", file, *options], capsys)
    assert (status, said) == (2, "s2sent-train: --seed: seed = -1 is outside 0 to 4294967295.")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_ends_with_the_status_of_its_signal(
    recipe: Recipe,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
    status: int,
) -> None:
    file = recipe_file(recipe, tmp_path / "recipe.toml")
    with interrupted_at(2, number):
        found, said = failed(
            ["fit", file, "--data", str(data), "--output", str(tmp_path / "out")], capsys
        )
    assert (found, said[:42]) == (status, "s2sent-train: Interrupted at step 2 of 4: ")


def test_a_path_that_the_system_refuses_is_one_sentence_and_status_1(
    recipe: Recipe, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = recipe_file(recipe, tmp_path / "recipe.toml")
    output = "/proc/sys/none/out"  # where nobody can write
    status, said = failed(["fit", file, "--data", str(data), "--output", output], capsys)
    assert status == 1
    assert said.startswith("s2sent-train: /proc/sys/none")
    assert "cannot be read or written: " in said
    lines = ["--sentences", str(tmp_path)]
    status, said = failed(["export", recipe.backbone.name, str(tmp_path / "out"), *lines], capsys)
    assert status == 1
    assert said == f"s2sent-train: {tmp_path} cannot be read or written: Is a directory."


def test_sentences_that_are_no_text_are_refused(
    recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    lines = ["--sentences", str(tmp_path / "binary")]
    status, said = failed(["export", recipe.backbone.name, str(tmp_path / "out"), *lines], capsys)
    assert status == 2
    assert said.startswith(f"s2sent-train: {tmp_path / 'binary'} is not UTF-8")


def test_a_record_or_template_that_is_damaged_is_one_sentence(
    recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "checkpoint"
    new_encoder(recipe).save(str(folder), create_model_card=False)
    (folder / "training.json").write_text("[]")
    for command in (
        ["export", str(folder), str(tmp_path / "out")],
        ["join", str(folder), str(folder), str(tmp_path / "out")],
    ):
        status, said = failed(command, capsys)
        assert status == 2
        assert said.startswith(f"s2sent-train: {folder / 'training.json'} holds no JSON object")
    assert failure(TemplateError("The template has no {}.")) == ("The template has no {}.", 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--table", "sfp", "--table", "9"], "There is no table 9: choose from table 2"),
        (
            ["--objective", "foo"],
            "foo is no objective here: use one of simcse, prompt, prompt-mean",
        ),
        (["--steps", "-1"], "Invalid value for '--steps'"),
    ],
)
def test_what_cannot_be_reproduced_is_refused_first(
    options: list[str], message: str, recipe: Recipe, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    where = ["--data", tmp_path, "--output", tmp_path / "out", "--backbone", recipe.backbone.name]
    assert message in refusal("reproduce", *where, *options)


def test_scores_of_a_service_have_no_manifest(tmp_path: Path, refusal: Callable[..., str]) -> None:
    said = refusal("evaluate", "http://localhost:1", "--data", tmp_path, "--record")
    assert "http://localhost:1 is the URL of a service: name the artifact's folder" in said
