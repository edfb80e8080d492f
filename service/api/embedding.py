"""Where routes meet the engine: their shared state, and request options -> engine -> result."""

import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from pydantic import BaseModel
from starlette.requests import Request

from s2sent.model.artifact.identity import vector_fingerprint
from s2sent.model.artifact.manifest import Manifest
from s2sent.model.runtime.windows import Windows
from s2sent.service.api.exposition import Exposition
from s2sent.service.api.prompts import prompt_of
from s2sent.service.api.schemas.options import EmbedOptions
from s2sent.service.api.schemas.texts import Text
from s2sent.service.engine.types import EmbeddingEngine, EmbedRequest, EmbedResult, OtherTexts
from s2sent.service.errors import InvalidInput
from s2sent.service.http.body import BodyReader, unless_disconnected
from s2sent.service.http.context import context_of
from s2sent.service.http.memory import ByteBudget
from s2sent.service.http.tracing import trace_stages
from s2sent.service.lanes import HEADER as PRIORITY
from s2sent.service.lanes import LANES, lane_of
from s2sent.service.settings import Settings
from s2sent.service.telemetry.metrics import Metrics

Body = TypeVar("Body", bound=BaseModel)


@dataclass(frozen=True)
class Service:
    """What every route shares; one per application, in its ``app.state``."""

    settings: Settings
    engine: EmbeddingEngine
    metrics: Metrics
    bodies: BodyReader
    answer_memory: ByteBudget
    exposition: Exposition
    started_at: int = field(default_factory=lambda: int(time.time()))  # seconds since the epoch
    _fingerprints: dict[int | None, str] = field(default_factory=dict)  # by depth

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest of the served artifact; raises NotReady while none is loaded."""
        return self.engine.artifact.manifest

    @property
    def model_name(self) -> str:
        return self.settings.served_name or self.manifest.name

    @cached_property
    def compute_type(self) -> str:
        """``gpu`` or ``cpu``, by the provider that the encoder runs on."""
        return "cpu" if self.engine.model.provider == "CPUExecutionProvider" else "gpu"

    def fingerprint(self, depth: int | None = None) -> str:
        """The identity of the vectors of a depth (`model.artifact.identity`)."""
        known = self._fingerprints.get(depth)
        if known is None:
            known = self._fingerprints[depth] = vector_fingerprint(self.manifest, depth)
        return known

    def depth(self, asked: int | None) -> int | None:
        """The last block to run for a request that asked for ``asked``; None for all of them.

        Raises InvalidInput for a depth at which the model cannot stop.
        """
        default = self.settings.default_depth
        otherwise = "full depth" if default is None else f"the default, {default}"
        return self._stop(asked or default, "depth", otherwise)

    def documents_depth(self, asked: int | None, *, beside: int | None) -> int | None:
        """The depth of texts that are compared with others of the depth ``beside``.

        Raises InvalidInput for a depth that the model lacks, or whose embeddings cannot be compared
        with those of the other.
        """
        if asked is None:
            return beside
        depth = self._stop(asked, "documents_depth", "the depth of the source")
        if self.fingerprint(depth) != self.fingerprint(beside):
            together = ", ".join(map(str, self.manifest.comparable_depths)) or "none"
            raise InvalidInput(
                f"documents_depth is {asked} and depth is {beside or 'full'}; of this model's"
                f" depths these can be compared with each other: {together}."
                " Leave documents_depth out.",
                param="documents_depth",
            )
        return depth

    def _stop(self, depth: int | None, param: str, otherwise: str) -> int | None:
        manifest = self.manifest
        if depth is None or depth == manifest.full_depth:
            return None
        if depth not in manifest.depths:
            known = ", ".join(map(str, manifest.all_depths)) or "none"
            raise InvalidInput(
                f"{param} is {depth}; this model can stop at {known}."
                f" Leave it out for {otherwise}.",
                param=param,
            )
        return depth

    def windows(self, options: EmbedOptions) -> Windows | None:
        """How long texts are split, None where they are cut; raises InvalidInput."""
        longest = self.manifest.max_input_length
        overlap = options.window_overlap
        if overlap is not None and overlap > longest // 2:
            raise InvalidInput(
                f"window_overlap is {overlap}; this model reads {longest} tokens and windows share"
                f" at most {longest // 2}. Ask for less.",
                param="window_overlap",
            )
        if options.long_texts == "truncate":
            return None
        return Windows(self.settings.max_windows, longest // 8 if overlap is None else overlap)

    def dimensions(self, asked: int | None) -> int | None:
        """How many components to answer with; None for all of them.

        Raises InvalidInput when more are asked for than an embedding has.
        """
        dim = self.manifest.dim
        if asked is not None and asked > dim:
            raise InvalidInput(
                f"dimensions is {asked}; this model has {dim}. Ask for at most {dim}.",
                param="dimensions",
            )
        return asked or self.settings.default_dimensions


def service_of(request: Request) -> Service:
    service: Service = request.scope["app"].state.service
    return service


def remaining_seconds(request: Request) -> float:
    """What is left of the request's timeout, at least a millisecond."""
    limit = service_of(request).settings.request_timeout_seconds
    return max(0.001, limit - context_of(request).elapsed_seconds())


