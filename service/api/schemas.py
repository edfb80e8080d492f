"""Request bodies as pydantic models.

An optional field also accepts null, which means its default. Unknown fields are ignored. Types are
strict: ``"true"`` is not a boolean and ``1.5`` is not an integer.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    FailFast,
    Field,
    RootModel,
    Tag,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from model.runtime.tokenizer import TruncationDirection
from service.api.encodings import Encoding
from service.api.input_types import (
    TEXT_SCHEMA,
    Inputs,
    OpenAIInput,
    Strings,
    TokenIds,
    check_count,
    checked_text,
)
from service.errors import EmptyInput

MAX_INTEGER = 2**63 - 1  # orjson may parse a larger integer as a float


def _refuse_empty(texts: list[str], info: ValidationInfo) -> list[str]:
    if not texts:
        raise EmptyInput(f"inputs.{info.field_name} is empty.", param=f"inputs.{info.field_name}")
    check_count(len(texts), info)
    for index, text in enumerate(texts):
        checked_text(text, f"inputs.{info.field_name}[{index}]")
    return texts


def _refuse_empty_pairs(pairs: list[list[str]], info: ValidationInfo) -> list[list[str]]:
    if not pairs:
        raise EmptyInput("inputs.pairs is empty. Send at least one pair.", param="inputs.pairs")
    check_count(2 * len(pairs), info)
    for index, pair in enumerate(pairs):
        for side, text in enumerate(pair):
            checked_text(text, f"inputs.pairs[{index}][{side}]")
    return pairs


def _similarity_form(value: object) -> str | None:
    """The tag of an ``inputs`` object's form, by the first key that only this form has."""
    if not isinstance(value, dict):
        return None
    forms = {
        "source_sentence": "<source>", "sentences": "<source>",
        "pairs": "<pairs>",
        "queries": "<ranking>", "documents": "<ranking>",
    }  # fmt: skip
    return next((form for key, form in forms.items() if value.get(key) is not None), None)


def _lower_case(value: object) -> object:
    return value.lower() if value in ("Left", "Right") and isinstance(value, str) else value


def _allow_null(schema: dict[str, Any]) -> None:
    """Declare in a JSON schema that each optional field also accepts null."""
    fields = schema["properties"]
    for name in fields.keys() - schema.get("required", []):
        kind = {**fields[name]}
        about = {key: kind.pop(key) for key in ("title", "description", "default") if key in kind}
        if {"type": "null"} not in kind.get("anyOf", []):
            fields[name] = {"anyOf": [kind, {"type": "null"}], **about}


_PAIR_SCHEMA = {"type": "array", "items": TEXT_SCHEMA, "minItems": 2, "maxItems": 2}
# FailFast: a list of a million numbers must not become a million validation errors.
Texts = Annotated[
    list[str],
    FailFast(),
    AfterValidator(_refuse_empty),
    WithJsonSchema({"type": "array", "items": TEXT_SCHEMA, "minItems": 1}),
]
Pair = Annotated[list[str], FailFast(), Field(min_length=2, max_length=2)]
Pairs = Annotated[
    list[Pair],
    FailFast(),
    AfterValidator(_refuse_empty_pairs),
    WithJsonSchema({"type": "array", "items": _PAIR_SCHEMA, "minItems": 1}),
]
Direction = Annotated[
    TruncationDirection,
    BeforeValidator(_lower_case),
    WithJsonSchema({"enum": ["left", "Left", "right", "Right"], "type": "string"}),
]
Dimensions = Annotated[int, Field(ge=1)]
Depth = Annotated[int, Field(ge=1)]
LongTexts = Literal["truncate", "mean_of_windows"]
Overlap = Annotated[int, Field(ge=0)]
_ENCODING_DESCRIPTION = (
    "float: numbers. base64, float16: base64 of little-endian float32 or float16."
    " int8, binary, ubinary: integers, a byte for each component or for eight of them."
)
_LONG_TEXTS_DESCRIPTION = (
    "Cut a text that is too long, or split it into windows whose embeddings are averaged."
)
_OVERLAP_DESCRIPTION = (
    "Tokens that neighbouring windows share, up to half of what the model reads; by default an"
    " eighth."
)
_DEPTH_DESCRIPTION = (
    "The last block to run, one of the model's depths (/info); by default as the server is set."
)


class _Body(BaseModel):
    model_config = ConfigDict(
        strict=True, frozen=True, extra="ignore", json_schema_extra=_allow_null
    )

    @model_validator(mode="before")
    @classmethod
    def _null_means_default(cls, fields: object) -> object:
        if isinstance(fields, dict):
            return {name: value for name, value in fields.items() if value is not None}
        return fields


class EmbedOptions(_Body):
    """Options of tokenisation and of the encoder."""

    truncate: bool | None = Field(
        default=None,
        description="Cut texts that are too long; by default as the server is set (/info).",
    )
    truncation_direction: Direction = Field(
        default="right", description="The side that is cut off a text that is too long."
    )
    prompt_name: str | None = Field(
        default=None,
        description="Name of a prompt of the model (/info) that is put before every text.",
    )
    depth: Depth | None = Field(default=None, description=_DEPTH_DESCRIPTION)
    long_texts: LongTexts = Field(default="truncate", description=_LONG_TEXTS_DESCRIPTION)
    window_overlap: Overlap | None = Field(default=None, description=_OVERLAP_DESCRIPTION)


class SimilarityOptions(EmbedOptions):
    """Options of a comparison; ``depth`` is that of the source, the queries or a pair's first."""

    documents_depth: Depth | None = Field(
        default=None,
        description="The last block to run for sentences, documents and a pair's second text;"
        " by default that of the others. Two depths must be comparable (/info).",
    )


