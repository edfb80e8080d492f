"""Reads a recipe: one TOML file with all settings of a training run.

The folders of the data and of the checkpoint are arguments of the run, not part of the recipe. An
unknown, missing or mistyped key is an error that names the file and the key, so that a misspelt
option never trains something else.
"""

import tomllib
from dataclasses import asdict, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic.dataclasses import dataclass

from s2sent.model.artifact.template import CleanUp
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.training.errors import ConfigError
from s2sent.training.recipe.elastic import Elastic
from s2sent.training.recipe.objectives import (
    ELASTIC_OBJECTIVES,
    JTCSE,
    SFP,
    Objective,
    PromptBERT,
    SimCSE,
    SupervisedSimCSE,
)
from s2sent.training.recipe.toml_tables import TABLE, AboveZero, Count, at_least, build, require

TRAINING_OPTIONS = ("initial_bias", "static")  # of [selector], but not of its SelectorConfig
TooLong = Literal["cut", "skip"]
TEXTS = "texts"  # the source that has groups
MAX_BIAS = 1_000  # of a gate's first logits; far less leaves a softmax one block
Tokens = Annotated[int, at_least(3)]
# Of [training]: how a part of the backbone is trained.
BACKBONE_OPTIONS = ("lora_rank", "round_matrices", "freeze_blocks")


@dataclass(frozen=True, kw_only=True, config=TABLE)
class BackboneConfig:
    """The encoder under the selector: a name for `training.backbones.resolve`.

    ``template`` is a text with {} for the sentence, or a name in `model.network.template`. Of
    ``pooling``, "mask" belongs to the objective prompt, which has templates of its own; a causal
    backbone is read at the "last_token" of its template, or at "rep1", where it has [REP1].
    """

    name: str
    max_seq_length: Tokens = 256  # tokens the checkpoint reads, special tokens included
    pooling: Literal["mean", "cls", "mask", "last_token", "rep1"] = "mean"
    template: str = ""  # its tokens are not counted by max_seq_length
    clean_up: CleanUp = "none"  # of sentences in a template, when they are embedded

    def __post_init__(self) -> None:
        require(
            bool(self.template) or self.pooling not in ("last_token", "rep1"),
            f"pooling = {self.pooling!r} reads a token of a template: set template",
        )
        require(
            bool(self.template) or self.clean_up == "none",
            f"clean_up = {self.clean_up!r} is for sentences in a template: set template",
        )


@dataclass(frozen=True, kw_only=True, config=TABLE)
class CorpusPart:
    """One part of the corpus: a known name, or a file in ``corpus/``.

    The names are those of `training.corpus.SOURCES` and `training.sources.by_name.MADE`.
    """

    source: str
    # Rows to take at equal steps through the file, at most.
    limit: Annotated[int, at_least(0, ", which takes every row")] = 0
    # Single texts that are put together into one longer text.
    join: Annotated[int, at_least(1, ", which leaves the texts as they are")] = 1
    too_long: TooLong = "cut"  # what is done with a text of more than `MAX_CHARACTERS`
    groups: list[str] = field(default_factory=list)  # of the source texts: the origins to take

    def __post_init__(self) -> None:
        require(
            not self.groups or self.source == TEXTS,
            f"groups belongs to the source {TEXTS}: leave it out for {self.source}",
        )

    @property
    def label(self) -> str:
        """What the part is called in messages and records."""
        joined = f", {self.join} joined" if self.join > 1 else ""
        return " ".join([self.source, *self.groups]) + joined


@dataclass(frozen=True, kw_only=True, config=TABLE)
class TrainingConfig:
    """How the optimiser goes over the corpus; SimCSE's protocol where nothing is said."""

    steps: Annotated[int, at_least(0, ", which goes once over the corpus")] = 0  # of the optimiser
    batch_size: Annotated[int, at_least(2, ": a lone row has no negatives")] = (
        64  # of all processes
    )
    learning_rate: AboveZero = 3e-5  # of AdamW at the first step, falling linearly to 0
    # Of the selector's own parameters.
    selector_learning_rate: Annotated[float, at_least(0, ", which means learning_rate")] = 0.0
    warmup_steps: Count = 0  # in which the learning rates rise linearly from 0
    max_seq_length: Tokens = 32  # tokens of a text read in training
    group_by_length: bool = False  # batches of texts of similar length, with less padding
    eval_every: Annotated[int, at_least(1)] = 125  # steps between two scores on STS-B dev
    dev_pairs: Annotated[int, at_least(0, ", which takes all")] = 0  # at equal steps through it
    precision: Literal["fp32", "bf16"] = "fp32"  # of matrix products; weights stay fp32
    freeze_backbone: bool = False  # train the selector alone
    freeze_blocks: Annotated[int, at_least(0, ", which trains all blocks")] = 0  # and embeddings
    lora_rank: Annotated[int, at_least(0, ", which trains all weights")] = 0  # of linear layers
    lora_alpha: AboveZero = 16.0  # the updates are scaled by lora_alpha / lora_rank
    lora_dropout: float = 0.05
    round_matrices: bool = False  # put them on int8's grid and train what is left
    mini_batch_size: Count = 0  # above 0: gradients in pieces of this size, as if in one

    def reads_all(self, rows: int) -> bool:
        """Whether a run goes through a corpus of so many rows at least once."""
        return not self.steps or self.steps * self.batch_size >= rows

    def __post_init__(self) -> None:
        require(
            0 <= self.lora_dropout < 1,
            f"lora_dropout = {self.lora_dropout} must be at least 0 and below 1",
        )
        require(
            not (self.freeze_backbone and self.freeze_blocks),
            "freeze_backbone freezes every block: leave freeze_blocks out",
        )
        for option in ("freeze_backbone", "freeze_blocks", "round_matrices"):
            require(
                not (self.lora_rank and getattr(self, option)),
                f"lora_rank trains the matrices, which {option} forbids: leave one of them out",
            )


