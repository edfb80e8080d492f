"""Creates the FastAPI application: engine, middleware, routes and error handlers."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from s2sent.model.artifact.errors import ArtifactError
from s2sent.model.runtime.providers import ProviderUnavailable
from s2sent.service.access.auth import ApiKeys, RequireApiKey
from s2sent.service.access.rate_limits import Limiter, RateLimiter
from s2sent.service.api.embedding import Service
from s2sent.service.api.exposition import Exposition
from s2sent.service.api.openapi import EMBEDDING_HEADERS, INT8_HEADERS, RAW_HEADERS, describe
from s2sent.service.api.routes import explain, native, openai, operations, tokenize
from s2sent.service.engine.engine import Engine
from s2sent.service.engine.inference.model import EngineStartFailed, LoadedModel
from s2sent.service.engine.types import EmbeddingEngine
from s2sent.service.errors import ServiceError
from s2sent.service.http.body import BodyReader
from s2sent.service.http.connection.protocol import METRICS_STATE
from s2sent.service.http.error_responses import (
    on_client_disconnect,
    on_http_exception,
    on_service_error,
)
from s2sent.service.http.memory import ByteBudget
from s2sent.service.http.middleware import REQUEST_ID_HEADER, ObserveRequests
from s2sent.service.http.tracing import close_provider, open_provider, telemetry_config
from s2sent.service.pages import docs, home, playground
from s2sent.service.settings import Settings
from s2sent.service.telemetry.metrics import Metrics, package_version
from s2sent.service.threads import NoMoreThreads

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

logger = logging.getLogger(__name__)

ROUTERS = tuple(
    module.router
    for module in (native, openai, tokenize, explain, operations, home, docs, playground)
)

ErrorHandler = Callable[[Request, Any], Coroutine[Any, Any, Response]]
ERROR_HANDLERS: dict[int | type[Exception], ErrorHandler] = {
    ServiceError: on_service_error,
    HTTPException: on_http_exception,
    ClientDisconnect: on_client_disconnect,
}

OnFatal = Callable[[str], None]


def log_ready() -> None:
    logger.info("ready")


def log_fatal(reason: str) -> None:
    logger.critical(reason)


def create_app(
    settings: Settings,
    *,
    engine: EmbeddingEngine | None = None,
    model: Future[LoadedModel] | None = None,
    metrics: Metrics | None = None,
    limiter: Limiter | None = None,
    tracer_provider: "TracerProvider | None" = None,
    on_fatal: OnFatal = log_fatal,
) -> FastAPI:
    """The service as an ASGI application.

    The engine starts in the background when the application does: /health answers at once, /ready
    when the model is loaded. ``model`` is a model that is already being opened. ``on_fatal`` is
    called with one sentence when the engine cannot start or has failed for good. Raises
    SettingsError when tracing is enabled and its packages are not installed, and when the file of
    API keys cannot be used.
    """
    metrics = metrics or Metrics()
    tracer_provider = tracer_provider or open_provider(settings, version=package_version())
    engine = engine or Engine(settings, metrics, model=model, on_fatal=on_fatal)
    app = FastAPI(
        title="S2Sent",
        summary="Sentence embeddings and similarity.",
        version=package_version(),
        openapi_url=None,  # service/pages/docs.py has these routes
        redirect_slashes=False,  # a redirect has no error envelope, and repeats the Host header
        telemetry=telemetry_config(tracer_provider),
        # Not include_router, which matches every request twice: against the router, then its route.
        routes=[route for router in ROUTERS for route in router.routes],
        exception_handlers=ERROR_HANDLERS,
        lifespan=_lifespan(engine, settings, metrics, tracer_provider, on_fatal),
    )
    answer_memory = ByteBudget(
        settings.max_unsent_bytes,
        metrics,
        what="the answers that are not yet sent",
        setting="max_unsent_bytes",
    )
    bodies = BodyReader(settings, metrics)
    app.state.service = Service(
        settings, engine, metrics, bodies, answer_memory, Exposition(metrics)
    )
    app.openapi = lambda: describe(app)  # type: ignore[method-assign]  # FastAPI's documented way
    limiter = limiter or RateLimiter(metrics)
    _add_middleware(app, settings, metrics, limiter, traced=tracer_provider is not None)
    return app


def _add_middleware(
    app: FastAPI, settings: Settings, metrics: Metrics, limiter: Limiter, *, traced: bool
) -> None:
    """Innermost first: the middleware that is added last handles a request first."""
    if keys := ApiKeys.of(settings):
        app.add_middleware(
            RequireApiKey,
            keys=keys,
            limiter=limiter,
            metrics_require_key=settings.metrics_require_key,
        )
    if settings.cors_allow_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_allow_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[
                REQUEST_ID_HEADER,
                "Retry-After",
                *EMBEDDING_HEADERS,
                *RAW_HEADERS,
                *INT8_HEADERS,
            ],
        )
    app.add_middleware(
        ObserveRequests, metrics=metrics, log_requests=settings.log_requests, traced=traced
    )


def _lifespan(
    engine: EmbeddingEngine,
    settings: Settings,
    metrics: Metrics,
    tracer_provider: "TracerProvider | None",
    on_fatal: OnFatal,
) -> Callable[[FastAPI], AbstractAsyncContextManager[dict[str, Metrics]]]:
    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[dict[str, Metrics]]:
        starting = asyncio.create_task(start_engine(engine, log_ready, on_fatal))
        try:
            with suppress(asyncio.CancelledError):  # a second signal: the loop ends without telling
                yield {METRICS_STATE: metrics}
        finally:
            starting.cancel()
            await asyncio.wait((starting,))
            await engine.drain(settings.drain_timeout_seconds)
            metrics.deferred.run()
            if tracer_provider:
                with suppress(RuntimeError):  # no thread can be started: spans are lost
                    await asyncio.to_thread(close_provider, tracer_provider)

    return lifespan


async def start_engine(
    engine: EmbeddingEngine, on_ready: Callable[[], None], on_fatal: OnFatal
) -> None:
    """Start the engine and call ``on_ready``, or ``on_fatal`` with the reason why it cannot."""
    try:
        await engine.start()
        on_ready()
    except (ArtifactError, ProviderUnavailable, EngineStartFailed, NoMoreThreads) as error:
        on_fatal(f"The engine cannot start: {error}")
    except Exception:  # the edge of a task that nobody awaits
        logger.exception("the engine failed to start")
        on_fatal("The engine cannot start, for the reason logged above.")