class AnswerOptions(_Body):
    """Options of the answer of a route that returns embeddings."""

    # Validated before the texts of a subclass, whose validators read it.
    on_error: Literal["fail", "null"] = Field(
        default="fail",
        description="Whether a text that cannot be embedded fails the request or becomes null.",
    )
    details: bool = Field(
        default=False,
        description="Tell each text's tokens, whether it was cut, and the model's fingerprint.",
    )
    dimensions: Dimensions | None = Field(
        default=None,
        description="Keep only the first components; cut before normalising. By default as the"
        " server is set (/info).",
    )


class EmbedBody(EmbedOptions, AnswerOptions):
    """Body of /embed."""

    inputs: Inputs
    normalize: bool = Field(default=True, description="Scale every embedding to length 1.")
    encoding: Encoding = Field(default="float", description=_ENCODING_DESCRIPTION)


class ExplainBody(EmbedOptions):
    """Body of /explain."""

    inputs: Inputs
    features: bool = Field(
        default=False, description="Give the weights of every feature, not only their mean."
    )


class SourceForm(_Body):
    """One source sentence, compared with each of the sentences."""

    source_sentence: Annotated[
        str,
        Field(
            description="The sentence compared with the others.",
            json_schema_extra={"minLength": 1},
        ),
    ]
    sentences: Texts

    def texts(self) -> list[str]:
        """Every text to embed, the sentences first."""
        return [*self.sentences, self.source_sentence]

    def sides(self) -> tuple[list[str], list[str]]:
        """The texts that are compared, one by one: the source again and again, the sentences."""
        return [self.source_sentence] * len(self.sentences), self.sentences

    @model_validator(mode="after")
    def _source_is_not_empty(self) -> Self:
        checked_text(self.source_sentence, "inputs.source_sentence")
        return self


class PairsForm(_Body):
    """Pairs of texts; the two of each pair are compared."""

    pairs: Pairs

    def texts(self) -> list[str]:
        """Every text to embed, pair after pair."""
        return [text for pair in self.pairs for text in pair]

    def sides(self) -> tuple[list[str], list[str]]:
        """The texts that are compared, one by one: the first and the second of each pair."""
        return [first for first, _ in self.pairs], [second for _, second in self.pairs]


class RankingForm(_Body):
    """Queries, for each of which the documents are ranked by cosine."""

    queries: Texts
    documents: Texts
    top_k: Annotated[int, Field(ge=1, le=MAX_INTEGER)] | None = Field(
        default=None, description="Documents in each answer; all of them by default."
    )

    def texts(self) -> list[str]:
        """Every text to embed, the queries first."""
        return [*self.queries, *self.documents]

    def sides(self) -> tuple[list[str], list[str]]:
        """The queries, and the documents that each of them is compared with."""
        return self.queries, self.documents


class RankedDocument(BaseModel):
    """A document's index in ``documents`` and its cosine with a query."""

    index: int
    score: float


SimilarityInputs = Annotated[
    Annotated[SourceForm, Tag("<source>")]
    | Annotated[PairsForm, Tag("<pairs>")]
    | Annotated[RankingForm, Tag("<ranking>")],
    Discriminator(
        _similarity_form,
        custom_error_type="similarity_form",
        custom_error_message=(
            "must have source_sentence and sentences, or pairs, or queries and documents"
        ),
    ),
]


class SimilarityBody(_Body):
    """Body of /similarity."""

    inputs: SimilarityInputs
    parameters: SimilarityOptions = SimilarityOptions()

    @model_validator(mode="after")
    def _texts_are_not_too_many(self, info: ValidationInfo) -> Self:
        check_count(len(self.inputs.texts()), info)
        return self


def _root_form(body: object) -> str:
    is_comparison = isinstance(body, dict) and isinstance(body.get("inputs"), dict)
    return "<similarity>" if is_comparison else "<embed>"


class RootBody(
    RootModel[
        Annotated[
            Annotated[EmbedBody, Tag("<embed>")] | Annotated[SimilarityBody, Tag("<similarity>")],
            Discriminator(_root_form),
        ]
    ]
):
    """Body of POST /: where ``inputs`` is an object that of /similarity, else that of /embed.

    Hugging Face's inference clients send either to the URL they are given.
    """


class OpenAIEmbeddingsBody(AnswerOptions):
    """Body of /v1/embeddings."""

    input: OpenAIInput
    model: str | None = Field(None, description="Accepted and ignored: one model is served.")
    encoding_format: Encoding = Field(default="float", description=_ENCODING_DESCRIPTION)
    prompt_name: str | None = Field(
        default=None,
        description="Name of a prompt of the model (/info) that is put before every text.",
    )
    depth: Depth | None = Field(default=None, description=_DEPTH_DESCRIPTION)
    long_texts: LongTexts = Field(default="truncate", description=_LONG_TEXTS_DESCRIPTION)
    window_overlap: Overlap | None = Field(default=None, description=_OVERLAP_DESCRIPTION)


class TokenizeBody(_Body):
    """Body of /tokenize."""

    inputs: Strings
    add_special_tokens: bool = Field(
        default=True, description="Whether the tokens that begin and end a text are among them."
    )
    prompt_name: str | None = Field(
        default=None,
        description="Name of a prompt of the model (/info) that is put before every text.",
    )


class DecodeBody(_Body):
    """Body of /decode."""

    ids: TokenIds
    skip_special_tokens: bool = Field(
        default=True, description="Whether special tokens are left out of the text."
    )
