"""The bodies of the routes that take texts or token ids, as pydantic models."""

from typing import Annotated

from pydantic import Discriminator, Field, RootModel, Tag

from s2sent.service.api.encodings import Encoding
from s2sent.service.api.schemas.options import (
    AnswerOptions,
    Body,
    EmbedOptions,
    PromptName,
)
from s2sent.service.api.schemas.similarity import SimilarityBody
from s2sent.service.api.schemas.texts import Inputs, OpenAIInput, Strings, TokenIds

_ENCODING_DESCRIPTION = (
    "float: numbers. base64, float16: base64 of little-endian float32 or float16."
    " int8, binary, ubinary: integers, a byte for each component or for eight of them."
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


class OpenAIEmbeddingsBody(EmbedOptions, AnswerOptions):
    """Body of /v1/embeddings."""

    input: OpenAIInput
    model: str | None = Field(None, description="Accepted and ignored: one model is served.")
    encoding_format: Encoding = Field(default="float", description=_ENCODING_DESCRIPTION)


class TokenizeBody(Body):
    """Body of /tokenize."""

    inputs: Strings
    add_special_tokens: bool = Field(
        default=True, description="Whether the tokens that begin and end a text are among them."
    )
    prompt_name: PromptName = None


class DecodeBody(Body):
    """Body of /decode."""

    ids: TokenIds
    skip_special_tokens: bool = Field(
        default=True, description="Whether special tokens are left out of the text."
    )
