"""/, /docs and /openapi.json: what a person who opens the service in a browser sees."""

import orjson
from fastapi import APIRouter, Request, Response

from service.api.docs_page import PAGE_HEADERS, api_page
from service.api.responses import JSON

router = APIRouter(include_in_schema=False)

_READING = ["GET", "HEAD"]


@router.api_route("/", methods=_READING)
async def root(_request: Request) -> Response:
    """Where to go from here."""
    content = b'{"name":"s2sent","docs":"/docs","info":"/info"}'
    return Response(content, media_type=JSON, headers=PAGE_HEADERS)


@router.api_route("/docs", methods=_READING)
async def docs(request: Request) -> Response:
    """The API for people; works without a network."""
    state = request.app.state
    if not hasattr(state, "api_page"):  # made once, when first asked for
        state.api_page = api_page(request.app.openapi())
    return Response(state.api_page, media_type="text/html", headers=PAGE_HEADERS)


@router.api_route("/openapi.json", methods=_READING)
async def openapi(request: Request) -> Response:
    """The API for machines."""
    content = orjson.dumps(request.app.openapi())
    return Response(content, media_type=JSON, headers=PAGE_HEADERS)
