"""Routes that FastAPI documents and does not stand in front of."""

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.types import Receive, Scope, Send


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
