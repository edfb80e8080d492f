"""Reads a recipe: one TOML file with all settings of a training run.

The folders of the data and of the checkpoint are arguments of the run, not part of the recipe. An
unknown, missing or mistyped key is an error that names the file and the key, so that a misspelt
option never trains something else.
"""

import tomllib
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from model.artifact.template import CleanUp
from model.network.selector import SelectorConfig
from training.elastic import Elastic
from training.errors import ConfigError
from training.toml_tables import build

ExampleKind = Literal["texts", "pairs", "related"]  # what an objective reads
TRAINING_OPTIONS = ("initial_bias", "static")  # of [selector], but not of its SelectorConfig


@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """The encoder under the selector: a name for `training.backbones.resolve`.

    ``template`` is a text with {} for the sentence, or a name in `model.network.template`. Of
    ``pooling``, "mask" belongs to the objective prompt, which has templates of its own; a causal
    backbone is read at the "last_token" of its template, or at "rep1", where it has [REP1].
    """

    name: str
    max_seq_length: int = 256  # tokens the checkpoint reads, special tokens included
    pooling: Literal["mean", "cls", "mask", "last_token", "rep1"] = "mean"
    template: str = ""  # its tokens are not counted by max_seq_length
    clean_up: CleanUp = "none"  # of sentences in a template, when they are embedded

    def __post_init__(self) -> None:
        _require(self.max_seq_length >= 3, "max_seq_length must be at least 3")
        _require(
            bool(self.template) or self.pooling not in ("last_token", "rep1"),
            f"pooling = {self.pooling!r} reads a token of a template: set template",
        )
        _require(
            bool(self.template) or self.clean_up == "none",
            f"clean_up = {self.clean_up!r} is for sentences in a template: set template",
        )


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
class SFP:
    """CSE-SFP: Rep2 of a text against Rep1 of the same text, or of another, from one forward.

    With ``examples`` = "texts" both are of one text; "pairs" (with hard negatives, where the corpus
    has them) and "related" contrast Rep2 of the first text with Rep1 of the others.
    """

    name: Literal["sfp"] = "sfp"
    temperature: float = 0.05
    examples: ExampleKind = "texts"

    @property
    def example_kind(self) -> ExampleKind:
        """What the corpus gives."""
        return self.examples

    def __post_init__(self) -> None:
        _require(self.temperature > 0, "temperature must be above 0")


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
Objective = SimCSE | SupervisedSimCSE | PromptBERT | SFP | Distillation | PairDistillation | JTCSE


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
    lora_rank: int = (
        0  # above 0: low-rank updates of the backbone's linear layers, merged at the end
    )
    lora_alpha: float = 16.0  # the updates are scaled by lora_alpha / lora_rank
    lora_dropout: float = 0.05
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
        _require(self.lora_rank >= 0, "lora_rank must not be negative; 0 trains all weights")
        _require(self.lora_alpha > 0 <= self.lora_dropout < 1, "lora_dropout must be in [0, 1)")
        _require(
            not (self.lora_rank and self.freeze_backbone),
            "lora_rank trains the backbone, which freeze_backbone forbids: leave one of them out",
        )


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
        masked, prompted = self.backbone.pooling == "mask", isinstance(self.objective, PromptBERT)
        _require(
            not masked or prompted,
            "pooling = 'mask' needs the objective prompt, whose templates hold a mask",
        )
        _require(
            not (prompted and self.backbone.template),
            "the objective prompt has its own templates: leave template out of [backbone]",
        )
        _require(
            not isinstance(self.objective, SFP) or bool(self.backbone.template),
            "the objective sfp reads a template in two stages: set template = 'sfp' in [backbone]",
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
        read = self.backbone.pooling
        options["pooling"] = read if read in ("mean", "cls") else "token"
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
    return build(Recipe, table, where)


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ValueError(otherwise)
