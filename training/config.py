"""A recipe: one TOML file that says all of what a training run does.

Where the data lies and where the checkpoint goes are arguments of the run, not part of the
recipe. A key that does not exist, is missing or has the wrong type is an error that names the
file and the key: a misspelt option must not quietly train something else.
"""

import tomllib
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from model.selector import SelectorConfig
from training.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """The encoder under the selector: a name for `training.backbones.resolve`."""

    name: str
    max_seq_length: int = 256  # tokens, special tokens included

    def __post_init__(self) -> None:
        _require(self.max_seq_length >= 3, "max_seq_length must be at least 3")


@dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """How many pairs to take from each source of `training.corpus.SOURCES`, at most."""

    wikisplit: int = 0
    captions: int = 0
    pan_paraphrase: int = 0

    def __post_init__(self) -> None:
        counts = asdict(self).values()
        _require(min(counts) >= 0, "the numbers of pairs must not be negative")
        _require(any(counts), "at least one source must give pairs")

    def limits(self) -> dict[str, int]:
        """The sources in use, and the most pairs to take from each."""
        return {name: count for name, count in asdict(self).items() if count}


@dataclass(frozen=True, kw_only=True)
class GateConfig:
    """The contrastive fit of the gate; the backbone does not move."""

    steps: int
    batch_size: int = 256  # pairs; the others of the batch are a pair's negatives
    learning_rate: float = 0.01  # of AdamW, falling linearly to 0
    temperature: float = 0.05  # what cosines are divided by in the loss
    eval_every: int = 25  # steps between two looks at the dev set

    def __post_init__(self) -> None:
        _require(self.steps >= 1 and self.eval_every >= 1, "steps and eval_every must be positive")
        _require(
            self.batch_size >= 2, "batch_size must be at least 2: a lone pair has no negatives"
        )
        _require(
            self.learning_rate > 0 and self.temperature > 0,
            "learning_rate and temperature must be above 0",
        )


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides a run's result, but for the data's content."""

    seed: int
    backbone: BackboneConfig
    corpus: CorpusConfig
    gate: GateConfig
    selector: dict[str, Any] = field(default_factory=dict)  # preset, and SelectorConfig's options

    def __post_init__(self) -> None:
        known = {option.name for option in fields(SelectorConfig)} - {"width"} | {"preset"}
        unknown = sorted(set(self.selector) - known)
        _require(not unknown, f"selector has no option {', '.join(unknown)}")

    def selector_config(self, width: int) -> SelectorConfig:
        """The selector for a backbone of ``width`` features; raises `ConfigError`."""
        options = {"preset": "default", **self.selector}
        try:
            return SelectorConfig.preset(options.pop("preset"), width=width, **options)
        except ValueError as error:
            raise ConfigError(f"[selector] does not fit a backbone {width} wide: {error}") from None


def read_recipe(path: Path) -> Recipe:
    """Read a recipe's TOML file. Raises `ConfigError` naming the file and the key."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): name a recipe.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}.") from None
    return _build(Recipe, table, str(path))


def _build(kind: type[T], table: dict[str, Any], where: str) -> T:
    """A dataclass from a table of the same keys; ``where`` starts the messages."""
    hints = get_type_hints(kind)
    options = {option.name: option for option in fields(kind)}  # type: ignore[arg-type]  # is one
    for key in table:
        if key not in options:
            raise ConfigError(f"{where} has the unknown key {key}: use {', '.join(options)}.")
    for key, option in options.items():
        if key not in table and option.default is option.default_factory is MISSING:
            raise ConfigError(f"{where} lacks the key {key}: add it.")
    values = {key: _value(hints[key], value, where, key) for key, value in table.items()}
    try:
        return kind(**values)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}.") from None


def _value(kind: Any, value: Any, where: str, key: str) -> Any:
    """``value`` checked to be of type ``kind``; a nested table becomes its dataclass."""
    if is_dataclass(kind) and isinstance(kind, type) and type(value) is dict:
        return _build(kind, value, f"{where} [{key}]")
    if kind is float and type(value) is int:
        return float(value)
    expected = dict if is_dataclass(kind) else getattr(kind, "__origin__", kind)
    if type(value) is not expected:
        name = "table" if expected is dict else expected.__name__
        raise ConfigError(f"{where} has {key} = {value!r}: it must be of type {name}.")
    return value


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ValueError(otherwise)
