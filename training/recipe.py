"""Reads a recipe: one TOML file with all settings of a training run.

The folders of the data and of the checkpoint are arguments of the run, not part of the recipe. An
unknown, missing or mistyped key is an error that names the file and the key, so that a misspelt
option never trains something else.
"""

import tomllib
import types
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

from model.network.selector import SelectorConfig
from training.elastic import Elastic
from training.errors import ConfigError

T = TypeVar("T")

ExampleKind = Literal["texts", "pairs", "related"]  # what an objective reads
TRAINING_OPTIONS = ("initial_bias", "static")  # of [selector], but not of its SelectorConfig


@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """The encoder under the selector: a name for `training.backbones.resolve`."""

    name: str
    max_seq_length: int = 256  # tokens the checkpoint reads, special tokens included
    pooling: Literal["mean", "cls", "mask"] = "mean"  # "mask" belongs to the prompt objective

    def __post_init__(self) -> None:
        _require(self.max_seq_length >= 3, "max_seq_length must be at least 3")


@dataclass(frozen=True, kw_only=True)
class CorpusPart:
    """One file of the corpus: a name of `training.corpus.SOURCES`, or a file in ``corpus/``."""

    source: str
    limit: int = 0  # rows to take at equal steps through the file, at most; 0 takes all

    def __post_init__(self) -> None:
        _require(self.limit >= 0, "limit must not be negative; 0 takes every row")


@dataclass(frozen=True, kw_only=True)
class SimCSE:
    """Unsupervised SimCSE (arXiv 2104.08821, section 3): dropout makes a text's two views."""

    example_kind: ClassVar[ExampleKind] = "texts"
    name: Literal["simcse"] = "simcse"
    temperature: float = 0.05  # what cosines are divided by
    projection: bool = False  # a Linear + tanh on top in training, dropped afterwards

    def __post_init__(self) -> None:
        _require(self.temperature > 0, "temperature must be above 0")


@dataclass(frozen=True, kw_only=True)
class SupervisedSimCSE:
    """Supervised SimCSE (arXiv 2104.08821, section 4): pairs, with hard negatives or without."""

    example_kind: ClassVar[ExampleKind] = "pairs"
    name: Literal["supervised"] = "supervised"
    temperature: float = 0.05
    projection: bool = False

    def __post_init__(self) -> None:
        _require(self.temperature > 0, "temperature must be above 0")


@dataclass(frozen=True, kw_only=True)
class PromptBERT:
    """PromptBERT (arXiv 2201.04337): two templates make the views, less their own vectors."""

    example_kind: ClassVar[ExampleKind] = "texts"
    name: Literal["prompt"] = "prompt"
    temperature: float = 0.05
    templates: list[str] = field(  # {} is the sentence, [MASK] whatever the tokenizer masks with
        default_factory=lambda: [
            'This sentence of "{}" means [MASK].',
            'This sentence : "{}" means [MASK].',
        ]
    )
    denoising: bool = True  # subtract what the template alone gives at the sentence's length
    projection: bool = True

    def __post_init__(self) -> None:
        _require(self.temperature > 0, "temperature must be above 0")
        _require(len(self.templates) == 2, "templates must be two")


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """Teachers' similarities within the batch, beside the contrastive loss of two views.

    The student's row of similarities follows the mean of the teachers' by Kullback-Leibler
    divergence, both as softmax distributions over the other texts of the batch (SEED, arXiv
    2101.04731, Eq. 3-5). A teacher is anything that `training.evaluation.encoders.open_encoder`
    opens.
    """

    example_kind: ClassVar[ExampleKind] = "texts"
    name: Literal["distillation"] = "distillation"
    teachers: list[str]
    temperature: float = 0.05
    teacher_temperature: float = 0.05
    weight: float = 1.0  # of the divergence
    contrastive_weight: float = 1.0  # of SimCSE's loss
    error_weight: float = 0.0  # of the squared error between student and teacher cosines
    dropout: bool = True  # without it one view of each text is embedded, at half the work

    def __post_init__(self) -> None:
        _require(bool(self.teachers), "teachers must name at least one")
        _require(
            min(self.temperature, self.teacher_temperature) > 0, "temperatures must be above 0"
        )
        _require(
            self.weight > 0 <= min(self.contrastive_weight, self.error_weight),
            "weight must be above 0, contrastive_weight and error_weight not below",
        )
        _require(
            self.dropout or not self.contrastive_weight,
            "dropout = false leaves one view, and contrastive_weight needs two: set it to 0",
        )


