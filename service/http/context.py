"""The record of one request while it is handled, and where its handlers find it."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from opentelemetry.trace import Span
from starlette.requests import HTTPConnection
from starlette.types import Scope

from s2sent.service.engine.types import EmbedResult
from s2sent.service.http.memory import Holding
from s2sent.service.lanes import Lane

# Key, in the ASGI ``state`` of a request, of the call that ends its connection at once.
ABORT_STATE = "abort"


@dataclass(slots=True)
class RequestContext:
    """What is known of one request; the access log and the cost headers are written from it.

    It travels in the ASGI scope's ``state`` (Starlette's ``request.state``).
    """

    request_id: str
    span: Span | None = None  # None while tracing is off
    abort: Callable[[], None] | None = None  # ends its connection; None on a server other than ours
    started: float = field(default_factory=time.perf_counter)  # seconds, monotonic
    body_read: float = 0.0  # when the body was complete, same clock
    characters: int = 0  # sent by the client; for token ids their number
    key_name: str | None = None  # of the API key it came with, where the key has one
    key_lane: Lane | None = None  # the API key's, where it has one
    charge: Callable[[int], Awaitable[None]] | None = None  # counts tokens of the API key
    lane: Lane | None = None  # where its texts waited
    result: EmbedResult | None = None  # once the engine has answered, until it is recorded
    body_holding: Holding | None = None  # memory for its body, until it is answered
    answer_holding: Holding | None = None  # memory for its answer, until that is sent
    depth: int | None = None  # the last block that was run; None for all
    route: str | None = None  # that it counts for, where its path does not tell

    @classmethod
    def attach(cls, scope: Scope, request_id: str, span: Span | None) -> "RequestContext":
        """Create the record of the request in ``scope``, where `context_of` finds it."""
        state = scope.setdefault("state", {})
        context = cls(request_id, span, state.get(ABORT_STATE))
        state["context"] = context
        return context

    def release_memory(self) -> None:
        """Hold memory for neither body nor answer any more."""
        for holding in (self.body_holding, self.answer_holding):
            if holding is not None:
                holding.release()

    def elapsed_seconds(self) -> float:
        """Seconds since the head of the request arrived."""
        return time.perf_counter() - self.started


def context_of(connection: HTTPConnection) -> RequestContext:
    context: RequestContext = connection.scope["state"]["context"]
    return context
