"""What a service answers to `s2sent embed --server`; no answer is used that has another shape."""

import base64
import binascii
import email.utils
import sys
import time
from collections.abc import Iterator
from typing import Annotated, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from s2sent.model.runtime.tokenizer import MAX_CHARACTERS_PER_TOKEN
from s2sent.service.bulk.job import Model

MAX_DIM = 65_536
SHOWN_CHARACTERS = 200  # of what a server says

Positive = Annotated[int, Field(ge=1, lt=2**31)]
Vector = NDArray[np.float32]
Shape = TypeVar("Shape", bound="Answer")


class UnusableAnswer(Exception):
    """An answer that no service of s2sent gives; the message says what is wrong with it."""


class CutAnswer(UnusableAnswer):
    """The beginning of an answer, or nothing."""


class Answer(BaseModel):
    """The part of a JSON object that is used; nothing in it is converted."""

    model_config = ConfigDict(strict=True, frozen=True, protected_namespaces=())


class Info(Answer):
    """GET /info; an earlier service does not have what has a default."""

    served_model_name: str
    fingerprint: str
    dim: Annotated[int, Field(ge=1, le=MAX_DIM)]
    depths: list[Positive]
    full_depth: Positive | None = None
    prompts: dict[str, str]
    max_client_batch_size: Positive
    max_input_length: Positive | None = None

    @property
    def model(self) -> Model:
        """The model that it describes."""
        depths = (*self.depths, *([self.full_depth] if self.full_depth else []))
        most = MAX_CHARACTERS_PER_TOKEN * (self.max_input_length or sys.maxsize)
        return Model(self.served_model_name, self.fingerprint, self.dim, depths, self.prompts, most)


class Served(Answer):
    """A model of the list."""

    fingerprint: str | None = None
    fingerprints_by_depth: dict[str, str] = {}


class Models(Answer):
    """GET /v1/models."""

    data: Annotated[list[Served], Field(min_length=1, max_length=1)]

    def fingerprint(self, depth: int | None) -> str | None:
        """What vectors of a depth have as ``model_fingerprint``; None where it is not told."""
        (served,) = self.data
        return served.fingerprints_by_depth.get(str(depth)) if depth else served.fingerprint


class TextDetails(Answer):
    """What is told of one text."""

    tokens: Annotated[int, Field(ge=0, lt=2**31)]
    truncated: bool
    error_type: str | None = None


class Details(Answer):
    """What is told of a request and of each text in it."""

    model_fingerprint: str | None = None
    texts: list[TextDetails]


class Embeddings(Answer):
    """POST /embed with details, encoded in base64; null is a text that has no embedding."""

    embeddings: list[str | None]
    details: Details

    def rows(
        self, count: int, dim: int
    ) -> Iterator[tuple[NDArray[np.float32] | None, TextDetails]]:
        """The vector [dim] and details of each of ``count`` texts; raises UnusableAnswer."""
        for name, found in (
            ("embeddings", len(self.embeddings)),
            ("details.texts", len(self.details.texts)),
        ):
            if found != count:
                raise UnusableAnswer(f"{name} has {found} entries for {count} texts")
        for at, (row, text) in enumerate(zip(self.embeddings, self.details.texts, strict=True)):
            yield None if row is None else _vector(row, at, dim), text


def parse(shape: type[Shape], content: bytes) -> Shape:
    """An answer in its shape; raises CutAnswer or UnusableAnswer."""
    try:
        return shape.model_validate(orjson.loads(content))
    except orjson.JSONDecodeError:
        if content.lstrip()[:1] in (b"", b"{"):
            raise CutAnswer("the answer is empty or cut") from None
        raise UnusableAnswer(f"{message(content)!r} is no JSON") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the answer"
        raise UnusableAnswer(
            f"{shown(place)}: {first['msg'].lower()}, in {message(content)!r}"
        ) from None


def message(content: bytes) -> str:
    """The sentence in an error's body, or the beginning of the body."""
    try:
        error = orjson.loads(content)["error"]
        return shown(error["message"] if isinstance(error, dict) else error)  # OpenAI's is one
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return shown(content[: 4 * SHOWN_CHARACTERS].decode("utf-8", "replace"))


def shown(words: object) -> str:
    """What a server says in one line that a terminal shows as it is."""
    line = " ".join(str(words)[: 4 * SHOWN_CHARACTERS].split())[:SHOWN_CHARACTERS]
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in line)


def retry_after(header: str) -> float | None:
    """The seconds of a ``Retry-After`` from now on; it may be a date (RFC 9110, section 10.2.3)."""
    if header.isdecimal():
        return float(header)
    try:
        return email.utils.parsedate_to_datetime(header).timestamp() - time.time()
    except (ValueError, OverflowError):
        return None


def _vector(row: str, at: int, dim: int) -> Vector:
    try:
        numbers = base64.b64decode(row, validate=True)
    except (binascii.Error, ValueError):
        raise UnusableAnswer(f"embeddings.{at} is {shown(row)[:20]!r} and not base64") from None
    if len(numbers) != 4 * dim:
        raise UnusableAnswer(f"embeddings.{at} has {len(numbers)} bytes and not {4 * dim}")
    return np.frombuffer(numbers, "<f4")
