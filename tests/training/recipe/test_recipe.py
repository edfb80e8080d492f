"""Recipes: what the file says is what is trained, and what it cannot mean is refused by name."""

import json
import re
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import s2sent.training
from s2sent.training.errors import ConfigError
from s2sent.training.recipe.objectives import PromptBERT, SimCSE
from s2sent.training.recipe.phases import read_phases
from s2sent.training.recipe.recipe import CorpusPart, TrainingConfig, read_recipe, recipe_from

CONFIGS = Path(s2sent.training.__file__).parent / "configs"

MINIMAL = """
seed = 7
[backbone]
name = "somewhere"
[[corpus]]
source = "captions"
limit = 10
[selector]
reduction = 4
[objective]
name = "simcse"
[training]
steps = 3
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_recipe_is_read_into_its_sections_with_defaults(tmp_path: Path) -> None:
    """What is left out has a default; an integer may stand for a float."""
    recipe = read_recipe(write(tmp_path, MINIMAL + "learning_rate = 1\n"))
    assert recipe.seed == 7
    assert recipe.backbone.name == "somewhere"
    assert recipe.corpus == [CorpusPart(source="captions", limit=10)]
    assert recipe.objective == SimCSE(temperature=0.05)
    assert recipe.training.learning_rate == 1.0
    assert type(recipe.training.learning_rate) is float


def test_the_protocol_of_the_paper_is_what_a_recipe_says_without_saying_anything() -> None:
    """lr 3e-5, batch 64, tau 0.05, 32 tokens in training, dev every 125 steps, one pass, fp32."""
    training = TrainingConfig()
    assert (training.learning_rate, training.batch_size, training.eval_every) == (3e-5, 64, 125)
    assert (training.max_seq_length, training.steps, training.precision) == (32, 0, "fp32")
    assert (SimCSE().temperature, PromptBERT().temperature) == (0.05, 0.05)


def test_a_recipe_as_a_table_is_the_same_recipe_again(tmp_path: Path) -> None:
    """So that what a checkpoint's record holds can be run."""
    for path in CONFIGS.glob("*.toml"):
        for phase in read_phases(path):
            table = json.loads(json.dumps(phase.recipe.as_table()))
            assert recipe_from(table, "record") == phase.recipe


def test_without_a_selector_there_is_none(tmp_path: Path) -> None:
    text = MINIMAL.replace("[selector]\nreduction = 4\n", "")
    assert read_recipe(write(tmp_path, text)).selector_config(32) is None


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_that_ships_can_be_read(path: Path) -> None:
    for phase in read_phases(path):
        config = phase.recipe.selector_config(768)
        assert config is None or config.width == 768


