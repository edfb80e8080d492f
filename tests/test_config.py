"""Recipes: what the file says is what is trained, and what it cannot mean is refused by name."""

import re
from pathlib import Path

import pytest

import training
from training.config import read_recipe
from training.errors import ConfigError

CONFIGS = Path(training.__file__).parent / "configs"

MINIMAL = """
seed = 7
[backbone]
name = "somewhere"
[corpus]
captions = 10
[gate]
steps = 3
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_recipe_is_read_into_its_sections_with_defaults(tmp_path: Path) -> None:
    """What is left out has a default; an integer may stand for a float."""
    recipe = read_recipe(write(tmp_path, MINIMAL + "temperature = 1\n"))
    assert recipe.seed == 7
    assert recipe.backbone.name == "somewhere"
    assert recipe.corpus.limits() == {"captions": 10}
    assert recipe.gate.temperature == 1.0
    assert type(recipe.gate.temperature) is float


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_that_ships_can_be_read(path: Path) -> None:
    recipe = read_recipe(path)
    assert recipe.selector_config(384).width == 384


def test_the_default_recipe_is_three_blocks_low_4_r_12() -> None:
    config = read_recipe(CONFIGS / "default.toml").selector_config(384)
    assert (config.num_blocks, config.num_frequencies, config.reduction) == (3, 4, 12)
    assert config.weight_norm == "softmax_blocks"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sead = 1\n" + MINIMAL, "unknown key sead"),
        (MINIMAL + "step = 2\n", r"\[gate\] has the unknown key step"),
        (MINIMAL.replace("seed = 7", ""), "lacks the key seed"),
        (MINIMAL.replace("= 3", "= true"), r"\[gate\] has steps = True: it must be of type int"),
        (MINIMAL.replace("= 3", "= 3.5"), "steps = 3.5: it must be of type int"),
        (MINIMAL.replace('"somewhere"', "4"), "name = 4: it must be of type str"),
        (MINIMAL.replace("= 3", "= 0"), r"\[gate\]: steps and eval_every must be positive"),
        (MINIMAL.replace("= 10", "= 0"), "at least one source must give pairs"),
        (MINIMAL + "batch_size = 1\n", "batch_size must be at least 2"),
        (MINIMAL + "learning_rate = 0\n", "must be above 0"),
        ("gate = 3\n" + MINIMAL.split("[gate]")[0], "gate = 3: it must be of type table"),
        ("selector = 1\n" + MINIMAL, "selector = 1: it must be of type table"),
        (MINIMAL + "[selector]\nwidth = 4\n", "selector has no option width"),
        ("seed = ", "is not TOML"),
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


def test_a_missing_recipe_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(str(tmp_path / "none.toml"))):
        read_recipe(tmp_path / "none.toml")


def test_a_selector_that_cannot_be_built_is_a_config_error(tmp_path: Path) -> None:
    """Values are checked when the backbone's width is known."""
    recipe = read_recipe(write(tmp_path, MINIMAL + "[selector]\nnum_frequencies = 3\n"))
    with pytest.raises(ConfigError, match="num_frequencies is 3"):
        recipe.selector_config(32)
