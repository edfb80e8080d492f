"""Routes that FastAPI documents and does not stand in front of."""

from collections.abc import Iterable

from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import ServiceError
from service.http.error_responses import on_client_disconnect, on_service_error


class DirectRoute(APIRoute):
    """A route whose endpoint takes the request and nothing else, and is called with just that.

    FastAPI's own handling (dependencies, exit stacks, a second layer of exception handlers) would
    find nothing to do, and a short request costs little else.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; 405 for another method, as every route does."""
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)
            return
        response = await self.endpoint(Request(scope, receive, send))
        await response(scope, receive, send)


class DirectRoutes:
    """ASGI middleware, the innermost: goes to direct routes by their path, past the router.

    What it does not know (another path, another method) goes on to the router, which knows every
    route, these as well. The endpoints raise ServiceError and ClientDisconnect, which are answered
    as the application's exception handlers answer them.
    """

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute]) -> None:
        self._app = app
        self._routes = {
            (method, route.path): route
            for route in routes
            if isinstance(route, DirectRoute)
            for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = None
        if scope["type"] == "http":
            route = self._routes.get((scope["method"], scope["path"]))
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        request = Request(scope, receive, send)
        try:
            response = await route.endpoint(request)
        except ServiceError as error:
            response = await on_service_error(request, error)
        except ClientDisconnect as error:
            response = await on_client_disconnect(request, error)
        await response(scope, receive, send)
