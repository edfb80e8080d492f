"""The body of /similarity: one source and sentences, pairs, or queries and documents to rank."""

from typing import Annotated, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Discriminator,
    FailFast,
    Field,
    Tag,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from s2sent.service.api.schemas.options import Body, EmbedOptions, Positive
from s2sent.service.api.schemas.texts import TEXT_SCHEMA, check_count, checked_text
from s2sent.service.errors import EmptyInput, PayloadTooLarge
from s2sent.service.http.validation_errors import exact_integer

MAX_RANKED = 65_536  # documents in the answers to all queries of a request, some 2 MB
MAX_INTEGER = 2**63 - 1  # orjson may parse a larger integer as a float


def _refuse_empty(texts: list[str], info: ValidationInfo) -> list[str]:
    if not texts:
        path = f"inputs.{info.field_name}"
        raise EmptyInput(f"{path} is empty. Send at least one text.", param=path)
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
            checked_text(text, f"inputs.pairs[{index}][{side}]", cure="Leave the pair out")
    return pairs


def _similarity_form(value: object) -> str | None:
    """The tag of the form whose keys an ``inputs`` object has; None for none or for two forms."""
    if not isinstance(value, dict):
        return None
    forms = {
        "source_sentence": "<source>", "sentences": "<source>",
        "pairs": "<pairs>",
        "queries": "<ranking>", "documents": "<ranking>",
    }  # fmt: skip
    found = {form for key, form in forms.items() if value.get(key) is not None}
    return found.pop() if len(found) == 1 else None


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


class SimilarityOptions(EmbedOptions):
    """Options of a comparison, of the source, the queries or a pair's first text.

    Those of the other texts begin with ``documents_``.
    """

    documents_depth: Positive | None = Field(
        default=None,
        description="The last block to run for sentences, documents and a pair's second text;"
        " by default ``depth``. Two depths must be comparable (/info).",
    )
    documents_prompt_name: str | None = Field(
        default=None,
        description="Name of a prompt of the model (/info) that is put before sentences, documents"
        " and a pair's second text; by default ``prompt_name``, and in a ranking without one the"
        " model's prompt for documents. An empty name is no prompt.",
    )


class SourceForm(Body):
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
        checked_text(self.source_sentence, "inputs.source_sentence", cure="Send a text")
        return self


class PairsForm(Body):
    """Pairs of texts; the two of each pair are compared."""

    pairs: Pairs

    def texts(self) -> list[str]:
        """Every text to embed, pair after pair."""
        return [text for pair in self.pairs for text in pair]

    def sides(self) -> tuple[list[str], list[str]]:
        """The texts that are compared, one by one: the first and the second of each pair."""
        return [first for first, _ in self.pairs], [second for _, second in self.pairs]


class RankingForm(Body):
    """Queries, for each of which the documents are ranked by cosine."""

    queries: Texts
    documents: Texts
    top_k: Annotated[int, Field(ge=1, le=MAX_INTEGER), BeforeValidator(exact_integer)] | None = (
        Field(default=None, description="Documents in each answer; all of them by default.")
    )

    @model_validator(mode="after")
    def _answer_is_not_too_large(self) -> Self:
        queries, documents = len(self.queries), len(self.documents)
        each = min(self.top_k or documents, documents)
        if queries * each > MAX_RANKED:
            raise PayloadTooLarge(
                f"{queries} queries with {each} documents each are {queries * each} scores; the"
                f" limit is {MAX_RANKED}. Ask for fewer with top_k, or send fewer queries.",
                param="inputs.top_k",
            )
        return self

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
            "must have source_sentence and sentences, or pairs, or queries and documents,"
            " and only one of these"
        ),
    ),
]


class SimilarityBody(Body):
    """Body of /similarity."""

    inputs: SimilarityInputs
    parameters: SimilarityOptions = SimilarityOptions()

    @model_validator(mode="after")
    def _texts_are_not_too_many(self, info: ValidationInfo) -> Self:
        check_count(len(self.inputs.texts()), info)
        return self
