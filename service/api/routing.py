"""The route class of all endpoints: each takes the Request and returns a Response."""

from collections.abc import Callable
from typing import Any

from fastapi.routing import APIRoute


class RequestRoute(APIRoute):
    """A FastAPI route without dependency solving, body parsing or response serialisation."""

    def get_route_handler(self) -> Callable[..., Any]:
        """The endpoint itself (FastAPI, "Custom Request and APIRoute class")."""
        return self.endpoint
