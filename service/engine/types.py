"""The types the embedding engine is built from and answers with."""

from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.token_spans import TokenSpan
from s2sent.model.runtime.tokenizer import TokenizedText, TruncationDirection
from s2sent.model.runtime.windows import Windows
from s2sent.service.errors import ServiceError
from s2sent.service.lanes import Lane

Item = TypeVar("Item", bound=Sized)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class OtherTexts:
    """The texts, or lists of token ids, of the other side of a comparison.

    ``depth`` is the last block that is run for them, None for all; ``prompt`` is put before them.
    """

    texts: Sequence[str | Sequence[int]]
    depth: int | None
    prompt: str


@dataclass(frozen=True, slots=True)
class EmbedRequest:
    """What to embed, and how."""

    texts: Sequence[str | Sequence[int]]  # lists of token ids are taken verbatim
    prompt: str = ""  # put before each text
    depth: int | None = None  # the last block that is run, one of the artifact's; None runs all
    others: OtherTexts | None = None  # follow the texts; not with skip_failed
    truncate: bool = True  # otherwise a text that is too long is an error
    truncation_direction: TruncationDirection = "right"  # the side that is cut off
    windows: Windows | None = None  # split what is too long; its embedding is their mean
    weights: bool = False  # the selector's block weights instead of the embeddings
    skip_failed: bool = False  # what is wrong with a text is in the result, not raised
    lane: Lane = "interactive"
    timeout_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class EmbedResult:
    """The embeddings of one request; waiting and running times are means over its texts.

    ``errors`` has the texts that could not be embedded, by position; their rows have no meaning.
    A request for block weights has them in ``embeddings``, the blocks of a text one after another.
    """

    embeddings: NDArray[np.float32]  # [n, dim], not normalised, row i for text i
    tokens: list[int]  # per text, after truncation, special tokens included; 0 with an error
    truncated: list[bool]
    tokenize_seconds: float
    queue_seconds: float
    inference_seconds: float
    errors: Mapping[int, ServiceError] = field(default_factory=dict)
    token_ids: Sequence[Sequence[int]] = ()  # what was run, special tokens included
    windows: Sequence[int] | None = None  # per text; None where no text could be split


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the service should receive traffic, and the reason when it should not."""

    ready: bool
    reason: str


class EmbeddingEngine(Protocol):
    """What the HTTP layer needs of `service.engine.engine.Engine`.

    The properties raise NotReady while the model is not loaded; the two counts of threads do not.
    """

    @property
    def artifact(self) -> Artifact: ...
    @property
    def model(self) -> "ServedModel": ...
    @property
    def threads(self) -> int: ...
    @property
    def tokenizer_threads(self) -> int: ...

    async def start(self) -> None: ...

    def check_room(self, lanes: Collection[Lane]) -> None: ...

    async def embed(self, request: EmbedRequest) -> EmbedResult: ...

    async def apply_tokenizer(
        self,
        function: "Callable[[TextTokenizer, Item], Result]",
        items: Sequence[Item],
        *,
        timeout_seconds: float | None = None,
        admitted: bool = False,
    ) -> list[Result]: ...

    def track(
        self, timeout_seconds: float, *, stage: Callable[[], str]
    ) -> AbstractAsyncContextManager[None]: ...

    def readiness(self) -> Readiness: ...

    async def drain(self, timeout_seconds: float) -> bool: ...


class TokenEncoder(Protocol):
    """What the engine needs of an encoder; `model.runtime.encoder.OnnxEncoder` is the real one."""

    dim: int
    max_seq_length: int
    provider: str
    has_block_weights: bool

    def run(
        self,
        sequences: Sequence[Sequence[int]],
        *,
        all_threads: bool = True,
        depth: int | None = None,
    ) -> NDArray[np.float32]:
        """Return one embedding [dim] per sequence, not normalised, once the run is over.

        ``all_threads`` says that no other run is expected meanwhile, so that this one may use
        every core. ``depth`` is the last block to run, one of the artifact's depths; None runs all.
        """

    def block_weights(
        self,
        sequences: Sequence[Sequence[int]],
        *,
        all_threads: bool = True,
        depth: int | None = None,
    ) -> NDArray[np.float32]:
        """Return the selector's weights [blocks, dim] per sequence; as `run`."""

    def return_memory(self) -> None:
        """Give back the memory that runs keep for the next one."""


class ServedModel(Protocol):
    """What `service.engine.base.BaseEngine` needs of a model, wherever that runs."""

    @property
    def artifact(self) -> Artifact | None: ...
    @property
    def tokenizer(self) -> "TextTokenizer": ...
    @property
    def provider(self) -> str: ...
    @property
    def has_block_weights(self) -> bool: ...

    def row_length(self, depth: int | None = None, *, weights: bool = False) -> int:
        """Numbers of a text in the result."""


class TextTokenizer(Protocol):
    """What the engine needs of a tokenizer; `model.runtime.tokenizer.Tokenizer` is the real one.

    Its methods are called from several threads at once, so a call leaves no state behind.
    """

    vocab_size: int
    unknown_id: int | None

    def tokenize(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        prompt: str = "",
        truncate: bool = True,
        truncation_direction: TruncationDirection = "right",
        windows: Windows | None = None,
    ) -> list[TokenizedText]:
        """Return the token ids of each text; raises `model.runtime.input_errors.UnusableInput`."""

    def token_spans(self, text: str, *, add_special_tokens: bool) -> list[TokenSpan]:
        """Return every token of a text, which is not truncated."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of token ids, which must be of this vocabulary."""

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return each token as the vocabulary spells it."""
