"""The routes /playground and /static/: a page that shows what the model does, and its files."""

import hashlib
from functools import cache
from importlib import resources
from typing import NamedTuple

from fastapi import APIRouter, Request, Response

from s2sent.service.api.embedding import service_of
from s2sent.service.errors import NotFound
from s2sent.service.pages.html import page_headers

router = APIRouter(include_in_schema=False)

READING = ["GET", "HEAD"]
PAGE = "playground.html"
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
HEADERS = page_headers(style="'self'", scripts=True)


class StaticFile(NamedTuple):
    """A file of `static/` as it is sent."""

    content: bytes
    media_type: str
    etag: str


@router.api_route("/playground", methods=READING)
async def playground(request: Request) -> Response:
    """The page; raises NotFound where the setting ``playground`` leaves it out."""
    _require_playground(request)
    return _answer(request, static_files()[PAGE])


@router.api_route("/static/{name:path}", methods=READING)
async def static(request: Request) -> Response:
    """A file of the page or the script of /docs; raises NotFound where neither is served.

    Names are looked up, so no other file can be asked for.
    """
    _require_playground(request)
    file = static_files().get(request.path_params["name"])
    if file is None:
        raise NotFound(f"There is no file {request.scope['path'][:80]}. See /docs for the routes.")
    return _answer(request, file)


def _require_playground(request: Request) -> None:
    settings = service_of(request).settings
    if not settings.serves_playground:
        raise NotFound(
            "The playground and its files are not served: S2SENT_PLAYGROUND is"
            f" {settings.playground}, and auto serves them on loopback only."
            " Set S2SENT_PLAYGROUND=on."
        )


@cache
def static_files() -> dict[str, StaticFile]:
    """Every file of `static/` by its name, which for a library's begins with ``vendor/``."""
    folder = resources.files("s2sent.service.pages") / "static"
    found = {}
    for prefix, part in (("", folder), ("vendor/", folder / "vendor")):
        for file in part.iterdir():
            media_type = next(
                (kind for end, kind in MEDIA_TYPES.items() if file.name.endswith(end)), ""
            )
            if media_type:
                content = file.read_bytes()
                etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
                found[prefix + file.name] = StaticFile(content, media_type, etag)
    return found


def _answer(request: Request, file: StaticFile) -> Response:
    """The file, or 304 where the browser has it; it asks each time, so an upgrade is seen."""
    headers = HEADERS | {"ETag": file.etag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
