"""Opening, warming up and verifying the model that is served."""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from s2sent.model.artifact.errors import ArtifactError
from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.malloc import return_freed_memory
from s2sent.model.runtime.providers import ProviderUnavailable
from s2sent.service.engine.inference.parallelism import Parallelism
from s2sent.service.engine.inference.served_artifact import int8_obstacle, open_artifact
from s2sent.service.engine.types import TextTokenizer, TokenEncoder
from s2sent.service.settings import Settings
from s2sent.service.telemetry.metrics import Metrics
from s2sent.service.threads import contain_panics, in_background

if TYPE_CHECKING:
    from s2sent.model.runtime.encoder import OnnxEncoder

logger = logging.getLogger(__name__)

# Largest difference of a component between the canary's embedding here and the exporter's, both of
# length 1. Other processors and TF32 move a component by less than 1e-4; another pooling, tokenizer
# or set of weights by more than 1e-2. float16 keeps 11 bits, hence its wider band, and int8 rounds
# by up to 2e-2, on each kind of processor in another way.
CANARY_TOLERANCE = {"fp32": 1e-3, "weight-int8": 1e-3, "fp16": 5e-3, "int8": 3e-2}

# On a CPU a batch of so many tokens needs no trial: opening the model took more memory than it
# will. With MiniLM it is 34 MB, and opening took 60 to 90 that were given back.
UNTRIED_TOKENS = 1_024


class EngineStartFailed(Exception):
    """The engine cannot serve this artifact; the message says why and what to do."""


class WrongShape(Exception):
    """The encoder did not return one row of dim numbers per sequence."""


