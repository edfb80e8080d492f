"""What a route can reach: the service it belongs to, and the record of its own request."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field

from opentelemetry.trace import Span
from starlette.requests import HTTPConnection
from starlette.types import Scope

from model.artifact.manifest import Manifest
from service.engine.types import EmbeddingEngine, EmbedResult
from service.errors import InvalidInput
from service.metrics import Metrics
from service.settings import Settings

_SCOPE_KEY = "s2sent.request"


@dataclass(frozen=True)
class Service:
    """The parts every route shares."""

    settings: Settings
    engine: EmbeddingEngine
    metrics: Metrics
    started_at: int = field(default_factory=lambda: int(time.time()))  # seconds since the epoch
    # One thread: large bodies are parsed one at a time, so that the loop waits for one at most.
    body_reader: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, "read-body")
    )

    @property
    def manifest(self) -> Manifest:
        """The manifest of the artifact that is served; raises NotReady while it is not open."""
        return self.engine.artifact.manifest

    @property
    def model_name(self) -> str:
        """The name the model goes by in answers."""
        return self.settings.served_name or self.manifest.name

    @property
    def compute_type(self) -> str:
        """``gpu`` or ``cpu``, whichever the encoder really runs on."""
        return "cpu" if self.engine.provider == "CPUExecutionProvider" else "gpu"

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
        """Raise InvalidInput when more components are asked for than there are."""
        dim = self.manifest.dim
        if dimensions is not None and dimensions > dim:
            raise InvalidInput(
                f"dimensions is {dimensions}; this model has {dim}. Ask for at most {dim}.",
                param="dimensions",
            )


@dataclass(slots=True)
class RequestContext:
    """What is known of one request while it runs; the access log is written from it."""

    service: Service
    request_id: str
    span: Span | None = None  # where traces are asked for
    started: float = field(default_factory=time.perf_counter)  # seconds, monotonic
    body_read: float = 0.0  # the moment the body was complete, same clock
    characters: int = 0  # sent by the client; for token ids their number
    key_name: str | None = None  # of the API key it came with, where the key has one
    result: EmbedResult | None = None  # once the engine has answered

    def elapsed_seconds(self) -> float:
        """Seconds since the head of the request arrived."""
        return time.perf_counter() - self.started

    def put_into(self, scope: Scope) -> None:
        """Leave it where `context_of` finds it."""
        scope[_SCOPE_KEY] = self


# The request being worked on, for log lines written on its behalf.
current_request: ContextVar[RequestContext | None] = ContextVar("current_request", default=None)


def service_of(connection: HTTPConnection) -> Service:
    """The service that answers this request."""
    return context_of(connection).service


def context_of(connection: HTTPConnection) -> RequestContext:
    """The record of this request."""
    context: RequestContext = connection.scope[_SCOPE_KEY]
    return context