@dataclass(frozen=True, kw_only=True)
class PairDistillation:
    """Cosines of related texts follow the teachers', without dropout.

    A row is a pair of related texts. The mean squared error between the student's cosines and the
    mean of the teachers', over the pairs and over all texts of the batch, is the loss. Dropout
    would only add noise to exact targets. ``direction_weight`` adds the mean of 1 - cosine between
    a text's vector and its teacher's, which takes one teacher of the student's width.
    """

    example_kind: ClassVar[ExampleKind] = "related"
    name: Literal["pair_distillation"] = "pair_distillation"
    teachers: list[str]
    direction_weight: float = 0.0

    def __post_init__(self) -> None:
        _require(bool(self.teachers), "teachers must name at least one")
        _require(self.direction_weight >= 0, "direction_weight must not be negative")
        _require(
            not self.direction_weight or len(self.teachers) == 1,
            "direction_weight needs one teacher, whose directions the student takes",
        )


@dataclass(frozen=True, kw_only=True)
class JTCSE:
    """JTCSE (arXiv 2505.02366): twins that agree in direction and modulus; each is a checkpoint.

    ``backbone.name`` is the first tower. Without ``cross_attention`` the objective is TNCSE's.
    """

    example_kind: ClassVar[ExampleKind] = "pairs"
    name: Literal["jtcse"] = "jtcse"
    second_tower: str  # a name as ``backbone.name``
    temperature: float = 0.05
    cross_attention: bool = True
    num_ca_layers: int = 6  # blocks with cross-attention, at equal steps

    def __post_init__(self) -> None:
        _require(self.temperature > 0, "temperature must be above 0")
        _require(self.num_ca_layers >= 1, "num_ca_layers must be at least 1")


ELASTIC_OBJECTIVES = (SimCSE, SupervisedSimCSE, Distillation, PairDistillation)
Objective = SimCSE | SupervisedSimCSE | PromptBERT | Distillation | PairDistillation | JTCSE


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How the optimiser goes over the corpus; SimCSE's protocol where nothing is said."""

    steps: int = 0  # optimiser steps; 0 goes once over the corpus
    batch_size: int = 64  # rows over all processes; the others are a row's negatives
    learning_rate: float = 3e-5  # of AdamW at the first step, falling linearly to 0
    selector_learning_rate: float = 0.0  # of the selector's own parameters; 0 means the same
    warmup_steps: int = 0  # in which the learning rates rise linearly from 0
    max_seq_length: int = 32  # tokens of a text read in training
    group_by_length: bool = False  # batches of texts of similar length, with less padding
    eval_every: int = 125  # steps between two scores on STS-B dev, where the best is kept
    precision: Literal["fp32", "bf16"] = "fp32"  # of matrix products; weights stay fp32
    freeze_backbone: bool = False  # train the selector alone
    mini_batch_size: int = 0  # above 0: gradients in pieces of this size, as if in one

    def __post_init__(self) -> None:
        _require(self.warmup_steps >= 0, "warmup_steps must not be negative")
        _require(self.steps >= 0, "steps must not be negative; 0 goes once over the corpus")
        _require(self.eval_every >= 1, "eval_every must be at least 1")
        _require(self.batch_size >= 2, "batch_size must be at least 2: a lone row has no negatives")
        _require(self.learning_rate > 0, "learning_rate must be above 0")
        _require(
            self.selector_learning_rate >= 0,
            "selector_learning_rate must not be negative; 0 means learning_rate",
        )
        _require(self.max_seq_length >= 3, "max_seq_length must be at least 3")
        _require(self.mini_batch_size >= 0, "mini_batch_size must not be negative")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All settings that determine a run's result, apart from the data.

    ``selector`` holds a preset, `SelectorConfig`'s options, and two of training alone:
    ``initial_bias`` starts the gate with its last block's logit at +initial_bias and the others at
    -initial_bias, near the last block, from which a tuned backbone is pooled; ``static`` makes the
    gate independent of its input: it learns one weight per block ("blocks") or one per block and
    feature ("features"). Without the table the backbone is trained alone.
    """

    seed: int
    backbone: BackboneConfig
    corpus: list[CorpusPart]
    objective: Objective
    training: TrainingConfig = field(default_factory=TrainingConfig)
    selector: dict[str, Any] | None = None
    elastic: Elastic | None = None

    def __post_init__(self) -> None:
        _require(bool(self.corpus), "corpus must name at least one source")
        taken = {option.name for option in fields(SelectorConfig)} - {"width", "pooling", "exits"}
        unknown = sorted(set(self.selector or {}) - taken - {"preset", *TRAINING_OPTIONS})
        _require(not unknown, f"selector has no option {', '.join(unknown)}")
        bias, static = self.initial_bias, self.static
        _require(type(bias) in (int, float), f"selector has initial_bias = {bias!r}, not a number")
        _require(
            static in (None, "blocks", "features"),
            f"selector has static = {static!r}: choose blocks or features",
        )
        masked = self.backbone.pooling == "mask"
        _require(
            not masked or isinstance(self.objective, PromptBERT),
            "pooling = 'mask' needs the objective prompt, whose templates hold a mask",
        )
        _require(
            self.selector is None or not isinstance(self.objective, JTCSE),
            "the towers of jtcse bring their selectors: leave [selector] out, and train each "
            "tower with one",
        )
        _require(
            not self.training.freeze_backbone or not isinstance(self.objective, JTCSE),
            "jtcse trains both towers whole: leave freeze_backbone out",
        )

        self._check_elastic()

    def _check_elastic(self) -> None:
        if self.elastic is None:
            return
        objective = self.objective
        _require(
            isinstance(objective, ELASTIC_OBJECTIVES),
            f"elastic takes the objectives {', '.join(each.name for each in ELASTIC_OBJECTIVES)}, "
            f"not {objective.name}",
        )
        _require(
            not getattr(objective, "projection", False),
            "elastic compares the first features, which projection = true would mix: drop it",
        )

    @property
    def initial_bias(self) -> Any:
        """The gate's first logit of the last block; 0 starts from a plain average."""
        return (self.selector or {}).get("initial_bias", 0.0)

    @property
    def static(self) -> Any:
        """What a static gate learns a weight for; None for a gate that depends on its input."""
        return (self.selector or {}).get("static")

    def selector_config(self, width: int) -> SelectorConfig | None:
        """The selector for a backbone of ``width`` features; raises `ConfigError`."""
        if self.selector is None:
            return None
        options = {"preset": "default", **self.selector}
        options = {key: value for key, value in options.items() if key not in TRAINING_OPTIONS}
        if self.elastic is not None and not self.elastic.share_selector:
            options["exits"] = tuple(self.elastic.depths)
        if self.backbone.pooling == "cls":
            options["pooling"] = "cls"
        try:
            return SelectorConfig.preset(options.pop("preset"), width=width, **options)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"[selector] does not fit a backbone {width} wide: {error}") from None

    def as_table(self) -> dict[str, Any]:
        """The recipe as plain values, which `recipe_from` turns into an equal recipe."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def read_recipe(path: Path) -> Recipe:
    """Read a recipe's TOML file. Raises `ConfigError` naming the file and the key."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): name a recipe.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}.") from None
    return recipe_from(table, str(path))