@dataclass(frozen=True, kw_only=True, config=TABLE)
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
        require(bool(self.corpus), "corpus must name at least one source")
        require(0 <= self.seed < 2**32, f"seed = {self.seed} is outside 0 to {2**32 - 1}")
        self._check_selector()
        masked, prompted = self.backbone.pooling == "mask", isinstance(self.objective, PromptBERT)
        require(
            not masked or prompted,
            "pooling = 'mask' needs the objective prompt, whose templates hold a mask",
        )
        require(
            not (prompted and self.backbone.template),
            "the objective prompt has its own templates: leave template out of [backbone]",
        )
        require(
            not isinstance(self.objective, SFP) or bool(self.backbone.template),
            "the objective sfp reads a template in two stages: set template = 'sfp' in [backbone]",
        )
        require(
            self.selector is None or not isinstance(self.objective, JTCSE),
            "the towers of jtcse bring their selectors: leave [selector] out, and train each "
            "tower with one",
        )
        require(
            not (self.training.freeze_backbone or self.training.freeze_blocks)
            or not isinstance(self.objective, JTCSE),
            "jtcse trains both towers whole: leave freeze_backbone and freeze_blocks out",
        )
        plain = isinstance(self.objective, SimCSE | SupervisedSimCSE)
        require(
            not self.training.mini_batch_size
            or (plain and not self.elastic and not getattr(self.objective, "projection", False)),
            f"mini_batch_size = {self.training.mini_batch_size} works with plain simcse and"
            " supervised only: leave it out, or drop the projection or [elastic]",
        )
        self._check_elastic()

    def _check_selector(self) -> None:
        taken = {option.name for option in fields(SelectorConfig)} - {
            "width",
            "pooling",
            "exits",
            "project_exits",
            "project_blocks",
        }
        unknown = sorted(set(self.selector or {}) - taken - {"preset", *TRAINING_OPTIONS})
        require(not unknown, f"selector has no option {', '.join(unknown)}")
        bias, static = self.initial_bias, self.static
        require(
            type(bias) in (int, float) and abs(bias) <= MAX_BIAS,
            f"selector has initial_bias = {bias!r}: write a number from -{MAX_BIAS} to {MAX_BIAS}",
        )
        require(
            static in (None, "blocks", "features"),
            f"selector has static = {static!r}: choose blocks or features",
        )

    def _check_elastic(self) -> None:
        if self.elastic is None:
            return
        objective = self.objective
        require(
            isinstance(objective, ELASTIC_OBJECTIVES),
            f"elastic takes the objectives {', '.join(each.name for each in ELASTIC_OBJECTIVES)}, "
            f"not {objective.name}",
        )
        require(
            self.selector is not None or not self.elastic.project,
            "elastic has project = true, whose matrices are part of a selector: add [selector]; "
            "num_blocks = 1 with spatial_selection = 'avg' pools the last block alone",
        )
        require(
            not self.elastic.exits_only or self.selector is not None,
            "elastic has exits_only = true, which trains parts of a selector: add [selector]",
        )
        require(
            not self.elastic.exits_only
            or not any(getattr(self.training, option) for option in BACKBONE_OPTIONS),
            "elastic has exits_only = true, which leaves the backbone as it is: leave "
            f"{', '.join(BACKBONE_OPTIONS)} out",
        )
        require(
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
            options["project_exits"] = self.elastic.project
            options["project_blocks"] = self.elastic.project_blocks
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
    return recipe_from(read_table(path), str(path))


def read_table(path: Path) -> dict[str, Any]:
    """The table of a TOML file. Raises `ConfigError` naming the file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): name a recipe.") from None
    except (ValueError, RecursionError) as error:  # also of UTF-8, of digits and of nesting
        raise ConfigError(f"{path} is not TOML: {error}.") from None


def recipe_from(table: dict[str, Any], where: str) -> Recipe:
    """A recipe from its table; ``where`` starts the messages of the `ConfigError`s raised."""
    return build(Recipe, table, where)
