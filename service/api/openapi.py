"""The OpenAPI document: request bodies, every status, and both error envelopes.

The routes read and write bytes, so FastAPI cannot derive schemas from their signatures; they are
declared with the helpers here.
"""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema

from s2sent.service import errors
from s2sent.service.api.schemas.bodies import (
    DecodeBody,
    EmbedBody,
    ExplainBody,
    OpenAIEmbeddingsBody,
    TokenizeBody,
)
from s2sent.service.api.schemas.similarity import SimilarityBody
from s2sent.service.errors import ServiceError
from s2sent.service.lanes import HEADER as PRIORITY_HEADER
from s2sent.service.lanes import LANES

_REFERENCE = "#/components/schemas/{model}"
_BODIES = (
    EmbedBody,
    SimilarityBody,
    OpenAIEmbeddingsBody,
    TokenizeBody,
    DecodeBody,
    ExplainBody,
)

# Errors of every route that embeds.
EMBEDDING_ERRORS: tuple[type[ServiceError], ...] = (
    errors.MalformedRequest,
    errors.EmptyInput,
    errors.Unauthorized,
    errors.PayloadTooLarge,
    errors.UnsupportedMediaType,
    errors.InvalidInput,
    errors.InferenceFailed,
    errors.Overloaded,
    errors.QuotaExceeded,
    errors.InternalError,
    errors.NotReady,
    errors.DeadlineExceeded,
)


class NativeError(BaseModel):
    """An error on the native routes."""

    error: str = Field(description="What is wrong and what to do about it, in one sentence.")
    error_type: str = Field(description="The kind of error, e.g. Validation or Overloaded.")


class OpenAIErrorDetail(BaseModel):
    """The error object that OpenAI's clients read."""

    message: str
    type: str
    param: str | None = Field(description="The field at fault, where there is one.")
    code: str | None = Field(description="The kind of error, e.g. Validation or Overloaded.")


class OpenAIError(BaseModel):
    """An error on /v1 routes."""

    error: OpenAIErrorDetail


REQUEST_ID = {
    "X-Request-Id": {
        "description": "The request's id: the one sent, if it is short and plain, or a new one.",
        "schema": {"type": "string"},
    }
}
RETRY_AFTER = {
    "Retry-After": {
        "description": "Seconds after which to try again.",
        "schema": {"type": "integer", "minimum": 0},
    }
}
EMBEDDING_HEADERS = {
    "x-compute-type": "Where the encoder runs: cpu or gpu.",
    "x-compute-time": "Milliseconds since the body was read.",
    "x-compute-characters": "Characters sent, cut ones among them; for token ids their number.",
    "x-compute-tokens": "Tokens embedded, after truncation, special tokens included.",
    "x-total-time": "Milliseconds since the request's head arrived.",
    "x-tokenization-time": "Milliseconds of tokenising.",
    "x-queue-time": "Milliseconds a text waited for its batch, the mean over the texts.",
    "x-inference-time": "Milliseconds a text's batch ran, the mean over the texts.",
    "x-truncated": "Texts that were cut because they were too long.",
    "x-model-fingerprint": "Equal exactly when embeddings can be compared with each other.",
}
RAW_HEADERS = {"x-embedding-shape": "rows,numbers in each; only with application/octet-stream."}
INT8_HEADERS = {"x-embedding-scale": "What 1 stands for; only with int8."}
PRIORITY = {
    "name": PRIORITY_HEADER,
    "in": "header",
    "required": False,
    "description": "The lane of the request: people who wait, or bulk; by default the API key's,"
    " or that of its number of texts.",
    "schema": {"type": "string", "enum": list(LANES)},
}
_RAW_CONTENT = {
    "application/octet-stream": {
        "schema": {
            "type": "string",
            "format": "binary",
            "description": "Little-endian float32, or the encoding's numbers, row after row.",
        }
    }
}


def request_body(
    schema: type[BaseModel], example: dict[str, Any], *, embeds: bool = False
) -> dict[str, Any]:
    """Declare a JSON body, for a route's ``openapi_extra``; /docs sends the example.

    ``embeds`` adds the header that names the lane.
    """
    reference = {"$ref": _REFERENCE.format(model=schema.__name__)}
    content = {"application/json": {"schema": reference, "example": example}}
    parameters = {"parameters": [PRIORITY]} if embeds else {}
    return {"requestBody": {"required": True, "content": content}, **parameters}


def success(
    model: Any,
    description: str,
    *,
    embeddings: bool = False,
    raw: bool = False,
    encoded: bool = False,
) -> dict[str, Any]:
    """Declare a 200; ``embeddings`` adds their headers, ``raw`` the octet-stream form,
    ``encoded`` the header of encodings."""
    texts = (
        (EMBEDDING_HEADERS if embeddings else {})
        | (RAW_HEADERS if raw else {})
        | (INT8_HEADERS if encoded else {})
    )
    headers = REQUEST_ID | {
        name: {"description": text, "schema": {"type": "string"}} for name, text in texts.items()
    }
    declaration = {"model": model, "description": description, "headers": headers}
    return declaration | ({"content": _RAW_CONTENT} if raw else {})


def failures(*kinds: type[ServiceError], openai: bool = False) -> dict[int | str, dict[str, Any]]:
    """Declare errors, by the status each has in the dialect."""
    declared: dict[int | str, dict[str, Any]] = {}
    for kind in kinds:
        status = kind.openai_status if openai else kind.status
        entry = declared.setdefault(
            status,
            {
                "model": OpenAIError if openai else NativeError,
                "description": "",
                "headers": dict(REQUEST_ID),
            },
        )
        meaning = (kind.__doc__ or "").strip()
        entry["description"] = f"{entry['description']} {kind.error_type}: {meaning}".strip()
        if issubclass(kind, (errors.Overloaded, errors.NotReady)):
            entry["headers"] |= RETRY_AFTER
    return declared


def describe(app: FastAPI) -> dict[str, Any]:
    """The whole document, built at the first call."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, summary=app.summary, routes=app.routes
        )
        _, bodies = models_json_schema(
            [(schema, "validation") for schema in _BODIES], ref_template=_REFERENCE
        )
        components = document.setdefault("components", {})
        components.setdefault("schemas", {}).update(bodies["$defs"])
        components["securitySchemes"] = {"apiKey": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{}, {"apiKey": []}]  # {}: no key is needed where none is configured
        app.openapi_schema = document
    return app.openapi_schema
