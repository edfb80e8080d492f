"""No command runs the code of a checkpoint, whether a folder or a hub id names it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from s2sent.training.join import join_checkpoints
from tests.support.hostile_checkpoint import edit_json, plain_checkpoint, with_pickle
from tests.support.hub_cache import put_into_cache, use_cache

Spoil = Callable[[Path, Path], object]

TWO_TOWERS = 'objective = { name = "jtcse", second_tower = "NAME" }'
TAUGHT = 'objective = { name = "distillation", teachers = ["NAME"] }'
RECIPES = {
    "fit": ("NAME", 'objective = { name = "simcse" }'),
    "fit a template": ("NAME", 'objective = { name = "prompt" }'),
    "fit towers": ("NAME", TWO_TOWERS.replace("NAME", "PLAIN")),
    "fit a second tower": ("PLAIN", TWO_TOWERS),
    "fit by a teacher": ("PLAIN", TAUGHT),
}
COMMANDS = {
    "export": "export NAME OUT",
    "evaluate": "evaluate NAME --data DATA --dev-only",
    "evaluate beside": "evaluate PLAIN --data DATA --dev-only --beside NAME",
    "report": "report NAME --data DATA --output OUT.html",
    "join": "join PLAIN NAME OUT",
    "depths": "depths NAME --data DATA --dev-only",
    "overhead": "overhead --backbone NAME --output OUT.json",
    **dict.fromkeys(RECIPES, "fit RECIPE --data DATA --output OUT"),
}


def a_pickle_that_a_setting_opens(folder: Path, trace: Path) -> None:
    with_pickle(folder, trace)
    edit_json(folder / "sentence_bert_config.json", model_args={"weights_only": False})


def a_pickle(folder: Path, trace: Path) -> None:
    with_pickle(folder, trace)


def a_module_of_its_own(folder: Path, trace: Path) -> None:
    (folder / "mine.py").write_text(f"import os\nos.mkdir({str(trace)!r})\n")
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["type"] = "mine.Pooling"
    (folder / "modules.json").write_text(json.dumps(modules))


def a_configuration_of_its_own(folder: Path, trace: Path) -> None:
    (folder / "mine.py").write_text(f"import os\nos.mkdir({str(trace)!r})\n")
    names = {"AutoConfig": "mine.Config", "AutoModel": "mine.Model"}
    edit_json(folder / "config.json", auto_map=names, model_type="mine")


def a_kernel(folder: Path, _trace: Path) -> None:
    edit_json(folder / "config.json", text_config={"_attn_implementation": "someone/kernel"})


SPOILS: list[Spoil] = [
    a_pickle_that_a_setting_opens,
    a_pickle,
    a_module_of_its_own,
    a_configuration_of_its_own,
    a_kernel,
]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plain_checkpoint(tmp_path_factory.mktemp("plain") / "checkpoint")


@pytest.mark.parametrize("from_hub", [False, True])
@pytest.mark.parametrize("spoil", SPOILS)
def test_no_command_runs_a_checkpoint_s_code(
    spoil: Spoil,
    from_hub: bool,
    plain: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refusal: Callable[..., str],
) -> None:
    """Each ends with one sentence and leaves nothing."""
    hostile, trace = tmp_path / "hostile", tmp_path / "trace"
    shutil.copytree(plain, hostile)
    spoil(hostile, trace)
    use_cache(tmp_path / "hub", monkeypatch)
    monkeypatch.setattr("sys.stdin", None)  # nothing is asked
    name = put_into_cache(tmp_path / "hub", "someone/model", hostile) if from_hub else str(hostile)
    backbone_alone = ("fit", "fit a template", "overhead")
    for command, line in COMMANDS.items():
        if command in RECIPES:
            write_recipe(tmp_path / "recipe.toml", *RECIPES[command], name=name, plain=plain)
        if spoil is a_module_of_its_own and command in backbone_alone:
            continue  # which take the transformer alone
        words = {
            "NAME": name,
            "PLAIN": str(plain),
            "DATA": str(data),
            "OUT": str(tmp_path / "out"),
            "RECIPE": str(tmp_path / "recipe.toml"),
        }
        stem = {f"OUT.{end}": f"{tmp_path / 'out'}.{end}" for end in ("json", "html")}
        said = refusal(*((words | stem).get(word, word) for word in line.split()))
        told = [part for part in said.splitlines() if part.startswith("s2sent-train: ")]
        assert len(told) == 1, (command, said)
        assert "Traceback" not in said
        assert not trace.exists(), command
        assert not (tmp_path / "out").exists(), command


def write_recipe(path: Path, backbone: str, objective: str, *, name: str, plain: Path) -> None:
    text = f"""seed = 1
    backbone = {{ name = "{backbone}" }}
    corpus = [{{ source = "captions" }}]
    {objective}
    training = {{ steps = 2, batch_size = 8, eval_every = 2 }}"""
    path.write_text(text.replace("NAME", name).replace("PLAIN", str(plain)))


def test_a_module_of_another_s_is_left_out_of_a_training_in_words(
    plain: Path,
    data: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A recipe takes the transformer alone."""
    from s2sent.training.fit.encoder import new_encoder
    from s2sent.training.recipe.recipe import read_recipe

    hostile, trace = tmp_path / "hostile", tmp_path / "trace"
    shutil.copytree(plain, hostile)
    a_module_of_its_own(hostile, trace)
    write_recipe(tmp_path / "recipe.toml", *RECIPES["fit"], name=str(hostile), plain=plain)
    new_encoder(read_recipe(tmp_path / "recipe.toml"))
    assert "is trained without everything but its transformer" in caplog.text
    assert "uses the class mine.Pooling" in caplog.text
    assert not trace.exists()


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_tower_s_code_is_not_run_either(
    spoil: Spoil, plain: Path, data: Path, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    """Twins are checkpoints in folders of a checkpoint."""
    twins, trace, out = tmp_path / "twins", tmp_path / "trace", tmp_path / "out"
    join_checkpoints(str(plain), str(plain), twins)
    spoil(twins / "tower_b", trace)
    for line in (
        ["export", twins, out],
        ["evaluate", twins, "--data", data, "--dev-only"],
    ):
        assert "s2sent-train: " in refusal(*line)
        assert not trace.exists()
        assert not out.exists()