def test_the_default_recipe_is_three_blocks_low_4_r_12() -> None:
    *_, last = read_phases(CONFIGS / "default.toml")
    config = last.recipe.selector_config(384)
    assert config is not None
    assert (config.num_blocks, config.num_frequencies, config.reduction) == (3, 4, 12)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sead = 1\n" + MINIMAL, "unknown key sead"),
        (MINIMAL.replace("limit = 10", 'groups = ["a"]'), "groups belongs to the source texts"),
        (MINIMAL + "step = 2\n", r"\[training\] has the unknown key step"),
        (MINIMAL.replace("seed = 7", ""), "lacks the key seed"),
        (
            MINIMAL.replace("= 3", "= true"),
            r"\[training\] has steps = True: it must be of type int",
        ),
        (MINIMAL.replace("= 3", "= 3.5"), "steps = 3.5: it must be of type int"),
        (MINIMAL.replace('"somewhere"', "4"), "name = 4: it must be of type str"),
        (MINIMAL + "eval_every = 0\n", r"\[training\]: eval_every = 0 must be at least 1"),
        (MINIMAL.replace("= 10", "= -1"), r"\[corpus\]: limit = -1 must be at least 0"),
        (MINIMAL.replace("[[corpus]]", "[corpus]"), "corpus = .* must be of type list"),
        (MINIMAL + "batch_size = 1\n", "batch_size = 1 must be at least 2: a lone row"),
        (MINIMAL + "learning_rate = 0\n", "learning_rate = 0.0 must be above 0"),
        (MINIMAL + 'precision = "fp8"\n', "precision = 'fp8': choose one of fp32, bf16"),
        (
            "training = 3\n" + MINIMAL.split("[training]")[0],
            "training = 3: it must be of type table",
        ),
        (MINIMAL.replace("reduction", "width"), "selector has no option width"),
        (MINIMAL.replace("reduction", "static"), "static = 4: choose blocks or features"),
        (
            MINIMAL.replace("reduction = 4", 'initial_bias = "a"'),
            "initial_bias = 'a': write a number from -1000 to 1000",
        ),
        (
            MINIMAL.replace("simcse", "nce"),
            r"\[objective\] has the name 'nce': choose one of simcse",
        ),
        (MINIMAL.replace("simcse", "distillation"), "lacks the key teachers"),
        (MINIMAL.replace('"simcse"', '"simcse"\nteachers = ["x"]'), "unknown key teachers"),
        (
            MINIMAL.replace('"somewhere"', '"somewhere"\npooling = "mask"'),
            "pooling = 'mask' needs the objective prompt",
        ),
        ("seed = ", "is not TOML"),
        (MINIMAL.replace("seed = 7", "seed = -1"), "seed = -1 is outside 0 to 4294967295"),
        (MINIMAL + "learning_rate = inf\n", "learning_rate = inf: write a finite number"),
        (MINIMAL + "learning_rate = nan\n", "learning_rate = nan: write a finite number"),
        (MINIMAL.replace("reduction = 4", "initial_bias = nan"), "nan: write a number from -1000"),
        (MINIMAL.replace("reduction = 4", "initial_bias = 1e39"), r"1e\+39: write a number from -"),
        (MINIMAL.replace('"simcse"', '["simcse"]'), r"has the name \['simcse'\]: choose one of"),
        (MINIMAL + f"learning_rate = 1{'0' * 400}\n", "learning_rate above 1.8e308: write a sma"),
        (MINIMAL.replace("seed = 7", f"seed = 1{'0' * 5000}"), "is not TOML: Exceeds the limit"),
        (f"seed = {'[' * 5000}", "is not TOML: maximum recursion depth"),
        (MINIMAL + "lora_alpha = 0\n", "lora_alpha = 0.0 must be above 0"),
        (MINIMAL + "lora_dropout = 1\n", "lora_dropout = 1.0 must be at least 0 and below 1"),
        (
            MINIMAL.replace('"simcse"', '"simcse"\nprojection = true') + "mini_batch_size = 4\n",
            "mini_batch_size = 4 works with plain simcse and supervised only: leave it out",
        ),
        (
            MINIMAL.replace("simcse", "prompt") + "mini_batch_size = 4\n",
            "mini_batch_size = 4 works",
        ),
        (MINIMAL + "lora_rank = 4\nround_matrices = true\n", "which round_matrices forbids"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_file_and_the_key(
    tmp_path: Path, text: str, says: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=says) as caught:
        read_recipe(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_recipe_is_frozen_and_checked_however_it_is_made(tmp_path: Path) -> None:
    recipe = read_recipe(write(tmp_path, MINIMAL))
    with pytest.raises(FrozenInstanceError):
        recipe.seed = 8  # type: ignore[misc]  # what is tested
    with pytest.raises(ValidationError, match="steps = -1 must be at least 0, which goes once"):
        replace(recipe.training, steps=-1)
    with pytest.raises(ValidationError, match="valid integer"):
        replace(recipe, seed="7")  # type: ignore[arg-type]  # what is tested


def test_a_misspelt_key_that_is_needed_is_told_as_such(tmp_path: Path) -> None:
    text = MINIMAL.replace("source =", "sauce =")
    with pytest.raises(
        ConfigError, match=r"\[corpus\] has the unknown key sauce: use source, limit"
    ):
        read_recipe(write(tmp_path, text))


def test_values_that_toml_has_and_a_recipe_has_not_are_refused_by_name(tmp_path: Path) -> None:
    for value in ("2026-01-01", "07:00:00", "[[1]]", '{ name = "x" }'):
        with pytest.raises(
            ConfigError, match=r"\[training\] has steps = .*: it must be of type int"
        ):
            read_recipe(write(tmp_path, MINIMAL.replace("= 3", f"= {value}")))


@pytest.mark.parametrize("table", [["seed"], "seed", 3, None])
def test_a_record_whose_recipe_is_no_table_is_refused(table: Any) -> None:
    with pytest.raises(ConfigError, match=r"^record has recipe = .*: it must be of type table\.$"):
        recipe_from(table, "record")


def test_a_byte_order_mark_is_no_part_of_a_recipe(tmp_path: Path) -> None:
    assert read_recipe(write(tmp_path, "\ufeff" + MINIMAL)).seed == 7


def test_a_missing_recipe_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(str(tmp_path / "none.toml"))):
        read_recipe(tmp_path / "none.toml")


def test_a_selector_that_cannot_be_built_is_a_config_error(tmp_path: Path) -> None:
    """Values are checked when the backbone's width is known."""
    recipe = read_recipe(write(tmp_path, MINIMAL.replace("reduction = 4", "num_frequencies = 3")))
    with pytest.raises(ConfigError, match="num_frequencies is 3"):
        recipe.selector_config(32)


def test_the_paper_preset_of_one_block_can_be_trained_with_a_warning(tmp_path: Path) -> None:
    text = MINIMAL.replace("reduction = 4", 'preset = "paper"\nnum_blocks = 1')
    with pytest.warns(UserWarning, match="the selector changes nothing"):
        config = read_recipe(write(tmp_path, text)).selector_config(32)
    assert config is not None
    assert config.num_blocks == 1
