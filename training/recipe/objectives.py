"""The objectives a recipe can name, each with its options and what kind of examples it reads."""

from dataclasses import field
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from s2sent.training.recipe.toml_tables import TABLE, AboveZero, at_least, require

ExampleKind = Literal["texts", "pairs", "related"]  # what an objective reads
Weight = Annotated[float, at_least(0)]


@dataclass(frozen=True, kw_only=True, config=TABLE)
class SimCSE:
    """Unsupervised SimCSE (arXiv 2104.08821, section 3): dropout makes a text's two views."""

    example_kind: ClassVar[ExampleKind] = "texts"
    name: Literal["simcse"] = "simcse"
    temperature: AboveZero = 0.05  # what cosines are divided by
    projection: bool = False  # a Linear + tanh on top in training, dropped afterwards


@dataclass(frozen=True, kw_only=True, config=TABLE)
class SupervisedSimCSE:
    """Supervised SimCSE (arXiv 2104.08821, section 4): pairs, with hard negatives or without."""

    example_kind: ClassVar[ExampleKind] = "pairs"
    name: Literal["supervised"] = "supervised"
    temperature: AboveZero = 0.05
    projection: bool = False
    mask_equal_texts: bool = True  # right answers of a row are not among its negatives


@dataclass(frozen=True, kw_only=True, config=TABLE)
class PromptBERT:
    """PromptBERT (arXiv 2201.04337): two templates make the views, less their own vectors."""

    example_kind: ClassVar[ExampleKind] = "texts"
    name: Literal["prompt"] = "prompt"
    temperature: AboveZero = 0.05
    templates: list[str] = field(  # {} is the sentence, [MASK] whatever the tokenizer masks with
        default_factory=lambda: [
            'This sentence of "{}" means [MASK].',
            'This sentence : "{}" means [MASK].',
        ]
    )
    denoising: bool = True  # subtract what the template alone gives at the sentence's length
    projection: bool = True

    def __post_init__(self) -> None:
        require(
            len(self.templates) == 2, f"templates has {len(self.templates)} texts: it must have two"
        )


@dataclass(frozen=True, kw_only=True, config=TABLE)
class SFP:
    """CSE-SFP: Rep2 of a text against Rep1 of the same text, or of another, from one forward.

    With ``examples`` = "texts" both are of one text; "pairs" (with hard negatives, where the corpus
    has them) and "related" contrast Rep2 of the first text with Rep1 of the others.
    """

    name: Literal["sfp"] = "sfp"
    temperature: AboveZero = 0.05
    examples: ExampleKind = "texts"
    mask_equal_texts: bool = True  # as of `SupervisedSimCSE`

    @property
    def example_kind(self) -> ExampleKind:
        """What the corpus gives."""
        return self.examples


@dataclass(frozen=True, kw_only=True, config=TABLE)
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
    temperature: AboveZero = 0.05
    teacher_temperature: AboveZero = 0.05
    weight: AboveZero = 1.0  # of the divergence
    contrastive_weight: Weight = 1.0  # of SimCSE's loss
    error_weight: Weight = 0.0  # of the squared error between student and teacher cosines
    dropout: bool = True  # without it one view of each text is embedded, at half the work

    def __post_init__(self) -> None:
        require(bool(self.teachers), "teachers must name at least one")
        require(
            self.dropout or not self.contrastive_weight,
            "dropout = false leaves one view, and contrastive_weight = "
            f"{self.contrastive_weight} needs two: set it to 0",
        )


@dataclass(frozen=True, kw_only=True, config=TABLE)
class PairDistillation:
    """Cosines of related texts follow the teachers', without dropout.

    A row is a pair of related texts. The mean squared error between the student's cosines and the
    mean of the teachers', over the pairs and over all texts of the batch, is the loss. Dropout
    would only add noise to exact targets. ``divergence_weight`` adds the divergence of
    `Distillation`, over all texts of the batch. ``direction_weight`` adds the mean of 1 - cosine
    between a text's vector and its teacher's, which takes one teacher of the student's width.
    """

    example_kind: ClassVar[ExampleKind] = "related"
    name: Literal["pair_distillation"] = "pair_distillation"
    teachers: list[str]
    direction_weight: Weight = 0.0
    divergence_weight: Weight = 0.0
    temperature: AboveZero = 0.05  # of the divergence, as the next
    teacher_temperature: AboveZero = 0.05

    def __post_init__(self) -> None:
        require(bool(self.teachers), "teachers must name at least one")
        require(
            not self.direction_weight or len(self.teachers) == 1,
            f"direction_weight needs one teacher, whose directions the student takes, not "
            f"{len(self.teachers)}",
        )


@dataclass(frozen=True, kw_only=True, config=TABLE)
class JTCSE:
    """JTCSE (arXiv 2505.02366): twins that agree in direction and modulus; each is a checkpoint.

    ``backbone.name`` is the first tower. Without ``cross_attention`` the objective is TNCSE's.
    """

    example_kind: ClassVar[ExampleKind] = "pairs"
    name: Literal["jtcse"] = "jtcse"
    second_tower: str  # a name as ``backbone.name``
    temperature: AboveZero = 0.05
    cross_attention: bool = True
    num_ca_layers: Annotated[int, at_least(1)] = 6  # blocks with cross-attention, at equal steps
    mask_equal_texts: bool = True  # as of `SupervisedSimCSE`


ELASTIC_OBJECTIVES = (SimCSE, SupervisedSimCSE, Distillation, PairDistillation)
Objective = Annotated[
    SimCSE | SupervisedSimCSE | PromptBERT | SFP | Distillation | PairDistillation | JTCSE,
    Field(discriminator="name"),
]