def recipe_from(table: dict[str, Any], where: str) -> Recipe:
    """A recipe from its table; ``where`` starts the messages of the `ConfigError`s raised."""
    return _build(Recipe, table, where)


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
    """``value`` checked to be of type ``kind``; nested tables become their dataclasses."""
    if get_origin(kind) is types.UnionType:
        choices = [choice for choice in get_args(kind) if choice is not types.NoneType]
        kind = choices[0] if len(choices) == 1 else _named(choices, value, where, key)
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            known = ", ".join(get_args(kind))
            raise ConfigError(f"{where} has {key} = {value!r}: choose one of {known}.")
        return value
    if get_origin(kind) is list and type(value) is list:
        return [_value(get_args(kind)[0], item, where, key) for item in value]
    if is_dataclass(kind) and isinstance(kind, type) and type(value) is dict:
        return _build(kind, value, f"{where} [{key}]")
    if kind is float and type(value) is int:
        return float(value)
    expected = dict if is_dataclass(kind) else get_origin(kind) or kind
    if type(value) is not expected:
        name = "table" if expected is dict else expected.__name__
        raise ConfigError(f"{where} has {key} = {value!r}: it must be of type {name}.")
    return value


def _named(choices: list[Any], value: Any, where: str, key: str) -> Any:
    """Which of several dataclasses a table means: the one whose ``name`` it gives."""
    by_name = {choice.__dataclass_fields__["name"].default: choice for choice in choices}
    name = value.get("name") if type(value) is dict else value
    if type(value) is not dict or name not in by_name:
        known = ", ".join(by_name)
        raise ConfigError(f"{where} [{key}] has the name {name!r}: choose one of {known}.")
    return by_name[name]


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ValueError(otherwise)
