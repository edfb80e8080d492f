"""Options of requests, and what every request body has in common.

An optional field also accepts null, which means its default. Unknown fields are ignored. Types are
strict: ``"true"`` is not a boolean and ``1.5`` is not an integer.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from s2sent.model.runtime.tokenizer import TruncationDirection
from s2sent.service.http.validation_errors import exact_integer


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


Direction = Annotated[
    TruncationDirection,
    BeforeValidator(_lower_case),
    WithJsonSchema({"enum": ["left", "Left", "right", "Right"], "type": "string"}),
]
InputType = Literal["query", "document", "passage", "search_query", "search_document"]
Positive = Annotated[int, Field(ge=1), BeforeValidator(exact_integer)]
PromptName = Annotated[
    str | None,
    Field(
        description="Name of a prompt of the model (/info) that is put before every text. An empty"
        " name is no prompt."
    ),
]
Depth = Annotated[
    Positive | None,
    Field(
        description="The last block to run, one of the model's depths (/info); by default as the"
        " server is set."
    ),
]
LongTexts = Annotated[
    Literal["truncate", "mean_of_windows"],
    Field(
        description="Cut a text that is too long, or split it into windows whose embeddings are"
        " averaged."
    ),
]
Overlap = Annotated[
    Annotated[int, Field(ge=0), BeforeValidator(exact_integer)] | None,
    Field(
        description="Tokens that neighbouring windows share, up to half of what the model reads; by"
        " default an eighth."
    ),
]


class Body(BaseModel):
    """What all bodies have in common: strict types, and null for a default."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="ignore", json_schema_extra=_allow_null
    )

    @model_validator(mode="before")
    @classmethod
    def _null_means_default(cls, fields: object) -> object:
        if isinstance(fields, dict):
            return {name: value for name, value in fields.items() if value is not None}
        return fields


class EmbedOptions(Body):
    """Options of tokenisation and of the encoder."""

    truncate: bool | None = Field(
        default=None,
        description="Cut texts that are too long; by default as the server is set (/info).",
    )
    truncation_direction: Direction = Field(
        default="right", description="The side that is cut off a text that is too long."
    )
    prompt_name: PromptName = None
    input_type: InputType | None = Field(
        default=None,
        description="What the texts are for: chooses the model's prompt for queries or documents"
        " (/info), in place of prompt_name.",
    )
    depth: Depth = None
    long_texts: LongTexts = "truncate"
    window_overlap: Overlap = None


class AnswerOptions(Body):
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
    dimensions: Positive | None = Field(
        default=None,
        description="Keep only the first components; cut before normalising. By default as the"
        " server is set (/info).",
    )