@dataclass
class LoadedModel:
    """Encoder and tokenizer of an artifact. Without an artifact, as in tests, there is no canary.

    ``opened_since`` is when opening began, on the clock of time.monotonic, where that is known.
    ``warning`` is logged when the model is served: what its owner may want to be otherwise.
    """

    encoder: TokenEncoder
    tokenizer: TextTokenizer
    artifact: Artifact | None = None
    opened_since: float | None = None
    is_verified: bool = False
    warning: str = ""

    @classmethod
    def open(cls, settings: Settings, artifact: Artifact | None = None) -> Self:
        """Open the model that the settings name, or ``artifact`` where it is open already.

        Raises ArtifactError, ProviderUnavailable or EngineStartFailed.
        """
        artifact = artifact or open_artifact(settings)
        _check_defaults(settings, artifact)
        parallelism = Parallelism.of(settings)
        encoder = open_encoder(
            artifact,
            device=settings.device,
            intra_op_num_threads=parallelism.threads,
            concurrent_runs=parallelism.concurrent_runs,
        )
        warning = encoder.warning
        if settings.precision == "auto" and (why := int8_obstacle(settings, artifact.manifest)):
            warning = f"not served in int8: {why}"
        return cls(encoder, encoder.tokenizer, artifact, warning=warning)

    @classmethod
    def open_in_background(
        cls, settings: Settings, artifact: Future[Artifact] | None = None
    ) -> "Future[LoadedModel]":
        """`open` and `warm_up` in a thread; ``artifact`` may be being opened in another."""

        def work() -> LoadedModel:
            since = time.monotonic()
            model = cls.open(settings, artifact.result() if artifact else None)
            model.opened_since = since
            return_freed_memory()  # what opening took
            model.warm_up(settings)
            return model

        return in_background(work, name="load")

    def warm_up(self, settings: Settings) -> None:
        """Do what a first request would do, and check the canary, unless that was done before.

        Runs a short text on all threads and on one, so that no client pays for a first run. Where a
        batch may take more memory than opening did, the largest batch is run too, so that one that
        does not fit is known now. Raises EngineStartFailed.
        """
        if self.is_verified:
            return
        short = self._trial_tokens("warm up")
        self._trial_run([short], all_threads=True)
        self._trial_run([short], all_threads=False)
        most = settings.max_batch_tokens
        if settings.processor != "cpu" or most > UNTRIED_TOKENS:
            limit = self.encoder.max_seq_length
            longest = (short * limit)[:limit]
            self._trial_run([longest] * max(1, most // limit), all_threads=True)
        self.check_canary(self.run)
        self.is_verified = True

    def verify(self) -> None:
        """Run a short text and check the canary; raises EngineStartFailed."""
        self._trial_run([self._trial_tokens("warm up")], all_threads=False)
        self.check_canary(self.run)

    def run(
        self,
        sequences: Sequence[Sequence[int]],
        *,
        all_threads: bool = True,
        depth: int | None = None,
        weights: bool = False,
    ) -> NDArray[np.float32]:
        """`TokenEncoder.run`, or with ``weights`` the rows of `TokenEncoder.block_weights`.

        Raises WrongShape, or what the encoder raises.
        """
        compute = self.encoder.block_weights if weights else self.encoder.run
        values = compute(sequences, all_threads=all_threads, depth=depth)
        if weights:
            values = values.reshape(len(values), -1)
        expected = (len(sequences), self.row_length(depth, weights=weights))
        if values.shape != expected:
            raise WrongShape(f"the encoder returned {values.shape} instead of {expected}")
        return values

    @property
    def provider(self) -> str:
        return self.encoder.provider

    @property
    def has_block_weights(self) -> bool:
        return self.encoder.has_block_weights

    def release_memory(self) -> None:
        """Give back what runs keep; an inference thread calls it when it has nothing to do."""
        self.encoder.return_memory()
        return_freed_memory()

    def row_length(self, depth: int | None = None, *, weights: bool = False) -> int:
        """Numbers of a text in the result of `run`."""
        if not weights or self.artifact is None:
            return self.encoder.dim
        return self.encoder.dim * len(self.artifact.manifest.fused_blocks(depth))

    def check_canary(self, run: Callable[[list[list[int]]], NDArray[np.float32]]) -> None:
        """Raise EngineStartFailed unless the canary text has the embedding it had at export."""
        if self.artifact is None:
            return
        canary, precision = self.artifact.canary, self.artifact.manifest.precision
        tokens = self._trial_tokens(canary.text)
        embedding = run([tokens])[0].astype(np.float64)
        embedding /= np.linalg.norm(embedding)
        difference = float(np.abs(embedding - np.asarray(canary.embedding)).max())
        tolerance = CANARY_TOLERANCE.get(precision, min(CANARY_TOLERANCE.values()))
        if not difference <= tolerance:  # written so that NaN fails
            raise EngineStartFailed(
                f"canary vector is wrong: it is off by {difference:.2g}, the limit for {precision} "
                f"is {tolerance:g}. Export the checkpoint again, or use another onnxruntime."
            )

    def _trial_tokens(self, text: str) -> list[int]:
        try:
            return contain_panics(partial(self.tokenizer.tokenize, [text]))[0].input_ids
        except Exception as error:  # the tokenizer may raise anything
            raise EngineStartFailed(
                f"the tokenizer failed on {text!r}: {error}. Export the checkpoint again."
            ) from error

    def _trial_run(self, batch: Sequence[Sequence[int]], *, all_threads: bool) -> None:
        try:
            self.run(batch, all_threads=all_threads)
        except Exception as error:  # the encoder may raise anything, MemoryError too
            raise EngineStartFailed(
                f"the first run of {len(batch)} x {len(batch[0])} tokens failed: {error}. "
                "Lower max_batch_tokens, or export the checkpoint again."
            ) from error

    def describe(self, metrics: Metrics) -> None:
        """Publish which model is served."""
        if self.warning:
            logger.warning(self.warning)
        if self.artifact is not None:
            manifest, fingerprint = self.artifact.manifest, self.artifact.fingerprint
            for depth in manifest.depths:
                metrics.batch_texts.labels(depth)
                metrics.batch_duration.labels(depth)
            described = manifest.name, fingerprint, manifest.precision, self.provider, manifest.dim
            metrics.model_info.labels(*described).set(1)


def open_encoder(artifact: Artifact, **options: Any) -> "OnnxEncoder":
    """The encoder of an artifact; ``options`` as of OnnxEncoder.

    Raises ArtifactError, ProviderUnavailable, or EngineStartFailed for what cannot be loaded.
    """
    # Not for an HTTP process before an engine process: ONNX Runtime takes 15 MB.
    from s2sent.model.runtime.encoder import OnnxEncoder

    try:
        return contain_panics(partial(OnnxEncoder, artifact, **options))
    except (ArtifactError, ProviderUnavailable):
        raise
    except Exception as error:  # ONNX Runtime and tokenizers raise classes of their own
        raise EngineStartFailed(
            f"{artifact.path} cannot be loaded: {error}. Export the checkpoint again."
        ) from error


def _check_defaults(settings: Settings, artifact: Artifact) -> None:
    """Raise EngineStartFailed where the model lacks the default depth or dimensions."""
    depth, dimensions = settings.default_depth, settings.default_dimensions
    manifest = artifact.manifest
    if depth is not None and depth not in manifest.all_depths:
        known = ", ".join(map(str, manifest.all_depths)) or "none"
        raise EngineStartFailed(
            f"default_depth is {depth}; {artifact.path} can stop at {known}."
            " Set S2SENT_DEFAULT_DEPTH to one of them, or leave it out."
        )
    if dimensions is not None and dimensions > manifest.dim:
        raise EngineStartFailed(
            f"default_dimensions is {dimensions}; {artifact.path} has {manifest.dim}."
            f" Set S2SENT_DEFAULT_DIMENSIONS to at most {manifest.dim}, or leave it out."
        )
