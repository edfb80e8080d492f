"""The route class of all endpoints: each takes the Request and returns a Response."""

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.types import Receive, Scope, Send


class RequestRoute(APIRoute):
    """A FastAPI route without dependency solving, body parsing or response serialisation."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request by the endpoint alone; 405 to a method that is not the route's."""
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)
            return
        response = await self.endpoint(Request(scope, receive, send))
        await response(scope, receive, send)
