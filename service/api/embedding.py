"""Where routes meet the engine: their shared state, and request options -> engine -> result."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from starlette.requests import Request

from model.artifact.identity import vector_fingerprint
from model.artifact.manifest import Manifest
from service.api.input_types import Text
from service.api.schemas import EmbedOptions
from service.engine.types import EmbeddingEngine, EmbedResult
from service.errors import InvalidInput
from service.http.body import BodyReader, unless_disconnected
from service.http.context import context_of
from service.http.tracing import trace_stages
from service.metrics import Metrics
from service.settings import Settings


@dataclass(frozen=True)
class Service:
    """What every route shares; one per application, in its ``app.state``."""

    settings: Settings
    engine: EmbeddingEngine
    metrics: Metrics
    bodies: BodyReader
    started_at: int = field(default_factory=lambda: int(time.time()))  # seconds since the epoch
    _fingerprints: dict[int | None, str] = field(default_factory=dict)  # by depth

    @property
    def manifest(self) -> Manifest:
        """The manifest of the served artifact; raises NotReady while none is loaded."""
        return self.engine.artifact.manifest

    @property
    def model_name(self) -> str:
        """The model's name in answers."""
        return self.settings.served_name or self.manifest.name

    @property
    def compute_type(self) -> str:
        """``gpu`` or ``cpu``, by the provider that the encoder runs on."""
        return "cpu" if self.engine.provider == "CPUExecutionProvider" else "gpu"

    def fingerprint(self, depth: int | None = None) -> str:
        """The identity of the vectors of a depth (`model.artifact.identity`)."""
        known = self._fingerprints.get(depth)
        if known is None:
            known = self._fingerprints[depth] = vector_fingerprint(self.manifest, depth)
        return known

    def prompt(self, name: str | None) -> str:
        """The text put before every input; raises InvalidInput for a name the model lacks."""
        if name is None:
            return ""
        prompts = self.manifest.prompts
        if name not in prompts:
            known = ", ".join(sorted(prompts)) or "none"
            raise InvalidInput(
                f"prompt_name is {name[:80]!r}; this model has {known}. Leave it out for none.",
                param="prompt_name",
            )
        return prompts[name]

    def check_depth(self, depth: int | None) -> None:
        """Raise InvalidInput for a depth at which the model cannot stop."""
        if depth is not None and depth not in self.manifest.depths:
            known = ", ".join(map(str, self.manifest.depths)) or "none"
            raise InvalidInput(
                f"depth is {depth}; this model can stop at {known}. Leave it out for full depth.",
                param="depth",
            )

    def check_dimensions(self, dimensions: int | None) -> None:
        """Raise InvalidInput when more components are requested than an embedding has."""
        dim = self.manifest.dim
        if dimensions is not None and dimensions > dim:
            raise InvalidInput(
                f"dimensions is {dimensions}; this model has {dim}. Ask for at most {dim}.",
                param="dimensions",
            )


def service_of(request: Request) -> Service:
    """The service that answers this request."""
    service: Service = request.scope["app"].state.service
    return service


def remaining_seconds(request: Request) -> float:
    """What is left of the request's timeout, at least a millisecond."""
    limit = service_of(request).settings.request_timeout_seconds
    return max(0.001, limit - context_of(request).elapsed_seconds())


async def embed(
    request: Request,
    texts: Sequence[Text],
    options: EmbedOptions,
    *,
    skip_failed: bool = False,
) -> EmbedResult:
    """The embeddings of ``texts`` [n, dim], not normalised; cancelled when the client disconnects.

    With ``skip_failed`` a text that cannot be embedded has its error in the result.
    Raises what the engine raises, InvalidInput for an unknown prompt or depth, and
    ClientDisconnect.
    """
    service, context = service_of(request), context_of(request)
    service.check_depth(options.depth)
    settings = service.settings
    work = service.engine.embed(
        texts,
        truncate=settings.auto_truncate if options.truncate is None else options.truncate,
        truncation_direction=options.truncation_direction,
        prompt=service.prompt(options.prompt_name),
        depth=options.depth,
        skip_failed=skip_failed,
        timeout_seconds=remaining_seconds(request),
    )
    context.characters = sum(map(len, texts))
    context.depth = options.depth
    if context.span is not None:
        context.span.set_attribute("s2sent.texts", len(texts))
    began_ns = time.time_ns()
    context.result = await unless_disconnected(request, work)
    if context.span is not None:
        trace_stages(context.span, context.result, began_ns=began_ns)
    return context.result