def serializing(request: Request) -> AbstractAsyncContextManager[None]:
    """A scope in which the answer to a request is in flight, within the request's timeout.

    A drain waits for it. Raises DeadlineExceeded, and NotReady when the drain's time is over.
    """
    return service_of(request).engine.track(remaining_seconds(request), stage=lambda: "serialize")


async def read_body(request: Request, schema: type[Body], *, queued: bool = True) -> Body:
    """The request's body, unless it would be refused whatever it says.

    ``queued`` says whether its texts wait in a lane, which its header or its API key may name.
    Raises NotReady, Overloaded, and what `BodyReader.read` raises.
    """
    service, context = service_of(request), context_of(request)
    named = request.headers.get(PRIORITY, context.key_lane)
    lanes = [lane for lane in LANES if named in (lane, None)] if queued else []
    service.engine.check_room(lanes)
    return await service.bodies.read(request, schema)


async def embed(
    request: Request,
    texts: Sequence[Text],
    options: EmbedOptions,
    *,
    prompt: str | None = None,
    others: OtherTexts | None = None,
    weights: bool = False,
    skip_failed: bool = False,
) -> EmbedResult:
    """The embeddings of ``texts`` [n, dim], not normalised; cancelled when the client disconnects.

    ``prompt`` stands before them, by default that of the options. Those of ``others`` follow. With
    ``weights`` their block weights are given instead. With ``skip_failed`` a text that cannot be
    embedded has its error in the result.
    Raises what the engine raises, InvalidInput for an unknown prompt, depth or lane, or
    an overlap that is too large, and ClientDisconnect.
    """
    service, context = service_of(request), context_of(request)
    settings, truncate = service.settings, options.truncate
    every = [*texts, *others.texts] if others else texts
    most, said = settings.interactive_texts, request.headers.get(PRIORITY)
    lane = lane_of(said, len(every), key=context.key_lane, interactive_texts=most)
    asked = EmbedRequest(
        texts,
        prompt_of(service.manifest, options) if prompt is None else prompt,
        service.depth(options.depth),
        others,
        truncate=settings.auto_truncate if truncate is None else truncate,
        truncation_direction=options.truncation_direction,
        windows=service.windows(options),
        weights=weights,
        skip_failed=skip_failed,
        lane=lane,
        timeout_seconds=remaining_seconds(request),
    )
    context.lane, context.depth = asked.lane, asked.depth
    context.characters += sum(map(len, every))
    if context.span is not None:
        context.span.set_attribute("s2sent.texts", len(every))
    began_ns = time.time_ns()
    context.result = await unless_disconnected(request, service.engine.embed(asked))
    if context.charge is not None:
        await context.charge(sum(context.result.tokens))
    if context.span is not None:
        trace_stages(context.span, context.result, began_ns=began_ns)
    return context.result
